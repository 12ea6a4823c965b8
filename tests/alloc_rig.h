// Allocations of the library, counted and failed. The linker sends them here (--wrap,
// tests/CMakeLists.txt: the tests in `counted`); jansson's come by json_set_alloc_funcs.
#ifndef QN_TESTS_ALLOC_RIG_H
#define QN_TESTS_ALLOC_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

static atomic_long countdown = -1; // allocations until the one that fails; negative: none fails
static atomic_long n_living;       // blocks not yet freed, of those that went through here
static atomic_long n_requests;     // allocations so far

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static bool must_fail(void) {
    atomic_fetch_add(&n_requests, 1);
    return atomic_load(&countdown) >= 0 && atomic_fetch_sub(&countdown, 1) == 0;
}

static void *counted(void *p) {
    if (p) atomic_fetch_add(&n_living, 1);
    return p;
}

void *__wrap_malloc(size_t size) { return must_fail() ? NULL : counted(__real_malloc(size)); }

void *__wrap_calloc(size_t n, size_t size) {
    return must_fail() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t size) {
    if (must_fail()) return NULL;
    void *moved = __real_realloc(p, size);
    return p ? moved : counted(moved);
}

void __wrap_free(void *p) {
    if (p) atomic_fetch_sub(&n_living, 1);
    __real_free(p);
}

// For json_set_alloc_funcs, with __wrap_free.
static inline void *json_alloc(size_t size) {
    return must_fail() ? NULL : counted(__real_malloc(size));
}

#endif
