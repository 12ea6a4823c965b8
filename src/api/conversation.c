// qn_chat: the messages of a conversation, and the prompts that chat templates make of them.
#include "api/chat_images.h"
#include "api/chat_turn.h"
#include "chat/builtin_templates.h"
#include "chat/template.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/structs.h"
#include "core/utf8.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

struct qn_chat {
    json_t *messages; // a list of {"role", "content", ...}
    json_t *tools;    // NULL: none
    qn_chat_images images;
    qn_image_opts image_opts; // of those that come in messages
};

qn_status qn_chat_create(qn_chat **out, qn_err *err) {
    QN_NEED(out, err);
    qn_chat *chat = qn_alloc(1, sizeof *chat);
    if (!chat) return QN_NOMEM(err, "a conversation");
    chat->messages = json_array();
    if (!chat->messages) {
        qn_free(chat);
        return QN_NOMEM(err, "messages");
    }
    chat->image_opts = QN_INIT(qn_image_opts);
    *out = chat;
    return QN_OK;
}

qn_status qn_chat_set_image_opts(qn_chat *chat, const qn_image_opts *opts, qn_err *err) {
    QN_NEED(chat, err);
    return QN_OPTS_READ(qn_image_opts, &chat->image_opts, opts, err);
}

void qn_chat_destroy(qn_chat *chat) {
    if (!chat) return;
    json_decref(chat->messages);
    json_decref(chat->tools);
    qn_chat_images_deinit(&chat->images);
    qn_free(chat);
}

// --- messages ------------------------------------------------------------------------------------

size_t qn_chat_n_messages(const qn_chat *chat) { return json_array_size(chat->messages); }

static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "system") == 0;
}

// Templates want calls as {"type": "function", "function": {...}}.
static qn_status call_json(json_t **out, const qn_tool_call *call, qn_err *err) {
    const qn_json_opts opts = {.what = "the arguments of a tool call", .depth = QN_JSON_CALL_DEPTH};
    json_t *arguments = NULL;
    if (!call->name || !call->arguments)
        return QN_FAIL(err, ARGUMENT, "a tool call: %s is NULL", call->name ? "arguments" : "name");
    QN_TRY(qn_text_check("the name of a tool call", call->name, strlen(call->name), err));
    QN_TRY(qn_json_parse_as(&arguments, call->arguments, strlen(call->arguments), &opts, err));
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return QN_FAIL(err, ARGUMENT, "the arguments of a call of '%.80s' are not an object",
                       call->name);
    }
    *out = json_pack("{s:s, s:{s:s, s:o}}", "type", "function", "function", "name", call->name,
                     "arguments", arguments);
    return *out ? QN_OK : QN_NOMEM(err, "a tool call");
}

static qn_status calls_json(json_t **out, const qn_message *message, qn_err *err) {
    json_t *calls = json_array();
    for (size_t i = 0; i < message->n_calls; i++) {
        json_t *call = NULL;
        const qn_status status = call_json(&call, &message->calls[i], err);
        if (status) {
            json_decref(calls);
            return status;
        }
        qn_json_push(&calls, call);
    }
    *out = calls;
    return calls ? QN_OK : QN_NOMEM(err, "a message");
}

static bool is_answer(const qn_message *message) { return strcmp(message->role, "assistant") == 0; }

static qn_status check_message(const qn_message *message, qn_err *err) {
    if (!message->role) return QN_FAIL(err, ARGUMENT, "a message has no role");
    if (message->text_size) QN_NEED(message->text, err);
    if (message->reasoning_size) QN_NEED(message->reasoning, err);
    if (message->n_calls) QN_NEED(message->calls, err);
    if (message->n_images) QN_NEED(message->images, err);
    QN_TRY(qn_text_check("the role of a message", message->role, strlen(message->role), err));
    if (is_answer(message)) return QN_OK;
    QN_TRY(qn_text_check("the text of a message", message->text, message->text_size, err));
    return qn_text_check("the reasoning of a message", message->reasoning, message->reasoning_size,
                         err);
}

// A model may write any bytes: what a request cannot hold becomes U+FFFD. NULL: no memory.
static json_t *text_json(const char *text, size_t size) {
    qn_buf clean = {0};
    for (size_t from = 0, to; from < size; from = to + 1) {
        for (to = from; to < size && text[to]; to++) {
        }
        qn_buf_add(&clean, text + from, to - from);
        if (to < size) qn_buf_text(&clean, "\xef\xbf\xbd");
    }
    json_t *json = clean.failed ? NULL : qn_json_string(clean.data ? clean.data : "", clean.size);
    qn_buf_deinit(&clean);
    return json;
}

