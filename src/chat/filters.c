// The table of filters, and those of texts and numbers.
#include "chat/builtins.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// --- any value -----------------------------------------------------------------------------------

QN_BUILTIN(filter_default) {
    (void)r, (void)err;
    const bool is_missing = in->self->kind == QN_VAL_UNDEFINED ||
                            (qn_jinja_arg_bool(in, 1, false) && !qn_jinja_val_is_true(in->self));
    *out = *in->self;
    if (is_missing)
        *out = qn_jinja_arg_is_given(in, 0) ? in->a[0] : qn_jinja_val_text(qn_str_of(""));
    return QN_OK;
}

QN_BUILTIN(filter_length) {
    size_t n;
    QN_TRY(qn_jinja_val_length(&n, r, in->self, err));
    *out = qn_jinja_val_int((int64_t)n);
    return QN_OK;
}

QN_BUILTIN(filter_list) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    QN_TRY(qn_jinja_spend(r, n, QN_PER_ITEM, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, n, err));
    if (n) memcpy(out->as.list->items, items, n * sizeof *items);
    return QN_OK;
}

QN_BUILTIN(filter_first) {
    const bool wants_last = in->row->choice;
    const qn_jinja_val *items;
    size_t n;
    if (wants_last && in->self->kind == QN_VAL_LAZY)
        return QN_FAIL(err, FORMAT, "the last item of a generator");
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    if (n)
        *out = items[wants_last ? n - 1 : 0];
    else
        *out = qn_jinja_val_undefined(qn_str_of("an item of an empty list"));
    if (n && in->self->kind == QN_VAL_LAZY) { // the others can still be read
        in->self->as.lazy->items++;
        in->self->as.lazy->n = n - 1;
    }
    return QN_OK;
}

QN_BUILTIN(make_reversed) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, in->self, err));
    QN_TRY(qn_jinja_spend(r, n, QN_PER_ITEM, err));
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, n, err));
    for (size_t i = 0; i < n; i++) out->as.list->items[i] = items[n - 1 - i];
    return QN_OK;
}

QN_BUILTIN(filter_reverse) {
    const qn_jinja_val bounds[3] = {qn_jinja_val_none(), qn_jinja_val_none(), qn_jinja_val_int(-1)};
    if (in->self->kind == QN_VAL_TEXT) return qn_jinja_val_slice(out, r, in->self, bounds, err);
    if (in->self->kind != QN_VAL_LAZY) QN_TRY(make_reversed(out, r, in, err));
    return qn_jinja_lazy_make(out, r, in, make_reversed, err);
}

QN_BUILTIN(filter_attr) {
    const qn_jinja_val *self = in->self;
    QN_TRY(qn_jinja_val_defined(self, err));
    if (in->a[0].kind != QN_VAL_TEXT) return QN_FAIL(err, FORMAT, "attr needs a name");
    if (self->kind != QN_VAL_DICT) return qn_jinja_val_attr(out, r, self, in->a[0].as.s, err);
    const qn_jinja_val empty = {.kind = QN_VAL_DICT, .as.dict = &(qn_jinja_dict){0}};
    return qn_jinja_val_attr(out, r, &empty, in->a[0].as.s, err); // methods, not keys
}

// --- texts ---------------------------------------------------------------------------------------

QN_BUILTIN(filter_string) {
    *out = *in->self;
    if (out->kind == QN_VAL_TEXT) return QN_OK;
    qn_str text;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    *out = qn_jinja_val_text(text);
    return QN_OK;
}

QN_BUILTIN(filter_safe) {
    QN_TRY(filter_string(out, r, in, err));
    out->mark = 1;
    return QN_OK;
}

QN_BUILTIN(filter_escape) {
    *out = *in->self;
    if (out->kind == QN_VAL_TEXT && out->mark && !in->row->choice) return QN_OK;
    qn_str text;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, text.size, QN_PER_CHAR, err));
    qn_jinja_text_escape(&buf, text);
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = 1;
    return QN_OK;
}

