// Byte-pair encoding by ranked merges: byte-level (GPT-2, Llama 3, Qwen) and over characters with
// <0xNN> for what the vocabulary lacks (Gemma's tokenizer.json).
#ifndef QN_TOKENIZER_BPE_H
#define QN_TOKENIZER_BPE_H

#include "tokenizer/encoder.h"
#include "tokenizer/letters.h"
#include "tokenizer/seams.h"

typedef struct qn_pair_slot {
    uint32_t left, right; // left QN_NO_ID: free
    uint32_t rank, id;    // id of the merged piece
} qn_pair_slot;

// Caller storage. The settings are the loader's; init and the merges fill the rest.
typedef struct qn_bpe {
    bool byte_level;    // symbols are bytes, spelled as letters in the vocabulary
    bool ignore_merges; // a word that is a piece is taken whole, whatever the merges say
    qn_unknown_rule unknown;

    const qn_vocab *vocab;     // borrowed
    const qn_letters *letters; // borrowed; for byte_level
    int32_t letter_ids[256];   // piece of each byte's letter, -1: none
    bool has_seams;            // false also when a merge could reach across one
    qn_seams *seams;           // owned; NULL if byte_level
    qn_pair_slot *slots;       // owned
    size_t n, cap;
    uint64_t seed;
} qn_bpe;

// vocab must be finished.
QN_MUST_CHECK qn_status qn_bpe_init(qn_bpe *bpe, const qn_vocab *vocab, const qn_letters *letters,
                                    qn_err *err);
// Adds the merge of `left` and `right`, pieces that must exist, as must their concatenation. Merges
// come in order of rank. A pair given twice takes its later rank.
QN_MUST_CHECK qn_status qn_bpe_add_merge(qn_bpe *bpe, qn_str left, qn_str right, uint32_t rank,
                                         qn_err *err);
// The same from "left right".
QN_MUST_CHECK qn_status qn_bpe_add_line(qn_bpe *bpe, qn_str line, uint32_t rank, qn_err *err);
QN_MUST_CHECK qn_status qn_bpe_encode(const qn_bpe *bpe, qn_encoder *encoder, const char *word,
                                      size_t size, qn_err *err);
void qn_bpe_deinit(qn_bpe *bpe);

#endif
