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
// api_native.c: llama-server's completion; and what it has and this server does not: the route's
// summary says so
void qn_api_native(qn_exchange *ex);
void qn_api_refused(qn_exchange *ex);
// api_tokens.c: its helpers
void qn_api_tokenize(qn_exchange *ex);
void qn_api_detokenize(qn_exchange *ex);
void qn_api_template(qn_exchange *ex);
void qn_api_slots(qn_exchange *ex);
// api_embed.c: OpenAI's embeddings
void qn_api_embed(qn_exchange *ex);
// api_ollama.c: Ollama's chat and generate
void qn_api_ollama_chat(qn_exchange *ex);
void qn_api_ollama_generate(qn_exchange *ex);
// api_ollama_info.c: its models, and what it does with files, which is not done here
void qn_api_ollama_tags(qn_exchange *ex);
void qn_api_ollama_show(qn_exchange *ex);
void qn_api_ollama_ps(qn_exchange *ex);
void qn_api_ollama_version(qn_exchange *ex);
void qn_api_ollama_refuse(qn_exchange *ex);
// api_ollama_embed.c: its embeddings
void qn_api_ollama_embed(qn_exchange *ex);
void qn_api_ollama_embeddings(qn_exchange *ex);
// openapi.c: the routes and fields as an OpenAPI file
void qn_api_openapi(qn_exchange *ex);
// api_info.c: models, health, version, load, properties, metrics
void qn_api_models(qn_exchange *ex);
void qn_api_model(qn_exchange *ex);
void qn_api_health(qn_exchange *ex);
void qn_api_version(qn_exchange *ex);
void qn_api_load(qn_exchange *ex);
void qn_api_props(qn_exchange *ex);
void qn_api_metrics(qn_exchange *ex);

// --- embeddings ----------------------------------------------------------------------------------

typedef struct qn_embedded {
    size_t n;
    int64_t width;
    float *rows; // (n, width), each of length 1
    int64_t n_tokens;
    int64_t load_ns, total_ns; // since the request began: until they were computed, and now
} qn_embedded;
// A whole handler for any dialect: reads an ask of `set`, lets `prepare` (may be NULL) fill its
// input, pooling, dimensions and truncate, computes the embeddings, and lets `write` put them into
// the body of the answer.
typedef struct qn_embed_plan {
    uint32_t set;
    qn_status (*prepare)(qn_ask *ask, qn_problem *problem);
    void (*write)(qn_buf *to, const qn_embedded *embedded, const qn_ask *ask,
                  const qn_offer *entry);
} qn_embed_plan;
void qn_embed_handle(qn_exchange *ex, const qn_embed_plan *plan);
// Numbers as a JSON list, with as many digits as give back every float.
void qn_write_numbers(qn_buf *to, const float *numbers, int64_t n);

// --- OpenAI's pieces -----------------------------------------------------------------------------

// What both of its dialects read in the same way: stream_options, logprobs.
QN_MUST_CHECK qn_status qn_openai_prepare(qn_ask *ask, qn_problem *problem);
// All that chat completions read: messages, log-probabilities, tools, reasoning.
QN_MUST_CHECK qn_status qn_chat_prepare(qn_ask *ask, qn_problem *problem);
// Fills ask->choice and ask->tool_name from OpenAI's "tool_choice".
QN_MUST_CHECK qn_status qn_openai_tool_choice(qn_ask *ask, qn_problem *problem);
// The tool that ask->tool_name names, if it does, must be one of ask->tools.
QN_MUST_CHECK qn_status qn_ask_check_tool(const qn_ask *ask, qn_problem *problem);
// {"id", "object", "created", "model", "system_fingerprint"}
json_t *qn_openai_head(const qn_job *job, const char *object);
json_t *qn_openai_usage(const qn_job *job);
// An answer in one piece; `choice_of` makes each of its choices.
json_t *qn_openai_whole(qn_job *job, const char *object,
                        json_t *(*choice_of)(qn_job *job, qn_choice *c));
// The end of a stream of chunks: the usage if it is wanted, and "[DONE]"; after a problem.
bool qn_openai_end(qn_job *job, const char *object);
bool qn_openai_fail(qn_job *job, const qn_problem *problem);
// {"id", "type": "function", "function": {"name", "arguments"}}
json_t *qn_openai_call(const qn_called *call);
// {"object": "response.input_tokens", "input_tokens"}, for qn_job_count.
extern const qn_dialect qn_openai_count;
// Switches reasoning on or off by an effort: "none" is off, others are on. Unknown ones are
// refused.
QN_MUST_CHECK qn_status qn_ask_set_effort(qn_ask *ask, const char *effort, const char *field,
                                          qn_problem *problem);

#endif