QN_BUILTIN(filter_case) {
    QN_TRY(filter_string(out, r, in, err));
    const unsigned char mark = out->mark;
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, out->as.s.size, 1, err));
    qn_jinja_text_recase(&buf, out->as.s, (qn_jinja_case)in->row->choice);
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = mark;
    return QN_OK;
}

// Words begin after blanks, hyphens and opening brackets.
QN_BUILTIN(filter_title) {
    QN_TRY(filter_string(out, r, in, err));
    const qn_str s = out->as.s;
    qn_buf buf = qn_jinja_buf(r);
    bool is_first = true;
    QN_TRY(qn_jinja_spend(r, 2 * s.size, 1, err));
    for (size_t at = 0; at < s.size;) {
        uint32_t code;
        const size_t n = qn_jinja_char_at(s, at, &code);
        qn_jinja_text_recase(&buf, qn_jinja_str_part(s, at, at + n),
                             is_first ? QN_CASE_UPPER : QN_CASE_LOWER);
        is_first =
            qn_jinja_char_is_space(code) || (code < 128 && code && strchr("-({[<", (int)code));
        at += n;
    }
    return qn_jinja_text(out, r, &buf, err);
}

QN_BUILTIN(filter_trim) {
    qn_str set = {0};
    QN_TRY(filter_string(out, r, in, err));
    QN_TRY(qn_jinja_arg_text(&set, in, 0, err));
    return qn_jinja_text_strip_paid(&out->as.s, r, set.data ? &set : NULL, true, true, err);
}

QN_BUILTIN(filter_replace) {
    qn_str old = {0}, new = {0}, text;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    QN_TRY(qn_jinja_val_str(&old, r, &in->a[0], err));
    QN_TRY(qn_jinja_val_str(&new, r, &in->a[1], err));
    qn_jinja_val args[3] = {qn_jinja_val_text(old), qn_jinja_val_text(new), qn_jinja_val_int(-1)};
    if (in->a[2].kind != QN_VAL_ABSENT && in->a[2].kind != QN_VAL_NONE) args[2] = in->a[2];
    bool is_unsafe;
    const qn_jinja_val self = qn_jinja_val_text(text);
    const qn_jinja_builtin *row = qn_jinja_method_find(&self, qn_str_of("replace"), &is_unsafe);
    return qn_jinja_builtin_call(out, r, row, &self, &(qn_jinja_args){.items = args, .n = 3}, err);
}

static void indent_lines(qn_buf *to, qn_str s, qn_str indent, bool first, bool blank) {
    bool is_first = true;
    for (size_t at = 0;;) {
        const size_t newline = qn_jinja_text_find(s, (qn_str){"\n", 1}, at);
        const size_t end = newline == SIZE_MAX ? s.size : newline;
        const bool is_wanted = is_first ? first : blank || end > at;
        if (is_wanted) qn_buf_add(to, indent.data, indent.size);
        qn_buf_add(to, s.data + at, end - at);
        if (newline == SIZE_MAX) return;
        qn_buf_add(to, "\n", 1);
        at = end + 1;
        is_first = false;
    }
}

QN_BUILTIN(filter_indent) {
    enum { MAX_WIDTH = 1000 };
    static const char blanks[] = "                                                            ";
    int64_t width = 4;
    qn_str indent = {0};
    char wide[MAX_WIDTH];
    if (in->a[0].kind == QN_VAL_TEXT)
        indent = in->a[0].as.s;
    else
        QN_TRY(qn_jinja_arg_int(&width, in, 0, err));
    if (width > MAX_WIDTH) return QN_FAIL(err, LIMIT, "an indentation of %lld", (long long)width);
    if (width < 0) width = 0;
    if (!indent.data) {
        memset(wide, ' ', sizeof wide);
        indent = (qn_str){width < (int64_t)sizeof blanks ? blanks : wide, (size_t)width};
    }
    QN_TRY(qn_jinja_val_defined(in->self, err));
    if (in->self->kind != QN_VAL_TEXT)
        return QN_FAIL(err, FORMAT, "indent of a '%s', not of a text", qn_jinja_val_type(in->self));
    const qn_str text = in->self->as.s;
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, text.size * QN_COST_MATCH, 1, err));
    indent_lines(&buf, text, indent, qn_jinja_arg_bool(in, 1, false),
                 qn_jinja_arg_bool(in, 2, false));
    return qn_jinja_text(out, r, &buf, err);
}

