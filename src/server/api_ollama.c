// Ollama's /api/chat and /api/generate: lines of JSON.
#include "server/api_ollama.h"

#include "core/mem.h"
#include "server/messages.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <string.h>
#include <strings.h>

// --- reading -------------------------------------------------------------------------------------

// A picture is bare base64; URLs go on as they are, and are judged by whoever reads them.
static json_t *image_part(const json_t *image) {
    const char *text = json_string_value(image);
    const bool is_url = strncmp(text, "data:", 5) == 0 || strstr(text, "://");
    json_t *part = json_object(), *url = json_object();
    qn_json_put(&url, "url",
                is_url ? json_string(text) : json_sprintf("data:image/png;base64,%s", text));
    qn_json_put(&part, "type", json_string("image_url"));
    qn_json_put(&part, "image_url", url);
    return part;
}

// The text with its images as OpenAI's parts. *out is owned.
static qn_status make_content(json_t **out, const json_t *images, json_t *text, qn_problem *p) {
    json_t *parts = json_array();
    for (size_t i = 0; i < json_array_size(images); i++) {
        if (!json_is_string(json_array_get(images, i))) {
            json_decref(parts);
            return QN_REFUSE(p, 400, "images", "'images', item %zu is not a string", i);
        }
        qn_json_push(&parts, image_part(json_array_get(images, i)));
    }
    if (json_string_length(text)) {
        json_t *part = json_object();
        qn_json_put(&part, "type", json_string("text"));
        qn_json_put(&part, "text", json_incref(text));
        qn_json_push(&parts, part);
    }
    *out = parts;
    return parts ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "images"), "images");
}

// OpenAI's name of a member of a message; NULL: it is left out.
static const char *openai_name(const char *name) {
    static const struct {
        const char *ollama, *openai;
    } names[] = {{"thinking", "reasoning_content"}, {"tool_name", "name"}, {"images", NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].ollama) == 0) return names[i].openai;
    }
    return name;
}

static qn_status convert_message(json_t **out, const json_t *from, qn_problem *p) {
    json_t *m = json_object(), *content = NULL, *value;
    const json_t *images = json_object_get(from, "images");
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)from, name, value) {
        if (openai_name(name)) qn_json_put(&m, openai_name(name), json_incref(value));
    }
    if (json_array_size(images)) {
        const qn_status status =
            make_content(&content, images, json_object_get(from, "content"), p);
        if (status) {
            json_decref(m);
            return status;
        }
        qn_json_put(&m, "content", content);
    }
    *out = m;
    return m ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "messages"), "messages");
}

static qn_status convert_messages(qn_ask *ask, qn_problem *p) {
    json_t *list = json_array();
    qn_status status = QN_OK;
    for (size_t i = 0; i < json_array_size(ask->messages) && !status; i++) {
        const json_t *from = json_array_get(ask->messages, i);
        json_t *made = NULL;
        if (json_is_object(from))
            status = convert_message(&made, from, p);
        else
            status = QN_REFUSE(p, 400, "messages", "'messages', item %zu is not an object", i);
        if (!status) qn_json_push(&list, made);
    }
    if (status) {
        json_decref(list);
        return status;
    }
    ask->messages = qn_ask_keep(ask, list);
    return ask->messages ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "messages"), "messages");
}

static qn_status read_think(qn_ask *ask, qn_problem *p) {
    if (json_is_string(ask->think))
        return qn_ask_set_effort(ask, json_string_value(ask->think), "think", p);
    if (ask->think) ask->thinks = json_is_true(ask->think) ? QN_REASONING_ON : QN_REASONING_OFF;
    return QN_OK;
}

static qn_status read_format(qn_ask *ask, qn_problem *p) {
    const char *word = json_string_value(ask->format);
    if (!word) {
        ask->json_schema = ask->format;
        return QN_OK;
    }
    if (!*word) return QN_OK;
    if (strcmp(word, "json") != 0)
        return QN_REFUSE(p, 400, "format", "'format' is '%.40s', want json or a JSON Schema", word);
    json_t *made = json_object();
    qn_json_put(&made, "type", json_string("json_object"));
    ask->response_format = qn_ask_keep(ask, made);
    return ask->response_format ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "format"), "format");
}

static qn_status prepare(qn_ask *ask, qn_problem *p) {
    if (!QN_GIVEN(ask, stream)) ask->stream = true;
    if (ask->logprobs && !json_is_boolean(ask->logprobs))
        return QN_REFUSE(p, 400, "logprobs", "'logprobs' is not true or false");
    ask->wants_logprobs = json_is_true(ask->logprobs);
    ask->n_top = (int32_t)ask->top_logprobs;
    QN_TRY(read_think(ask, p));
    return read_format(ask, p);
}

static qn_status prepare_chat(qn_ask *ask, qn_problem *p) {
    QN_TRY(prepare(ask, p));
    QN_TRY(convert_messages(ask, p));
    return qn_openai_tool_choice(ask, p);
}

