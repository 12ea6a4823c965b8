// Finding the plug-in that drives cards.
#define _GNU_SOURCE // dladdr
#include "backends/cuda/cuda_device.h"

#include "core/buf.h"
#include "core/debug.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libquern-cuda.so"
#ifndef QN_LIBDIR // from the folder above that of programs
#define QN_LIBDIR "lib"
#endif

// It stays: a program that uses a card twice starts the driver once.
static void *open_library(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

// A file of this folder. *is_there: it is, though it may be one that cannot be opened.
static void *open_in(bool *is_there, const char *folder, size_t size, const char *below) {
    qn_buf path = {0};
    void *library = NULL;
    qn_buf_printf(&path, "%.*s/%s" LIBRARY, (int)size, folder, below);
    if (!path.failed && access(path.data, F_OK) == 0) {
        *is_there = true;
        library = open_library(path.data);
    }
    qn_buf_deinit(&path);
    return library;
}

// Beside the program or the library that this function is in, where they are installed together, or
// where the system looks.
static void *open_beside(void) {
    Dl_info here;
    bool is_there = false;
    void *library = NULL;
    if (dladdr((const void *)(uintptr_t)open_beside, &here) && here.dli_fname) {
        const char *slash = strrchr(here.dli_fname, '/');
        const size_t size = slash ? (size_t)(slash - here.dli_fname) : 0;
        if (slash) library = open_in(&is_there, here.dli_fname, size, "");
        if (slash && !is_there)
            library = open_in(&is_there, here.dli_fname, size, "../" QN_LIBDIR "/");
    }
    return is_there ? library : open_library(LIBRARY);
}

static qn_status check_version(const qn_cuda_api *api, qn_err *err) {
    if (!api || api->version != QN_CUDA_API_VERSION)
        return QN_FAIL(err, UNSUPPORTED, "device cuda: %s has version %d, this program wants %d",
                       LIBRARY, api ? api->version : 0, QN_CUDA_API_VERSION);
    if (api->task_bytes != sizeof(qn_cuda_task))
        return QN_FAIL(err, UNSUPPORTED,
                       "device cuda: %s was built for other sources: a task has %zu bytes there, "
                       "%zu here",
                       LIBRARY, api->task_bytes, sizeof(qn_cuda_task));
    return QN_OK;
}

qn_status qn_cuda_api_find(const qn_cuda_api **out, qn_err *err) {
    qn_switches switches;
    QN_TRY(qn_switches_read(&switches, err));
    const char *path = switches.cuda_library;
    void *library = path ? open_library(path) : open_beside();
    if (!library) {
        const char *why = dlerror();
        return QN_FAIL(err, UNSUPPORTED,
                       "device cuda: the library %s cannot be used: %s; it is built where nvcc is "
                       "found (docs/cuda.md)",
                       path ? path : LIBRARY, why ? why : "unknown");
    }
    void *symbol = dlsym(library, QN_CUDA_SYMBOL);
    qn_cuda_api_fn *get;
    if (!symbol)
        return QN_FAIL(err, UNSUPPORTED, "device cuda: %s has no %s", path ? path : LIBRARY,
                       QN_CUDA_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const qn_cuda_api *api = get();
    QN_TRY(check_version(api, err));
    *out = api;
    return QN_OK;
}
