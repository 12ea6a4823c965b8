#include "server/api_responses.h"

#include "server/api.h"

#include <stdio.h>
#include <string.h>

// --- items ---------------------------------------------------------------------------------------
// Each span of the answer is an item of the output: "reasoning", "message" or "function_call".

typedef enum item_status { IN_PROGRESS, COMPLETED, INCOMPLETE } item_status;
static const char *const status_words[] = {"in_progress", "completed", "incomplete"};

static json_t *item_id(const qn_job *job, const qn_choice *c, size_t i) {
    const char *prefix = c->spans[i].kind == QN_CHAT_TEXT        ? "msg"
                         : c->spans[i].kind == QN_CHAT_REASONING ? "rs"
                                                                 : "fc";
    return json_sprintf("%s_%s_%zu", prefix, job->id + strlen(job->id_prefix), i);
}

static json_t *arguments_of(const qn_called *call) {
    const qn_buf *text = &call->arguments;
    return text->size ? qn_json_string(text->data, text->size) : json_string("{}");
}

// The one part of a message or of reasoning; an item that has just begun has no text yet.
static json_t *part_json(const qn_choice *c, const qn_span *span, bool is_new) {
    json_t *o = json_object();
    const bool is_text = span->kind == QN_CHAT_TEXT;
    qn_json_put(&o, "type", json_string(is_text ? "output_text" : "reasoning_text"));
    qn_json_put(&o, "text", is_new ? json_string("") : qn_span_text(c, span));
    if (!is_text) return o;
    qn_json_put(&o, "annotations", json_array());
    qn_json_put(&o, "logprobs", is_new ? json_array() : qn_span_entries(c, span));
    return o;
}

// The name that the client knows the tool by.
static json_t *call_name(const qn_job *job, const qn_called *call) {
    json_t *own = json_object_get(json_object_get(job->ask.origins, call->name), "name");
    return own ? json_incref(own) : json_string(call->name);
}

static void put_call(json_t **item, const qn_job *job, const qn_called *call, bool is_new) {
    const json_t *origin = json_object_get(job->ask.origins, call->name);
    json_t *space = json_object_get(origin, "namespace");
    qn_json_put(item, "call_id", json_string(call->id));
    qn_json_put(item, "name", call_name(job, call));
    if (space) qn_json_put(item, "namespace", json_incref(space));
    qn_json_put(item, "arguments", is_new ? json_string("") : arguments_of(call));
}

static json_t *item_json(const qn_job *job, const qn_choice *c, size_t i, item_status status) {
    const qn_span *span = &c->spans[i];
    const bool is_new = status == IN_PROGRESS;
    json_t *o = json_object(), *content = json_array();
    static const char *const types[] = {[QN_CHAT_REASONING] = "reasoning",
                                        [QN_CHAT_TEXT] = "message",
                                        [QN_CHAT_CALL] = "function_call"};
    qn_json_put(&o, "id", item_id(job, c, i));
    qn_json_put(&o, "type", json_string(types[span->kind]));
    qn_json_put(&o, "status", json_string(status_words[status]));
    if (span->kind == QN_CHAT_CALL) {
        json_decref(content);
        put_call(&o, job, &c->calls[span->call], is_new);
        return o;
    }
    if (span->kind == QN_CHAT_TEXT) qn_json_put(&o, "role", json_string("assistant"));
    if (span->kind == QN_CHAT_REASONING) qn_json_put(&o, "summary", json_array());
    if (!is_new) qn_json_push(&content, part_json(c, span, false));
    qn_json_put(&o, "content", content);
    return o;
}

// An answer that ran into its limit, or ended in the middle of a call, has an incomplete last item.
static item_status final_status(const qn_choice *c, size_t i) {
    const bool is_cut =
        c->is_cut || c->reason == QN_REASON_LENGTH || c->reason == QN_REASON_DEADLINE;
    return is_cut && i + 1 == c->n_spans ? INCOMPLETE : COMPLETED;
}

// --- the response --------------------------------------------------------------------------------

// What the request said, else `other`, which is taken. Large requests are not repeated: three
// events of a stream have them, which must fit into what waits to be sent.
static json_t *given(const qn_job *job, const char *name, json_t *other) {
    enum { MAX_REPEATED = 256 << 10 };
    json_t *value = json_object_get(job->ask.body, name);
    const bool is_large = atomic_load(&job->ex->n_read) > MAX_REPEATED; // the body itself is gone
    if (!value || json_is_null(value) || is_large) return other;
    json_decref(other);
    return json_incref(value);
}

static json_t *usage_json(const qn_job *job) {
    const qn_usage u = qn_job_usage(job);
    json_t *o = json_object(), *in = json_object(), *out = json_object();
    qn_json_put(&in, "cached_tokens", json_integer(u.cached));
    qn_json_put(&out, "reasoning_tokens", json_integer(u.reasoning));
    qn_json_put(&o, "input_tokens", json_integer(u.prompt));
    qn_json_put(&o, "input_tokens_details", in);
    qn_json_put(&o, "output_tokens", json_integer(u.generated));
    qn_json_put(&o, "output_tokens_details", out);
    qn_json_put(&o, "total_tokens", json_integer(u.prompt + u.generated));
    return o;
}

