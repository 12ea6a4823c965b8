// Checked size arithmetic and heap memory.
//
// Sizes that come from outside are multiplied and added here only: a false or NULL result is an
// error of the input, never a small allocation followed by a large write.
#ifndef QN_CORE_MEM_H
#define QN_CORE_MEM_H

#include "quern.h"

// *out = a * b (or a + b). False on overflow; *out is then untouched.
QN_MUST_CHECK bool qn_size_mul(size_t *out, size_t a, size_t b);
QN_MUST_CHECK bool qn_size_add(size_t *out, size_t a, size_t b);
// The same for non-negative int64 values; a negative operand counts as overflow.
QN_MUST_CHECK bool qn_i64_mul(int64_t *out, int64_t a, int64_t b);
QN_MUST_CHECK bool qn_i64_add(int64_t *out, int64_t a, int64_t b);

static inline int64_t qn_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t qn_max(int64_t a, int64_t b) { return a > b ? a : b; }

// `n` zeroed elements of `size` bytes; NULL when the product overflows or memory is short.
// Zero elements give a pointer that can be freed.
void *qn_alloc(size_t n, size_t size);
// As realloc, with a checked product; the old block stays valid on failure. New bytes are not
// zeroed.
void *qn_realloc(void *p, size_t n, size_t size);
// qn_free (in quern.h) releases what qn_alloc, qn_realloc or a `take` function gave.

// `size` zeroed bytes at a page border that cost memory only where they are touched, and count for
// nothing before; NULL when the system refuses. Released by qn_unreserve with the same size.
void *qn_reserve(size_t size);
void qn_unreserve(void *p, size_t size);
// Asks for large pages in a reserved range; the system may decline.
void qn_want_large_pages(void *p, size_t size);
// Asks for small ones only.
void qn_want_small_pages(void *p, size_t size);

// Grows *items (capacity *cap elements of `size` bytes) to hold at least `want`, doubling.
QN_MUST_CHECK bool qn_grow(void **items, size_t *cap, size_t want, size_t size);

#endif
