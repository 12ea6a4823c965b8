// What matches one character in a regular expression: itself, an escape, a class.
#include "core/chars.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/regex_parser.h"

typedef qn_gr_regex_parser parser;

enum { NO_CODE = -1 };

static const qn_gr_code_range digits[] = {{'0', '9'}};
static const qn_gr_code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const qn_gr_code_range spaces[] = {
    {9, 13},          {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const qn_gr_code_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

typedef struct named_class {
    char name;
    bool negated;
    const qn_gr_code_range *ranges;
    size_t n;
} named_class;

#define COUNT(array) (sizeof(array) / sizeof *(array))
static const named_class named_classes[] = {
    {'d', false, digits, COUNT(digits)}, {'D', true, digits, COUNT(digits)},
    {'w', false, words, COUNT(words)},   {'W', true, words, COUNT(words)},
    {'s', false, spaces, COUNT(spaces)}, {'S', true, spaces, COUNT(spaces)},
};

// --- sets and nodes ------------------------------------------------------------------------------

// A node for the collected characters, or for all others. Without regard to case, it is the
// characters that are collected whose case does not matter.
static qn_status set_node(qn_gr_regex_node **out, parser *p, qn_gr_code_set *set, bool negated) {
    qn_gr_code_set all = {0};
    if (p->flags & QN_FLAG_FOLD) QN_TRY(qn_gr_unicode_fold(set, &p->unicode, p->err));
    set->n = qn_gr_ranges_sort(set->items, set->n);
    qn_status status = qn_gr_code_set_add_all(&all, set->items, set->n, negated, p->err);
    if (!status) {
        qn_gr_regex_node *node = qn_gr_regex_new_node(p, QN_REGEX_CLASS);
        qn_gr_code_range *copy = qn_arena_alloc(p->arena, all.n + 1, sizeof *copy);
        if (node && copy) {
            if (all.n) memcpy(copy, all.items, all.n * sizeof *copy);
            node->ranges = copy;
            node->n_ranges = all.n;
            *out = node;
        } else {
            status = QN_NOMEM(p->err, "regular expression");
        }
    }
    qn_gr_code_set_deinit(&all);
    return status;
}

// \w, \d, \s. Where case does not matter, \W is what is not \w then.
static qn_status add_named(qn_gr_code_set *set, parser *p, const named_class *named) {
    qn_gr_code_set own = {0};
    qn_status status = qn_gr_code_set_add_all(&own, named->ranges, named->n, false, p->err);
    if (!status && (p->flags & QN_FLAG_FOLD))
        status = qn_gr_unicode_fold(&own, &p->unicode, p->err);
    if (!status) status = qn_gr_code_set_add_all(set, own.items, own.n, named->negated, p->err);
    qn_gr_code_set_deinit(&own);
    return status;
}

static qn_status ranges_node(qn_gr_regex_node **out, parser *p, const qn_gr_code_range *ranges,
                             size_t n, bool negated) {
    qn_gr_code_set set = {0};
    qn_status status = qn_gr_code_set_add_all(&set, ranges, n, false, p->err);
    if (!status) status = set_node(out, p, &set, negated);
    qn_gr_code_set_deinit(&set);
    return status;
}

qn_status qn_gr_regex_word_char(qn_gr_regex_node **out, parser *p) {
    return ranges_node(out, p, words, COUNT(words), false);
}

qn_status qn_gr_regex_line_end(qn_gr_regex_node **out, parser *p) {
    return ranges_node(out, p, line_ends, COUNT(line_ends), false);
}

qn_status qn_gr_regex_read_dot(qn_gr_regex_node **out, parser *p) {
    const bool is_all = (p->flags & QN_FLAG_DOT_ALL) != 0;
    return ranges_node(out, p, line_ends, is_all ? 0 : COUNT(line_ends), true);
}

// --- escapes -------------------------------------------------------------------------------------

// `n` digits; -1 if they are not there.
static int32_t read_hex(parser *p, size_t n) {
    int32_t value = 0;
    if (p->text.size - p->at < n) return -1;
    for (size_t i = 0; i < n; i++) {
        const int digit = qn_hex_digit((unsigned char)p->text.data[p->at + i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    p->at += n;
    return value;
}

// After \u: XXXX, a pair of surrogates, or {X...}.
static qn_status read_unicode(int32_t *code, parser *p) {
    if (take(p, '{')) {
        int32_t value = 0;
        size_t n = 0;
        for (int digit; (digit = qn_hex_digit(peek(p))) >= 0 && n < 6; n++, p->at++)
            value = value * 16 + digit;
        if (!n || !take(p, '}') || value > QN_MAX_CODE)
            return FAIL_AT(p, FORMAT, "\\u{...} wants 1 to 6 hexadecimal digits, at most 10FFFF");
        *code = value;
        return QN_OK;
    }
    const int32_t unit = read_hex(p, 4);
    if (unit < 0) return FAIL_AT(p, FORMAT, "\\u wants 4 hexadecimal digits");
    *code = unit;
    if (unit < 0xD800 || unit > 0xDFFF) return QN_OK;
    if (unit < 0xDC00 && starts(p, "\\u")) {
        p->at += 2;
        const int32_t low = read_hex(p, 4);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            return QN_OK;
        }
    }
    return FAIL_AT(p, FORMAT, "\\u%04X is half of a pair", (unsigned)unit);
}

// After \p or \P: {name}.
static qn_status read_property(qn_gr_code_set *set, parser *p, bool negated) {
    const size_t from = p->at + 1;
    if (!take(p, '{'))
        return FAIL_AT(p, FORMAT, "\\%c wants a name in braces", negated ? 'P' : 'p');
    while (peek(p) >= 0 && peek(p) != '}') p->at++;
    const qn_str name = {p->text.data + from, p->at - from};
    if (!take(p, '}')) return FAIL_AT(p, FORMAT, "a brace { without its }");
    const qn_status status = qn_gr_unicode_property(set, &p->unicode, name, negated, p->err);
    return status ? qn_gr_regex_fail(p, status) : QN_OK;
}

// A letter that stands for a set of characters adds them; *found: it was one.
static qn_status read_set_escape(bool *found, qn_gr_code_set *set, parser *p) {
    const int c = peek(p);
    *found = true;
    if (c == 'p' || c == 'P') {
        p->at++;
        return read_property(set, p, c == 'P');
    }
    for (size_t i = 0; i < COUNT(named_classes); i++)
        if (c == named_classes[i].name) {
            p->at++;
            return add_named(set, p, &named_classes[i]);
        }
    *found = false;
    return QN_OK;
}

static qn_status read_control(int32_t *code, parser *p) {
    const int letter =
        p->at + 1 < p->text.size ? (unsigned char)p->text.data[p->at + 1] & ~0x20 : 0;
    if (letter < 'A' || letter > 'Z') return FAIL_AT(p, FORMAT, "\\c wants a letter");
    p->at += 2;
    *code = letter & 31;
    return QN_OK;
}

static qn_status fail_escape(parser *p, int c) {
    if (c == 'k' || (c >= '1' && c <= '9'))
        return FAIL_AT(p, UNSUPPORTED, "references to groups (\\%c) are not supported", c);
    return FAIL_AT(p, FORMAT, "unknown escape \\%c", c);
}

// After a backslash: one character.
static qn_status read_code_escape(int32_t *code, parser *p, bool in_class) {
    static const char names[] = "tnvfr0", codes[] = "\t\n\v\f\r";
    const int c = peek(p);
    if (c < 0) return FAIL_AT(p, FORMAT, "a backslash at the end");
    const char *hit = c ? strchr(names, c) : NULL;
    if (hit) {
        p->at++;
        *code = (unsigned char)codes[hit - names];
        if (c == '0' && peek(p) >= '0' && peek(p) <= '9')
            return FAIL_AT(p, UNSUPPORTED, "octal escapes are not supported");
        return QN_OK;
    }
    if (c == 'b' && in_class) {
        p->at++;
        *code = '\b';
        return QN_OK;
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        if (c == 'u') return read_unicode(code, p);
        *code = read_hex(p, 2);
        return *code < 0 ? FAIL_AT(p, FORMAT, "\\x wants 2 hexadecimal digits") : QN_OK;
    }
    if (c == 'c') return read_control(code, p);
    if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return fail_escape(p, c);
    uint32_t plain;
    p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &plain);
    *code = (int32_t)plain;
    return QN_OK;
}

static qn_status code_node(qn_gr_regex_node **out, parser *p, int32_t code) {
    const qn_gr_code_range one = {(uint32_t)code, (uint32_t)code};
    return ranges_node(out, p, &one, 1, false);
}

qn_status qn_gr_regex_read_escape(qn_gr_regex_node **out, parser *p) {
    qn_gr_code_set set = {0};
    bool found;
    int32_t code;
    qn_status status = read_set_escape(&found, &set, p);
    if (!status && found) status = set_node(out, p, &set, false);
    qn_gr_code_set_deinit(&set);
    if (status || found) return status;
    QN_TRY(read_code_escape(&code, p, false));
    return code_node(out, p, code);
}

qn_status qn_gr_regex_read_plain(qn_gr_regex_node **out, parser *p) {
    uint32_t code;
    p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &code);
    return code_node(out, p, (int32_t)code);
}

// --- brackets ------------------------------------------------------------------------------------

// [:alpha:] and such classes, which other dialects have inside brackets.
static qn_status refuse_posix(parser *p) {
    const size_t from = p->at;
    const char *text = p->text.data;
    if (from + 1 >= p->text.size || !strchr(":.=", text[from + 1])) return QN_OK;
    size_t end = from + 2;
    while (end < p->text.size && ((text[end] >= 'a' && text[end] <= 'z') || text[end] == '^'))
        end++;
    if (end + 1 >= p->text.size || text[end] != text[from + 1] || text[end + 1] != ']')
        return QN_OK;
    return FAIL_AT(p, UNSUPPORTED,
                   "the POSIX class %.*s is not supported; write a range such as a-z, \\d, "
                   "\\w, \\s or \\p{L}",
                   (int)(end + 2 - from), text + from);
}

// One end of a range in brackets; a set adds itself and gives NO_CODE.
static qn_status read_end(int32_t *code, parser *p, qn_gr_code_set *set) {
    if (take(p, '\\')) {
        bool found;
        QN_TRY(read_set_escape(&found, set, p));
        *code = NO_CODE;
        return found ? QN_OK : read_code_escape(code, p, true);
    }
    if (peek(p) == '[') QN_TRY(refuse_posix(p));
    uint32_t plain;
    p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &plain);
    *code = (int32_t)plain;
    return QN_OK;
}

static qn_status read_items(parser *p, qn_gr_code_set *set) {
    while (peek(p) >= 0 && peek(p) != ']') {
        int32_t lo, hi;
        QN_TRY(read_end(&lo, p, set));
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->text.size && p->text.data[p->at + 1] != ']') {
            p->at++;
            QN_TRY(read_end(&hi, p, set));
            if (lo == NO_CODE || hi == NO_CODE)
                return FAIL_AT(p, FORMAT, "a range in brackets ends in a class");
            if (lo > hi) return FAIL_AT(p, FORMAT, "a range in brackets goes backwards");
        }
        if (lo != NO_CODE) QN_TRY(qn_gr_code_set_add(set, (uint32_t)lo, (uint32_t)hi, p->err));
    }
    return take(p, ']') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket [ without its ]");
}

qn_status qn_gr_regex_read_brackets(qn_gr_regex_node **out, parser *p) {
    qn_gr_code_set set = {0};
    const uint32_t column = (uint32_t)p->at; // of the bracket, from 1
    const bool negated = take(p, '^');
    qn_status status = read_items(p, &set);
    if (!status) status = set_node(out, p, &set, negated);
    if (!status) (*out)->column = column;
    qn_gr_code_set_deinit(&set);
    return status;
}
