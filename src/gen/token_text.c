#include "gen/token_text.h"

#include "core/buf.h"
#include "core/mem.h"
#include "tokenizer/object.h"

qn_status qn_token_texts_init(qn_token_texts *out, const qn_tokenizer *tokenizer, int64_t n_vocab,
                              qn_err *err) {
    const qn_decode decode = {&tokenizer->vocab, &tokenizer->letters, &tokenizer->decode};
    qn_decode_state state = {.started = true, .past_start = true};
    qn_token_texts texts = {.n = n_vocab, .ends = qn_alloc((size_t)n_vocab, sizeof *texts.ends)};
    qn_status status = texts.ends ? QN_OK : QN_NOMEM(err, "texts of tokens");
    for (int64_t id = 0; id < n_vocab && !status; id++) {
        if (id < tokenizer->vocab.n) qn_decode_add(&state, &decode, (int32_t)id, false);
        texts.ends[id] = state.raw.size;
    }
    if (!status && (state.raw.failed || state.piece.failed || state.spare.failed))
        status = QN_NOMEM(err, "texts of tokens");
    if (!status) status = qn_buf_take(&texts.bytes, &state.raw, err);
    qn_decode_state_deinit(&state);
    if (status)
        qn_token_texts_deinit(&texts);
    else
        *out = texts;
    return status;
}

void qn_token_texts_deinit(qn_token_texts *texts) {
    qn_free(texts->ends);
    qn_free(texts->bytes);
    *texts = (qn_token_texts){0};
}
