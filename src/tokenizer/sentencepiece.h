// SentencePiece BPE: of all neighbours whose concatenation is a piece, the one with the highest
// score merges first, the leftmost among equals. There is no list of merges: pieces and scores are
// enough. Pieces of kind "unused" take no part; control, unknown and byte pieces are never the
// result of a merge.
#ifndef QN_TOKENIZER_SENTENCEPIECE_H
#define QN_TOKENIZER_SENTENCEPIECE_H

#include "tokenizer/encoder.h"
#include "tokenizer/seams.h"

// Caller storage.
typedef struct qn_sentencepiece {
    qn_unknown_rule unknown;
    const qn_vocab *vocab; // borrowed; has scores, none of them NaN
    qn_seams *seams;       // owned
} qn_sentencepiece;

QN_MUST_CHECK qn_status qn_sentencepiece_init(qn_sentencepiece *model, const qn_vocab *vocab,
                                              qn_err *err);
QN_MUST_CHECK qn_status qn_sentencepiece_encode(const qn_sentencepiece *model, qn_encoder *encoder,
                                                const char *word, size_t size, qn_err *err);
void qn_sentencepiece_deinit(qn_sentencepiece *model);

#endif
