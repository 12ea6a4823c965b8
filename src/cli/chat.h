// Messages -> token ids, for the chat formats that Quern knows without a template engine: ChatML
// and Gemma's. Text of a message is never read as special tokens.
#ifndef QN_CLI_CHAT_H
#define QN_CLI_CHAT_H

#include "core/err.h"

typedef struct qn_chat_format qn_chat_format;

// The format that the vocabulary has the tokens for; NULL: none of them.
const qn_chat_format *qn_chat_format_find(const qn_tokenizer *tokenizer);

typedef enum qn_role { QN_ROLE_SYSTEM, QN_ROLE_USER, QN_ROLE_ASSISTANT } qn_role;

typedef struct qn_message {
    qn_role role;
    char *text; // owned
    size_t size;
} qn_message;

// A conversation. Caller storage; `{0}` is an empty one.
typedef struct qn_chat {
    qn_message *messages;
    size_t n, cap;
} qn_chat;

QN_MUST_CHECK qn_status qn_chat_add(qn_chat *chat, qn_role role, const char *text, size_t size,
                                    qn_err *err);
// Forgets the messages behind the first `n`.
void qn_chat_cut(qn_chat *chat, size_t n);
void qn_chat_deinit(qn_chat *chat);

// The whole conversation, and the opening of the assistant's turn. *ids is owned (qn_free).
QN_MUST_CHECK qn_status qn_chat_render(int32_t **ids, size_t *n, const qn_chat *chat,
                                       const qn_chat_format *format, const qn_tokenizer *tokenizer,
                                       qn_err *err);

#endif
