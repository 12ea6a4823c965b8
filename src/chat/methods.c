// The tables of methods, and those of lists, dicts and others. Texts have a file of their own.
#include "chat/builtins.h"
#include "chat/methods.h"

// --- lists ---------------------------------------------------------------------------------------

QN_BUILTIN(list_index) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    for (size_t i = 0; i < n; i++) {
        bool is_equal;
        QN_TRY(qn_jinja_val_equal(&is_equal, r, &items[i], &in->a[0], err));
        if (!is_equal) continue;
        *out = qn_jinja_val_int((int64_t)i);
        return QN_OK;
    }
    return QN_FAIL(err, FORMAT, "index: the value is not in the list");
}

QN_BUILTIN(list_count) {
    const qn_jinja_val *items;
    size_t n;
    int64_t count = 0;
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    for (size_t i = 0; i < n; i++) {
        bool is_equal;
        QN_TRY(qn_jinja_val_equal(&is_equal, r, &items[i], &in->a[0], err));
        count += is_equal;
    }
    *out = qn_jinja_val_int(count);
    return QN_OK;
}

// A copy of what cannot change is itself.
QN_BUILTIN(copy) {
    (void)r, (void)err;
    *out = *in->self;
    return QN_OK;
}

static const qn_jinja_builtin list_methods[] = {{"index", list_index, "value", 1, 0},
                                                {"count", list_count, "value", 1, 0},
                                                {"copy", copy, "", 0, 0}};

// --- dicts ---------------------------------------------------------------------------------------

QN_BUILTIN(dict_get) {
    qn_jinja_val *value;
    QN_TRY(qn_jinja_dict_find(&value, r, in->self->as.dict, &in->a[0], err));
    *out = value ? *value : qn_jinja_arg_is_given(in, 1) ? in->a[1] : qn_jinja_val_none();
    return QN_OK;
}

QN_BUILTIN(dict_view) {
    (void)r, (void)err;
    *out =
        (qn_jinja_val){.kind = QN_VAL_VIEW, .mark = in->row->choice, .as.dict = in->self->as.dict};
    return QN_OK;
}

static const qn_jinja_builtin dict_methods[] = {{"get", dict_get, "key default", 1, 0},
                                                {"items", dict_view, "", 0, QN_VIEW_ITEMS},
                                                {"keys", dict_view, "", 0, QN_VIEW_KEYS},
                                                {"values", dict_view, "", 0, QN_VIEW_VALUES},
                                                {"copy", copy, "", 0, 0},
                                                {"fromkeys", NULL, "", 0, 0}};

// --- others --------------------------------------------------------------------------------------

QN_BUILTIN(cycler_next) {
    qn_jinja_cycler *cycler = in->self->as.cycler;
    (void)r, (void)err;
    *out = cycler->items[cycler->i];
    cycler->i = (cycler->i + 1) % cycler->n;
    return QN_OK;
}

QN_BUILTIN(cycler_reset) {
    (void)r, (void)err;
    in->self->as.cycler->i = 0;
    *out = qn_jinja_val_none();
    return QN_OK;
}

static const qn_jinja_builtin cycler_methods[] = {{"next", cycler_next, "", 0, 0},
                                                  {"reset", cycler_reset, "", 0, 0}};

QN_BUILTIN(float_is_integer) {
    (void)r, (void)err;
    const double f = in->self->as.f;
    *out = qn_jinja_val_bool(f - f == 0 && f == (double)(int64_t)(f > -9e18 && f < 9e18 ? f : 0));
    return QN_OK;
}

static const qn_jinja_builtin float_methods[] = {{"is_integer", float_is_integer, "", 0, 0}};

// --- all -----------------------------------------------------------------------------------------

// Methods that change what they belong to: there, and forbidden.
static const char *const list_unsafe[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};

#define ROWS(table) table, sizeof table / sizeof *table

static const struct {
    const qn_jinja_builtin *rows;
    size_t n;
    const char *const *unsafe;
} kinds[QN_VAL_KIND_COUNT] = {
    [QN_VAL_LIST] = {ROWS(list_methods), list_unsafe},
    [QN_VAL_TUPLE] = {list_methods, 2, NULL},
    [QN_VAL_RANGE] = {list_methods, 2, NULL},
    [QN_VAL_DICT] = {ROWS(dict_methods), dict_unsafe},
    [QN_VAL_CYCLER] = {ROWS(cycler_methods), NULL},
    [QN_VAL_FLOAT] = {ROWS(float_methods), NULL},
};

const qn_jinja_builtin *qn_jinja_method_find(const qn_jinja_val *owner, qn_str name,
                                             bool *is_unsafe) {
    *is_unsafe = false;
    if (owner->kind == QN_VAL_TEXT)
        return qn_jinja_rows_find(qn_jinja_text_methods, qn_jinja_n_text_methods, name);
    for (const char *const *unsafe = kinds[owner->kind].unsafe; unsafe && *unsafe; unsafe++) {
        if (qn_str_is(name, *unsafe)) *is_unsafe = true;
    }
    return qn_jinja_rows_find(kinds[owner->kind].rows, kinds[owner->kind].n, name);
}
