// Statements -> text.
#include "chat/chat_text.h"
#include "chat/tree.h"

typedef qn_status exec_fn(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err);

static qn_status exec_DATA(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    return qn_jinja_val_print(r->out, r, &node->value, err);
}

static qn_status exec_PRINT(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val v;
    QN_TRY(qn_jinja_eval(&v, r, node->a, err));
    return qn_jinja_val_print(r->out, r, &v, err);
}

static qn_status exec_IF(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    for (const qn_jinja_tree *branch = node->list; branch; branch = branch->next) {
        qn_jinja_val condition = qn_jinja_val_bool(true);
        if (branch->a) QN_TRY(qn_jinja_eval(&condition, r, branch->a, err));
        if (qn_jinja_val_is_true(&condition)) return qn_jinja_exec(r, branch->body, err);
    }
    return QN_OK;
}

// --- setting -------------------------------------------------------------------------------------

static qn_status assign(qn_jinja_run *r, const qn_jinja_tree *target, const qn_jinja_val *value,
                        qn_err *err);

static qn_status assign_part(qn_jinja_run *r, const qn_jinja_tree *target,
                             const qn_jinja_val *value, qn_err *err) {
    const qn_jinja_tree name = {.kind = QN_TREE_NAME,
                                .line = target->line,
                                .column = target->column,
                                .name = target->value.as.s};
    const qn_jinja_val key = qn_jinja_val_text(target->name);
    qn_jinja_val ns;
    QN_TRY(qn_jinja_eval(&ns, r, &name, err));
    if (ns.kind != QN_VAL_NAMESPACE)
        return QN_FAIL(err, FORMAT, "'%.*s' is not a namespace but a '%s'",
                       (int)(name.name.size < 80 ? name.name.size : 80), name.name.data,
                       qn_jinja_val_type(&ns));
    return qn_jinja_dict_set(r, ns.as.dict, &key, value, err);
}

static qn_status assign_tuple(qn_jinja_run *r, const qn_jinja_tree *target,
                              const qn_jinja_val *value, qn_err *err) {
    const qn_jinja_val *items;
    size_t n, n_names = 0;
    QN_TRY(qn_jinja_val_defined(value, err));
    QN_TRY(qn_jinja_val_items(&items, &n, r, value, err));
    for (const qn_jinja_tree *name = target->list; name; name = name->next) n_names++;
    if (n != n_names) return QN_FAIL(err, FORMAT, "%zu values for %zu names", n, n_names);
    for (const qn_jinja_tree *name = target->list; name; name = name->next)
        QN_TRY(assign(r, name, items++, err));
    return QN_OK;
}

static qn_status assign(qn_jinja_run *r, const qn_jinja_tree *target, const qn_jinja_val *value,
                        qn_err *err) {
    if (target->kind == QN_TREE_NAME) return qn_jinja_scope_set(r, target->name, value, err);
    if (target->kind == QN_TREE_NS_REF) return assign_part(r, target, value, err);
    return assign_tuple(r, target, value, err);
}

static qn_status exec_SET(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val value;
    QN_TRY(qn_jinja_eval(&value, r, node->b, err));
    return assign(r, node->a, &value, err);
}

// What a body prints, as a value. It has names of its own.
static qn_status capture(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *body,
                         qn_err *err) {
    qn_buf text = qn_jinja_buf(r);
    qn_buf *before = r->out;
    qn_jinja_scope *scope = r->scope;
    QN_TRY(qn_jinja_scope_push(r, scope, err));
    r->out = &text;
    const qn_status status = qn_jinja_exec(r, body, err);
    r->out = before;
    r->scope = scope;
    if (status) {
        qn_buf_deinit(&text);
        return status;
    }
    return qn_jinja_text(out, r, &text, err);
}

static qn_status exec_SET_TEXT(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val value;
    QN_TRY(capture(&value, r, node->body, err));
    QN_TRY(qn_jinja_eval_filters(&value, r, node->b, err));
    return assign(r, node->a, &value, err);
}

