#include "gen/grammar/json_rules.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/grammar_int.h"

#include <stdio.h>

static int32_t text(qn_gr_ast *ast, const char *bytes) { return qn_gr_text(ast, qn_str_of(bytes)); }

static int32_t make_blank(qn_gr_ast *ast) {
    const int32_t indent = qn_gr_rep(ast, qn_gr_bytes(ast, " \t"), 0, QN_JSON_INDENT);
    const int32_t line = qn_gr_seq(ast, text(ast, "\n"), indent);
    return qn_gr_shared(ast, "blank", qn_gr_maybe(ast, qn_gr_alt(ast, text(ast, " "), line)));
}

// \uXXXX: any unit that is not a surrogate, or a high and a low one.
static int32_t make_unicode_escape(qn_gr_ast *ast) {
    const int32_t hex = qn_gr_bytes(ast, "0123456789abcdefABCDEF");
    const int32_t two = qn_gr_rep(ast, hex, 2, 2), three = qn_gr_rep(ast, hex, 3, 3);
    const int32_t d = qn_gr_bytes(ast, "dD");
    const int32_t other = qn_gr_seq(ast, qn_gr_bytes(ast, "0123456789abcefABCEF"), three);
    const int32_t low_d = qn_gr_seq3(ast, d, qn_gr_bytes(ast, "01234567"), two);
    const int32_t high = qn_gr_seq3(ast, d, qn_gr_bytes(ast, "89abAB"), two);
    const int32_t low = qn_gr_seq3(ast, d, qn_gr_bytes(ast, "cdefCDEF"), two);
    const int32_t pair = qn_gr_seq3(ast, high, text(ast, "\\u"), low);
    return qn_gr_seq(ast, text(ast, "u"), qn_gr_alt(ast, other, qn_gr_alt(ast, low_d, pair)));
}