static qn_status message_json(json_t **out, const qn_message *message, qn_err *err) {
    QN_TRY(check_message(message, err));
    json_t *calls = NULL;
    if (message->n_calls) QN_TRY(calls_json(&calls, message, err));
    json_t *made = json_pack("{s:s, s:o}", "role", message->role, "content",
                             text_json(message->text, message->text_size));
    if (message->reasoning_size)
        qn_json_put(&made, "reasoning_content",
                    text_json(message->reasoning, message->reasoning_size));
    if (calls) qn_json_put(&made, "tool_calls", calls);
    *out = made;
    return made ? QN_OK : QN_NOMEM(err, "a message");
}

static bool is_result(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "tool") == 0;
}

// Nine letters or digits: some templates take nothing else. False: no memory.
static bool name_calls(json_t *calls, size_t n_message) {
    enum { MOST_MESSAGE = 10000, MOST_CALL = 100000 };
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        char id[16];
        if (!json_is_object(call) || json_is_string(json_object_get(call, "id"))) continue;
        snprintf(id, sizeof id, "%04zu%05zu", n_message % MOST_MESSAGE, i % MOST_CALL);
        if (json_object_set_new(call, "id", json_string(id)) != 0) return false;
    }
    return true;
}

// The result of a tool answers the first call before it that has none yet: templates want to know
// which one that is. One that answers no call is left as it is.
static qn_status link_result(const json_t *messages, json_t *result, qn_err *err) {
    size_t i = json_array_size(messages), n_results = 0;
    for (; i > 0 && is_result(json_array_get(messages, i - 1)); i--) n_results++;
    if (i == 0) return QN_OK;
    json_t *calls = json_object_get(json_array_get(messages, i - 1), "tool_calls");
    json_t *call = json_array_get(calls, n_results);
    json_t *name = json_object_get(json_object_get(call, "function"), "name");
    if (!json_is_object(call) || !name) return QN_OK;
    const bool is_linked =
        name_calls(calls, i - 1) && json_object_set(result, "name", name) == 0 &&
        json_object_set(result, "tool_call_id", json_object_get(call, "id")) == 0;
    return is_linked ? QN_OK : QN_NOMEM(err, "a message");
}

qn_status qn_chat_add(qn_chat *chat, const qn_message *message, qn_err *err) {
    QN_NEED(chat, err);
    QN_NEED(message, err);
    qn_message own;
    json_t *made = NULL;
    QN_TRY(QN_OPTS_READ(qn_message, &own, message, err));
    QN_TRY(message_json(&made, &own, err));
    qn_status status = is_result(made) ? link_result(chat->messages, made, err) : QN_OK;
    if (!status && own.n_images)
        status = qn_chat_images_add(&chat->images, made, own.images, own.n_images, err);
    if (status) {
        json_decref(made);
        return status;
    }
    if (json_array_append_new(chat->messages, made) == 0) return QN_OK; // it is gone otherwise
    qn_chat_images_forget(&chat->images);
    return QN_NOMEM(err, "a message");
}

qn_status qn_chat_get(qn_message *out, const qn_chat *chat, size_t i, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat, err);
    QN_TRY(QN_RESULT_CHECK(qn_message, out, err));
    const json_t *message = json_array_get(chat->messages, i);
    if (!message)
        return QN_FAIL(err, ARGUMENT, "message %zu, there are %zu", i, qn_chat_n_messages(chat));
    const json_t *text = json_object_get(message, "content"),
                 *reasoning = json_object_get(message, "reasoning_content");
    if (json_is_array(text)) text = qn_chat_find_text(text);
    const qn_message got = {.role = json_string_value(json_object_get(message, "role")),
                            .text = json_string_value(text),
                            .text_size = json_string_length(text),
                            .reasoning = json_string_value(reasoning),
                            .reasoning_size = json_string_length(reasoning)};
    QN_RESULT_WRITE(qn_message, out, &got);
    return QN_OK;
}

qn_status qn_chat_truncate(qn_chat *chat, size_t n, qn_err *err) {
    QN_NEED(chat, err);
    const size_t n_now = qn_chat_n_messages(chat);
    if (n > n_now) return QN_FAIL(err, ARGUMENT, "%zu messages to keep, there are %zu", n, n_now);
    for (size_t i = n_now; i > n; i--) json_array_remove(chat->messages, i - 1);
    qn_chat_images_forget(&chat->images);
    return QN_OK;
}

