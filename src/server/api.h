// The handlers of all routes (routes.c), and what dialects share.
#ifndef QN_SERVER_API_H
#define QN_SERVER_API_H

#include "server/job.h"

// api_chat.c: OpenAI's chat completions
void qn_api_chat(qn_exchange *ex);
void qn_api_chat_count(qn_exchange *ex);
// api_responses.c: OpenAI's responses
void qn_api_responses(qn_exchange *ex);
void qn_api_responses_count(qn_exchange *ex);
// api_messages.c: Anthropic's messages
void qn_api_messages(qn_exchange *ex);
void qn_api_messages_count(qn_exchange *ex);
// api_text.c: OpenAI's completions
void qn_api_text(qn_exchange *ex);
// api_info.c: models, health, properties, metrics
void qn_api_models(qn_exchange *ex);
void qn_api_health(qn_exchange *ex);
void qn_api_props(qn_exchange *ex);
void qn_api_metrics(qn_exchange *ex);

// --- OpenAI's pieces -----------------------------------------------------------------------------

// What both of its dialects read in the same way: stream_options, logprobs.
QN_MUST_CHECK qn_status qn_openai_prepare(qn_ask *ask, qn_problem *problem);
// Fills ask->choice and ask->tool_name from OpenAI's "tool_choice".
QN_MUST_CHECK qn_status qn_openai_tool_choice(qn_ask *ask, qn_problem *problem);
// {"id", "object", "created", "model", "system_fingerprint"}
json_t *qn_openai_head(const qn_job *job, const char *object);
json_t *qn_openai_usage(const qn_job *job);
// {"id", "type": "function", "function": {"name", "arguments"}}
json_t *qn_openai_call(const qn_called *call);
// {"object": "response.input_tokens", "input_tokens"}, for qn_job_count.
extern const qn_dialect qn_openai_count;
// Switches reasoning on or off by an effort: "none" is off, others are on. Unknown ones are refused.
QN_MUST_CHECK qn_status qn_ask_set_effort(qn_ask *ask, const char *effort, const char *field,
                                          qn_problem *problem);

#endif
