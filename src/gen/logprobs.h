// Log-probabilities of tokens: the softmax of the raw logits, before any step of a sampler.
#ifndef QN_GEN_LOGPROBS_H
#define QN_GEN_LOGPROBS_H

#include "core/err.h"

// Subtracted from a logit it gives the log-probability: log of the sum of exp of all n > 0 logits,
// which are finite.
double qn_logprobs_base(const float *logits, int64_t n);

// The log-probability of a token, and into `top` the n_top likeliest in their order (ties go to the
// lower id); *n_got of them, fewer if the row has fewer. `top` may be NULL if n_top is 0.
// Allocates nothing; one pass for the sum, one for the top, which costs little up to a hundred.
float qn_logprobs_get(int64_t *n_got, qn_token_logprob *top, int64_t n_top, const float *logits,
                      int64_t n, int32_t token);

#endif
