#include "core/toml.h"

#include "core/chars.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/str.h"
#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_LIMIT = 1 << 20,
    ENTRY_LIMIT = 4096, // and tables
    NAME_LIMIT = 255,
    WORD_LIMIT = 64 // of a number
};

typedef struct reader {
    const char *at, *end;
    size_t line;                // from 1
    char table[NAME_LIMIT + 2]; // "a.b.", or ""
    qn_toml toml;
    size_t cap;
    qn_map names; // of entries, by index; of tables, by ENTRY_LIMIT + their number
    size_t n_tables;
    qn_err *err;
} reader;

#define FAIL(r, ...) (at_line(r, QN_FAIL((r)->err, FORMAT, __VA_ARGS__)), (qn_status)QN_FORMAT)

static void at_line(const reader *r, qn_status status) {
    qn_err_prefix(r->err, status, "line %zu", r->line);
}

static bool is_bare(char c) {
    return qn_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
}

static bool has(const reader *r, char c) { return r->at < r->end && *r->at == c; }

static bool take(reader *r, char c) {
    if (!has(r, c)) return false;
    r->at++;
    return true;
}

static void skip_space(reader *r) {
    while (has(r, ' ') || has(r, '\t')) r->at++;
}

// Fails with what is here instead of what was expected.
static qn_status expected(const reader *r, const char *what) {
    if (r->at == r->end) return FAIL(r, "expected %s, found the end of the text", what);
    if (*r->at == '\n' || *r->at == '\r')
        return FAIL(r, "expected %s, found the end of the line", what);
    size_t n = 0;
    while (n < 24 && r->at + n < r->end && is_bare(r->at[n])) n++;
    return FAIL(r, "expected %s, found '%.*s'", what, n ? (int)n : 1, r->at);
}

