#include "server/api_messages.h"

#include "server/api.h"
#include "server/messages.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_type(const json_t *object, const char *type) {
    const char *own = qn_value_text(object, "type");
    return own && strcmp(own, type) == 0;
}

// --- system --------------------------------------------------------------------------------------

// Claude Code begins its system prompt with a line that is different in every request, which would
// make every prompt a new one. It says nothing to the model.
static const char *skip_billing(const char *text) {
    static const char name[] = "x-anthropic-billing-header:";
    while (strncasecmp(text, name, sizeof name - 1) == 0) {
        text += strcspn(text, "\n");
        text += strspn(text, "\n");
    }
    return text;
}

static qn_status add_system_text(qn_buf *to, const json_t *text, qn_problem *p) {
    if (!json_is_string(text))
        return QN_REFUSE(p, 400, "system", "'system' has a block that is not a text");
    const char *rest = skip_billing(json_string_value(text));
    if (!*rest) return QN_OK;
    if (to->size) qn_buf_text(to, "\n\n");
    qn_buf_text(to, rest);
    return QN_OK;
}

// *out: the system message, or NULL if there is none.
static qn_status read_system(json_t **out, const json_t *system, qn_problem *p) {
    qn_buf text = {0};
    qn_status status = QN_OK;
    if (json_is_string(system)) status = add_system_text(&text, system, p);
    for (size_t i = 0; i < json_array_size(system) && !status; i++) {
        const json_t *block = json_array_get(system, i);
        if (is_type(block, "text"))
            status = add_system_text(&text, json_object_get(block, "text"), p);
        else
            status = QN_REFUSE(p, 400, "system", "system[%zu] is of type '%.40s', want text", i,
                               qn_value_text(block, "type") ? qn_value_text(block, "type") : "");
    }
    if (!status && text.size)
        *out = text.failed ? NULL : qn_message_make("system", json_stringn(text.data, text.size));
    if (!status && (text.failed || (text.size && !*out))) status = qn_problem_memory(p, "system");
    qn_buf_deinit(&text);
    return status;
}

// --- blocks --------------------------------------------------------------------------------------

// A message while its blocks are read. Blocks of one message may become several: results of tools
// are messages of their own.
typedef struct reader {
    json_t *list;  // owned: messages so far
    json_t *parts; // owned: texts and images of the message that is read; NULL: none
    json_t *calls; // owned: the same for calls
    qn_buf reasoning;
    const char *role;
    char field[64]; // "messages[2].content[1]", for errors
    qn_problem *p;
} reader;

static void deinit_reader(reader *r) {
    json_decref(r->list);
    json_decref(r->parts);
    json_decref(r->calls);
    qn_buf_deinit(&r->reasoning);
}

static qn_status push(json_t **list, json_t *value, qn_problem *p) {
    if (!*list) *list = json_array();
    qn_json_push(list, value);
    return *list ? QN_OK : qn_problem_memory(p, "messages");
}

// What was collected, as a message; a message without content has an empty text.
static qn_status flush(reader *r) {
    if (!r->parts && !r->calls && !r->reasoning.size) return QN_OK;
    json_t *m = qn_message_make(r->role, r->parts ? r->parts : json_null());
    r->parts = NULL;
    if (r->reasoning.size)
        qn_json_put(&m, "reasoning_content", json_stringn(r->reasoning.data, r->reasoning.size));
    if (r->calls) qn_json_put(&m, "tool_calls", r->calls);
    r->calls = NULL;
    const bool failed = r->reasoning.failed;
    qn_buf_deinit(&r->reasoning);
    QN_TRY(push(&r->list, m, r->p));
    return failed ? qn_problem_memory(r->p, "messages") : QN_OK;
}

static qn_status make_text(json_t **out, const json_t *block, reader *r) {
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text))
        return QN_REFUSE(r->p, 400, "messages", "%s: a text block has no text", r->field);
    json_t *o = json_object();
    qn_json_put(&o, "type", json_string("text"));
    qn_json_put(&o, "text", qn_value_share(text));
    *out = o;
    return o ? QN_OK : qn_problem_memory(r->p, "messages");
}

