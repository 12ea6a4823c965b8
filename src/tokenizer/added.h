// Added tokens: strings that are taken whole out of the text before anything else looks at it.
//
// The leftmost match wins, the longest among those that start together. Special ones (control
// tokens) are only recognised when the caller asks; the others always.
#ifndef QN_TOKENIZER_ADDED_H
#define QN_TOKENIZER_ADDED_H

#include "core/str.h"
#include "tokenizer/prefix.h"

typedef struct qn_added_token {
    int32_t id;
    bool special;
    bool normalized;              // looked for in the normalised text, not in the text itself
    bool takes_left, takes_right; // white space before, after it belongs to it
    bool single_word;             // not inside a word
    qn_str text;                  // borrowed
} qn_added_token;

// Caller storage; `{0}` is valid: no added tokens.
typedef struct qn_added {
    qn_added_token *tokens; // owned
    size_t n, cap;
    qn_prefix_set raw, normalized;
} qn_added;

// Empty text is passed over.
QN_MUST_CHECK qn_status qn_added_add(qn_added *added, const qn_added_token *token, qn_err *err);
// Builds the two sets; nothing is added afterwards.
QN_MUST_CHECK qn_status qn_added_finish(qn_added *added, qn_err *err);
void qn_added_deinit(qn_added *added);

typedef struct qn_added_match {
    size_t start, end; // with the white space that belongs to it
    int32_t id;
} qn_added_match;

// Which special tokens are recognised: none, or those that touch no plain range of the text.
typedef struct qn_added_rule {
    bool special;
    const qn_text_range *plain; // ascending
    size_t n_plain;
} qn_added_rule;

// True if a plain range has a byte of from .. to - 1.
bool qn_added_is_plain(const qn_added_rule *rule, size_t from, size_t to);

// The first token in `text` at or after `from`; false if there is none. `set` is one of the two.
bool qn_added_find(qn_added_match *out, const qn_added *added, const qn_prefix_set *set,
                   qn_str text, size_t from, const qn_added_rule *rule);

#endif
