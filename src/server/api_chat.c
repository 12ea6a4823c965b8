// OpenAI's /v1/chat/completions.
#include "server/api.h"
#include "server/messages.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

// --- reading -------------------------------------------------------------------------------------

static qn_status read_stream_options(qn_ask *ask, qn_problem *p) {
    const json_t *usage = json_object_get(ask->stream_options, "include_usage");
    const json_t *always = json_object_get(ask->stream_options, "continuous_usage_stats");
    if (ask->stream_options && !ask->stream)
        return QN_REFUSE(p, 400, "stream_options", "'stream_options' is given without 'stream'");
    ask->usage_always = json_is_true(always);
    ask->include_usage = json_is_true(usage) || ask->usage_always;
    return QN_OK;
}

qn_status qn_openai_prepare(qn_ask *ask, qn_problem *p) {
    QN_TRY(read_stream_options(ask, p));
    if (ask->json_schema && json_object_size(ask->json_schema) == 0) ask->json_schema = NULL;
    return QN_OK;
}

// Templates of some models read it; what the request says of them itself counts more.
static qn_status tell_template(qn_ask *ask, const char *effort, qn_problem *p) {
    static const char name[] = "reasoning_effort";
    if (json_object_get(ask->kwargs, name)) return QN_OK;
    json_t *kwargs = ask->kwargs ? json_copy((json_t *)(uintptr_t)ask->kwargs) : json_object();
    qn_json_put(&kwargs, name, json_string(effort));
    ask->kwargs = qn_ask_keep(ask, kwargs);
    return ask->kwargs ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "a request"), name);
}

qn_status qn_ask_set_effort(qn_ask *ask, const char *effort, const char *field, qn_problem *p) {
    static const char *const words[] = {"none", "minimal", "low", "medium",
                                        "high", "xhigh",   "max", "auto"};
    if (!effort) return QN_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i], effort) != 0) continue;
        if (strcmp(effort, "auto") == 0) return QN_OK;
        if (ask->thinks == QN_REASONING_AUTO)
            ask->thinks = i == 0 ? QN_REASONING_OFF : QN_REASONING_ON;
        return tell_template(ask, effort, p);
    }
    return QN_REFUSE(p, 400, field,
                     "'%s' is '%.40s', want none, minimal, low, medium, high, xhigh or max", field,
                     effort);
}

qn_status qn_ask_check_tool(const qn_ask *ask, qn_problem *p) {
    for (size_t i = 0; ask->tool_name && i < json_array_size(ask->tools); i++) {
        const json_t *function = json_object_get(json_array_get(ask->tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name && strcmp(name, ask->tool_name) == 0) return QN_OK;
    }
    if (!ask->tool_name) return QN_OK;
    return QN_REFUSE(p, 400, "tool_choice",
                     "'tool_choice' names '%.60s', which none of the %zu tools is called",
                     ask->tool_name, json_array_size(ask->tools));
}

qn_status qn_openai_tool_choice(qn_ask *ask, qn_problem *p) {
    static const struct {
        const char *word;
        qn_tool_choice choice;
    } words[] = {{"none", QN_TOOLS_NONE}, {"auto", QN_TOOLS_AUTO}, {"required", QN_TOOLS_REQUIRED}};
    const json_t *c = ask->tool_choice;
    const char *word = json_string_value(c);
    ask->choice = QN_TOOLS_AUTO;
    if (!c) return QN_OK;
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i].word) != 0) continue;
        ask->choice = words[i].choice;
        if (ask->choice == QN_TOOLS_REQUIRED && json_array_size(ask->tools) == 0)
            return QN_REFUSE(p, 400, "tool_choice", "'tool_choice' is required without tools");
        return QN_OK;
    }
    if (word)
        return QN_REFUSE(p, 400, "tool_choice",
                         "'tool_choice' is '%.40s', want none, auto, required or a tool", word);
    const json_t *function = json_object_get(c, "function");
    ask->tool_name = json_string_value(json_object_get(function ? function : c, "name"));
    if (!ask->tool_name) return QN_REFUSE(p, 400, "tool_choice", "'tool_choice' names no function");
    ask->choice = QN_TOOLS_REQUIRED;
    return qn_ask_check_tool(ask, p);
}

