// The stand-in for GPUs, opened by a test that tells it when to fail.
#ifndef QN_TESTS_CUDA_RIG_H
#define QN_TESTS_CUDA_RIG_H

#include "testing.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef struct fake_card {
    void (*set)(long fail, size_t most);
    void (*refuse)(long alloc);
    long (*calls)(void);
    long (*allocs)(void);
    long (*objects)(void);
    size_t (*bytes)(void);
} fake_card;

static inline void find_symbol(void *to, void *library, const char *name) {
    void *symbol = dlsym(library, name);
    assert_non_null(symbol);
    memcpy(to, &symbol, sizeof symbol);
}

// It is the library of this process from now on.
static inline fake_card use_fake(void) {
    fake_card card;
    assert_int_equal(setenv("QN_CUDA_LIBRARY", FAKE_CUDA, 1), 0);
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    find_symbol(&card.set, library, "fake_cuda_set");
    find_symbol(&card.refuse, library, "fake_cuda_refuse");
    find_symbol(&card.calls, library, "fake_cuda_calls");
    find_symbol(&card.allocs, library, "fake_cuda_allocs");
    find_symbol(&card.objects, library, "fake_cuda_objects");
    find_symbol(&card.bytes, library, "fake_cuda_bytes");
    card.set(0, 0);
    card.refuse(0);
    return card;
}

#endif
