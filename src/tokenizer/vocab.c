#include "tokenizer/vocab.h"

#include "core/chars.h"
#include "core/mem.h"

#include <sys/random.h>
#include <xxhash.h>

uint64_t qn_hash_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) < 0)
        seed = 0x51e7ca5e; // no entropy yet: a fixed seed still works
    return seed;
}

qn_status qn_vocab_init(qn_vocab *out, size_t n, bool with_scores, qn_err *err) {
    if (n == 0) return QN_FAIL(err, FORMAT, "the vocabulary has no tokens");
    if (n > INT32_MAX)
        return QN_FAIL(err, LIMIT, "vocabulary of %zu tokens, at most %d", n, INT32_MAX);
    qn_vocab vocab = {.n = (int32_t)n, .seed = qn_hash_seed()};
    vocab.pieces = qn_alloc(n, sizeof *vocab.pieces);
    vocab.kinds = qn_alloc(n, 1);
    if (with_scores) vocab.scores = qn_alloc(n, sizeof *vocab.scores);
    memset(vocab.bytes, -1, sizeof vocab.bytes);
    if (!vocab.pieces || !vocab.kinds || (with_scores && !vocab.scores)) {
        qn_vocab_deinit(&vocab);
        return QN_NOMEM(err, "vocabulary");
    }
    *out = vocab;
    return QN_OK;
}

qn_status qn_vocab_set(qn_vocab *vocab, int32_t id, qn_str piece, qn_piece_kind kind, qn_err *err) {
    if (id < 0 || id >= vocab->n)
        return QN_FAIL(err, FORMAT, "token id %d, but there are %d tokens", id, vocab->n);
    if (piece.size > QN_PIECE_MAX)
        return QN_FAIL(err, LIMIT, "token %d: %zu bytes long, at most %d", id, piece.size,
                       QN_PIECE_MAX);
    if (vocab->kinds[id] != QN_PIECE_HOLE)
        return QN_FAIL(err, FORMAT, "token id %d is given twice: '%.40s' and '%.*s'", id,
                       qn_vocab_piece(vocab, id).data, (int)(piece.size < 40 ? piece.size : 40),
                       piece.data);
    const size_t want = vocab->text_size + piece.size + 1;
    if (want > UINT32_MAX) return QN_FAIL(err, LIMIT, "the vocabulary's text exceeds 4 GiB");
    void *text = vocab->text;
    if (!qn_grow(&text, &vocab->text_cap, want, 1)) return QN_NOMEM(err, "vocabulary");
    vocab->text = text;
    if (piece.size) memcpy(vocab->text + vocab->text_size, piece.data, piece.size);
    vocab->text[want - 1] = 0;
    vocab->pieces[id] = (qn_piece){(uint32_t)vocab->text_size, (uint32_t)piece.size};
    vocab->kinds[id] = (unsigned char)kind;
    vocab->text_size = want;
    if (piece.size > vocab->longest) vocab->longest = piece.size;
    return QN_OK;
}

int qn_piece_byte(qn_str piece) {
    if (piece.size != 6 || memcmp(piece.data, "<0x", 3) != 0 || piece.data[5] != '>') return -1;
    const int high = qn_hex_digit(piece.data[3]), low = qn_hex_digit(piece.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static qn_status find_byte_pieces(qn_vocab *vocab, bool by_spelling, qn_err *err) {
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_piece_kind kind = qn_vocab_kind(vocab, id);
        if (kind != QN_PIECE_BYTE && !(by_spelling && kind == QN_PIECE_NORMAL)) continue;
        const qn_str piece = qn_vocab_piece(vocab, id);
        const int byte = qn_piece_byte(piece);
        if (byte < 0 && kind == QN_PIECE_BYTE)
            return QN_FAIL(err, FORMAT, "token %d is a byte but is spelled '%.40s', want <0xNN>",
                           id, piece.data);
        if (byte < 0) continue;
        vocab->kinds[id] = QN_PIECE_BYTE;
        if (vocab->bytes[byte] < 0) vocab->bytes[byte] = id;
    }
    return QN_OK;
}

static uint32_t hash_of(const qn_vocab *vocab, const char *piece, size_t size) {
    return (uint32_t)(XXH3_64bits_withSeed(piece, size, vocab->seed) >> 32);
}

// The slot of a piece, or the free slot where it belongs. Slots are never all taken, so it ends.
static qn_vocab_slot *slot_of(const qn_vocab *vocab, const char *piece, size_t size,
                              uint32_t hash) {
    for (size_t i = hash & (vocab->cap - 1);; i = (i + 1) & (vocab->cap - 1)) {
        qn_vocab_slot *slot = &vocab->slots[i];
        if (slot->id1 == 0) return slot;
        if (slot->hash != hash) continue;
        const qn_str have = qn_vocab_piece(vocab, (int32_t)(slot->id1 - 1));
        if (have.size == size && memcmp(have.data, piece, size) == 0) return slot;
    }
}

qn_status qn_vocab_finish(qn_vocab *vocab, bool bytes_by_spelling, qn_err *err) {
    QN_TRY(find_byte_pieces(vocab, bytes_by_spelling, err));
    size_t n_named = 0;
    for (int32_t id = 0; id < vocab->n; id++) n_named += vocab->kinds[id] != QN_PIECE_HOLE;
    size_t cap = 16;
    while (cap / 4 * 3 <= n_named) cap *= 2;
    vocab->slots = qn_alloc(cap, sizeof *vocab->slots);
    if (!vocab->slots) return QN_NOMEM(err, "vocabulary");
    vocab->cap = cap;
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_str piece = qn_vocab_piece(vocab, id);
        if (piece.size == 0) continue;
        const uint32_t hash = hash_of(vocab, piece.data, piece.size);
        qn_vocab_slot *slot = slot_of(vocab, piece.data, piece.size, hash);
        if (slot->id1 == 0) *slot = (qn_vocab_slot){(uint32_t)id + 1, hash};
    }
    return QN_OK;
}

int32_t qn_vocab_find(const qn_vocab *vocab, const char *piece, size_t size) {
    if (size == 0 || size > vocab->longest) return -1;
    const qn_vocab_slot *slot = slot_of(vocab, piece, size, hash_of(vocab, piece, size));
    return (int32_t)slot->id1 - 1;
}

void qn_vocab_deinit(qn_vocab *vocab) {
    qn_free(vocab->pieces);
    qn_free(vocab->kinds);
    qn_free(vocab->scores);
    qn_free(vocab->text);
    qn_free(vocab->slots);
    *vocab = (qn_vocab){0};
}
