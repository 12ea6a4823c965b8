#include "ir/scan.h"

#include "core/chars.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "ir/share.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_LIMIT = 40, EXPONENT_LIMIT = 9999 };

qn_scan qn_scan_begin(const char *text, size_t size, qn_arena *arena, qn_err *err) {
    return (qn_scan){
        .at = text, .end = text + size, .line_begin = text, .line = 1, .arena = arena, .err = err};
}

qn_status qn_scan_place(const qn_scan *s, qn_status status, const char *place) {
    return qn_err_prefix(s->err, status, "line %zu, column %zu", s->line,
                         (size_t)(place - s->line_begin) + 1);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_word(char c) { return qn_is_digit(c) || is_letter(c) || c == '_'; }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

void qn_scan_skip(qn_scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r')) s->at++;
}

qn_status qn_scan_expected(qn_scan *s, const char *what) {
    qn_scan_skip(s);
    if (s->at == s->end)
        return QN_SCAN_FAIL(s, s->at, "expected %s, found the end of the text", what);
    if (*s->at == '\n')
        return QN_SCAN_FAIL(s, s->at, "expected %s, found the end of the line", what);
    size_t n = 0;
    while (n < 24 && s->at + n < s->end && is_word(s->at[n])) n++;
    return QN_SCAN_FAIL(s, s->at, "expected %s, found '%.*s'", what, n ? (int)n : 1, s->at);
}

bool qn_scan_take(qn_scan *s, char c) {
    qn_scan_skip(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

qn_status qn_scan_need(qn_scan *s, char c) {
    if (qn_scan_take(s, c)) return QN_OK;
    const char what[] = {'\'', c, '\'', 0};
    return qn_scan_expected(s, what);
}

qn_str qn_scan_peek(qn_scan *s) {
    qn_scan_skip(s);
    size_t n = 0;
    while (s->at + n < s->end && is_word(s->at[n])) n++;
    return (qn_str){s->at, n};
}

bool qn_scan_take_word(qn_scan *s, const char *word) {
    if (!qn_str_is(qn_scan_peek(s), word)) return false;
    s->at += strlen(word);
    return true;
}

bool qn_scan_is_blank(qn_scan *s) {
    qn_scan_skip(s);
    return s->at == s->end || *s->at == '\n' || *s->at == ';' || *s->at == '#';
}

qn_status qn_scan_end_line(qn_scan *s) {
    qn_scan_skip(s);
    if (s->at < s->end && (*s->at == ';' || *s->at == '#')) {
        while (s->at < s->end && *s->at != '\n') s->at++;
    }
    if (s->at == s->end) return QN_OK;
    if (*s->at != '\n') return qn_scan_expected(s, "the end of the line");
    s->line_begin = ++s->at;
    s->line++;
    return QN_OK;
}

qn_status qn_scan_int(qn_scan *s, int64_t *out, const char *what) {
    qn_scan_skip(s);
    const char *begin = s->at;
    const bool negative = qn_scan_take(s, '-');
    if (s->at == s->end || !qn_is_digit(*s->at)) {
        s->at = begin;
        return qn_scan_expected(s, what);
    }
    const uint64_t max = (uint64_t)INT64_MAX + negative;
    uint64_t value = 0;
    for (; s->at < s->end && qn_is_digit(*s->at); s->at++) {
        const uint64_t digit = (uint64_t)(*s->at - '0');
        if (value > (max - digit) / 10) return QN_SCAN_FAIL(s, begin, "%s is too large", what);
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)-value : (int64_t)value;
    return QN_OK;
}

// The bits of a float, after "0x".
static qn_status read_bits(qn_scan *s, float *out) {
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++, s->at++) {
        const int digit = s->at < s->end ? qn_hex_digit(*s->at) : -1;
        if (digit < 0) return qn_scan_expected(s, "8 hex digits");
        bits = bits << 4 | (uint32_t)digit;
    }
    memcpy(out, &bits, sizeof bits);
    return QN_OK;
}

typedef struct decimal {
    char digits[DIGITS_LIMIT + 1];
    int n, n_fraction;
    bool is_zero;
} decimal;

// Digits with at most one point among them, at most DIGITS_LIMIT; false if there are none or more.
static bool read_digits(qn_scan *s, decimal *d) {
    bool point = false;
    *d = (decimal){.is_zero = true};
    for (; s->at < s->end; s->at++) {
        if (*s->at == '.' && !point) {
            point = true;
            continue;
        }
        if (!qn_is_digit(*s->at)) break;
        if (d->n == DIGITS_LIMIT) return false;
        d->digits[d->n++] = *s->at;
        d->n_fraction += point;
        if (*s->at != '0') d->is_zero = false;
    }
    return d->n > 0;
}

static qn_status read_exponent(qn_scan *s, int64_t *exponent) {
    *exponent = 0;
    if (s->at == s->end || (*s->at != 'e' && *s->at != 'E')) return QN_OK;
    s->at++;
    if (s->at < s->end && *s->at == '+') s->at++;
    const char *begin = s->at;
    QN_TRY(qn_scan_int(s, exponent, "an exponent"));
    if (*exponent >= -EXPONENT_LIMIT && *exponent <= EXPONENT_LIMIT) return QN_OK;
    return QN_SCAN_FAIL(s, begin, "exponent %lld is out of range", (long long)*exponent);
}

// The point is moved into the exponent before strtof sees the number, because a locale may want
// another radix character.
static qn_status read_decimal(qn_scan *s, float *out) {
    const char *begin = s->at;
    decimal d;
    int64_t exponent;
    if (!read_digits(s, &d)) {
        s->at = begin;
        return qn_scan_expected(s, "a number of at most 40 digits");
    }
    QN_TRY(read_exponent(s, &exponent));
    char text[DIGITS_LIMIT + 16];
    snprintf(text, sizeof text, "%se%d", d.digits, (int)exponent - d.n_fraction);
    const float value = strtof(text, NULL);
    if (isinf(value) || (value == 0 && !d.is_zero))
        return QN_SCAN_FAIL(s, begin, "%s is out of the range of a float", text);
    *out = value;
    return QN_OK;
}

qn_status qn_scan_float(qn_scan *s, float *out) {
    qn_scan_skip(s);
    if (s->end - s->at > 2 && s->at[0] == '0' && s->at[1] == 'x') {
        s->at += 2;
        return read_bits(s, out);
    }
    const bool negative = qn_scan_take(s, '-');
    if (qn_str_is(qn_scan_peek(s), "inf")) {
        s->at += 3;
        *out = INFINITY;
    } else {
        QN_TRY(read_decimal(s, out));
    }
    if (negative) *out = -*out;
    return QN_OK;
}

// One character or escape of a string; *n bytes go to `to`.
static qn_status read_char(qn_scan *s, char *to, size_t *n) {
    const size_t left = (size_t)(s->end - s->at);
    const char *begin = s->at;
    if (*s->at != '\\') {
        *n = qn_utf8_check(s->at, left);
        if (*n == 0 || (unsigned char)*s->at < 0x20 || *s->at == 0x7f)
            return QN_SCAN_FAIL(s, begin, "byte 0x%02x in a string", (unsigned char)*s->at);
        memcpy(to, s->at, *n);
        s->at += *n;
        return QN_OK;
    }
    static const char escapes[][2] = {{'"', '"'}, {'\\', '\\'}, {'n', '\n'}, {'t', '\t'}};
    *n = 1;
    for (size_t i = 0; left > 1 && i < sizeof escapes / sizeof escapes[0]; i++) {
        if (s->at[1] != escapes[i][0]) continue;
        *to = escapes[i][1];
        s->at += 2;
        return QN_OK;
    }
    const int high = left > 3 && s->at[1] == 'x' ? qn_hex_digit(s->at[2]) : -1;
    const int low = high >= 0 ? qn_hex_digit(s->at[3]) : -1;
    if (low < 0 || (high == 0 && low == 0))
        return QN_SCAN_FAIL(s, begin, "expected an escape: \\\" \\\\ \\n \\t or \\xHH");
    *to = (char)(high << 4 | low);
    s->at += 4;
    return QN_OK;
}

qn_status qn_scan_string(qn_scan *s, const char **out, const char *what) {
    if (!qn_scan_take(s, '"')) return qn_scan_expected(s, what);
    const char *begin = s->at, *close = begin;
    while (close < s->end && *close != '"' && *close != '\n') {
        close += *close == '\\' && close + 1 < s->end && close[1] != '\n' ? 2 : 1;
    }
    if (close >= s->end || *close != '"')
        return QN_SCAN_FAIL(s, begin - 1, "a string without its end");
    // Unescaped text is never longer than escaped text.
    char *copy = qn_arena_alloc(s->arena, (size_t)(close - begin) + 1, 1);
    if (!copy) return QN_NOMEM(s->err, "a string");
    char *to = copy;
    while (s->at < close) {
        size_t n;
        QN_TRY(read_char(s, to, &n));
        to += n;
    }
    s->at = close + 1;
    *out = copy;
    return QN_OK;
}

qn_status qn_scan_type(qn_scan *s, qn_type *out) {
    const qn_str word = qn_scan_peek(s);
    char name[24];
    if (word.size == 0 || word.size >= sizeof name) return qn_scan_expected(s, "a type");
    memcpy(name, word.data, word.size);
    name[word.size] = 0;
    if (!qn_type_from_name(out, name)) return qn_scan_expected(s, "a type");
    s->at += word.size;
    return QN_OK;
}

static qn_status read_symbol(qn_scan *s, qn_sym *out) {
    const qn_str word = qn_scan_peek(s);
    for (int sym = QN_SYM_ONE + 1; sym < QN_SYM_COUNT; sym++) {
        if (!qn_str_is(word, qn_sym_name((qn_sym)sym))) continue;
        s->at += word.size;
        *out = (qn_sym)sym;
        return QN_OK;
    }
    return qn_scan_expected(s, "a dimension");
}

qn_status qn_scan_dim(qn_scan *s, qn_dim *out) {
    qn_scan_skip(s);
    const char *begin = s->at;
    *out = (qn_dim){1, QN_SYM_ONE};
    if (s->at < s->end && is_letter(*s->at)) return read_symbol(s, &out->sym);
    QN_TRY(qn_scan_int(s, &out->n, "a dimension"));
    if (out->n < 1)
        return QN_SCAN_FAIL(s, begin, "dimension %lld, want 1 or more", (long long)out->n);
    return qn_scan_take(s, '*') ? read_symbol(s, &out->sym) : QN_OK;
}

qn_status qn_scan_shape(qn_scan *s, qn_shape *shape) {
    QN_TRY(qn_scan_need(s, '('));
    *shape = (qn_shape){0};
    if (qn_scan_take(s, ')')) return QN_OK;
    do {
        if (shape->n_dims == QN_GRAPH_DIMS)
            return QN_SCAN_FAIL(s, s->at, "more than %d dimensions", QN_GRAPH_DIMS);
        QN_TRY(qn_scan_dim(s, &shape->dims[shape->n_dims++]));
    } while (qn_scan_take(s, ','));
    return qn_scan_need(s, ')');
}

qn_status qn_scan_op(qn_scan *s, qn_op *out) {
    const qn_str word = qn_scan_peek(s);
    for (int op = 0; op < QN_OP_COUNT; op++) {
        const char *name = qn_op_get((qn_op)op)->name;
        size_t i = 0;
        while (i < word.size && name[i] && lower(name[i]) == word.data[i]) i++;
        if (i < word.size || name[i]) continue;
        s->at += word.size;
        *out = (qn_op)op;
        return QN_OK;
    }
    return qn_scan_expected(s, "an op");
}

static qn_status read_attr_int(qn_scan *s, void *to, qn_attr attr) {
    return qn_scan_int(s, to, qn_attr_get(attr)->name);
}

static qn_status read_attr_float(qn_scan *s, void *to, qn_attr attr) {
    (void)attr;
    return qn_scan_float(s, to);
}

static qn_status read_attr_list(qn_scan *s, void *to, qn_attr attr) {
    int64_t *v = ((qn_list *)to)->v;
    for (int i = 0; i < 4; i++) {
        QN_TRY(qn_scan_need(s, i ? ',' : '['));
        QN_TRY(qn_scan_int(s, &v[i], qn_attr_get(attr)->name));
    }
    return qn_scan_need(s, ']');
}

qn_status qn_scan_word(qn_scan *s, qn_word *out, qn_attr attr) {
    const qn_str word = qn_scan_peek(s);
    for (int w = 0; w < QN_WORD_COUNT; w++) {
        const qn_word_info *info = qn_word_get((qn_word)w);
        if (info->attr != attr || !qn_str_is(word, info->name)) continue;
        s->at += word.size;
        *out = (qn_word)w;
        return QN_OK;
    }
    char what[64];
    snprintf(what, sizeof what, "a word of '%s'", qn_attr_get(attr)->name);
    return qn_scan_expected(s, what);
}

static qn_status read_attr_word(qn_scan *s, void *to, qn_attr attr) {
    return qn_scan_word(s, to, attr);
}

// The name of an attribute that is allowed here and was not given yet.
static qn_status read_attr_name(qn_scan *s, qn_attr *out, qn_op op, uint32_t allowed,
                                uint32_t given) {
    const qn_str word = qn_scan_peek(s);
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (!qn_str_is(word, qn_attr_get((qn_attr)a)->name)) continue;
        if (!(allowed >> a & 1u))
            return QN_SCAN_FAIL(s, s->at, "%s has no attribute '%.*s'", qn_op_get(op)->name,
                                (int)word.size, word.data);
        if (given >> a & 1u)
            return QN_SCAN_FAIL(s, s->at, "attribute '%.*s' twice", (int)word.size, word.data);
        s->at += word.size;
        *out = (qn_attr)a;
        return QN_OK;
    }
    return qn_scan_expected(s, "an attribute");
}

static qn_status check_given(const qn_scan *s, qn_op op, uint32_t given) {
    const uint32_t missing = qn_op_get(op)->attrs & ~given;
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (missing >> a & 1u)
            return QN_SCAN_FAIL(s, s->at, "%s without attribute '%s'", qn_op_get(op)->name,
                                qn_attr_get((qn_attr)a)->name);
    }
    return QN_OK;
}