qn_status qn_chat_put(qn_chat *chat, size_t n, const qn_message *message, qn_err *err) {
    const size_t n_before = qn_chat_n_messages(chat);
    QN_TRY(qn_chat_add(chat, message, err));
    for (size_t i = n_before; i > n; i--) json_array_remove(chat->messages, i - 1);
    qn_chat_images_forget(&chat->images);
    return QN_OK;
}

qn_status qn_chat_set_system(qn_chat *chat, const char *text, qn_err *err) {
    QN_NEED(chat, err);
    json_t *message = NULL;
    if (text) {
        QN_TRY(qn_text_check("the system message", text, strlen(text), err));
        message = json_pack("{s:s, s:s}", "role", "system", "content", text);
        if (!message || json_array_insert_new(chat->messages, 0, message) != 0)
            return QN_NOMEM(err, "a message");
    }
    const size_t old = text ? 1 : 0;
    if (is_system(json_array_get(chat->messages, old))) json_array_remove(chat->messages, old);
    return QN_OK;
}

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

static qn_status check_messages(const json_t *messages, const char *what, qn_err *err) {
    if (!json_is_array(messages))
        return QN_FAIL(err, FORMAT, "%s: %s, want a list of messages", what, kind_of(messages));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_string(json_object_get(message, "role")))
            return QN_FAIL(err, FORMAT, "%s: message %zu: want an object with a string \"role\"",
                           what, i);
    }
    return QN_OK;
}

qn_status qn_chat_set_messages(qn_chat *chat, const char *json, size_t size, const char *what,
                               qn_err *err) {
    QN_NEED(chat, err);
    QN_NEED(json, err);
    json_t *messages = NULL;
    qn_chat_images images = {0};
    if (!what) what = "messages";
    QN_TRY(qn_json_parse(&messages, json, size, false, what, err));
    qn_status status = check_messages(messages, what, err);
    if (!status) status = qn_chat_images_read(&images, messages, what, &chat->image_opts, err);
    json_decref(status ? messages : chat->messages);
    qn_chat_images_deinit(status ? &images : &chat->images);
    if (status) return status;
    chat->messages = messages;
    chat->images = images;
    return QN_OK;
}

qn_status qn_chat_print_messages(char **json, const qn_chat *chat, qn_err *err) {
    QN_NEED(json, err);
    QN_NEED(chat, err);
    return qn_json_print(json, chat->messages, &(qn_json_form){0}, "messages", err);
}

// --- tools ---------------------------------------------------------------------------------------

// Templates look into tools by name; what else is in them is the template's to say.
static qn_status check_tools(const json_t *tools, const char *what, qn_err *err) {
    if (!json_is_array(tools))
        return QN_FAIL(err, FORMAT, "%s: %s, want a list of tools", what, kind_of(tools));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_object(tool))
            return QN_FAIL(err, FORMAT, "%s: tool %zu is %s, want an object", what, i,
                           kind_of(tool));
    }
    return QN_OK;
}

qn_status qn_chat_set_tools(qn_chat *chat, const char *json, size_t size, const char *what,
                            qn_err *err) {
    QN_NEED(chat, err);
    json_t *tools = NULL;
    if (!what) what = "tools";
    if (json) {
        QN_TRY(qn_json_parse(&tools, json, size, false, what, err));
        const qn_status status = check_tools(tools, what, err);
        if (status) {
            json_decref(tools);
            return status;
        }
    }
    json_decref(chat->tools);
    chat->tools = tools;
    return QN_OK;
}

const json_t *qn_chat_get_tools(const qn_chat *chat) { return chat->tools; }

// --- prompts -------------------------------------------------------------------------------------

static void put_token(json_t **request, const char *name, const qn_tokenizer *tokenizer,
                      int32_t id) {
    size_t size = 0;
    const char *piece = id >= 0 ? qn_tokenizer_piece(tokenizer, id, &size) : NULL;
    if (piece) qn_json_put(request, name, qn_json_string(piece, size));
}

