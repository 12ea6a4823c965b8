// The state of the parser of regular expressions, for its two files: regex_parse.c has the
// structure, regex_class.c what matches one character.
#ifndef QN_GEN_GRAMMAR_REGEX_PARSER_H
#define QN_GEN_GRAMMAR_REGEX_PARSER_H

#include "gen/grammar/code_set.h"
#include "gen/grammar/regex_rules.h"

enum { QN_FLAG_FOLD = 1, QN_FLAG_LINES = 2, QN_FLAG_DOT_ALL = 4 }; // (?i) (?m) (?s)

typedef struct qn_gr_regex_parser {
    qn_arena *arena;
    qn_str text;
    size_t at;
    int depth;
    unsigned flags; // QN_FLAG_*, of the group that is being read
    qn_gr_unicode unicode;
    qn_err *err;
} qn_gr_regex_parser;

#define FAIL_AT(p, code, ...) qn_gr_regex_fail(p, QN_FAIL((p)->err, code, __VA_ARGS__))
// Fails with the column in front of the message.
qn_status qn_gr_regex_fail(const qn_gr_regex_parser *p, qn_status status);

static inline int peek(const qn_gr_regex_parser *p) {
    return p->at < p->text.size ? (unsigned char)p->text.data[p->at] : -1;
}
static inline bool take(qn_gr_regex_parser *p, char c) {
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}
static inline bool starts(const qn_gr_regex_parser *p, const char *text) {
    const size_t n = strlen(text);
    return p->text.size - p->at >= n && !memcmp(p->text.data + p->at, text, n);
}

// NULL when memory is short.
qn_gr_regex_node *qn_gr_regex_new_node(qn_gr_regex_parser *p, qn_gr_regex_kind kind);
// A character: a plain one, after a backslash, ".", or after "[".
QN_MUST_CHECK qn_status qn_gr_regex_read_plain(qn_gr_regex_node **out, qn_gr_regex_parser *p);
QN_MUST_CHECK qn_status qn_gr_regex_read_escape(qn_gr_regex_node **out, qn_gr_regex_parser *p);
QN_MUST_CHECK qn_status qn_gr_regex_read_dot(qn_gr_regex_node **out, qn_gr_regex_parser *p);
QN_MUST_CHECK qn_status qn_gr_regex_read_brackets(qn_gr_regex_node **out, qn_gr_regex_parser *p);
// A character of \w; one that ends a line.
QN_MUST_CHECK qn_status qn_gr_regex_word_char(qn_gr_regex_node **out, qn_gr_regex_parser *p);
QN_MUST_CHECK qn_status qn_gr_regex_line_end(qn_gr_regex_node **out, qn_gr_regex_parser *p);

#endif
