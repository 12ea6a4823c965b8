// Expressions -> values.
#include "chat/chat_text.h"
#include "chat/tree.h"

typedef qn_status eval_fn(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          qn_err *err);

static qn_status eval_CONST(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                            qn_err *err) {
    (void)r, (void)err;
    *out = node->value;
    return QN_OK;
}

static qn_status eval_NAME(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    const qn_jinja_val *value;
    QN_TRY(qn_jinja_scope_find(&value, r, node->name, err));
    const qn_jinja_builtin *row = value ? NULL : qn_jinja_function_find(node->name);
    *out = value ? *value : qn_jinja_val_undefined(node->name);
    if (!row) return QN_OK;
    qn_jinja_bound *bound;
    QN_TRY(qn_jinja_alloc(&bound, r, 1, sizeof *bound, err));
    bound->row = row;
    *out = (qn_jinja_val){.kind = QN_VAL_BUILTIN, .as.bound = bound};
    return QN_OK;
}

static size_t count(const qn_jinja_tree *list) {
    size_t n = 0;
    for (; list; list = list->next) n++;
    return n;
}

static qn_status eval_sequence(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                               qn_jinja_val_kind kind, qn_err *err) {
    QN_TRY(qn_jinja_val_list_make(out, r, kind, count(node->list), err));
    qn_jinja_val *to = out->as.list->items;
    for (const qn_jinja_tree *item = node->list; item; item = item->next)
        QN_TRY(qn_jinja_eval(to++, r, item, err));
    return QN_OK;
}

static qn_status eval_LIST(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    return eval_sequence(out, r, node, QN_VAL_LIST, err);
}

static qn_status eval_TUPLE(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                            qn_err *err) {
    return eval_sequence(out, r, node, QN_VAL_TUPLE, err);
}

static qn_status eval_DICT(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_dict *dict;
    QN_TRY(qn_jinja_dict_make(&dict, r, count(node->list), err));
    for (const qn_jinja_tree *pair = node->list; pair; pair = pair->next) {
        qn_jinja_val key, value;
        QN_TRY(qn_jinja_eval(&key, r, pair->a, err));
        QN_TRY(qn_jinja_eval(&value, r, pair->b, err));
        QN_TRY(qn_jinja_dict_set(r, dict, &key, &value, err));
    }
    *out = (qn_jinja_val){.kind = QN_VAL_DICT, .as.dict = dict};
    return QN_OK;
}

static qn_status eval_ATTR(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_val of;
    QN_TRY(qn_jinja_eval(&of, r, node->a, err));
    return qn_jinja_val_attr(out, r, &of, node->name, err);
}

static qn_status eval_ITEM(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_val of, key;
    QN_TRY(qn_jinja_eval(&of, r, node->a, err));
    QN_TRY(qn_jinja_eval(&key, r, node->b, err));
    return qn_jinja_val_item(out, r, &of, &key, err);
}

static qn_status eval_SLICE(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                            qn_err *err) {
    qn_jinja_val of, bounds[3];
    QN_TRY(qn_jinja_eval(&of, r, node->a, err));
    const qn_jinja_tree *bound = node->list;
    for (int i = 0; i < 3; i++, bound = bound->next)
        QN_TRY(qn_jinja_eval(&bounds[i], r, bound, err));
    return qn_jinja_val_slice(out, r, &of, bounds, err);
}

// --- calls ---------------------------------------------------------------------------------------

typedef struct arg_lists {
    qn_jinja_val *items, *named;
    qn_str *names;
    size_t n, cap, n_named, cap_named;
} arg_lists;

static qn_status add_arg(arg_lists *to, qn_jinja_run *r, const qn_jinja_val *value, qn_err *err) {
    if (to->n == to->cap) {
        qn_jinja_val *items;
        const size_t cap = to->cap * 2 + 1;
        QN_TRY(qn_jinja_alloc(&items, r, cap, sizeof *items, err));
        if (to->n) memcpy(items, to->items, to->n * sizeof *items);
        to->items = items;
        to->cap = cap;
    }
    to->items[to->n++] = *value;
    return QN_OK;
}

