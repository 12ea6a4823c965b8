#include "tokenizer/bpe.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <xxhash.h>

// --- the table of merges -------------------------------------------------------------------------

static qn_pair_slot *slot_of(const qn_pair_slot *slots, size_t cap, uint64_t seed, uint32_t left,
                             uint32_t right) {
    const uint64_t key = (uint64_t)left << 32 | right;
    // Odd multiplier from the seed: hostile files cannot choose pairs that collide.
    uint64_t hash = (key ^ (key >> 29)) * (seed | 1);
    hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15u;
    for (size_t i = (hash >> 24) & (cap - 1);; i = (i + 1) & (cap - 1)) {
        const qn_pair_slot *slot = &slots[i];
        if ((slot->left == left && slot->right == right) || slot->left == QN_NO_ID)
            return (qn_pair_slot *)slot;
    }
}

static qn_status grow_table(qn_bpe *bpe, qn_err *err) {
    if (bpe->n + 1 < bpe->cap / 4 * 3) return QN_OK;
    const size_t cap = bpe->cap ? bpe->cap * 2 : 16;
    qn_pair_slot *slots = qn_alloc(cap, sizeof *slots);
    if (!slots) return QN_NOMEM(err, "merges");
    for (size_t i = 0; i < cap; i++) slots[i].left = QN_NO_ID;
    for (size_t i = 0; i < bpe->cap; i++) {
        const qn_pair_slot *old = &bpe->slots[i];
        if (old->left != QN_NO_ID) *slot_of(slots, cap, bpe->seed, old->left, old->right) = *old;
    }
    qn_free(bpe->slots);
    bpe->slots = slots;
    bpe->cap = cap;
    return QN_OK;
}

qn_status qn_bpe_init(qn_bpe *bpe, const qn_vocab *vocab, const qn_letters *letters, qn_err *err) {
    bpe->vocab = vocab;
    bpe->letters = letters;
    bpe->seed = qn_hash_seed();
    for (int i = 0; i < 256; i++)
        bpe->letter_ids[i] = qn_vocab_find(vocab, letters->text[i], letters->size[i]);
    QN_TRY(grow_table(bpe, err));
    if (bpe->byte_level) return QN_OK;
    bpe->seams = qn_alloc(1, sizeof *bpe->seams);
    if (!bpe->seams) return QN_NOMEM(err, "seams of the vocabulary");
    qn_seams_init(bpe->seams, vocab);
    bpe->has_seams = true;
    return QN_OK;
}

static qn_status find_piece(uint32_t *out, const qn_bpe *bpe, qn_str piece, uint32_t rank,
                            qn_err *err) {
    const int32_t id = qn_vocab_find(bpe->vocab, piece.data, piece.size);
    if (id < 0)
        return QN_FAIL(err, FORMAT, "merge %u: '%.*s' is not in the vocabulary", rank,
                       (int)(piece.size < 80 ? piece.size : 80), piece.data);
    *out = (uint32_t)id;
    return QN_OK;
}

qn_status qn_bpe_add_merge(qn_bpe *bpe, qn_str left, qn_str right, uint32_t rank, qn_err *err) {
    char joined[2 * QN_PIECE_MAX];
    if (left.size == 0 || right.size == 0)
        return QN_FAIL(err, FORMAT, "merge %u: one side is empty", rank);
    if (left.size > QN_PIECE_MAX || right.size > QN_PIECE_MAX)
        return QN_FAIL(err, LIMIT, "merge %u: a side of more than %d bytes", rank, QN_PIECE_MAX);
    memcpy(joined, left.data, left.size);
    memcpy(joined + left.size, right.data, right.size);
    qn_pair_slot pair = {.rank = rank};
    QN_TRY(find_piece(&pair.left, bpe, left, rank, err));
    QN_TRY(find_piece(&pair.right, bpe, right, rank, err));
    QN_TRY(find_piece(&pair.id, bpe, (qn_str){joined, left.size + right.size}, rank, err));
    QN_TRY(grow_table(bpe, err));
    qn_pair_slot *slot = slot_of(bpe->slots, bpe->cap, bpe->seed, pair.left, pair.right);
    bpe->n += slot->left == QN_NO_ID;
    *slot = pair;
    // Pieces that stand for other text than their own spelling know nothing of seams.
    const uint32_t sides[] = {pair.left, pair.right};
    for (int i = 0; i < 2; i++) {
        if ((int32_t)sides[i] == bpe->unknown.id ||
            qn_vocab_kind(bpe->vocab, (int32_t)sides[i]) == QN_PIECE_BYTE)
            bpe->has_seams = false;
    }
    return QN_OK;
}

qn_status qn_bpe_add_line(qn_bpe *bpe, qn_str line, uint32_t rank, qn_err *err) {
    // A piece may begin with a space in files that are not byte-level, hence from the second byte.
    const char *gap = line.size > 1 ? memchr(line.data + 1, ' ', line.size - 1) : NULL;
    if (!gap)
        return QN_FAIL(err, FORMAT, "merge %u: no space in '%.*s'", rank,
                       (int)(line.size < 80 ? line.size : 80), line.data);
    const size_t left = (size_t)(gap - line.data);
    return qn_bpe_add_merge(bpe, (qn_str){line.data, left}, (qn_str){gap + 1, line.size - left - 1},
                            rank, err);
}

