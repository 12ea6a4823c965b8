// tojson, as transformers has it: json.dumps without escapes for HTML.
#include "chat/builtins.h"

#include <inttypes.h>
#include <math.h>

static void print_escape(qn_buf *to, uint32_t code) {
    if (code >= 0x10000) { // as two halves
        qn_jinja_code_print(to, 'u', 0xd800 + ((code - 0x10000) >> 10));
        code = 0xdc00 + ((code - 0x10000) & 0x3ff);
    }
    qn_jinja_code_print(to, 'u', code);
}

static void print_text(qn_buf *to, qn_str s, bool ascii) {
    static const char short_forms[128] = {['"'] = '"',  ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r',
                                          ['\t'] = 't', ['\f'] = 'f',  ['\b'] = 'b'};
    qn_buf_add(to, "\"", 1);
    for (size_t at = 0; at < s.size;) {
        uint32_t code;
        const size_t n = qn_jinja_char_at(s, at, &code);
        if (code < 128 && short_forms[code])
            qn_buf_add(to, (const char[]){'\\', short_forms[code]}, 2);
        else if (code < 0x20 || (ascii && code > 0x7e))
            print_escape(to, code);
        else
            qn_buf_add(to, s.data + at, n);
        at += n;
    }
    qn_buf_add(to, "\"", 1);
}

static void print_real(qn_buf *to, double f) {
    if (isnan(f))
        qn_buf_text(to, "NaN");
    else if (isinf(f))
        qn_buf_text(to, f < 0 ? "-Infinity" : "Infinity");
    else
        qn_jinja_double_print(to, f);
}

typedef struct writer {
    qn_buf *to;
    qn_jinja_run *r;
    const qn_jinja_json_style *style;
    size_t level;
} writer;

static qn_status write_value(writer *w, const qn_jinja_val *v, qn_err *err);

static qn_status new_line(writer *w, qn_err *err) {
    if (!w->style->is_indented) return QN_OK;
    QN_TRY(qn_jinja_charge(w->r, w->level * w->style->indent.size, err));
    qn_buf_add(w->to, "\n", 1);
    for (size_t i = 0; i < w->level; i++)
        qn_buf_add(w->to, w->style->indent.data, w->style->indent.size);
    return QN_OK;
}

static qn_status write_list(writer *w, const qn_jinja_val_list *list, qn_err *err) {
    qn_buf_text(w->to, "[");
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i) qn_buf_add(w->to, w->style->comma.data, w->style->comma.size);
        QN_TRY(new_line(w, err));
        QN_TRY(write_value(w, &list->items[i], err));
    }
    w->level--;
    if (list->n) QN_TRY(new_line(w, err));
    qn_buf_text(w->to, "]");
    return QN_OK;
}

// Keys that are not texts become texts.
static qn_status write_key(writer *w, const qn_jinja_val *key, qn_err *err) {
    if (key->kind == QN_VAL_TEXT) return write_value(w, key, err);
    if (key->kind != QN_VAL_NONE && !qn_jinja_val_is_number(key))
        return QN_FAIL(err, FORMAT, "a '%s' cannot be a key of JSON", qn_jinja_val_type(key));
    qn_buf_text(w->to, "\"");
    QN_TRY(write_value(w, key, err));
    qn_buf_text(w->to, "\"");
    return QN_OK;
}

static qn_status sort_keys(const qn_jinja_val **keys, const qn_jinja_val **values, writer *w,
                           const qn_jinja_dict *dict, qn_err *err) {
    qn_jinja_val *sorted, *sorted_keys;
    QN_TRY(qn_jinja_alloc(&sorted, w->r, dict->n, sizeof *sorted, err));
    QN_TRY(qn_jinja_alloc(&sorted_keys, w->r, dict->n, sizeof *sorted_keys, err));
    memcpy(sorted, dict->values, dict->n * sizeof *sorted);
    memcpy(sorted_keys, dict->keys, dict->n * sizeof *sorted_keys);
    QN_TRY(qn_jinja_sort(sorted, sorted_keys, dict->n, false, w->r, err));
    *keys = sorted_keys;
    *values = sorted;
    return QN_OK;
}

static qn_status write_dict(writer *w, const qn_jinja_dict *dict, qn_err *err) {
    const qn_jinja_val *keys = dict->keys, *values = dict->values;
    if (w->style->sorted && dict->n) QN_TRY(sort_keys(&keys, &values, w, dict, err));
    qn_buf_text(w->to, "{");
    w->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i) qn_buf_add(w->to, w->style->comma.data, w->style->comma.size);
        QN_TRY(new_line(w, err));
        QN_TRY(write_key(w, &keys[i], err));
        qn_buf_add(w->to, w->style->colon.data, w->style->colon.size);
        QN_TRY(write_value(w, &values[i], err));
    }
    w->level--;
    if (dict->n) QN_TRY(new_line(w, err));
    qn_buf_text(w->to, "}");
    return QN_OK;
}

