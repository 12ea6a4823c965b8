// Values: their types, what they are made of, how they are printed.
#include "chat/value.h"

#include "chat/chat_text.h"
#include "chat/tree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *qn_jinja_val_type(const qn_jinja_val *v) {
    static const char *const names[QN_VAL_KIND_COUNT] = {
        [QN_VAL_ABSENT] = "nothing",   [QN_VAL_UNDEFINED] = "Undefined",
        [QN_VAL_NONE] = "NoneType",    [QN_VAL_BOOL] = "bool",
        [QN_VAL_INT] = "int",          [QN_VAL_FLOAT] = "float",
        [QN_VAL_TEXT] = "str",         [QN_VAL_LIST] = "list",
        [QN_VAL_TUPLE] = "tuple",      [QN_VAL_DICT] = "dict",
        [QN_VAL_VIEW] = "dict view",   [QN_VAL_RANGE] = "range",
        [QN_VAL_LAZY] = "generator",   [QN_VAL_NAMESPACE] = "Namespace",
        [QN_VAL_LOOP] = "LoopContext", [QN_VAL_MACRO] = "Macro",
        [QN_VAL_BUILTIN] = "function", [QN_VAL_CYCLER] = "Cycler",
        [QN_VAL_JOINER] = "Joiner"};
    return names[v->kind];
}

bool qn_jinja_val_is_whole(const qn_jinja_val *v) {
    return v->kind == QN_VAL_BOOL || v->kind == QN_VAL_INT;
}
bool qn_jinja_val_is_number(const qn_jinja_val *v) {
    return qn_jinja_val_is_whole(v) || v->kind == QN_VAL_FLOAT;
}
int64_t qn_jinja_val_whole(const qn_jinja_val *v) {
    return v->kind == QN_VAL_BOOL ? v->as.b : v->as.i;
}
double qn_jinja_val_real(const qn_jinja_val *v) {
    return v->kind == QN_VAL_FLOAT ? v->as.f : (double)qn_jinja_val_whole(v);
}

bool qn_jinja_val_is_true(const qn_jinja_val *v) {
    switch ((qn_jinja_val_kind)v->kind) {
    case QN_VAL_ABSENT:
    case QN_VAL_UNDEFINED:
    case QN_VAL_NONE:
        return false;
    case QN_VAL_BOOL:
        return v->as.b;
    case QN_VAL_INT:
        return v->as.i != 0;
    case QN_VAL_FLOAT:
        return v->as.f != 0;
    case QN_VAL_TEXT:
        return v->as.s.size > 0;
    case QN_VAL_LIST:
    case QN_VAL_TUPLE:
        return v->as.list->n > 0;
    case QN_VAL_DICT:
    case QN_VAL_VIEW:
        return v->as.dict->n > 0;
    case QN_VAL_RANGE:
        return v->as.range->n > 0;
    default:
        return true;
    }
}

qn_status qn_jinja_val_defined(const qn_jinja_val *v, qn_err *err) {
    if (v->kind != QN_VAL_UNDEFINED) return QN_OK;
    const qn_jinja_val owner = {.kind = v->owner};
    const qn_str s = v->as.s;
    const int n = (int)(s.size < 80 ? s.size : 80);
    switch (v->mark) {
    case QN_UNDEFINED_PART:
        return QN_FAIL(err, FORMAT, "'%s' has no '%.*s'", qn_jinja_val_type(&owner), n, s.data);
    case QN_UNDEFINED_UNSAFE:
        return QN_FAIL(err, FORMAT, "'%.*s' would change a value, which templates may not", n,
                       s.data);
    case QN_UNDEFINED_ARGUMENT:
        return QN_FAIL(err, FORMAT, "the parameter '%.*s' was not given", n, s.data);
    default:
        return QN_FAIL(err, FORMAT, "'%.*s' is undefined", n, s.data);
    }
}

// --- lists and dicts -----------------------------------------------------------------------------

qn_status qn_jinja_val_list_make(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_val_kind kind,
                                 size_t n, qn_err *err) {
    qn_jinja_val_list *list;
    QN_TRY(qn_jinja_alloc(&list, r, 1, sizeof *list, err));
    QN_TRY(qn_jinja_alloc(&list->items, r, n, sizeof *list->items, err));
    list->n = n;
    *out = (qn_jinja_val){.kind = (unsigned char)kind, .as.list = list};
    return QN_OK;
}

