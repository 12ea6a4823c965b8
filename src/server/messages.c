#include "server/messages.h"

#include "server/ask.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

// What is known while messages are read, one after the other.
typedef struct reader {
    size_t i;       // number of the message
    json_t *names;  // owned: {id of a call: name of its tool}
    json_t *images; // owned: parts that came in answers of tools; NULL: none wait
    char field[64]; // "messages[3].content", for errors
    qn_problem *p;
} reader;

static const char *field_of(reader *r, const char *name) {
    snprintf(r->field, sizeof r->field, "messages[%zu].%s", r->i, name);
    return r->field;
}

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return value ? names[json_typeof(value)] : "missing";
}

static qn_status refuse_kind(reader *r, const char *name, const json_t *value, const char *want) {
    const char *field = field_of(r, name);
    return QN_REFUSE(r->p, 400, field, "%s is %s, want %s", field, kind_of(value), want);
}

static qn_status no_memory(qn_problem *p) {
    return qn_problem_take(p, QN_NOMEM(&p->err, "messages"), "messages");
}

// A status for a value that NULL, a failed allocation, may have come to.
static qn_status check(const json_t *value, qn_problem *p) { return value ? QN_OK : no_memory(p); }

static bool has_text(const json_t *value) { return value && json_string_length(value) > 0; }

json_t *qn_value_share(const json_t *value) { return json_incref((json_t *)(uintptr_t)value); }

const char *qn_value_text(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

json_t *qn_message_make(const char *role, json_t *content) {
    json_t *m = json_object();
    qn_json_put(&m, "role", json_string(role));
    qn_json_put(&m, "content", content);
    return m;
}

// --- content -------------------------------------------------------------------------------------

qn_status qn_image_url_check(const char *url, const char *field, qn_problem *p) {
    if (!url) return QN_REFUSE(p, 400, field, "%s: an image has no url", field);
    static const char *const schemes[] = {"data:", "http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        if (strncasecmp(url, schemes[i], strlen(schemes[i])) == 0) return QN_OK;
    }
    return QN_REFUSE(p, 400, field,
                     "%s: the image is at '%.60s', but only data: URLs are read; --image-urls "
                     "allows some hosts",
                     field, url);
}

// {"type": "image_url", "image_url": {"url"}} of a part whose "image_url" is an object or a text.
static qn_status read_image(json_t **out, const json_t *part, reader *r) {
    const json_t *image = json_object_get(part, "image_url");
    const json_t *url = json_is_object(image) ? json_object_get(image, "url") : image;
    QN_TRY(qn_image_url_check(json_string_value(url), field_of(r, "content"), r->p));
    json_t *o = json_object(), *inner = json_object();
    qn_json_put(&inner, "url", qn_value_share(url));
    qn_json_put(&o, "type", json_string("image_url"));
    qn_json_put(&o, "image_url", inner);
    *out = o;
    return check(o, r->p);
}

static qn_status read_text(json_t **out, const json_t *text, reader *r) {
    if (!json_is_string(text)) return refuse_kind(r, "content", text, "a text in each text part");
    json_t *o = json_object();
    qn_json_put(&o, "type", json_string("text"));
    qn_json_put(&o, "text", qn_value_share(text));
    *out = o;
    return check(o, r->p);
}

static qn_status read_part(json_t **out, const json_t *part, reader *r) {
    static const struct {
        const char *type, *member; // member NULL: an image
    } types[] = {{"text", "text"},       {"input_text", "text"}, {"output_text", "text"},
                 {"refusal", "refusal"}, {"image_url", NULL},    {"input_image", NULL}};
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part)) return read_text(out, part, r);
    if (!json_is_object(part)) return refuse_kind(r, "content", part, "an object for each part");
    const char *field = field_of(r, "content");
    if (!type) return QN_REFUSE(r->p, 400, field, "%s: a part has no type", field);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].type, type) != 0) continue;
        return types[i].member ? read_text(out, json_object_get(part, types[i].member), r)
                               : read_image(out, part, r);
    }
    return QN_REFUSE(r->p, 400, field,
                     "%s: a part is of type '%.40s', want text or image_url: nothing else is read",
                     field, type);
}

