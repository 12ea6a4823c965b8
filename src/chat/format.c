// Texts with places for values: "%s" % x and "{}".format(x).
#include "chat/chat_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// One place, as both languages describe it.
typedef struct field {
    char kind; // s, r, d, f, ...; 0: as the value is
    bool is_left, is_right, is_centred, has_sign, has_blank, is_zero, has_comma;
    qn_str fill; // one character; none: a blank
    int64_t width;
    int precision; // -1: none
} field;

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

static qn_status read_int(int64_t *out, qn_str s, size_t *at, qn_err *err) {
    *out = 0;
    for (; *at < s.size && s.data[*at] >= '0' && s.data[*at] <= '9'; ++*at) {
        *out = *out * 10 + (s.data[*at] - '0');
        if (*out > MAX_WIDTH) return QN_FAIL(err, LIMIT, "a field wider than %d", (int)MAX_WIDTH);
    }
    return QN_OK;
}

static qn_status read_precision(field *f, qn_str s, size_t *at, qn_err *err) {
    int64_t precision;
    if (*at >= s.size || s.data[*at] != '.') return QN_OK;
    ++*at;
    QN_TRY(read_int(&precision, s, at, err));
    if (precision > MAX_PRECISION && f->kind != 's')
        return QN_FAIL(err, LIMIT, "a precision of more than %d", (int)MAX_PRECISION);
    f->precision = (int)precision;
    return QN_OK;
}

// --- numbers -------------------------------------------------------------------------------------

static void add_grouped(qn_buf *to, const char *digits, size_t n) {
    size_t whole = 0;
    while (whole < n && digits[whole] >= '0' && digits[whole] <= '9') whole++;
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0) qn_buf_add(to, ",", 1);
        qn_buf_add(to, digits + i, 1);
    }
    qn_buf_add(to, digits + whole, n - whole);
}

static qn_status whole_digits(qn_buf *to, char kind, int64_t value, qn_err *err) {
    const uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    switch (kind) {
    case 'x':
        qn_buf_printf(to, "%" PRIx64, size);
        return QN_OK;
    case 'X':
        qn_buf_printf(to, "%" PRIX64, size);
        return QN_OK;
    case 'o':
        qn_buf_printf(to, "%" PRIo64, size);
        return QN_OK;
    case 'b': {
        int bit = 63;
        while (bit > 0 && !(size >> bit & 1)) bit--;
        for (; bit >= 0; bit--) qn_buf_add(to, size >> bit & 1 ? "1" : "0", 1);
        return QN_OK;
    }
    case 0:
    case 'n':
    case 'd':
    case 'i':
    case 'u':
        qn_buf_printf(to, "%" PRIu64, size);
        return QN_OK;
    default:
        return QN_FAIL(err, FORMAT, "a whole number as '%c'", kind);
    }
}

static qn_status real_digits(qn_buf *to, const field *f, double value, qn_err *err) {
    const double size = fabs(value);
    const int precision = f->precision < 0 ? 6 : f->precision;
    char digits[512];
    switch (f->kind) {
    case 'f':
    case 'F':
        snprintf(digits, sizeof digits, "%.*f", precision, size);
        break;
    case 'e':
        snprintf(digits, sizeof digits, "%.*e", precision, size);
        break;
    case 'E':
        snprintf(digits, sizeof digits, "%.*E", precision, size);
        break;
    case 'g':
        snprintf(digits, sizeof digits, "%.*g", precision, size);
        break;
    case '%':
        snprintf(digits, sizeof digits, "%.*f%%", precision, size * 100);
        break;
    case 0:
        if (f->precision < 0) {
            qn_jinja_double_print(to, size);
            return QN_OK;
        }
        snprintf(digits, sizeof digits, "%.*g", precision ? precision : 1, size);
        break;
    default:
        return QN_FAIL(err, FORMAT, "a number as '%c'", f->kind);
    }
    char *comma = strchr(digits, ','); // of a locale
    if (comma) *comma = '.';
    qn_buf_text(to, digits);
    return QN_OK;
}

// --- the field around them -----------------------------------------------------------------------

static void add_fill(qn_buf *to, const field *f, int64_t n) {
    for (; n > 0; n--)
        qn_buf_add(to, f->fill.size ? f->fill.data : " ", f->fill.size ? f->fill.size : 1);
}

