// What a step says about the next token has two names everywhere: `logits`, a row with one for each
// entry of the vocabulary, and `top logits`, the largest of them in descending order, ties by lower
// id, where a choice needs no more.
#ifndef QN_GEN_TOP_LOGITS_H
#define QN_GEN_TOP_LOGITS_H

#include "core/err.h"

#define QN_MIN_SPREAD 1e-6f // a row whose logits span less is all equal

enum { QN_MAX_TOP_LOGITS = 64 };

typedef struct qn_top_logit {
    float logit;
    int32_t id;
} qn_top_logit;

// What decides whether a row of n logits is sound.
typedef struct qn_logits_range {
    int64_t n;
    float min, max; // of the logits; min: the first that is not finite, if there is one
    int64_t broken; // its entry; -1: all are finite
} qn_logits_range;

// As qn_logits_check.
QN_MUST_CHECK qn_status qn_logits_range_check(const qn_logits_range *range, qn_err *err);

#endif
