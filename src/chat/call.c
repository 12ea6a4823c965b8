// Calls: builtins get their arguments in the order of their parameters, macros in a scope.
#include "chat/chat_text.h"
#include "chat/tree.h"

const qn_jinja_builtin *qn_jinja_rows_find(const qn_jinja_builtin *rows, size_t n, qn_str name) {
    const char first = name.size ? name.data[0] : 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].name[0] == first && qn_str_is(name, rows[i].name)) return &rows[i];
    }
    return NULL;
}

// Splits "a b c"; returns how many there are.
static size_t split_params(qn_str names[QN_MAX_PARAMS], const char *params) {
    size_t n = 0;
    while (*params && n < QN_MAX_PARAMS) {
        const size_t size = strcspn(params, " ");
        names[n++] = (qn_str){params, size};
        params += size;
        params += *params == ' ';
    }
    return n;
}

static qn_status place_args(qn_jinja_val a[QN_MAX_PARAMS], const qn_jinja_builtin *row,
                            const qn_jinja_args *args, qn_err *err) {
    qn_str names[QN_MAX_PARAMS];
    const size_t n = split_params(names, row->params);
    if (args->n > n)
        return QN_FAIL(err, FORMAT, "%s takes %zu arguments, not %zu", row->name, n, args->n);
    for (size_t i = 0; i < args->n; i++) a[i] = args->items[i];
    for (size_t i = 0; i < args->n_named; i++) {
        size_t at = 0;
        while (at < n && !qn_jinja_str_same(names[at], args->names[i])) at++;
        const int size = (int)(args->names[i].size < 80 ? args->names[i].size : 80);
        if (at == n)
            return QN_FAIL(err, FORMAT, "%s has no parameter '%.*s'", row->name, size,
                           args->names[i].data);
        if (a[at].kind != QN_VAL_ABSENT)
            return QN_FAIL(err, FORMAT, "%s gets '%.*s' twice", row->name, size,
                           args->names[i].data);
        a[at] = args->named[i];
    }
    for (size_t i = 0; i < row->min; i++) {
        if (a[i].kind == QN_VAL_ABSENT)
            return QN_FAIL(err, FORMAT, "%s needs '%.*s'", row->name, (int)names[i].size,
                           names[i].data);
    }
    return QN_OK;
}

qn_status qn_jinja_builtin_call(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_builtin *row,
                                const qn_jinja_val *self, const qn_jinja_args *args, qn_err *err) {
    qn_jinja_val a[QN_MAX_PARAMS] = {{0}};
    if (!row->fn) return QN_FAIL(err, UNSUPPORTED, "'%s' is not supported", row->name);
    if (row->params[0] != '*')
        QN_TRY(place_args(a, row, args, err));
    else if (args->n < row->min)
        return QN_FAIL(err, FORMAT, "%s takes at least %d arguments, not %zu", row->name,
                       (int)row->min, args->n);
    const qn_jinja_in in = {.row = row, .self = self, .a = a, .args = args};
    QN_TRY(qn_jinja_charge(r, self->kind == QN_VAL_TEXT ? self->as.s.size : 0, err));
    return row->fn(out, r, &in, err);
}

// --- macros --------------------------------------------------------------------------------------

// *out is NULL if there is none.
static qn_status find_named(const qn_jinja_val **out, qn_jinja_run *r, const qn_jinja_args *args,
                            qn_str name, qn_err *err) {
    *out = NULL;
    for (size_t i = 0; i < args->n_named && !*out; i++) {
        if (qn_jinja_str_same(args->names[i], name)) *out = &args->named[i];
    }
    return qn_jinja_spend(r, args->n_named * (1 + name.size / 64), QN_PER_ITEM, err);
}

static qn_status is_param(bool *out, qn_jinja_run *r, const qn_jinja_tree *node, qn_str name,
                          qn_err *err) {
    size_t n = 0;
    *out = false;
    for (const qn_jinja_tree *param = node->list; param && !*out; param = param->next, n++)
        *out = qn_jinja_str_same(param->name, name);
    return qn_jinja_spend(r, n * (1 + name.size / 64), QN_PER_ITEM, err);
}

static qn_status set_params(qn_jinja_run *r, const qn_jinja_tree *node, const qn_jinja_args *args,
                            size_t *n, qn_err *err) {
    *n = 0;
    for (const qn_jinja_tree *param = node->list; param; param = param->next, ++*n) {
        const qn_jinja_val *named;
        QN_TRY(find_named(&named, r, args, param->name, err));
        qn_jinja_val value = qn_jinja_val_undefined(param->name);
        value.mark = QN_UNDEFINED_ARGUMENT;
        if (*n < args->n && named)
            return QN_FAIL(err, FORMAT, "the macro gets '%.*s' twice", (int)param->name.size,
                           param->name.data);
        if (*n < args->n)
            value = args->items[*n];
        else if (named)
            value = *named;
        else if (param->a)
            QN_TRY(qn_jinja_eval(&value, r, param->a, err));
        QN_TRY(qn_jinja_scope_set(r, param->name, &value, err));
    }
    return QN_OK;
}

