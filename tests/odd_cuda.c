// Libraries for GPUs that cannot be used, one for each ODD (test_backends_cuda.c).
#include "backends/cuda/cuda_api.h"

enum { OTHER_VERSION = 1, OTHER_TASK, NO_SYMBOL, NO_TABLE, NO_CARD, NO_DRIVER, OLD_DRIVER };

static int count(int *n) {
    if (ODD == NO_DRIVER) return 100;
    if (ODD == OLD_DRIVER) return 35;
    *n = 0;
    return 0;
}

static const char *explain(int error) {
    return error == 35 ? "the driver is too old" : error ? "the driver is missing" : "";
}

#if ODD == 3
#define qn_cuda_api_get another_name
#endif
const qn_cuda_api *qn_cuda_api_get(void);
__attribute__((visibility("default"))) const qn_cuda_api *qn_cuda_api_get(void) {
    static const qn_cuda_api api = {
        .version = QN_CUDA_API_VERSION + (ODD == OTHER_VERSION),
        .task_bytes = sizeof(qn_cuda_task) + (ODD == OTHER_TASK ? 8 : 0),
        .explain = explain,
        .count = count,
    };
    return ODD == NO_TABLE ? NULL : &api;
}