static int32_t make_letter(qn_gr_ast *ast) {
    static const qn_gr_code_range plain[] = {
        {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};
    const int32_t escape = qn_gr_alt(ast, qn_gr_bytes(ast, "\"\\/bfnrt"), make_unicode_escape(ast));
    const int32_t spelled = qn_gr_seq(ast, text(ast, "\\"), escape);
    return qn_gr_alt(ast, qn_gr_codes(ast, plain, sizeof plain / sizeof *plain), spelled);
}

int32_t qn_gr_json_quoted(qn_gr_ast *ast, int32_t inner) {
    return qn_gr_seq3(ast, text(ast, "\""), inner, text(ast, "\""));
}

static void make_numbers(qn_gr_json_parts *p, qn_gr_ast *ast) {
    const int32_t digit = qn_gr_span(ast, '0', '9');
    const int32_t many =
        qn_gr_seq(ast, qn_gr_span(ast, '1', '9'), qn_gr_rep(ast, digit, 0, QN_JSON_DIGITS - 1));
    const int32_t whole =
        qn_gr_seq(ast, qn_gr_maybe(ast, text(ast, "-")), qn_gr_alt(ast, text(ast, "0"), many));
    p->integer = qn_gr_shared(ast, "integer", whole);
    const int32_t fraction =
        qn_gr_seq(ast, text(ast, "."), qn_gr_rep(ast, digit, 1, QN_JSON_DIGITS));
    const int32_t exponent =
        qn_gr_seq3(ast, qn_gr_bytes(ast, "eE"), qn_gr_maybe(ast, qn_gr_bytes(ast, "+-")),
                   qn_gr_rep(ast, digit, 1, QN_JSON_EXPONENT_DIGITS));
    p->number = qn_gr_shared(
        ast, "number",
        qn_gr_seq3(ast, whole, qn_gr_maybe(ast, fraction), qn_gr_maybe(ast, exponent)));
}

static void make_values(qn_gr_json_parts *p, qn_gr_ast *ast) {
    const int32_t rule = qn_gr_ast_rule_add(ast, qn_str_of("value"));
    const int32_t value = qn_gr_ref(ast, rule);
    const int32_t member = qn_gr_seq3(ast, p->string, p->colon, value);
    const int32_t members =
        qn_gr_seq(ast, member, qn_gr_rep(ast, qn_gr_seq(ast, p->comma, member), 0, QN_AST_MANY));
    const int32_t items =
        qn_gr_seq(ast, value, qn_gr_rep(ast, qn_gr_seq(ast, p->comma, value), 0, QN_AST_MANY));
    p->object =
        qn_gr_shared(ast, "object",
                     qn_gr_alt(ast, qn_gr_seq3(ast, p->open, members, p->close), text(ast, "{}")));
    p->array = qn_gr_shared(
        ast, "array",
        qn_gr_alt(ast, qn_gr_seq3(ast, p->open_list, items, p->close_list), text(ast, "[]")));
    const int32_t words =
        qn_gr_alt(ast, text(ast, "true"), qn_gr_alt(ast, text(ast, "false"), text(ast, "null")));
    const int32_t nested = qn_gr_alt(ast, p->object, p->array);
    qn_gr_ast_rule_set(
        ast, rule,
        qn_gr_alt(ast, nested, qn_gr_alt(ast, p->string, qn_gr_alt(ast, p->number, words))));
    p->value = value;
}

void qn_gr_json_parts_init(qn_gr_json_parts *p, qn_gr_ast *ast) {
    p->blank = make_blank(ast);
    p->letter = qn_gr_shared(ast, "letter", make_letter(ast));
    p->string = qn_gr_shared(ast, "string",
                             qn_gr_json_quoted(ast, qn_gr_rep(ast, p->letter, 0, QN_AST_MANY)));
    p->open = qn_gr_seq(ast, text(ast, "{"), p->blank);
    p->close = qn_gr_seq(ast, p->blank, text(ast, "}"));
    p->open_list = qn_gr_seq(ast, text(ast, "["), p->blank);
    p->close_list = qn_gr_seq(ast, p->blank, text(ast, "]"));
    p->comma = qn_gr_seq(ast, text(ast, ","), p->blank);
    p->colon = qn_gr_seq(ast, text(ast, ":"), p->blank);
    make_numbers(p, ast);
    make_values(p, ast);
}

// --- one spelling --------------------------------------------------------------------------------

// What follows the backslash in the one spelling of a character that needs it.
static const char *spelling_of(uint32_t code, char room[8]) {
    static const char codes[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *hit = code ? strchr(codes, (int)code) : NULL;
    if (hit)
        snprintf(room, 8, "%c", names[hit - codes]);
    else
        snprintf(room, 8, "u%04x", (unsigned)code & 0xFFFF);
    return room;
}

static bool needs_escape(uint32_t code) { return code < 0x20 || code == '"' || code == '\\'; }

// The characters that need no escape. `room` is for 2 more ranges than there are.
static size_t keep_raw(qn_gr_code_range *room, const qn_gr_code_range *ranges, size_t n) {
    static const qn_gr_code_range raw[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < sizeof raw / sizeof *raw; j++) {
            const qn_gr_code_range part = {ranges[i].lo > raw[j].lo ? ranges[i].lo : raw[j].lo,
                                           ranges[i].hi < raw[j].hi ? ranges[i].hi : raw[j].hi};
            if (part.lo <= part.hi) room[kept++] = part;
        }
    return kept;
}

int32_t qn_gr_json_codes(qn_gr_ast *ast, const qn_gr_code_range *ranges, size_t n) {
    qn_gr_code_range *room = qn_alloc(n + 2, sizeof *room);
    if (!room) {
        qn_gr_ast_fail(ast, QN_MEMORY, NULL);
        return QN_AST_NEVER;
    }
    int32_t node = qn_gr_codes(ast, room, keep_raw(room, ranges, n));
    qn_free(room);
    for (size_t i = 0; i < n; i++)
        for (uint32_t code = ranges[i].lo; code <= ranges[i].hi && code <= '\\'; code++) {
            char letter[8];
            if (!needs_escape(code)) continue;
            const int32_t escape = text(ast, spelling_of(code, letter));
            node = qn_gr_alt(ast, qn_gr_seq(ast, text(ast, "\\"), escape), node);
        }
    return node;
}

int32_t qn_gr_json_text(qn_gr_ast *ast, qn_str value) {
    int32_t node = text(ast, "\"");
    for (size_t i = value.size; i-- > 0;) {
        const unsigned char byte = (unsigned char)value.data[i];
        char room[8];
        if (needs_escape(byte)) {
            const int32_t escape = text(ast, spelling_of(byte, room));
            node = qn_gr_seq3(ast, text(ast, "\\"), escape, node);
        } else {
            node = qn_gr_seq(ast, qn_gr_span(ast, byte, byte), node);
        }
    }
    return qn_gr_seq(ast, text(ast, "\""), node);
}

qn_status qn_gr_front_json(int32_t *root, qn_gr_ast *ast, qn_str given, const qn_grammar_opts *opts,
                           qn_err *err) {
    (void)opts;
    qn_gr_json_parts parts;
    if (given.size)
        return QN_FAIL(err, ARGUMENT, "grammar: JSON mode takes no text, not %zu bytes",
                       given.size);
    qn_gr_json_parts_init(&parts, ast);
    *root = parts.object;
    return QN_OK;
}