// Parts that are all texts, as one.
static json_t *join(const json_t *parts) {
    qn_buf text = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_object_get(json_array_get(parts, i), "text");
        if (i) qn_buf_text(&text, "\n");
        qn_buf_add(&text, json_string_value(part), json_string_length(part));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.size);
    qn_buf_deinit(&text);
    return joined;
}

static qn_status read_parts(json_t **out, const json_t *content, reader *r) {
    json_t *list = json_array();
    bool has_image = false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = NULL;
        const qn_status status = read_part(&part, json_array_get(content, i), r);
        if (status) {
            json_decref(list);
            return status;
        }
        has_image |= json_object_get(part, "image_url") != NULL;
        qn_json_push(&list, part);
    }
    if (!list) return no_memory(r->p);
    if (has_image) {
        *out = list;
        return QN_OK;
    }
    *out = join(list);
    json_decref(list);
    return check(*out, r->p);
}

static qn_status set_content(json_t **message, const json_t *content, bool has_calls, reader *r) {
    json_t *made = NULL;
    const bool is_empty = !content || json_is_null(content) ||
                          (json_is_string(content) && !json_string_length(content));
    if (is_empty)
        made = has_calls ? json_null() : json_string("");
    else if (json_is_string(content))
        made = qn_value_share(content);
    else if (json_is_array(content))
        QN_TRY(read_parts(&made, content, r));
    else
        return refuse_kind(r, "content", content, "a string, null or a list of parts");
    qn_json_put(message, "content", made);
    return QN_OK;
}

// --- calls ---------------------------------------------------------------------------------------

// The object whose text it is; anything else stays as it is: the model may have written nonsense,
// and the template puts it back as it was.
static qn_status read_arguments(json_t **out, const json_t *given, reader *r) {
    enum { SHARE = 16 }; // a text's values may take that many times its own memory
    const size_t size = json_string_length(given);
    const char *text = json_string_value(given);
    if (!given || json_is_null(given) || (text && size == 0)) {
        *out = json_object();
        return check(*out, r->p);
    }
    json_t *parsed = NULL;
    const qn_json_opts opts = {.what = "arguments",
                               .any = true,
                               .depth = QN_JSON_CALL_DEPTH,
                               .memory = SHARE * size + 4096};
    qn_err err;
    const qn_status status = text ? qn_json_parse_as(&parsed, text, size, &opts, &err) : QN_OK;
    if (status == QN_MEMORY) return no_memory(r->p);
    if (status || !json_is_object(parsed)) {
        json_decref(parsed);
        parsed = qn_value_share(given);
    }
    *out = parsed;
    return QN_OK;
}

// A call in OpenAI's form; one without "function" has its members in the call itself.
static qn_status read_call(json_t **out, const json_t *call, reader *r) {
    const json_t *function = json_object_get(call, "function");
    if (!json_is_object(call)) return refuse_kind(r, "tool_calls", call, "objects");
    if (!function) function = call;
    const json_t *id = json_object_get(call, "id"), *name = json_object_get(function, "name");
    if (!has_text(name)) return refuse_kind(r, "tool_calls.function.name", name, "a name");
    json_t *arguments = NULL, *o = json_object(), *inner = json_object();
    const qn_status status = read_arguments(&arguments, json_object_get(function, "arguments"), r);
    qn_json_put(&inner, "name", qn_value_share(name));
    if (!status) qn_json_put(&inner, "arguments", arguments);
    if (json_is_string(id)) {
        qn_json_put(&o, "id", qn_value_share(id));
        qn_json_put(&r->names, json_string_value(id), qn_value_share(name));
    }
    qn_json_put(&o, "type", json_string("function"));
    qn_json_put(&o, "function", inner);
    if (status || !r->names) {
        json_decref(o);
        return status ? status : no_memory(r->p);
    }
    *out = o;
    return check(o, r->p);
}

