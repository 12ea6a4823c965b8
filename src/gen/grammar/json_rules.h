// The parts that JSON texts are made of, as nodes of a tree.
//
// Blanks: between tokens at most one space, or one newline and up to 64 spaces or tabs, after
// "{", "[", "," and ":" and before "}" and "]"; nowhere else. So no model can go on with blanks for
// ever. Numbers have at most 20 digits before the point, 20 after it and 2 in the exponent.
#ifndef QN_GEN_GRAMMAR_JSON_RULES_H
#define QN_GEN_GRAMMAR_JSON_RULES_H

#include "gen/grammar/ast.h"

enum { QN_JSON_DIGITS = 20, QN_JSON_EXPONENT_DIGITS = 2, QN_JSON_INDENT = 64 };

typedef struct qn_gr_json_parts {
    int32_t blank;
    int32_t letter; // one character of a string, in any spelling
    int32_t string; // with its quotes
    int32_t number, integer;
    int32_t value, object, array;
    int32_t open, close, open_list, close_list; // brackets and their blanks
    int32_t comma, colon;
} qn_gr_json_parts;

void qn_gr_json_parts_init(qn_gr_json_parts *out, qn_gr_ast *ast);
// Characters of the ranges (ascending, apart) inside a string, each in one spelling: itself, else
// the short escape, else \u00XX.
int32_t qn_gr_json_codes(qn_gr_ast *ast, const qn_gr_code_range *ranges, size_t n);
// A string with its quotes, in that spelling.
int32_t qn_gr_json_text(qn_gr_ast *ast, qn_str text);
int32_t qn_gr_json_quoted(qn_gr_ast *ast, int32_t inner);

#endif
