#include "server/api_messages.h"

#include "server/api.h"

#include <string.h>

// --- blocks --------------------------------------------------------------------------------------
// Each span of the answer is a block of the content: "thinking", "text" or "tool_use".

// The arguments of a call as an object; a model's own words if they are none.
static json_t *input_of(const qn_called *call) {
    const qn_buf *text = &call->arguments;
    json_t *input = NULL;
    const qn_json_opts opts = {.what = "arguments", .depth = QN_JSON_CALL_DEPTH};
    if (text->size == 0) return json_object();
    const qn_status status = qn_json_parse_as(&input, text->data, text->size, &opts, NULL);
    if (status == QN_MEMORY || json_is_object(input)) return input;
    json_decref(input);
    json_t *o = json_object();
    qn_json_put(&o, "arguments", qn_json_string(text->data, text->size));
    return o;
}

// A block; one that has just begun is empty.
static json_t *block_json(const qn_choice *c, const qn_span *span, bool is_new) {
    json_t *o = json_object();
    if (span->kind == QN_CHAT_CALL) {
        const qn_called *call = &c->calls[span->call];
        qn_json_put(&o, "type", json_string("tool_use"));
        qn_json_put(&o, "id", json_string(call->id));
        qn_json_put(&o, "name", json_string(call->name));
        qn_json_put(&o, "input", is_new ? json_object() : input_of(call));
        return o;
    }
    const bool is_text = span->kind == QN_CHAT_TEXT;
    qn_json_put(&o, "type", json_string(is_text ? "text" : "thinking"));
    qn_json_put(&o, is_text ? "text" : "thinking",
                is_new ? json_string("") : qn_span_text(c, span));
    if (is_text)
        qn_json_put(&o, "citations", json_null());
    else
        qn_json_put(&o, "signature", json_string("")); // nothing is signed; clients want the field
    return o;
}

// --- the message ---------------------------------------------------------------------------------

// The stop string that ended the answer; NULL: none did.
static json_t *stop_text(const qn_job *job, const qn_choice *c) {
    const json_t *stop = job->ask.stop;
    if (c->stop < 0) return NULL;
    json_t *text =
        json_is_string(stop) ? (json_t *)(uintptr_t)stop : json_array_get(stop, (size_t)c->stop);
    return text ? json_incref(text) : NULL;
}

// "stop_reason" and "stop_sequence".
static void put_stop(json_t **o, const qn_job *job, const qn_choice *c) {
    json_t *stop = stop_text(job, c);
    const char *word = strcmp(qn_choice_finish(c), "length") == 0       ? "max_tokens"
                       : strcmp(qn_choice_finish(c), "tool_calls") == 0 ? "tool_use"
                       : stop                                           ? "stop_sequence"
                                                                        : "end_turn";
    qn_json_put(o, "stop_reason", json_string(word));
    qn_json_put(o, "stop_sequence", stop ? stop : json_null());
}

// Tokens of the prompt that were found in the cache are not among the input tokens.
static json_t *usage_json(const qn_job *job) {
    const qn_usage u = qn_job_usage(job);
    json_t *o = json_object();
    qn_json_put(&o, "input_tokens", json_integer(u.prompt - u.cached));
    qn_json_put(&o, "cache_creation_input_tokens", json_integer(0));
    qn_json_put(&o, "cache_read_input_tokens", json_integer(u.cached));
    qn_json_put(&o, "output_tokens", json_integer(u.generated));
    return o;
}

// `content` is taken.
static json_t *message_json(const qn_job *job, json_t *content) {
    json_t *o = json_object();
    qn_json_put(&o, "id", json_string(job->id));
    qn_json_put(&o, "type", json_string("message"));
    qn_json_put(&o, "role", json_string("assistant"));
    qn_json_put(&o, "model", json_string(job->entry->name));
    qn_json_put(&o, "content", content);
    qn_json_put(&o, "seed", json_integer((json_int_t)job->ask.seed));
    return o;
}

static json_t *whole(qn_job *job) {
    const qn_choice *c = &job->choices[0];
    json_t *content = json_array();
    for (size_t i = 0; i < c->n_spans; i++)
        qn_json_push(&content, block_json(c, &c->spans[i], false));
    json_t *o = message_json(job, content);
    put_stop(&o, job, c);
    qn_json_put(&o, "usage", usage_json(job));
    return o;
}