// The calls of an answer, or NULL; the old form has one, in "function_call".
static qn_status read_calls(json_t **out, const json_t *message, reader *r) {
    const json_t *given = json_object_get(message, "tool_calls");
    const json_t *old = json_object_get(message, "function_call");
    const bool is_old = json_is_object(old) && !json_array_size(given);
    if (given && !json_is_null(given) && !json_is_array(given))
        return refuse_kind(r, "tool_calls", given, "a list");
    const size_t n = is_old ? 1 : json_array_size(given);
    json_t *list = n ? json_array() : NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *call = NULL;
        const qn_status status = read_call(&call, is_old ? old : json_array_get(given, i), r);
        if (status) {
            json_decref(list);
            return status;
        }
        qn_json_push(&list, call);
    }
    *out = list;
    return n ? check(list, r->p) : QN_OK;
}

// --- messages ------------------------------------------------------------------------------------

static const char *role_of(const json_t *message) {
    return json_string_value(json_object_get(message, "role"));
}

static bool is_role(const json_t *message, const char *role) {
    const char *own = role_of(message);
    return own && strcmp(own, role) == 0;
}

// The role that templates know it by.
static const char *plain_role(const json_t *message) {
    static const char *const others[][2] = {{"developer", "system"}, {"function", "tool"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (is_role(message, others[i][0])) return others[i][1];
    }
    return role_of(message);
}

// The first name that has a text; clients repeat what servers sent them.
static json_t *find_reasoning(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(message, names[i]);
        if (has_text(value)) return value;
    }
    return NULL;
}

// Members that have no other meaning here, for templates that know more.
static void copy_others(json_t **to, const json_t *message) {
    static const char *const own[] = {"role",          "content",   "tool_calls",
                                      "function_call", "reasoning", "reasoning_content",
                                      "thinking"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, name, value) {
        bool is_own = json_is_null(value);
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) is_own |= !strcmp(own[i], name);
        if (!is_own) qn_json_put(to, name, json_incref(value));
    }
}

static void set_tool_name(json_t **to, const json_t *message, const reader *r) {
    const char *id = json_string_value(json_object_get(message, "tool_call_id"));
    json_t *name = id ? json_object_get(r->names, id) : NULL;
    if (name && is_role(*to, "tool") && !json_object_get(*to, "name"))
        qn_json_put(to, "name", json_incref(name));
}

static qn_status read_message(json_t **out, const json_t *message, reader *r) {
    json_t *calls = NULL;
    const char *role = plain_role(message);
    if (!role) return refuse_kind(r, "role", json_object_get(message, "role"), "a string");
    json_t *made = json_object(), *reasoning = find_reasoning(message);
    qn_json_put(&made, "role", json_string(role));
    qn_status status = read_calls(&calls, message, r);
    if (!status) status = set_content(&made, json_object_get(message, "content"), calls != NULL, r);
    if (status) {
        json_decref(made);
        json_decref(calls);
        return status;
    }
    if (reasoning) qn_json_put(&made, "reasoning_content", json_incref(reasoning));
    if (calls) qn_json_put(&made, "tool_calls", calls);
    copy_others(&made, message);
    set_tool_name(&made, message, r);
    *out = made;
    return check(made, r->p);
}

// Few templates know images in answers of tools: the user shows them, after these answers.
static qn_status take_images(json_t **message, reader *r) {
    const json_t *content = json_object_get(*message, "content");
    if (!json_is_array(content) || !is_role(*message, "tool")) return QN_OK;
    json_t *texts = json_array();
    if (!r->images) r->images = json_array();
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        json_t **to = json_object_get(part, "image_url") ? &r->images : &texts;
        qn_json_push(to, json_incref(part));
    }
    qn_json_put(message, "content", texts ? join(texts) : NULL);
    json_decref(texts);
    return *message && r->images ? QN_OK : no_memory(r->p);
}

