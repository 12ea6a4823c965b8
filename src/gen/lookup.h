// N-gram lookup: drafts the tokens that followed the last time.
#ifndef QN_GEN_LOOKUP_H
#define QN_GEN_LOOKUP_H

#include "core/err.h"

// Finds the longest suffix of the history (2 to 8 tokens) that occurred before, the latest of
// those, and writes up to `max` tokens that followed it to `to`; a match that overlaps the end is
// continued cyclically. Returns how many; 0: nothing repeats. Looks at each token once or twice.
int32_t qn_lookup(int32_t *to, int32_t max, const int32_t *tokens, size_t n);

#endif