static void add_padded(qn_buf *to, const field *f, qn_str s, bool is_right) {
    const int64_t missing = f->width - (int64_t)qn_jinja_text_length(s);
    int64_t before = f->is_right || (is_right && !f->is_left && !f->is_centred) ? missing : 0;
    if (f->is_centred) before = missing / 2;
    add_fill(to, f, before);
    qn_buf_add(to, s.data, s.size);
    add_fill(to, f, missing - (before > 0 ? before : 0));
}

static qn_status add_number(qn_buf *to, qn_jinja_run *r, const field *f, const qn_jinja_val *v,
                            qn_err *err) {
    const bool as_real = v->kind == QN_VAL_FLOAT || (f->kind && strchr("fFeEg%", f->kind));
    const bool is_negative =
        v->kind == QN_VAL_FLOAT ? signbit(v->as.f) && !isnan(v->as.f) : qn_jinja_val_whole(v) < 0;
    const size_t width = f->width > 0 ? (size_t)f->width : 0;
    QN_TRY(qn_jinja_spend(r, (as_real ? QN_COST_REAL : QN_COST_NUMBER) + width, 1, err));
    qn_buf digits = {0}, all = {0};
    qn_status status = as_real ? real_digits(&digits, f, qn_jinja_val_real(v), err)
                               : whole_digits(&digits, f->kind, qn_jinja_val_whole(v), err);
    qn_buf_text(&all, is_negative ? "-" : f->has_sign ? "+" : f->has_blank ? " " : "");
    const int64_t missing = f->width - (int64_t)all.size - (int64_t)digits.size;
    for (int64_t i = 0; f->is_zero && i < missing; i++) qn_buf_add(&all, "0", 1);
    if (f->has_comma && digits.data)
        add_grouped(&all, digits.data, digits.size);
    else
        qn_buf_add(&all, digits.data, digits.size);
    if (digits.failed || all.failed) to->failed = true;
    if (!status) add_padded(to, f, (qn_str){all.data, all.size}, true);
    qn_buf_deinit(&digits);
    qn_buf_deinit(&all);
    return status;
}

static qn_status add_text(qn_buf *to, qn_jinja_run *r, const field *f, const qn_jinja_val *v,
                          bool is_right, qn_err *err) {
    qn_str s;
    if (f->kind == 'r') {
        qn_buf buf = qn_jinja_buf(r);
        qn_jinja_val text;
        const qn_status status = qn_jinja_val_repr(&buf, r, v, err);
        if (status) {
            qn_buf_deinit(&buf);
            return status;
        }
        QN_TRY(qn_jinja_text(&text, r, &buf, err));
        s = text.as.s;
    } else {
        QN_TRY(qn_jinja_val_str(&s, r, v, err));
    }
    if (f->precision >= 0)
        s = qn_jinja_str_part(s, 0, qn_jinja_text_offset(s, (size_t)f->precision));
    QN_TRY(qn_jinja_text_pay_length(r, s, err));
    QN_TRY(qn_jinja_spend(r, (size_t)f->width, QN_PER_CHAR, err));
    add_padded(to, f, s, is_right);
    return QN_OK;
}

// --- percent -------------------------------------------------------------------------------------

typedef struct percent {
    const qn_jinja_val *values; // (n)
    size_t n, i;
    const qn_jinja_val *all; // the right side, for %(name)s
} percent;

static qn_status next_value(const qn_jinja_val **out, percent *p, qn_jinja_run *r, qn_str s,
                            size_t *at, qn_err *err) {
    if (*at < s.size && s.data[*at] == '(') {
        const size_t end = qn_jinja_text_find(s, (qn_str){")", 1}, *at);
        qn_jinja_val *value = NULL;
        if (end == SIZE_MAX || p->all->kind != QN_VAL_DICT)
            return QN_FAIL(err, FORMAT, "%%(...) needs a name and a dict");
        const qn_jinja_val key = qn_jinja_val_text(qn_jinja_str_part(s, *at + 1, end));
        QN_TRY(qn_jinja_dict_find(&value, r, p->all->as.dict, &key, err));
        if (!value) return QN_FAIL(err, FORMAT, "%%(...): the dict has no such key");
        *at = end + 1;
        *out = value;
        p->i = p->n;
        return QN_OK;
    }
    *out = NULL;
    return QN_OK;
}

