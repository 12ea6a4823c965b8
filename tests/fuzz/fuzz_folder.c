// A folder of any files, from opening to an answer: checkpoints with an index, split GGUF sets.
#include "fuzz_answer.h"
#include "fuzz_file.h"

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
                                        "m-00001-of-00002.gguf",
                                        "m-00002-of-00002.gguf",
                                        "llama.quern.toml",
                                        NULL};
    return fuzz_answer(fuzz_folder(data, size, names), true);
}
