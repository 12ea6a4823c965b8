#define _GNU_SOURCE // MAP_ANONYMOUS, MAP_NORESERVE
#include "core/mem.h"

#include <stdlib.h>
#include <sys/mman.h>

bool qn_size_mul(size_t *out, size_t a, size_t b) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

bool qn_size_add(size_t *out, size_t a, size_t b) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

bool qn_i64_mul(int64_t *out, int64_t a, int64_t b) {
    int64_t r;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

bool qn_i64_add(int64_t *out, int64_t a, int64_t b) {
    int64_t r;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

void *qn_alloc(size_t n, size_t size) {
    if (n == 0 || size == 0) n = size = 1;
    return calloc(n, size); // calloc checks the product
}

void *qn_realloc(void *p, size_t n, size_t size) {
    size_t bytes;
    if (!qn_size_mul(&bytes, n, size)) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void qn_free(void *p) { free(p); }

bool qn_grow(void **items, size_t *cap, size_t want, size_t size) {
    if (want <= *cap) return true;
    size_t bigger = *cap < 8 ? 8 : *cap;
    while (bigger < want) {
        if (!qn_size_mul(&bigger, bigger, 2)) return false;
    }
    void *moved = qn_realloc(*items, bigger, size);
    if (!moved) return false;
    *items = moved;
    *cap = bigger;
    return true;
}

void *qn_reserve(size_t size) {
    if (size == 0) return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void qn_unreserve(void *p, size_t size) {
    if (p) munmap(p, size);
}

void qn_want_large_pages(void *p, size_t size) {
#if defined(MADV_HUGEPAGE)
    (void)madvise(p, size, MADV_HUGEPAGE);
#else
    (void)p, (void)size;
#endif
}

void qn_want_small_pages(void *p, size_t size) {
#if defined(MADV_NOHUGEPAGE)
    (void)madvise(p, size, MADV_NOHUGEPAGE);
#else
    (void)p, (void)size;
#endif
}
