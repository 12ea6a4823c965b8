// Template text -> tokens. Text outside of tags comes out as it will be printed: white space that
// tags take away is gone. The rules are those of Hugging Face: a newline after a block is dropped
// (trim_blocks), and so are blanks between the start of a line and a block (lstrip_blocks).
#ifndef QN_CHAT_LEXER_H
#define QN_CHAT_LEXER_H

#include "chat/value.h"
#include "core/arena.h"

typedef enum qn_jinja_token_kind {
    QN_TOKEN_END,
    QN_TOKEN_DATA,
    QN_TOKEN_PRINT, // {{
    QN_TOKEN_PRINT_END,
    QN_TOKEN_BLOCK, // {%
    QN_TOKEN_BLOCK_END,
    QN_TOKEN_NAME,
    QN_TOKEN_CONST, // `value`: a text or a number
    QN_TOKEN_OP     // `op`
} qn_jinja_token_kind;

// An operator as a number: one or two characters.
#define QN_OP1(a)    ((unsigned)(a))
#define QN_OP2(a, b) ((unsigned)(a) | (unsigned)(b) << 8)

typedef struct qn_jinja_token {
    unsigned char kind; // qn_jinja_token_kind
    unsigned op;
    uint32_t line, column;
    qn_str text; // of names and data
    qn_jinja_val value;
} qn_jinja_token;

typedef struct qn_jinja_tokens {
    qn_jinja_token *items; // (n) owned; the last is QN_TOKEN_END
    size_t n, cap;
} qn_jinja_tokens;

// Texts lie in the arena.
QN_MUST_CHECK qn_status qn_jinja_lex(qn_jinja_tokens *out, qn_arena *arena, const char *text,
                                     size_t size, qn_err *err);
void qn_jinja_tokens_deinit(qn_jinja_tokens *tokens);

// "line 3, column 14: ..."
#define QN_TEMPLATE_FAIL(err, code, at, format, ...)                                               \
    QN_FAIL(err, code, "line %u, column %u: " format, (unsigned)(at)->line,                        \
            (unsigned)(at)->column, __VA_ARGS__)

#endif