// A comment, up to the end of its line; TOML has no control characters in it.
static qn_status skip_comment(reader *r) {
    skip_space(r);
    if (!has(r, '#')) return QN_OK;
    while (r->at < r->end && *r->at != '\n' &&
           !(*r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n')) {
        const size_t n = qn_utf8_check(r->at, (size_t)(r->end - r->at));
        if (n == 0 || ((unsigned char)*r->at < 0x20 && *r->at != '\t') || *r->at == 0x7f)
            return FAIL(r, "byte 0x%02x in a comment", (unsigned char)*r->at);
        r->at += n;
    }
    return QN_OK;
}

static bool take_newline(reader *r) {
    if (has(r, '\r') && r->at + 1 < r->end && r->at[1] == '\n') r->at++;
    if (!take(r, '\n')) return false;
    r->line++;
    return true;
}

// The end of a statement: a comment, then the end of the line or of the text.
static qn_status end_line(reader *r) {
    QN_TRY(skip_comment(r));
    if (r->at == r->end || take_newline(r)) return QN_OK;
    return expected(r, "the end of the line");
}

// Spaces, comments and line ends inside an array.
static qn_status skip_lines(reader *r) {
    do QN_TRY(skip_comment(r));
    while (take_newline(r));
    return QN_OK;
}

// --- strings ---

// \uXXXX or \UXXXXXXXX; r->at is after the letter.
static qn_status read_code(reader *r, int n_digits, char *to, size_t *n) {
    uint32_t code = 0;
    for (int i = 0; i < n_digits; i++, r->at++) {
        const int digit = r->at < r->end ? qn_hex_digit(*r->at) : -1;
        if (digit < 0) return FAIL(r, "an escape with %d of %d hex digits", i, n_digits);
        code = code << 4 | (uint32_t)digit;
    }
    char bytes[4];
    *n = code ? qn_utf8_encode(code, bytes) : 0;
    if (*n == 0) return FAIL(r, "an escape of U+%04X", (unsigned)code);
    memcpy(to, bytes, *n);
    return QN_OK;
}

static qn_status read_escape(reader *r, char *to, size_t *n) {
    static const char letters[] = "btnfr\"\\", meanings[] = "\b\t\n\f\r\"\\";
    const char c = r->at < r->end ? *r->at : 0;
    const char *found = c ? strchr(letters, c) : NULL;
    if (!found && c != 'u' && c != 'U') return FAIL(r, "an escape that TOML does not have");
    r->at++;
    if (!found) return read_code(r, c == 'u' ? 4 : 8, to, n);
    *to = meanings[found - letters];
    *n = 1;
    return QN_OK;
}

// "..." with escapes or '...' without, on one line.
static qn_status read_string(reader *r, qn_toml_value *value) {
    const char quote = *r->at;
    if (r->end - r->at >= 3 && r->at[1] == quote && r->at[2] == quote)
        return FAIL(r, "strings of several lines are not supported");
    const char *begin = ++r->at, *close = begin;
    while (close < r->end && *close != quote && *close != '\n')
        close += quote == '"' && *close == '\\' && close + 1 < r->end && close[1] != '\n' ? 2 : 1;
    if (close >= r->end || *close != quote) return FAIL(r, "a string without its end");
    // Escapes are never shorter than what they stand for.
    char *copy = qn_arena_alloc(&r->toml.arena, (size_t)(close - begin) + 1, 1), *to = copy;
    if (!copy) return QN_NOMEM(r->err, "a string");
    while (r->at < close) {
        size_t n = qn_utf8_check(r->at, (size_t)(r->end - r->at));
        if (quote == '"' && *r->at == '\\') {
            r->at++;
            QN_TRY(read_escape(r, to, &n));
        } else if (n == 0 || ((unsigned char)*r->at < 0x20 && *r->at != '\t') || *r->at == 0x7f) {
            return FAIL(r, "byte 0x%02x in a string", (unsigned char)*r->at);
        } else {
            memcpy(to, r->at, n);
            r->at += n;
        }
        to += n;
    }
    r->at = close + 1;
    value->kind = QN_TOML_STRING;
    value->as.s = copy;
    return QN_OK;
}

// --- numbers ---

// The number's characters without "_", which must stand between digits; false if they are no
// number's or too many.
static bool copy_number(char *to, qn_str word) {
    size_t n = 0;
    for (size_t i = 0; i < word.size; i++) {
        if (word.data[i] == '_') {
            const bool is_between = i > 0 && i + 1 < word.size &&
                                    qn_hex_digit(word.data[i - 1]) >= 0 &&
                                    qn_hex_digit(word.data[i + 1]) >= 0;
            if (!is_between) return false;
            continue;
        }
        if (n == WORD_LIMIT) return false;
        to[n++] = word.data[i];
    }
    to[n] = 0;
    return n > 0;
}

static qn_status read_integer(const reader *r, qn_toml_value *value, const char *text) {
    const bool has_sign = *text == '-' || *text == '+';
    const bool negative = *text == '-';
    const char *at = text + has_sign;
    uint64_t base = 10, n = 0;
    if (!has_sign && at[0] == '0' && at[1]) {
        base = at[1] == 'x' ? 16 : at[1] == 'o' ? 8 : at[1] == 'b' ? 2 : 0;
        if (!base) return FAIL(r, "'%s': a number does not begin with 0", text);
        at += 2;
    }
    if (!*at || (has_sign && at[0] == '0' && at[1])) return FAIL(r, "'%s' is not a number", text);
    const uint64_t max = (uint64_t)INT64_MAX + negative;
    for (; *at; at++) {
        const int digit = qn_hex_digit(*at);
        if (digit < 0 || (uint64_t)digit >= base) return FAIL(r, "'%s' is not a number", text);
        if (n > (max - (uint64_t)digit) / base) return FAIL(r, "'%s' is too large", text);
        n = n * base + (uint64_t)digit;
    }
    value->kind = QN_TOML_INT;
    value->as.i = negative ? (int64_t)-n : (int64_t)n;
    return QN_OK;
}

// Digits, at least one; *at moves past them and they are added to `to`.
static bool take_digits(const char **at, char *to, size_t *n) {
    const char *begin = *at;
    for (; qn_is_digit(**at); ++*at) to[(*n)++] = **at;
    return *at > begin;
}

// The point is moved into the exponent before strtod sees the number, because a locale may want
// another radix character.
static bool parse_float(double *out, const char *text) {
    char digits[WORD_LIMIT + 24];
    size_t n = 0;
    const char *at = text + (*text == '-' || *text == '+');
    if (strcmp(at, "inf") == 0 || strcmp(at, "nan") == 0) {
        *out = *at == 'i' ? (double)INFINITY : (double)NAN;
        if (*text == '-') *out = -*out;
        return true;
    }
    if ((at[0] == '0' && qn_is_digit(at[1])) || !take_digits(&at, digits, &n)) return false;
    const size_t n_whole = n;
    if (*at == '.' && (at++, !take_digits(&at, digits, &n))) return false;
    long exponent = 0;
    if (*at == 'e' || *at == 'E') {
        char *end;
        const char *first = at + 1 + (at[1] == '-' || at[1] == '+');
        if (!qn_is_digit(*first) || strlen(first) > 6) return false;
        exponent = strtol(at + 1, &end, 10);
        at = end;
    }
    if (*at) return false;
    snprintf(digits + n, sizeof digits - n, "e%ld", exponent - (long)(n - n_whole));
    *out = strtod(digits, NULL);
    if (*text == '-') *out = -*out;
    return !isinf(*out);
}

static qn_status read_number(reader *r, qn_toml_value *value) {
    qn_str word = {r->at, 0};
    while (r->at < r->end && (is_bare(*r->at) || *r->at == '+' || *r->at == '.' || *r->at == ':'))
        r->at++;
    word.size = (size_t)(r->at - word.data);
    char text[WORD_LIMIT + 1];
    if (qn_str_is(word, "true") || qn_str_is(word, "false")) {
        value->kind = QN_TOML_BOOL;
        value->as.b = word.size == 4;
        return QN_OK;
    }
    if (!copy_number(text, word)) {
        r->at = word.data;
        return expected(r, "a value");
    }
    const bool is_float = text[strcspn(text, ".")] || strstr(text, "inf") || strstr(text, "nan") ||
                          (text[strcspn(text, "eE")] && text[1] != 'x');
    if (!is_float) return read_integer(r, value, text);
    value->kind = QN_TOML_FLOAT;
    if (!parse_float(&value->as.f, text)) return FAIL(r, "'%s' is not a number", text);
    return QN_OK;
}

// --- values ---

static qn_status read_scalar(reader *r, qn_toml_value *value) {
    if (has(r, '"') || has(r, '\'')) return read_string(r, value);
    if (has(r, '{')) return FAIL(r, "inline tables are not supported");
    if (has(r, '[')) return FAIL(r, "arrays in arrays are not supported");
    return read_number(r, value);
}

// The items of an array, on the heap; the caller frees *items, on failure too.
static qn_status read_items(reader *r, qn_toml_value **items, size_t *n) {
    size_t cap = 0;
    for (;;) {
        QN_TRY(skip_lines(r));
        if (take(r, ']')) return QN_OK;
        void *grown = *items;
        const bool ok = qn_grow(&grown, &cap, *n + 1, sizeof **items);
        *items = grown;
        if (!ok) return QN_NOMEM(r->err, "an array");
        QN_TRY(read_scalar(r, &(*items)[*n]));
        ++*n;
        QN_TRY(skip_lines(r));
        if (take(r, ']')) return QN_OK;
        if (!take(r, ',')) return expected(r, "',' or ']'");
    }
}

static qn_status read_array(reader *r, qn_toml_value *value) {
    qn_toml_value *items = NULL;
    size_t n = 0;
    r->at++;
    qn_status status = read_items(r, &items, &n);
    if (!status) {
        qn_toml_value *copy = qn_arena_alloc(&r->toml.arena, n, sizeof *copy);
        if (copy && n) memcpy(copy, items, n * sizeof *copy);
        value->kind = QN_TOML_ARRAY;
        value->as.array.items = copy;
        value->as.array.n = n;
        if (!copy) status = QN_NOMEM(r->err, "an array");
    }
    qn_free(items);
    return status;
}

// --- names ---

// "a.b.c", added to `to`, which holds NAME_LIMIT bytes and a NUL.
static qn_status read_dotted(reader *r, char *to) {
    size_t n = strlen(to);
    for (;;) {
        skip_space(r);
        if (has(r, '"') || has(r, '\'')) return FAIL(r, "quoted keys are not supported");
        if (r->at == r->end || !is_bare(*r->at)) return expected(r, "a key");
        for (; r->at < r->end && is_bare(*r->at); r->at++) {
            if (n >= NAME_LIMIT) return FAIL(r, "a name of more than %d bytes", NAME_LIMIT);
            to[n++] = *r->at;
        }
        to[n] = 0;
        skip_space(r);
        if (!take(r, '.')) return QN_OK;
        if (n >= NAME_LIMIT) return FAIL(r, "a name of more than %d bytes", NAME_LIMIT);
        to[n++] = '.';
        to[n] = 0;
    }
}

// No part of the name may be a key already: "a = 1" and "a.b = 2" cannot both be.
static qn_status check_parents(const reader *r, const char *name) {
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        uint32_t i;
        if (qn_map_find(&r->names, name, (size_t)(dot - name), &i) && i < ENTRY_LIMIT)
            return FAIL(r, "%s: %.*s is a value since line %zu", name, (int)(dot - name), name,
                        r->toml.entries[i].line);
    }
    return QN_OK;
}

