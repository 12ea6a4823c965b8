// What tests ask of the stand-in for GPUs (fake_cuda.c), which is a library of its own.
#ifndef QN_TESTS_FAKE_CUDA_H
#define QN_TESTS_FAKE_CUDA_H

#include <stddef.h>

// From its call number `fail` on (from now, 1 is the next) everything fails; 0: nothing does. At
// most so many bytes of memory; 0: as many as there are.
void fake_cuda_set(long fail, size_t most);
// The allocation of that number alone (from now, 1 is the next) finds no room; 0: all may.
void fake_cuda_refuse(long alloc);
// Allocations since then.
long fake_cuda_allocs(void);
// Calls since fake_cuda_set; bytes that are taken; graphs and open cards.
long fake_cuda_calls(void);
size_t fake_cuda_bytes(void);
long fake_cuda_objects(void);

#endif