static qn_status exec_FILTERED(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val value;
    QN_TRY(capture(&value, r, node->body, err));
    QN_TRY(qn_jinja_eval_filters(&value, r, node->b, err));
    return qn_jinja_val_print(r->out, r, &value, err);
}

static qn_status exec_SCOPED(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_scope *scope = r->scope;
    QN_TRY(qn_jinja_scope_push(r, scope, err));
    QN_TRY(qn_jinja_exec(r, node->body, err));
    r->scope = scope;
    return QN_OK;
}

// The values are those around the block, not those that it sets.
static qn_status exec_WITH(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_scope *outer = r->scope;
    QN_TRY(qn_jinja_scope_push(r, outer, err));
    qn_jinja_scope *inner = r->scope;
    for (const qn_jinja_tree *pair = node->list; pair; pair = pair->next) {
        qn_jinja_val value;
        r->scope = outer;
        QN_TRY(qn_jinja_eval(&value, r, pair->b, err));
        r->scope = inner;
        QN_TRY(assign(r, pair->a, &value, err));
    }
    r->scope = inner;
    QN_TRY(qn_jinja_exec(r, node->body, err));
    r->scope = outer;
    return QN_OK;
}

// --- macros --------------------------------------------------------------------------------------

static qn_status make_macro(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                            qn_err *err) {
    qn_jinja_macro *macro;
    QN_TRY(qn_jinja_alloc(&macro, r, 1, sizeof *macro, err));
    *macro = (qn_jinja_macro){.node = node, .scope = r->scope};
    r->n_kept++;
    *out = (qn_jinja_val){.kind = QN_VAL_MACRO, .as.macro = macro};
    return QN_OK;
}

static qn_status exec_MACRO(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val macro;
    QN_TRY(make_macro(&macro, r, node, err));
    return qn_jinja_scope_set(r, node->name, &macro, err);
}

static qn_status exec_CALL_WITH(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val caller, value;
    QN_TRY(make_macro(&caller, r, node, err));
    QN_TRY(qn_jinja_eval_call_with(&value, r, node->a, &caller, err));
    return qn_jinja_val_print(r->out, r, &value, err);
}

// --- loops ---------------------------------------------------------------------------------------

// `loop`, and the walk itself. A condition is asked when its item is reached, or looked ahead at.
struct qn_jinja_loop {
    const qn_jinja_tree *node;
    qn_jinja_scope *outer;
    const qn_jinja_val *items;
    size_t n, i_next; // of items; those before i_next were looked at
    int64_t index;    // of the current round, from 0
    qn_jinja_val before, current, after;
    bool has_after; // `after` was looked at already
    bool is_asked;  // the condition holds for all items that are left
    int depth;
    qn_jinja_val changed; // what loop.changed was last asked about
};

static qn_status holds(bool *out, qn_jinja_run *r, const qn_jinja_loop *loop,
                       const qn_jinja_val *item, qn_err *err) {
    *out = true;
    if (!loop->node->c || loop->is_asked) return QN_OK;
    qn_jinja_val condition;
    qn_jinja_scope *scope = r->scope;
    const size_t n_kept = r->n_kept;
    QN_TRY(qn_jinja_scope_push(r, loop->outer, err));
    QN_TRY(assign(r, loop->node->a, item, err));
    QN_TRY(qn_jinja_eval(&condition, r, loop->node->c, err));
    qn_jinja_scope_pop(r, scope, n_kept);
    *out = qn_jinja_val_is_true(&condition);
    return QN_OK;
}

// Looks at the next item that is to be walked over; QN_VAL_ABSENT: there is none.
static qn_status look_ahead(qn_jinja_run *r, qn_jinja_loop *loop, qn_err *err) {
    if (loop->has_after) return QN_OK;
    loop->after = (qn_jinja_val){0};
    loop->has_after = true;
    while (loop->i_next < loop->n) {
        const qn_jinja_val *item = &loop->items[loop->i_next++];
        bool is_in;
        QN_TRY(holds(&is_in, r, loop, item, err));
        if (!is_in) continue;
        loop->after = *item;
        return QN_OK;
    }
    return QN_OK;
}

