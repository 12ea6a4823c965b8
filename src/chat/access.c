// Parts of values: v.name, v[key], v[low:high:step], and how many there are.
#include "chat/chat_text.h"
#include "chat/tree.h"

static qn_status bind(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_builtin *row,
                      const qn_jinja_val *self, qn_err *err) {
    qn_jinja_bound *bound;
    QN_TRY(qn_jinja_alloc(&bound, r, 1, sizeof *bound, err));
    *bound = (qn_jinja_bound){.row = row, .self = *self};
    *out = (qn_jinja_val){.kind = QN_VAL_BUILTIN, .as.bound = bound};
    return QN_OK;
}

// What Python calls an attribute. *found is false if there is none.
static qn_status find_attr(qn_jinja_val *out, bool *found, qn_jinja_run *r, const qn_jinja_val *v,
                           qn_str name, qn_err *err) {
    bool is_unsafe = false;
    *found = true;
    *out = qn_jinja_val_lacking(v, name);
    const qn_jinja_builtin *row = qn_jinja_method_find(v, name, &is_unsafe);
    if (is_unsafe || (name.size > 4 && memcmp(name.data, "__", 2) == 0)) {
        out->mark = QN_UNDEFINED_UNSAFE;
        return QN_OK;
    }
    if (row) return bind(out, r, row, v, err);
    if (v->kind == QN_VAL_LOOP) return qn_jinja_loop_attr(out, r, v->as.loop, name, err);
    if (v->kind == QN_VAL_MACRO) return qn_jinja_macro_attr(out, r, v->as.macro, name, err);
    qn_jinja_val *of_space = NULL;
    const qn_jinja_val key = qn_jinja_val_text(name);
    if (v->kind == QN_VAL_NAMESPACE)
        QN_TRY(qn_jinja_dict_find(&of_space, r, v->as.dict, &key, err));
    const qn_jinja_val *value = of_space;
    if (v->kind == QN_VAL_CYCLER && qn_str_is(name, "current"))
        value = &v->as.cycler->items[v->as.cycler->i];
    *found = value != NULL;
    if (value) *out = *value;
    return QN_OK;
}

// Index i of n, counted from the end if it is negative; false: outside.
static bool find_index(size_t *out, const qn_jinja_val *key, size_t n) {
    if (!qn_jinja_val_is_whole(key)) return false;
    int64_t i = qn_jinja_val_whole(key);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return false;
    *out = (size_t)i;
    return true;
}

// What Python calls an item. *found is false if there is none.
static qn_status find_item(qn_jinja_val *out, bool *found, qn_jinja_run *r, const qn_jinja_val *v,
                           const qn_jinja_val *key, qn_err *err) {
    size_t i;
    *found = false;
    if (v->kind == QN_VAL_DICT) {
        qn_jinja_val *value = NULL;
        if (key->kind != QN_VAL_LIST && key->kind != QN_VAL_DICT)
            QN_TRY(qn_jinja_dict_find(&value, r, v->as.dict, key, err));
        *found = value != NULL;
        if (value) *out = *value;
    } else if (v->kind == QN_VAL_LIST || v->kind == QN_VAL_TUPLE) {
        *found = find_index(&i, key, v->as.list->n);
        if (*found) *out = v->as.list->items[i];
    } else if (v->kind == QN_VAL_RANGE) {
        *found = find_index(&i, key, v->as.range->n);
        if (*found) *out = qn_jinja_val_int(v->as.range->start + v->as.range->step * (int64_t)i);
    } else if (v->kind == QN_VAL_TEXT) {
        QN_TRY(qn_jinja_text_pay_length(r, v->as.s, err));
        *found = find_index(&i, key, qn_jinja_text_length(v->as.s));
        if (!*found) return QN_OK;
        const size_t at = qn_jinja_text_offset(v->as.s, i);
        uint32_t code;
        *out = qn_jinja_val_text(
            qn_jinja_str_part(v->as.s, at, at + qn_jinja_char_at(v->as.s, at, &code)));
        out->mark = v->mark;
    }
    return QN_OK;
}

