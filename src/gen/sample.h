// Choosing a token from a row of scores.
#ifndef QN_GEN_SAMPLE_H
#define QN_GEN_SAMPLE_H

#include "core/err.h"

// Fails when the scores are not all finite, or all equal: then the pass that made them is broken.
QN_MUST_CHECK qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err);

// The entry of the largest score; ties go to the lower id.
int32_t qn_sample_greedy(const float *logits, int64_t n);

// Chooses tokens without allocating.
typedef struct qn_sampler qn_sampler;
QN_MUST_CHECK qn_status qn_sampler_create(qn_sampler **out, int64_t n_vocab, qn_err *err);
void qn_sampler_destroy(qn_sampler *sampler);

// One token for the given position of the sequence. Temperature 0 is greedy. Otherwise softmax of
// logits / temperature, and one uniform draw against the running sum by descending probability,
// then id. `logits` are n_vocab.
QN_MUST_CHECK qn_status qn_sampler_choose(int32_t *token, qn_sampler *sampler, const float *logits,
                                          const qn_sample_opts *opts, uint64_t position,
                                          qn_err *err);

#endif
