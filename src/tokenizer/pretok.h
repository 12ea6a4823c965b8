// Pre-tokenizers: steps that cut a text into words. Each step hands its pieces to the next one; the
// last hands them to the model. Nothing is kept in between, so memory does not grow with the text.
#ifndef QN_TOKENIZER_PRETOK_H
#define QN_TOKENIZER_PRETOK_H

#include "core/buf.h"
#include "tokenizer/regex.h"
#include "tokenizer/words.h"

enum { QN_PRETOK_MAX = 16 }; // steps

// What happens to the text that matches.
typedef enum qn_split_behavior {
    QN_SPLIT_REMOVED,
    QN_SPLIT_ISOLATED,       // a word of its own
    QN_SPLIT_MERGE_PREVIOUS, // the end of the word before it
    QN_SPLIT_MERGE_NEXT,     // the start of the word after it
    QN_SPLIT_CONTIGUOUS,     // neighbouring matches are one word
    QN_SPLIT_COUNT
} qn_split_behavior;

typedef enum qn_pretok_kind {
    QN_PRETOK_WORDS, // a known pattern, by `rule`
    QN_PRETOK_REGEX,
    QN_PRETOK_STRING,
    QN_PRETOK_PREFIX,    // a space in front of text that does not begin with one
    QN_PRETOK_METASPACE, // `from` for spaces, and in front by `scheme`
    QN_PRETOK_KIND_COUNT
} qn_pretok_kind;

typedef enum qn_prefix_scheme {
    QN_PREFIX_NEVER,
    QN_PREFIX_FIRST,
    QN_PREFIX_ALWAYS
} qn_prefix_scheme;

typedef struct qn_pretok_step {
    qn_pretok_kind kind;
    qn_split_behavior behavior;
    bool invert; // what does not match counts as the match
    qn_word_rule rule;
    qn_regex regex;
    qn_str from; // STRING: what to split at; METASPACE: stands for a space. Borrowed.
    qn_prefix_scheme scheme;
} qn_pretok_step;

// Caller storage; `{0}` is valid: the text is one word.
typedef struct qn_pretok {
    qn_pretok_step steps[QN_PRETOK_MAX];
    size_t n;
} qn_pretok;

typedef qn_status qn_word_fn(void *arg, const char *word, size_t size, qn_err *err);

// State of one call: a match per pattern, a text per step.
typedef struct qn_pretok_run {
    const qn_pretok *pretok; // borrowed
    qn_word_fn *word;
    void *arg;
    qn_regex_run regex[QN_PRETOK_MAX];
    qn_buf text[QN_PRETOK_MAX];
} qn_pretok_run;

void qn_pretok_deinit(qn_pretok *pretok);
QN_MUST_CHECK qn_status qn_pretok_run_init(qn_pretok_run *out, const qn_pretok *pretok,
                                           qn_word_fn *word, void *arg, qn_err *err);
// Calls `word` for each word of the text. is_first: the text is the beginning of the whole input.
QN_MUST_CHECK qn_status qn_pretok_apply(qn_pretok_run *run, qn_str text, bool is_first,
                                        qn_err *err);
void qn_pretok_run_deinit(qn_pretok_run *run);

// A named set of patterns, as GGUF files refer to them.
typedef struct qn_pattern_row {
    const char *name;        // of the pattern itself
    const char *aliases;     // other names in GGUF files, each with a space before and after it
    const char *patterns[4]; // each isolates its matches in what the one before left
    qn_word_rule rule;       // the same as code, if has_rule
    bool has_rule;
    bool ignore_merges, add_bos;
} qn_pattern_row;

// The row of a GGUF `tokenizer.ggml.pre`; NULL if unknown.
const qn_pattern_row *qn_pattern_find(qn_str name);
// The row of a single pattern; NULL if it has none.
const qn_pattern_row *qn_pattern_match(qn_str pattern);
// The row of the same single pattern as the named one, with this setting; NULL if there is none.
const qn_pattern_row *qn_pattern_variant(const char *name, bool ignore_merges);
// All names, for messages.
void qn_pattern_list(qn_buf *out);
QN_MUST_CHECK qn_status qn_pretok_add_row(qn_pretok *pretok, const qn_pattern_row *row,
                                          qn_err *err);

#endif
