#include "server/api_responses.h"

#include "server/api.h"
#include "server/messages.h"

#include <stdio.h>
#include <string.h>

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

// --- tools ---------------------------------------------------------------------------------------

// Tools while they are collected: in the form of chat completions, and where they came from.
typedef struct tools {
    json_t *list;    // owned
    json_t *names;   // owned: {name: null}
    json_t *origins; // owned: see api_responses.h
} tools;

static void deinit_tools(tools *t) {
    json_decref(t->list);
    json_decref(t->names);
    json_decref(t->origins);
}

// The name that the model knows a namespace's tool by: its own, unless that is taken.
static json_t *flat_name(const char *space, const char *name, bool is_taken) {
    return is_taken ? json_sprintf("%s__%s", space, name) : json_string(name);
}

static qn_status add_function(tools *t, const json_t *tool, const char *space, qn_problem *p) {
    static const char *const members[] = {"description", "parameters", "strict"};
    const json_t *inner = json_object_get(tool, "function"); // the form of chat completions
    if (!json_is_object(inner)) inner = tool;
    const char *own = qn_value_text(inner, "name");
    if (!own || !*own) return QN_REFUSE(p, 400, "tools", "'tools': a function has no name");
    json_t *name = flat_name(space, own, space && json_object_get(t->names, own));
    json_t *o = json_object(), *function = json_object();
    if (name) qn_json_put(&t->names, json_string_value(name), json_null());
    if (name && space) {
        json_t *origin = json_object();
        qn_json_put(&origin, "name", json_string(own));
        qn_json_put(&origin, "namespace", json_string(space));
        qn_json_put(&t->origins, json_string_value(name), origin);
    }
    qn_json_put(&function, "name", name);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(inner, members[i]);
        if (value && !json_is_null(value))
            qn_json_put(&function, members[i], qn_value_share(value));
    }
    qn_json_put(&o, "type", json_string("function"));
    qn_json_put(&o, "function", function);
    qn_json_push(&t->list, o);
    return t->list && t->names && t->origins ? QN_OK : qn_problem_memory(p, "tools");
}

// Functions, those of namespaces too. Tools that a service has built in are left out: the model
// cannot call what is not there.
static qn_status add_tool(tools *t, const json_t *tool, qn_problem *p) {
    const char *type = qn_value_text(tool, "type");
    if (!json_is_object(tool)) return QN_REFUSE(p, 400, "tools", "'tools': one is not an object");
    if (!type) return QN_REFUSE(p, 400, "tools", "'tools': one has no type");
    if (strcmp(type, "function") == 0) return add_function(t, tool, NULL, p);
    if (strcmp(type, "namespace") != 0) return QN_OK;
    const json_t *inner = json_object_get(tool, "tools");
    const char *space = qn_value_text(tool, "name");
    for (size_t i = 0; space && i < json_array_size(inner); i++) {
        const json_t *one = json_array_get(inner, i);
        const char *kind = qn_value_text(one, "type");
        if (json_is_object(one) && (!kind || strcmp(kind, "function") == 0))
            QN_TRY(add_function(t, one, space, p));
    }
    return QN_OK;
}

static qn_status read_tools(qn_ask *ask, qn_problem *p) {
    tools t = {json_array(), json_object(), json_object()};
    qn_status status = t.list && t.names && t.origins ? QN_OK : qn_problem_memory(p, "tools");
    for (size_t i = 0; i < json_array_size(ask->tools) && !status; i++)
        status = add_tool(&t, json_array_get(ask->tools, i), p);
    if (!status) {
        ask->tools = qn_ask_keep(ask, qn_value_share(t.list));
        ask->origins = qn_ask_keep(ask, qn_value_share(t.origins));
        if (!ask->tools || !ask->origins) status = qn_problem_memory(p, "tools");
    }
    deinit_tools(&t);
    return status;
}

