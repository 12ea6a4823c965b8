// The best logits of a row, as the op HEAD gives them (ir/ref_fused.c): the min logit, or the first
// that is not finite; its id, or -1; `max` logits in descending order; their ids.
#ifndef QN_RUNTIME_BEST_LISTS_H
#define QN_RUNTIME_BEST_LISTS_H

#include <stdint.h>

// An empty list.
void qn_best_clear(float *list, int64_t max);
// Adds what another part of the row has, whose ids begin at `first`, to the best `top` (0: max).
// Parts are added in the order of their ids, so that of equal logits the lower id stays.
void qn_best_add(float *list, const float *part, int64_t max, int64_t top, int64_t first);

#endif