static qn_status add_named(arg_lists *to, qn_jinja_run *r, qn_str name, const qn_jinja_val *value,
                           qn_err *err) {
    const size_t cost = 1 + name.size / 64; // of a comparison
    QN_TRY(qn_jinja_spend(r, to->n_named * cost, QN_PER_ITEM, err));
    for (size_t i = 0; i < to->n_named; i++) {
        if (qn_jinja_str_same(to->names[i], name))
            return QN_FAIL(err, FORMAT, "the argument '%.*s' is given twice",
                           (int)(name.size < 80 ? name.size : 80), name.data);
    }
    if (to->n_named == to->cap_named) {
        qn_jinja_val *named;
        qn_str *names;
        const size_t cap = to->cap_named * 2 + 1, n = to->n_named;
        QN_TRY(qn_jinja_alloc(&named, r, cap, sizeof *named, err));
        QN_TRY(qn_jinja_alloc(&names, r, cap, sizeof *names, err));
        if (n) memcpy(named, to->named, n * sizeof *named);
        if (n) memcpy(names, to->names, n * sizeof *names);
        to->named = named;
        to->names = names;
        to->cap_named = cap;
    }
    to->names[to->n_named] = name;
    to->named[to->n_named++] = *value;
    return QN_OK;
}

static qn_status spread_named(arg_lists *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    QN_TRY(qn_jinja_val_defined(v, err));
    if (v->kind != QN_VAL_DICT)
        return QN_FAIL(err, FORMAT, "** wants a dict, not a '%s'", qn_jinja_val_type(v));
    for (size_t i = 0; i < v->as.dict->n; i++) {
        const qn_jinja_val *key = &v->as.dict->keys[i];
        if (key->kind != QN_VAL_TEXT) return QN_FAIL(err, FORMAT, "** wants names as keys");
        QN_TRY(add_named(to, r, key->as.s, &v->as.dict->values[i], err));
    }
    return QN_OK;
}

static qn_status spread(arg_lists *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, v, err));
    QN_TRY(qn_jinja_charge(r, n * sizeof *items, err));
    for (size_t i = 0; i < n; i++) QN_TRY(add_arg(to, r, &items[i], err));
    return QN_OK;
}

static qn_status eval_args(arg_lists *to, qn_jinja_run *r, const qn_jinja_tree *list, qn_err *err) {
    for (const qn_jinja_tree *arg = list; arg; arg = arg->next) {
        qn_jinja_val value;
        QN_TRY(qn_jinja_eval(&value, r, arg->a, err));
        if (arg->kind == QN_TREE_ARG)
            QN_TRY(add_arg(to, r, &value, err));
        else if (arg->kind == QN_TREE_NAMED)
            QN_TRY(add_named(to, r, arg->name, &value, err));
        else if (arg->kind == QN_TREE_SPREAD)
            QN_TRY(spread(to, r, &value, err));
        else
            QN_TRY(spread_named(to, r, &value, err));
    }
    return QN_OK;
}

static qn_jinja_args args_of(const arg_lists *lists) {
    return (qn_jinja_args){.items = lists->items,
                           .n = lists->n,
                           .names = lists->names,
                           .named = lists->named,
                           .n_named = lists->n_named};
}

// What is called. A method or function that is called at once needs no memory for itself: it is
// kept in *bound.
static qn_status eval_callee(qn_jinja_val *out, qn_jinja_bound *bound, qn_jinja_run *r,
                             const qn_jinja_tree *node, qn_err *err) {
    bool is_unsafe = false;
    *bound = (qn_jinja_bound){0};
    *out = (qn_jinja_val){.kind = QN_VAL_BUILTIN, .as.bound = bound};
    if (node->kind == QN_TREE_ATTR) {
        QN_TRY(qn_jinja_eval(&bound->self, r, node->a, err));
        bound->row = qn_jinja_method_find(&bound->self, node->name, &is_unsafe);
        if (bound->row && !is_unsafe) return QN_OK;
        const qn_jinja_val self = bound->self;
        return qn_jinja_val_attr(out, r, &self, node->name, err);
    }
    if (node->kind == QN_TREE_NAME) {
        const qn_jinja_val *value;
        QN_TRY(qn_jinja_scope_find(&value, r, node->name, err));
        if (!value) bound->row = qn_jinja_function_find(node->name);
    }
    return bound->row ? QN_OK : qn_jinja_eval(out, r, node, err);
}

