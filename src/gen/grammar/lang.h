// Sets of JSON strings that are more than one condition: patterns, lengths, words, and their
// opposites, all at once. Single patterns and lengths keep their counters; combinations are made
// into one finite automaton, within limits, beside which a counter holds the length.
#ifndef QN_GEN_GRAMMAR_LANG_H
#define QN_GEN_GRAMMAR_LANG_H

#include "gen/grammar/ast.h"

typedef enum qn_gr_lang_kind { QN_LANG_PATTERN, QN_LANG_LENGTH, QN_LANG_WORDS } qn_gr_lang_kind;

typedef struct qn_gr_lang_part {
    qn_gr_lang_kind kind;
    bool negated;
    qn_str pattern;    // matches somewhere in the text
    uint32_t min, max; // characters
    const qn_str *words;
    size_t n_words;
    // Where the condition is in a schema, for error messages.
    const char *keyword;
    const void *where;
} qn_gr_lang_part;

enum { QN_LANG_MAX_PARTS = 16, QN_LANG_MAX_STATES = 1 << 14 };

// The inner texts of JSON strings (without the quotes, each character in one spelling) for which
// all parts hold; QN_AST_NEVER where it is seen that there are none. `steps` is a budget that is
// used up. After a failure *culprit (NULL allowed) is the number of the part that it came from, or
// of the last one if it is the combination.
QN_MUST_CHECK qn_status qn_gr_lang_lower(int32_t *out, qn_gr_ast *ast, const qn_gr_lang_part *parts,
                                         size_t n, uint64_t *steps, size_t *culprit, qn_err *err);
// Whether the pattern matches somewhere in the text (which is plain, not JSON).
QN_MUST_CHECK qn_status qn_gr_lang_matches(bool *out, qn_str pattern, qn_str text, uint64_t *steps,
                                           qn_err *err);

#endif
