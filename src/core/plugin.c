#define _GNU_SOURCE // dladdr
#include "core/plugin.h"

#include "core/buf.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#ifndef QN_LIBDIR // from the folder above that of programs
#define QN_LIBDIR "lib"
#endif

// It stays: what it stands on, a driver or MPI, is started once in a process.
static void *open_library(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

// A file below this folder. *is_there: it is, though it may be one that cannot be opened.
static void *open_in(bool *is_there, const char *folder, size_t size, const char *below,
                     const char *name) {
    qn_buf path = {0};
    void *library = NULL;
    qn_buf_printf(&path, "%.*s%s%s", (int)size, folder, below, name);
    if (!path.failed && access(path.data, F_OK) == 0) {
        *is_there = true;
        library = open_library(path.data);
    }
    qn_buf_deinit(&path);
    return library;
}

// From the folder of the program or library that this is in: where it was built, installed as a
// library, installed as a program.
static const char *const places[] = {"", "quern/", "../" QN_LIBDIR "/quern/"};

static void *open_near(bool *is_there, const char *file, size_t size, const char *name) {
    void *library = NULL;
    while (size > 0 && file[size - 1] != '/') size--;
    for (size_t i = 0; size > 0 && !*is_there && i < sizeof places / sizeof *places; i++)
        library = open_in(is_there, file, size, places[i], name);
    return library;
}

// The linker knows a library by its path, but a program by what it was called: a link, or a word
// without a folder.
static void *open_beside(bool *is_there, const char *name) {
    Dl_info here;
    char program[4096];
    void *library = NULL;
    if (dladdr((const void *)(uintptr_t)open_beside, &here) && here.dli_fname)
        library = open_near(is_there, here.dli_fname, strlen(here.dli_fname), name);
    const ssize_t size = readlink("/proc/self/exe", program, sizeof program);
    if (!*is_there && size > 0) library = open_near(is_there, program, (size_t)size, name);
    return *is_there ? library : open_library(name);
}

qn_status qn_plugin_open(void **symbol, const qn_plugin *plugin, qn_err *err) {
    const char *name = plugin->path ? plugin->path : plugin->library;
    bool is_there = plugin->path && access(plugin->path, F_OK) == 0;
    void *library =
        plugin->path ? open_library(plugin->path) : open_beside(&is_there, plugin->library);
    if (!library) {
        const char *why = dlerror();
        return QN_FAIL(err, UNSUPPORTED, "%s: the library %s cannot be used: %s; %s", plugin->whom,
                       name, why ? why : "unknown", is_there ? plugin->broken : plugin->missing);
    }
    void *got = dlsym(library, plugin->symbol);
    if (!got)
        return QN_FAIL(err, UNSUPPORTED, "%s: %s has no %s", plugin->whom, name, plugin->symbol);
    *symbol = got;
    return QN_OK;
}
