// Any bytes as a GGUF model, from the file to an answer.
#include "fuzz_answer.h"
#include "fuzz_file.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

enum { HEADER = 4096 }; // keys and tensor table of the seeds end here, or soon after

// Weights are most of the bytes and change only numbers: seven of eight changes go to what stands
// before them, and leave the length as it is, so that the weights stay where they are.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    const size_t head = size < HEADER ? size : HEADER;
    if (seed % 8 == 0 || head == 0) return LLVMFuzzerMutate(data, size, max_size);
    const size_t from = seed / 8 % head, n = seed / 8 % 3 == 0  ? head - from
                                             : head - from < 16 ? head - from
                                                                : 16;
    LLVMFuzzerMutate(data + from, n, n);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    // An odd length leaves the weights out, which opens what weights are too short for.
    return fuzz_answer(fuzz_file(data, size), size % 2 == 0);
}
