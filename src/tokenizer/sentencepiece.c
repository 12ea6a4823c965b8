#include "tokenizer/sentencepiece.h"

#include "core/mem.h"
#include "core/utf8.h"

qn_status qn_sentencepiece_init(qn_sentencepiece *model, const qn_vocab *vocab, qn_err *err) {
    model->vocab = vocab;
    model->seams = qn_alloc(1, sizeof *model->seams);
    if (!model->seams) return QN_NOMEM(err, "seams of the vocabulary");
    qn_seams_init(model->seams, vocab);
    return QN_OK;
}

// Maps a float to an integer so that a higher score gives a lower rank.
static uint32_t rank_of(float score) {
    const float positive_zero = score + 0.0f; // -0 and 0 are one score
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static uint32_t find_piece(const qn_vocab *vocab, const char *text, size_t size) {
    const int32_t id = qn_vocab_find(vocab, text, size);
    if (id < 0) return QN_NO_ID;
    const qn_piece_kind kind = qn_vocab_kind(vocab, id);
    return kind == QN_PIECE_NORMAL || kind == QN_PIECE_USER ? (uint32_t)id : QN_NO_ID;
}

typedef struct part {
    const qn_vocab *vocab;
    const char *text;
} part;

static bool find_merge(const void *arg, const qn_symbol *left, const qn_symbol *right,
                       uint32_t *rank, uint32_t *id) {
    const part *p = arg;
    *id = find_piece(p->vocab, p->text + left->start, (size_t)left->size + right->size);
    if (*id == QN_NO_ID) return false;
    *rank = rank_of((float)p->vocab->scores[*id]);
    return true;
}

static qn_status encode_part(const qn_sentencepiece *model, qn_encoder *encoder, qn_str text,
                             qn_err *err) {
    qn_merge *merge = &encoder->merge;
    const part p = {model->vocab, text.data};
    qn_merge_clear(merge);
    for (size_t i = 0, n; i < text.size; i += n) {
        n = qn_utf8_check(text.data + i, text.size - i);
        if (n == 0) n = 1; // a stray byte
        QN_TRY(qn_merge_add(merge, find_piece(model->vocab, text.data + i, n), n, err));
    }
    QN_TRY(qn_merge_run(merge, find_merge, &p, err));
    for (int32_t i = merge->n ? 0 : -1; i >= 0; i = merge->symbols[i].next) {
        const qn_symbol *symbol = &merge->symbols[i];
        const qn_str piece = {text.data + symbol->start, symbol->size};
        if (symbol->id != QN_NO_ID)
            QN_TRY(qn_encoder_add(encoder, (int32_t)symbol->id, err));
        else
            QN_TRY(qn_encoder_add_unknown(encoder, model->vocab, &model->unknown, piece, err));
    }
    return QN_OK;
}

qn_status qn_sentencepiece_encode(const qn_sentencepiece *model, qn_encoder *encoder,
                                  const char *word, size_t size, qn_err *err) {
    encoder->last_unknown = false;
    QN_TRY(qn_unknown_check_word(&model->unknown, model->vocab, encoder, size, err));
    for (size_t start = 0, end; start < size; start = end) {
        end = qn_seams_next(model->seams, word, size, start);
        QN_TRY(encode_part(model, encoder, (qn_str){word + start, end - start}, err));
    }
    return QN_OK;
}

void qn_sentencepiece_deinit(qn_sentencepiece *model) {
    qn_free(model->seams);
    *model = (qn_sentencepiece){0};
}