qn_status qn_scan_attrs(qn_scan *s, qn_attrs *to, qn_op op, uint32_t allowed) {
    static qn_status (*const readers[])(qn_scan *, void *, qn_attr) = {
        [QN_ATTR_INT] = read_attr_int,
        [QN_ATTR_FLOAT] = read_attr_float,
        [QN_ATTR_LIST] = read_attr_list,
        [QN_ATTR_WORD] = read_attr_word,
    };
    uint32_t given = 0;
    if (!allowed) return QN_OK;
    const qn_op_info *op_info = qn_op_get(op);
    const bool is_needed = op_info->attrs && op_info->class_of != QN_CLASS_LEAF;
    if (!qn_scan_take(s, '{')) return is_needed ? qn_scan_need(s, '{') : QN_OK;
    do {
        qn_attr attr = QN_ATTR_COUNT;
        QN_TRY(read_attr_name(s, &attr, op, allowed, given));
        QN_TRY(qn_scan_need(s, '='));
        const qn_attr_info *info = qn_attr_get(attr);
        QN_TRY(readers[info->kind](s, (char *)to + info->offset, attr));
        given |= 1u << attr;
    } while (qn_scan_take(s, ','));
    QN_TRY(check_given(s, op, given));
    return qn_scan_need(s, '}');
}

