// GBNF: rules in the notation of llama.cpp's grammar files.
//
//   root  ::= "[" (item ("," item)*)? "]"   # a comment
//   item  ::= [a-z_] [^\x00-\x1F]{0,20} | .
//
// The text is what `root` matches. <name> and <[id]> are tokens themselves, not their bytes; with !
// before them, any other token.
#include "core/chars.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/code_set.h"
#include "gen/grammar/grammar_int.h"
#include "tokenizer/tokenizer.h"

enum { MAX_DEPTH = 200, MAX_COUNT = 1 << 24, MAX_CODE = 0x10FFFF };

typedef struct parser {
    qn_gr_ast *ast;
    qn_str text;
    size_t at;
    int depth;
    qn_map names;      // rule name -> rule
    size_t *first_use; // of each rule, where it is named first
    size_t cap_uses;
    qn_err *err;
} parser;

#define FAIL_AT(p, code, ...) fail_at(QN_FAIL((p)->err, code, __VA_ARGS__), p)

static qn_status fail_at(qn_status status, const parser *p) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < p->at && i < p->text.size; i++) {
        column = p->text.data[i] == '\n' ? 1 : column + 1;
        line += p->text.data[i] == '\n';
    }
    return qn_err_prefix(p->err, status, "GBNF, line %zu, column %zu", line, column);
}

static int peek(const parser *p) {
    return p->at < p->text.size ? (unsigned char)p->text.data[p->at] : -1;
}

