// The tree that every front end writes: byte sets, sequences, choices, counted repetitions, rules.
//
// Nodes are numbers; children are made before their parents, and may be shared. Recursion goes
// through rules alone. Failure (memory, a limit) is sticky: build freely, look once at the end with
// qn_gr_ast_check; after a failure every call gives QN_AST_NEVER.
#ifndef QN_GEN_GRAMMAR_AST_H
#define QN_GEN_GRAMMAR_AST_H

#include "core/arena.h"
#include "core/err.h"
#include "core/map.h"
#include "core/str.h"
#include "gen/grammar/lengths.h"

typedef enum qn_gr_ast_kind {
    QN_AST_IS_EMPTY,
    QN_AST_IS_NEVER,
    QN_AST_IS_SET, // one byte of a set
    QN_AST_IS_SEQ,
    QN_AST_IS_ALT,
    QN_AST_IS_REP,
    QN_AST_IS_REF,
    QN_AST_IS_COUNTED, // a: the start of an automaton beside which characters are counted
    QN_AST_IS_PLACE,   // a state of such an automaton; reads nothing
    QN_AST_IS_TOKEN    // token a of the vocabulary, whatever its text; b: any other one
} qn_gr_ast_kind;

enum {
    QN_AST_EMPTY = 0, // the nodes of the empty text
    QN_AST_NEVER = 1, // and of no text at all
    QN_AST_MAX_NODES = 1 << 20,
    QN_AST_MAX_RULES = 1 << 17,
    QN_AST_MAX_DEPTH = 500, // of nodes in nodes, not counting a sequence in a sequence
};
#define QN_AST_MANY UINT32_MAX // no upper bound of a repetition

typedef struct qn_gr_ast_node {
    uint8_t kind;
    bool nullable, productive; // set by qn_gr_ast_analyze
    uint16_t depth;
    int32_t a, b;      // children; a: the set, or the rule; b of COUNTED, a of PLACE: the lengths
    uint32_t min, max; // of a repetition; of a PLACE: the state, and 1 if a character ends there
} qn_gr_ast_node;

typedef struct qn_gr_byte_set {
    uint64_t bits[4];
} qn_gr_byte_set;

typedef struct qn_gr_ast_rule {
    int32_t body;      // -1: not set yet
    int32_t non_empty; // the rule for the same without the empty text; -1: none
    int32_t origin;    // of a rule that was made as `non_empty`
    const char *name;  // for messages; in the arena
    bool is_named;     // by the text of the grammar: its name says where something is
} qn_gr_ast_rule;

// Caller storage; qn_gr_ast_init, qn_gr_ast_deinit.
typedef struct qn_gr_ast {
    qn_gr_ast_node *nodes;
    size_t n, cap;
    qn_gr_byte_set *sets;
    size_t n_sets, cap_sets;
    qn_map set_index;
    qn_gr_ast_rule *rules;
    size_t n_rules, cap_rules;
    qn_gr_lengths **lengths; // owned
    size_t n_lengths, cap_lengths;
    qn_arena arena;
    const qn_tokenizer *tokenizer; // for front ends that name tokens; NULL: none
    const qn_stop_flag *stop;      // NULL: none
    int32_t culprit;               // of qn_gr_ast_analyze
    uint64_t spent;                // steps of schemas that were read into the tree
    uint32_t empty_class;          // column of a regular expression's [] or [^\s\S]; 0: none
    qn_status failed;              // QN_OK, QN_MEMORY, QN_LIMIT or QN_STOPPED
    const char *why;               // of a limit
} qn_gr_ast;

typedef struct qn_gr_code_range {
    uint32_t lo, hi;
} qn_gr_code_range;

QN_MUST_CHECK qn_status qn_gr_ast_init(qn_gr_ast *ast, qn_err *err);
void qn_gr_ast_deinit(qn_gr_ast *ast);
QN_MUST_CHECK qn_status qn_gr_ast_check(const qn_gr_ast *ast, qn_err *err);
// QN_STOPPED if nobody wants it any more; adding nodes asks, too.
QN_MUST_CHECK qn_status qn_gr_ast_go_on(const qn_gr_ast *ast, qn_err *err);
// What was added after a mark is taken out again, and a limit that it met is forgotten. Nothing
// that stays may refer to it.
typedef struct qn_gr_ast_mark {
    size_t n, n_rules, n_lengths;
} qn_gr_ast_mark;
qn_gr_ast_mark qn_gr_ast_get_mark(const qn_gr_ast *ast);
void qn_gr_ast_undo(qn_gr_ast *ast, qn_gr_ast_mark mark);
void qn_gr_ast_fail(qn_gr_ast *ast, qn_status status, const char *why);

