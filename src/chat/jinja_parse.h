// The parser, in two files: statements (parse.c) and expressions (parse_expr.c).
#ifndef QN_CHAT_JINJA_PARSE_H
#define QN_CHAT_JINJA_PARSE_H

#include "chat/lexer.h"
#include "chat/tree.h"

typedef struct qn_jinja_parser {
    qn_arena *arena;
    const qn_jinja_token *token; // the current one; the last is QN_TOKEN_END
    int depth;
    int n_maybe;   // branches around the current place that may not run
    int n_loops;   // around it, in the same macro
    unsigned uses; // QN_USES_... of the macro that is read
} qn_jinja_parser;

// A list under construction: `*last` is the place for the next node.
typedef struct qn_jinja_nodes {
    qn_jinja_tree *first, **last;
} qn_jinja_nodes;

QN_MUST_CHECK qn_status qn_jinja_parse_node(qn_jinja_tree **out, qn_jinja_parser *p,
                                            qn_jinja_tree_kind kind, const qn_jinja_token *at,
                                            qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_parse_enter(qn_jinja_parser *p, qn_err *err);
void qn_jinja_nodes_add(qn_jinja_nodes *nodes, qn_jinja_tree *node);

// Looking at the current token, and stepping over it.
bool qn_jinja_is_name(const qn_jinja_parser *p, const char *name);
bool qn_jinja_is_op(const qn_jinja_parser *p, unsigned op);
bool qn_jinja_skip_name(qn_jinja_parser *p, const char *name);
bool qn_jinja_skip_op(qn_jinja_parser *p, unsigned op);
QN_MUST_CHECK qn_status qn_jinja_want_op(qn_jinja_parser *p, unsigned op, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_want_name(qn_str *out, qn_jinja_parser *p, qn_err *err);
// "unexpected ..., want ..."
qn_status qn_jinja_unexpected(const qn_jinja_parser *p, const char *want, qn_err *err);

QN_MUST_CHECK qn_status qn_jinja_parse_expr(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err);
// Expressions separated by commas are a tuple.
typedef enum qn_jinja_tuple_form {
    QN_TUPLE_FULL,
    QN_TUPLE_NO_IF,
    QN_TUPLE_BRACKETS
} qn_jinja_tuple_form;
QN_MUST_CHECK qn_status qn_jinja_parse_tuple(qn_jinja_tree **out, qn_jinja_parser *p,
                                             qn_jinja_tuple_form form, qn_err *err);
// Names to assign to; `ns.name` where that is allowed.
QN_MUST_CHECK qn_status qn_jinja_parse_target(qn_jinja_tree **out, qn_jinja_parser *p,
                                              bool with_parts, qn_err *err);
// Filters after `|`, applied to `node`; with `is_first`, the name of the first comes without one.
QN_MUST_CHECK qn_status qn_jinja_parse_filters(qn_jinja_tree **out, qn_jinja_parser *p,
                                               qn_jinja_tree *node, bool is_first, qn_err *err);

#endif
