#include "chat/parts.h"

#include "core/chars.h"
#include "core/json.h"
#include "core/utf8.h"

static qn_str strip(qn_str s) {
    while (s.size && qn_is_blank(s.data[0])) s = (qn_str){s.data + 1, s.size - 1};
    while (s.size && qn_is_blank(s.data[s.size - 1])) s.size--;
    return s;
}

static bool begins(qn_str s, const char *text) {
    const size_t n = strlen(text);
    return s.size >= n && memcmp(s.data, text, n) == 0;
}

static qn_str after(qn_str s, size_t n) { return (qn_str){s.data + n, s.size - n}; }

// Where `text` begins in `s`; s.size if nowhere.
static size_t find(qn_str s, const char *text) {
    for (size_t i = 0; i < s.size; i++) {
        if (s.data[i] == *text && begins(after(s, i), text)) return i;
    }
    return s.size;
}

// --- a call --------------------------------------------------------------------------------------

static const char what[] = "a tool call";

// As few digits as give back the same numbers; *out is owned (qn_free).
static qn_status print_short(char **out, const json_t *value, qn_err *err) {
    enum { MIN = 15, MAX = 17 };
    for (int digits = MIN;; digits++) {
        char *text = NULL;
        json_t *again = NULL;
        const qn_json_form form = {.compact = true, .digits = digits};
        QN_TRY(qn_json_print(&text, value, &form, what, err));
        const qn_status status = qn_json_parse(&again, text, strlen(text), false, what, err);
        const bool is_same = !status && json_equal(value, again);
        json_decref(again);
        if (!status && (is_same || digits == MAX)) {
            *out = text;
            return QN_OK;
        }
        qn_free(text);
        // A number whose first digits are beyond a double is one that more digits bring back.
        if (status == QN_MEMORY || digits == MAX) return status;
    }
}

static qn_status add_call(json_t *calls, const json_t *name, const json_t *arguments, qn_err *err) {
    char *text = NULL;
    QN_TRY(print_short(&text, arguments, err));
    json_t *call = json_pack("[s, s]", json_string_value(name), text);
    qn_free(text);
    return json_array_append_new(calls, call) == 0 ? QN_OK : QN_NOMEM(err, what);
}

// The value that a text begins with, and its size; NULL and 0 if there is none.
static qn_status read_value(json_t **out, size_t *size, qn_str text, qn_err *err) {
    const qn_json_opts opts = {
        .what = what, .any = true, .depth = QN_JSON_CALL_DEPTH, .used = size};
    *out = NULL;
    *size = 0;
    const qn_status status = qn_json_parse_as(out, text.data, text.size, &opts, err);
    return status == QN_MEMORY ? status : QN_OK;
}

// UTF-8 without NUL, which is what the reader of the arguments will take.
static bool is_text(qn_str s) {
    return s.size == 0 || (qn_utf8_valid(s.data, s.size) && !memchr(s.data, 0, s.size));
}

// NULL if it is not text.
static qn_status make_string(json_t **out, qn_str s, qn_err *err) {
    *out = is_text(s) ? json_stringn_nocheck(s.data, s.size) : NULL;
    return *out || !is_text(s) ? QN_OK : QN_NOMEM(err, what);
}

qn_status qn_calls_print(char **out, qn_str arguments, qn_err *err) {
    size_t size;
    json_t *value;
    *out = NULL;
    QN_TRY(read_value(&value, &size, arguments, err));
    const bool is_whole = json_is_object(value) && size == arguments.size;
    const qn_status status = is_whole ? print_short(out, value, err) : QN_OK;
    json_decref(value);
    return status;
}

// --- JSON ----------------------------------------------------------------------------------------

// Arguments may be an object, or a text with one in it.
static qn_status add_named(json_t *calls, bool *is_call, const json_t *name,
                           const json_t *arguments, qn_err *err) {
    qn_status status = QN_OK;
    *is_call = false;
    if (json_string_length(name) == 0) return QN_OK;
    json_t *read = NULL;
    if (json_is_string(arguments)) {
        const qn_str text = {json_string_value(arguments), json_string_length(arguments)};
        size_t size;
        QN_TRY(read_value(&read, &size, text, err));
        arguments = read && strip(after(text, size)).size == 0 ? read : NULL;
    }
    *is_call = json_is_object(arguments);
    if (*is_call && !status) status = add_call(calls, name, arguments, err);
    json_decref(read);
    return status;
}