static qn_status set_function_tools(qn_ask *ask, qn_problem *p) {
    json_t *tools = json_array();
    for (size_t i = 0; i < json_array_size(ask->functions); i++) {
        json_t *function = json_array_get(ask->functions, i), *tool = json_object();
        if (!json_is_object(function)) {
            json_decref(tools);
            json_decref(tool);
            return QN_REFUSE(p, 400, "functions", "'functions', item %zu is not an object", i);
        }
        qn_json_put(&tool, "type", json_string("function"));
        qn_json_put(&tool, "function", json_incref(function));
        qn_json_push(&tools, tool);
    }
    ask->tools = qn_ask_keep(ask, tools);
    return ask->tools ? QN_OK : qn_problem_memory(p, "functions");
}

// The form of tools before there were tools: brought into that of today, with one call at most.
static qn_status read_functions(qn_ask *ask, qn_problem *p) {
    const char *word = json_string_value(ask->function_call);
    const char *name = json_string_value(json_object_get(ask->function_call, "name"));
    if (json_array_size(ask->functions) == 0) return QN_OK;
    if (ask->tools || ask->tool_choice)
        return QN_REFUSE(p, 400, "functions", "'functions' and '%s' do not go together",
                         ask->tools ? "tools" : "tool_choice");
    if (ask->function_call && !name && (!word || (strcmp(word, "none") && strcmp(word, "auto"))))
        return QN_REFUSE(p, 400, "function_call",
                         "'function_call' is '%.40s', want none, auto or a function",
                         word ? word : "");
    QN_TRY(set_function_tools(ask, p));
    ask->has_functions = true;
    ask->parallel_calls = false;
    ask->tool_choice = ask->function_call; // {"name"}, or a word that both have
    return QN_OK;
}

static qn_status read_tools(qn_ask *ask, qn_problem *p) {
    QN_TRY(read_functions(ask, p));
    const qn_status status = qn_openai_tool_choice(ask, p);
    if (status && ask->has_functions) snprintf(p->param, sizeof p->param, "function_call");
    return status;
}

qn_status qn_chat_prepare(qn_ask *ask, qn_problem *p) {
    QN_TRY(qn_openai_prepare(ask, p));
    if (!ask->messages) return QN_REFUSE(p, 400, "messages", "the request has no 'messages'");
    if (json_array_size(ask->messages) == 0)
        return QN_REFUSE(p, 400, "messages", "'messages' is empty");
    QN_TRY(qn_ask_set_messages(ask, ask->messages, p));
    if (ask->logprobs && !json_is_boolean(ask->logprobs))
        return QN_REFUSE(p, 400, "logprobs", "'logprobs' is not true or false");
    if (ask->top_logprobs && !json_is_true(ask->logprobs))
        return QN_REFUSE(p, 400, "top_logprobs", "'top_logprobs' is given without 'logprobs'");
    ask->wants_logprobs = json_is_true(ask->logprobs);
    ask->n_top = (int32_t)ask->top_logprobs;
    QN_TRY(read_tools(ask, p));
    return qn_ask_set_effort(ask, ask->effort, "reasoning_effort", p);
}

// --- pieces --------------------------------------------------------------------------------------

json_t *qn_openai_head(const qn_job *job, const char *object) {
    json_t *o = json_object();
    qn_json_put(&o, "id", json_string(job->id));
    qn_json_put(&o, "object", json_string(object));
    qn_json_put(&o, "created", json_integer(job->created));
    qn_json_put(&o, "model", json_string(job->entry->name));
    qn_json_put(&o, "system_fingerprint", json_sprintf("quern-%s", qn_version()));
    return o;
}

json_t *qn_openai_usage(const qn_job *job) {
    const qn_usage u = qn_job_usage(job);
    json_t *o = json_object(), *prompt = json_object(), *generated = json_object();
    qn_json_put(&prompt, "cached_tokens", json_integer(u.cached));
    qn_json_put(&generated, "reasoning_tokens", json_integer(u.reasoning));
    if (u.drafted) {
        qn_json_put(&generated, "accepted_prediction_tokens", json_integer(u.accepted));
        qn_json_put(&generated, "rejected_prediction_tokens", json_integer(u.drafted - u.accepted));
    }
    qn_json_put(&o, "prompt_tokens", json_integer(u.prompt));
    qn_json_put(&o, "completion_tokens", json_integer(u.generated));
    qn_json_put(&o, "total_tokens", json_integer(u.prompt + u.generated));
    qn_json_put(&o, "prompt_tokens_details", prompt);
    qn_json_put(&o, "completion_tokens_details", generated);
    return o;
}