// All items that are left are asked at once.
static qn_status loop_length(int64_t *out, qn_jinja_run *r, qn_jinja_loop *loop, qn_err *err) {
    QN_TRY(look_ahead(r, loop, err));
    if (loop->node->c && !loop->is_asked) {
        qn_jinja_val left;
        size_t n = 0;
        QN_TRY(qn_jinja_val_list_make(&left, r, QN_VAL_LIST, loop->n - loop->i_next, err));
        for (size_t i = loop->i_next; i < loop->n; i++) {
            bool is_in;
            QN_TRY(holds(&is_in, r, loop, &loop->items[i], err));
            if (is_in) left.as.list->items[n++] = loop->items[i];
        }
        loop->is_asked = true;
        loop->items = left.as.list->items;
        loop->n = n;
        loop->i_next = 0;
    }
    *out =
        loop->index + 1 + (loop->after.kind != QN_VAL_ABSENT) + (int64_t)(loop->n - loop->i_next);
    return QN_OK;
}

static qn_status loop_number(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_loop *loop, qn_str name,
                             qn_err *err) {
    int64_t length;
    QN_TRY(loop_length(&length, r, loop, err));
    if (qn_str_is(name, "length")) *out = qn_jinja_val_int(length);
    if (qn_str_is(name, "revindex")) *out = qn_jinja_val_int(length - loop->index);
    if (qn_str_is(name, "revindex0")) *out = qn_jinja_val_int(length - loop->index - 1);
    return QN_OK;
}

static qn_status loop_cycle(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                            qn_err *err) {
    (void)r;
    const size_t n = in->args->n;
    if (n == 0) return QN_FAIL(err, FORMAT, "loop.cycle needs values");
    *out = in->args->items[(size_t)in->self->as.loop->index % n];
    return QN_OK;
}

static qn_status loop_changed(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                              qn_err *err) {
    qn_jinja_loop *loop = in->self->as.loop;
    qn_jinja_val now;
    bool is_equal = false;
    QN_TRY(qn_jinja_val_list_make(&now, r, QN_VAL_TUPLE, in->args->n, err));
    for (size_t i = 0; i < in->args->n; i++) now.as.list->items[i] = in->args->items[i];
    if (loop->changed.kind != QN_VAL_ABSENT)
        QN_TRY(qn_jinja_val_equal(&is_equal, r, &loop->changed, &now, err));
    loop->changed = now;
    *out = qn_jinja_val_bool(!is_equal);
    return QN_OK;
}

static const qn_jinja_builtin loop_methods[] = {{"cycle", loop_cycle, "*", 0, 0},
                                                {"changed", loop_changed, "*", 0, 0}};

qn_status qn_jinja_loop_attr(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_loop *loop, qn_str name,
                             qn_err *err) {
    const qn_jinja_builtin *row = qn_jinja_rows_find(loop_methods, 2, name);
    if (row) {
        qn_jinja_bound *bound;
        QN_TRY(qn_jinja_alloc(&bound, r, 1, sizeof *bound, err));
        *bound = (qn_jinja_bound){.row = row, .self = {.kind = QN_VAL_LOOP, .as.loop = loop}};
        *out = (qn_jinja_val){.kind = QN_VAL_BUILTIN, .as.bound = bound};
        return QN_OK;
    }
    const struct {
        const char *name;
        qn_jinja_val value;
    } plain[] = {
        {"index", qn_jinja_val_int(loop->index + 1)},   {"index0", qn_jinja_val_int(loop->index)},
        {"first", qn_jinja_val_bool(loop->index == 0)}, {"depth", qn_jinja_val_int(loop->depth)},
        {"depth0", qn_jinja_val_int(loop->depth - 1)},  {"previtem", loop->before}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (!qn_str_is(name, plain[i].name)) continue;
        if (plain[i].value.kind != QN_VAL_ABSENT) *out = plain[i].value;
        return QN_OK;
    }
    if (qn_str_is(name, "last") || qn_str_is(name, "nextitem")) {
        QN_TRY(look_ahead(r, loop, err));
        const bool is_last = loop->after.kind == QN_VAL_ABSENT;
        if (qn_str_is(name, "last"))
            *out = qn_jinja_val_bool(is_last);
        else if (!is_last)
            *out = loop->after;
        return QN_OK;
    }
    return loop_number(out, r, loop, name, err);
}

