// A folder of any files, from opening to an answer: checkpoints with an index, split GGUF sets.
// With a section "convert", which names a type, the folder becomes a GGUF file, which is opened
// too.
#include "fuzz_answer.h"
#include "fuzz_file.h"

#include <errno.h>

static void convert(const char *folder, const uint8_t *type, size_t n_type) {
    char name[16], path[128], tower[128];
    qn_err err = {0};
    snprintf(name, sizeof name, "%.*s", (int)(n_type < sizeof name ? n_type : 0),
             (const char *)type);
    snprintf(path, sizeof path, "%s/out/out.gguf", folder);
    snprintf(tower, sizeof tower, "%s/out/mmproj-out.gguf", folder);
    char *out = strrchr(path, '/');
    *out = 0;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) abort();
    *out = '/';
    const qn_convert_opts opts = QN_INIT(qn_convert_opts, .type = name[0] ? name : NULL);
    if (!fuzz_failed(qn_convert(folder, path, &opts, &err), &err)) (void)fuzz_answer(path, true);
    unlink(path);
    unlink(tower);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "m-00001-of-00002.gguf",
                                        "m-00002-of-00002.gguf",
                                        "llama.quern.toml",
                                        NULL};
    const char *folder = fuzz_folder(data, size, names);
    size_t n_type = 0;
    const uint8_t *type = fuzz_section(data, size, "convert", &n_type);
    if (!type) return fuzz_answer(folder, true);
    convert(folder, type, n_type);
    return 0;
}