// The conversation of a prompt: the system message, and the prompt with its images.
static qn_status make_messages(qn_ask *ask, qn_problem *p) {
    json_t *list = json_array(), *user = json_object(), *content = NULL;
    if (json_string_length(ask->system)) {
        json_t *system = json_object();
        qn_json_put(&system, "role", json_string("system"));
        qn_json_put(&system, "content", qn_value_share(ask->system));
        qn_json_push(&list, system);
    }
    json_t *text = qn_value_share(ask->prompt);
    if (json_array_size(ask->images)) {
        const qn_status status = make_content(&content, ask->images, text, p);
        json_decref(text);
        if (status) {
            json_decref(list);
            json_decref(user);
            return status;
        }
        text = content;
    }
    qn_json_put(&user, "role", json_string("user"));
    qn_json_put(&user, "content", text);
    qn_json_push(&list, user);
    ask->messages = qn_ask_keep(ask, list);
    return ask->messages ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "messages"), "prompt");
}

static qn_status prepare_generate(qn_ask *ask, qn_problem *p) {
    QN_TRY(prepare(ask, p));
    if (ask->prompt && !json_is_string(ask->prompt))
        return QN_REFUSE(p, 400, "prompt", "'prompt' is not a string");
    if (ask->system && !json_is_string(ask->system))
        return QN_REFUSE(p, 400, "system", "'system' is not a string");
    if (ask->raw && json_array_size(ask->images))
        return QN_REFUSE(p, 400, "images", "'images' do not go together with 'raw'");
    if (json_string_length(ask->prompt) == 0) return QN_OK;
    return ask->raw ? QN_OK : make_messages(ask, p);
}

// --- pieces --------------------------------------------------------------------------------------

json_t *qn_ollama_time(const struct timespec *at) {
    char day[32];
    struct tm parts;
    if (!gmtime_r(&at->tv_sec, &parts)) return NULL;
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
    return json_sprintf("%s.%09ldZ", day, at->tv_nsec);
}

json_t *qn_ollama_head(const char *model) {
    struct timespec now;
    json_t *o = json_object();
    clock_gettime(CLOCK_REALTIME, &now);
    qn_json_put(&o, "model", json_string(model));
    qn_json_put(&o, "created_at", qn_ollama_time(&now));
    return o;
}

// Adds a call to *list. One whose arguments are not an object, as the answer was cut in the middle,
// is left out. *list becomes NULL if there is no memory.
static void push_call(json_t **list, const qn_called *call) {
    const qn_json_opts opts = {.what = "arguments"};
    json_t *arguments = NULL;
    const qn_status status =
        qn_json_parse_as(&arguments, call->arguments.data ? call->arguments.data : "",
                         call->arguments.size, &opts, NULL);
    if (status == QN_MEMORY) qn_json_push(list, NULL);
    if (status || !json_is_object(arguments)) {
        json_decref(arguments);
        return;
    }
    json_t *o = json_object(), *function = json_object();
    qn_json_put(&function, "name", json_string(call->name));
    qn_json_put(&function, "arguments", arguments);
    qn_json_put(&o, "id", json_string(call->id));
    qn_json_put(&o, "function", function);
    qn_json_push(list, o);
}

// Calls from number `from` to before `to`, as a list; NULL: no memory.
static json_t *calls_json(const qn_choice *c, size_t from, size_t to) {
    json_t *list = json_array();
    for (size_t i = from; list && i < to; i++) push_call(&list, &c->calls[i]);
    return list;
}

static json_t *text_json(const qn_buf *text) {
    return qn_json_string(text->data ? text->data : "", text->size);
}

// What a line says of the answer. Parts that it does not have are left out, but for the text; a
// part that it has and that is NULL: no memory.
typedef struct said {
    json_t *text, *thinking, *calls; // owned
    bool has_text, has_thinking, has_calls;
} said;

// /api/chat has a message, /api/generate its parts.
static void put_said(json_t **o, bool is_chat, said s) {
    json_t *message = json_object();
    json_t **to = is_chat ? &message : o;
    if (is_chat) qn_json_put(to, "role", json_string("assistant"));
    qn_json_put(to, is_chat ? "content" : "response", s.has_text ? s.text : json_string(""));
    if (s.has_thinking) qn_json_put(to, "thinking", s.thinking);
    if (s.has_calls) qn_json_put(to, "tool_calls", s.calls);
    if (is_chat)
        qn_json_put(o, "message", message);
    else
        json_decref(message);
}

static void put_end(json_t **o, const qn_job *job) {
    const qn_choice *c = &job->choices[0];
    const qn_usage u = qn_job_usage(job);
    const bool is_cut = strcmp(qn_choice_finish(c), "length") == 0;
    qn_json_put(o, "done", json_true());
    qn_json_put(o, "done_reason", json_string(is_cut ? "length" : "stop"));
    qn_json_put(o, "total_duration", json_integer(qn_clock_ns() - job->started));
    qn_json_put(o, "load_duration", json_integer(c->begun ? c->begun - job->started : 0));
    qn_json_put(o, "prompt_eval_count", json_integer(u.prompt));
    qn_json_put(o, "prompt_eval_duration",
                json_integer(c->first && c->begun ? c->first - c->begun : 0));
    qn_json_put(o, "eval_count", json_integer(u.generated));
    qn_json_put(o, "eval_duration", json_integer(c->last - c->first));
    qn_json_put(o, "seed", json_integer((json_int_t)job->ask.seed));
}