// What the parameters do not take, for macros that use `varargs` and `kwargs`.
static qn_status set_extras(qn_jinja_run *r, const qn_jinja_tree *node, const qn_jinja_args *args,
                            size_t n_params, qn_err *err) {
    const size_t n_more = args->n > n_params ? args->n - n_params : 0;
    qn_jinja_dict *more;
    QN_TRY(qn_jinja_dict_make(&more, r, args->n_named, err));
    for (size_t i = 0; i < args->n_named; i++) {
        bool is_known = qn_str_is(args->names[i], "caller");
        if (!is_known) QN_TRY(is_param(&is_known, r, node, args->names[i], err));
        if (is_known) continue;
        const qn_jinja_val key = qn_jinja_val_text(args->names[i]);
        QN_TRY(qn_jinja_dict_set(r, more, &key, &args->named[i], err));
    }
    if (n_more && !(node->op & QN_USES_VARARGS))
        return QN_FAIL(err, FORMAT, "the macro '%.*s' takes %zu arguments, not %zu",
                       (int)node->name.size, node->name.data, n_params, args->n);
    if (more->n && !(node->op & QN_USES_KWARGS))
        return QN_FAIL(err, FORMAT, "the macro '%.*s' has no parameter '%.*s'",
                       (int)node->name.size, node->name.data, (int)more->keys[0].as.s.size,
                       more->keys[0].as.s.data);
    if (node->op & QN_USES_VARARGS) {
        qn_jinja_val rest;
        QN_TRY(qn_jinja_val_list_make(&rest, r, QN_VAL_TUPLE, n_more, err));
        for (size_t i = 0; i < n_more; i++) rest.as.list->items[i] = args->items[n_params + i];
        QN_TRY(qn_jinja_scope_set(r, qn_str_of("varargs"), &rest, err));
    }
    const qn_jinja_val dict = {.kind = QN_VAL_DICT, .as.dict = more};
    return node->op & QN_USES_KWARGS ? qn_jinja_scope_set(r, qn_str_of("kwargs"), &dict, err)
                                     : QN_OK;
}

static qn_status set_caller(qn_jinja_run *r, const qn_jinja_tree *node, const qn_jinja_args *args,
                            qn_err *err) {
    const qn_str name = qn_str_of("caller");
    const qn_jinja_val *caller;
    bool is_named;
    qn_jinja_val value = qn_jinja_val_undefined(name);
    QN_TRY(find_named(&caller, r, args, name, err));
    QN_TRY(is_param(&is_named, r, node, name, err));
    if (caller && !(node->op & QN_USES_CALLER) && !is_named)
        return QN_FAIL(err, FORMAT, "the macro '%.*s' does not use its caller",
                       (int)node->name.size, node->name.data);
    if (!(node->op & QN_USES_CALLER) || is_named) return QN_OK;
    if (caller) value = *caller;
    return qn_jinja_scope_set(r, name, &value, err);
}

static qn_status run_macro(qn_jinja_run *r, const qn_jinja_macro *macro, const qn_jinja_args *args,
                           qn_err *err) {
    size_t n_params;
    QN_TRY(qn_jinja_scope_push(r, macro->scope, err));
    QN_TRY(set_params(r, macro->node, args, &n_params, err));
    QN_TRY(set_extras(r, macro->node, args, n_params, err));
    QN_TRY(set_caller(r, macro->node, args, err));
    return qn_jinja_exec(r, macro->node->body, err);
}

static qn_status call_macro(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_macro *macro,
                            const qn_jinja_args *args, qn_err *err) {
    qn_buf text = qn_jinja_buf(r);
    qn_buf *before = r->out;
    qn_jinja_scope *scope = r->scope;
    const size_t n_kept = r->n_kept;
    r->out = &text;
    const qn_status status = run_macro(r, macro, args, err);
    r->out = before;
    if (!status) qn_jinja_scope_pop(r, scope, n_kept);
    if (status) {
        qn_buf_deinit(&text);
        return status;
    }
    return qn_jinja_text(out, r, &text, err);
}

qn_status qn_jinja_macro_attr(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_macro *macro,
                              qn_str name, qn_err *err) {
    if (qn_str_is(name, "name")) *out = qn_jinja_val_text(macro->node->name);
    if (!qn_str_is(name, "arguments")) return QN_OK;
    size_t n = 0;
    for (const qn_jinja_tree *param = macro->node->list; param; param = param->next) n++;
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_TUPLE, n, err));
    n = 0;
    for (const qn_jinja_tree *param = macro->node->list; param; param = param->next)
        out->as.list->items[n++] = qn_jinja_val_text(param->name);
    return QN_OK;
}

// --- anything ------------------------------------------------------------------------------------

// A joiner's list has the separator and whether it was used.
static qn_status call_joiner(qn_jinja_val *out, const qn_jinja_val *joiner) {
    qn_jinja_cycler *state = joiner->as.cycler;
    *out = state->i++ ? state->items[0] : qn_jinja_val_text(qn_str_of(""));
    if (state->i > 1) state->i = 1;
    return QN_OK;
}

qn_status qn_jinja_val_call(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *callee,
                            const qn_jinja_args *args, qn_err *err) {
    QN_TRY(qn_jinja_val_defined(callee, err));
    if (callee->kind == QN_VAL_MACRO) return call_macro(out, r, callee->as.macro, args, err);
    if (callee->kind == QN_VAL_JOINER) return call_joiner(out, callee);
    if (callee->kind != QN_VAL_BUILTIN)
        return QN_FAIL(err, FORMAT, "a '%s' cannot be called", qn_jinja_val_type(callee));
    return qn_jinja_builtin_call(out, r, callee->as.bound->row, &callee->as.bound->self, args, err);
}