// A list of floats of any length, on the heap; the caller frees *out, on failure too.
static qn_status read_floats(qn_scan *s, float **out, size_t *n) {
    size_t cap = 0;
    QN_TRY(qn_scan_need(s, '['));
    if (qn_scan_take(s, ']')) return QN_OK;
    do {
        void *items = *out;
        const bool grown = qn_grow(&items, &cap, *n + 1, sizeof **out);
        *out = items;
        if (!grown) return QN_NOMEM(s->err, "a constant");
        QN_TRY(qn_scan_float(s, &(*out)[*n]));
        ++*n;
    } while (qn_scan_take(s, ','));
    return qn_scan_need(s, ']');
}

// The numbers of a constant must be as many as its shape says.
static qn_status check_count(const qn_scan *s, const char *begin, qn_type type,
                             const qn_shape *shape, size_t n) {
    int64_t want = 1;
    bool fits = type == QN_TYPE_F32;
    for (int i = 0; i < shape->n_dims; i++) {
        const qn_dim d = shape->dims[i];
        fits = fits && d.sym == QN_SYM_ONE && qn_i64_mul(&want, want, d.n);
    }
    char text[128];
    if (fits && (uint64_t)want == n) return QN_OK;
    return QN_SCAN_FAIL(s, begin, "a constant %s %s with %zu numbers", qn_type_get(type)->name,
                        qn_shape_text(text, sizeof text, shape), n);
}