static qn_status eval_CALL(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_val callee;
    qn_jinja_bound bound;
    arg_lists lists = {0};
    QN_TRY(eval_callee(&callee, &bound, r, node->a, err));
    QN_TRY(eval_args(&lists, r, node->list, err));
    const qn_jinja_args args = args_of(&lists);
    return qn_jinja_val_call(out, r, &callee, &args, err);
}

// {% call %} hands its body over as one more argument.
qn_status qn_jinja_eval_call_with(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *call,
                                  const qn_jinja_val *caller, qn_err *err) {
    qn_jinja_val callee;
    arg_lists lists = {0};
    QN_TRY(qn_jinja_eval(&callee, r, call->a, err));
    QN_TRY(eval_args(&lists, r, call->list, err));
    QN_TRY(add_named(&lists, r, qn_str_of("caller"), caller, err));
    const qn_jinja_args args = args_of(&lists);
    return qn_jinja_val_call(out, r, &callee, &args, err);
}

static qn_status eval_row(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          const qn_jinja_val *self, const char *what, qn_err *err) {
    arg_lists lists = {0};
    if (!node->row)
        return QN_FAIL(err, FORMAT, "no %s is named '%.*s'", what,
                       (int)(node->name.size < 80 ? node->name.size : 80), node->name.data);
    QN_TRY(eval_args(&lists, r, node->list, err));
    const qn_jinja_args args = args_of(&lists);
    return qn_jinja_builtin_call(out, r, node->row, self, &args, err);
}

static qn_status eval_FILTER(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                             qn_err *err) {
    qn_jinja_val self;
    QN_TRY(qn_jinja_eval(&self, r, node->a, err));
    return eval_row(out, r, node, &self, "filter", err);
}

// The filters of a block, applied to its text.
qn_status qn_jinja_eval_filters(qn_jinja_val *value, qn_jinja_run *r, const qn_jinja_tree *node,
                                qn_err *err) {
    if (!node) return QN_OK;
    QN_TRY(qn_jinja_enter(r, err));
    QN_TRY(qn_jinja_eval_filters(value, r, node->a, err));
    qn_jinja_leave(r);
    const qn_jinja_val self = *value;
    return eval_row(value, r, node, &self, "filter", err);
}

static qn_status eval_TEST(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_val self;
    QN_TRY(qn_jinja_eval(&self, r, node->a, err));
    return eval_row(out, r, node, &self, "test", err);
}

// --- operators -----------------------------------------------------------------------------------

static qn_status eval_NOT(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          qn_err *err) {
    qn_jinja_val v;
    QN_TRY(qn_jinja_eval(&v, r, node->a, err));
    *out = qn_jinja_val_bool(!qn_jinja_val_is_true(&v));
    return QN_OK;
}

static qn_status eval_sign(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           int64_t sign, qn_err *err) {
    qn_jinja_val v;
    const qn_jinja_val factor = qn_jinja_val_int(sign);
    QN_TRY(qn_jinja_eval(&v, r, node->a, err));
    QN_TRY(qn_jinja_val_defined(&v, err));
    if (!qn_jinja_val_is_number(&v))
        return QN_FAIL(err, FORMAT, "a '%s' has no sign", qn_jinja_val_type(&v));
    return qn_jinja_val_math(out, r, QN_MATH_MUL, &v, &factor, err);
}

static qn_status eval_NEG(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          qn_err *err) {
    return eval_sign(out, r, node, -1, err);
}

static qn_status eval_POS(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          qn_err *err) {
    return eval_sign(out, r, node, 1, err);
}

static qn_status eval_AND(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                          qn_err *err) {
    QN_TRY(qn_jinja_eval(out, r, node->a, err));
    return qn_jinja_val_is_true(out) ? qn_jinja_eval(out, r, node->b, err) : QN_OK;
}