static qn_status read_table(reader *r) {
    char name[NAME_LIMIT + 1] = "";
    if (has(r, '[')) return FAIL(r, "arrays of tables are not supported");
    QN_TRY(read_dotted(r, name));
    if (!take(r, ']')) return expected(r, "']'");
    QN_TRY(check_parents(r, name));
    char *copy = qn_arena_strdup(&r->toml.arena, name, strlen(name));
    uint32_t old = 0;
    if (r->n_tables == ENTRY_LIMIT) return FAIL(r, "more than %d tables", ENTRY_LIMIT);
    const uint32_t number = (uint32_t)(ENTRY_LIMIT + r->n_tables++);
    if (!copy || !qn_map_add(&r->names, copy, strlen(copy), number, &old))
        return QN_NOMEM(r->err, "a table");
    if (old < ENTRY_LIMIT)
        return FAIL(r, "table %s: is a value since line %zu", name, r->toml.entries[old].line);
    if (old != number) return FAIL(r, "table %s is there twice", name);
    snprintf(r->table, sizeof r->table, "%s.", name);
    return QN_OK;
}

static qn_status add_entry(reader *r, const qn_toml_entry *entry) {
    uint32_t old = 0;
    const uint32_t number = (uint32_t)r->toml.n;
    if (r->toml.n == ENTRY_LIMIT) return FAIL(r, "more than %d entries", ENTRY_LIMIT);
    void *entries = r->toml.entries;
    const bool grown = qn_grow(&entries, &r->cap, r->toml.n + 1, sizeof *entry);
    r->toml.entries = entries;
    if (!grown || !qn_map_add(&r->names, entry->name, strlen(entry->name), number, &old))
        return QN_NOMEM(r->err, "an entry");
    if (old >= ENTRY_LIMIT) return FAIL(r, "%s is a table already", entry->name);
    if (old != number)
        return FAIL(r, "%s is there since line %zu", entry->name, r->toml.entries[old].line);
    r->toml.entries[r->toml.n++] = *entry;
    return QN_OK;
}

