// Regular expressions of tokenizer files, on PCRE2.
//
// Patterns come from outside and were written for another engine (Oniguruma); what differs is
// rewritten (white space, word characters, lines) or refused. A pattern is tried at one position at
// a time, on a small window and with few steps; more of either is granted when the match asks for
// it, and is paid for out of a sum in proportion to the text. An expression that backtracks without
// end is an error, never a hang.
//
// The code is compiled for the machine when the system allows that, else interpreted. A qn_regex is
// constant; each thread brings its own qn_regex_run.
#ifndef QN_TOKENIZER_REGEX_H
#define QN_TOKENIZER_REGEX_H

#include "core/err.h"
#include "core/str.h"

typedef struct qn_regex {
    void *code;    // pcre2_code
    size_t window; // bytes that a match may see at first
} qn_regex;

QN_MUST_CHECK qn_status qn_regex_init(qn_regex *out, qn_str pattern, qn_err *err);
void qn_regex_deinit(qn_regex *regex);

// Caller storage for matching in one text, which must be valid UTF-8 and stay where it is.
typedef struct qn_regex_run {
    const qn_regex *regex; // borrowed
    void *match;           // pcre2_match_data
    void *context;         // pcre2_match_context
    qn_str text;
    uint64_t work_left; // that tries beyond the first may take
} qn_regex_run;

QN_MUST_CHECK qn_status qn_regex_run_init(qn_regex_run *out, const qn_regex *regex, qn_err *err);
void qn_regex_run_set(qn_regex_run *run, qn_str text);
// *found: the pattern matches exactly at byte `at`, up to *end >= at.
QN_MUST_CHECK qn_status qn_regex_match(bool *found, size_t *end, qn_regex_run *run, size_t at,
                                       qn_err *err);
void qn_regex_run_deinit(qn_regex_run *run);

#endif