// The URL of {"type": "url", "url"}, or of {"type": "base64", "media_type", "data"} as a data: URL.
static qn_status make_url(json_t **out, const json_t *source, reader *r) {
    const char *media = qn_value_text(source, "media_type"), *data = qn_value_text(source, "data");
    const json_t *url = json_object_get(source, "url");
    const char *type = qn_value_text(source, "type");
    if (json_is_string(url)) {
        QN_TRY(qn_image_url_check(json_string_value(url), r->field, r->p));
        *out = qn_value_share(url);
        return QN_OK;
    }
    if (!is_type(source, "base64") || !media || !data)
        return QN_REFUSE(r->p, 400, "messages",
                         "%s: an image's source is of type '%.40s', want base64 with media_type "
                         "and data",
                         r->field, type ? type : "");
    qn_buf text = {0};
    qn_buf_text(&text, "data:");
    qn_buf_text(&text, media);
    qn_buf_text(&text, ";base64,");
    qn_buf_text(&text, data);
    *out = text.failed ? NULL : json_stringn(text.data, text.size);
    qn_buf_deinit(&text);
    return *out ? QN_OK : qn_problem_memory(r->p, "messages");
}

static qn_status make_image(json_t **out, const json_t *block, reader *r) {
    json_t *url = NULL;
    QN_TRY(make_url(&url, json_object_get(block, "source"), r));
    json_t *o = json_object(), *image = json_object();
    qn_json_put(&image, "url", url);
    qn_json_put(&o, "type", json_string("image_url"));
    qn_json_put(&o, "image_url", image);
    *out = o;
    return o ? QN_OK : qn_problem_memory(r->p, "messages");
}

static qn_status add_text(reader *r, const json_t *block) {
    json_t *part = NULL;
    QN_TRY(make_text(&part, block, r));
    return push(&r->parts, part, r->p);
}

static qn_status add_image(reader *r, const json_t *block) {
    json_t *part = NULL;
    QN_TRY(make_image(&part, block, r));
    return push(&r->parts, part, r->p);
}

static qn_status add_thinking(reader *r, const json_t *block) {
    const json_t *text = json_object_get(block, "thinking");
    if (!json_is_string(text)) return QN_OK;
    if (r->reasoning.size) qn_buf_text(&r->reasoning, "\n");
    qn_buf_add(&r->reasoning, json_string_value(text), json_string_length(text));
    return QN_OK;
}

static qn_status add_call(reader *r, const json_t *block) {
    const char *name = qn_value_text(block, "name"), *id = qn_value_text(block, "id");
    const json_t *input = json_object_get(block, "input");
    if (!name || !*name)
        return QN_REFUSE(r->p, 400, "messages", "%s: a tool_use block has no name", r->field);
    json_t *call = json_object(), *function = json_object();
    qn_json_put(&function, "name", json_string(name));
    qn_json_put(&function, "arguments", input ? qn_value_share(input) : json_object());
    if (id) qn_json_put(&call, "id", json_string(id));
    qn_json_put(&call, "type", json_string("function"));
    qn_json_put(&call, "function", function);
    return push(&r->calls, call, r->p);
}

// --- results of tools ----------------------------------------------------------------------------

static qn_status refuse_block(reader *r, const json_t *block) {
    const char *type = qn_value_text(block, "type");
    return QN_REFUSE(r->p, 400, "messages",
                     "%s: a block is of type '%.40s', which is not read; want text, image, "
                     "tool_use, tool_result or thinking",
                     r->field, type ? type : "");
}

static qn_status result_parts(json_t **out, const json_t *content, reader *r) {
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        json_t *part = NULL;
        if (is_type(block, "text"))
            QN_TRY(make_text(&part, block, r));
        else if (is_type(block, "image"))
            QN_TRY(make_image(&part, block, r));
        else if (is_type(block, "tool_reference")) // found by a service's search for tools
            continue;
        else
            return refuse_block(r, block);
        QN_TRY(push(out, part, r->p));
    }
    return QN_OK;
}

// Models are told of errors in words.
static qn_status mark_error(json_t **parts, qn_problem *p) {
    static const char word[] = "error";
    const json_t *first = json_object_get(json_array_get(*parts, 0), "text");
    const char *text = json_string_value(first);
    if (text && strncasecmp(text, word, sizeof word - 1) == 0) return QN_OK;
    if (!*parts) *parts = json_array();
    json_t *made = json_object(), *label = json_sprintf("Error: %s", text ? text : "");
    qn_json_put(&made, "type", json_string("text"));
    qn_json_put(&made, "text", label);
    const bool failed =
        !made || !*parts ||
        (text ? json_array_set(*parts, 0, made) : json_array_insert(*parts, 0, made));
    json_decref(made);
    return failed ? qn_problem_memory(p, "messages") : QN_OK;
}