static const json_t *find_arguments(const json_t *call) {
    const json_t *arguments = json_object_get(call, "arguments");
    return arguments ? arguments : json_object_get(call, "parameters");
}

static qn_status add_object(json_t *calls, bool *is_call, const json_t *item, bool needs_arguments,
                            qn_err *err) {
    const json_t *function = json_object_get(item, "function");
    if (json_is_object(function)) item = function;
    const json_t *name = json_object_get(item, "name");
    if (!name && json_is_string(function)) name = function;
    const json_t *arguments = find_arguments(item);
    if (arguments || needs_arguments || !name)
        return add_named(calls, is_call, name, arguments, err);
    json_t *none = json_object();
    const qn_status status =
        none ? add_named(calls, is_call, name, none, err) : QN_NOMEM(err, what);
    json_decref(none);
    return status;
}

static qn_status add_value(json_t *calls, bool *is_call, const json_t *value, bool needs_arguments,
                           qn_err *err) {
    if (!json_is_array(value)) return add_object(calls, is_call, value, needs_arguments, err);
    *is_call = json_array_size(value) > 0;
    for (size_t i = 0; i < json_array_size(value) && *is_call; i++)
        QN_TRY(add_object(calls, is_call, json_array_get(value, i), needs_arguments, err));
    return QN_OK;
}

// Several values follow one another, with blanks, commas or semicolons between them.
static qn_status read_json(json_t *calls, bool *is_call, qn_str text, bool needs_arguments,
                           qn_err *err) {
    qn_status status = QN_OK;
    text = strip(text);
    *is_call = begins(text, "{") || begins(text, "[");
    while (*is_call && text.size && !status) {
        size_t size;
        json_t *value;
        QN_TRY(read_value(&value, &size, text, err));
        *is_call = value != NULL;
        if (value) status = add_value(calls, is_call, value, needs_arguments, err);
        json_decref(value);
        text = strip(after(text, size));
        if (begins(text, ";") || begins(text, ",")) text = strip(after(text, 1));
    }
    return status;
}

qn_status qn_calls_bare(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    return read_json(calls, is_call, text, true, err);
}

// --- XML -----------------------------------------------------------------------------------------

// "NAME>" at the beginning of *text, which is moved past it; empty: there is none.
static qn_str take_name(qn_str *text) {
    const size_t n = find(*text, ">");
    const qn_str name = strip((qn_str){text->data, n});
    if (n == text->size || find(name, "<") < name.size || find(name, "\n") < name.size)
        return (qn_str){"", 0};
    *text = after(*text, n + 1);
    return name;
}

// One newline at each end belongs to the tags.
static qn_str cut_newlines(qn_str s) {
    if (begins(s, "\n")) s = after(s, 1);
    if (s.size && s.data[s.size - 1] == '\n') s.size--;
    return s;
}

// NULL if it is neither JSON nor text.
static qn_status parameter_value(json_t **out, qn_str text, qn_err *err) {
    size_t size;
    json_t *value;
    const qn_str bare = strip(text);
    QN_TRY(read_value(&value, &size, bare, err));
    if (value && size == bare.size && !json_is_string(value)) {
        *out = value;
        return QN_OK;
    }
    json_decref(value);
    return make_string(out, text, err);
}

qn_status qn_calls_print_value(char **out, qn_str text, qn_err *err) {
    json_t *value, *list;
    *out = NULL;
    QN_TRY(parameter_value(&value, text, err));
    if (!value) return QN_OK;
    list = json_pack("[o]", value);
    qn_status status = list ? print_short(out, list, err) : QN_NOMEM(err, what);
    json_decref(list);
    if (status) return status;
    const size_t n = strlen(*out); // without the brackets
    memmove(*out, *out + 1, n - 2);
    (*out)[n - 2] = '\0';
    return QN_OK;
}

// *is_call: the name and the value are such as can be added.
static qn_status add_parameter(json_t *to, bool *is_call, qn_str name, qn_str text, qn_err *err) {
    json_t *value;
    QN_TRY(parameter_value(&value, text, err));
    *is_call = name.size && value && is_text(name);
    if (*is_call) {
        if (json_object_setn_new_nocheck(to, name.data, name.size, value) != 0)
            return QN_NOMEM(err, what);
    } else {
        json_decref(value);
    }
    return QN_OK;
}

