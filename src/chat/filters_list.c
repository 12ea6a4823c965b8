// Filters that take lists: map, select, sort, join and their kind.
#include "chat/builtins.h"

// The arguments after the first `n`, for a filter or test that is called with them.
static qn_jinja_args rest_of(const qn_jinja_args *args, size_t n) {
    qn_jinja_args rest = *args;
    rest.items = args->n > n ? args->items + n : NULL;
    rest.n = args->n > n ? args->n - n : 0;
    return rest;
}

static const qn_jinja_val *named_arg(const qn_jinja_args *args, const char *name) {
    for (size_t i = 0; i < args->n_named; i++) {
        if (qn_str_is(args->names[i], name)) return &args->named[i];
    }
    return NULL;
}

static qn_status find_by_name(const qn_jinja_builtin **out, const qn_jinja_val *name,
                              const char *what, const qn_jinja_builtin *(*find)(qn_str),
                              qn_err *err) {
    if (name->kind != QN_VAL_TEXT)
        return QN_FAIL(err, FORMAT, "the name of a %s is a '%s'", what, qn_jinja_val_type(name));
    *out = find(name->as.s);
    if (*out) return QN_OK;
    return QN_FAIL(err, FORMAT, "no %s is named '%.*s'", what,
                   (int)(name->as.s.size < 80 ? name->as.s.size : 80), name->as.s.data);
}

// --- map -----------------------------------------------------------------------------------------

static qn_status map_attribute(qn_jinja_items *to, qn_jinja_run *r, const qn_jinja_in *in,
                               const qn_jinja_val *items, size_t n, qn_err *err) {
    const qn_jinja_val *path = named_arg(in->args, "attribute");
    const qn_jinja_val *otherwise = named_arg(in->args, "default");
    for (size_t i = 0; i < n; i++) {
        qn_jinja_val v;
        QN_TRY(qn_jinja_val_path(&v, r, &items[i], path, err));
        if (v.kind == QN_VAL_UNDEFINED && otherwise) v = *otherwise;
        QN_TRY(qn_jinja_items_add(to, r, &v, err));
    }
    return QN_OK;
}

static qn_status map_filter(qn_jinja_items *to, qn_jinja_run *r, const qn_jinja_in *in,
                            const qn_jinja_val *items, size_t n, qn_err *err) {
    const qn_jinja_builtin *row;
    if (in->args->n == 0) return QN_FAIL(err, FORMAT, "map needs a filter");
    QN_TRY(find_by_name(&row, &in->args->items[0], "filter", qn_jinja_filter_find, err));
    const qn_jinja_args rest = rest_of(in->args, 1);
    for (size_t i = 0; i < n; i++) {
        qn_jinja_val v;
        QN_TRY(qn_jinja_enter(r, err));
        QN_TRY(qn_jinja_builtin_call(&v, r, row, &items[i], &rest, err));
        qn_jinja_leave(r);
        QN_TRY(qn_jinja_items_add(to, r, &v, err));
    }
    return QN_OK;
}

// What map and select walk over; anything that counts as false is empty.
static qn_status items_if_true(const qn_jinja_val **items, size_t *n, qn_jinja_run *r,
                               const qn_jinja_val *v, qn_err *err) {
    *n = 0;
    *items = NULL;
    return qn_jinja_val_is_true(v) ? qn_jinja_val_items(items, n, r, v, err) : QN_OK;
}

QN_BUILTIN(make_map) {
    const qn_jinja_val *items;
    size_t n;
    qn_jinja_items to;
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    QN_TRY(items_if_true(&items, &n, r, in->self, err));
    const bool is_path = in->args->n == 0 && named_arg(in->args, "attribute");
    if (n) QN_TRY((is_path ? map_attribute : map_filter)(&to, r, in, items, n, err));
    *out = to.list;
    return QN_OK;
}

qn_status qn_jinja_filter_map(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                              qn_err *err) {
    return qn_jinja_lazy_make(out, r, in, make_map, err);
}

// --- select --------------------------------------------------------------------------------------

static qn_status select_one(bool *out, qn_jinja_run *r, const qn_jinja_builtin *test,
                            const qn_jinja_args *args, const qn_jinja_val *v, qn_err *err) {
    qn_jinja_val result = *v;
    QN_TRY(qn_jinja_enter(r, err));
    if (test) QN_TRY(qn_jinja_builtin_call(&result, r, test, v, args, err));
    qn_jinja_leave(r);
    *out = qn_jinja_val_is_true(&result);
    return QN_OK;
}

