#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/regex_parser.h"

typedef qn_gr_regex_parser parser;

qn_status qn_gr_regex_fail(const parser *p, qn_status status) {
    return qn_err_prefix(p->err, status, "regular expression, column %zu", p->at + 1);
}

qn_gr_regex_node *qn_gr_regex_new_node(parser *p, qn_gr_regex_kind kind) {
    qn_gr_regex_node *node = qn_arena_alloc(p->arena, 1, sizeof *node);
    if (!node) return NULL;
    node->kind = kind;
    node->column = (uint32_t)p->at + 1;
    return node;
}

static qn_status new_node(qn_gr_regex_node **out, parser *p, qn_gr_regex_kind kind) {
    *out = qn_gr_regex_new_node(p, kind);
    return *out ? QN_OK : QN_NOMEM(p->err, "regular expression");
}

static void add_child(qn_gr_regex_node *parent, qn_gr_regex_node *child) {
    child->previous = parent->last;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
}

// --- anchors -------------------------------------------------------------------------------------

static qn_status look_node(qn_gr_regex_node **out, parser *p, qn_gr_regex_node *body, bool behind,
                           bool negated) {
    QN_TRY(new_node(out, p, QN_REGEX_LOOK));
    (*out)->behind = behind;
    (*out)->negated = negated;
    add_child(*out, body);
    return QN_OK;
}

// A branch of a choice: two conditions on the characters around, the one before and the one after.
static qn_status add_edge(qn_gr_regex_node *choice, parser *p, bool word_before, bool word_after) {
    qn_gr_regex_node *sequence, *before, *after, *look;
    QN_TRY(new_node(&sequence, p, QN_REGEX_SEQ));
    QN_TRY(qn_gr_regex_word_char(&before, p));
    QN_TRY(look_node(&look, p, before, true, !word_before));
    add_child(sequence, look);
    QN_TRY(qn_gr_regex_word_char(&after, p));
    QN_TRY(look_node(&look, p, after, false, !word_after));
    add_child(sequence, look);
    add_child(choice, sequence);
    return QN_OK;
}

// \b (at the edge of a word) and \B.
static qn_status edge_node(qn_gr_regex_node **out, parser *p, bool negated) {
    QN_TRY(new_node(out, p, QN_REGEX_ALT));
    QN_TRY(add_edge(*out, p, false, !negated));
    return add_edge(*out, p, true, negated);
}

// ^ and $ of (?m): the end of the text, or of a line.
static qn_status line_node(qn_gr_regex_node **out, parser *p, qn_gr_regex_kind kind) {
    qn_gr_regex_node *sequence, *end, *look;
    QN_TRY(new_node(out, p, QN_REGEX_ALT));
    QN_TRY(new_node(&sequence, p, QN_REGEX_SEQ));
    add_child(*out, sequence);
    QN_TRY(new_node(&end, p, kind));
    add_child(sequence, end);
    QN_TRY(new_node(&sequence, p, QN_REGEX_SEQ));
    add_child(*out, sequence);
    QN_TRY(qn_gr_regex_line_end(&end, p));
    QN_TRY(look_node(&look, p, end, kind == QN_REGEX_START, false));
    add_child(sequence, look);
    return QN_OK;
}

// ^ $ \A \Z \z \b \B; *found: there was one.
static qn_status read_anchor(qn_gr_regex_node **out, parser *p, bool *found) {
    const int c = peek(p);
    const int escaped =
        c == '\\' && p->at + 1 < p->text.size ? (unsigned char)p->text.data[p->at + 1] : 0;
    const bool by_line = (p->flags & QN_FLAG_LINES) && !escaped;
    *found = c == '^' || c == '$' || (escaped && strchr("AZzbB", escaped));
    if (!*found) return QN_OK;
    p->at += escaped ? 2 : 1;
    if (escaped == 'b' || escaped == 'B') return edge_node(out, p, escaped == 'B');
    const qn_gr_regex_kind kind = c == '^' || escaped == 'A' ? QN_REGEX_START : QN_REGEX_END;
    return by_line ? line_node(out, p, kind) : new_node(out, p, kind);
}