// The last value may lack the tag that ends it.
static qn_status read_parameters(json_t *to, bool *is_call, qn_str text, qn_err *err) {
    static const char open[] = "<parameter=", close[] = "</parameter>";
    for (text = strip(text); begins(text, open); text = strip(text)) {
        text = after(text, strlen(open));
        const qn_str name = take_name(&text);
        const size_t size = find(text, close);
        const qn_str value = cut_newlines((qn_str){text.data, size});
        QN_TRY(add_parameter(to, is_call, name, value, err));
        if (!*is_call) return QN_OK;
        text = after(text, size < text.size ? size + strlen(close) : size);
    }
    *is_call = text.size == 0;
    return QN_OK;
}

static qn_status read_function(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    const qn_str name = take_name(&text);
    json_t *name_json;
    QN_TRY(make_string(&name_json, name, err));
    json_t *arguments = json_object();
    *is_call = name.size > 0 && name_json;
    qn_status status = arguments ? QN_OK : QN_NOMEM(err, what);
    if (!status && *is_call) status = read_parameters(arguments, is_call, text, err);
    if (!status && *is_call) status = add_call(calls, name_json, arguments, err);
    json_decref(arguments);
    json_decref(name_json);
    return status;
}

qn_status qn_calls_xml(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    static const char open[] = "<function=", close[] = "</function>";
    text = strip(text);
    *is_call = begins(text, open);
    while (*is_call && text.size) {
        *is_call = begins(text, open);
        if (!*is_call) break;
        text = after(text, strlen(open));
        const size_t size = find(text, close);
        QN_TRY(read_function(calls, is_call, (qn_str){text.data, size}, err));
        text = strip(after(text, size < text.size ? size + strlen(close) : size));
    }
    return QN_OK;
}

// --- forms by tag --------------------------------------------------------------------------------

qn_status qn_calls_tagged(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    const bool is_xml = begins(strip(text), "<function=");
    return is_xml ? qn_calls_xml(calls, is_call, text, err)
                  : read_json(calls, is_call, text, false, err);
}

// NAME[ARGS]{...}; between the two there may be [CALL_ID]ID.
static qn_status read_mistral(json_t *calls, bool *is_call, qn_str *text, qn_err *err) {
    qn_status status = QN_OK;
    const size_t at = find(*text, "[ARGS]");
    const qn_str head = {text->data, at};
    const qn_str name = strip((qn_str){text->data, find(head, "[CALL_ID]")});
    *is_call = false;
    if (at == text->size || find(name, "\n") < name.size) return QN_OK;
    *text = strip(after(*text, at + strlen("[ARGS]")));
    size_t size;
    json_t *arguments, *name_json = NULL;
    QN_TRY(read_value(&arguments, &size, *text, err));
    if (arguments) status = make_string(&name_json, name, err);
    if (name_json) status = add_named(calls, is_call, name_json, arguments, err);
    json_decref(arguments);
    json_decref(name_json);
    *text = strip(after(*text, size));
    if (begins(*text, "[TOOL_CALLS]")) *text = strip(after(*text, strlen("[TOOL_CALLS]")));
    return status;
}

qn_status qn_calls_mistral(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    text = strip(text);
    if (begins(text, "[") || begins(text, "{")) return read_json(calls, is_call, text, false, err);
    *is_call = text.size > 0;
    while (*is_call && text.size) QN_TRY(read_mistral(calls, is_call, &text, err));
    return QN_OK;
}

qn_status qn_calls_python(json_t *calls, bool *is_call, qn_str text, qn_err *err) {
    text = strip(text);
    if (begins(text, "{")) QN_TRY(read_json(calls, is_call, text, false, err));
    if (begins(text, "{") && *is_call) return QN_OK;
    if (json_array_clear(calls) != 0) return QN_NOMEM(err, what);
    *is_call = false;
    json_t *code = NULL;
    if (text.size) QN_TRY(make_string(&code, text, err));
    if (!code) return QN_OK;
    json_t *arguments = json_pack("{s:o}", "code", code), *name = json_string("python");
    *is_call = arguments && name;
    const qn_status status = *is_call ? add_call(calls, name, arguments, err) : QN_NOMEM(err, what);
    json_decref(arguments);
    json_decref(name);
    return status;
}