static qn_status read_entry(reader *r) {
    char name[NAME_LIMIT + 2];
    qn_toml_entry entry = {.line = r->line};
    memcpy(name, r->table, sizeof name);
    QN_TRY(read_dotted(r, name));
    QN_TRY(check_parents(r, name));
    if (!take(r, '=')) return expected(r, "'='");
    skip_space(r);
    entry.name = qn_arena_strdup(&r->toml.arena, name, strlen(name));
    if (!entry.name) return QN_NOMEM(r->err, "an entry");
    QN_TRY(has(r, '[') ? read_array(r, &entry.value) : read_scalar(r, &entry.value));
    return add_entry(r, &entry);
}

static qn_status read_line(reader *r) {
    skip_space(r);
    if (take(r, '['))
        QN_TRY(read_table(r));
    else if (r->at < r->end && *r->at != '#' && *r->at != '\n' && *r->at != '\r')
        QN_TRY(read_entry(r));
    return end_line(r);
}

// The entries move into the arena.
static qn_status finish(reader *r) {
    qn_toml_entry *copy = qn_arena_alloc(&r->toml.arena, r->toml.n, sizeof *copy);
    if (!copy) return QN_NOMEM(r->err, "entries");
    if (r->toml.n) memcpy(copy, r->toml.entries, r->toml.n * sizeof *copy);
    qn_free(r->toml.entries);
    r->toml.entries = copy;
    return QN_OK;
}

qn_status qn_toml_parse(qn_toml *out, const char *text, size_t size, qn_err *err) {
    if (size > TEXT_LIMIT)
        return QN_FAIL(err, LIMIT, "%zu bytes of TOML, at most %d", size, TEXT_LIMIT);
    reader r = {.at = text, .end = text + size, .line = 1, .err = err};
    qn_status status = QN_OK;
    while (!status && r.at < r.end) status = read_line(&r);
    if (!status) status = finish(&r);
    qn_map_deinit(&r.names);
    if (status) {
        qn_free(r.toml.entries);
        qn_arena_deinit(&r.toml.arena);
        return status;
    }
    *out = r.toml;
    return QN_OK;
}

void qn_toml_deinit(qn_toml *toml) {
    qn_arena_deinit(&toml->arena);
    *toml = (qn_toml){0};
}

const qn_toml_entry *qn_toml_find(const qn_toml *toml, const char *name) {
    for (size_t i = 0; i < toml->n; i++) {
        if (strcmp(toml->entries[i].name, name) == 0) return &toml->entries[i];
    }
    return NULL;
}

const char *qn_toml_kind_name(qn_toml_kind kind) {
    static const char *const names[] = {"a string", "an integer", "a float", "a boolean",
                                        "an array"};
    return names[kind];
}