// --- groups --------------------------------------------------------------------------------------

static qn_status read_choice(qn_gr_regex_node **out, parser *p);

// The inside of a group, and its bracket. What flags are set in it ends with it.
static qn_status read_inside(qn_gr_regex_node **out, parser *p) {
    const unsigned flags = p->flags;
    if (++p->depth > QN_REGEX_MAX_DEPTH)
        return FAIL_AT(p, LIMIT, "more than %d groups in each other", QN_REGEX_MAX_DEPTH);
    QN_TRY(read_choice(out, p));
    p->depth--;
    p->flags = flags;
    return take(p, ')') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket ( without its )");
}

static qn_status skip_name(parser *p) {
    const size_t from = p->at;
    while (peek(p) >= 0 && peek(p) != '>' && peek(p) != ')') p->at++;
    if (p->at == from) return FAIL_AT(p, FORMAT, "a group's name is empty");
    return take(p, '>') ? QN_OK : FAIL_AT(p, FORMAT, "a group's name has no end");
}

static qn_status read_look(qn_gr_regex_node **out, parser *p, bool behind, bool negated) {
    qn_gr_regex_node *body;
    QN_TRY(read_inside(&body, p));
    return look_node(out, p, body, behind, negated);
}

typedef struct flag_row {
    char name;
    unsigned bits;
} flag_row;

static const flag_row flag_rows[] = {
    {'i', QN_FLAG_FOLD}, {'m', QN_FLAG_LINES}, {'s', QN_FLAG_DOT_ALL}, {'u', 0}};

// After (?: letters, perhaps - and more letters, then : for this group or ) for the rest of the one
// around; then *out is NULL.
static qn_status read_flags(qn_gr_regex_node **out, parser *p) {
    unsigned flags = p->flags;
    bool off = false;
    for (; peek(p) != ':' && peek(p) != ')'; p->at++) {
        size_t i = 0;
        while (i < sizeof flag_rows / sizeof *flag_rows && flag_rows[i].name != peek(p)) i++;
        if (peek(p) == '-' && !off) {
            off = true;
        } else if (i == sizeof flag_rows / sizeof *flag_rows) {
            return peek(p) < 0
                       ? FAIL_AT(p, FORMAT, "a bracket ( without its )")
                       : FAIL_AT(p, UNSUPPORTED,
                                 "a group (?%c is not supported; flags are i, m, s and u", peek(p));
        } else {
            flags = off ? flags & ~flag_rows[i].bits : flags | flag_rows[i].bits;
        }
    }
    if (take(p, ')')) {
        p->flags = flags;
        *out = NULL;
        return QN_OK;
    }
    const unsigned around = p->flags;
    p->at++;
    p->flags = flags;
    QN_TRY(read_inside(out, p));
    p->flags = around;
    return QN_OK;
}

typedef enum group_kind { GROUP_PLAIN, GROUP_NAMED, GROUP_LOOK, GROUP_NOTE, GROUP_NO } group_kind;

typedef struct group_row {
    const char *start; // after the (
    group_kind kind;
    bool behind, negated;
    const char *what; // of one that is not supported
} group_row;

static const group_row groups[] = {
    {"?:", GROUP_PLAIN, false, false, NULL},
    {"?=", GROUP_LOOK, false, false, NULL},
    {"?!", GROUP_LOOK, false, true, NULL},
    {"?<=", GROUP_LOOK, true, false, NULL},
    {"?<!", GROUP_LOOK, true, true, NULL},
    {"?<", GROUP_NAMED, false, false, NULL},
    {"?P<", GROUP_NAMED, false, false, NULL},
    {"?#", GROUP_NOTE, false, false, NULL},
    {"?P=", GROUP_NO, false, false, "references to groups (?P=...)"},
    {"?P>", GROUP_NO, false, false, "calls of groups (?P>...)"},
    {"?>", GROUP_NO, false, false, "atomic groups (?>...)"},
    {"?(", GROUP_NO, false, false, "conditional groups (?(...)...)"},
    {"?|", GROUP_NO, false, false, "groups (?|...)"},
};