json_t *qn_openai_whole(qn_job *job, const char *object,
                        json_t *(*choice_of)(qn_job *job, qn_choice *c)) {
    json_t *o = qn_openai_head(job, object), *choices = json_array();
    for (size_t i = 0; i < job->n_choices; i++)
        qn_json_push(&choices, choice_of(job, &job->choices[i]));
    qn_json_put(&o, "choices", choices);
    qn_json_put(&o, "usage", qn_openai_usage(job));
    qn_json_put(&o, "timings", qn_job_timings(job));
    qn_json_put(&o, "seed", json_integer((json_int_t)job->ask.seed));
    return o;
}

json_t *qn_openai_call(const qn_called *call) {
    json_t *o = json_object(), *function = json_object();
    const qn_buf *arguments = &call->arguments;
    qn_json_put(&function, "name", json_string(call->name));
    qn_json_put(&function, "arguments",
                qn_json_string(arguments->data ? arguments->data : "", arguments->size));
    qn_json_put(&o, "id", json_string(call->id));
    qn_json_put(&o, "type", json_string("function"));
    qn_json_put(&o, "function", function);
    return o;
}

static const char *reasoning_name(const qn_job *job) {
    return job->ex->server->opts.reasoning_field ? "reasoning" : "reasoning_content";
}

// --- streams -------------------------------------------------------------------------------------

// One chunk; takes `delta`.
static bool send_chunk(qn_job *job, qn_choice *c, json_t *delta, const char *finish) {
    json_t *o = qn_openai_head(job, "chat.completion.chunk");
    json_t *choice = json_object(), *choices = json_array();
    qn_json_put(&choice, "index", json_integer((json_int_t)c->index));
    qn_json_put(&choice, "delta", delta);
    qn_json_put(&choice, "finish_reason", finish ? json_string(finish) : json_null());
    if (qn_choice_has_untold(c)) {
        json_t *logprobs = json_object();
        qn_json_put(&logprobs, "content", qn_choice_untold(c));
        qn_json_put(&choice, "logprobs", logprobs);
    }
    qn_json_push(&choices, choice);
    qn_json_put(&o, "choices", choices);
    if (job->ask.usage_always) qn_json_put(&o, "usage", qn_openai_usage(job));
    if (job->ask.timings_per_token) qn_json_put(&o, "timings", qn_job_timings(job));
    return qn_job_send_event(job, NULL, o);
}

static bool begin(qn_job *job) {
    bool is_sent = true;
    for (size_t i = 0; i < job->n_choices && is_sent; i++) {
        json_t *delta = json_object(), *o = qn_openai_head(job, "chat.completion.chunk");
        json_t *choice = json_object(), *choices = json_array();
        qn_json_put(&delta, "role", json_string("assistant"));
        qn_json_put(&delta, "content", json_null());
        qn_json_put(&choice, "index", json_integer((json_int_t)i));
        qn_json_put(&choice, "delta", delta);
        qn_json_put(&choice, "finish_reason", json_null());
        qn_json_push(&choices, choice);
        qn_json_put(&o, "choices", choices);
        qn_json_put(&o, "seed", json_integer((json_int_t)job->ask.seed));
        is_sent = qn_job_send_event(job, NULL, o);
    }
    return is_sent;
}

static const char *finish_of(const qn_choice *c) {
    const char *word = qn_choice_finish(c);
    const bool is_old = c->job->ask.has_functions && strcmp(word, "tool_calls") == 0;
    return is_old ? "function_call" : word;
}

// {"name", "arguments"}: of a call in its older form, or of a piece of it.
static json_t *function_delta(const qn_choice *c, const qn_job_piece *piece) {
    const bool is_head = piece->kind == QN_CHAT_CALL;
    json_t *o = json_object();
    if (is_head) qn_json_put(&o, "name", json_string(c->calls[piece->call].name));
    qn_json_put(&o, "arguments",
                is_head ? json_string("") : qn_json_string(piece->text, piece->size));
    return o;
}

static json_t *call_delta(const qn_choice *c, const qn_job_piece *piece) {
    json_t *o = json_object(), *list = json_array();
    qn_json_put(&o, "index", json_integer((json_int_t)piece->call));
    if (piece->kind == QN_CHAT_CALL) {
        qn_json_put(&o, "id", json_string(c->calls[piece->call].id));
        qn_json_put(&o, "type", json_string("function"));
    }
    qn_json_put(&o, "function", function_delta(c, piece));
    qn_json_push(&list, o);
    return list;
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    json_t *delta = json_object();
    if (piece->kind == QN_CHAT_TEXT)
        qn_json_put(&delta, "content", qn_json_string(piece->text, piece->size));
    else if (piece->kind == QN_CHAT_REASONING)
        qn_json_put(&delta, reasoning_name(job), qn_json_string(piece->text, piece->size));
    else if (job->ask.has_functions)
        qn_json_put(&delta, "function_call", function_delta(c, piece));
    else
        qn_json_put(&delta, "tool_calls", call_delta(c, piece));
    return send_chunk(job, c, delta, NULL);
}