// What was given by the caller, over the names that templates know reasoning by.
static qn_status make_kwargs(json_t **out, const qn_chat_prompt_opts *o, qn_err *err) {
    json_t *given = NULL, *kwargs = json_object();
    const int is_on = o->reasoning == QN_REASONING_ON;
    if ((unsigned)o->reasoning > QN_REASONING_OFF) {
        json_decref(kwargs);
        return QN_FAIL(err, ARGUMENT, "reasoning %d of %d", (int)o->reasoning,
                       QN_REASONING_OFF + 1);
    }
    if (o->reasoning) {
        qn_json_put(&kwargs, "enable_thinking", json_boolean(is_on));
        qn_json_put(&kwargs, "thinking", json_boolean(is_on));
    }
    qn_status status = kwargs ? QN_OK : QN_NOMEM(err, "a request");
    if (!status && o->kwargs)
        status = qn_json_parse(&given, o->kwargs, strlen(o->kwargs), false, "kwargs", err);
    if (!status && given && !json_is_object(given))
        status = QN_FAIL(err, ARGUMENT, "kwargs: %s, want an object", kind_of(given));
    if (!status && given && json_object_update(kwargs, given) != 0)
        status = QN_NOMEM(err, "a request");
    json_decref(given);
    if (status)
        json_decref(kwargs);
    else
        *out = kwargs;
    return status;
}

static bool has_system(const json_t *messages) {
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return role && strcmp(role, "system") == 0;
}

// The messages that the options choose; owned.
static qn_status choose_messages(json_t **out, const qn_chat *chat, const qn_chat_prompt_opts *o,
                                 qn_err *err) {
    const size_t n_all = qn_chat_n_messages(chat), n = o->n_messages ? o->n_messages : n_all;
    if (n > n_all)
        return QN_FAIL(err, ARGUMENT, "a prompt of %zu messages, there are %zu", n, n_all);
    const size_t first = has_system(chat->messages) ? 1 : 0;
    if (o->n_skipped > n - first)
        return QN_FAIL(err, ARGUMENT, "%zu messages left out, there are %zu", o->n_skipped,
                       n - first);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        if (i < first || i >= first + o->n_skipped)
            qn_json_push(&list, json_incref(json_array_get(chat->messages, i)));
    }
    *out = list;
    return list ? QN_OK : QN_NOMEM(err, "a prompt");
}

// A request of qn_template_render. Owned (qn_free).
static qn_status make_request(char **out, const qn_chat *chat, json_t *messages,
                              const qn_template *template, const qn_tokenizer *tokenizer,
                              const qn_chat_prompt_opts *o, bool has_tools, qn_err *err) {
    json_t *kwargs = NULL, *request = json_object();
    qn_status status = make_kwargs(&kwargs, o, err);
    if (!status) {
        qn_json_put(&request, "messages", json_incref(messages));
        qn_json_put(&request, "kwargs", kwargs);
        if (chat->tools && has_tools) qn_json_put(&request, "tools", json_incref(chat->tools));
        if (o->no_generation_prompt) qn_json_put(&request, "add_generation_prompt", json_false());
        if (o->now) qn_json_put(&request, "now", qn_json_string(o->now, strlen(o->now)));
        if (tokenizer && !qn_template_has_own_ends(template)) {
            put_token(&request, "bos_token", tokenizer, qn_tokenizer_own_info(tokenizer)->bos);
            put_token(&request, "eos_token", tokenizer, qn_tokenizer_own_info(tokenizer)->eos);
        }
        status = qn_json_print(out, request, &(qn_json_form){0}, "a prompt", err);
    }
    json_decref(request);
    return status;
}

// What a template is asked, and how it is to run.
typedef struct asked {
    json_t *messages; // owned
    char *request;    // owned (qn_free)
    qn_template_opts how;
} asked;

static qn_status begin_prompt(asked *a, const qn_chat *chat, const qn_template *chat_template,
                              const qn_tokenizer *tokenizer, const qn_chat_prompt_opts *opts,
                              bool has_tools, qn_err *err) {
    qn_chat_prompt_opts o;
    QN_TRY(QN_OPTS_READ(qn_chat_prompt_opts, &o, opts, err));
    a->how = QN_INIT(qn_template_opts, .progress = o.progress, .progress_arg = o.progress_arg,
                     .stop = o.stop);
    QN_TRY(choose_messages(&a->messages, chat, &o, err));
    return make_request(&a->request, chat, a->messages, chat_template, tokenizer, &o, has_tools,
                        err);
}

static void asked_deinit(asked *a) {
    json_decref(a->messages);
    qn_free(a->request);
}

qn_status qn_chat_render(char **text, size_t *size, const qn_chat *chat,
                         const qn_template *chat_template, const qn_tokenizer *tokenizer,
                         const qn_chat_prompt_opts *opts, qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(chat, err);
    QN_NEED(chat_template, err);
    asked a = {0};
    qn_status status = begin_prompt(&a, chat, chat_template, tokenizer, opts, true, err);
    if (!status)
        status = qn_template_render(text, size, chat_template, a.request, strlen(a.request), &a.how,
                                    err);
    asked_deinit(&a);
    return status;
}

