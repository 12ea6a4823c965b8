#include "chat/jinja_parse.h"

// --- small things --------------------------------------------------------------------------------

static qn_status binary(qn_jinja_tree **out, qn_jinja_parser *p, qn_jinja_tree_kind kind,
                        qn_jinja_tree *a, qn_jinja_tree *b, const qn_jinja_token *at, qn_err *err) {
    QN_TRY(qn_jinja_parse_node(out, p, kind, at, err));
    (*out)->a = a;
    (*out)->b = b;
    return QN_OK;
}

static qn_status constant(qn_jinja_tree **out, qn_jinja_parser *p, const qn_jinja_val *value,
                          const qn_jinja_token *at, qn_err *err) {
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_CONST, at, err));
    (*out)->value = *value;
    return QN_OK;
}

// --- primary -------------------------------------------------------------------------------------

static qn_status parse_name(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    static const struct {
        const char *name;
        qn_jinja_val value;
    } known[] = {
        {"true", {.kind = QN_VAL_BOOL, .as.b = true}},
        {"True", {.kind = QN_VAL_BOOL, .as.b = true}},
        {"false", {.kind = QN_VAL_BOOL}},
        {"False", {.kind = QN_VAL_BOOL}},
        {"none", {.kind = QN_VAL_NONE}},
        {"None", {.kind = QN_VAL_NONE}},
    };
    static const char *const extras[] = {"varargs", "kwargs", "caller"};
    const qn_jinja_token *at = p->token++;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (qn_str_is(at->text, known[i].name)) return constant(out, p, &known[i].value, at, err);
    }
    for (unsigned i = 0; i < 3; i++) {
        if (qn_str_is(at->text, extras[i])) p->uses |= 1u << i;
    }
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_NAME, at, err));
    (*out)->name = at->text;
    return QN_OK;
}

// Strings that follow each other are one.
static qn_status parse_const(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token++;
    QN_TRY(constant(out, p, &at->value, at, err));
    if (at->value.kind != QN_VAL_TEXT) return QN_OK;
    qn_buf joined = {0};
    qn_buf_add(&joined, at->value.as.s.data, at->value.as.s.size);
    for (; p->token->kind == QN_TOKEN_CONST && p->token->value.kind == QN_VAL_TEXT; p->token++)
        qn_buf_add(&joined, p->token->value.as.s.data, p->token->value.as.s.size);
    const char *copy = joined.failed ? NULL : qn_arena_strdup(p->arena, joined.data, joined.size);
    (*out)->value = qn_jinja_val_text((qn_str){copy, joined.size});
    qn_buf_deinit(&joined);
    return copy ? QN_OK : QN_NOMEM(err, "template");
}

static qn_status parse_list(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_LIST, p->token++, err));
    qn_jinja_nodes items = {.last = &(*out)->list};
    while (!qn_jinja_is_op(p, ']')) {
        if ((*out)->list) QN_TRY(qn_jinja_want_op(p, ',', err));
        if (qn_jinja_is_op(p, ']')) break;
        qn_jinja_tree *item;
        QN_TRY(qn_jinja_parse_expr(&item, p, err));
        qn_jinja_nodes_add(&items, item);
    }
    return qn_jinja_want_op(p, ']', err);
}

static qn_status parse_dict(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_DICT, p->token++, err));
    qn_jinja_nodes items = {.last = &(*out)->list};
    while (!qn_jinja_is_op(p, '}')) {
        if ((*out)->list) QN_TRY(qn_jinja_want_op(p, ',', err));
        if (qn_jinja_is_op(p, '}')) break;
        qn_jinja_tree *key, *value, *pair;
        const qn_jinja_token *at = p->token;
        QN_TRY(qn_jinja_parse_expr(&key, p, err));
        QN_TRY(qn_jinja_want_op(p, ':', err));
        QN_TRY(qn_jinja_parse_expr(&value, p, err));
        QN_TRY(binary(&pair, p, QN_TREE_PAIR, key, value, at, err));
        qn_jinja_nodes_add(&items, pair);
    }
    return qn_jinja_want_op(p, '}', err);
}

