#include "tokenizer/seams.h"

#include "core/utf8.h"

// A stray byte counts as a character of its own.
static size_t read_character(const char *text, size_t size, uint32_t *code) {
    const size_t n = qn_utf8_decode(text, size, code);
    if (n) return n;
    *code = 0x110000u + (unsigned char)text[0];
    return 1;
}

static uint64_t bit_of(uint32_t left, uint32_t right) {
    const uint64_t both = (uint64_t)left << 32 | right;
    return both * 0x9e3779b97f4a7c15u >> (64 - 20); // 20 bits: 64 in each of QN_SEAM_WORDS
}

void qn_seams_init(qn_seams *seams, const qn_vocab *vocab) {
    memset(seams, 0, sizeof *seams);
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_str piece = qn_vocab_piece(vocab, id);
        uint32_t last = 0, code;
        for (size_t i = 0; i < piece.size; last = code) {
            const bool inside = i > 0;
            i += read_character(piece.data + i, piece.size - i, &code);
            if (!inside) continue;
            const uint64_t bit = bit_of(last, code);
            seams->bits[bit / 64] |= (uint64_t)1 << bit % 64;
        }
    }
}

size_t qn_seams_next(const qn_seams *seams, const char *text, size_t size, size_t from) {
    uint32_t last, code;
    size_t i = from + read_character(text + from, size - from, &last);
    while (i < size) {
        const size_t n = read_character(text + i, size - i, &code);
        const uint64_t bit = bit_of(last, code);
        if (!(seams->bits[bit / 64] >> bit % 64 & 1)) return i;
        last = code;
        i += n;
    }
    return size;
}
