// A row of logits as the model gives it: one for each token of the vocabulary.
#ifndef QN_GEN_LOGITS_H
#define QN_GEN_LOGITS_H

#include "core/err.h"

// Fails when the logits are not all finite, or all equal: then the pass that made them is broken.
QN_MUST_CHECK qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err);

enum { QN_LOGITS_BLOCK = 64 };
// The largest logit of each block of them, (n + 63) / 64.
void qn_logits_maxima(float *maxima, const float *logits, int64_t n);
// Both in one pass.
QN_MUST_CHECK qn_status qn_logits_check_maxima(float *maxima, const float *logits, int64_t n,
                                               qn_err *err);

// The entry of the largest logit; ties go to the lower id.
int32_t qn_logits_best(const float *logits, int64_t n);

#endif
