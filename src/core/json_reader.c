#include "core/json_reader.h"

#include "core/chars.h"
#include "core/real_text.h"
#include "core/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_NUMBER = 400 }; // characters; the longest exact double has about 770

// --- errors --------------------------------------------------------------------------------------

typedef struct place {
    size_t line, column;
} place;

static place place_of(const qn_json_reader *r, size_t at) {
    place p = {1, 1};
    for (size_t i = 0; i < at && i < r->size; i++) {
        const unsigned char c = (unsigned char)r->text[i];
        if (c == '\n')
            p = (place){p.line + 1, 1};
        else if ((c & 0xc0) != 0x80) // the first byte of a character
            p.column++;
    }
    return p;
}

qn_status qn_json_wrong(const qn_json_reader *r, size_t at, qn_err *err, const char *fmt, ...) {
    char why[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    const place p = place_of(r, at);
    return QN_FAIL(err, FORMAT, "%s: not valid JSON at line %zu, column %zu: %s", r->what, p.line,
                   p.column, why);
}

qn_status qn_json_too_deep(const qn_json_reader *r, int max, qn_err *err) {
    const place p = place_of(r, r->at - 1);
    return QN_FAIL(err, LIMIT, "%s: JSON nested more than %d deep at line %zu, column %zu", r->what,
                   max, p.line, p.column);
}

qn_status qn_json_too_large(const qn_json_reader *r, size_t max, qn_err *err) {
    const place p = place_of(r, r->at);
    return QN_FAIL(err, LIMIT,
                   "%s: JSON values that take more than %zu MiB of memory, by line %zu, column %zu",
                   r->what, max >> 20, p.line, p.column);
}

static qn_status fail(const qn_json_reader *r, const char *why, qn_err *err) {
    return qn_json_wrong(r, r->at, err, "%s", why);
}

static bool is_of_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// What was wanted, and the word or the character that is there.
static qn_status fail_wanted(const qn_json_reader *r, const char *wanted, qn_err *err) {
    enum { MAX = 20 };
    const char *s = r->text + r->at;
    const size_t left = r->size - r->at;
    if (left == 0) return qn_json_wrong(r, r->at, err, "the text ends where %s should be", wanted);
    size_t n = 0;
    while (n < left && n < MAX && is_of_word(s[n])) n++;
    if (n == 0) n = qn_utf8_check(s, left);
    if (n == 0)
        return qn_json_wrong(r, r->at, err, "found byte 0x%02x, want %s",
                             (unsigned)(unsigned char)*s, wanted);
    return qn_json_wrong(r, r->at, err, "found '%.*s', want %s", (int)n, s, wanted);
}

// --- characters ----------------------------------------------------------------------------------

static int peek(const qn_json_reader *r) {
    return r->at < r->size ? (unsigned char)r->text[r->at] : -1;
}

static int peek_token(qn_json_reader *r) {
    int c;
    while ((c = peek(r)) == ' ' || c == '\n' || c == '\t' || c == '\r') r->at++;
    return c;
}

// --- strings -------------------------------------------------------------------------------------

// The 16 bits of "\uXXXX" at `s`, or -1.
static int32_t escaped_unit(const char *s, size_t n) {
    if (n < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    int32_t unit = 0;
    for (int i = 2; i < 6; i++) {
        const int digit = qn_hex_digit(s[i]);
        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

// Decodes one escape of `n` bytes at `s` (a backslash). Returns the bytes it takes in the text, 0
// if it is broken.
static size_t decode_escape(const char *s, size_t n, uint32_t *code) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (n < 2) return 0;
    const char *simple = s[1] ? strchr(from, s[1]) : NULL;
    if (simple) {
        *code = (unsigned char)to[simple - from];
        return 2;
    }
    const int32_t high = escaped_unit(s, n);
    if (high < 0) return 0;
    *code = (uint32_t)high;
    if (high < 0xd800 || high > 0xdfff) return 6;
    const int32_t low = escaped_unit(s + 6, n - 6);
    if (high > 0xdbff || low < 0xdc00 || low > 0xdfff) return 0;
    *code = 0x10000 + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

// One character, plain or escaped, inside quotes: bytes in the text and bytes when decoded.
static qn_status read_character(qn_json_reader *r, size_t *decoded, qn_err *err) {
    const char *s = r->text + r->at;
    const size_t n = r->size - r->at;
    size_t length;
    if (*s == '\\') {
        uint32_t code;
        char utf8[4];
        length = decode_escape(s, n, &code);
        if (length == 0) return fail(r, "a broken escape", err);
        if (code == 0 && !r->takes_nul) return fail(r, "a NUL character", err);
        *decoded += qn_utf8_encode(code, utf8);
    } else {
        length = (unsigned char)*s < 0x20 ? 0 : qn_utf8_check(s, n);
        if (length == 0) return fail(r, "a control character or broken UTF-8 in a string", err);
        *decoded += length;
    }
    r->at += length;
    return QN_OK;
}

static qn_status read_text(qn_json_text *out, qn_json_reader *r, qn_err *err) {
    const size_t begin = ++r->at;
    size_t decoded = 0;
    for (int c; (c = peek(r)) != '"';) {
        if (c < 0) return qn_json_wrong(r, begin - 1, err, "a string without end");
        QN_TRY(read_character(r, &decoded, err));
    }
    *out = (qn_json_text){.raw = {r->text + begin, r->at - begin}, .size = decoded};
    r->at++;
    return QN_OK;
}

void qn_json_decode(char *to, qn_json_text text) {
    const char *s = text.raw.data;
    const char *end = s + text.raw.size;
    while (s < end) {
        if (*s != '\\') {
            *to++ = *s++;
            continue;
        }
        uint32_t code = 0;
        char utf8[4];
        s += decode_escape(s, (size_t)(end - s), &code);
        const size_t length = qn_utf8_encode(code, utf8);
        memcpy(to, utf8, length);
        to += length;
    }
}

// --- numbers and words ---------------------------------------------------------------------------

static size_t skip_digits(qn_json_reader *r) {
    const size_t begin = r->at;
    for (int c; (c = peek(r)) >= '0' && c <= '9';) r->at++;
    return r->at - begin;
}

// Moves over a number by JSON's grammar; *whole if it has neither fraction nor exponent.
static qn_status scan_number(qn_json_reader *r, bool *whole, qn_err *err) {
    if (peek(r) == '-') r->at++;
    const bool zero = peek(r) == '0';
    const size_t begin = r->at, digits = skip_digits(r);
    if (digits == 0) return fail_wanted(r, "a digit", err);
    if (zero && digits > 1) return qn_json_wrong(r, begin, err, "a number that begins with 0");
    *whole = true;
    if (peek(r) == '.') {
        r->at++;
        *whole = false;
        if (skip_digits(r) == 0) return fail_wanted(r, "a digit after the point", err);
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        *whole = false;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (skip_digits(r) == 0) return fail_wanted(r, "a digit of the exponent", err);
    }
    return QN_OK;
}

static bool parse_whole(int64_t *out, const char *digits) {
    const bool negative = *digits == '-';
    int64_t value = 0; // negative all the way, to reach INT64_MIN
    for (const char *c = digits + negative; *c; c++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, *c - '0', &value))
            return false;
    }
    if (!negative && value == INT64_MIN) return false;
    *out = negative ? value : -value;
    return true;
}

static qn_status read_number(qn_json_value *out, qn_json_reader *r, qn_err *err) {
    const size_t begin = r->at;
    bool whole;
    QN_TRY(scan_number(r, &whole, err));
    char number[MAX_NUMBER + 1];
    const size_t size = r->at - begin;
    if (size > MAX_NUMBER)
        return qn_json_wrong(r, begin, err, "a number of more than %d characters", MAX_NUMBER);
    memcpy(number, r->text + begin, size);
    number[size] = 0;
    qn_json_value value = {.kind = QN_JSON_REAL, .is_whole = whole};
    if (whole && parse_whole(&value.i, number)) {
        value.kind = QN_JSON_INT;
        value.f = value.i == 0 && *number == '-' ? -0.0 : (double)value.i;
    } else if (!qn_text_double(&value.f, number)) {
        return QN_NOMEM(err, "a number");
    }
    if (!r->takes_nan && !isfinite(value.f))
        return qn_json_wrong(r, begin, err, "a number beyond those of 64 bits");
    *out = value;
    return QN_OK;
}

static qn_status read_word(qn_json_value *out, qn_json_reader *r, qn_err *err) {
    enum { N_PLAIN = 3 }; // the words of JSON itself
    static const struct {
        const char *word;
        qn_json_value value;
    } words[] = {
        {"true", {.kind = QN_JSON_BOOL, .b = true}},
        {"false", {.kind = QN_JSON_BOOL}},
        {"null", {.kind = QN_JSON_NULL}},
        {"NaN", {.kind = QN_JSON_REAL, .f = (double)NAN}},
        {"Infinity", {.kind = QN_JSON_REAL, .f = (double)INFINITY}},
        {"-Infinity", {.kind = QN_JSON_REAL, .f = -(double)INFINITY}},
    };
    const size_t n = r->takes_nan ? sizeof words / sizeof words[0] : N_PLAIN;
    for (size_t i = 0; i < n; i++) {
        const size_t size = strlen(words[i].word);
        if (r->size - r->at < size || memcmp(r->text + r->at, words[i].word, size) != 0) continue;
        r->at += size;
        *out = words[i].value;
        return QN_OK;
    }
    return fail_wanted(r, "a value", err);
}

// --- values --------------------------------------------------------------------------------------

static qn_status read_value(qn_json_value *out, qn_json_reader *r, int c, qn_err *err) {
    if (c == '{' || c == '[') {
        r->at++;
        *out = (qn_json_value){.kind = c == '{' ? QN_JSON_OBJECT : QN_JSON_ARRAY};
        return QN_OK;
    }
    if (c == '"') {
        *out = (qn_json_value){.kind = QN_JSON_STRING};
        return read_text(&out->text, r, err);
    }
    const bool minus_word =
        r->takes_nan && c == '-' && r->at + 1 < r->size && r->text[r->at + 1] == 'I';
    if ((c == '-' && !minus_word) || (c >= '0' && c <= '9')) return read_number(out, r, err);
    return read_word(out, r, err);
}

qn_status qn_json_read(qn_json_value *out, qn_json_reader *reader, qn_err *err) {
    const int c = peek_token(reader);
    const size_t at = reader->at;
    QN_TRY(read_value(out, reader, c, err));
    out->at = at;
    return QN_OK;
}

// Moves to the next entry of a container that `close` ends.
static qn_status next_entry(bool *more, qn_json_reader *r, bool first, int close, qn_err *err) {
    int c = peek_token(r);
    if (c == close) {
        r->at++;
        *more = false;
        return QN_OK;
    }
    if (!first) {
        if (c != ',')
            return fail_wanted(r, close == '}' ? "a comma or '}'" : "a comma or ']'", err);
        r->at++;
        c = peek_token(r);
    }
    if (c < 0) return fail_wanted(r, close == '}' ? "a name or '}'" : "a value or ']'", err);
    *more = true;
    return QN_OK;
}

qn_status qn_json_member(qn_json_text *name, bool *more, qn_json_reader *reader, bool first,
                         qn_err *err) {
    QN_TRY(next_entry(more, reader, first, '}', err));
    if (!*more) return QN_OK;
    if (peek(reader) != '"') return fail_wanted(reader, "a name in quotes", err);
    QN_TRY(read_text(name, reader, err));
    if (peek_token(reader) != ':') return fail_wanted(reader, "a colon", err);
    reader->at++;
    return QN_OK;
}

qn_status qn_json_element(bool *more, qn_json_reader *reader, bool first, qn_err *err) {
    return next_entry(more, reader, first, ']', err);
}

qn_status qn_json_skip(qn_json_reader *reader, const qn_json_value *value, int depth, qn_err *err) {
    if (value->kind != QN_JSON_OBJECT && value->kind != QN_JSON_ARRAY) return QN_OK;
    if (depth >= QN_JSON_MAX_DEPTH) return qn_json_too_deep(reader, QN_JSON_MAX_DEPTH, err);
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        if (value->kind == QN_JSON_OBJECT)
            QN_TRY(qn_json_member(&name, &more, reader, first, err));
        else
            QN_TRY(qn_json_element(&more, reader, first, err));
        if (!more) return QN_OK;
        qn_json_value inner;
        QN_TRY(qn_json_read(&inner, reader, err));
        QN_TRY(qn_json_skip(reader, &inner, depth + 1, err));
    }
}

qn_status qn_json_end(qn_json_reader *reader, qn_err *err) {
    return peek_token(reader) < 0 ? QN_OK : fail_wanted(reader, "nothing after the value", err);
}
