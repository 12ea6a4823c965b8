// The tokenizer object, for the loaders that fill it and the calls that use it.
#ifndef QN_TOKENIZER_OBJECT_H
#define QN_TOKENIZER_OBJECT_H

#include "core/arena.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decode.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretok.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"

typedef enum qn_model_kind {
    QN_MODEL_BPE,
    QN_MODEL_SENTENCEPIECE,
    QN_MODEL_UNIGRAM,
    QN_MODEL_COUNT
} qn_model_kind;

enum {
    QN_ENDS_MAX = 16, // tokens that end an answer
    QN_WRAP_MAX = 8,  // tokens added before or after a text
};

typedef struct qn_wrap {
    int32_t ids[QN_WRAP_MAX];
    size_t n;
} qn_wrap;

struct qn_tokenizer {
    qn_arena arena; // strings of the steps
    qn_vocab vocab;
    qn_letters letters;
    qn_added added;
    qn_norm norm;
    qn_pretok pretok;
    qn_prefix_set whole; // SentencePiece: strings that its normaliser leaves alone
    qn_model_kind kind;
    qn_bpe bpe;
    qn_sentencepiece sentencepiece;
    qn_unigram unigram;
    bool keeps_bytes; // stray bytes have ids; otherwise they become U+FFFD before anything else
    qn_wrap before, after;
    qn_decode_rule decode;
    qn_tokenizer_info info;
    int32_t ends[QN_ENDS_MAX];
    size_t n_ends;
    int32_t end;    // the highest id of a token, plus one
    bool has_holes; // some ids below are not of tokens
};

// An empty object; qn_tokenizer_close releases it in any state. NULL when memory is short.
qn_tokenizer *qn_tokenizer_alloc(void);
// A copy of the text in the tokenizer's arena; fails when memory is short.
QN_MUST_CHECK qn_status qn_tokenizer_keep(qn_str *out, qn_tokenizer *tokenizer, qn_str text,
                                          qn_err *err);
// The last step of loading: checks the special ids, finds the tokens that end an answer, sets what
// follows from the rest.
QN_MUST_CHECK qn_status qn_tokenizer_finish(qn_tokenizer *tokenizer, qn_err *err);
// Notes a token that ends an answer; ids that cannot be one (bytes, out of range) are passed over.
void qn_tokenizer_add_end(qn_tokenizer *tokenizer, int64_t id);

// Reads tokenizer_config.json and generation_config.json of a folder, if they are there: names of
// special tokens and ids that end an answer. is_model: the tokenizer came from a tokenizer.model,
// which leaves to them what is added around a text.
QN_MUST_CHECK qn_status qn_tokenizer_read_companions(qn_tokenizer *tokenizer,
                                                     const qn_location *folder, bool is_model,
                                                     qn_err *err);
QN_MUST_CHECK qn_status qn_tokenizer_from_gguf(qn_tokenizer **out, const qn_source *source,
                                               qn_err *err);

// qn_tokenize with a limit on the ids, telling the steps it took: for tests of bounds.
typedef struct qn_tokenize_stats {
    size_t max_ids; // in
    uint64_t steps; // out: looks at pairs, moves of the heap, cells of the lattice
} qn_tokenize_stats;

QN_MUST_CHECK qn_status qn_tokenize_counted(int32_t **ids, size_t *n, const qn_tokenizer *tokenizer,
                                            qn_str text, const qn_tokenize_opts *opts,
                                            qn_tokenize_stats *stats, qn_err *err);

#endif