static qn_status eval_OR(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                         qn_err *err) {
    QN_TRY(qn_jinja_eval(out, r, node->a, err));
    return qn_jinja_val_is_true(out) ? QN_OK : qn_jinja_eval(out, r, node->b, err);
}

static qn_status eval_IF_ELSE(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                              qn_err *err) {
    qn_jinja_val condition;
    QN_TRY(qn_jinja_eval(&condition, r, node->b, err));
    if (qn_jinja_val_is_true(&condition)) return qn_jinja_eval(out, r, node->a, err);
    if (node->c) return qn_jinja_eval(out, r, node->c, err);
    *out = qn_jinja_val_undefined(qn_str_of("the value of an 'if' without 'else'"));
    return QN_OK;
}

static qn_status compare(bool *out, qn_jinja_run *r, qn_jinja_compare op, const qn_jinja_val *a,
                         const qn_jinja_val *b, qn_err *err) {
    if (op == QN_COMPARE_EQ || op == QN_COMPARE_NE) {
        QN_TRY(qn_jinja_val_equal(out, r, a, b, err));
        *out = *out == (op == QN_COMPARE_EQ);
        return QN_OK;
    }
    if (op == QN_COMPARE_IN || op == QN_COMPARE_NOT_IN) {
        QN_TRY(qn_jinja_val_contains(out, r, a, b, err));
        *out = *out == (op == QN_COMPARE_IN);
        return QN_OK;
    }
    int order;
    QN_TRY(qn_jinja_val_order(&order, r, a, b, err));
    const bool is_less = order<0, is_more = order> 0;
    const bool results[] = {[QN_COMPARE_LT] = is_less,
                            [QN_COMPARE_LE] = !is_more,
                            [QN_COMPARE_GT] = is_more,
                            [QN_COMPARE_GE] = !is_less};
    *out = order != 2 && results[op]; // 2: not a number
    return QN_OK;
}

// a < b < c is a < b and b < c.
static qn_status eval_COMPARE(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                              qn_err *err) {
    qn_jinja_val left, right;
    bool holds = true;
    QN_TRY(qn_jinja_eval(&left, r, node->a, err));
    for (const qn_jinja_tree *operand = node->list; operand && holds; operand = operand->next) {
        QN_TRY(qn_jinja_eval(&right, r, operand->a, err));
        QN_TRY(compare(&holds, r, (qn_jinja_compare)operand->op, &left, &right, err));
        left = right;
    }
    *out = qn_jinja_val_bool(holds);
    return QN_OK;
}

static qn_status eval_MATH(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                           qn_err *err) {
    qn_jinja_val a, b;
    QN_TRY(qn_jinja_eval(&a, r, node->a, err));
    QN_TRY(qn_jinja_eval(&b, r, node->b, err));
    return qn_jinja_val_math(out, r, (qn_jinja_math)node->op, &a, &b, err);
}

static qn_status eval_CONCAT(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                             qn_err *err) {
    qn_str joined = {0};
    for (const qn_jinja_tree *item = node->list; item; item = item->next) {
        qn_jinja_val v;
        qn_str text;
        QN_TRY(qn_jinja_eval(&v, r, item, err));
        QN_TRY(qn_jinja_val_str(&text, r, &v, err));
        *out = qn_jinja_val_text(text);
        if (item != node->list) QN_TRY(qn_jinja_text_join(out, r, joined, text, err));
        joined = out->as.s;
    }
    return QN_OK;
}

// --- all -----------------------------------------------------------------------------------------

qn_status qn_jinja_eval(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                        qn_err *err) {
    static eval_fn *const functions[] = {
#define QN_EVAL_ROW(name) [QN_TREE_##name] = eval_##name,
        QN_TREE_EXPRESSIONS(QN_EVAL_ROW)
#undef QN_EVAL_ROW
    };
    qn_status status = qn_jinja_charge(r, 0, err);
    if (!status) status = qn_jinja_enter(r, err);
    if (!status) status = functions[node->kind](out, r, node, err);
    qn_jinja_leave(r);
    if (!status || r->is_placed) return status;
    r->is_placed = true;
    return qn_err_prefix(err, status, "line %u, column %u", (unsigned)node->line,
                         (unsigned)node->column);
}