static qn_status parse_brackets(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    p->token++;
    QN_TRY(qn_jinja_parse_tuple(out, p, QN_TUPLE_BRACKETS, err));
    return qn_jinja_want_op(p, ')', err);
}

static qn_status parse_primary(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    if (p->token->kind == QN_TOKEN_NAME) return parse_name(out, p, err);
    if (p->token->kind == QN_TOKEN_CONST) return parse_const(out, p, err);
    if (qn_jinja_is_op(p, '(')) return parse_brackets(out, p, err);
    if (qn_jinja_is_op(p, '[')) return parse_list(out, p, err);
    if (qn_jinja_is_op(p, '{')) return parse_dict(out, p, err);
    return qn_jinja_unexpected(p, "an expression", err);
}

// --- calls, parts, filters, tests ----------------------------------------------------------------

typedef struct call_state {
    bool has_named, has_spread, has_spread_named;
} call_state;

static qn_status parse_arg(qn_jinja_tree **out, qn_jinja_parser *p, call_state *state,
                           qn_err *err) {
    const qn_jinja_token *at = p->token;
    qn_jinja_tree_kind kind = QN_TREE_ARG;
    bool is_fine = !state->has_spread_named;
    if (qn_jinja_skip_op(p, QN_OP2('*', '*'))) {
        kind = QN_TREE_SPREAD_NAMED;
        state->has_spread_named = true;
    } else if (qn_jinja_skip_op(p, '*')) {
        kind = QN_TREE_SPREAD;
        is_fine = is_fine && !state->has_spread;
        state->has_spread = true;
    } else if (at->kind == QN_TOKEN_NAME && at[1].kind == QN_TOKEN_OP && at[1].op == '=') {
        kind = QN_TREE_NAMED;
        p->token += 2;
        state->has_named = true;
    } else {
        is_fine = is_fine && !state->has_spread && !state->has_named;
    }
    if (!is_fine) return QN_TEMPLATE_FAIL(err, FORMAT, at, "%s", "an argument in the wrong place");
    QN_TRY(qn_jinja_parse_node(out, p, kind, at, err));
    if (kind == QN_TREE_NAMED) (*out)->name = at->text;
    return qn_jinja_parse_expr(&(*out)->a, p, err);
}

static qn_status parse_args(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    qn_jinja_nodes args = {.last = out};
    call_state state = {0};
    *out = NULL;
    p->token++;
    while (!qn_jinja_is_op(p, ')')) {
        if (*out) QN_TRY(qn_jinja_want_op(p, ',', err));
        if (qn_jinja_is_op(p, ')')) break;
        qn_jinja_tree *arg;
        QN_TRY(parse_arg(&arg, p, &state, err));
        qn_jinja_nodes_add(&args, arg);
    }
    return qn_jinja_want_op(p, ')', err);
}

static qn_status parse_call(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    qn_jinja_tree *call;
    QN_TRY(qn_jinja_parse_node(&call, p, QN_TREE_CALL, p->token, err));
    call->a = *node;
    *node = call;
    return parse_args(&call->list, p, err);
}

static qn_status parse_dot(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token++;
    const qn_jinja_token *part = p->token;
    qn_jinja_tree *key;
    if (part->kind == QN_TOKEN_NAME) {
        p->token++;
        QN_TRY(binary(node, p, QN_TREE_ATTR, *node, NULL, at, err));
        (*node)->name = part->text;
        return QN_OK;
    }
    if (part->kind != QN_TOKEN_CONST || part->value.kind != QN_VAL_INT)
        return qn_jinja_unexpected(p, "a name or number", err);
    p->token++;
    QN_TRY(constant(&key, p, &part->value, part, err));
    return binary(node, p, QN_TREE_ITEM, *node, key, at, err);
}

static bool is_slice_end(const qn_jinja_parser *p) {
    return qn_jinja_is_op(p, ']') || qn_jinja_is_op(p, ',') || qn_jinja_is_op(p, ':');
}

static qn_status parse_bound(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_val none = qn_jinja_val_none();
    if (is_slice_end(p)) return constant(out, p, &none, p->token, err);
    return qn_jinja_parse_expr(out, p, err);
}