static const char *name_in_space(const qn_ask *ask, const char *space, const char *name, char *room,
                                 size_t size) {
    const char *own = qn_value_text(json_object_get(ask->origins, name), "namespace");
    if (!space || (own && strcmp(own, space) == 0)) return name;
    snprintf(room, size, "%s__%s", space, name);
    return json_object_get(ask->origins, room) ? room : name;
}

// Leaves those of the tools that the choice names.
static qn_status keep_allowed(qn_ask *ask, const json_t *allowed, qn_problem *p) {
    json_t *names = json_object(), *list = json_array();
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        const char *name = qn_value_text(json_array_get(allowed, i), "name");
        if (name) qn_json_put(&names, name, json_null());
    }
    for (size_t i = 0; i < json_array_size(ask->tools); i++) {
        const json_t *tool = json_array_get(ask->tools, i);
        const char *name = qn_value_text(json_object_get(tool, "function"), "name");
        if (name && json_object_get(names, name)) qn_json_push(&list, qn_value_share(tool));
    }
    const bool failed = !names;
    json_decref(names);
    ask->tools = qn_ask_keep(ask, list);
    return ask->tools && !failed ? QN_OK : qn_problem_memory(p, "tools");
}

// {"type": "function", "name"}, {"type": "allowed_tools", "mode", "tools"}, or a built-in tool,
// which is not there.
static qn_status read_tool_choice(qn_ask *ask, qn_problem *p) {
    const char *type = qn_value_text(ask->tool_choice, "type"),
               *mode = qn_value_text(ask->tool_choice, "mode");
    if (!json_is_object(ask->tool_choice)) return qn_openai_tool_choice(ask, p);
    if (!type) return QN_REFUSE(p, 400, "tool_choice", "'tool_choice' has no type");
    if (strcmp(type, "function") == 0) return qn_openai_tool_choice(ask, p);
    if (strcmp(type, "allowed_tools") != 0)
        return QN_REFUSE(p, 400, "tool_choice",
                         "'tool_choice' is of type '%.40s', want function: tools that a service "
                         "has built in are not there",
                         type);
    QN_TRY(keep_allowed(ask, json_object_get(ask->tool_choice, "tools"), p));
    const bool must = mode && strcmp(mode, "required") == 0;
    if (must && json_array_size(ask->tools) == 0)
        return QN_REFUSE(p, 400, "tool_choice", "'tool_choice' is required without tools");
    ask->choice = must ? QN_TOOLS_REQUIRED : QN_TOOLS_AUTO;
    return QN_OK;
}

// --- items ---------------------------------------------------------------------------------------

// A conversation while it is made of items. An answer of the model's comes as several: reasoning,
// a message, calls.
typedef struct history {
    const qn_ask *ask;
    json_t *list;     // owned: messages
    json_t *open;     // borrowed from the list: an answer that calls may be added to; NULL: none
    qn_buf reasoning; // of the answer that follows
    size_t i;         // number of the item
    qn_problem *p;
} history;

static qn_status push(history *h, json_t *message) {
    qn_json_push(&h->list, message);
    h->open = NULL;
    return h->list ? QN_OK : qn_problem_memory(h->p, "input");
}

// The answer that is open, or a new one.
static qn_status open_answer(history *h) {
    if (h->open) return QN_OK;
    json_t *m = qn_message_make("assistant", json_null());
    if (h->reasoning.size)
        qn_json_put(&m, "reasoning_content", json_stringn(h->reasoning.data, h->reasoning.size));
    const bool failed = h->reasoning.failed;
    qn_buf_deinit(&h->reasoning);
    QN_TRY(push(h, m));
    h->open = m;
    return failed ? qn_problem_memory(h->p, "input") : QN_OK;
}