QN_BUILTIN(make_select) {
    const bool has_path = in->row->choice & QN_SELECT_ATTR, is_reject = in->row->choice & QN_REJECT;
    const size_t at = has_path;
    const qn_jinja_val *items;
    size_t n;
    qn_jinja_items to;
    const qn_jinja_builtin *test = NULL;
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    QN_TRY(items_if_true(&items, &n, r, in->self, err));
    if (n && in->args->n > at)
        QN_TRY(find_by_name(&test, &in->args->items[at], "test", qn_jinja_test_find, err));
    const qn_jinja_args rest = rest_of(in->args, at + 1);
    for (size_t i = 0; i < n; i++) {
        qn_jinja_val v = items[i];
        bool is_in;
        QN_TRY(qn_jinja_charge(r, 0, err));
        if (has_path) QN_TRY(qn_jinja_val_path(&v, r, &items[i], &in->args->items[0], err));
        QN_TRY(select_one(&is_in, r, test, &rest, &v, err));
        if (is_in != is_reject) QN_TRY(qn_jinja_items_add(&to, r, &items[i], err));
    }
    *out = to.list;
    return QN_OK;
}

qn_status qn_jinja_filter_select(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                 qn_err *err) {
    return qn_jinja_lazy_make(out, r, in, make_select, err);
}

// --- sort ----------------------------------------------------------------------------------------

// Keys to sort or compare by; `paths`: names separated by commas, or absent.
static qn_status make_key(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *item,
                          const qn_jinja_val *paths, bool is_case_sensitive, qn_err *err) {
    *out = *item;
    QN_TRY(qn_jinja_charge(r, 0, err));
    if (paths->kind == QN_VAL_TEXT) QN_TRY(qn_jinja_text_pay_search(r, paths->as.s, err));
    if (paths->kind == QN_VAL_ABSENT || paths->kind == QN_VAL_NONE)
        return qn_jinja_fold_case(out, r, is_case_sensitive, err);
    if (paths->kind != QN_VAL_TEXT ||
        qn_jinja_text_find(paths->as.s, (qn_str){",", 1}, 0) == SIZE_MAX) {
        QN_TRY(qn_jinja_val_path(out, r, item, paths, err));
        return qn_jinja_fold_case(out, r, is_case_sensitive, err);
    }
    qn_jinja_items keys;
    qn_str rest = paths->as.s;
    QN_TRY(qn_jinja_items_begin(&keys, r, err));
    for (size_t comma = 0; comma != SIZE_MAX;) {
        comma = qn_jinja_text_find(rest, (qn_str){",", 1}, 0);
        const qn_jinja_val path =
            qn_jinja_val_text(comma == SIZE_MAX ? rest : qn_jinja_str_part(rest, 0, comma));
        qn_jinja_val key;
        QN_TRY(qn_jinja_val_path(&key, r, item, &path, err));
        QN_TRY(qn_jinja_fold_case(&key, r, is_case_sensitive, err));
        QN_TRY(qn_jinja_items_add(&keys, r, &key, err));
        if (comma != SIZE_MAX) rest = qn_jinja_str_part(rest, comma + 1, rest.size);
    }
    *out = keys.list;
    return QN_OK;
}

static qn_status copy_list(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, v, err));
    QN_TRY(qn_jinja_charge(r, n * sizeof *items, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, n, err));
    if (n) memcpy(out->as.list->items, items, n * sizeof *items);
    return QN_OK;
}

qn_status qn_jinja_filter_sort(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                               qn_err *err) {
    qn_jinja_val *keys;
    QN_TRY(copy_list(out, r, in->self, err));
    const qn_jinja_val_list *list = out->as.list;
    QN_TRY(qn_jinja_alloc(&keys, r, list->n, sizeof *keys, err));
    for (size_t i = 0; i < list->n; i++)
        QN_TRY(make_key(&keys[i], r, &list->items[i], &in->a[2], qn_jinja_arg_bool(in, 1, false),
                        err));
    return qn_jinja_sort(list->items, keys, list->n, qn_jinja_arg_bool(in, 0, false), r, err);
}

qn_status qn_jinja_filter_dictsort(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                   qn_err *err) {
    qn_str by = qn_str_of("key");
    qn_jinja_val *keys;
    QN_TRY(qn_jinja_val_defined(in->self, err));
    QN_TRY(qn_jinja_arg_text(&by, in, 1, err));
    const bool by_value = qn_str_is(by, "value");
    if (!by_value && !qn_str_is(by, "key"))
        return QN_FAIL(err, FORMAT, "dictsort by 'key' or 'value' only");
    if (in->self->kind != QN_VAL_DICT)
        return QN_FAIL(err, FORMAT, "dictsort of a '%s'", qn_jinja_val_type(in->self));
    const qn_jinja_dict *dict = in->self->as.dict;
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, dict->n, err));
    QN_TRY(qn_jinja_alloc(&keys, r, dict->n, sizeof *keys, err));
    for (size_t i = 0; i < dict->n; i++) {
        keys[i] = by_value ? dict->values[i] : dict->keys[i];
        QN_TRY(qn_jinja_fold_case(&keys[i], r, qn_jinja_arg_bool(in, 0, false), err));
        QN_TRY(
            qn_jinja_pair_make(&out->as.list->items[i], r, &dict->keys[i], &dict->values[i], err));
    }
    return qn_jinja_sort(out->as.list->items, keys, dict->n, qn_jinja_arg_bool(in, 2, false), r,
                         err);
}

