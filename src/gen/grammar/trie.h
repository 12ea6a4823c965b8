// The vocabulary as bytes: a tree of the tokens' texts, for asking an automaton about all of them
// in one walk. Control tokens and tokens without a text are not in it.
//
// Most tokens are plain: whole characters that need no escape inside a JSON string. They are
// kept as ready masks by their number of characters, and are not walked in such places.
#ifndef QN_GEN_GRAMMAR_TRIE_H
#define QN_GEN_GRAMMAR_TRIE_H

#include "core/err.h"

enum { QN_PLAIN_MAX = 32 }; // characters; longer tokens count as not plain

// A node comes after its parent and before its children: skipping a subtree is a jump to `end`.
typedef struct qn_gr_trie_node {
    uint32_t end;
    int32_t token; // that ends here, or -1; more of the same text follow in `same`
    uint16_t depth;
    uint8_t byte;
} qn_gr_trie_node;

typedef struct qn_gr_trie {
    qn_gr_trie_node *nodes;
    size_t n;
} qn_gr_trie;

// Caller storage.
typedef struct qn_gr_token_bytes {
    int32_t n_tokens;
    uint32_t *offsets; // n_tokens + 1, into text
    char *text;
    size_t longest;     // token, in bytes
    int32_t *same;      // for each token, the next one with the same text; -1: none
    qn_gr_trie all;     // every token
    qn_gr_trie special; // those that are not plain
    size_t n_words;     // of a mask
    uint32_t *plain;    // (QN_PLAIN_MAX + 1) masks: plain tokens of at most that many characters
    uint32_t *ends;     // mask of the tokens that end an answer
} qn_gr_token_bytes;

QN_MUST_CHECK qn_status qn_gr_token_bytes_init(qn_gr_token_bytes *out,
                                               const qn_tokenizer *tokenizer, qn_err *err);
void qn_gr_token_bytes_deinit(qn_gr_token_bytes *bytes);

#endif