// --- streams -------------------------------------------------------------------------------------

static const qn_dialect chat_dialect;

static bool is_chat(const qn_job *job) { return job->dialect == &chat_dialect; }

static bool begin(qn_job *job) {
    (void)job;
    return true;
}

static bool send_said(qn_job *job, qn_choice *c, said s) {
    json_t *o = qn_ollama_head(job->entry->name);
    put_said(&o, is_chat(job), s);
    if (qn_choice_has_untold(c)) qn_json_put(&o, "logprobs", qn_choice_untold(c));
    qn_json_put(&o, "done", json_false());
    return qn_job_send_line(job, o);
}

// Calls that are complete before call number `until`; job->n_opened are told.
static bool send_calls(qn_job *job, qn_choice *c, size_t until) {
    bool is_sent = true;
    while (is_sent && job->n_opened < until) {
        json_t *list = calls_json(c, job->n_opened, job->n_opened + 1);
        job->n_opened++;
        if (list && json_array_size(list) == 0)
            json_decref(list);
        else
            is_sent = send_said(job, c, (said){.calls = list, .has_calls = true});
    }
    return is_sent;
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    const bool is_call = piece->kind == QN_CHAT_CALL || piece->kind == QN_CHAT_ARGUMENTS;
    if (!send_calls(job, c, is_call ? piece->call : c->n_calls)) return false;
    if (is_call) return true;
    json_t *text = qn_json_string(piece->text, piece->size);
    const bool thinks = piece->kind == QN_CHAT_REASONING;
    return send_said(job, c,
                     thinks ? (said){.thinking = text, .has_thinking = true}
                            : (said){.text = text, .has_text = true});
}

static bool finish(qn_job *job, qn_choice *c) { return send_calls(job, c, c->n_calls); }

static bool end(qn_job *job) {
    json_t *o = qn_ollama_head(job->entry->name);
    put_said(&o, is_chat(job), (said){0});
    put_end(&o, job);
    return qn_job_send_line(job, o);
}

static bool fail(qn_job *job, const qn_problem *problem) {
    return qn_job_send_line(job, qn_problem_json(problem, QN_FORM_OLLAMA));
}

// --- whole answers -------------------------------------------------------------------------------

static json_t *whole(qn_job *job) {
    const qn_choice *c = &job->choices[0];
    json_t *o = qn_ollama_head(job->entry->name);
    json_t *calls = calls_json(c, 0, c->n_calls);
    said s = {.text = text_json(&c->text), .has_text = true};
    s.has_thinking = c->reasoning.size > 0;
    if (s.has_thinking) s.thinking = text_json(&c->reasoning);
    s.has_calls = !calls || json_array_size(calls) > 0;
    if (s.has_calls)
        s.calls = calls;
    else
        json_decref(calls);
    put_said(&o, is_chat(job), s);
    if (job->ask.wants_logprobs) qn_json_put(&o, "logprobs", qn_choice_entries(c));
    put_end(&o, job);
    return o;
}

// No sign of life in silent streams: clients take every line for JSON of an answer.
#define DIALECT                                                                                    \
    {                                                                                              \
        .stream_type = "application/x-ndjson", .begin = begin, .piece = piece, .finish = finish,   \
        .end = end, .fail = fail, .whole = whole                                                   \
    }
static const qn_dialect chat_dialect = DIALECT, generate_dialect = DIALECT;
#undef DIALECT

// --- handlers ------------------------------------------------------------------------------------

// Nothing to answer: the model was to be opened, and is.
static qn_status reply_loaded(qn_exchange *ex, qn_offer *entry, bool is_chat) {
    json_t *o = qn_ollama_head(entry->name);
    put_said(&o, is_chat, (said){0});
    qn_json_put(&o, "done", json_true());
    qn_json_put(&o, "done_reason", json_string("load"));
    qn_reply_json(ex, 200, o);
    qn_offer_leave(entry);
    return QN_OK;
}

static qn_status start(qn_exchange *ex, qn_offer *entry, qn_ask *ask, const qn_dialect *dialect,
                       const char *prefix, qn_problem *p) {
    const bool is_prompt = ask->raw && json_string_length(ask->prompt);
    const qn_status status = qn_fields_read(ask, ask->options, QN_SET_OPTIONS, ex, p);
    if (status) {
        qn_offer_leave(entry);
        return status;
    }
    if (is_prompt) return qn_job_prompts(ex, entry, ask, dialect, prefix, p);
    if (json_array_size(ask->messages) == 0)
        return reply_loaded(ex, entry, dialect == &chat_dialect);
    return qn_job_chat(ex, entry, ask, dialect, prefix, p);
}

void qn_api_ollama_chat(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_OLLAMA_CHAT, &chat_dialect, "", prepare_chat, start};
    qn_job_handle(ex, &plan);
}

void qn_api_ollama_generate(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_OLLAMA_TEXT, &generate_dialect, "", prepare_generate,
                                     start};
    qn_job_handle(ex, &plan);
}