static qn_status run_round(qn_jinja_run *r, qn_jinja_loop *loop, qn_err *err) {
    const qn_jinja_val self = {.kind = QN_VAL_LOOP, .as.loop = loop};
    const size_t n_kept = r->n_kept;
    QN_TRY(qn_jinja_scope_push(r, loop->outer, err));
    QN_TRY(qn_jinja_scope_set(r, qn_str_of("loop"), &self, err));
    QN_TRY(assign(r, loop->node->a, &loop->current, err));
    QN_TRY(qn_jinja_exec(r, loop->node->body, err));
    qn_jinja_scope_pop(r, loop->outer, n_kept);
    return QN_OK;
}

static qn_status run_loop(bool *ran, qn_jinja_run *r, qn_jinja_loop *loop, qn_err *err) {
    *ran = false;
    for (loop->index = 0;; loop->index++) {
        QN_TRY(qn_jinja_charge(r, 0, err));
        QN_TRY(look_ahead(r, loop, err));
        if (loop->after.kind == QN_VAL_ABSENT) return QN_OK;
        loop->before = loop->current;
        loop->current = loop->after;
        loop->has_after = false;
        *ran = true;
        QN_TRY(run_round(r, loop, err));
        const qn_jinja_flow flow = r->flow;
        r->flow = QN_FLOW_ON;
        if (flow == QN_FLOW_BREAK) return QN_OK;
    }
}

static qn_status exec_FOR(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    qn_jinja_val over;
    qn_jinja_loop *loop;
    qn_jinja_scope *outer = r->scope;
    bool ran;
    QN_TRY(qn_jinja_eval(&over, r, node->b, err));
    QN_TRY(qn_jinja_alloc(&loop, r, 1, sizeof *loop, err));
    *loop = (qn_jinja_loop){.node = node, .outer = outer, .depth = 1};
    if (node->c) r->n_kept++; // the condition can be asked later, wherever `loop` was put
    QN_TRY(qn_jinja_val_items(&loop->items, &loop->n, r, &over, err));
    QN_TRY(run_loop(&ran, r, loop, err));
    r->scope = outer;
    if (ran || !node->other) return QN_OK;
    QN_TRY(qn_jinja_scope_push(r, outer, err));
    QN_TRY(qn_jinja_exec(r, node->other, err));
    r->scope = outer;
    return QN_OK;
}

static qn_status exec_BREAK(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    (void)node, (void)err;
    r->flow = QN_FLOW_BREAK;
    return QN_OK;
}

static qn_status exec_CONTINUE(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    (void)node, (void)err;
    r->flow = QN_FLOW_CONTINUE;
    return QN_OK;
}

// --- all -----------------------------------------------------------------------------------------

static qn_status exec_one(qn_jinja_run *r, const qn_jinja_tree *node, qn_err *err) {
    static exec_fn *const functions[QN_TREE_COUNT] = {
#define QN_EXEC_ROW(name) [QN_TREE_##name] = exec_##name,
        QN_TREE_STATEMENTS(QN_EXEC_ROW)
#undef QN_EXEC_ROW
    };
    qn_status status = qn_jinja_charge(r, 0, err);
    if (!status) status = qn_jinja_enter(r, err);
    if (!status) status = functions[node->kind](r, node, err);
    qn_jinja_leave(r);
    if (!status || r->is_placed) return status;
    r->is_placed = true;
    return qn_err_prefix(err, status, "line %u, column %u", (unsigned)node->line,
                         (unsigned)node->column);
}

qn_status qn_jinja_exec(qn_jinja_run *r, const qn_jinja_tree *first, qn_err *err) {
    for (const qn_jinja_tree *node = first; node && r->flow == QN_FLOW_ON; node = node->next)
        QN_TRY(exec_one(r, node, err));
    return QN_OK;
}