// a[i], a[low:high], a[low:high:step]. A tuple as a key is an error: nothing here has such keys.
static qn_status parse_subscript(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token++;
    qn_jinja_tree *bounds[3];
    const qn_jinja_val none = qn_jinja_val_none();
    if (qn_jinja_is_op(p, ']')) return qn_jinja_unexpected(p, "an index", err);
    const bool is_open = qn_jinja_is_op(p, ':');
    QN_TRY(parse_bound(&bounds[0], p, err));
    if (!is_open && qn_jinja_skip_op(p, ']'))
        return binary(node, p, QN_TREE_ITEM, *node, bounds[0], at, err);
    QN_TRY(qn_jinja_want_op(p, ':', err));
    QN_TRY(parse_bound(&bounds[1], p, err));
    if (qn_jinja_skip_op(p, ':'))
        QN_TRY(parse_bound(&bounds[2], p, err));
    else
        QN_TRY(constant(&bounds[2], p, &none, p->token, err));
    QN_TRY(qn_jinja_want_op(p, ']', err));
    QN_TRY(binary(node, p, QN_TREE_SLICE, *node, NULL, at, err));
    qn_jinja_nodes list = {.last = &(*node)->list};
    for (int i = 0; i < 3; i++) qn_jinja_nodes_add(&list, bounds[i]);
    return QN_OK;
}

static qn_status parse_postfix(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    for (;;) {
        if (qn_jinja_is_op(p, '.'))
            QN_TRY(parse_dot(node, p, err));
        else if (qn_jinja_is_op(p, '['))
            QN_TRY(parse_subscript(node, p, err));
        else if (qn_jinja_is_op(p, '('))
            QN_TRY(parse_call(node, p, err));
        else
            return QN_OK;
    }
}

// An unknown filter or test is an error at once, unless it is in a branch: templates
// ask for what they have.
static qn_status find_row(qn_jinja_tree *node, const qn_jinja_parser *p, const char *what,
                          const qn_jinja_builtin *(*find)(qn_str), qn_err *err) {
    node->row = find(node->name);
    if (node->row || p->n_maybe) return QN_OK;
    return QN_TEMPLATE_FAIL(err, FORMAT, node, "no %s is named '%.*s'", what,
                            (int)(node->name.size < 80 ? node->name.size : 80), node->name.data);
}

qn_status qn_jinja_parse_filters(qn_jinja_tree **out, qn_jinja_parser *p, qn_jinja_tree *node,
                                 bool is_first, qn_err *err) {
    while (is_first || qn_jinja_skip_op(p, '|')) {
        is_first = false;
        QN_TRY(binary(&node, p, QN_TREE_FILTER, node, NULL, p->token, err));
        QN_TRY(qn_jinja_want_name(&node->name, p, err));
        QN_TRY(find_row(node, p, "filter", qn_jinja_filter_find, err));
        if (qn_jinja_is_op(p, '(')) QN_TRY(parse_args(&node->list, p, err));
    }
    *out = node;
    return QN_OK;
}

static bool begins_test_arg(const qn_jinja_parser *p) {
    if (p->token->kind == QN_TOKEN_CONST) return true;
    if (p->token->kind == QN_TOKEN_NAME)
        return !qn_jinja_is_name(p, "else") && !qn_jinja_is_name(p, "or") &&
               !qn_jinja_is_name(p, "and");
    return qn_jinja_is_op(p, '[') || qn_jinja_is_op(p, '{');
}

static qn_status parse_test(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token++;
    const bool is_not = qn_jinja_skip_name(p, "not");
    qn_jinja_tree *test;
    QN_TRY(binary(&test, p, QN_TREE_TEST, *node, NULL, p->token, err));
    QN_TRY(qn_jinja_want_name(&test->name, p, err));
    QN_TRY(find_row(test, p, "test", qn_jinja_test_find, err));
    if (qn_jinja_is_op(p, '(')) {
        QN_TRY(parse_args(&test->list, p, err));
    } else if (begins_test_arg(p)) {
        if (qn_jinja_is_name(p, "is")) return qn_jinja_unexpected(p, "one test only", err);
        QN_TRY(qn_jinja_parse_node(&test->list, p, QN_TREE_ARG, p->token, err));
        QN_TRY(parse_primary(&test->list->a, p, err));
        QN_TRY(parse_postfix(&test->list->a, p, err));
    }
    *node = test;
    return is_not ? binary(node, p, QN_TREE_NOT, test, NULL, at, err) : QN_OK;
}

