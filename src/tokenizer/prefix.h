// A set of strings that answers: which members begin here? Used for added tokens and for unigram.
//
// Members lie sorted by bytes; a walk narrows the range of candidates byte by byte. It costs
// O(length of the longest member * log n) at most, and no more memory than the list itself.
#ifndef QN_TOKENIZER_PREFIX_H
#define QN_TOKENIZER_PREFIX_H

#include "core/err.h"

typedef struct qn_prefix_item {
    const char *data; // borrowed
    uint32_t size;    // not 0
    int32_t value;
} qn_prefix_item;

// Caller storage; `{0}` is a valid empty set.
typedef struct qn_prefix_set {
    qn_prefix_item *items; // owned, sorted
    size_t n;
    uint32_t first[257]; // items that begin with byte c: first[c] .. first[c + 1]
} qn_prefix_set;

// Takes `items` over (a heap block; released even on failure), sorts it, drops repeated strings
// (the lowest value stays).
QN_MUST_CHECK qn_status qn_prefix_init(qn_prefix_set *out, qn_prefix_item *items, size_t n,
                                       qn_err *err);
void qn_prefix_deinit(qn_prefix_set *set);

typedef struct qn_prefix_walk {
    size_t lo, hi, depth;
} qn_prefix_walk;

// The next longer member that is a prefix of `text`, NULL when there is no more. Start from `{0}`.
const qn_prefix_item *qn_prefix_next(qn_prefix_walk *walk, const qn_prefix_set *set,
                                     const char *text, size_t size);

static inline bool qn_prefix_may_start(const qn_prefix_set *set, unsigned char c) {
    return set->first[c] != set->first[c + 1];
}

#endif