qn_status qn_jinja_val_attr(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v, qn_str name,
                            qn_err *err) {
    bool found;
    QN_TRY(qn_jinja_val_defined(v, err));
    QN_TRY(find_attr(out, &found, r, v, name, err));
    if (found) return QN_OK;
    const qn_jinja_val key = qn_jinja_val_text(name);
    QN_TRY(find_item(out, &found, r, v, &key, err));
    if (!found) *out = qn_jinja_val_lacking(v, name);
    return QN_OK;
}

qn_status qn_jinja_val_item(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                            const qn_jinja_val *key, qn_err *err) {
    bool found;
    QN_TRY(qn_jinja_val_defined(v, err));
    QN_TRY(find_item(out, &found, r, v, key, err));
    if (found) return QN_OK;
    if (key->kind == QN_VAL_TEXT) {
        QN_TRY(find_attr(out, &found, r, v, key->as.s, err));
        if (!found) *out = qn_jinja_val_lacking(v, key->as.s);
        return QN_OK;
    }
    qn_str name = {"?", 1};
    if (qn_jinja_val_is_number(key)) QN_TRY(qn_jinja_val_str(&name, r, key, err));
    *out = qn_jinja_val_lacking(v, name);
    return QN_OK;
}

qn_status qn_jinja_val_length(size_t *out, qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    switch ((qn_jinja_val_kind)v->kind) {
    case QN_VAL_UNDEFINED:
        *out = 0;
        return QN_OK;
    case QN_VAL_TEXT:
        QN_TRY(qn_jinja_text_pay_length(r, v->as.s, err));
        *out = qn_jinja_text_length(v->as.s);
        return QN_OK;
    case QN_VAL_LIST:
    case QN_VAL_TUPLE:
        *out = v->as.list->n;
        return QN_OK;
    case QN_VAL_DICT:
    case QN_VAL_VIEW:
        *out = v->as.dict->n;
        return QN_OK;
    case QN_VAL_RANGE:
        *out = v->as.range->n;
        return QN_OK;
    default:
        return QN_FAIL(err, FORMAT, "a '%s' has no length", qn_jinja_val_type(v));
    }
}

// --- slices --------------------------------------------------------------------------------------

typedef struct slice {
    int64_t low, high, step;
    size_t n; // items of the result
} slice;

static qn_status read_bound(int64_t *out, const qn_jinja_val *v, int64_t otherwise, qn_err *err) {
    *out = otherwise;
    if (v->kind == QN_VAL_NONE || v->kind == QN_VAL_ABSENT) return QN_OK;
    QN_TRY(qn_jinja_val_defined(v, err));
    if (!qn_jinja_val_is_whole(v))
        return QN_FAIL(err, FORMAT, "a slice wants whole numbers, not a '%s'",
                       qn_jinja_val_type(v));
    *out = qn_jinja_val_whole(v);
    return QN_OK;
}

// A bound clamped to min ... max; negative ones count from the end.
static int64_t clip(int64_t bound, int64_t n, int64_t min, int64_t max) {
    if (bound < 0) bound = bound < -n ? min : bound + n;
    return bound < min ? min : bound > max ? max : bound;
}

