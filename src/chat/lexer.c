#include "chat/lexer.h"

#include "chat/chat_text.h"
#include "core/chars.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 8 << 20, MAX_BRACKETS = 256 };

typedef struct lexer {
    qn_arena *arena;
    qn_jinja_tokens *to;
    qn_str text; // with \n at the end of lines
    size_t at;
    bool at_line_start; // the tag before took a newline with it, or there is none
    size_t counted;     // bytes that line and column speak of
    uint32_t line, column;
    char brackets[MAX_BRACKETS]; // the closing ones that are awaited
    size_t n_brackets;
    qn_err *err;
} lexer;

typedef struct place {
    uint32_t line, column;
} place;

// Places are asked for in ascending order, so that the text is counted once.
static place place_of(lexer *lx, size_t at) {
    for (; lx->counted < at; lx->counted++) {
        const unsigned char c = (unsigned char)lx->text.data[lx->counted];
        if (c == '\n') {
            lx->line++;
            lx->column = 1;
        } else if ((c & 0xc0) != 0x80) {
            lx->column++;
        }
    }
    return (place){lx->line, lx->column};
}

static qn_status fail_at(lexer *lx, size_t at, const char *what) {
    const place p = place_of(lx, at);
    return QN_TEMPLATE_FAIL(lx->err, FORMAT, &p, "%s", what);
}

static char peek(const lexer *lx, size_t ahead) {
    return lx->at + ahead < lx->text.size ? lx->text.data[lx->at + ahead] : 0;
}

static bool sees(const lexer *lx, const char *what) {
    const size_t n = strlen(what);
    return lx->text.size - lx->at >= n && memcmp(lx->text.data + lx->at, what, n) == 0;
}

static qn_status add(lexer *lx, size_t at, qn_jinja_token token) {
    const place p = place_of(lx, at);
    void *items = lx->to->items;
    if (!qn_grow(&items, &lx->to->cap, lx->to->n + 1, sizeof token))
        return QN_NOMEM(lx->err, "template");
    lx->to->items = items;
    token.line = p.line;
    token.column = p.column;
    lx->to->items[lx->to->n++] = token;
    return QN_OK;
}

static size_t skip_space(const lexer *lx, size_t at) {
    uint32_t code;
    while (at < lx->text.size) {
        const size_t n = qn_jinja_char_at(lx->text, at, &code);
        if (!qn_jinja_char_is_space(code)) break;
        at += n;
    }
    return at;
}

// --- names, numbers, strings ---------------------------------------------------------------------

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || qn_is_digit(c) || c == '_' ||
           (unsigned char)c >= 0x80;
}

static qn_status lex_name(lexer *lx) {
    const size_t begin = lx->at;
    while (is_name_char(peek(lx, 0))) lx->at++;
    return add(lx, begin,
               (qn_jinja_token){.kind = QN_TOKEN_NAME,
                                .text = qn_jinja_str_part(lx->text, begin, lx->at)});
}

