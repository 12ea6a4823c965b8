// The merge loop of byte-pair encoding, shared by rank-ordered merges (bpe.c) and by
// score-ordered pieces (sentencepiece.c).
//
// Symbols form a doubly linked list over one word. As long as some neighbours can merge, the pair
// of lowest rank does, the leftmost among equals. Short words scan all pairs; longer ones keep them
// in a heap: every symbol starts in at most two pairs and every merge makes at most two new ones,
// so n symbols cost O(n log n) whatever the text.
#ifndef QN_TOKENIZER_MERGE_H
#define QN_TOKENIZER_MERGE_H

#include "core/err.h"

#define QN_NO_ID UINT32_MAX // a symbol that is not a piece

typedef struct qn_symbol {
    uint32_t id;
    uint32_t start, size; // in the word, in bytes; size 0: merged away
    int32_t prev, next;   // -1: none
} qn_symbol;

// A possible merge of the symbol `at` with its right neighbour into piece `id`. It is stale when
// the two no longer span `size` bytes: symbols only grow, so the same span means the same two
// symbols.
typedef struct qn_merge_item {
    uint32_t rank, at, id, size;
} qn_merge_item;

// Whether two neighbours may merge, by which rank and into what.
typedef bool qn_merge_find(const void *arg, const qn_symbol *left, const qn_symbol *right,
                           uint32_t *rank, uint32_t *id);

// Scratch memory of one call; `{0}` is valid. `steps` counts the pairs looked at and the heap's
// moves.
typedef struct qn_merge {
    qn_symbol *symbols;
    size_t n, cap;
    qn_merge_item *heap;
    size_t n_heap, heap_cap;
    uint64_t steps;
    const qn_stop_flag *stop; // ends the run of a long word with QN_STOPPED; NULL: none
} qn_merge;

void qn_merge_clear(qn_merge *merge);
// Appends a symbol of `size` > 0 bytes.
QN_MUST_CHECK qn_status qn_merge_add(qn_merge *merge, uint32_t id, size_t size, qn_err *err);
// Merges until nothing is left to merge. symbols[0] and its `next` chain are the result.
QN_MUST_CHECK qn_status qn_merge_run(qn_merge *merge, qn_merge_find *find, const void *arg,
                                     qn_err *err);
void qn_merge_deinit(qn_merge *merge);

#endif
