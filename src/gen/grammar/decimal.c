#include "gen/grammar/decimal.h"

#include "core/chars.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 4 * QN_DECIMAL_DIGITS };

// Digits of the text without the point, and how many of them come before it.
typedef struct digits {
    const char *text;
    size_t size;    // of digits and point
    size_t n;       // digits
    size_t dot;     // where the point is; the size: nowhere
    int64_t before; // digits before the point; may be negative or beyond n
} digits;

static char digit_at(const digits *d, int64_t at) {
    if (at < 0 || at >= (int64_t)d->n) return '0';
    return d->text[(size_t)at + ((size_t)at >= d->dot)];
}

// Reads the exponent; one that is too large to matter is cut.
static int64_t read_exponent(const char *at, const char *end) {
    const bool is_negative = at < end && *at == '-';
    int64_t value = 0;
    if (at < end && (*at == '-' || *at == '+')) at++;
    for (; at < end && qn_is_digit(*at); at++)
        if (value < 1000000) value = value * 10 + (*at - '0');
    return is_negative ? -value : value;
}

// Copies the digits from..to; false if they are too many.
static bool copy_digits(char *out, const digits *d, int64_t from, int64_t to) {
    if (to - from > QN_DECIMAL_DIGITS) return false;
    for (int64_t i = from; i < to; i++) *out++ = digit_at(d, i);
    *out = 0;
    return true;
}

bool qn_gr_decimal_read(qn_gr_decimal *out, qn_str text) {
    const char *at = text.data, *end = text.data + text.size;
    *out = (qn_gr_decimal){.is_negative = at < end && *at == '-'};
    if (text.size > TEXT_MAX) return false;
    if (out->is_negative) at++;
    digits d = {.text = at};
    while (at < end && (qn_is_digit(*at) || *at == '.')) at++;
    d.size = (size_t)(at - d.text);
    const char *dot = memchr(d.text, '.', d.size);
    d.n = d.size - (dot != NULL);
    d.dot = dot ? (size_t)(dot - d.text) : d.size;
    d.before = dot ? dot - d.text : (int64_t)d.size;
    if (at < end) d.before += read_exponent(at + 1, end);
    int64_t first = 0, last = (int64_t)d.n; // digits that are not zero lie between
    while (first < last && digit_at(&d, first) == '0') first++;
    while (last > first && digit_at(&d, last - 1) == '0') last--;
    if (first == last) {
        out->is_negative = false;
        return true;
    }
    if (first < d.before && !copy_digits(out->whole, &d, first, d.before)) return false;
    return last <= d.before || copy_digits(out->fraction, &d, d.before, last);
}

qn_gr_decimal qn_gr_decimal_of(int64_t value) {
    qn_gr_decimal out = {.is_negative = value < 0};
    const uint64_t size = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    if (size) snprintf(out.whole, sizeof out.whole, "%llu", (unsigned long long)size);
    return out;
}

int qn_gr_decimal_compare_size(const qn_gr_decimal *a, const qn_gr_decimal *b) {
    const size_t n = strlen(a->whole), m = strlen(b->whole);
    if (n != m) return n < m ? -1 : 1;
    const int whole = strcmp(a->whole, b->whole);
    return whole ? whole : strcmp(a->fraction, b->fraction);
}

int qn_gr_decimal_compare(const qn_gr_decimal *a, const qn_gr_decimal *b) {
    if (a->is_negative != b->is_negative) return a->is_negative ? -1 : 1;
    const int size = qn_gr_decimal_compare_size(a, b);
    return a->is_negative ? -size : size;
}

static void add_one(char *whole) {
    size_t n = strlen(whole);
    size_t i = n;
    while (i > 0 && whole[i - 1] == '9') whole[--i] = '0';
    if (i > 0) {
        whole[i - 1]++;
        return;
    }
    memmove(whole + 1, whole, n + 1);
    whole[0] = '1';
}

// Of a number above 0.
static void subtract_one(char *whole) {
    size_t i = strlen(whole);
    while (whole[i - 1] == '0') whole[--i] = '9';
    whole[i - 1]--;
    if (whole[0] == '0') memmove(whole, whole + 1, strlen(whole));
}

qn_gr_decimal qn_gr_decimal_round(const qn_gr_decimal *x, int sign, bool is_strict) {
    qn_gr_decimal out = *x;
    const bool was_whole = qn_gr_decimal_is_whole(x);
    const bool grows = x->is_negative == (sign < 0); // away from zero
    out.fraction[0] = 0;
    if (was_whole ? is_strict : grows) {
        if (grows) {
            add_one(out.whole);
        } else if (out.whole[0]) {
            subtract_one(out.whole);
        } else { // 0, downwards
            add_one(out.whole);
            out.is_negative = true;
        }
    }
    if (!out.whole[0]) out.is_negative = false;
    return out;
}

bool qn_gr_decimal_scaled(uint64_t *out, unsigned *scale, const qn_gr_decimal *x) {
    size_t value = 0;
    const char *const parts[] = {x->whole, x->fraction};
    for (size_t i = 0; i < 2; i++)
        for (const char *at = parts[i]; *at; at++)
            if (!qn_size_mul(&value, value, 10) || !qn_size_add(&value, value, (size_t)(*at - '0')))
                return false;
    *out = value;
    *scale = (unsigned)strlen(x->fraction);
    return true;
}