static int digit_value(char c) {
    if (qn_is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

// Digits of a base with single underscores between them.
static size_t digits_end(const lexer *lx, size_t at, int base) {
    const char *s = lx->text.data;
    const size_t n = lx->text.size;
    while (at < n) {
        const bool joins = s[at] == '_' && at + 1 < n && digit_value(s[at + 1]) < base;
        if (!joins && digit_value(s[at]) >= base) break;
        at += joins ? 2 : 1;
    }
    return at;
}

static qn_status lex_int(lexer *lx, size_t begin, size_t from, size_t end, int base) {
    int64_t value = 0;
    for (size_t i = from; i < end; i++) {
        if (lx->text.data[i] == '_') continue;
        const int digit = digit_value(lx->text.data[i]);
        if (value > (INT64_MAX - digit) / base)
            return fail_at(lx, begin, "a number that needs more than 64 bits");
        value = value * base + digit;
    }
    lx->at = end;
    return add(lx, begin,
               (qn_jinja_token){.kind = QN_TOKEN_CONST, .value = qn_jinja_val_int(value)});
}

// The point is moved into the exponent, because a locale may want another sign for it.
static qn_status lex_float(lexer *lx, size_t begin, size_t end) {
    char digits[64];
    size_t n = 0;
    long shift = 0;
    bool is_fraction = false;
    size_t i = begin;
    for (; i < end && (lx->text.data[i] | 0x20) != 'e'; i++) {
        const char c = lx->text.data[i];
        if (c == '.') is_fraction = true;
        if (!qn_is_digit(c)) continue;
        if (n == 40) return fail_at(lx, begin, "a number of more than 40 digits");
        digits[n++] = c;
        if (is_fraction) shift--;
    }
    if (i < end) {
        char exponent[16] = {0};
        size_t m = 0;
        for (size_t k = i + 1; k < end; k++) {
            if (lx->text.data[k] == '_') continue;
            if (m == 8) return fail_at(lx, begin, "an exponent of more than 7 digits");
            exponent[m++] = lx->text.data[k];
        }
        shift += strtol(exponent, NULL, 10);
    }
    snprintf(digits + n, sizeof digits - n, "e%ld", shift);
    lx->at = end;
    return add(lx, begin,
               (qn_jinja_token){.kind = QN_TOKEN_CONST,
                                .value = qn_jinja_val_float(strtod(digits, NULL))});
}

static qn_status lex_number(lexer *lx) {
    static const struct {
        char letter;
        int base;
    } bases[] = {{'b', 2}, {'o', 8}, {'x', 16}};
    const size_t begin = lx->at;
    for (size_t i = 0; i < 3; i++) {
        const bool fits = peek(lx, 0) == '0' && (peek(lx, 1) | 0x20) == bases[i].letter;
        const size_t from = begin + 2;
        const size_t end = fits ? digits_end(lx, from, bases[i].base) : from;
        if (end > from) return lex_int(lx, begin, from, end, bases[i].base);
    }
    const size_t whole_end = digits_end(lx, begin, 10);
    size_t end = whole_end;
    const char *s = lx->text.data;
    const size_t n = lx->text.size;
    const bool after_dot = begin > 0 && s[begin - 1] == '.';
    if (!after_dot && end + 1 < n && s[end] == '.' && qn_is_digit(s[end + 1]))
        end = digits_end(lx, end + 1, 10);
    if (!after_dot && end < n && (s[end] | 0x20) == 'e') {
        size_t k = end + 1;
        if (k < n && (s[k] == '+' || s[k] == '-')) k++;
        if (k < n && qn_is_digit(s[k])) end = digits_end(lx, k, 10);
    }
    if (end > whole_end) return lex_float(lx, begin, end);
    if (s[begin] == '0') { // no number but zero begins with a zero
        end = begin;
        while (end < whole_end && (s[end] == '0' || s[end] == '_')) end++;
        if (s[end - 1] == '_') end--;
    }
    return lex_int(lx, begin, begin, end, 10);
}

// \xHH, \uHHHH, \UHHHHHHHH and up to three octal digits. False: no such escape, or no character.
static bool escape_code(uint32_t *code, const char *s, size_t n, size_t *used) {
    static const struct {
        char letter;
        size_t digits;
    } kinds[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    *code = 0;
    for (size_t i = 0; i < 3; i++) {
        if (s[0] != kinds[i].letter) continue;
        if (n < 1 + kinds[i].digits) return false;
        for (size_t k = 1; k <= kinds[i].digits; k++) {
            if (digit_value(s[k]) > 15 || *code > 0x10ffff) return false;
            *code = *code * 16 + (uint32_t)digit_value(s[k]);
        }
        *used = 1 + kinds[i].digits;
        return true;
    }
    size_t k = 0;
    while (k < 3 && k < n && s[k] >= '0' && s[k] <= '7')
        *code = *code * 8 + (uint32_t)(s[k++] - '0');
    *used = k;
    return k > 0;
}

// One escape at s[0] (after the backslash); what Python does not know stays as it is.
static bool unescape(qn_buf *to, const char *s, size_t n, size_t *used) {
    static const char plain[][2] = {{'n', '\n'}, {'t', '\t'},  {'r', '\r'}, {'\\', '\\'},
                                    {'"', '"'},  {'\'', '\''}, {'a', '\a'}, {'b', '\b'},
                                    {'f', '\f'}, {'v', '\v'}};
    *used = 1;
    if (s[0] == '\n') return true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (s[0] != plain[i][0]) continue;
        qn_buf_add(to, &plain[i][1], 1);
        return true;
    }
    uint32_t code;
    const bool is_coded = s[0] == 'x' || s[0] == 'u' || s[0] == 'U' || (s[0] >= '0' && s[0] <= '7');
    if (s[0] == 'N') return false;
    if (!is_coded) {
        qn_buf_add(to, "\\", 1);
        *used = 0;
        return true;
    }
    char bytes[4];
    if (!escape_code(&code, s, n, used)) return false;
    const size_t size = qn_utf8_encode(code, bytes);
    qn_buf_add(to, bytes, size);
    return size > 0;
}

static qn_status lex_string(lexer *lx) {
    const size_t begin = lx->at;
    const char quote = peek(lx, 0);
    const char *s = lx->text.data;
    size_t end = begin + 1;
    while (end < lx->text.size && s[end] != quote) end += s[end] == '\\' ? 2 : 1;
    if (end >= lx->text.size) return fail_at(lx, begin, "a string has no end");
    qn_buf buf = {0};
    for (size_t i = begin + 1; i < end;) {
        size_t used = 1;
        if (s[i] != '\\') {
            qn_buf_add(&buf, s + i, 1);
        } else if (!unescape(&buf, s + i + 1, end - i - 1, &used)) {
            qn_buf_deinit(&buf);
            return fail_at(lx, i, "an escape that names no character");
        } else {
            used++;
        }
        i += used;
    }
    const char *copy = buf.failed ? NULL : qn_arena_strdup(lx->arena, buf.data, buf.size);
    const qn_str text = {copy, buf.size};
    qn_buf_deinit(&buf);
    if (!copy) return QN_NOMEM(lx->err, "template");
    lx->at = end + 1;
    return add(lx, begin,
               (qn_jinja_token){.kind = QN_TOKEN_CONST, .value = qn_jinja_val_text(text)});
}

// --- operators -----------------------------------------------------------------------------------

static qn_status balance(lexer *lx, char c) {
    static const char pairs[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}};
    for (size_t i = 0; i < 3; i++) {
        if (c == pairs[i][0]) {
            if (lx->n_brackets == MAX_BRACKETS)
                return fail_at(lx, lx->at, "brackets are nested too deeply");
            lx->brackets[lx->n_brackets++] = pairs[i][1];
        } else if (c == pairs[i][1]) {
            if (!lx->n_brackets || lx->brackets[lx->n_brackets - 1] != c)
                return fail_at(lx, lx->at, "a closing bracket that was not opened");
            lx->n_brackets--;
        }
    }
    return QN_OK;
}

static qn_status lex_op(lexer *lx) {
    static const char doubles[][3] = {"//", "**", "==", "!=", ">=", "<="};
    static const char singles[] = "+-*/%~[](){}<>=.:|,";
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        if (!sees(lx, doubles[i])) continue;
        lx->at += 2;
        return add(
            lx, lx->at - 2,
            (qn_jinja_token){.kind = QN_TOKEN_OP, .op = QN_OP2(doubles[i][0], doubles[i][1])});
    }
    const char c = peek(lx, 0);
    if (!c || !strchr(singles, c)) {
        const place p = place_of(lx, lx->at);
        uint32_t code;
        const size_t n = qn_jinja_char_at(lx->text, lx->at, &code);
        return QN_TEMPLATE_FAIL(lx->err, FORMAT, &p, "unexpected '%.*s'", (int)n,
                                lx->text.data + lx->at);
    }
    QN_TRY(balance(lx, c));
    lx->at++;
    return add(lx, lx->at - 1, (qn_jinja_token){.kind = QN_TOKEN_OP, .op = QN_OP1(c)});
}