static qn_status read_result(json_t **parts, const json_t *block, reader *r) {
    const json_t *content = json_object_get(block, "content");
    if (json_is_string(content)) {
        json_t *part = json_object();
        qn_json_put(&part, "type", json_string("text"));
        qn_json_put(&part, "text", qn_value_share(content));
        QN_TRY(push(parts, part, r->p));
    } else if (content && !json_is_array(content) && !json_is_null(content)) {
        return QN_REFUSE(r->p, 400, "messages",
                         "%s: the content of a tool_result is neither a text nor a list", r->field);
    }
    QN_TRY(result_parts(parts, content, r));
    return json_is_true(json_object_get(block, "is_error")) ? mark_error(parts, r->p) : QN_OK;
}

static qn_status add_result(reader *r, const json_t *block) {
    const char *id = qn_value_text(block, "tool_use_id");
    json_t *parts = NULL;
    QN_TRY(flush(r));
    const qn_status status = read_result(&parts, block, r);
    if (status) {
        json_decref(parts);
        return status;
    }
    json_t *m = qn_message_make("tool", parts ? parts : json_string(""));
    if (id) qn_json_put(&m, "tool_call_id", json_string(id));
    return push(&r->list, m, r->p);
}

// --- messages ------------------------------------------------------------------------------------

static qn_status add_nothing(reader *r, const json_t *block) {
    (void)r;
    (void)block;
    return QN_OK;
}

static qn_status add_block(reader *r, const json_t *block) {
    // Blocks of a service's own tools say what happened there; the text after them has the gist.
    static const struct {
        const char *type;
        qn_status (*add)(reader *r, const json_t *block);
    } kinds[] = {{"text", add_text},
                 {"image", add_image},
                 {"tool_use", add_call},
                 {"tool_result", add_result},
                 {"thinking", add_thinking},
                 {"redacted_thinking", add_nothing},
                 {"server_tool_use", add_nothing},
                 {"web_search_tool_result", add_nothing},
                 {"web_fetch_tool_result", add_nothing},
                 {"tool_search_tool_result", add_nothing}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (is_type(block, kinds[i].type)) return kinds[i].add(r, block);
    }
    return refuse_block(r, block);
}

static qn_status add_message(reader *r, const json_t *message, size_t i) {
    const json_t *content = json_object_get(message, "content");
    const size_t n_before = json_array_size(r->list);
    r->role = qn_value_text(message, "role");
    snprintf(r->field, sizeof r->field, "messages[%zu]", i);
    if (!r->role) return QN_REFUSE(r->p, 400, "messages", "%s has no role", r->field);
    if (json_is_string(content))
        return push(&r->list, qn_message_make(r->role, qn_value_share(content)), r->p);
    if (!json_is_array(content))
        return QN_REFUSE(r->p, 400, "messages",
                         "the content of %s is neither a text nor a list of blocks", r->field);
    for (size_t k = 0; k < json_array_size(content); k++) {
        snprintf(r->field, sizeof r->field, "messages[%zu].content[%zu]", i, k);
        QN_TRY(add_block(r, json_array_get(content, k)));
    }
    QN_TRY(flush(r));
    if (json_array_size(r->list) > n_before) return QN_OK;
    return push(&r->list, qn_message_make(r->role, json_string("")), r->p);
}

static qn_status read_messages(qn_ask *ask, qn_problem *p) {
    reader r = {.p = p};
    json_t *system = NULL;
    if (json_array_size(ask->messages) == 0)
        return QN_REFUSE(p, 400, "messages", "'messages' is missing or empty");
    qn_status status = read_system(&system, ask->system, p);
    if (!status && system) status = push(&r.list, system, p);
    for (size_t i = 0; i < json_array_size(ask->messages) && !status; i++)
        status = add_message(&r, json_array_get(ask->messages, i), i);
    if (!status) status = qn_ask_set_messages(ask, r.list, p);
    deinit_reader(&r);
    return status;
}

// --- tools ---------------------------------------------------------------------------------------

// Tools that a service has built in have a type of their own; they are left out.
static bool is_own_tool(const json_t *tool) {
    return !json_object_get(tool, "type") || is_type(tool, "custom");
}

static qn_status make_tool(json_t **out, const json_t *tool, size_t i, qn_problem *p) {
    const char *name = qn_value_text(tool, "name");
    const json_t *schema = json_object_get(tool, "input_schema");
    const json_t *description = json_object_get(tool, "description");
    if (!name || !*name) return QN_REFUSE(p, 400, "tools", "tools[%zu] has no name", i);
    if (schema && !json_is_object(schema))
        return QN_REFUSE(p, 400, "tools", "the input_schema of tools[%zu] is not an object", i);
    json_t *o = json_object(), *function = json_object(), *any = NULL;
    if (!schema) {
        any = json_object();
        qn_json_put(&any, "type", json_string("object"));
    }
    qn_json_put(&function, "name", json_string(name));
    if (json_is_string(description))
        qn_json_put(&function, "description", qn_value_share(description));
    qn_json_put(&function, "parameters", schema ? qn_value_share(schema) : any);
    qn_json_put(&o, "type", json_string("function"));
    qn_json_put(&o, "function", function);
    *out = o;
    return o ? QN_OK : qn_problem_memory(p, "tools");
}

