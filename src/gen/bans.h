// Strings that must not appear in an answer: the tokens that would complete one are excluded.
//
// A banned string lies inside a token, or it began in the text before. The tokens of the first kind
// are known beforehand. For the second, every prefix of a banned string that the text ends with
// leaves a rest, and the tokens that begin with it are neighbours in the sorted vocabulary.
#ifndef QN_GEN_BANS_H
#define QN_GEN_BANS_H

#include "gen/token_text.h"

enum { QN_MAX_BANS = 1024, QN_MAX_BAN_BYTES = 1 << 16 };

typedef struct qn_bans qn_bans; // constant

QN_MUST_CHECK qn_status qn_bans_check(const char *const *strings, size_t n, qn_err *err);
// `texts` is borrowed, for as long as the bans live.
QN_MUST_CHECK qn_status qn_bans_create(qn_bans **out, const qn_token_texts *texts,
                                       const char *const *strings, size_t n, qn_err *err);
void qn_bans_destroy(qn_bans *bans);

// Sets the logits (all of the vocabulary) of excluded tokens to -inf; `tokens` are the answer's.
// The work is bounded by the bytes of all banned strings.
void qn_bans_apply(const qn_bans *bans, float *logits, const int32_t *tokens, size_t n_tokens);

#endif