// --- tags and the text between them --------------------------------------------------------------

// The end of a tag at `at`, such as %}, with a sign in front; *end is past it and what it takes
// away. `trims`: a newline too.
static bool tag_end(const lexer *lx, size_t at, const char *mark, bool trims, bool has_plus,
                    size_t *end) {
    const char *s = lx->text.data;
    const size_t n = lx->text.size;
    const char sign = at < n ? s[at] : 0;
    const bool is_signed = sign == '-' || (sign == '+' && has_plus);
    if (is_signed) at++;
    if (n - at < 2 || at > n || memcmp(s + at, mark, 2) != 0) return false;
    at += 2;
    if (sign == '-') at = skip_space(lx, at);
    if (!is_signed && trims && at < n && s[at] == '\n') at++;
    *end = at;
    return true;
}

static void end_tag(lexer *lx, size_t end) {
    lx->at_line_start = lx->text.data[end - 1] == '\n';
    lx->at = end;
}

static qn_status lex_tag(lexer *lx, bool is_block, size_t begin) {
    const char *mark = is_block ? "%}" : "}}";
    for (;;) {
        lx->at = skip_space(lx, lx->at);
        if (lx->at >= lx->text.size) return fail_at(lx, begin, "a tag has no end");
        size_t end;
        if (!lx->n_brackets && tag_end(lx, lx->at, mark, is_block, is_block, &end)) {
            const qn_jinja_token_kind kind = is_block ? QN_TOKEN_BLOCK_END : QN_TOKEN_PRINT_END;
            QN_TRY(add(lx, lx->at, (qn_jinja_token){.kind = (unsigned char)kind}));
            end_tag(lx, end);
            return QN_OK;
        }
        const char c = peek(lx, 0);
        if (qn_is_digit(c))
            QN_TRY(lex_number(lx));
        else if (is_name_char(c))
            QN_TRY(lex_name(lx));
        else if (c == '"' || c == '\'')
            QN_TRY(lex_string(lx));
        else
            QN_TRY(lex_op(lx));
    }
}