qn_status qn_jinja_pair_make(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *a,
                             const qn_jinja_val *b, qn_err *err) {
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_TUPLE, 2, err));
    out->as.list->items[0] = *a;
    out->as.list->items[1] = *b;
    return QN_OK;
}

qn_status qn_jinja_dict_make(qn_jinja_dict **out, qn_jinja_run *r, size_t cap, qn_err *err) {
    QN_TRY(qn_jinja_alloc(out, r, 1, sizeof **out, err));
    QN_TRY(qn_jinja_alloc(&(*out)->keys, r, cap, sizeof(qn_jinja_val), err));
    QN_TRY(qn_jinja_alloc(&(*out)->values, r, cap, sizeof(qn_jinja_val), err));
    (*out)->cap = cap;
    return QN_OK;
}

static qn_status check_key(const qn_jinja_val *key, qn_err *err) {
    if (key->kind != QN_VAL_LIST && key->kind != QN_VAL_DICT) return QN_OK;
    return QN_FAIL(err, FORMAT, "a '%s' cannot be a key", qn_jinja_val_type(key));
}

// Charges for the keys that it looked at, and for those that it had to compare.
static qn_status find_text(qn_jinja_val **out, qn_jinja_run *r, const qn_jinja_dict *dict,
                           qn_str key, qn_err *err) {
    size_t i = 0, n_compared = 0;
    for (; i < dict->n && !*out; i++) {
        const qn_jinja_val *k = &dict->keys[i];
        if (k->kind != QN_VAL_TEXT || k->as.s.size != key.size) continue;
        n_compared++;
        if (qn_jinja_str_same(k->as.s, key)) *out = &dict->values[i];
    }
    return qn_jinja_spend(r, i + n_compared * (1 + key.size / 16), QN_PER_ITEM, err);
}

qn_status qn_jinja_dict_find(qn_jinja_val **out, qn_jinja_run *r, const qn_jinja_dict *dict,
                             const qn_jinja_val *key, qn_err *err) {
    *out = NULL;
    QN_TRY(check_key(key, err));
    QN_TRY(qn_jinja_charge(r, 0, err));
    if (key->kind == QN_VAL_TEXT) return find_text(out, r, dict, key->as.s, err);
    for (size_t i = 0; i < dict->n; i++) {
        bool is_equal;
        QN_TRY(qn_jinja_val_equal(&is_equal, r, &dict->keys[i], key, err));
        if (!is_equal) continue;
        *out = &dict->values[i];
        return QN_OK;
    }
    return QN_OK;
}

static qn_status grow_dict(qn_jinja_run *r, qn_jinja_dict *dict, qn_err *err) {
    const size_t cap = dict->cap ? dict->cap * 2 : 4;
    qn_jinja_val *keys, *values;
    QN_TRY(qn_jinja_alloc(&keys, r, cap, sizeof *keys, err));
    QN_TRY(qn_jinja_alloc(&values, r, cap, sizeof *values, err));
    if (dict->n) {
        memcpy(keys, dict->keys, dict->n * sizeof *keys);
        memcpy(values, dict->values, dict->n * sizeof *values);
    }
    dict->keys = keys;
    dict->values = values;
    dict->cap = cap;
    return QN_OK;
}

qn_status qn_jinja_dict_set(qn_jinja_run *r, qn_jinja_dict *dict, const qn_jinja_val *key,
                            const qn_jinja_val *value, qn_err *err) {
    qn_jinja_val *place;
    QN_TRY(qn_jinja_dict_find(&place, r, dict, key, err));
    if (place) {
        *place = *value;
        return QN_OK;
    }
    if (dict->n == dict->cap) QN_TRY(grow_dict(r, dict, err));
    dict->keys[dict->n] = *key;
    dict->values[dict->n++] = *value;
    return QN_OK;
}

// --- walking over values -------------------------------------------------------------------------

qn_status qn_jinja_lazy_make(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                             qn_jinja_builtin_fn *make, qn_err *err) {
    qn_jinja_lazy *lazy;
    QN_TRY(qn_jinja_alloc(&lazy, r, 1, sizeof *lazy, err));
    lazy->make = make;
    lazy->self = *in->self;
    lazy->in =
        (qn_jinja_in){.row = in->row, .self = &lazy->self, .a = lazy->a, .args = &lazy->args};
    memcpy(lazy->a, in->a, sizeof lazy->a);
    // The arguments lie in the arena already.
    lazy->args = *in->args;
    *out = (qn_jinja_val){.kind = QN_VAL_LAZY, .as.lazy = lazy};
    return QN_OK;
}