QN_BUILTIN(make_unique) {
    const qn_jinja_val *items;
    size_t n;
    qn_jinja_items to, keys;
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    QN_TRY(qn_jinja_items_begin(&keys, r, err));
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    for (size_t i = 0; i < n; i++) {
        qn_jinja_val key;
        bool is_known;
        QN_TRY(make_key(&key, r, &items[i], &in->a[1], qn_jinja_arg_bool(in, 0, false), err));
        if (key.kind == QN_VAL_LIST || key.kind == QN_VAL_DICT)
            return QN_FAIL(err, FORMAT, "unique: a '%s' is compared by its place only",
                           qn_jinja_val_type(&key));
        QN_TRY(qn_jinja_val_contains(&is_known, r, &key, &keys.list, err));
        if (is_known) continue;
        QN_TRY(qn_jinja_items_add(&keys, r, &key, err));
        QN_TRY(qn_jinja_items_add(&to, r, &items[i], err));
    }
    *out = to.list;
    return QN_OK;
}

qn_status qn_jinja_filter_unique(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                 qn_err *err) {
    return qn_jinja_lazy_make(out, r, in, make_unique, err);
}

// The choice is the sign that the order of a better item has: -1 for min.
qn_status qn_jinja_filter_extreme(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                  qn_err *err) {
    const bool wants_max = in->row->choice;
    const qn_jinja_val *items;
    size_t n;
    qn_jinja_val best_key = {0};
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    *out = qn_jinja_val_undefined(qn_str_of("the extreme of an empty list"));
    for (size_t i = 0; i < n; i++) {
        qn_jinja_val key;
        int order = wants_max ? 1 : -1;
        QN_TRY(make_key(&key, r, &items[i], &in->a[1], qn_jinja_arg_bool(in, 0, false), err));
        if (i) QN_TRY(qn_jinja_val_order(&order, r, &key, &best_key, err));
        if (order == 2 || (wants_max ? order <= 0 : order >= 0)) continue;
        best_key = key;
        *out = items[i];
    }
    return QN_OK;
}

qn_status qn_jinja_filter_sum(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                              qn_err *err) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    *out = qn_jinja_arg_is_given(in, 1) ? in->a[1] : qn_jinja_val_int(0);
    for (size_t i = 0; i < n; i++) {
        const qn_jinja_val so_far = *out;
        qn_jinja_val v;
        QN_TRY(make_key(&v, r, &items[i], &in->a[0], true, err));
        QN_TRY(qn_jinja_val_math(out, r, QN_MATH_ADD, &so_far, &v, err));
    }
    return QN_OK;
}

// --- join, items ---------------------------------------------------------------------------------

qn_status qn_jinja_filter_join(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                               qn_err *err) {
    const qn_jinja_val *items;
    size_t n;
    qn_str between = {"", 0};
    if (qn_jinja_arg_is_given(in, 0)) QN_TRY(qn_jinja_val_str(&between, r, &in->a[0], err));
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    qn_buf buf = qn_jinja_buf(r);
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        qn_jinja_val v = items[i];
        if (i) qn_buf_add(&buf, between.data, between.size);
        status = make_key(&v, r, &items[i], &in->a[1], true, err);
        if (!status) status = qn_jinja_val_print(&buf, r, &v, err);
        if (!status) status = qn_jinja_charge(r, between.size, err);
    }
    if (!status) return qn_jinja_text(out, r, &buf, err);
    qn_buf_deinit(&buf);
    return status;
}

QN_BUILTIN(make_items) {
    const qn_jinja_val view = {
        .kind = QN_VAL_VIEW, .mark = QN_VIEW_ITEMS, .as.dict = in->self->as.dict};
    if (in->self->kind == QN_VAL_UNDEFINED)
        return qn_jinja_val_list_make(out, r, QN_VAL_LIST, 0, err);
    if (in->self->kind != QN_VAL_DICT)
        return QN_FAIL(err, FORMAT, "items of a '%s', not of a dict", qn_jinja_val_type(in->self));
    return copy_list(out, r, &view, err);
}

qn_status qn_jinja_filter_items(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                qn_err *err) {
    return qn_jinja_lazy_make(out, r, in, make_items, err);
}