// The settings that the answer was made with.
static void put_settings(json_t **o, const qn_job *job) {
    const qn_sample_opts *s = &job->opts.sample;
    json_t *text = json_object(), *format = json_object(), *reasoning = json_object();
    qn_json_put(&format, "type", json_string("text"));
    qn_json_put(&text, "format", format);
    qn_json_put(&reasoning, "effort", json_null());
    qn_json_put(&reasoning, "summary", json_null());
    qn_json_put(o, "instructions", given(job, "instructions", json_null()));
    qn_json_put(o, "max_output_tokens", given(job, "max_output_tokens", json_null()));
    qn_json_put(o, "metadata", given(job, "metadata", json_object()));
    qn_json_put(o, "parallel_tool_calls", json_boolean(job->ask.parallel_calls));
    qn_json_put(o, "previous_response_id", json_null());
    qn_json_put(o, "reasoning", given(job, "reasoning", reasoning));
    qn_json_put(o, "store", json_false());
    qn_json_put(o, "background", json_false());
    qn_json_put(o, "temperature", given(job, "temperature", qn_json_real((double)s->temperature)));
    qn_json_put(o, "text", given(job, "text", text));
    qn_json_put(o, "tool_choice", given(job, "tool_choice", json_string("auto")));
    qn_json_put(o, "tools", given(job, "tools", json_array()));
    qn_json_put(o, "top_logprobs", json_integer(job->ask.top_logprobs));
    qn_json_put(o, "top_p", given(job, "top_p", qn_json_real(s->top_p > 0 ? (double)s->top_p : 1)));
    qn_json_put(o, "truncation", json_string(job->ask.leave_out ? "auto" : "disabled"));
    qn_json_put(o, "user", given(job, "user", json_null()));
    qn_json_put(o, "seed", json_integer((json_int_t)job->ask.seed));
}

// `error` is taken. An answer that is in progress has no output and no usage yet.
static json_t *response_json(const qn_job *job, const char *status, json_t *error) {
    const bool is_new = strcmp(status, "in_progress") == 0;
    const qn_choice *c = &job->choices[0];
    json_t *o = json_object(), *output = json_array(), *details = json_null();
    for (size_t i = 0; !is_new && i < c->n_spans; i++)
        qn_json_push(&output, item_json(job, c, i, final_status(c, i)));
    if (strcmp(status, "incomplete") == 0) {
        details = json_object();
        qn_json_put(&details, "reason", json_string("max_output_tokens"));
    }
    qn_json_put(&o, "id", json_string(job->id));
    qn_json_put(&o, "object", json_string("response"));
    qn_json_put(&o, "created_at", json_integer(job->created));
    qn_json_put(&o, "status", json_string(status));
    qn_json_put(&o, "error", error);
    qn_json_put(&o, "incomplete_details", details);
    qn_json_put(&o, "model", json_string(job->entry->name));
    qn_json_put(&o, "output", output);
    put_settings(&o, job);
    qn_json_put(&o, "usage", is_new ? json_null() : usage_json(job));
    if (!is_new) qn_json_put(&o, "timings", qn_job_timings(job));
    return o;
}

static const char *end_status(const qn_job *job) {
    return strcmp(qn_choice_finish(&job->choices[0]), "length") == 0 ? "incomplete" : "completed";
}

static json_t *whole(qn_job *job) { return response_json(job, end_status(job), json_null()); }

// --- streams -------------------------------------------------------------------------------------

// {"type", "sequence_number"}, to which the rest is put.
static json_t *event_json(qn_job *job, const char *type) {
    json_t *o = json_object();
    qn_json_put(&o, "type", json_string(type));
    qn_json_put(&o, "sequence_number", json_integer(job->sequence++));
    return o;
}

// An event of item i. Items of text and of reasoning have one part, whose number is 0.
static json_t *item_event(qn_job *job, const qn_choice *c, size_t i, const char *type,
                          bool is_of_part) {
    json_t *o = event_json(job, type);
    qn_json_put(&o, "item_id", item_id(job, c, i));
    qn_json_put(&o, "output_index", json_integer((json_int_t)i));
    if (is_of_part) qn_json_put(&o, "content_index", json_integer(0));
    return o;
}

static bool send_response(qn_job *job, const char *type, const char *status, json_t *error) {
    json_t *o = event_json(job, type);
    qn_json_put(&o, "response", response_json(job, status, error));
    return qn_job_send_event(job, type, o);
}

static bool send_item(qn_job *job, const qn_choice *c, size_t i, const char *type,
                      item_status status) {
    json_t *o = event_json(job, type);
    qn_json_put(&o, "output_index", json_integer((json_int_t)i));
    qn_json_put(&o, "item", item_json(job, c, i, status));
    return qn_job_send_event(job, type, o);
}