QN_BUILTIN(filter_format) {
    qn_str text;
    qn_jinja_val values;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    QN_TRY(qn_jinja_val_list_make(&values, r, QN_VAL_TUPLE, in->args->n, err));
    if (in->args->n_named) return QN_FAIL(err, UNSUPPORTED, "format with names");
    for (size_t i = 0; i < in->args->n; i++) values.as.list->items[i] = in->args->items[i];
    return qn_jinja_text_percent(out, r, text, &values, err);
}

QN_BUILTIN(filter_wordcount) {
    qn_str text;
    int64_t n = 0;
    bool in_word = false;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    QN_TRY(qn_jinja_spend(r, text.size, QN_PER_CHAR, err));
    for (size_t at = 0; at < text.size;) {
        uint32_t code;
        at += qn_jinja_char_at(text, at, &code);
        const bool is_word = code == '_' || qn_jinja_char_is_alnum(code);
        n += is_word && !in_word;
        in_word = is_word;
    }
    *out = qn_jinja_val_int(n);
    return QN_OK;
}

// --- numbers -------------------------------------------------------------------------------------

// A number with blanks around it and nothing else; the text must be one that strtod reads alike in
// every locale.
static bool read_real(double *out, qn_str s) {
    char copy[64];
    s = qn_jinja_text_strip(s, NULL, true, true);
    if (s.size == 0 || s.size >= sizeof copy) return false;
    for (size_t i = 0; i < s.size; i++) {
        if (!strchr("0123456789+-.eE", s.data[i]) || !s.data[i]) return false;
    }
    char digits[64];
    size_t n = 0;
    long shift = 0;
    bool is_fraction = false;
    size_t i = 0;
    for (; i < s.size && (s.data[i] | 0x20) != 'e'; i++) {
        if (s.data[i] == '.' && is_fraction) return false;
        if (s.data[i] == '.')
            is_fraction = true;
        else
            digits[n++] = s.data[i];
        shift -= is_fraction && s.data[i] != '.';
    }
    if (i < s.size) {
        memcpy(copy, s.data + i + 1, s.size - i - 1);
        copy[s.size - i - 1] = 0;
        char *end;
        if (!copy[0]) return false;
        const long exponent = strtol(copy, &end, 10);
        if (*end || exponent > 100000 || exponent < -100000) return false;
        shift += exponent;
    }
    if (n > 48) return false;
    snprintf(digits + n, sizeof digits - n, "e%ld", shift);
    char *end;
    *out = strtod(digits, &end);
    return *end == 0 && end != digits;
}

// "42" in a base from 2 to 36, with blanks around it and a sign.
static bool read_whole(int64_t *out, qn_str s, int64_t base) {
    s = qn_jinja_text_strip(s, NULL, true, true);
    size_t i = s.size && (s.data[0] == '-' || s.data[0] == '+');
    const bool is_negative = i && s.data[0] == '-';
    if (i == s.size) return false;
    *out = 0;
    for (; i < s.size; i++) {
        const char c = s.data[i];
        int64_t digit = 99;
        if (c >= '0' && c <= '9') digit = c - '0';
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') digit = (c | 0x20) - 'a' + 10;
        if (digit >= base) return false;
        if (__builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, is_negative ? -digit : digit, out))
            return false;
    }
    return true;
}

static bool fits_whole(double f) { return f > -9.2e18 && f < 9.2e18; }

// For a text that may be a number with blanks around it.
static qn_status spend_number(qn_jinja_run *r, const qn_jinja_val *v, qn_err *err) {
    if (v->kind != QN_VAL_TEXT) return QN_OK;
    return qn_jinja_spend(r, QN_COST_NUMBER + v->as.s.size / QN_PER_CHAR, 1, err);
}