static bool progress(qn_job *job, qn_choice *c, int64_t done, int64_t total) {
    json_t *o = qn_openai_head(job, "chat.completion.chunk");
    json_t *choice = json_object(), *choices = json_array();
    qn_json_put(&choice, "index", json_integer((json_int_t)c->index));
    qn_json_put(&choice, "delta", json_object());
    qn_json_put(&choice, "finish_reason", json_null());
    qn_json_push(&choices, choice);
    qn_json_put(&o, "choices", choices);
    qn_json_put(&o, "prompt_progress", qn_choice_progress(c, done, total));
    return qn_job_send_event(job, NULL, o);
}

static bool finish(qn_job *job, qn_choice *c) {
    return send_chunk(job, c, json_object(), finish_of(c));
}

static bool send_done(qn_job *job) {
    qn_buf done = {0};
    qn_buf_text(&done, "data: [DONE]\n\n");
    const bool is_sent = qn_job_send(job, &done);
    qn_buf_deinit(&done);
    return is_sent;
}

bool qn_openai_end(qn_job *job, const char *object) {
    if (job->ask.include_usage) {
        json_t *o = qn_openai_head(job, object);
        qn_json_put(&o, "choices", json_array());
        qn_json_put(&o, "usage", qn_openai_usage(job));
        qn_json_put(&o, "timings", qn_job_timings(job));
        if (!qn_job_send_event(job, NULL, o)) return false;
    }
    return send_done(job);
}

static bool end(qn_job *job) { return qn_openai_end(job, "chat.completion.chunk"); }

bool qn_openai_fail(qn_job *job, const qn_problem *problem) {
    return qn_job_send_event(job, NULL, qn_problem_json(problem, QN_FORM_OPENAI)) && send_done(job);
}

// --- whole answers -------------------------------------------------------------------------------

static json_t *message_of(const qn_job *job, const qn_choice *c) {
    json_t *m = json_object();
    const bool has_text = c->text.size > 0 || c->n_calls == 0;
    qn_json_put(&m, "role", json_string("assistant"));
    qn_json_put(&m, "content",
                has_text ? qn_json_string(c->text.data ? c->text.data : "", c->text.size)
                         : json_null());
    if (c->reasoning.size)
        qn_json_put(&m, reasoning_name(job), qn_json_string(c->reasoning.data, c->reasoning.size));
    if (c->n_calls == 0) return m;
    if (job->ask.has_functions) {
        json_t *call = qn_openai_call(&c->calls[0]);
        qn_json_put(&m, "function_call", json_incref(json_object_get(call, "function")));
        json_decref(call);
        return m;
    }
    json_t *calls = json_array();
    for (size_t i = 0; i < c->n_calls; i++) qn_json_push(&calls, qn_openai_call(&c->calls[i]));
    qn_json_put(&m, "tool_calls", calls);
    return m;
}

static json_t *choice_of(qn_job *job, qn_choice *c) {
    json_t *o = json_object();
    qn_json_put(&o, "index", json_integer((json_int_t)c->index));
    qn_json_put(&o, "message", message_of(job, c));
    qn_json_put(&o, "finish_reason", json_string(finish_of(c)));
    if (job->ask.wants_logprobs) {
        json_t *logprobs = json_object();
        qn_json_put(&logprobs, "content", qn_choice_entries(c));
        qn_json_put(&o, "logprobs", logprobs);
    } else {
        qn_json_put(&o, "logprobs", json_null());
    }
    return o;
}

static json_t *whole(qn_job *job) { return qn_openai_whole(job, "chat.completion", choice_of); }

static const qn_dialect dialect = {.stream_type = "text/event-stream",
                                   .ping = ": still here\n\n",
                                   .begin = begin,
                                   .piece = piece,
                                   .progress = progress,
                                   .finish = finish,
                                   .end = end,
                                   .fail = qn_openai_fail,
                                   .whole = whole};

void qn_api_chat(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_CHAT, &dialect, "chatcmpl-", qn_chat_prepare,
                                     qn_job_chat};
    qn_job_handle(ex, &plan);
}

void qn_api_chat_count(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_CHAT, &qn_openai_count, "chatcmpl-", qn_chat_prepare,
                                     qn_job_count};
    qn_job_handle(ex, &plan);
}