// --- streams -------------------------------------------------------------------------------------

static json_t *event_json(const char *type) {
    json_t *o = json_object();
    qn_json_put(&o, "type", json_string(type));
    return o;
}

// An event of block i.
static json_t *block_event(const char *type, size_t i) {
    json_t *o = event_json(type);
    qn_json_put(&o, "index", json_integer((json_int_t)i));
    return o;
}

// `text` is taken.
static bool send_delta(qn_job *job, size_t i, const char *type, const char *member, json_t *text) {
    json_t *o = block_event("content_block_delta", i), *delta = json_object();
    qn_json_put(&delta, "type", json_string(type));
    qn_json_put(&delta, member, text);
    qn_json_put(&o, "delta", delta);
    return qn_job_send_event(job, "content_block_delta", o);
}

static bool open_block(qn_job *job, const qn_choice *c, size_t i) {
    json_t *o = block_event("content_block_start", i);
    qn_json_put(&o, "content_block", block_json(c, &c->spans[i], true));
    return qn_job_send_event(job, "content_block_start", o);
}

static bool close_block(qn_job *job, const qn_choice *c, size_t i) {
    if (c->spans[i].kind == QN_CHAT_REASONING &&
        !send_delta(job, i, "signature_delta", "signature", json_string("")))
        return false;
    return qn_job_send_event(job, "content_block_stop", block_event("content_block_stop", i));
}

static bool begin(qn_job *job) {
    json_t *o = event_json("message_start"), *message = message_json(job, json_array());
    qn_json_put(&message, "stop_reason", json_null());
    qn_json_put(&message, "stop_sequence", json_null());
    qn_json_put(&message, "usage", usage_json(job));
    qn_json_put(&o, "message", message);
    return qn_job_send_event(job, "message_start", o) &&
           qn_job_send_event(job, "ping", event_json("ping"));
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    static const struct {
        const char *type, *member;
    } deltas[] = {[QN_CHAT_REASONING] = {"thinking_delta", "thinking"},
                  [QN_CHAT_TEXT] = {"text_delta", "text"},
                  [QN_CHAT_CALL] = {"input_json_delta", "partial_json"}};
    const size_t i = c->n_spans - 1;
    const qn_chat_event_kind kind = c->spans[i].kind;
    if (job->n_opened <= i) {
        if (job->n_opened && !close_block(job, c, job->n_opened - 1)) return false;
        if (!open_block(job, c, i)) return false;
        job->n_opened = i + 1;
    }
    return piece->kind == QN_CHAT_CALL || send_delta(job, i, deltas[kind].type, deltas[kind].member,
                                                     qn_json_string(piece->text, piece->size));
}

static bool finish(qn_job *job, qn_choice *c) {
    return !job->n_opened || close_block(job, c, job->n_opened - 1);
}

static bool end(qn_job *job) {
    json_t *o = event_json("message_delta"), *delta = json_object();
    put_stop(&delta, job, &job->choices[0]);
    qn_json_put(&o, "delta", delta);
    qn_json_put(&o, "usage", usage_json(job));
    return qn_job_send_event(job, "message_delta", o) &&
           qn_job_send_event(job, "message_stop", event_json("message_stop"));
}

static bool fail(qn_job *job, const qn_problem *problem) {
    return qn_job_send_event(job, "error", qn_problem_json(problem, QN_FORM_ANTHROPIC));
}

const qn_dialect qn_anthropic_dialect = {.stream_type = "text/event-stream",
                                         .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                         .begin = begin,
                                         .piece = piece,
                                         .finish = finish,
                                         .end = end,
                                         .fail = fail,
                                         .whole = whole};

void qn_api_messages(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_MESSAGES, &qn_anthropic_dialect, "msg_",
                                     qn_anthropic_prepare, qn_job_chat};
    qn_job_handle(ex, &plan);
}

// --- counting ------------------------------------------------------------------------------------

static json_t *count_json(qn_job *job) {
    json_t *o = json_object();
    qn_json_put(&o, "input_tokens", json_integer(job->choices[0].n_prompt));
    return o;
}

void qn_api_messages_count(qn_exchange *ex) {
    static const qn_dialect count = {.whole = count_json};
    static const qn_job_plan plan = {QN_SET_MESSAGES, &count, "msg_", qn_anthropic_prepare_count,
                                     qn_job_count};
    qn_job_handle(ex, &plan);
}
