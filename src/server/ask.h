// What a request asks for, whatever its dialect: filled by the table of fields (fields.h), and by
// the dialects, which bring messages, tools and formats into OpenAI's form.
#ifndef QN_SERVER_ASK_H
#define QN_SERVER_ASK_H

#include "server/fields.h"
#include "server/problem.h"
#include "server/served.h"

enum { QN_MAX_FIELDS = 192 };

struct qn_ask {
    json_t *body;                       // owned: what the pointers below point into
    json_t *made;                       // owned: list of values that dialects made; NULL: none
    uint64_t given[QN_MAX_FIELDS / 64]; // bits: rows of the table that were given
    qn_sample_opts sample;              // those fields that were given

    const char *model, *instructions, *grammar, *regex, *effort, *content, *encoding, *pooling;
    const char *truncation;
    const json_t *messages, *prompt, *input, *system, *images, *tools, *tool_choice, *options;
    const json_t *kwargs, *reasoning, *thinking, *think, *stop, *stop_ids, *response_format;
    const json_t *json_schema, *structured, *guided_json, *guided_choice, *text, *output_config;
    const json_t *format, *dry_breakers, *samplers, *logit_bias, *bad_words, *stream_options;
    const json_t *logprobs, *tokens, *include, *origins, *functions, *function_call;
    int64_t max_tokens, min_tokens, n, best_of, num_ctx, timeout_ms, top_logprobs, n_probs;
    int64_t dimensions;
    bool stream, parallel_calls, add_generation_prompt, raw, leave_out, ignore_eos, echo;
    bool return_progress, return_tokens, timings_per_token, truncate, cache_prompt;
    bool add_special, parse_special, with_pieces;

    // What the dialect and ask.c make of it.
    qn_reasoning thinks; // turned on or off by the request
    bool wants_logprobs;
    int32_t n_top;
    bool include_usage, usage_always;
    qn_tool_choice choice;
    bool has_functions;       // tools were given in their older form, and calls are told so
    const char *tool_name;    // of a choice that names one; borrowed
    uint64_t seed;            // the one that is used
    const qn_stop_flag *gone; // set when the client is; borrowed
};

// Parses the body and reads its fields; release with qn_ask_deinit, also after a failure.
QN_MUST_CHECK qn_status qn_ask_read(qn_ask *ask, qn_exchange *ex, uint32_t set,
                                    qn_problem *problem);
void qn_ask_deinit(qn_ask *ask);
// Keeps a value that a dialect made, whose reference it takes, as long as the ask; returns it,
// borrowed. NULL: it was NULL, or memory is short.
const json_t *qn_ask_keep(qn_ask *ask, json_t *value);

// The options of the answer, made of an ask for one model. Caller storage; {0} is fine to deinit.
typedef struct qn_job_opts {
    qn_sample_opts sample;
    qn_generate_opts generate;
    qn_grammar *grammar; // owned
    const char *form;    // the field that it is of; NULL: none
    const char **texts;  // owned: stops, bans and breakers
    int32_t *stop_ids;   // owned
    qn_bias *biases;     // owned
    char *order;         // owned
} qn_job_opts;
QN_MUST_CHECK qn_status qn_job_opts_init(qn_job_opts *out, qn_ask *ask, qn_served *model,
                                         qn_problem *problem);
void qn_job_opts_deinit(qn_job_opts *opts);

#endif