int32_t qn_gr_set(qn_gr_ast *ast, const qn_gr_byte_set *set);
int32_t qn_gr_bytes(qn_gr_ast *ast, const char *bytes); // one of them; NUL-terminated
int32_t qn_gr_span(qn_gr_ast *ast, unsigned lo, unsigned hi);
int32_t qn_gr_seq(qn_gr_ast *ast, int32_t a, int32_t b);
int32_t qn_gr_seq3(qn_gr_ast *ast, int32_t a, int32_t b, int32_t c);
int32_t qn_gr_alt(qn_gr_ast *ast, int32_t a, int32_t b);
int32_t qn_gr_rep(qn_gr_ast *ast, int32_t a, uint32_t min, uint32_t max);
int32_t qn_gr_maybe(qn_gr_ast *ast, int32_t a);
int32_t qn_gr_text(qn_gr_ast *ast, qn_str text); // exactly these bytes
// A character of the ranges (ascending, apart), in UTF-8; surrogates are left out.
int32_t qn_gr_codes(qn_gr_ast *ast, const qn_gr_code_range *ranges, size_t n);
// The token itself, not its bytes. `negated`: any other that has a text.
int32_t qn_gr_token(qn_gr_ast *ast, int32_t token, bool negated);
// A rule without a body yet; -1 after a failure. `name` is copied.
int32_t qn_gr_ast_rule_add(qn_gr_ast *ast, qn_str name);
// The same for one that the grammar's text names (by a name or by its place).
int32_t qn_gr_ast_rule_named(qn_gr_ast *ast, qn_str name);
void qn_gr_ast_rule_set(qn_gr_ast *ast, int32_t rule, int32_t body);
int32_t qn_gr_ref(qn_gr_ast *ast, int32_t rule);
// A rule with this body, and a node for it: a shared part that is lowered once.
int32_t qn_gr_shared(qn_gr_ast *ast, const char *name, int32_t body);

static inline bool qn_gr_byte_set_has(const qn_gr_byte_set *set, unsigned byte) {
    return (set->bits[byte >> 6] >> (byte & 63)) & 1;
}
static inline void qn_gr_byte_set_add(qn_gr_byte_set *set, unsigned byte) {
    set->bits[byte >> 6] |= (uint64_t)1 << (byte & 63);
}

// Texts of a finite automaton with a bound on their characters. Its states are rules that call each
// other last; each begins with its qn_gr_place. The lengths are found in the end, when the
// states are known: qn_gr_ast_lengths_add gives a number for them before, qn_gr_ast_lengths_set
// takes them over.
int32_t qn_gr_ast_lengths_add(qn_gr_ast *ast);
void qn_gr_ast_lengths_set(qn_gr_ast *ast, int32_t at, qn_gr_lengths *lengths);
int32_t qn_gr_counted(qn_gr_ast *ast, int32_t start, int32_t lengths);
int32_t qn_gr_place(qn_gr_ast *ast, int32_t lengths, uint32_t state, bool ends_character);

// Nodes in order below a node of this kind, flattened. `list` grows by what is found.
typedef struct qn_gr_node_list {
    int32_t *items;
    size_t n, cap;
} qn_gr_node_list;
void qn_gr_ast_flatten(qn_gr_ast *ast, qn_gr_ast_kind kind, int32_t node, qn_gr_node_list *list);

// What must hold before lowering: which nodes match the empty text and which match anything at all,
// repetitions of bodies that cannot be empty, no rule that calls itself before it reads a byte.
// Fails with QN_ARGUMENT when `root` (a node) can match nothing; ast->culprit is then the innermost
// rule that is to blame (-1: none).
QN_MUST_CHECK qn_status qn_gr_ast_analyze(qn_gr_ast *ast, int32_t root, qn_err *err);

#endif