static bool take(parser *p, char c) {
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

static bool is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void skip_blanks(parser *p, bool lines) {
    for (int c; (c = peek(p)) >= 0; p->at++) {
        if (c == '#') {
            while (peek(p) >= 0 && peek(p) != '\n') p->at++;
            if (peek(p) < 0 || !lines) return;
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

static qn_str read_name(parser *p) {
    const size_t from = p->at;
    while (is_word(peek(p))) p->at++;
    return (qn_str){p->text.data + from, p->at - from};
}

// The rule of this name, made when it is met first.
static qn_status find_rule(int32_t *out, parser *p, qn_str name, size_t at) {
    uint32_t rule;
    if (!qn_map_find(&p->names, name.data, name.size, &rule)) {
        const int32_t made = qn_gr_ast_rule_named(p->ast, name);
        if (made < 0) return qn_gr_ast_check(p->ast, p->err);
        rule = (uint32_t)made;
        if (!qn_map_add(&p->names, name.data, name.size, rule, NULL) ||
            !qn_grow((void **)&p->first_use, &p->cap_uses, rule + 1, sizeof *p->first_use))
            return QN_NOMEM(p->err, "GBNF");
        p->first_use[rule] = at;
    }
    *out = (int32_t)rule;
    return QN_OK;
}

// --- characters ----------------------------------------------------------------------------------

static qn_status read_hex(uint32_t *code, parser *p, int n) {
    uint32_t value = 0;
    for (int i = 0; i < n; i++, p->at++) {
        const int digit = qn_hex_digit(peek(p));
        if (digit < 0) return FAIL_AT(p, FORMAT, "an escape wants %d hexadecimal digits", n);
        value = value << 4 | (uint32_t)digit;
    }
    if (value > MAX_CODE || (value >= 0xD800 && value <= 0xDFFF))
        return FAIL_AT(p, FORMAT, "U+%X is not a character", value);
    *code = value;
    return QN_OK;
}

static qn_status read_char(uint32_t *code, parser *p) {
    static const char names[] = "tnr\\\"[]-^.", codes[] = "\t\n\r\\\"[]-^.";
    if (!take(p, '\\')) {
        const size_t n = qn_utf8_decode(p->text.data + p->at, p->text.size - p->at, code);
        p->at += n;
        return n ? QN_OK : FAIL_AT(p, FORMAT, "the text ends inside");
    }
    const int c = peek(p);
    if (c < 0) return FAIL_AT(p, FORMAT, "a backslash at the end");
    p->at++;
    if (c == 'x' || c == 'u' || c == 'U') return read_hex(code, p, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    const char *hit = c ? strchr(names, c) : NULL;
    if (!hit) return FAIL_AT(p, FORMAT, "unknown escape \\%c", c);
    *code = (uint32_t)(unsigned char)codes[hit - names];
    return QN_OK;
}

static qn_status read_literal(int32_t *out, parser *p) {
    // Characters lie in the text in order, but sequences are made from their end.
    qn_gr_node_list list = {0};
    qn_status status = QN_OK;
    while (!status && peek(p) != '"') {
        uint32_t code;
        if (peek(p) < 0 || peek(p) == '\n') {
            status = FAIL_AT(p, FORMAT, "a quoted text has no end");
            break;
        }
        status = read_char(&code, p);
        if (status) break;
        if (!qn_grow((void **)&list.items, &list.cap, list.n + 1, sizeof *list.items)) {
            status = QN_NOMEM(p->err, "GBNF");
            break;
        }
        list.items[list.n++] = qn_gr_codes(p->ast, &(qn_gr_code_range){code, code}, 1);
    }
    int32_t node = QN_AST_EMPTY;
    for (size_t i = list.n; i-- > 0;) node = qn_gr_seq(p->ast, list.items[i], node);
    qn_free(list.items);
    p->at += !status;
    *out = node;
    return status;
}

static int32_t codes_node(qn_gr_ast *ast, qn_gr_code_range *ranges, size_t n, bool negated) {
    n = qn_gr_ranges_sort(ranges, n);
    if (!negated) return qn_gr_codes(ast, ranges, n);
    int32_t node = QN_AST_NEVER;
    uint32_t from = 0;
    for (size_t i = 0; i <= n; i++) {
        const uint32_t to = i < n ? ranges[i].lo : MAX_CODE + 1;
        if (from < to)
            node = qn_gr_alt(ast, qn_gr_codes(ast, &(qn_gr_code_range){from, to - 1}, 1), node);
        if (i < n) from = ranges[i].hi + 1;
    }
    return node;
}

static qn_status read_range(qn_gr_code_range *range, parser *p) {
    QN_TRY(read_char(&range->lo, p));
    range->hi = range->lo;
    if (peek(p) == '-' && p->at + 1 < p->text.size && p->text.data[p->at + 1] != ']') {
        p->at++;
        QN_TRY(read_char(&range->hi, p));
    }
    return range->lo <= range->hi ? QN_OK : FAIL_AT(p, FORMAT, "a range goes backwards");
}

static qn_status read_class(int32_t *out, parser *p) {
    qn_gr_code_range *ranges = NULL;
    size_t n = 0, cap = 0;
    qn_status status = QN_OK;
    const bool negated = take(p, '^');
    while (!status && peek(p) != ']') {
        if (peek(p) < 0)
            status = FAIL_AT(p, FORMAT, "a bracket [ without its ]");
        else if (!qn_grow((void **)&ranges, &cap, n + 1, sizeof *ranges))
            status = QN_NOMEM(p->err, "GBNF");
        else
            status = read_range(&ranges[n++], p);
    }
    if (!status) {
        p->at++;
        *out = codes_node(p->ast, ranges, n, negated);
    }
    qn_free(ranges);
    return status;
}

// --- rules ---------------------------------------------------------------------------------------

// The number in <[...]>.
static qn_status read_token_id(int32_t *out, parser *p) {
    const int32_t n_tokens = qn_tokenizer_own_info(p->ast->tokenizer)->n_tokens;
    const size_t from = p->at;
    int64_t id = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (id < n_tokens) id = id * 10 + (peek(p) - '0');
    if (p->at == from || !take(p, ']') || !take(p, '>'))
        return FAIL_AT(p, FORMAT, "a token is written <[number]> or <text>");
    if (id >= n_tokens)
        return FAIL_AT(p, ARGUMENT, "token %.*s: the vocabulary has %d", (int)(p->at - from - 2),
                       p->text.data + from, n_tokens);
    *out = (int32_t)id;
    return QN_OK;
}

// The token whose text is <...>, with its brackets.
static qn_status read_token_text(int32_t *out, parser *p, size_t from) {
    while (peek(p) >= 0 && peek(p) != '>' && peek(p) != '\n') p->at++;
    if (!take(p, '>')) return FAIL_AT(p, FORMAT, "a token < without its >");
    const qn_str name = {p->text.data + from, p->at - from};
    *out = qn_tokenizer_find(p->ast->tokenizer, name.data, name.size);
    if (*out >= 0) return QN_OK;
    return FAIL_AT(p, ARGUMENT, "the vocabulary has no token %.*s", (int)name.size, name.data);
}

static qn_status read_token(int32_t *out, parser *p) {
    const bool negated = take(p, '!');
    const size_t from = p->at;
    int32_t token = -1;
    if (!take(p, '<')) return FAIL_AT(p, FORMAT, "a token is wanted after !");
    if (take(p, '['))
        QN_TRY(read_token_id(&token, p));
    else
        QN_TRY(read_token_text(&token, p, from));
    if (qn_tokenizer_is_end(p->ast->tokenizer, token))
        return FAIL_AT(p, UNSUPPORTED, "token %d ends an answer, which no rule can ask for", token);
    *out = qn_gr_token(p->ast, token, negated);
    return QN_OK;
}

static qn_status read_choice(int32_t *out, parser *p, bool nested);

static qn_status read_item(int32_t *out, parser *p) {
    static const qn_gr_code_range any[] = {{0, MAX_CODE}};
    if (take(p, '"')) return read_literal(out, p);
    if (take(p, '[')) return read_class(out, p);
    if (take(p, '.')) {
        *out = qn_gr_codes(p->ast, any, 1);
        return QN_OK;
    }
    if (take(p, '(')) {
        if (++p->depth > MAX_DEPTH)
            return FAIL_AT(p, LIMIT, "more than %d groups in each other", MAX_DEPTH);
        skip_blanks(p, true);
        QN_TRY(read_choice(out, p, true));
        p->depth--;
        return take(p, ')') ? QN_OK : FAIL_AT(p, FORMAT, "a bracket ( without its )");
    }
    if (peek(p) == '<' || peek(p) == '!') return read_token(out, p);
    if (!is_word(peek(p))) return FAIL_AT(p, FORMAT, "unexpected character");
    const size_t at = p->at;
    int32_t rule = -1;
    QN_TRY(find_rule(&rule, p, read_name(p), at));
    *out = qn_gr_ref(p->ast, rule);
    return QN_OK;
}

static qn_status read_count(uint32_t *out, parser *p) {
    uint32_t value = 0;
    const size_t from = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        value = value * 10 + (uint32_t)(peek(p) - '0');
        if (value > MAX_COUNT) return FAIL_AT(p, LIMIT, "a repetition of more than %d", MAX_COUNT);
    }
    if (p->at == from) return FAIL_AT(p, FORMAT, "a repetition wants a number");
    skip_blanks(p, false);
    *out = value;
    return QN_OK;
}

// One of + ? * {...}; *found: there was one.
static qn_status read_repeat(int32_t *node, parser *p, bool *found) {
    uint32_t min = 0, max = QN_AST_MANY;
    *found = true;
    if (take(p, '+')) {
        min = 1;
    } else if (take(p, '?')) {
        max = 1;
    } else if (take(p, '{')) {
        skip_blanks(p, false);
        QN_TRY(read_count(&min, p));
        max = min;
        if (take(p, ',')) {
            skip_blanks(p, false);
            max = QN_AST_MANY;
            if (peek(p) != '}') QN_TRY(read_count(&max, p));
        }
        if (!take(p, '}')) return FAIL_AT(p, FORMAT, "a brace { without its }");
        if (min > max) return FAIL_AT(p, FORMAT, "a repetition {%u,%u}", min, max);
    } else if (!take(p, '*')) {
        *found = false;
        return QN_OK;
    }
    *node = qn_gr_rep(p->ast, *node, min, max);
    return QN_OK;
}

static bool ends_sequence(const parser *p) {
    const int c = peek(p);
    return c < 0 || c == '|' || c == ')' || c == '\n' || c == '\r';
}

static qn_status read_sequence(int32_t *out, parser *p, bool nested) {
    qn_gr_node_list list = {0};
    qn_status status = QN_OK;
    while (!status && !ends_sequence(p)) {
        int32_t item = QN_AST_EMPTY;
        status = read_item(&item, p);
        for (bool more = true; !status && more;) {
            skip_blanks(p, nested);
            status = read_repeat(&item, p, &more);
        }
        if (!status && !qn_grow((void **)&list.items, &list.cap, list.n + 1, sizeof *list.items))
            status = QN_NOMEM(p->err, "GBNF");
        if (!status) list.items[list.n++] = item;
        skip_blanks(p, nested);
    }
    *out = QN_AST_EMPTY;
    for (size_t i = list.n; i-- > 0;) *out = qn_gr_seq(p->ast, list.items[i], *out);
    qn_free(list.items);
    return status;
}

// True and past it if a choice goes on, perhaps at the start of the next line.
static bool take_bar(parser *p) {
    const size_t from = p->at;
    skip_blanks(p, true);
    if (take(p, '|')) {
        skip_blanks(p, true);
        return true;
    }
    p->at = from;
    return false;
}

static qn_status read_choice(int32_t *out, parser *p, bool nested) {
    int32_t choice = QN_AST_NEVER, branch = QN_AST_NEVER;
    do {
        QN_TRY(read_sequence(&branch, p, nested));
        choice = qn_gr_alt(p->ast, choice, branch);
    } while (take_bar(p));
    *out = choice;
    return QN_OK;
}

static qn_status read_rule(parser *p) {
    const size_t at = p->at;
    const qn_str name = read_name(p);
    if (!name.size) return FAIL_AT(p, FORMAT, "a rule's name is wanted here");
    skip_blanks(p, false);
    if (p->text.size - p->at < 3 || memcmp(p->text.data + p->at, "::=", 3) != 0)
        return FAIL_AT(p, FORMAT, "expected '::=' after the name of a rule");
    p->at += 3;
    skip_blanks(p, true);
    int32_t rule = -1, body;
    QN_TRY(find_rule(&rule, p, name, at));
    if (!p->ast->failed && p->ast->rules[rule].body >= 0) {
        p->at = at;
        return FAIL_AT(p, FORMAT, "rule %.*s is there already", (int)name.size, name.data);
    }
    QN_TRY(read_choice(&body, p, false));
    qn_gr_ast_rule_set(p->ast, rule, body);
    skip_blanks(p, false);
    if (peek(p) >= 0 && peek(p) != '\n' && peek(p) != '\r')
        return FAIL_AT(p, FORMAT, "the rule should end here");
    return QN_OK;
}

static qn_status read_rules(int32_t *root, parser *p) {
    for (skip_blanks(p, true); peek(p) >= 0; skip_blanks(p, true)) QN_TRY(read_rule(p));
    QN_TRY(qn_gr_ast_check(p->ast, p->err));
    for (size_t r = 0; r < p->ast->n_rules; r++) {
        if (p->ast->rules[r].body >= 0) continue;
        p->at = p->first_use[r];
        return FAIL_AT(p, FORMAT, "rule %s is not defined", p->ast->rules[r].name);
    }
    uint32_t rule;
    if (!qn_map_find(&p->names, "root", 4, &rule))
        return QN_FAIL(p->err, FORMAT, "GBNF: there is no rule named root");
    *root = qn_gr_ref(p->ast, (int32_t)rule);
    return QN_OK;
}

qn_status qn_gr_front_gbnf(int32_t *root, qn_gr_ast *ast, qn_str text, const qn_grammar_opts *opts,
                           qn_err *err) {
    (void)opts;
    if (!qn_utf8_valid(text.data, text.size)) return QN_FAIL(err, FORMAT, "GBNF: not valid UTF-8");
    parser p = {.ast = ast, .text = text, .err = err};
    const qn_status status = read_rules(root, &p);
    qn_map_deinit(&p.names);
    qn_free(p.first_use);
    return status;
}