// Text up to a tag, without the white space that the tag's sign or lstrip_blocks take from it.
static qn_status add_data(lexer *lx, size_t begin, size_t end, char sign, bool is_print) {
    qn_str text = qn_jinja_str_part(lx->text, begin, end);
    if (sign == '-') {
        text = qn_jinja_text_strip(text, NULL, false, true);
    } else if (sign != '+' && !is_print) {
        const qn_str newline = {"\n", 1};
        const size_t last = qn_jinja_text_find_last(text, newline);
        const size_t from = last == SIZE_MAX ? 0 : last + 1;
        const qn_str tail = qn_jinja_str_part(text, from, text.size);
        if ((from > 0 || lx->at_line_start) &&
            qn_jinja_text_strip(tail, NULL, false, true).size == 0)
            text.size = from;
    }
    if (text.size == 0) return QN_OK;
    return add(lx, begin, (qn_jinja_token){.kind = QN_TOKEN_DATA, .text = text});
}

static char sign_at(const lexer *lx, size_t at) {
    const char c = at < lx->text.size ? lx->text.data[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

static qn_status lex_comment(lexer *lx, size_t begin, size_t from) {
    for (size_t at = from; at + 1 < lx->text.size; at++) {
        size_t end;
        if (!tag_end(lx, at, "#}", true, true, &end)) continue;
        end_tag(lx, end);
        return QN_OK;
    }
    return fail_at(lx, begin, "a comment has no end");
}

// "{% word %}" at `begin`; *end is past it.
static bool is_word_tag(const lexer *lx, size_t begin, const char *word, bool trims, size_t *end) {
    size_t at = begin + 2;
    if (sign_at(lx, at)) at++;
    at = skip_space(lx, at);
    const size_t n = strlen(word);
    if (lx->text.size - at < n || memcmp(lx->text.data + at, word, n) != 0) return false;
    return tag_end(lx, skip_space(lx, at + n), "%}", trims, trims, end);
}

static qn_status lex_raw(lexer *lx, size_t begin, size_t from) {
    const qn_str mark = {"{%", 2};
    end_tag(lx, from);
    for (size_t at = from; (at = qn_jinja_text_find(lx->text, mark, at)) != SIZE_MAX; at++) {
        size_t end;
        if (!is_word_tag(lx, at, "endraw", true, &end)) continue;
        QN_TRY(add_data(lx, from, at, sign_at(lx, at + 2), false));
        end_tag(lx, end);
        return QN_OK;
    }
    return fail_at(lx, begin, "a raw block has no end");
}

// The next tag at or after `at`; SIZE_MAX: none.
static size_t find_tag(const lexer *lx, size_t at) {
    const char *s = lx->text.data;
    for (; at + 1 < lx->text.size; at++) {
        const char *brace = memchr(s + at, '{', lx->text.size - 1 - at);
        if (!brace) return SIZE_MAX;
        at = (size_t)(brace - s);
        if (s[at + 1] == '%' || s[at + 1] == '{' || s[at + 1] == '#') return at;
    }
    return SIZE_MAX;
}

static qn_status lex_all(lexer *lx) {
    while (lx->at < lx->text.size) {
        const size_t begin = find_tag(lx, lx->at);
        if (begin == SIZE_MAX) break;
        const char kind = lx->text.data[begin + 1];
        const char sign = sign_at(lx, begin + 2);
        const size_t from = begin + (sign ? 3 : 2);
        QN_TRY(add_data(lx, lx->at, begin, sign, kind == '{'));
        size_t end;
        if (kind == '#') {
            QN_TRY(lex_comment(lx, begin, from));
        } else if (kind == '%' && is_word_tag(lx, begin, "raw", false, &end)) {
            QN_TRY(lex_raw(lx, begin, end));
        } else {
            const qn_jinja_token_kind open = kind == '%' ? QN_TOKEN_BLOCK : QN_TOKEN_PRINT;
            QN_TRY(add(lx, begin, (qn_jinja_token){.kind = (unsigned char)open}));
            lx->at = from;
            QN_TRY(lex_tag(lx, kind == '%', begin));
        }
    }
    if (lx->at < lx->text.size)
        QN_TRY(add(lx, lx->at,
                   (qn_jinja_token){.kind = QN_TOKEN_DATA,
                                    .text = qn_jinja_str_part(lx->text, lx->at, lx->text.size)}));
    return add(lx, lx->text.size, (qn_jinja_token){.kind = QN_TOKEN_END});
}

// Lines end in \n; one newline at the end of the text is dropped.
static qn_status copy_lines(lexer *lx, const char *text, size_t size) {
    char *copy = qn_arena_alloc(lx->arena, size + 1, 1);
    if (!copy) return QN_NOMEM(lx->err, "template");
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n') continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && copy[n - 1] == '\n') n--;
    lx->text = (qn_str){copy, n};
    return QN_OK;
}

qn_status qn_jinja_lex(qn_jinja_tokens *out, qn_arena *arena, const char *text, size_t size,
                       qn_err *err) {
    if (size > MAX_BYTES)
        return QN_FAIL(err, LIMIT, "a template of %zu bytes, at most %d are read", size,
                       (int)MAX_BYTES);
    if (!qn_utf8_valid(text, size)) return QN_FAIL(err, FORMAT, "the template is not UTF-8");
    lexer lx = {
        .arena = arena, .to = out, .at_line_start = true, .line = 1, .column = 1, .err = err};
    QN_TRY(copy_lines(&lx, text, size));
    return lex_all(&lx);
}

void qn_jinja_tokens_deinit(qn_jinja_tokens *tokens) {
    qn_free(tokens->items);
    *tokens = (qn_jinja_tokens){0};
}