qn_status qn_scan_data(qn_scan *s, const float **out, qn_type type, const qn_shape *shape) {
    float *data = NULL;
    size_t n = 0;
    qn_scan_skip(s);
    const char *begin = s->at;
    qn_status status = read_floats(s, &data, &n);
    if (!status) status = check_count(s, begin, type, shape, n);
    if (!status) {
        float *copy = qn_arena_alloc(s->arena, n, sizeof *copy);
        if (copy && n) memcpy(copy, data, n * sizeof *copy);
        *out = copy;
        if (!copy) status = QN_NOMEM(s->err, "a constant");
    }
    qn_free(data);
    return status;
}

// A list of ranges of any length, on the heap; the caller frees *out, on failure too.
static qn_status read_ranges(qn_scan *s, qn_share_range **out, size_t *n) {
    size_t cap = 0;
    QN_TRY(qn_scan_need(s, '['));
    do {
        void *items = *out;
        const bool grown = qn_grow(&items, &cap, *n + 1, sizeof **out);
        *out = items;
        if (!grown) return QN_NOMEM(s->err, "a share");
        qn_share_range *range = &(*out)[(*n)++];
        QN_TRY(qn_scan_int(s, &range->first, "the first index of a range"));
        QN_TRY(qn_scan_need(s, '+'));
        QN_TRY(qn_scan_int(s, &range->n, "the size of a range"));
    } while (qn_scan_take(s, ','));
    return qn_scan_need(s, ']');
}

