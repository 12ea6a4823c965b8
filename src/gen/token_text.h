// The bytes that each token adds to a text, as they appear in the middle of one.
#ifndef QN_GEN_TOKEN_TEXT_H
#define QN_GEN_TOKEN_TEXT_H

#include "core/err.h"
#include "core/str.h"

typedef struct qn_token_texts {
    int64_t n;
    size_t *ends; // (n) where each token's bytes end in `bytes`
    char *bytes;
} qn_token_texts;

// Caller storage; deinit is fine on {0}. Special tokens have no bytes, nor have ids of n_vocab that
// are not in the tokenizer.
QN_MUST_CHECK qn_status qn_token_texts_init(qn_token_texts *out, const qn_tokenizer *tokenizer,
                                            int64_t n_vocab, qn_err *err);
void qn_token_texts_deinit(qn_token_texts *texts);

static inline qn_str qn_token_text(const qn_token_texts *texts, int32_t id) {
    const size_t from = id > 0 ? texts->ends[id - 1] : 0;
    return (qn_str){texts->bytes + from, texts->ends[id] - from};
}

#endif
