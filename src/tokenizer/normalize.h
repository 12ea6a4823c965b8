// Normalisers: steps that rewrite a text before it is cut into words.
#ifndef QN_TOKENIZER_NORMALIZE_H
#define QN_TOKENIZER_NORMALIZE_H

#include "tokenizer/charsmap.h"
#include "tokenizer/prefix.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

enum { QN_NORM_MAX = 16 }; // steps

typedef enum qn_norm_kind {
    QN_NORM_FORM,          // NFC, NFD, NFKC, NFKD
    QN_NORM_LOWER,         // lower case
    QN_NORM_STRIP_ACCENTS, // drop nonspacing marks
    QN_NORM_STRIP,         // drop white space at the ends
    QN_NORM_PREPEND,       // `to` in front of a text that is not empty
    QN_NORM_REPLACE,       // every `from` by `to`
    QN_NORM_REPLACE_REGEX, // every match of `regex` by `to`
    QN_NORM_PRECOMPILED,   // the charsmap by grapheme, as tokenizer.json means it
    QN_NORM_SENTENCEPIECE, // the charsmap by longest prefix, spaces to U+2581
    QN_NORM_KIND_COUNT
} qn_norm_kind;

typedef struct qn_norm_step {
    qn_norm_kind kind;
    qn_normal_form form;
    bool left, right; // STRIP
    qn_str from, to;  // borrowed from the tokenizer's arena
    qn_regex regex;
    qn_charsmap map;
    // SENTENCEPIECE
    bool dummy_prefix;    // a space in front of a text that is not empty
    bool squeeze;         // no leading or trailing spaces, no runs of them
    bool keep_spaces;     // spaces stay spaces
    qn_prefix_set *whole; // borrowed, may be NULL: strings left as they are
} qn_norm_step;

// Caller storage; `{0}` is valid and changes nothing.
typedef struct qn_norm {
    qn_norm_step steps[QN_NORM_MAX];
    size_t n;
} qn_norm;

// Scratch memory of one call; `{0}` is valid.
typedef struct qn_norm_run {
    qn_buf from, to;
} qn_norm_run;

void qn_norm_deinit(qn_norm *norm);
// *out is borrowed from the run or is `text` itself.
QN_MUST_CHECK qn_status qn_norm_apply(qn_str *out, const qn_norm *norm, qn_norm_run *run,
                                      qn_str text, qn_err *err);
void qn_norm_run_deinit(qn_norm_run *run);

#endif
