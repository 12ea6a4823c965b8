// DRY ("don't repeat yourself"): a penalty for tokens that would continue a repetition.
//
// If the last m tokens occurred in the text before, the token that followed them there loses
// multiplier * base^(m - allowed_length), for the largest m >= allowed_length. A repetition does
// not reach back across a breaker. As its author describes it:
// https://github.com/oobabooga/text-generation-webui/pull/5677
#ifndef QN_GEN_DRY_H
#define QN_GEN_DRY_H

#include "gen/token_text.h"

typedef struct qn_breakers qn_breakers; // constant

QN_MUST_CHECK qn_status qn_breakers_check(const char *const *strings, size_t n, qn_err *err);
// `texts` is borrowed, for as long as the breakers live.
QN_MUST_CHECK qn_status qn_breakers_create(qn_breakers **out, const qn_token_texts *texts,
                                           const char *const *strings, size_t n, qn_err *err);
void qn_breakers_destroy(qn_breakers *breakers);

enum { QN_DRY_LONGEST = 256 }; // longer repetitions count as this long

typedef struct qn_dry {
    float multiplier, base;
    int32_t allowed_length;
    const int32_t *tokens; // (n_tokens) searched for repetitions
    size_t n_tokens;
    const qn_breakers *breakers; // NULL: none
} qn_dry;

// Lowers logits. `lengths` (one for each token of the vocabulary) are zeros, before and after. The
// work is proportional to n_tokens.
void qn_dry_apply(const qn_dry *dry, float *logits, uint32_t *lengths);

#endif
