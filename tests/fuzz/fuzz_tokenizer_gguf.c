// Any bytes as a GGUF file with a tokenizer: opening, encoding, decoding.
#include "fuzz_file.h"
#include "fuzz_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text;
    size_t text_size;
    const size_t n = split_input((const char *)data, size, &text, &text_size);
    qn_tokenizer *tokenizer;
    if (qn_tokenizer_open(&tokenizer, fuzz_file(data, n), NULL)) return 0;
    use_tokenizer(tokenizer, text, text_size);
    qn_tokenizer_close(tokenizer);
    return 0;
}
