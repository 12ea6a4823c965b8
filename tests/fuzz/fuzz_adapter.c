// Any bytes as a low-rank adapter for a small model: a GGUF file, or the two files of a PEFT folder
// as sections of the input. What opens must give logits, or say that they broke down.
#include "fuzz_answer.h"
#include "fuzz_file.h"

static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};

static void compute(const qn_engine *engine, int64_t adapter) {
    static const int32_t ids[] = {5, 6, 7};
    qn_logits logits = QN_INIT(qn_logits);
    qn_err err = {0};
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .adapter = adapter);
    if (!fuzz_failed(qn_engine_logits(&logits, engine, ids, 3, &opts, &err), &err))
        qn_logits_deinit(&logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const bool is_folder = fuzz_find(data, size, "\n===== ", 7) != NULL;
    const char *path = is_folder ? fuzz_folder(data, size, names) : fuzz_file(data, size);
    const qn_adapter adapters[] = {{.path = path, .scale = 0.5f, .set = 1},
                                   {.path = path, .scale = 2, .set = 2},
                                   {.path = path, .scale = -1, .set = 2}};
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .adapters = adapters, .n_adapters = 3);
    qn_engine *engine = NULL;
    qn_err err = {0};
    if (!fuzz_failed(qn_engine_open(&engine, FUZZ_CORPUS "/engine/llama.gguf", &opts, &err),
                     &err)) {
        compute(engine, 1);
        compute(engine, 2);
    }
    qn_engine_close(engine);
    return 0;
}
