// Regular expressions of ECMAScript, as JSON Schema's `pattern` has them: characters, classes,
// \d \w \s \p, groups, choices, counted repetitions, anchors, look-around; and of other dialects
// (?P<name>...), (?i) and \A \Z. References to groups are refused by name.
#ifndef QN_GEN_GRAMMAR_REGEX_RULES_H
#define QN_GEN_GRAMMAR_REGEX_RULES_H

#include "gen/grammar/ast.h"

typedef enum qn_gr_regex_kind {
    QN_REGEX_CLASS,
    QN_REGEX_SEQ,
    QN_REGEX_ALT,
    QN_REGEX_REP,
    QN_REGEX_START,
    QN_REGEX_END,
    QN_REGEX_LOOK // its child matches here, or up to here
} qn_gr_regex_kind;

typedef struct qn_gr_regex_node {
    qn_gr_regex_kind kind;
    uint32_t column; // from 1, in bytes
    uint32_t min, max;
    bool behind, negated;           // of a LOOK
    const qn_gr_code_range *ranges; // ascending, apart
    size_t n_ranges;
    struct qn_gr_regex_node *first, *last, *next, *previous; // children; siblings
} qn_gr_regex_node;

enum { QN_REGEX_MAX_BYTES = 1 << 16, QN_REGEX_MAX_DEPTH = 200, QN_REGEX_MAX_COUNT = 1 << 24 };

// The tree lies in the arena. Its top is a choice of sequences. `steps` is a budget that is used
// up.
QN_MUST_CHECK qn_status qn_gr_regex_parse(qn_gr_regex_node **out, qn_arena *arena, qn_str pattern,
                                          uint64_t *steps, qn_err *err);

typedef struct qn_gr_regex_form {
    bool in_json;    // characters as they are spelled in a JSON string
    int32_t around;  // node of any character, for what surrounds a match; -1: the whole matches
    uint64_t *steps; // a budget that is used up
} qn_gr_regex_form;

// Adds the texts that contain (or are) a match.
QN_MUST_CHECK qn_status qn_gr_regex_lower(int32_t *out, qn_gr_ast *ast,
                                          const qn_gr_regex_node *tree, qn_gr_regex_form form,
                                          qn_err *err);
// The same for trees with look-around or with anchors inside, by way of an automaton.
QN_MUST_CHECK qn_status qn_gr_regex_lower_look(int32_t *out, qn_gr_ast *ast,
                                               const qn_gr_regex_node *tree, qn_gr_regex_form form,
                                               qn_err *err);

// Where the pattern is a counted class and nothing else (^[a-z]{2,9}$): takes the count off, so
// that any number matches, and gives it. Else false, and the tree is as it was.
bool qn_gr_regex_take_count(qn_gr_regex_node *tree, uint32_t *min, uint32_t *max);

#endif