static qn_status read_tools(qn_ask *ask, qn_problem *p) {
    json_t *list = NULL;
    qn_status status = QN_OK;
    for (size_t i = 0; i < json_array_size(ask->tools) && !status; i++) {
        const json_t *tool = json_array_get(ask->tools, i);
        json_t *made = NULL;
        if (!json_is_object(tool))
            status = QN_REFUSE(p, 400, "tools", "tools[%zu] is not an object", i);
        else if (is_own_tool(tool))
            status = make_tool(&made, tool, i, p);
        if (!status && made) status = push(&list, made, p);
    }
    if (status) {
        json_decref(list);
        return status;
    }
    ask->tools = list ? qn_ask_keep(ask, list) : NULL;
    return list && !ask->tools ? qn_problem_memory(p, "tools") : QN_OK;
}

static qn_status read_tool_choice(qn_ask *ask, qn_problem *p) {
    static const struct {
        const char *word;
        qn_tool_choice choice;
    } words[] = {{"auto", QN_TOOLS_AUTO},
                 {"any", QN_TOOLS_REQUIRED},
                 {"tool", QN_TOOLS_REQUIRED},
                 {"none", QN_TOOLS_NONE}};
    const json_t *c = ask->tool_choice;
    const char *type = json_is_string(c) ? json_string_value(c) : qn_value_text(c, "type");
    const char *name = qn_value_text(c, "name");
    ask->choice = QN_TOOLS_AUTO;
    if (!c) return QN_OK;
    if (json_is_true(json_object_get(c, "disable_parallel_tool_use"))) ask->parallel_calls = false;
    for (size_t i = 0; type && i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, type) != 0) continue;
        ask->choice = words[i].choice;
        if (strcmp(type, "tool") == 0 && !name)
            return QN_REFUSE(p, 400, "tool_choice", "'tool_choice' is a tool without a name");
        if (strcmp(type, "tool") == 0) ask->tool_name = name;
        if (ask->choice == QN_TOOLS_REQUIRED && !ask->tools)
            return QN_REFUSE(p, 400, "tool_choice",
                             "'tool_choice' wants a call, but there are no tools");
        return qn_ask_check_tool(ask, p);
    }
    return QN_REFUSE(p, 400, "tool_choice",
                     "'tool_choice' is of type '%.40s', want auto, any, tool or none",
                     type ? type : "");
}

// --- the rest ------------------------------------------------------------------------------------

static qn_status read_thinking(qn_ask *ask, qn_problem *p) {
    static const struct {
        const char *word;
        qn_reasoning thinks;
    } words[] = {{"enabled", QN_REASONING_ON},
                 {"disabled", QN_REASONING_OFF},
                 {"adaptive", QN_REASONING_AUTO}};
    const char *type = qn_value_text(ask->thinking, "type");
    if (!ask->thinking) return QN_OK;
    for (size_t i = 0; type && i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, type) != 0) continue;
        ask->thinks = words[i].thinks;
        return QN_OK;
    }
    return QN_REFUSE(p, 400, "thinking",
                     "'thinking' is of type '%.40s', want enabled, disabled or adaptive",
                     type ? type : "");
}

qn_status qn_anthropic_prepare_count(qn_ask *ask, qn_problem *p) {
    const json_t *format = json_object_get(ask->output_config, "format");
    const json_t *effort = json_object_get(ask->output_config, "effort");
    if (format && !json_is_null(format)) ask->response_format = format;
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return QN_REFUSE(p, 400, "output_config", "'output_config.effort' is not a string");
    QN_TRY(read_tools(ask, p));
    QN_TRY(read_tool_choice(ask, p));
    QN_TRY(read_thinking(ask, p));
    if (!ask->thinking) // effort alone does not turn thinking on where it was turned off
        QN_TRY(qn_ask_set_effort(ask, json_string_value(effort), "output_config.effort", p));
    return read_messages(ask, p);
}

qn_status qn_anthropic_prepare(qn_ask *ask, qn_problem *p) {
    if (!QN_GIVEN(ask, max_tokens))
        return QN_REFUSE(p, 400, "max_tokens", "the request has no 'max_tokens'");
    return qn_anthropic_prepare_count(ask, p);
}
