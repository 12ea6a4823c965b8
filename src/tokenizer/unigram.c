#include "tokenizer/unigram.h"

#include "core/mem.h"
#include "core/utf8.h"

enum { UNKNOWN_PENALTY = 10 };

// The best way to reach a position: its score, and the last piece on it.
struct qn_cell {
    double score;
    int32_t id;    // -1: unknown text
    uint32_t size; // of the last piece in bytes; 0: not reached
};

static bool is_usable(const qn_vocab *vocab, int32_t id) {
    const qn_piece_kind kind = qn_vocab_kind(vocab, id);
    return vocab->pieces[id].size > 0 && (kind == QN_PIECE_NORMAL || kind == QN_PIECE_USER);
}

qn_status qn_unigram_init(qn_unigram *model, const qn_vocab *vocab, qn_err *err) {
    model->vocab = vocab;
    size_t n = 0;
    for (int32_t id = 0; id < vocab->n; id++) n += is_usable(vocab, id);
    qn_prefix_item *items = qn_alloc(n, sizeof *items);
    if (!items) return QN_NOMEM(err, "pieces of the unigram model");
    double lowest = 0;
    n = 0;
    for (int32_t id = 0; id < vocab->n; id++) {
        if (!is_usable(vocab, id)) continue;
        const qn_str piece = qn_vocab_piece(vocab, id);
        const double score = vocab->scores[id];
        lowest = n == 0 || score < lowest ? score : lowest;
        items[n++] = (qn_prefix_item){piece.data, (uint32_t)piece.size, id};
    }
    model->unknown_score = lowest - UNKNOWN_PENALTY;
    return qn_prefix_init(&model->pieces, items, n, err);
}

static double add_scores(const qn_unigram *model, double a, double b) {
    return model->single_precision ? (double)((float)a + (float)b) : a + b;
}

static void offer(qn_cell *cell, double score, int32_t id, size_t size) {
    if (cell->size != 0 && !(score > cell->score)) return;
    *cell = (qn_cell){score, id, (uint32_t)size};
}

// Fills cells[0 .. size]; cells[i] is about the text before byte i.
static qn_status find_best(const qn_unigram *model, qn_encoder *encoder, const char *word,
                           size_t size, qn_err *err) {
    qn_cell *cells = encoder->cells;
    memset(cells, 0, (size + 1) * sizeof *cells);
    for (size_t i = 0, n; i < size; i += n) {
        n = qn_utf8_check(word + i, size - i);
        if (n == 0) n = 1; // a stray byte
        QN_TRY(qn_encoder_check_stop(encoder, err));
        bool has_single = false;
        qn_prefix_walk walk = {0};
        const qn_prefix_item *item;
        while ((item = qn_prefix_next(&walk, &model->pieces, word + i, size - i))) {
            const double score = model->vocab->scores[item->value];
            offer(&cells[i + item->size], add_scores(model, cells[i].score, score), item->value,
                  item->size);
            has_single |= item->size == n;
            encoder->steps++;
        }
        encoder->steps++;
        if (!has_single)
            offer(&cells[i + n], add_scores(model, cells[i].score, model->unknown_score), -1, n);
    }
    return QN_OK;
}

// Turns the chain of last pieces around: afterwards cells[i] is the piece that starts at i.
static void turn_around(qn_cell *cells, size_t size) {
    uint32_t step = 0;
    int32_t id = -1;
    for (size_t at = size;;) {
        const uint32_t back = cells[at].size;
        const int32_t back_id = cells[at].id;
        cells[at].size = step;
        cells[at].id = id;
        if (at == 0) return;
        step = back;
        id = back_id;
        at -= back;
    }
}

qn_status qn_unigram_encode(const qn_unigram *model, qn_encoder *encoder, const char *word,
                            size_t size, qn_err *err) {
    encoder->last_unknown = false;
    if (size >= UINT32_MAX) return QN_FAIL(err, LIMIT, "a word of %zu bytes", size);
    QN_TRY(qn_unknown_check_word(&model->unknown, model->vocab, encoder, size, err));
    void *cells = encoder->cells;
    if (!qn_grow(&cells, &encoder->cells_cap, size + 1, sizeof *encoder->cells))
        return QN_NOMEM(err, "the lattice of a text");
    encoder->cells = cells;
    QN_TRY(find_best(model, encoder, word, size, err));
    turn_around(encoder->cells, size);
    for (size_t i = 0; i < size; i += encoder->cells[i].size) {
        const qn_cell *cell = &encoder->cells[i];
        if (cell->id >= 0)
            QN_TRY(qn_encoder_add(encoder, cell->id, err));
        else
            QN_TRY(qn_encoder_add_unknown(encoder, model->vocab, &model->unknown,
                                          (qn_str){word + i, cell->size}, err));
    }
    return QN_OK;
}

void qn_unigram_deinit(qn_unigram *model) {
    qn_prefix_deinit(&model->pieces);
    *model = (qn_unigram){0};
}