static qn_status parse_filters_and_tests(qn_jinja_tree **node, qn_jinja_parser *p, qn_err *err) {
    for (;;) {
        if (qn_jinja_is_op(p, '|'))
            QN_TRY(qn_jinja_parse_filters(node, p, *node, false, err));
        else if (qn_jinja_is_name(p, "is"))
            QN_TRY(parse_test(node, p, err));
        else if (qn_jinja_is_op(p, '('))
            QN_TRY(parse_call(node, p, err));
        else
            return QN_OK;
    }
}

// --- operators, from the strongest to the weakest ------------------------------------------------

static qn_status parse_unary(qn_jinja_tree **out, qn_jinja_parser *p, bool with_filter,
                             qn_err *err) {
    const qn_jinja_token *at = p->token;
    const bool is_neg = qn_jinja_is_op(p, '-'), is_pos = qn_jinja_is_op(p, '+');
    QN_TRY(qn_jinja_parse_enter(p, err));
    if (is_neg || is_pos) {
        qn_jinja_tree *inner;
        p->token++;
        QN_TRY(parse_unary(&inner, p, false, err));
        QN_TRY(binary(out, p, is_neg ? QN_TREE_NEG : QN_TREE_POS, inner, NULL, at, err));
    } else {
        QN_TRY(parse_primary(out, p, err));
    }
    QN_TRY(parse_postfix(out, p, err));
    if (with_filter) QN_TRY(parse_filters_and_tests(out, p, err));
    p->depth--;
    return QN_OK;
}

typedef struct math_op {
    unsigned op;
    qn_jinja_math math;
} math_op;

static const math_op *find_math(const qn_jinja_parser *p, const math_op *ops, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (qn_jinja_is_op(p, ops[i].op)) return &ops[i];
    }
    return NULL;
}

static qn_status math_node(qn_jinja_tree **out, qn_jinja_parser *p, qn_jinja_math math,
                           qn_jinja_tree *right, const qn_jinja_token *at, qn_err *err) {
    QN_TRY(binary(out, p, QN_TREE_MATH, *out, right, at, err));
    (*out)->op = (unsigned char)math;
    return QN_OK;
}

static qn_status parse_pow(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(parse_unary(out, p, true, err));
    while (qn_jinja_is_op(p, QN_OP2('*', '*'))) {
        const qn_jinja_token *at = p->token++;
        qn_jinja_tree *right;
        QN_TRY(parse_unary(&right, p, true, err));
        QN_TRY(math_node(out, p, QN_MATH_POW, right, at, err));
    }
    return QN_OK;
}

static qn_status parse_product(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    static const math_op ops[] = {{'*', QN_MATH_MUL},
                                  {'/', QN_MATH_DIV},
                                  {QN_OP2('/', '/'), QN_MATH_FLOORDIV},
                                  {'%', QN_MATH_MOD}};
    QN_TRY(parse_pow(out, p, err));
    for (const math_op *op; (op = find_math(p, ops, 4));) {
        const qn_jinja_token *at = p->token++;
        qn_jinja_tree *right;
        QN_TRY(parse_pow(&right, p, err));
        QN_TRY(math_node(out, p, op->math, right, at, err));
    }
    return QN_OK;
}

static qn_status parse_concat(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(parse_product(out, p, err));
    if (!qn_jinja_is_op(p, '~')) return QN_OK;
    qn_jinja_tree *all;
    QN_TRY(qn_jinja_parse_node(&all, p, QN_TREE_CONCAT, p->token, err));
    qn_jinja_nodes list = {.last = &all->list};
    qn_jinja_nodes_add(&list, *out);
    while (qn_jinja_skip_op(p, '~')) {
        qn_jinja_tree *right;
        QN_TRY(parse_product(&right, p, err));
        qn_jinja_nodes_add(&list, right);
    }
    *out = all;
    return QN_OK;
}

