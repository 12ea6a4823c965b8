#include "gen/grammar/regex.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <stdlib.h>

typedef struct parser {
    qn_arena *arena;
    qn_str text;
    size_t at;
    int depth;
    qn_err *err;
} parser;

// Ranges that are being collected.
typedef struct collect {
    qn_code_range *items;
    size_t n, cap;
} collect;

enum { MAX_CODE = 0x10FFFF, CLASS_ESCAPE = -2, NO_CODE = -1 };

static const qn_code_range digits[] = {{'0', '9'}};
static const qn_code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const qn_code_range spaces[] = {
    {9, 13},          {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const qn_code_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

typedef struct named_class {
    char name;
    bool negated;
    const qn_code_range *ranges;
    size_t n;
} named_class;

#define COUNT(array) (sizeof(array) / sizeof *(array))
static const named_class named_classes[] = {
    {'d', false, digits, COUNT(digits)}, {'D', true, digits, COUNT(digits)},
    {'w', false, words, COUNT(words)},   {'W', true, words, COUNT(words)},
    {'s', false, spaces, COUNT(spaces)}, {'S', true, spaces, COUNT(spaces)},
};

#define FAIL_AT(p, code, ...) fail_at(QN_FAIL((p)->err, code, __VA_ARGS__), p)

static qn_status fail_at(qn_status status, const parser *p) {
    return qn_err_prefix(p->err, status, "regular expression, column %zu", p->at + 1);
}

static int peek(const parser *p) {
    return p->at < p->text.size ? (unsigned char)p->text.data[p->at] : -1;
}

static bool take(parser *p, char c) {
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

static bool starts(const parser *p, const char *text) {
    const size_t n = strlen(text);
    return p->text.size - p->at >= n && !memcmp(p->text.data + p->at, text, n);
}

// --- classes -------------------------------------------------------------------------------------

static int compare_ranges(const void *x, const void *y) {
    const qn_code_range *a = x, *b = y;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

size_t qn_ranges_sort(qn_code_range *ranges, size_t n) {
    size_t kept = 0;
    if (n) qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (kept && ranges[i].lo <= ranges[kept - 1].hi + 1) {
            if (ranges[i].hi > ranges[kept - 1].hi) ranges[kept - 1].hi = ranges[i].hi;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

static qn_status add_range(collect *c, uint32_t lo, uint32_t hi, qn_err *err) {
    if (!qn_grow((void **)&c->items, &c->cap, c->n + 1, sizeof *c->items))
        return QN_NOMEM(err, "regular expression");
    c->items[c->n++] = (qn_code_range){lo, hi};
    return QN_OK;
}

static qn_status add_ranges(collect *c, const qn_code_range *ranges, size_t n, bool negated,
                            qn_err *err) {
    uint32_t from = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated)
            QN_TRY(add_range(c, ranges[i].lo, ranges[i].hi, err));
        else if (from < ranges[i].lo)
            QN_TRY(add_range(c, from, ranges[i].lo - 1, err));
        from = ranges[i].hi + 1;
    }
    return negated && from <= MAX_CODE ? add_range(c, from, MAX_CODE, err) : QN_OK;
}

static qn_regex_node *new_node(parser *p, qn_regex_kind kind) {
    qn_regex_node *node = qn_arena_alloc(p->arena, 1, sizeof *node);
    if (!node) return NULL;
    node->kind = kind;
    node->column = (uint32_t)p->at + 1;
    return node;
}

// A node for the collected ranges or for all others.
static qn_status class_node(qn_regex_node **out, parser *p, collect *c, bool negated) {
    collect all = {0};
    c->n = qn_ranges_sort(c->items, c->n);
    qn_status status = add_ranges(&all, c->items, c->n, negated, p->err);
    if (!status) {
        qn_regex_node *node = new_node(p, QN_REGEX_CLASS);
        qn_code_range *copy = qn_arena_alloc(p->arena, all.n + 1, sizeof *copy);
        if (node && copy) {
            if (all.n) memcpy(copy, all.items, all.n * sizeof *copy);
            node->ranges = copy;
            node->n_ranges = all.n;
            *out = node;
        } else {
            status = QN_NOMEM(p->err, "regular expression");
        }
    }
    qn_free(all.items);
    return status;
}

static qn_status ranges_node(qn_regex_node **out, parser *p, const qn_code_range *ranges, size_t n,
                             bool negated) {
    collect c = {0};
    qn_status status = add_ranges(&c, ranges, n, negated, p->err);
    if (!status) status = class_node(out, p, &c, false);
    qn_free(c.items);
    return status;
}

// --- escapes -------------------------------------------------------------------------------------

static int hex_value(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// `n` digits; -1 if they are not there.
static int32_t read_hex(parser *p, size_t n) {
    int32_t value = 0;
    if (p->text.size - p->at < n) return -1;
    for (size_t i = 0; i < n; i++) {
        const int digit = hex_value((unsigned char)p->text.data[p->at + i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    p->at += n;
    return value;
}

// Behind \u: XXXX, a pair of surrogates, or {X...}.
static qn_status read_unicode(int32_t *code, parser *p) {
    if (take(p, '{')) {
        int32_t value = 0;
        size_t n = 0;
        for (int digit; (digit = hex_value(peek(p))) >= 0 && n < 6; n++, p->at++)
            value = value * 16 + digit;
        if (!n || !take(p, '}') || value > MAX_CODE)
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

// Behind a backslash. *code is the character, or CLASS_ESCAPE with *named.
static qn_status read_escape(int32_t *code, const named_class **named, parser *p, bool in_class) {
    static const char names[] = "tnvfr0", codes[] = "\t\n\v\f\r";
    const int c = peek(p);
    if (c < 0) return FAIL_AT(p, FORMAT, "a backslash at the end");
    for (size_t i = 0; i < COUNT(named_classes); i++)
        if (c == named_classes[i].name) {
            p->at++;
            *named = &named_classes[i];
            *code = CLASS_ESCAPE;
            return QN_OK;
        }
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
    if (c == 'c' && p->at + 1 < p->text.size) {
        const int letter = (unsigned char)p->text.data[p->at + 1] & ~0x20;
        p->at += 2;
        *code = letter & 31;
        return letter >= 'A' && letter <= 'Z' ? QN_OK : FAIL_AT(p, FORMAT, "\\c wants a letter");
    }
    if (c == 'p' || c == 'P')
        return FAIL_AT(p, UNSUPPORTED, "Unicode properties (\\%c) are not supported", c);
    if (c == 'b' || c == 'B')
        return FAIL_AT(p, UNSUPPORTED, "word boundaries (\\%c) are not supported", c);
    if (c == 'k' || (c >= '1' && c <= '9'))
        return FAIL_AT(p, UNSUPPORTED, "references to groups (\\%c) are not supported", c);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return FAIL_AT(p, FORMAT, "unknown escape \\%c", c);
    uint32_t plain;
    p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &plain);
    *code = (int32_t)plain;
    return QN_OK;
}

// --- items ---------------------------------------------------------------------------------------

// One end of a range in brackets; a named class adds itself and gives NO_CODE.
static qn_status read_class_end(int32_t *code, parser *p, collect *c) {
    const named_class *named = NULL;
    if (take(p, '\\')) {
        QN_TRY(read_escape(code, &named, p, true));
        if (*code != CLASS_ESCAPE) return QN_OK;
        *code = NO_CODE;
        return add_ranges(c, named->ranges, named->n, named->negated, p->err);
    }
    uint32_t plain;
    p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &plain);
    *code = (int32_t)plain;
    return QN_OK;
}

static qn_status read_class_items(parser *p, collect *c) {
    while (peek(p) >= 0 && peek(p) != ']') {
        int32_t lo, hi;
        QN_TRY(read_class_end(&lo, p, c));
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->text.size && p->text.data[p->at + 1] != ']') {
            p->at++;
            QN_TRY(read_class_end(&hi, p, c));
            if (lo == NO_CODE || hi == NO_CODE)
                return FAIL_AT(p, FORMAT, "a range in brackets ends in a class");
            if (lo > hi) return FAIL_AT(p, FORMAT, "a range in brackets goes backwards");
        }
        if (lo != NO_CODE) QN_TRY(add_range(c, (uint32_t)lo, (uint32_t)hi, p->err));
    }
    return take(p, ']') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket [ without its ]");
}

static qn_status read_class(qn_regex_node **out, parser *p) {
    collect c = {0};
    const bool negated = take(p, '^');
    qn_status status = read_class_items(p, &c);
    if (!status) status = class_node(out, p, &c, negated);
    qn_free(c.items);
    return status;
}

static qn_status read_choice(qn_regex_node **out, parser *p);

static qn_status read_group(qn_regex_node **out, parser *p) {
    if (take(p, '?')) {
        if (starts(p, "<=") || starts(p, "<!") || peek(p) == '=' || peek(p) == '!')
            return FAIL_AT(p, UNSUPPORTED, "look-around is not supported");
        if (take(p, '<')) {
            while (peek(p) >= 0 && peek(p) != '>') p->at++;
            if (!take(p, '>')) return FAIL_AT(p, FORMAT, "a group's name has no end");
        } else if (!take(p, ':')) {
            return FAIL_AT(p, UNSUPPORTED, "flags in groups are not supported");
        }
    }
    if (++p->depth > QN_REGEX_MAX_DEPTH)
        return FAIL_AT(p, LIMIT, "more than %d groups in each other", QN_REGEX_MAX_DEPTH);
    QN_TRY(read_choice(out, p));
    p->depth--;
    return take(p, ')') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket ( without its )");
}

static qn_status read_atom(qn_regex_node **out, parser *p) {
    const named_class *named = NULL;
    int32_t code;
    if (take(p, '(')) return read_group(out, p);
    if (take(p, '[')) return read_class(out, p);
    if (take(p, '.')) return ranges_node(out, p, line_ends, COUNT(line_ends), true);
    if (peek(p) == '^' || peek(p) == '$') {
        *out = new_node(p, peek(p) == '^' ? QN_REGEX_START : QN_REGEX_END);
        p->at++;
        return *out ? QN_OK : QN_NOMEM(p->err, "regular expression");
    }
    if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?')
        return FAIL_AT(p, FORMAT, "nothing to repeat before %c", peek(p));
    if (take(p, '\\')) {
        QN_TRY(read_escape(&code, &named, p, false));
        if (code == CLASS_ESCAPE)
            return ranges_node(out, p, named->ranges, named->n, named->negated);
    } else {
        uint32_t plain;
        p->at += qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, &plain);
        code = (int32_t)plain;
    }
    const qn_code_range one = {(uint32_t)code, (uint32_t)code};
    return ranges_node(out, p, &one, 1, false);
}

static bool read_number(uint32_t *out, parser *p) {
    const size_t from = p->at;
    uint64_t value = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (value <= QN_REGEX_MAX_COUNT) value = value * 10 + (uint64_t)(peek(p) - '0');
    *out = value > QN_REGEX_MAX_COUNT ? QN_AST_MANY : (uint32_t)value;
    return p->at > from;
}

// {m}, {m,} or {m,n}; false and nothing read if the brace is a plain character.
static bool read_counts(uint32_t *min, uint32_t *max, bool *is_open, parser *p) {
    const size_t from = p->at;
    p->at++;
    *is_open = false;
    if (read_number(min, p)) {
        *max = *min;
        if (take(p, ',')) *is_open = !read_number(max, p);
        if (take(p, '}')) return true;
    }
    p->at = from;
    return false;
}

static qn_status read_repeat(qn_regex_node **out, parser *p, bool *found) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool is_open = true;
    *found = true;
    if (take(p, '?')) {
        max = 1;
    } else if (take(p, '+')) {
        min = 1;
    } else if (peek(p) == '{' && read_counts(&min, &max, &is_open, p)) {
        if (min == QN_AST_MANY || (max == QN_AST_MANY && !is_open))
            return FAIL_AT(p, LIMIT, "a repetition of more than %d", QN_REGEX_MAX_COUNT);
        if (is_open) max = QN_AST_MANY;
        if (min > max) return FAIL_AT(p, FORMAT, "a repetition {%u,%u}", min, max);
    } else if (!take(p, '*')) {
        *found = false;
        return QN_OK;
    }
    take(p, '?'); // lazy: the same texts
    if ((*out)->kind == QN_REGEX_START || (*out)->kind == QN_REGEX_END)
        return FAIL_AT(p, UNSUPPORTED, "a repeated anchor");
    qn_regex_node *node = new_node(p, QN_REGEX_REP);
    if (!node) return QN_NOMEM(p->err, "regular expression");
    node->min = min;
    node->max = max;
    node->first = node->last = *out;
    *out = node;
    return QN_OK;
}

static void add_child(qn_regex_node *parent, qn_regex_node *child) {
    child->previous = parent->last;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
}

static qn_status read_sequence(qn_regex_node **out, parser *p) {
    qn_regex_node *sequence = new_node(p, QN_REGEX_SEQ);
    if (!sequence) return QN_NOMEM(p->err, "regular expression");
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        qn_regex_node *item;
        bool found;
        QN_TRY(read_atom(&item, p));
        QN_TRY(read_repeat(&item, p, &found));
        if (found && (peek(p) == '*' || peek(p) == '+' || peek(p) == '?'))
            return FAIL_AT(p, FORMAT, "nothing to repeat before %c", peek(p));
        add_child(sequence, item);
    }
    *out = sequence;
    return QN_OK;
}

static qn_status read_choice(qn_regex_node **out, parser *p) {
    qn_regex_node *choice = new_node(p, QN_REGEX_ALT), *branch = NULL;
    if (!choice) return QN_NOMEM(p->err, "regular expression");
    do {
        QN_TRY(read_sequence(&branch, p));
        add_child(choice, branch);
    } while (take(p, '|'));
    *out = choice;
    return QN_OK;
}

qn_status qn_regex_parse(qn_regex_node **out, qn_arena *arena, qn_str pattern, qn_err *err) {
    parser p = {.arena = arena, .text = pattern, .err = err};
    if (pattern.size > QN_REGEX_MAX_BYTES)
        return QN_FAIL(err, LIMIT, "regular expression: %zu bytes, at most %d", pattern.size,
                       QN_REGEX_MAX_BYTES);
    if (!qn_utf8_valid(pattern.data, pattern.size))
        return QN_FAIL(err, FORMAT, "regular expression: not valid UTF-8");
    QN_TRY(read_choice(out, &p));
    return p.at == pattern.size ? QN_OK : FAIL_AT(&p, FORMAT, "a bracket ) without its (");
}