static qn_status write_inside(writer *w, const qn_jinja_val *v, qn_err *err) {
    switch ((qn_jinja_val_kind)v->kind) {
    case QN_VAL_NONE:
        qn_buf_text(w->to, "null");
        return QN_OK;
    case QN_VAL_BOOL:
        qn_buf_text(w->to, v->as.b ? "true" : "false");
        return QN_OK;
    case QN_VAL_INT:
        qn_buf_printf(w->to, "%" PRId64, v->as.i);
        return qn_jinja_spend(w->r, QN_COST_NUMBER, 1, err);
    case QN_VAL_FLOAT:
        print_real(w->to, v->as.f);
        return qn_jinja_spend(w->r, QN_COST_REAL, 1, err);
    case QN_VAL_TEXT:
        QN_TRY(qn_jinja_spend(w->r, v->as.s.size, QN_PER_CHAR, err));
        print_text(w->to, v->as.s, w->style->ascii);
        return QN_OK;
    case QN_VAL_LIST:
    case QN_VAL_TUPLE:
        return write_list(w, v->as.list, err);
    case QN_VAL_DICT:
        return write_dict(w, v->as.dict, err);
    default:
        QN_TRY(qn_jinja_val_defined(v, err));
        return QN_FAIL(err, FORMAT, "a '%s' cannot be written as JSON", qn_jinja_val_type(v));
    }
}

static qn_status write_value(writer *w, const qn_jinja_val *v, qn_err *err) {
    QN_TRY(qn_jinja_charge(w->r, 0, err));
    QN_TRY(qn_jinja_enter(w->r, err));
    QN_TRY(write_inside(w, v, err));
    qn_jinja_leave(w->r);
    return qn_jinja_buf_check(w->to, err);
}

qn_status qn_jinja_val_json(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v,
                            const qn_jinja_json_style *style, qn_err *err) {
    writer w = {.to = to, .r = r, .style = style};
    return write_value(&w, v, err);
}

// --- the filter ----------------------------------------------------------------------------------

static qn_status read_indent(qn_jinja_json_style *style, const qn_jinja_val *v, qn_err *err) {
    static const char blanks[] = "                                ";
    if (v->kind == QN_VAL_ABSENT || v->kind == QN_VAL_NONE) return QN_OK;
    style->is_indented = true;
    style->comma = qn_str_of(",");
    if (v->kind == QN_VAL_TEXT) {
        style->indent = v->as.s;
        return QN_OK;
    }
    if (!qn_jinja_val_is_whole(v))
        return QN_FAIL(err, FORMAT, "an indentation that is a '%s'", qn_jinja_val_type(v));
    const int64_t width = qn_jinja_val_whole(v);
    if (width >= (int64_t)sizeof blanks)
        return QN_FAIL(err, LIMIT, "an indentation of %lld", (long long)width);
    style->indent = (qn_str){blanks, width > 0 ? (size_t)width : 0};
    return QN_OK;
}

static qn_status read_separators(qn_jinja_json_style *style, qn_jinja_run *r, const qn_jinja_val *v,
                                 qn_err *err) {
    const qn_jinja_val *items;
    size_t n;
    if (v->kind == QN_VAL_ABSENT || v->kind == QN_VAL_NONE) return QN_OK;
    QN_TRY(qn_jinja_val_items(&items, &n, r, v, err));
    if (n != 2 || items[0].kind != QN_VAL_TEXT || items[1].kind != QN_VAL_TEXT)
        return QN_FAIL(err, FORMAT, "the separators are not two texts");
    style->comma = items[0].as.s;
    style->colon = items[1].as.s;
    return QN_OK;
}

qn_status qn_jinja_filter_tojson(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                 qn_err *err) {
    qn_jinja_json_style style = {.ascii = qn_jinja_arg_bool(in, 0, false),
                                 .sorted = qn_jinja_arg_bool(in, 3, false),
                                 .comma = qn_str_of(", "),
                                 .colon = qn_str_of(": ")};
    QN_TRY(read_indent(&style, &in->a[1], err));
    QN_TRY(read_separators(&style, r, &in->a[2], err));
    qn_buf buf = qn_jinja_buf(r);
    const qn_status status = qn_jinja_val_json(&buf, r, in->self, &style, err);
    if (!status) return qn_jinja_text(out, r, &buf, err);
    qn_buf_deinit(&buf);
    return status;
}