static qn_status add_percent(qn_buf *to, qn_jinja_run *r, qn_str s, size_t *at, percent *p,
                             qn_err *err) {
    field f = {.precision = -1};
    const qn_jinja_val *value;
    QN_TRY(qn_jinja_spend(r, QN_COST_NUMBER, 1, err));
    QN_TRY(next_value(&value, p, r, s, at, err));
    for (bool is_flag = true; is_flag && *at < s.size;) {
        const char c = s.data[*at];
        is_flag = c && strchr("-+ 0#", c);
        f.is_left |= c == '-';
        f.has_sign |= c == '+';
        f.has_blank |= c == ' ';
        f.is_zero |= c == '0';
        *at += is_flag;
    }
    QN_TRY(read_int(&f.width, s, at, err));
    QN_TRY(read_precision(&f, s, at, err));
    if (*at == s.size) return QN_FAIL(err, FORMAT, "the format ends after '%%'");
    f.kind = s.data[(*at)++];
    if (f.is_left) f.is_zero = false;
    if (f.kind == '%') {
        qn_buf_add(to, "%", 1);
        return QN_OK;
    }
    if (!value && p->i == p->n) return QN_FAIL(err, FORMAT, "%zu values are too few", p->n);
    if (!value) value = &p->values[p->i++];
    if (f.kind == 's' || f.kind == 'r') return add_text(to, r, &f, value, true, err);
    QN_TRY(qn_jinja_val_defined(value, err));
    if (!qn_jinja_val_is_number(value) || !strchr("diuxXofFeEg", f.kind))
        return QN_FAIL(err, FORMAT, "a '%s' as '%%%c'", qn_jinja_val_type(value), f.kind);
    qn_jinja_val number = *value;
    if (strchr("diu", f.kind) && number.kind == QN_VAL_FLOAT) {
        if (!(fabs(number.as.f) < 9.2e18)) return QN_FAIL(err, FORMAT, "a float as '%%%c'", f.kind);
        number = qn_jinja_val_int((int64_t)number.as.f);
    }
    return add_number(to, r, &f, &number, err);
}

static qn_status print_percent(qn_buf *to, qn_jinja_run *r, qn_str s, percent *p, qn_err *err) {
    for (size_t at = 0; at < s.size;) {
        if (s.data[at] != '%') {
            qn_buf_add(to, s.data + at++, 1);
            continue;
        }
        at++;
        QN_TRY(add_percent(to, r, s, &at, p, err));
        QN_TRY(qn_jinja_buf_check(to, err));
    }
    // Dicts and lists may have more than is asked for.
    if (p->i < p->n && p->all->kind != QN_VAL_DICT && p->all->kind != QN_VAL_LIST)
        return QN_FAIL(err, FORMAT, "%zu values are too many", p->n);
    return QN_OK;
}

qn_status qn_jinja_text_percent(qn_jinja_val *out, qn_jinja_run *r, qn_str format,
                                const qn_jinja_val *v, qn_err *err) {
    percent p = {.values = v, .n = 1, .all = v};
    if (v->kind == QN_VAL_TUPLE) {
        p.values = v->as.list->items;
        p.n = v->as.list->n;
    }
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, format.size, QN_PER_CHAR, err));
    const qn_status status = print_percent(&buf, r, format, &p, err);
    if (!status) return qn_jinja_text(out, r, &buf, err);
    qn_buf_deinit(&buf);
    return status;
}

// --- braces --------------------------------------------------------------------------------------

static bool is_align(char c) { return c == '<' || c == '>' || c == '^'; }

// [[fill]align][sign][0][width][,][.precision][kind]
static qn_status read_spec(field *f, qn_str s, qn_err *err) {
    size_t at = 0;
    uint32_t code;
    const size_t first = s.size ? qn_jinja_char_at(s, 0, &code) : 0;
    if (first && first < s.size && is_align(s.data[first])) {
        f->fill = qn_jinja_str_part(s, 0, first);
        at = first;
    }
    if (at < s.size && is_align(s.data[at])) {
        f->is_left = s.data[at] == '<';
        f->is_right = s.data[at] == '>';
        f->is_centred = s.data[at] == '^';
        at++;
    }
    if (at < s.size && (s.data[at] == '+' || s.data[at] == '-' || s.data[at] == ' ')) {
        f->has_sign = s.data[at] == '+';
        f->has_blank = s.data[at] == ' ';
        at++;
    }
    if (at < s.size && s.data[at] == '0' && !f->fill.size) f->is_zero = true;
    QN_TRY(read_int(&f->width, s, &at, err));
    if (at < s.size && s.data[at] == ',') f->has_comma = ++at;
    QN_TRY(read_precision(f, s, &at, err));
    if (at < s.size && s.data[at]) f->kind = s.data[at++];
    if (at < s.size) return QN_FAIL(err, FORMAT, "a format that is not understood");
    return QN_OK;
}

