#include "tokenizer/encoder.h"

#include "core/mem.h"
#include "core/stop_flag.h"

void qn_encoder_deinit(qn_encoder *encoder) {
    qn_free(encoder->ids);
    qn_free(encoder->cells);
    qn_merge_deinit(&encoder->merge);
    qn_buf_deinit(&encoder->word);
    *encoder = (qn_encoder){0};
}

static qn_status refuse_more(qn_encoder *encoder, qn_err *err) {
    encoder->is_full = true;
    return QN_FAIL(err, LIMIT, "the text gives more than %zu tokens", encoder->max_ids);
}

qn_status qn_encoder_check_stop(const qn_encoder *encoder, qn_err *err) {
    return qn_stop_is_wanted(encoder->stop) ? QN_FAIL(err, STOPPED, "tokenizing was stopped")
                                            : QN_OK;
}

qn_status qn_encoder_check_word(qn_encoder *encoder, size_t size, size_t longest, qn_err *err) {
    const size_t left = encoder->max_ids - encoder->n_ids;
    return !encoder->cuts && longest && size / longest > left ? refuse_more(encoder, err) : QN_OK;
}

bool qn_unknown_counts(const qn_unknown_rule *rule, const qn_vocab *vocab) {
    bool has_bytes = rule->to_bytes;
    for (int i = 0; i < 256; i++) has_bytes &= vocab->bytes[i] >= 0;
    return has_bytes || (rule->id >= 0 && !rule->fuse);
}

qn_status qn_unknown_check_word(const qn_unknown_rule *rule, const qn_vocab *vocab,
                                qn_encoder *encoder, size_t size, qn_err *err) {
    enum { CHARACTER = 4, LONG_WORD = 1 << 12 }; // bytes
    if (size <= LONG_WORD || !qn_unknown_counts(rule, vocab)) return QN_OK;
    const size_t longest = vocab->longest > CHARACTER ? vocab->longest : CHARACTER;
    return qn_encoder_check_word(encoder, size, longest, err);
}

qn_status qn_encoder_add(qn_encoder *encoder, int32_t id, qn_err *err) {
    enum { OFTEN = 64 };
    if (encoder->n_ids >= encoder->max_ids) return refuse_more(encoder, err);
    if (encoder->n_ids % OFTEN == 0) QN_TRY(qn_encoder_check_stop(encoder, err));
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