qn_status qn_chat_make_prompt(qn_chat_prompt *out, const qn_chat *chat,
                              const qn_template *chat_template, const qn_tokenizer *tokenizer,
                              const qn_chat_prompt_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat, err);
    QN_NEED(chat_template, err);
    QN_NEED(tokenizer, err);
    qn_chat_prompt_opts o;
    QN_TRY(QN_OPTS_READ(qn_chat_prompt_opts, &o, opts, err));
    qn_prompt_limit limit = {.max_tokens = o.max_tokens};
    return qn_chat_make_prompt_as(out, chat, chat_template, tokenizer, opts, true, &limit, err);
}

qn_status qn_chat_make_prompt_as(qn_chat_prompt *out, const qn_chat *chat,
                                 const qn_template *chat_template, const qn_tokenizer *tokenizer,
                                 const qn_chat_prompt_opts *opts, bool has_tools,
                                 qn_prompt_limit *limit, qn_err *err) {
    asked a = {0};
    qn_status status = begin_prompt(&a, chat, chat_template, tokenizer, opts, has_tools, err);
    if (!status)
        status = qn_chat_prompt_create_within(out, chat_template, tokenizer, a.request,
                                              strlen(a.request), &a.how, limit, err);
    if (!status && QN_HAS_FIELD(qn_chat_prompt, out, n_images)) {
        status = qn_chat_images_list(&out->images, &out->n_images, &chat->images, a.messages,
                                     json_array_size(a.messages), err);
        if (status) qn_chat_prompt_deinit(out);
    }
    asked_deinit(&a);
    return status;
}

// NULL where the template refuses.
static qn_status try_render(char **out, const qn_chat *chat, const qn_template *template,
                            const qn_tokenizer *tokenizer, const qn_chat_prompt_opts *o,
                            qn_err *err) {
    qn_err why;
    const qn_status status = qn_chat_render(out, NULL, chat, template, tokenizer, o, &why);
    if (status != QN_MEMORY && status != QN_STOPPED) return QN_OK;
    if (err) *err = why;
    return status;
}

qn_status qn_chat_find_switch(qn_reasoning_switch *out, const qn_chat *chat,
                              const qn_template *chat_template, const qn_tokenizer *tokenizer,
                              const qn_chat_prompt_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat, err);
    QN_NEED(chat_template, err);
    qn_chat_prompt_opts o;
    char *on = NULL, *off = NULL;
    QN_TRY(QN_OPTS_READ(qn_chat_prompt_opts, &o, opts, err));
    o.reasoning = QN_REASONING_ON;
    qn_status status = try_render(&on, chat, chat_template, tokenizer, &o, err);
    o.reasoning = QN_REASONING_OFF;
    if (!status) status = try_render(&off, chat, chat_template, tokenizer, &o, err);
    if (!status)
        *out = !on && !off                         ? QN_SWITCH_UNKNOWN
               : on && off && strcmp(on, off) == 0 ? QN_SWITCH_NONE
                                                   : QN_SWITCH_FOUND;
    qn_free(on);
    qn_free(off);
    return status;
}

// --- answers -------------------------------------------------------------------------------------

qn_status qn_chat_get_parts_opts(qn_parts_opts *out, const qn_chat *chat,
                                 const qn_tokenizer *tokenizer, const qn_chat_prompt *prompt,
                                 qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat, err);
    QN_NEED(prompt, err);
    QN_TRY(QN_RESULT_CHECK(qn_parts_opts, out, err));
    QN_TRY(QN_RESULT_CHECK(qn_chat_prompt, prompt, err));
    const qn_parts_opts opts = {.tokenizer = tokenizer,
                                .prompt = prompt->text,
                                .prompt_size = prompt->text_size,
                                .bare_calls = chat->tools != NULL};
    QN_RESULT_WRITE(qn_parts_opts, out, &opts);
    return QN_OK;
}

// --- templates for models that come without one --------------------------------------------------

static bool has_token(const qn_tokenizer *tokenizer, const char *piece) {
    return qn_tokenizer_find(tokenizer, piece, strlen(piece)) >= 0;
}

const char *qn_template_find_builtin(const qn_tokenizer *tokenizer) {
    const qn_builtin_template *t;
    for (size_t i = 0; (t = qn_builtin_template_at(i)); i++) {
        if (has_token(tokenizer, t->open) && has_token(tokenizer, t->close)) return t->name;
    }
    return NULL;
}
