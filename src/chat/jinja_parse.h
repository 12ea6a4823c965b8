// The parser, in two files: statements (parse.c) and expressions (parse_expr.c).
#ifndef QN_CHAT_PARSE_H
#define QN_CHAT_PARSE_H

#include "chat/lexer.h"
#include "chat/tree.h"

typedef struct qn_parser {
    qn_arena *arena;
    const qn_token *token; // the current one; the last is QN_TOKEN_END
    int depth;
    int n_maybe;   // branches around the current place that may not run
    int n_loops;   // around it, in the same macro
    unsigned uses; // QN_USES_... of the macro that is read
} qn_parser;

// A list under construction: `*last` is the place for the next node.
typedef struct qn_nodes {
    qn_tree *first, **last;
} qn_nodes;

QN_MUST_CHECK qn_status qn_parse_node(qn_tree **out, qn_parser *p, qn_tree_kind kind,
                                      const qn_token *at, qn_err *err);
QN_MUST_CHECK qn_status qn_parse_enter(qn_parser *p, qn_err *err);
void qn_nodes_add(qn_nodes *nodes, qn_tree *node);

// Looking at the current token, and stepping over it.
bool qn_parse_is_name(const qn_parser *p, const char *name);
bool qn_parse_is_op(const qn_parser *p, unsigned op);
bool qn_parse_skip_name(qn_parser *p, const char *name);
bool qn_parse_skip_op(qn_parser *p, unsigned op);
QN_MUST_CHECK qn_status qn_parse_want_op(qn_parser *p, unsigned op, qn_err *err);
QN_MUST_CHECK qn_status qn_parse_want_name(qn_str *out, qn_parser *p, qn_err *err);
// "unexpected ..., want ..."
qn_status qn_parse_unexpected(const qn_parser *p, const char *want, qn_err *err);

QN_MUST_CHECK qn_status qn_parse_expr(qn_tree **out, qn_parser *p, qn_err *err);
// Without `a if b else c` at the top.
QN_MUST_CHECK qn_status qn_parse_or(qn_tree **out, qn_parser *p, qn_err *err);
// Expressions separated by commas are a tuple.
typedef enum qn_tuple_form { QN_TUPLE_FULL, QN_TUPLE_NO_IF, QN_TUPLE_BRACKETS } qn_tuple_form;
QN_MUST_CHECK qn_status qn_parse_tuple(qn_tree **out, qn_parser *p, qn_tuple_form form,
                                       qn_err *err);
// Names to assign to; `ns.name` where that is allowed.
QN_MUST_CHECK qn_status qn_parse_target(qn_tree **out, qn_parser *p, bool with_parts, qn_err *err);
// Filters after `|`, applied to `node`; with `is_first`, the name of the first comes without one.
QN_MUST_CHECK qn_status qn_parse_filters(qn_tree **out, qn_parser *p, qn_tree *node, bool is_first,
                                         qn_err *err);

#endif