static qn_status read_slice(slice *out, const qn_jinja_val bounds[3], size_t length, qn_err *err) {
    const int64_t n = (int64_t)length;
    QN_TRY(read_bound(&out->step, &bounds[2], 1, err));
    if (out->step == 0) return QN_FAIL(err, FORMAT, "a slice with steps of 0");
    if (out->step > n) out->step = n + 1; // any larger one does the same
    if (out->step < -n) out->step = -n - 1;
    const bool is_back = out->step < 0;
    const int64_t min = is_back ? -1 : 0, max = is_back ? n - 1 : n;
    QN_TRY(read_bound(&out->low, &bounds[0], is_back ? INT64_MAX : 0, err));
    QN_TRY(read_bound(&out->high, &bounds[1], is_back ? INT64_MIN : INT64_MAX, err));
    out->low = clip(out->low, n, min, max);
    out->high = clip(out->high, n, min, max);
    const int64_t span = is_back ? out->low - out->high : out->high - out->low;
    const int64_t stride = is_back ? -out->step : out->step;
    out->n = span > 0 ? (size_t)((span + stride - 1) / stride) : 0;
    return QN_OK;
}

static qn_status slice_text(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                            const slice *s, qn_err *err) {
    const qn_str text = v->as.s;
    if (s->step == 1) {
        const size_t from = qn_jinja_text_offset(text, (size_t)s->low);
        const qn_str rest = qn_jinja_str_part(text, from, text.size);
        *out = qn_jinja_val_text(qn_jinja_str_part(rest, 0, qn_jinja_text_offset(rest, s->n)));
        out->mark = v->mark;
        return QN_OK;
    }
    const qn_jinja_val *chars;
    size_t n;
    QN_TRY(qn_jinja_val_items(&chars, &n, r, v, err));
    qn_buf buf = qn_jinja_buf(r);
    for (size_t i = 0; i < s->n; i++) {
        const qn_str c = chars[s->low + (int64_t)i * s->step].as.s;
        qn_buf_add(&buf, c.data, c.size);
    }
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = v->mark;
    return QN_OK;
}

// start + step * i; false: it needs more than 64 bits.
static bool range_at(int64_t *out, const qn_jinja_val_range *range, int64_t i) {
    return !__builtin_mul_overflow(range->step, i, out) &&
           !__builtin_add_overflow(range->start, *out, out);
}

static qn_status slice_range(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val_range *of,
                             const slice *s, qn_err *err) {
    qn_jinja_val_range *range;
    QN_TRY(qn_jinja_alloc(&range, r, 1, sizeof *range, err));
    range->n = s->n;
    if (!range_at(&range->start, of, s->low) || !range_at(&range->stop, of, s->high) ||
        __builtin_mul_overflow(of->step, s->step, &range->step))
        return QN_FAIL(err, LIMIT, "a part of a range that needs more than 64 bits");
    *out = (qn_jinja_val){.kind = QN_VAL_RANGE, .as.range = range};
    return QN_OK;
}

qn_status qn_jinja_val_slice(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                             const qn_jinja_val bounds[3], qn_err *err) {
    const bool is_text = v->kind == QN_VAL_TEXT;
    slice s;
    size_t n;
    QN_TRY(qn_jinja_val_defined(v, err));
    if (!is_text && v->kind != QN_VAL_LIST && v->kind != QN_VAL_TUPLE && v->kind != QN_VAL_RANGE)
        return QN_FAIL(err, FORMAT, "a '%s' has no slices", qn_jinja_val_type(v));
    QN_TRY(qn_jinja_val_length(&n, r, v, err));
    QN_TRY(read_slice(&s, bounds, n, err));
    if (is_text) return slice_text(out, r, v, &s, err);
    if (v->kind == QN_VAL_RANGE) return slice_range(out, r, v->as.range, &s, err);
    const qn_jinja_val *items;
    QN_TRY(qn_jinja_val_items(&items, &n, r, v, err));
    QN_TRY(qn_jinja_charge(r, s.n * sizeof(qn_jinja_val), err));
    const qn_jinja_val_kind kind = v->kind == QN_VAL_TUPLE ? QN_VAL_TUPLE : QN_VAL_LIST;
    QN_TRY(qn_jinja_val_list_make(out, r, kind, s.n, err));
    for (size_t i = 0; i < s.n; i++) out->as.list->items[i] = items[s.low + (int64_t)i * s.step];
    return QN_OK;
}