qn_status qn_scan_share(qn_scan *s, const qn_share **out) {
    qn_share share = {0};
    qn_share_range *ranges = NULL;
    size_t n = 0;
    int64_t axis;
    *out = NULL;
    if (!qn_scan_take_word(s, "share")) return QN_OK;
    qn_scan_skip(s);
    const char *begin = s->at;
    QN_TRY(qn_scan_int(s, &axis, "an axis"));
    if (axis < 0 || axis >= QN_GRAPH_DIMS)
        return QN_SCAN_FAIL(s, begin, "axis %lld of at most %d", (long long)axis, QN_GRAPH_DIMS);
    if (!qn_scan_take_word(s, "of")) return qn_scan_expected(s, "of");
    QN_TRY(qn_scan_int(s, &share.whole, "the size of the whole"));
    qn_status status = read_ranges(s, &ranges, &n);
    share.axis = (int)axis;
    share.n_ranges = (int)n; // a text has fewer bytes than an int counts
    share.ranges = ranges;
    if (!status && !qn_share_dup(out, s->arena, &share)) status = QN_NOMEM(s->err, "a share");
    qn_free(ranges);
    return status;
}

qn_status qn_scan_layer(qn_scan *s, int32_t *layer) {
    *layer = -1;
    if (!qn_scan_take(s, '@')) return QN_OK;
    const char *begin = s->at;
    int64_t n;
    QN_TRY(qn_scan_int(s, &n, "the number of a layer"));
    if (n < 0 || n > INT32_MAX) return QN_SCAN_FAIL(s, begin, "layer %lld", (long long)n);
    *layer = (int32_t)n;
    return QN_OK;
}