qn_status qn_jinja_lazy_items(const qn_jinja_val **items, size_t *n, qn_jinja_run *r,
                              qn_jinja_lazy *lazy, qn_err *err) {
    if (!lazy->is_made) {
        qn_jinja_val list;
        lazy->is_made = true; // also while it is being made: what reads itself finds nothing
        QN_TRY(lazy->make(&list, r, &lazy->in, err));
        lazy->items = list.as.list->items;
        lazy->n = list.as.list->n;
    }
    *items = lazy->items;
    *n = lazy->n;
    lazy->n = 0;
    return QN_OK;
}

static qn_status text_items(qn_jinja_val *out, qn_jinja_run *r, qn_str s, qn_err *err) {
    QN_TRY(qn_jinja_charge(r, s.size, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, qn_jinja_text_length(s), err));
    size_t at = 0;
    for (size_t i = 0; i < out->as.list->n; i++) {
        uint32_t code;
        const size_t n = qn_jinja_char_at(s, at, &code);
        out->as.list->items[i] = qn_jinja_val_text(qn_jinja_str_part(s, at, at + n));
        at += n;
    }
    return QN_OK;
}

static qn_status view_items(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_dict *dict,
                            qn_err *err) {
    QN_TRY(qn_jinja_charge(r, dict->n * 64, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, dict->n, err));
    for (size_t i = 0; i < dict->n; i++)
        QN_TRY(
            qn_jinja_pair_make(&out->as.list->items[i], r, &dict->keys[i], &dict->values[i], err));
    return QN_OK;
}

static qn_status range_items(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val_range *range,
                             qn_err *err) {
    QN_TRY(qn_jinja_charge(r, range->n * 8, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, range->n, err));
    for (size_t i = 0; i < range->n; i++)
        out->as.list->items[i] = qn_jinja_val_int(range->start + range->step * (int64_t)i);
    return QN_OK;
}

qn_status qn_jinja_val_items(const qn_jinja_val **items, size_t *n, qn_jinja_run *r,
                             const qn_jinja_val *v, qn_err *err) {
    qn_jinja_val_list empty = {0};
    qn_jinja_val list = {.as.list = &empty};
    switch ((qn_jinja_val_kind)v->kind) {
    case QN_VAL_UNDEFINED:
        break;
    case QN_VAL_TEXT:
        QN_TRY(text_items(&list, r, v->as.s, err));
        break;
    case QN_VAL_LIST:
    case QN_VAL_TUPLE:
        list = *v;
        break;
    case QN_VAL_VIEW:
    case QN_VAL_DICT:
        if (v->kind == QN_VAL_VIEW && v->mark == QN_VIEW_ITEMS) {
            QN_TRY(view_items(&list, r, v->as.dict, err));
            break;
        }
        *n = v->as.dict->n;
        *items = v->kind == QN_VAL_VIEW && v->mark == QN_VIEW_VALUES ? v->as.dict->values
                                                                     : v->as.dict->keys;
        return QN_OK;
    case QN_VAL_RANGE:
        QN_TRY(range_items(&list, r, v->as.range, err));
        break;
    case QN_VAL_LAZY:
        return qn_jinja_lazy_items(items, n, r, v->as.lazy, err);
    default:
        return QN_FAIL(err, FORMAT, "a '%s' cannot be walked over", qn_jinja_val_type(v));
    }
    *items = list.as.list->items;
    *n = list.as.list->n;
    return QN_OK;
}

// --- printing ------------------------------------------------------------------------------------