static bool send_part(qn_job *job, const qn_choice *c, size_t i, const char *type, bool is_new) {
    json_t *o = item_event(job, c, i, type, true);
    qn_json_put(&o, "part", part_json(c, &c->spans[i], is_new));
    return qn_job_send_event(job, type, o);
}

// Names of the events of an item's text, by its kind.
static const struct {
    const char *delta, *done, *member;
} texts[] = {
    [QN_CHAT_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
    [QN_CHAT_TEXT] = {"response.output_text.delta", "response.output_text.done", "text"},
    [QN_CHAT_CALL] = {"response.function_call_arguments.delta",
                      "response.function_call_arguments.done", "arguments"},
};

static bool send_text_done(qn_job *job, const qn_choice *c, size_t i) {
    const qn_span *span = &c->spans[i];
    const bool is_call = span->kind == QN_CHAT_CALL;
    json_t *o = item_event(job, c, i, texts[span->kind].done, !is_call);
    if (is_call) qn_json_put(&o, "name", call_name(job, &c->calls[span->call]));
    qn_json_put(&o, texts[span->kind].member,
                is_call ? arguments_of(&c->calls[span->call]) : qn_span_text(c, span));
    if (span->kind == QN_CHAT_TEXT) qn_json_put(&o, "logprobs", qn_span_entries(c, span));
    return qn_job_send_event(job, texts[span->kind].done, o);
}

static bool open_item(qn_job *job, const qn_choice *c, size_t i) {
    if (!send_item(job, c, i, "response.output_item.added", IN_PROGRESS)) return false;
    return c->spans[i].kind == QN_CHAT_CALL ||
           send_part(job, c, i, "response.content_part.added", true);
}

static bool close_item(qn_job *job, const qn_choice *c, size_t i) {
    if (!send_text_done(job, c, i)) return false;
    if (c->spans[i].kind != QN_CHAT_CALL &&
        !send_part(job, c, i, "response.content_part.done", false))
        return false;
    return send_item(job, c, i, "response.output_item.done", final_status(c, i));
}

static bool begin(qn_job *job) {
    return send_response(job, "response.created", "in_progress", json_null()) &&
           send_response(job, "response.in_progress", "in_progress", json_null());
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    const size_t i = c->n_spans - 1;
    const qn_chat_event_kind kind = c->spans[i].kind;
    bool is_sent = true;
    if (job->n_opened <= i) {
        if (job->n_opened) is_sent = close_item(job, c, job->n_opened - 1);
        is_sent = is_sent && open_item(job, c, i);
        job->n_opened = i + 1;
    }
    if (kind != QN_CHAT_TEXT) qn_choice_tell(c);
    if (!is_sent || piece->kind == QN_CHAT_CALL) return is_sent;
    json_t *o = item_event(job, c, i, texts[kind].delta, kind != QN_CHAT_CALL);
    qn_json_put(&o, "delta", qn_json_string(piece->text, piece->size));
    if (kind == QN_CHAT_TEXT) qn_json_put(&o, "logprobs", qn_choice_untold(c));
    return qn_job_send_event(job, texts[kind].delta, o);
}

static bool finish(qn_job *job, qn_choice *c) {
    return !job->n_opened || close_item(job, c, job->n_opened - 1);
}

static bool end(qn_job *job) {
    const char *status = end_status(job);
    char type[32];
    snprintf(type, sizeof type, "response.%s", status);
    return send_response(job, type, status, json_null());
}

static bool fail(qn_job *job, const qn_problem *problem) {
    json_t *error = json_object();
    const char *message = problem->err.message;
    qn_json_put(&error, "code", json_string(problem->code ? problem->code : "server_error"));
    qn_json_put(&error, "message", qn_json_string(message, strlen(message)));
    return send_response(job, "response.failed", "failed", error);
}

const qn_dialect qn_responses_dialect = {.stream_type = "text/event-stream",
                                         .ping = ": still here\n\n",
                                         .keeps_entries = true,
                                         .begin = begin,
                                         .piece = piece,
                                         .finish = finish,
                                         .end = end,
                                         .fail = fail,
                                         .whole = whole};

void qn_api_responses(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_RESPONSES, &qn_responses_dialect, "resp_",
                                     qn_responses_prepare, qn_job_chat};
    qn_job_handle(ex, &plan);
}

// --- counting ------------------------------------------------------------------------------------

static json_t *count_json(qn_job *job) {
    json_t *o = json_object();
    qn_json_put(&o, "object", json_string("response.input_tokens"));
    qn_json_put(&o, "input_tokens", json_integer(job->choices[0].n_prompt));
    return o;
}

const qn_dialect qn_openai_count = {.whole = count_json};

void qn_api_responses_count(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_RESPONSES, &qn_openai_count, "resp_",
                                     qn_responses_prepare, qn_job_count};
    qn_job_handle(ex, &plan);
}