// Puts the images that wait before what the user says next, or into a message of their own.
static qn_status give_images(json_t **list, json_t *next, reader *r) {
    json_t *content = json_object_get(next, "content"), *parts = r->images;
    if (!parts || is_role(next, "tool")) return QN_OK;
    r->images = NULL;
    if (!is_role(next, "user")) {
        qn_json_push(list, qn_message_make("user", parts));
        return check(*list, r->p);
    }
    if (has_text(content)) {
        json_t *text = json_object();
        qn_json_put(&text, "type", json_string("text"));
        qn_json_put(&text, "text", json_incref(content));
        qn_json_push(&parts, text);
    }
    for (size_t i = 0; i < json_array_size(content); i++)
        qn_json_push(&parts, json_incref(json_array_get(content, i)));
    if (!parts || json_object_set_new(next, "content", parts) != 0) return no_memory(r->p);
    return QN_OK;
}

static bool is_plain_system(const json_t *message) {
    return is_role(message, "system") && json_is_string(json_object_get(message, "content"));
}

// Many templates want one system message: leading ones become one.
static void merge_systems(json_t **list) {
    size_t n = 0;
    while (is_plain_system(json_array_get(*list, n))) n++;
    if (n < 2) return;
    qn_buf text = {0};
    for (size_t i = 0; i < n; i++) {
        const json_t *own = json_object_get(json_array_get(*list, i), "content");
        if (text.size && has_text(own)) qn_buf_text(&text, "\n\n");
        qn_buf_add(&text, json_string_value(own), json_string_length(own));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.size);
    qn_buf_deinit(&text);
    json_t *merged = json_array(), *old = *list;
    qn_json_push(&merged, qn_message_make("system", joined));
    for (size_t i = n; i < json_array_size(old); i++)
        qn_json_push(&merged, json_incref(json_array_get(old, i)));
    json_decref(old);
    *list = merged;
}

static qn_status read_all(json_t **list, const json_t *messages, reader *r) {
    for (r->i = 0; r->i < json_array_size(messages); r->i++) {
        json_t *made = NULL;
        QN_TRY(read_message(&made, json_array_get(messages, r->i), r));
        qn_status status = take_images(&made, r);
        if (!status) status = give_images(list, made, r);
        qn_json_push(list, made);
        QN_TRY(status);
    }
    QN_TRY(give_images(list, NULL, r));
    merge_systems(list);
    return check(*list, r->p);
}

qn_status qn_messages_normalise(json_t **out, const json_t *messages, qn_problem *problem) {
    if (!json_is_array(messages))
        return QN_REFUSE(problem, 400, "messages", "'messages' is %s, want a list",
                         kind_of(messages));
    reader r = {.names = json_object(), .p = problem};
    json_t *list = r.names ? json_array() : NULL;
    const qn_status status = list ? read_all(&list, messages, &r) : no_memory(problem);
    json_decref(r.names);
    json_decref(r.images);
    if (status) {
        json_decref(list);
        return status;
    }
    *out = list;
    return QN_OK;
}

qn_status qn_ask_set_messages(qn_ask *ask, const json_t *messages, qn_problem *problem) {
    json_t *made = NULL;
    QN_TRY(qn_messages_normalise(&made, messages, problem));
    const json_t *kept = qn_ask_keep(ask, made);
    if (!kept) return no_memory(problem);
    ask->messages = kept;
    return QN_OK;
}

// --- templates that want less --------------------------------------------------------------------

// jansson's own copy leaves out what finds no memory.
static json_t *copy_message(json_t *message) {
    const char *name;
    json_t *value, *made = json_object();
    json_object_foreach(message, name, value) qn_json_put(&made, name, json_incref(value));
    return made;
}

qn_status qn_messages_relax(json_t **out, const json_t *messages, qn_err *err) {
    bool is_changed = false;
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *made = copy_message(json_array_get(messages, i));
        if (json_is_null(json_object_get(made, "content"))) {
            qn_json_put(&made, "content", json_string(""));
            is_changed = true;
        }
        if (i && is_role(made, "system")) {
            qn_json_put(&made, "role", json_string("user"));
            is_changed = true;
        }
        qn_json_push(&list, made);
    }
    if (!list) return QN_NOMEM(err, "messages");
    if (!is_changed) {
        json_decref(list);
        list = NULL;
    }
    *out = list;
    return QN_OK;
}