static qn_status parse_sum(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    static const math_op ops[] = {{'+', QN_MATH_ADD}, {'-', QN_MATH_SUB}};
    QN_TRY(parse_concat(out, p, err));
    for (const math_op *op; (op = find_math(p, ops, 2));) {
        const qn_jinja_token *at = p->token++;
        qn_jinja_tree *right;
        QN_TRY(parse_concat(&right, p, err));
        QN_TRY(math_node(out, p, op->math, right, at, err));
    }
    return QN_OK;
}

static bool skip_compare(qn_jinja_compare *out, qn_jinja_parser *p) {
    static const unsigned ops[] = {[QN_COMPARE_EQ] = QN_OP2('=', '='),
                                   [QN_COMPARE_NE] = QN_OP2('!', '='),
                                   [QN_COMPARE_LT] = '<',
                                   [QN_COMPARE_LE] = QN_OP2('<', '='),
                                   [QN_COMPARE_GT] = '>',
                                   [QN_COMPARE_GE] = QN_OP2('>', '=')};
    for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
        *out = (qn_jinja_compare)i;
        if (qn_jinja_skip_op(p, ops[i])) return true;
    }
    *out = QN_COMPARE_IN;
    if (qn_jinja_skip_name(p, "in")) return true;
    *out = QN_COMPARE_NOT_IN;
    const qn_jinja_token *next = p->token + 1;
    if (!qn_jinja_is_name(p, "not") || next->kind != QN_TOKEN_NAME || !qn_str_is(next->text, "in"))
        return false;
    p->token += 2;
    return true;
}

static qn_status parse_compare(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token;
    QN_TRY(parse_sum(out, p, err));
    qn_jinja_nodes operands = {0};
    qn_jinja_compare op;
    for (const qn_jinja_token *op_at = p->token; skip_compare(&op, p); op_at = p->token) {
        if (!operands.last) {
            QN_TRY(binary(out, p, QN_TREE_COMPARE, *out, NULL, at, err));
            operands.last = &(*out)->list;
        }
        qn_jinja_tree *operand;
        QN_TRY(qn_jinja_parse_node(&operand, p, QN_TREE_OPERAND, op_at, err));
        operand->op = (unsigned char)op;
        QN_TRY(parse_sum(&operand->a, p, err));
        qn_jinja_nodes_add(&operands, operand);
    }
    return QN_OK;
}

static qn_status parse_not(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token;
    if (!qn_jinja_skip_name(p, "not")) return parse_compare(out, p, err);
    qn_jinja_tree *inner;
    QN_TRY(qn_jinja_parse_enter(p, err));
    QN_TRY(parse_not(&inner, p, err));
    p->depth--;
    return binary(out, p, QN_TREE_NOT, inner, NULL, at, err);
}

static qn_status parse_and(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(parse_not(out, p, err));
    for (const qn_jinja_token *at = p->token; qn_jinja_skip_name(p, "and"); at = p->token) {
        qn_jinja_tree *right;
        QN_TRY(parse_not(&right, p, err));
        QN_TRY(binary(out, p, QN_TREE_AND, *out, right, at, err));
    }
    return QN_OK;
}

// Without `a if b else c` at the top.
static qn_status parse_or(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(parse_and(out, p, err));
    for (const qn_jinja_token *at = p->token; qn_jinja_skip_name(p, "or"); at = p->token) {
        qn_jinja_tree *right;
        QN_TRY(parse_and(&right, p, err));
        QN_TRY(binary(out, p, QN_TREE_OR, *out, right, at, err));
    }
    return QN_OK;
}

qn_status qn_jinja_parse_expr(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(qn_jinja_parse_enter(p, err));
    QN_TRY(parse_or(out, p, err));
    for (const qn_jinja_token *at = p->token; qn_jinja_skip_name(p, "if"); at = p->token) {
        qn_jinja_tree *condition, *other = NULL;
        QN_TRY(parse_or(&condition, p, err));
        p->n_maybe++;
        if (qn_jinja_skip_name(p, "else")) QN_TRY(qn_jinja_parse_expr(&other, p, err));
        p->n_maybe--;
        QN_TRY(binary(out, p, QN_TREE_IF_ELSE, *out, condition, at, err));
        (*out)->c = other;
    }
    p->depth--;
    return QN_OK;
}

