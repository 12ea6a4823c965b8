// Unigram: of all ways to write a text as pieces, the one with the highest sum of scores.
//
// One pass from left to right keeps the best way to reach each position. Where no piece covers a
// single character, that character may be unknown, at the lowest score minus 10. Of two equal ways
// the one found first stays: the longer last piece.
#ifndef QN_TOKENIZER_UNIGRAM_H
#define QN_TOKENIZER_UNIGRAM_H

#include "tokenizer/encoder.h"
#include "tokenizer/prefix.h"

// Caller storage.
typedef struct qn_unigram {
    qn_unknown_rule unknown;
    bool single_precision; // sums as SentencePiece has them, else double as in tokenizer.json
    const qn_vocab *vocab; // borrowed; has finite scores
    double unknown_score;
    qn_prefix_set pieces; // normal and user-defined ones
} qn_unigram;

QN_MUST_CHECK qn_status qn_unigram_init(qn_unigram *model, const qn_vocab *vocab, qn_err *err);
QN_MUST_CHECK qn_status qn_unigram_encode(const qn_unigram *model, qn_encoder *encoder,
                                          const char *word, size_t size, qn_err *err);
void qn_unigram_deinit(qn_unigram *model);

#endif
