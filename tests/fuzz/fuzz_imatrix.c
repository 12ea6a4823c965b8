// Any bytes as an importance file, up to the model that is quantised with it.
#include "fuzz_file.h"

#include <quern.h>

static char out_path[64];

static void remove_out(void) { unlink(out_path); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qn_err err = {0};
    if (!out_path[0]) {
        snprintf(out_path, sizeof out_path, "/dev/shm/quern-fuzz-%ld.gguf", (long)getpid());
        if (atexit(remove_out) != 0) abort();
    }
    const qn_quantize_opts opts =
        QN_INIT(qn_quantize_opts, .type = "Q4_0", .imatrix = fuzz_file(data, size), .n_threads = 1);
    const qn_status status = qn_quantize(FUZZ_CORPUS "/engine/qwen3.gguf", out_path, &opts, &err);
    if (status && !err.message[0]) abort();
    return 0;
}
