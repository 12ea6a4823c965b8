#include "tokenizer/encoder.h"

#include "core/mem.h"

void qn_encoder_deinit(qn_encoder *encoder) {
    qn_free(encoder->ids);
    qn_free(encoder->cells);
    qn_merge_deinit(&encoder->merge);
    qn_buf_deinit(&encoder->word);
    *encoder = (qn_encoder){0};
}

qn_status qn_encoder_add(qn_encoder *encoder, int32_t id, qn_err *err) {
    if (encoder->n_ids >= encoder->max_ids)
        return QN_FAIL(err, LIMIT, "the text gives more than %zu tokens", encoder->max_ids);
    void *ids = encoder->ids;
    if (encoder->n_ids == encoder->cap &&
        !qn_grow(&ids, &encoder->cap, encoder->n_ids + 1, sizeof *encoder->ids))
        return QN_NOMEM(err, "token ids");
    encoder->ids = ids;
    encoder->ids[encoder->n_ids++] = id;
    encoder->last_unknown = false;
    return QN_OK;
}

bool qn_vocab_has_bytes(const qn_vocab *vocab, qn_str text) {
    for (size_t i = 0; i < text.size; i++) {
        if (vocab->bytes[(unsigned char)text.data[i]] < 0) return false;
    }
    return true;
}

qn_status qn_encoder_add_unknown(qn_encoder *encoder, const qn_vocab *vocab,
                                 const qn_unknown_rule *rule, qn_str text, qn_err *err) {
    if (rule->to_bytes && qn_vocab_has_bytes(vocab, text)) {
        for (size_t i = 0; i < text.size; i++)
            QN_TRY(qn_encoder_add(encoder, vocab->bytes[(unsigned char)text.data[i]], err));
        return QN_OK;
    }
    if (rule->id < 0 || (rule->fuse && encoder->last_unknown)) return QN_OK;
    QN_TRY(qn_encoder_add(encoder, rule->id, err));
    encoder->last_unknown = true;
    return QN_OK;
}
