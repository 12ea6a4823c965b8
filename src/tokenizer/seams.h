// Seams: places where a text can be cut without changing how it is merged.
//
// A merge across a place needs a piece that holds the two characters on its sides next to each
// other. Where no piece does, the two parts are independent. The table remembers, by hash, which
// characters are neighbours in some piece: a collision only hides a seam, never invents one.
#ifndef QN_TOKENIZER_SEAMS_H
#define QN_TOKENIZER_SEAMS_H

#include "tokenizer/vocab.h"

enum { QN_SEAM_WORDS = 1 << 14 };

typedef struct qn_seams {
    uint64_t bits[QN_SEAM_WORDS];
} qn_seams;

// Notes the neighbours in all pieces of the vocabulary.
void qn_seams_init(qn_seams *seams, const qn_vocab *vocab);
// The first seam after `from` < size, or `size`.
size_t qn_seams_next(const qn_seams *seams, const char *text, size_t size, size_t from);

#endif