static qn_status read_kind(qn_gr_regex_node **out, parser *p, const group_row *row) {
    switch (row->kind) {
    case GROUP_NO:
        return FAIL_AT(p, UNSUPPORTED, "%s are not supported", row->what);
    case GROUP_NOTE:
        while (peek(p) >= 0 && peek(p) != ')') p->at++;
        *out = NULL;
        return take(p, ')') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket ( without its )");
    case GROUP_LOOK:
        return read_look(out, p, row->behind, row->negated);
    case GROUP_NAMED:
        QN_TRY(skip_name(p));
        break;
    case GROUP_PLAIN:
        break;
    }
    return read_inside(out, p);
}

// After a bracket. *out is NULL for what reads nothing and says nothing here: flags, a comment.
static qn_status read_group(qn_gr_regex_node **out, parser *p) {
    if (peek(p) != '?') return read_inside(out, p);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (!starts(p, groups[i].start)) continue;
        p->at += strlen(groups[i].start);
        return read_kind(out, p, &groups[i]);
    }
    p->at++;
    return read_flags(out, p);
}

static qn_status read_atom(qn_gr_regex_node **out, parser *p) {
    bool is_anchor;
    if (take(p, '(')) return read_group(out, p);
    if (take(p, '[')) return qn_gr_regex_read_brackets(out, p);
    if (take(p, '.')) return qn_gr_regex_read_dot(out, p);
    if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?')
        return FAIL_AT(p, FORMAT, "nothing to repeat before %c", peek(p));
    QN_TRY(read_anchor(out, p, &is_anchor));
    if (is_anchor) return QN_OK;
    if (take(p, '\\')) return qn_gr_regex_read_escape(out, p);
    return qn_gr_regex_read_plain(out, p);
}

// --- repetitions ---------------------------------------------------------------------------------

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

static qn_status read_repeat(qn_gr_regex_node **out, parser *p, bool *found) {
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
    qn_gr_regex_node *node;
    QN_TRY(new_node(&node, p, QN_REGEX_REP));
    node->min = min;
    node->max = max;
    node->first = node->last = *out;
    *out = node;
    return QN_OK;
}

static qn_status read_sequence(qn_gr_regex_node **out, parser *p) {
    qn_gr_regex_node *sequence;
    QN_TRY(new_node(&sequence, p, QN_REGEX_SEQ));
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        qn_gr_regex_node *item;
        bool found;
        QN_TRY(read_atom(&item, p));
        if (!item) continue;
        QN_TRY(read_repeat(&item, p, &found));
        if (found && (peek(p) == '*' || peek(p) == '+' || peek(p) == '?'))
            return FAIL_AT(p, FORMAT, "nothing to repeat before %c", peek(p));
        add_child(sequence, item);
    }
    *out = sequence;
    return QN_OK;
}

static qn_status read_choice(qn_gr_regex_node **out, parser *p) {
    qn_gr_regex_node *choice, *branch = NULL;
    QN_TRY(new_node(&choice, p, QN_REGEX_ALT));
    do {
        QN_TRY(read_sequence(&branch, p));
        add_child(choice, branch);
    } while (take(p, '|'));
    *out = choice;
    return QN_OK;
}

qn_status qn_gr_regex_parse(qn_gr_regex_node **out, qn_arena *arena, qn_str pattern,
                            uint64_t *steps, qn_err *err) {
    parser p = {.arena = arena, .text = pattern, .unicode = {.steps = steps}, .err = err};
    if (pattern.size > QN_REGEX_MAX_BYTES)
        return QN_FAIL(err, LIMIT, "regular expression: %zu bytes, at most %d", pattern.size,
                       QN_REGEX_MAX_BYTES);
    if (!qn_utf8_valid(pattern.data, pattern.size))
        return QN_FAIL(err, FORMAT, "regular expression: not valid UTF-8");
    qn_status status = read_choice(out, &p);
    qn_gr_unicode_deinit(&p.unicode);
    if (!status && p.at != pattern.size) status = FAIL_AT(&p, FORMAT, "a bracket ) without its (");
    return status;
}