QN_BUILTIN(filter_int) {
    int64_t base = 10;
    const qn_jinja_val *v = in->self;
    double real;
    QN_TRY(spend_number(r, v, err));
    *out = qn_jinja_arg_is_given(in, 0) ? in->a[0] : qn_jinja_val_int(0);
    QN_TRY(qn_jinja_val_defined(v, err));
    QN_TRY(qn_jinja_arg_int(&base, in, 1, err));
    if (base < 2 || base > 36) return QN_FAIL(err, FORMAT, "numbers of base %lld", (long long)base);
    int64_t whole;
    if (qn_jinja_val_is_whole(v))
        *out = qn_jinja_val_int(qn_jinja_val_whole(v));
    else if (v->kind == QN_VAL_FLOAT && fits_whole(v->as.f))
        *out = qn_jinja_val_int((int64_t)v->as.f);
    else if (v->kind == QN_VAL_TEXT && read_whole(&whole, v->as.s, base))
        *out = qn_jinja_val_int(whole);
    else if (v->kind == QN_VAL_TEXT && read_real(&real, v->as.s) && fits_whole(real))
        *out = qn_jinja_val_int((int64_t)real);
    return QN_OK;
}

QN_BUILTIN(filter_float) {
    double real;
    QN_TRY(spend_number(r, in->self, err));
    QN_TRY(qn_jinja_val_defined(in->self, err));
    *out = qn_jinja_arg_is_given(in, 0) ? in->a[0] : qn_jinja_val_float(0);
    if (qn_jinja_val_is_number(in->self)) *out = qn_jinja_val_float(qn_jinja_val_real(in->self));
    if (in->self->kind == QN_VAL_TEXT && read_real(&real, in->self->as.s))
        *out = qn_jinja_val_float(real);
    return QN_OK;
}

static qn_status want_number(const qn_jinja_in *in, qn_err *err) {
    QN_TRY(qn_jinja_val_defined(in->self, err));
    if (qn_jinja_val_is_number(in->self)) return QN_OK;
    return QN_FAIL(err, FORMAT, "%s of a '%s'", in->row->name, qn_jinja_val_type(in->self));
}

QN_BUILTIN(filter_abs) {
    const qn_jinja_val factor = qn_jinja_val_int(-1);
    QN_TRY(want_number(in, err));
    if (qn_jinja_val_real(in->self) < 0)
        return qn_jinja_val_math(out, r, QN_MATH_MUL, in->self, &factor, err);
    *out =
        in->self->kind == QN_VAL_BOOL ? qn_jinja_val_int(qn_jinja_val_whole(in->self)) : *in->self;
    return QN_OK;
}

