// Inside a turn of a conversation.
#ifndef QN_API_CHAT_TURN_H
#define QN_API_CHAT_TURN_H

#include "api/chat_tools.h"

struct qn_chat_turn {
    qn_chat_prompt prompt;
    size_t n_turns, n_left_out; // of the messages; of these, not in the prompt
    size_t n_skipped;           // messages of those
    qn_sample_opts sample;
    qn_generate_opts generate; // with `sample`
    qn_row_opts row;           // with `generate`, images of the prompt
    qn_parts_opts parts;       // borrows the text of the prompt
    qn_chat_hold hold;         // what the answer is held to
};

// How many tokens a prompt may have (0: any number), and whether it failed because of that.
typedef struct qn_prompt_limit {
    size_t max_tokens;
    bool is_met;
} qn_prompt_limit;

// The tools of a chat; NULL: none.
const json_t *qn_chat_get_tools(const qn_chat *chat);
// qn_chat_make_prompt, with the tools of the chat or without. *limit is for opts->max_tokens.
QN_MUST_CHECK qn_status qn_chat_make_prompt_as(qn_chat_prompt *out, const qn_chat *chat,
                                               const qn_template *chat_template,
                                               const qn_tokenizer *tokenizer,
                                               const qn_chat_prompt_opts *opts, bool has_tools,
                                               qn_prompt_limit *limit, qn_err *err);
// qn_chat_prompt_create, for a prompt of no more tokens than that.
QN_MUST_CHECK qn_status qn_chat_prompt_create_within(qn_chat_prompt *out,
                                                     const qn_template *chat_template,
                                                     const qn_tokenizer *tokenizer,
                                                     const char *request, size_t request_size,
                                                     const qn_template_opts *opts,
                                                     qn_prompt_limit *limit, qn_err *err);

// Puts a message in place of all after the first n. A failure leaves them as they were.
QN_MUST_CHECK qn_status qn_chat_put(qn_chat *chat, size_t n, const qn_message *message,
                                    qn_err *err);

#endif