// The value that a field names: {}, {0} or {name}.
static qn_status find_field(const qn_jinja_val **out, qn_str name, const qn_jinja_args *args,
                            size_t *next, qn_err *err) {
    size_t at = 0;
    int64_t index = 0;
    QN_TRY(read_int(&index, name, &at, err));
    const bool is_number = at == name.size;
    if (name.size == 0) index = (int64_t)(*next)++;
    for (size_t i = 0; i < args->n_named && !is_number; i++) {
        *out = &args->named[i];
        if (qn_jinja_str_same(args->names[i], name)) return QN_OK;
    }
    if (!is_number || (size_t)index >= args->n)
        return QN_FAIL(err, FORMAT, "format has no value for '{%.*s}'",
                       (int)(name.size < 80 ? name.size : 80), name.data);
    *out = &args->items[index];
    return QN_OK;
}

static qn_status add_field(qn_buf *to, qn_jinja_run *r, qn_str text, const qn_jinja_args *args,
                           size_t *next, qn_err *err) {
    field f = {.precision = -1};
    const qn_jinja_val *value;
    QN_TRY(qn_jinja_spend(r, QN_COST_NUMBER + args->n_named / QN_PER_ITEM, 1, err));
    const size_t colon = qn_jinja_text_find(text, (qn_str){":", 1}, 0);
    qn_str name = colon == SIZE_MAX ? text : qn_jinja_str_part(text, 0, colon);
    const size_t bang = qn_jinja_text_find(name, (qn_str){"!", 1}, 0);
    if (colon != SIZE_MAX)
        QN_TRY(read_spec(&f, qn_jinja_str_part(text, colon + 1, text.size), err));
    if (bang != SIZE_MAX) {
        const qn_str how = qn_jinja_str_part(name, bang + 1, name.size);
        if (!qn_str_is(how, "r") && !qn_str_is(how, "s"))
            return QN_FAIL(err, FORMAT, "a conversion that is neither !r nor !s");
        f.kind = how.data[0];
        name = qn_jinja_str_part(name, 0, bang);
    }
    QN_TRY(find_field(&value, name, args, next, err));
    const bool is_number = qn_jinja_val_is_number(value) && value->kind != QN_VAL_BOOL;
    if (bang == SIZE_MAX && is_number && f.kind != 's') return add_number(to, r, &f, value, err);
    if (f.kind && f.kind != 's' && f.kind != 'r')
        return QN_FAIL(err, FORMAT, "a '%s' as '%c'", qn_jinja_val_type(value), f.kind);
    return add_text(to, r, &f, value, false, err);
}

static qn_status print_fields(qn_buf *to, qn_jinja_run *r, qn_str s, const qn_jinja_args *args,
                              qn_err *err) {
    size_t next = 0;
    for (size_t at = 0; at < s.size; at++) {
        const char c = s.data[at];
        const bool is_double = at + 1 < s.size && s.data[at + 1] == c;
        if ((c != '{' && c != '}') || is_double) {
            at += is_double && (c == '{' || c == '}');
            qn_buf_add(to, &c, 1);
            continue;
        }
        const size_t end = qn_jinja_text_find(s, (qn_str){"}", 1}, at);
        if (c == '}' || end == SIZE_MAX)
            return QN_FAIL(err, FORMAT, "a single '%c' in a format", c);
        QN_TRY(add_field(to, r, qn_jinja_str_part(s, at + 1, end), args, &next, err));
        QN_TRY(qn_jinja_buf_check(to, err));
        at = end;
    }
    return QN_OK;
}

qn_status qn_jinja_text_format(qn_jinja_val *out, qn_jinja_run *r, qn_str format,
                               const qn_jinja_args *args, qn_err *err) {
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, format.size, QN_PER_CHAR, err));
    const qn_status status = print_fields(&buf, r, format, args, err);
    if (!status) return qn_jinja_text(out, r, &buf, err);
    qn_buf_deinit(&buf);
    return status;
}