// By the digits of the number, not by its binary form multiplied: 2.675 becomes 2.67, and halves
// that are exact go to the even neighbour.
static double round_at(double x, int64_t precision) {
    char text[400];
    if (precision < 0) {
        const double unit = pow(10, (double)-precision);
        return nearbyint(x / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return strtod(text, NULL);
}

QN_BUILTIN(filter_round) {
    int64_t precision = 0;
    qn_str method = qn_str_of("common");
    QN_TRY(want_number(in, err));
    QN_TRY(qn_jinja_spend(r, QN_COST_REAL, 1, err));
    QN_TRY(qn_jinja_arg_int(&precision, in, 0, err));
    QN_TRY(qn_jinja_arg_text(&method, in, 1, err));
    const double x = qn_jinja_val_real(in->self), unit = pow(10, (double)precision);
    if (precision > 20 || precision < -20)
        return QN_FAIL(err, LIMIT, "rounding to %lld digits", (long long)precision);
    if (qn_str_is(method, "ceil"))
        *out = qn_jinja_val_float(ceil(x * unit) / unit);
    else if (qn_str_is(method, "floor"))
        *out = qn_jinja_val_float(floor(x * unit) / unit);
    else if (qn_str_is(method, "common"))
        *out = qn_jinja_val_float(round_at(x, precision));
    else
        return QN_FAIL(err, FORMAT, "round by 'common', 'ceil' or 'floor' only");
    if (qn_jinja_val_is_whole(in->self) && qn_str_is(method, "common") && precision >= 0)
        *out = qn_jinja_val_int(qn_jinja_val_whole(in->self)); // as round() of a whole number
    return QN_OK;
}

// --- the table -----------------------------------------------------------------------------------

static const qn_jinja_builtin filters[] = {
    {"abs", filter_abs, "", 0, 0},
    {"attr", filter_attr, "name", 1, 0},
    {"batch", NULL, "", 0, 0},
    {"capitalize", filter_case, "", 0, QN_CASE_CAPITAL},
    {"center", NULL, "", 0, 0},
    {"count", filter_length, "", 0, 0},
    {"d", filter_default, "default_value boolean", 0, 0},
    {"default", filter_default, "default_value boolean", 0, 0},
    {"dictsort", qn_jinja_filter_dictsort, "case_sensitive by reverse", 0, 0},
    {"e", filter_escape, "", 0, 0},
    {"escape", filter_escape, "", 0, 0},
    {"filesizeformat", NULL, "", 0, 0},
    {"first", filter_first, "", 0, 0},
    {"float", filter_float, "default", 0, 0},
    {"forceescape", filter_escape, "", 0, 1},
    {"format", filter_format, "*", 0, 0},
    {"groupby", NULL, "", 0, 0},
    {"indent", filter_indent, "width first blank", 0, 0},
    {"int", filter_int, "default base", 0, 0},
    {"items", qn_jinja_filter_items, "", 0, 0},
    {"join", qn_jinja_filter_join, "d attribute", 0, 0},
    {"last", filter_first, "", 0, 1},
    {"length", filter_length, "", 0, 0},
    {"list", filter_list, "", 0, 0},
    {"lower", filter_case, "", 0, QN_CASE_LOWER},
    {"map", qn_jinja_filter_map, "*", 0, 0},
    {"max", qn_jinja_filter_extreme, "case_sensitive attribute", 0, 1},
    {"min", qn_jinja_filter_extreme, "case_sensitive attribute", 0, 0},
    {"pprint", NULL, "", 0, 0},
    {"random", NULL, "", 0, 0},
    {"reject", qn_jinja_filter_select, "*", 0, QN_REJECT},
    {"rejectattr", qn_jinja_filter_select, "*", 1, QN_REJECT_ATTR},
    {"replace", filter_replace, "old new count", 2, 0},
    {"reverse", filter_reverse, "", 0, 0},
    {"round", filter_round, "precision method", 0, 0},
    {"safe", filter_safe, "", 0, 0},
    {"select", qn_jinja_filter_select, "*", 0, QN_SELECT},
    {"selectattr", qn_jinja_filter_select, "*", 1, QN_SELECT_ATTR},
    {"slice", NULL, "", 0, 0},
    {"sort", qn_jinja_filter_sort, "reverse case_sensitive attribute", 0, 0},
    {"string", filter_string, "", 0, 0},
    {"striptags", NULL, "", 0, 0},
    {"sum", qn_jinja_filter_sum, "attribute start", 0, 0},
    {"title", filter_title, "", 0, 0},
    {"tojson", qn_jinja_filter_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
    {"trim", filter_trim, "chars", 0, 0},
    {"truncate", NULL, "", 0, 0},
    {"unique", qn_jinja_filter_unique, "case_sensitive attribute", 0, 0},
    {"upper", filter_case, "", 0, QN_CASE_UPPER},
    {"urlencode", NULL, "", 0, 0},
    {"urlize", NULL, "", 0, 0},
    {"wordcount", filter_wordcount, "", 0, 0},
    {"wordwrap", NULL, "", 0, 0},
    {"xmlattr", NULL, "", 0, 0},
};

const qn_jinja_builtin *qn_jinja_filter_find(qn_str name) {
    return qn_jinja_rows_find(filters, sizeof filters / sizeof *filters, name);
}
