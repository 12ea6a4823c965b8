#include "chat/builtins.h"

static qn_status wrong_kind(const qn_jinja_in *in, size_t i, const char *want, qn_err *err) {
    QN_TRY(qn_jinja_val_defined(&in->a[i], err));
    return QN_FAIL(err, FORMAT, "%s: argument %zu is a '%s', not %s", in->row->name, i + 1,
                   qn_jinja_val_type(&in->a[i]), want);
}

static bool is_left_out(const qn_jinja_val *v) {
    return v->kind == QN_VAL_ABSENT || v->kind == QN_VAL_NONE;
}

qn_status qn_jinja_arg_text(qn_str *out, const qn_jinja_in *in, size_t i, qn_err *err) {
    if (is_left_out(&in->a[i])) return QN_OK;
    if (in->a[i].kind != QN_VAL_TEXT) return wrong_kind(in, i, "a text", err);
    *out = in->a[i].as.s;
    return QN_OK;
}

qn_status qn_jinja_arg_int(int64_t *out, const qn_jinja_in *in, size_t i, qn_err *err) {
    if (is_left_out(&in->a[i])) return QN_OK;
    if (!qn_jinja_val_is_whole(&in->a[i])) return wrong_kind(in, i, "a whole number", err);
    *out = qn_jinja_val_whole(&in->a[i]);
    return QN_OK;
}

bool qn_jinja_arg_bool(const qn_jinja_in *in, size_t i, bool otherwise) {
    return qn_jinja_arg_is_given(in, i) ? qn_jinja_val_is_true(&in->a[i]) : otherwise;
}

// --- lists ---------------------------------------------------------------------------------------

qn_status qn_jinja_items_begin(qn_jinja_items *items, qn_jinja_run *r, qn_err *err) {
    items->cap = 8;
    QN_TRY(qn_jinja_val_list_make(&items->list, r, QN_VAL_LIST, items->cap, err));
    items->list.as.list->n = 0;
    return QN_OK;
}

qn_status qn_jinja_items_add(qn_jinja_items *items, qn_jinja_run *r, const qn_jinja_val *v,
                             qn_err *err) {
    qn_jinja_val_list *list = items->list.as.list;
    QN_TRY(qn_jinja_charge(r, 0, err));
    if (list->n == items->cap) {
        qn_jinja_val *more;
        QN_TRY(qn_jinja_alloc(&more, r, items->cap * 2, sizeof *more, err));
        memcpy(more, list->items, list->n * sizeof *more);
        list->items = more;
        items->cap *= 2;
    }
    list->items[list->n++] = *v;
    return QN_OK;
}

// --- order ---------------------------------------------------------------------------------------

typedef struct sorting {
    qn_jinja_val *items, *keys;       // what is sorted
    qn_jinja_val *to_items, *to_keys; // room of the same size
    bool is_descending;
    qn_jinja_run *r;
} sorting;

static qn_status merge(const sorting *s, size_t low, size_t middle, size_t high, qn_err *err) {
    size_t i = low, k = middle;
    for (size_t at = low; at < high; at++) {
        bool takes_right = i == middle;
        if (i < middle && k < high) {
            int order;
            QN_TRY(qn_jinja_val_order(&order, s->r, &s->keys[k], &s->keys[i], err));
            takes_right = order != 2 && (s->is_descending ? order > 0 : order < 0);
        }
        const size_t from = takes_right ? k++ : i++;
        s->to_items[at] = s->items[from];
        s->to_keys[at] = s->keys[from];
    }
    return QN_OK;
}

qn_status qn_jinja_sort(qn_jinja_val *items, qn_jinja_val *keys, size_t n, bool is_descending,
                        qn_jinja_run *r, qn_err *err) {
    sorting s = {.items = items, .keys = keys, .is_descending = is_descending, .r = r};
    QN_TRY(qn_jinja_alloc(&s.to_items, r, n, sizeof *items, err));
    QN_TRY(qn_jinja_alloc(&s.to_keys, r, n, sizeof *keys, err));
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            const size_t middle = n - low < width ? n : low + width;
            const size_t high = n - middle < width ? n : middle + width;
            QN_TRY(merge(&s, low, middle, high, err));
        }
        memcpy(items, s.to_items, n * sizeof *items);
        memcpy(keys, s.to_keys, n * sizeof *keys);
    }
    return QN_OK;
}

qn_status qn_jinja_fold_case(qn_jinja_val *v, qn_jinja_run *r, bool is_case_sensitive,
                             qn_err *err) {
    if (is_case_sensitive || v->kind != QN_VAL_TEXT) return QN_OK;
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, v->as.s.size, 1, err));
    qn_jinja_text_recase(&buf, v->as.s, QN_CASE_LOWER);
    return qn_jinja_text(v, r, &buf, err);
}

// --- paths ---------------------------------------------------------------------------------------

static bool read_index(int64_t *out, qn_str s) {
    *out = 0;
    if (s.size == 0 || s.size > 9) return false;
    for (size_t i = 0; i < s.size; i++) {
        if (s.data[i] < '0' || s.data[i] > '9') return false;
        *out = *out * 10 + (s.data[i] - '0');
    }
    return true;
}

qn_status qn_jinja_val_path(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *item,
                            const qn_jinja_val *path, qn_err *err) {
    if (path->kind != QN_VAL_TEXT) return qn_jinja_val_item(out, r, item, path, err);
    QN_TRY(qn_jinja_text_pay_search(r, path->as.s, err));
    qn_str rest = path->as.s;
    qn_jinja_val at = *item;
    for (bool is_last = false; !is_last;) {
        QN_TRY(qn_jinja_charge(r, 0, err));
        const size_t dot = qn_jinja_text_find(rest, (qn_str){".", 1}, 0);
        is_last = dot == SIZE_MAX;
        const qn_str name = is_last ? rest : qn_jinja_str_part(rest, 0, dot);
        int64_t index;
        const qn_jinja_val key =
            read_index(&index, name) ? qn_jinja_val_int(index) : qn_jinja_val_text(name);
        QN_TRY(qn_jinja_val_item(out, r, &at, &key, err));
        at = *out;
        if (!is_last) rest = qn_jinja_str_part(rest, dot + 1, rest.size);
    }
    return QN_OK;
}