// Its parts are read, or refused, by messages.c.
static qn_status add_message(history *h, const json_t *item) {
    const char *role = qn_value_text(item, "role");
    const json_t *content = json_object_get(item, "content");
    if (!role) return QN_REFUSE(h->p, 400, "input", "input[%zu]: a message has no role", h->i);
    if (strcmp(role, "assistant") != 0) {
        json_t *m = qn_message_make(role, content ? qn_value_share(content) : json_null());
        qn_buf_deinit(&h->reasoning);
        return push(h, m);
    }
    h->open = NULL;
    QN_TRY(open_answer(h));
    if (!content || json_object_set_new(h->open, "content", qn_value_share(content)) == 0)
        return QN_OK;
    return qn_problem_memory(h->p, "input");
}

// `arguments` is taken.
static qn_status add_call(history *h, const json_t *item, json_t *arguments) {
    char room[256];
    const char *own = qn_value_text(item, "name"), *id = qn_value_text(item, "call_id");
    if (!own || !*own) {
        json_decref(arguments);
        return QN_REFUSE(h->p, 400, "input", "input[%zu]: a call has no name", h->i);
    }
    const char *name =
        name_in_space(h->ask, qn_value_text(item, "namespace"), own, room, sizeof room);
    json_t *call = json_object(), *function = json_object();
    qn_json_put(&function, "name", json_string(name));
    qn_json_put(&function, "arguments", arguments);
    if (id) qn_json_put(&call, "id", json_string(id));
    qn_json_put(&call, "type", json_string("function"));
    qn_json_put(&call, "function", function);
    const qn_status status = open_answer(h);
    json_t *calls = json_object_get(h->open, "tool_calls");
    if (!status && !calls) {
        calls = json_array();
        if (json_object_set_new(h->open, "tool_calls", calls) != 0) calls = NULL;
    }
    if (status || !call || !calls || json_array_append_new(calls, call) != 0) {
        if (status || !calls) json_decref(call);
        return status ? status : qn_problem_memory(h->p, "input");
    }
    return QN_OK;
}

static qn_status add_function_call(history *h, const json_t *item) {
    const json_t *arguments = json_object_get(item, "arguments");
    return add_call(h, item, arguments ? qn_value_share(arguments) : json_object());
}

// A call whose argument is a plain text.
static qn_status add_custom_call(history *h, const json_t *item) {
    const json_t *input = json_object_get(item, "input");
    json_t *arguments = json_object();
    qn_json_put(&arguments, "input", input ? qn_value_share(input) : json_string(""));
    return add_call(h, item, arguments);
}

static qn_status add_call_output(history *h, const json_t *item) {
    const json_t *output = json_object_get(item, "output");
    const char *id = qn_value_text(item, "call_id");
    json_t *m = qn_message_make("tool", output ? qn_value_share(output) : json_null());
    if (id) qn_json_put(&m, "tool_call_id", json_string(id));
    return push(h, m);
}

// The reasoning itself if it is there, else its summary; encrypted reasoning cannot be read.
static qn_status add_reasoning(history *h, const json_t *item) {
    const json_t *content = json_object_get(item, "content");
    const json_t *from = json_array_size(content) ? content : json_object_get(item, "summary");
    h->open = NULL;
    for (size_t i = 0; i < json_array_size(from); i++) {
        const json_t *text = json_object_get(json_array_get(from, i), "text");
        if (!json_is_string(text)) continue;
        if (h->reasoning.size) qn_buf_text(&h->reasoning, "\n");
        qn_buf_add(&h->reasoning, json_string_value(text), json_string_length(text));
    }
    return h->reasoning.failed ? qn_problem_memory(h->p, "input") : QN_OK;
}

static qn_status refuse_reference(history *h, const json_t *item) {
    const char *id = qn_value_text(item, "id");
    return QN_REFUSE(
        h->p, 400, "input",
        "input[%zu] is a reference to '%.60s': nothing is stored; send the item itself", h->i,
        id ? id : "");
}

