// From ids back to text.
//
// Pieces become raw bytes by the tokenizer's rule; raw bytes become text with U+FFFD for what is
// not UTF-8, one for each longest beginning of a character. Streaming holds back the bytes of a
// character that is not complete yet, so any split of the ids gives the same text.
#ifndef QN_TOKENIZER_DECODE_H
#define QN_TOKENIZER_DECODE_H

#include "core/buf.h"
#include "tokenizer/letters.h"
#include "tokenizer/vocab.h"

enum { QN_REPLACE_MAX = 4 };

typedef struct qn_decode_rule {
    bool byte_level;    // pieces are spelled in letters
    bool byte_fallback; // <0xNN> is one byte
    bool added_as_is;   // control and user-defined pieces are text already
    bool join_by_space; // a space between pieces
    size_t n_replace;
    qn_str from[QN_REPLACE_MAX], to[QN_REPLACE_MAX]; // within a piece; borrowed
    qn_str drop_in_first; // dropped from the first piece, before the replacements; borrowed
    size_t strip;         // leading strip_char's to take off the text, at most
    char strip_char;
} qn_decode_rule;

// Caller storage; start from `{0}`.
typedef struct qn_decode_state {
    bool started;    // a piece was decoded
    bool past_start; // text came out: nothing more to strip
    size_t n_stripped;
    qn_buf raw; // bytes that are not text yet
    qn_buf piece, spare;
} qn_decode_state;

typedef struct qn_decode {
    const qn_vocab *vocab;
    const qn_letters *letters;
    const qn_decode_rule *rule;
} qn_decode;

// Appends the bytes of a piece to state->raw. Holes give nothing; special pieces only if asked for.
void qn_decode_add(qn_decode_state *state, const qn_decode *decode, int32_t id, bool special);
// Moves finished text from state->raw to `out`; with `all`, an unfinished character becomes U+FFFD.
void qn_decode_flush(qn_buf *out, qn_decode_state *state, bool all);
void qn_decode_state_deinit(qn_decode_state *state);

#endif
