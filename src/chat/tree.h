// A template as a tree, made once and read by any number of renderings at a time.
#ifndef QN_CHAT_TREE_H
#define QN_CHAT_TREE_H

#include "chat/render.h"

// clang-format off
// Expressions: what `a`, `b`, `c`, `list` and `name` are. Lists are linked by `next`.
#define QN_TREE_EXPRESSIONS(X)                                                  \
    X(CONST)    /* value */                                                     \
    X(NAME)     /* name */                                                      \
    X(LIST)     /* list */                                                      \
    X(TUPLE)    /* list */                                                      \
    X(DICT)     /* list: pairs */                                               \
    X(ATTR)     /* a.name */                                                    \
    X(ITEM)     /* a[b] */                                                      \
    X(SLICE)    /* a[list: three; those left out are CONST none] */             \
    X(CALL)     /* a(list) */                                                   \
    X(FILTER)   /* a|name(list); a NULL: the text of a filter block */          \
    X(TEST)     /* a is name(list) */                                           \
    X(NOT)      /* not a */                                                     \
    X(NEG)      /* -a */                                                        \
    X(POS)      /* +a */                                                        \
    X(AND)      /* a and b */                                                   \
    X(OR)       /* a or b */                                                    \
    X(IF_ELSE)  /* a if b else c; c may be NULL */                              \
    X(COMPARE)  /* a, then list: operands */                                    \
    X(MATH)     /* a op b */                                                    \
    X(CONCAT)   /* list joined by ~ */
// Statements. `body` is a list of statements.
#define QN_TREE_STATEMENTS(X)                                                   \
    X(DATA)     /* value, as it is */                                           \
    X(PRINT)    /* a */                                                         \
    X(IF)       /* list: branches (a: condition or NULL for else; body) */      \
    X(FOR)      /* a: target, b: what is walked, c: condition or NULL; body, other */ \
    X(SET)      /* a: target, b: value */                                       \
    X(SET_TEXT) /* a: target, b: filters or NULL; body */                       \
    X(MACRO)    /* name, list: parameters; body */                              \
    X(CALL_WITH) /* a: call; list: parameters of `caller`; body */              \
    X(WITH)     /* list: pairs (a: target, b: value); body */                   \
    X(FILTERED) /* b: filters; body */                                          \
    X(SCOPED)   /* body, with names of its own */                               \
    X(BREAK)                                                                    \
    X(CONTINUE)
// Parts of the above.
#define QN_TREE_PARTS(X)                                                        \
    X(PAIR)     /* a: b */                                                      \
    X(OPERAND)  /* op a */                                                      \
    X(BRANCH)                                                                   \
    X(PARAM)    /* name, a: default or NULL */                                  \
    X(ARG)      /* a */                                                         \
    X(NAMED)    /* name = a */                                                  \
    X(SPREAD)   /* *a */                                                        \
    X(SPREAD_NAMED) /* **a */                                                   \
    X(NS_REF)   /* target a.name: value is the name before the dot */
// clang-format on

typedef enum qn_jinja_tree_kind {
#define QN_TREE_ENUM(name) QN_TREE_##name,
    QN_TREE_EXPRESSIONS(QN_TREE_ENUM) QN_TREE_STATEMENTS(QN_TREE_ENUM) QN_TREE_PARTS(QN_TREE_ENUM)
#undef QN_TREE_ENUM
        QN_TREE_COUNT
} qn_jinja_tree_kind;

typedef enum qn_jinja_compare {
    QN_COMPARE_EQ,
    QN_COMPARE_NE,
    QN_COMPARE_LT,
    QN_COMPARE_LE,
    QN_COMPARE_GT,
    QN_COMPARE_GE,
    QN_COMPARE_IN,
    QN_COMPARE_NOT_IN
} qn_jinja_compare;

// Which of the names that a macro may use for what its parameters do not take.
enum { QN_USES_VARARGS = 1, QN_USES_KWARGS = 2, QN_USES_CALLER = 4 };

struct qn_jinja_tree {
    unsigned char kind; // qn_jinja_tree_kind
    unsigned char op;   // qn_jinja_math, qn_jinja_compare; QN_USES_... of a macro
    uint32_t line, column;
    qn_jinja_tree *next;
    qn_jinja_tree *a, *b, *c, *list, *body, *other;
    qn_str name;
    qn_jinja_val value;
    const qn_jinja_builtin *row; // of filters and tests; NULL: unknown, an error when it is reached
};

struct qn_jinja_macro {
    const qn_jinja_tree *node;
    qn_jinja_scope *scope; // where it was defined
};

// A call with the body of {% call %} as `caller`.
QN_MUST_CHECK qn_status qn_jinja_eval_call_with(qn_jinja_val *out, qn_jinja_run *r,
                                                const qn_jinja_tree *call,
                                                const qn_jinja_val *caller, qn_err *err);
// The filters of a block (NULL: none), applied to its text.
QN_MUST_CHECK qn_status qn_jinja_eval_filters(qn_jinja_val *value, qn_jinja_run *r,
                                              const qn_jinja_tree *node, qn_err *err);

// Reads a template. The tree lies in the arena and borrows nothing from the text.
QN_MUST_CHECK qn_status qn_jinja_tree_parse(qn_jinja_tree **out, qn_arena *arena, const char *text,
                                            size_t size, qn_err *err);

#endif
