// What goes wrong with a request, as clients of each dialect expect to be told.
#ifndef QN_SERVER_PROBLEM_H
#define QN_SERVER_PROBLEM_H

#include "core/json.h"
#include "server/exchange.h"

// How errors look: OpenAI's and llama-server's, Anthropic's, Ollama's.
typedef enum qn_error_form { QN_FORM_OPENAI, QN_FORM_ANTHROPIC, QN_FORM_OLLAMA } qn_error_form;

typedef struct qn_problem {
    int status;       // of HTTP
    const char *type; // constant; NULL: by the status
    const char *code; // constant: OpenAI's "code", such as "context_length_exceeded"; NULL: none
    char param[80];   // the field; "": none
    int64_t n_prompt, n_context; // of a prompt that does not fit; 0: not that
    int retry_after;             // seconds; 0: not said
    qn_err err;
} qn_problem;

// Fills *problem and returns its status (as qn_status): QN_REFUSE(p, 400, "max_tokens", "...",
// ...).
#define QN_REFUSE(problem, http_status, field, ...)                                                \
    (qn_problem_set(problem, http_status, field),                                                  \
     qn_err_set(&(problem)->err, QN_ARGUMENT, __FILE__, __LINE__, __VA_ARGS__), QN_ARGUMENT)
void qn_problem_set(qn_problem *problem, int http_status, const char *field);
// The HTTP status of a failed call, whose error is in problem->err: 400 for what the request did,
// 503 for memory, 500 for the rest.
qn_status qn_problem_take(qn_problem *problem, qn_status status, const char *field);
// A problem of its own: memory is short, while that field was read (503).
qn_status qn_problem_memory(qn_problem *problem, const char *field);

// The error as a JSON value; NULL: no memory.
json_t *qn_problem_json(const qn_problem *problem, qn_error_form form);
// Answers with it, in the form of the route.
void qn_problem_reply(qn_exchange *ex, const qn_problem *problem);
// The form of all JSON that is sent: no spaces.
extern const qn_json_form qn_compact;
// Answers with a JSON value, whose reference it takes; NULL becomes an error (no memory).
void qn_reply_json(qn_exchange *ex, int status, json_t *value);

#endif
