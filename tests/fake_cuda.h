// What tests ask of the stand-in for GPUs (fake_cuda.c), which is a library of its own.
#ifndef QN_TESTS_FAKE_CUDA_H
#define QN_TESTS_FAKE_CUDA_H

#include <stddef.h>

// From its call number `fail` on (from now, 1 is the next) everything fails; 0: nothing does. At
// most so many bytes of memory; 0: as many as there are.
void fake_cuda_set(long fail, size_t most);
// Calls since then; bytes that are taken.
long fake_cuda_calls(void);
size_t fake_cuda_bytes(void);

#endif
