// Any bytes as a GGUF file.
#include "fuzz_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return open_input(data, size); }
