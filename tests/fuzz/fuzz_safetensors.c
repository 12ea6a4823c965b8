// Any bytes as a safetensors file. The input is only the header and the data: the length in front
// of the header is put there, so that changing the header does not break it. An input whose first
// byte is '#' is the whole file.
#include "fuzz_source.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0 && data[0] == '#') return open_input(data + 1, size - 1);
    const uint8_t *end = memchr(data, '\n', size); // the header ends at the first line's end
    const size_t length = end ? (size_t)(end - data) : size;
    uint8_t *file = malloc(8 + size);
    if (!file) return 0;
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(file + 8, data, length);
    const size_t rest = end ? size - length - 1 : 0;
    memcpy(file + 8 + length, data + size - rest, rest);
    const int result = open_input(file, 8 + length + rest);
    free(file);
    return result;
}