// --- tuples and targets --------------------------------------------------------------------------

static bool is_tuple_end(const qn_jinja_parser *p) {
    const unsigned kind = p->token->kind;
    return kind == QN_TOKEN_PRINT_END || kind == QN_TOKEN_BLOCK_END || kind == QN_TOKEN_END ||
           qn_jinja_is_op(p, ')') || qn_jinja_is_name(p, "in") || qn_jinja_is_name(p, "recursive");
}

qn_status qn_jinja_parse_tuple(qn_jinja_tree **out, qn_jinja_parser *p, qn_jinja_tuple_form form,
                               qn_err *err) {
    const qn_jinja_token *at = p->token;
    qn_jinja_tree *first = NULL;
    qn_jinja_nodes items = {.last = &first};
    bool is_tuple = false;
    while (!is_tuple_end(p)) {
        qn_jinja_tree *item;
        QN_TRY((form == QN_TUPLE_NO_IF ? parse_or : qn_jinja_parse_expr)(&item, p, err));
        qn_jinja_nodes_add(&items, item);
        if (!qn_jinja_skip_op(p, ',')) break;
        is_tuple = true;
    }
    if (!is_tuple && first) {
        *out = first;
        return QN_OK;
    }
    if (!is_tuple && form != QN_TUPLE_BRACKETS) return qn_jinja_unexpected(p, "an expression", err);
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_TUPLE, at, err));
    (*out)->list = first;
    return QN_OK;
}

static qn_status parse_targets(qn_jinja_tree **out, qn_jinja_parser *p, bool with_parts,
                               qn_err *err);

static qn_status parse_one_target(qn_jinja_tree **out, qn_jinja_parser *p, bool with_parts,
                                  qn_err *err) {
    const qn_jinja_token *at = p->token;
    if (qn_jinja_skip_op(p, '(')) {
        QN_TRY(qn_jinja_parse_enter(p, err));
        QN_TRY(parse_targets(out, p, with_parts, err));
        p->depth--;
        return qn_jinja_want_op(p, ')', err);
    }
    qn_str name;
    QN_TRY(qn_jinja_want_name(&name, p, err));
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (qn_str_is(name, constants[i]))
            return QN_TEMPLATE_FAIL(err, FORMAT, at, "'%s' cannot be set", constants[i]);
    }
    const bool is_part = with_parts && qn_jinja_skip_op(p, '.');
    QN_TRY(qn_jinja_parse_node(out, p, is_part ? QN_TREE_NS_REF : QN_TREE_NAME, at, err));
    (*out)->name = name;
    if (!is_part) return QN_OK;
    (*out)->value = qn_jinja_val_text(name);
    return qn_jinja_want_name(&(*out)->name, p, err);
}

static qn_status parse_targets(qn_jinja_tree **out, qn_jinja_parser *p, bool with_parts,
                               qn_err *err) {
    const qn_jinja_token *at = p->token;
    QN_TRY(parse_one_target(out, p, with_parts, err));
    if (!qn_jinja_is_op(p, ',')) return QN_OK;
    qn_jinja_tree *tuple;
    QN_TRY(qn_jinja_parse_node(&tuple, p, QN_TREE_TUPLE, at, err));
    qn_jinja_nodes items = {.last = &tuple->list};
    qn_jinja_nodes_add(&items, *out);
    while (qn_jinja_skip_op(p, ',')) {
        if (is_tuple_end(p) || qn_jinja_is_op(p, '=')) break;
        QN_TRY(parse_one_target(out, p, with_parts, err));
        qn_jinja_nodes_add(&items, *out);
    }
    *out = tuple;
    return QN_OK;
}

qn_status qn_jinja_parse_target(qn_jinja_tree **out, qn_jinja_parser *p, bool with_parts,
                                qn_err *err) {
    return parse_targets(out, p, with_parts, err);
}
