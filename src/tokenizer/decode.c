#define _GNU_SOURCE // memmem
#include "tokenizer/decode.h"

#include "core/utf8.h"
#include "tokenizer/unicode.h"

static void replace_all(qn_buf *out, qn_str text, qn_str from, qn_str to) {
    size_t i = 0;
    while (from.size && i < text.size) {
        const char *hit = memmem(text.data + i, text.size - i, from.data, from.size);
        if (!hit) break;
        const size_t at = (size_t)(hit - text.data);
        qn_buf_add(out, text.data + i, at - i);
        qn_buf_add(out, to.data, to.size);
        i = at + from.size;
    }
    qn_buf_add(out, text.data + i, text.size - i);
}

// state->piece = state->piece with `from` replaced.
static void replace_in_piece(qn_decode_state *state, qn_str from, qn_str to) {
    if (state->piece.size == 0) return;
    qn_buf_clear(&state->spare);
    replace_all(&state->spare, (qn_str){state->piece.data, state->piece.size}, from, to);
    const qn_buf done = state->spare;
    state->spare = state->piece;
    state->piece = done;
}

static void read_piece(qn_decode_state *state, const qn_decode *decode, int32_t id, bool is_first) {
    const qn_decode_rule *rule = decode->rule;
    const qn_piece_kind kind = qn_vocab_kind(decode->vocab, id);
    const qn_str piece = qn_vocab_piece(decode->vocab, id);
    const bool is_added =
        kind == QN_PIECE_CONTROL || kind == QN_PIECE_USER || kind == QN_PIECE_UNKNOWN;
    qn_buf_clear(&state->piece);
    if (rule->byte_fallback && kind == QN_PIECE_BYTE) {
        const char byte = (char)qn_piece_byte(piece);
        qn_buf_add(&state->piece, &byte, 1);
        return;
    }
    if (rule->byte_level && !is_added) {
        qn_letters_read(decode->letters, piece, &state->piece);
        return;
    }
    qn_buf_add(&state->piece, piece.data, piece.size);
    if (is_added && rule->added_as_is) return;
    if (is_first && rule->drop_in_first.size)
        replace_in_piece(state, rule->drop_in_first, (qn_str){"", 0});
    for (size_t i = 0; i < rule->n_replace; i++)
        replace_in_piece(state, rule->from[i], rule->to[i]);
}

void qn_decode_add(qn_decode_state *state, const qn_decode *decode, int32_t id, bool special) {
    const qn_decode_rule *rule = decode->rule;
    const qn_piece_kind kind = qn_vocab_kind(decode->vocab, id);
    const bool is_special = kind == QN_PIECE_CONTROL || kind == QN_PIECE_UNKNOWN;
    if (kind == QN_PIECE_HOLE || (is_special && !special)) return;
    read_piece(state, decode, id, !state->started);
    if (state->started && rule->join_by_space) qn_buf_text(&state->raw, " ");
    state->started = true;
    size_t from = 0;
    while (!state->past_start && state->n_stripped < rule->strip && from < state->piece.size &&
           state->piece.data[from] == rule->strip_char) {
        from++;
        state->n_stripped++;
    }
    if (from == state->piece.size) return;
    state->past_start = true;
    qn_buf_add(&state->raw, state->piece.data + from, state->piece.size - from);
}

void qn_decode_flush(qn_buf *out, qn_decode_state *state, bool all) {
    qn_buf *raw = &state->raw;
    const size_t held = all ? 0 : qn_utf8_incomplete_tail(raw->data, raw->size);
    qn_unicode_repair(out, (qn_str){raw->data, raw->size - held});
    if (held) memmove(raw->data, raw->data + raw->size - held, held);
    raw->size = held;
    if (raw->failed || state->piece.failed || state->spare.failed) out->failed = true;
}

void qn_decode_state_deinit(qn_decode_state *state) {
    qn_buf_deinit(&state->raw);
    qn_buf_deinit(&state->piece);
    qn_buf_deinit(&state->spare);
    *state = (qn_decode_state){0};
}