// --- encoding ------------------------------------------------------------------------------------

static bool find_merge(const void *arg, const qn_symbol *left, const qn_symbol *right,
                       uint32_t *rank, uint32_t *id) {
    const qn_bpe *bpe = arg;
    const qn_pair_slot *slot = slot_of(bpe->slots, bpe->cap, bpe->seed, left->id, right->id);
    if (slot->left == QN_NO_ID) return false;
    *rank = slot->rank;
    *id = slot->id;
    return true;
}

// Text without a piece takes part as the ids that stand for it.
static qn_status add_unknown_symbols(const qn_bpe *bpe, qn_merge *merge, qn_str text, qn_err *err) {
    if (bpe->unknown.to_bytes && qn_vocab_has_bytes(bpe->vocab, text)) {
        for (size_t i = 0; i < text.size; i++)
            QN_TRY(qn_merge_add(merge, (uint32_t)bpe->vocab->bytes[(unsigned char)text.data[i]], 1,
                                err));
        return QN_OK;
    }
    if (bpe->unknown.id < 0) return QN_OK;
    return qn_merge_add(merge, (uint32_t)bpe->unknown.id, text.size, err);
}

static qn_status add_symbols(const qn_bpe *bpe, qn_merge *merge, const char *word, size_t size,
                             qn_err *err) {
    for (size_t i = 0, n; i < size; i += n) {
        n = bpe->byte_level ? 1 : qn_utf8_check(word + i, size - i);
        if (n == 0) n = 1; // a stray byte
        const int32_t id = bpe->byte_level ? bpe->letter_ids[(unsigned char)word[i]]
                                           : qn_vocab_find(bpe->vocab, word + i, n);
        if (id >= 0)
            QN_TRY(qn_merge_add(merge, (uint32_t)id, n, err));
        else
            QN_TRY(add_unknown_symbols(bpe, merge, (qn_str){word + i, n}, err));
    }
    return QN_OK;
}

// The bytes of a word that one id may stand for; SIZE_MAX: any number, as some text gives no id.
static size_t longest_piece(const qn_bpe *bpe) {
    enum { CHARACTER = 4 }; // bytes: an unknown one counts as the piece for it, whatever its size
    bool has_letters = bpe->byte_level;
    for (int i = 0; i < 256; i++) has_letters &= bpe->letter_ids[i] >= 0;
    if (has_letters) return bpe->vocab->longest;
    return qn_unknown_counts(&bpe->unknown, bpe->vocab) ? CHARACTER * bpe->vocab->longest
                                                        : SIZE_MAX;
}

// A part of a word between two seams.
static qn_status encode_part(const qn_bpe *bpe, qn_encoder *encoder, const char *part, size_t size,
                             qn_err *err) {
    qn_merge *merge = &encoder->merge;
    qn_merge_clear(merge);
    QN_TRY(add_symbols(bpe, merge, part, size, err));
    QN_TRY(qn_merge_run(merge, find_merge, bpe, err));
    for (int32_t i = merge->n ? 0 : -1; i >= 0; i = merge->symbols[i].next) {
        const int32_t id = (int32_t)merge->symbols[i].id;
        const bool is_unknown = id == bpe->unknown.id;
        if (is_unknown && bpe->unknown.fuse && encoder->last_unknown) continue;
        QN_TRY(qn_encoder_add(encoder, id, err));
        encoder->last_unknown = is_unknown;
    }
    return QN_OK;
}

// The piece that is the whole word, -1 if there is none.
static int32_t find_word(const qn_bpe *bpe, qn_encoder *encoder, const char *word, size_t size) {
    if (size > bpe->vocab->longest) return -1;
    int32_t id;
    if (bpe->byte_level) {
        qn_buf_clear(&encoder->word);
        qn_letters_spell(bpe->letters, word, size, &encoder->word);
        if (encoder->word.failed) return -1;
        id = qn_vocab_find(bpe->vocab, encoder->word.data, encoder->word.size);
    } else {
        id = qn_vocab_find(bpe->vocab, word, size);
    }
    return id >= 0 && qn_vocab_kind(bpe->vocab, id) == QN_PIECE_CONTROL ? -1 : id;
}

qn_status qn_bpe_encode(const qn_bpe *bpe, qn_encoder *encoder, const char *word, size_t size,
                        qn_err *err) {
    enum { LONG_WORD = 1 << 12 };
    encoder->last_unknown = false;
    if (size > LONG_WORD) QN_TRY(qn_encoder_check_word(encoder, size, longest_piece(bpe), err));
    if (bpe->ignore_merges) {
        const int32_t id = find_word(bpe, encoder, word, size);
        if (encoder->word.failed) return QN_NOMEM(err, "spelling of a word");
        if (id >= 0) return qn_encoder_add(encoder, id, err);
    }
    if (!bpe->has_seams) return encode_part(bpe, encoder, word, size, err);
    for (size_t start = 0, end; start < size; start = end) {
        end = qn_seams_next(bpe->seams, word, size, start);
        QN_TRY(encode_part(bpe, encoder, word + start, end - start, err));
    }
    return QN_OK;
}

void qn_bpe_deinit(qn_bpe *bpe) {
    qn_free(bpe->slots);
    qn_free(bpe->seams);
    *bpe = (qn_bpe){0};
}
