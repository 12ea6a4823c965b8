// The state of one encoding call: the ids so far and the scratch memory of the models.
//
// A tokenizer is constant; whatever a call writes lives here, on the caller's thread.
#ifndef QN_TOKENIZER_ENCODER_H
#define QN_TOKENIZER_ENCODER_H

#include "core/buf.h"
#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

// What becomes of text that the vocabulary has no piece for.
typedef struct qn_unknown_rule {
    int32_t id;    // the unknown token, -1: the text is dropped
    bool to_bytes; // write <0xNN> pieces if there is one for each byte
    bool fuse;     // a run of unknown text in a word gives one unknown token
} qn_unknown_rule;

typedef struct qn_cell qn_cell; // of the unigram lattice

// Caller storage; start from `{.max_ids = INT32_MAX}`.
typedef struct qn_encoder {
    int32_t *ids;
    size_t n_ids, cap;
    size_t max_ids;           // a call that would give more fails
    bool cuts;                // such a call gives the first ones, and must have them
    bool is_full;             // that happened
    const qn_stop_flag *stop; // NULL: none
    bool last_unknown;        // the word's last id is the unknown token
    qn_merge merge;
    qn_buf word; // spelling of a word
    qn_cell *cells;
    size_t cells_cap;
    uint64_t steps; // of the unigram model
} qn_encoder;

void qn_encoder_deinit(qn_encoder *encoder);
QN_MUST_CHECK qn_status qn_encoder_add(qn_encoder *encoder, int32_t id, qn_err *err);
// QN_STOPPED if the caller wants that.
QN_MUST_CHECK qn_status qn_encoder_check_stop(const qn_encoder *encoder, qn_err *err);
// Fails at once if a word of `size` bytes, of which no id stands for more than `longest`, is sure
// to give too many ids: its memory is many times its size.
QN_MUST_CHECK qn_status qn_encoder_check_word(qn_encoder *encoder, size_t size, size_t longest,
                                              qn_err *err);
// The same for models whose ids stand for pieces of the text, or for unknown characters.
QN_MUST_CHECK qn_status qn_unknown_check_word(const qn_unknown_rule *rule, const qn_vocab *vocab,
                                              qn_encoder *encoder, size_t size, qn_err *err);
// Whether all unknown text gives ids, for each character or byte of it.
bool qn_unknown_counts(const qn_unknown_rule *rule, const qn_vocab *vocab);
// Adds what stands for unknown text: one character or one stray byte.
QN_MUST_CHECK qn_status qn_encoder_add_unknown(qn_encoder *encoder, const qn_vocab *vocab,
                                               const qn_unknown_rule *rule, qn_str text,
                                               qn_err *err);
// True if the vocabulary can write these bytes as <0xNN> pieces.
bool qn_vocab_has_bytes(const qn_vocab *vocab, qn_str text);

#endif
