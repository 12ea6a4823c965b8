// Finding the plug-in that drives cards.
#include "backends/cuda/cuda_device.h"

#include "core/debug.h"
#include "core/plugin.h"

#include <string.h>

#define LIBRARY "libquern-cuda.so"

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
    static const char hint[] = "it is built where nvcc is found (docs/cuda.md)";
    qn_switches switches;
    void *symbol;
    qn_cuda_api_fn *get;
    QN_TRY(qn_switches_read(&switches, err));
    const qn_plugin plugin = {.whom = "device cuda",
                              .library = LIBRARY,
                              .path = switches.cuda_library,
                              .symbol = QN_CUDA_SYMBOL,
                              .missing = hint,
                              .broken = hint};
    QN_TRY(qn_plugin_open(&symbol, &plugin, err));
    memcpy(&get, &symbol, sizeof get);
    const qn_cuda_api *api = get();
    QN_TRY(check_version(api, err));
    *out = api;
    return QN_OK;
}
