// What an answer in a conversation is held to: calls of tools, or a grammar after the reasoning.
#ifndef QN_API_CHAT_TOOLS_H
#define QN_API_CHAT_TOOLS_H

#include "chat/call_forms.h"
#include "core/json.h"

#include <stdatomic.h>

// What the parameters of the tools are (chat/call_stream.h), for the replies of a turn; the last
// one frees it.
typedef struct qn_call_kinds {
    atomic_size_t n_users;
    json_t *tools;
} qn_call_kinds;

typedef struct qn_chat_hold {
    qn_grammar *grammar; // owned; NULL: nothing
    const qn_call_form
        *form;            // that calls have if they are told while they come; NULL: they are not
    qn_call_kinds *kinds; // of that form; NULL: none
    bool has_no_calls;
} qn_chat_hold;

// What a hold is made from.
typedef struct qn_chat_holding {
    const qn_template *template;
    const qn_tokenizer *tokenizer;
    const json_t *tools; // of the chat; NULL: none
    const qn_chat_prompt *prompt;
    qn_reasoning reasoning;
    const qn_grammar *grammar; // of the row's options; NULL: none
    const qn_stop_flag *stop;
    const qn_chat_opts *opts;
    qn_chat_culprit *culprit; // what an error is about
} qn_chat_holding;

QN_MUST_CHECK qn_status qn_chat_hold_init(qn_chat_hold *out, const qn_chat_holding *h, qn_err *err);
void qn_chat_hold_deinit(qn_chat_hold *hold);

// Adds a holder, which must release it; NULL is none.
qn_call_kinds *qn_call_kinds_hold(qn_call_kinds *kinds);
void qn_call_kinds_release(qn_call_kinds *kinds);

#endif