// The shortest digits that give the same number again; the point by where it is, or an exponent.
void qn_jinja_double_print(qn_buf *to, double f) {
    if (isnan(f) || isinf(f)) {
        qn_buf_text(to, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char text[40], digits[20] = {0};
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f) break;
    }
    const char *e = strchr(text, 'e');
    int n = 0;
    for (const char *c = text; c < e; c++) {
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    }
    const int exponent = atoi(e + 1);
    if (signbit(f)) qn_buf_text(to, "-");
    if (exponent < -4 || exponent >= 16) {
        qn_buf_printf(to, "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                      exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        qn_buf_printf(to, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (n <= exponent + 1) {
        qn_buf_printf(to, "%s%.*s.0", digits, exponent + 1 - n, "0000000000000000");
    } else {
        qn_buf_printf(to, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

static qn_status print_items(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *items, size_t n,
                             const char *open, const char *close, qn_err *err) {
    qn_buf_text(to, open);
    for (size_t i = 0; i < n; i++) {
        if (i) qn_buf_text(to, ", ");
        QN_TRY(qn_jinja_val_repr(to, r, &items[i], err));
    }
    qn_buf_text(to, close);
    return QN_OK;
}

static qn_status print_dict(qn_buf *to, qn_jinja_run *r, const qn_jinja_dict *dict, qn_err *err) {
    qn_buf_text(to, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i) qn_buf_text(to, ", ");
        QN_TRY(qn_jinja_val_repr(to, r, &dict->keys[i], err));
        qn_buf_text(to, ": ");
        QN_TRY(qn_jinja_val_repr(to, r, &dict->values[i], err));
    }
    qn_buf_text(to, "}");
    return QN_OK;
}

static qn_status print_view(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, v, err));
    return print_items(to, r, items, n, names[v->mark], "])", err);
}

static void print_range(qn_buf *to, const qn_jinja_val_range *range) {
    qn_buf_printf(to, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    if (range->step != 1) qn_buf_printf(to, ", %" PRId64, range->step);
    qn_buf_text(to, ")");
}

static qn_status repr_inside(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    switch ((qn_jinja_val_kind)v->kind) {
    case QN_VAL_UNDEFINED:
        qn_buf_text(to, "Undefined");
        return QN_OK;
    case QN_VAL_NONE:
        qn_buf_text(to, "None");
        return QN_OK;
    case QN_VAL_BOOL:
        qn_buf_text(to, v->as.b ? "True" : "False");
        return QN_OK;
    case QN_VAL_INT:
        qn_buf_printf(to, "%" PRId64, v->as.i);
        return qn_jinja_spend(r, QN_COST_NUMBER, 1, err);
    case QN_VAL_FLOAT:
        qn_jinja_double_print(to, v->as.f);
        return qn_jinja_spend(r, QN_COST_REAL, 1, err);
    case QN_VAL_TEXT:
        if (v->mark) qn_buf_text(to, "Markup(");
        qn_jinja_text_repr(to, v->as.s);
        if (v->mark) qn_buf_text(to, ")");
        return QN_OK;
    case QN_VAL_LIST:
        return print_items(to, r, v->as.list->items, v->as.list->n, "[", "]", err);
    case QN_VAL_TUPLE:
        return print_items(to, r, v->as.list->items, v->as.list->n, "(",
                           v->as.list->n == 1 ? ",)" : ")", err);
    case QN_VAL_DICT:
        return print_dict(to, r, v->as.dict, err);
    case QN_VAL_VIEW:
        return print_view(to, r, v, err);
    case QN_VAL_RANGE:
        print_range(to, v->as.range);
        return qn_jinja_spend(r, 3 * QN_COST_NUMBER, 1, err);
    case QN_VAL_NAMESPACE:
        qn_buf_text(to, "<Namespace ");
        QN_TRY(print_dict(to, r, v->as.dict, err));
        qn_buf_text(to, ">");
        return QN_OK;
    default:
        qn_buf_printf(to, "<%s>", qn_jinja_val_type(v));
        return qn_jinja_spend(r, QN_COST_NUMBER, 1, err);
    }
}

qn_status qn_jinja_val_repr(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    QN_TRY(qn_jinja_charge(r, 0, err));
    if (v->kind == QN_VAL_TEXT) QN_TRY(qn_jinja_spend(r, v->as.s.size, 1, err));
    QN_TRY(qn_jinja_enter(r, err));
    QN_TRY(repr_inside(to, r, v, err));
    qn_jinja_leave(r);
    return qn_jinja_buf_check(to, err);
}

qn_status qn_jinja_val_print(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    if (v->kind == QN_VAL_TEXT) {
        QN_TRY(qn_jinja_charge(r, v->as.s.size, err));
        qn_buf_add(to, v->as.s.data, v->as.s.size);
        return qn_jinja_buf_check(to, err);
    }
    if (v->kind == QN_VAL_UNDEFINED) return QN_OK;
    return qn_jinja_val_repr(to, r, v, err);
}

qn_status qn_jinja_val_str(qn_str *out, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    if (v->kind == QN_VAL_TEXT) {
        *out = v->as.s;
        return QN_OK;
    }
    qn_buf buf = qn_jinja_buf(r);
    qn_jinja_val text;
    const qn_status status = qn_jinja_val_print(&buf, r, v, err);
    if (status) {
        qn_buf_deinit(&buf);
        return status;
    }
    QN_TRY(qn_jinja_text(&text, r, &buf, err));
    *out = text.as.s;
    return QN_OK;
}