static qn_status add_item(history *h, const json_t *item) {
    static const struct {
        const char *type;
        qn_status (*add)(history *h, const json_t *item);
    } kinds[] = {{"message", add_message},
                 {"function_call", add_function_call},
                 {"function_call_output", add_call_output},
                 {"custom_tool_call", add_custom_call},
                 {"custom_tool_call_output", add_call_output},
                 {"reasoning", add_reasoning},
                 {"item_reference", refuse_reference}};
    const char *type = qn_value_text(item, "type");
    if (!json_is_object(item))
        return QN_REFUSE(h->p, 400, "input", "input[%zu] is not an object", h->i);
    if (!type) type = json_object_get(item, "role") ? "message" : "item_reference";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].type, type) == 0) return kinds[i].add(h, item);
    }
    // What tools of a service did: the answer that follows says what came of it.
    if (ends_with(type, "_call") || ends_with(type, "_output") || strncmp(type, "mcp_", 4) == 0)
        return QN_OK;
    return QN_REFUSE(h->p, 400, "input",
                     "input[%zu] is of type '%.40s', want message, function_call, "
                     "function_call_output or reasoning",
                     h->i, type);
}

static qn_status add_input(history *h, const json_t *input) {
    const size_t n_before = json_array_size(h->list);
    if (json_is_string(input)) QN_TRY(push(h, qn_message_make("user", qn_value_share(input))));
    for (h->i = 0; h->i < json_array_size(input); h->i++)
        QN_TRY(add_item(h, json_array_get(input, h->i)));
    // A probe for life may have no input at all; templates want somebody to answer.
    if (json_array_size(h->list) == n_before)
        return push(h, qn_message_make("user", json_string("")));
    return QN_OK;
}

static qn_status read_input(qn_ask *ask, qn_problem *p) {
    history h = {.ask = ask, .list = json_array(), .p = p};
    qn_status status = h.list ? QN_OK : qn_problem_memory(p, "input");
    if (!status && ask->instructions && *ask->instructions)
        status = push(&h, qn_message_make("system", json_string(ask->instructions)));
    if (!status) status = add_input(&h, ask->input);
    if (!status) {
        status = qn_ask_set_messages(ask, h.list, p);
        if (status) snprintf(p->param, sizeof p->param, "input"); // there are no "messages" here
    }
    json_decref(h.list);
    qn_buf_deinit(&h.reasoning);
    return status;
}

// --- the rest ------------------------------------------------------------------------------------

static qn_status read_include(qn_ask *ask, qn_problem *p) {
    for (size_t i = 0; i < json_array_size(ask->include); i++) {
        const char *what = json_string_value(json_array_get(ask->include, i));
        if (!what) return QN_REFUSE(p, 400, "include", "'include', item %zu is not a string", i);
        ask->wants_logprobs |= strcmp(what, "message.output_text.logprobs") == 0;
    }
    if (ask->wants_logprobs) ask->n_top = (int32_t)ask->top_logprobs;
    return QN_OK;
}

static qn_status read_truncation(qn_ask *ask, qn_problem *p) {
    if (!ask->truncation || strcmp(ask->truncation, "disabled") == 0) return QN_OK;
    if (strcmp(ask->truncation, "auto") != 0)
        return QN_REFUSE(p, 400, "truncation", "'truncation' is '%.40s', want auto or disabled",
                         ask->truncation);
    ask->leave_out = true;
    return QN_OK;
}

qn_status qn_responses_prepare(qn_ask *ask, qn_problem *p) {
    const json_t *format = json_object_get(ask->text, "format");
    const json_t *effort = json_object_get(ask->reasoning, "effort");
    if (!ask->input && !ask->instructions)
        return QN_REFUSE(p, 400, "input", "the request has no 'input'");
    if (format && !json_is_null(format)) ask->response_format = format;
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return QN_REFUSE(p, 400, "reasoning", "'reasoning.effort' is not a string");
    QN_TRY(read_tools(ask, p));
    QN_TRY(read_tool_choice(ask, p));
    QN_TRY(read_include(ask, p));
    QN_TRY(read_truncation(ask, p));
    QN_TRY(qn_ask_set_effort(ask, json_string_value(effort), "reasoning.effort", p));
    return read_input(ask, p);
}
