#include "core/json.h"

#include "core/json_reader.h"
#include "core/utf8.h"

#include <math.h>
#include <string.h>

// --- reading -------------------------------------------------------------------------------------

typedef struct parser {
    qn_json_reader reader;
    const qn_json_opts *opts;
    int depth, max_depth;
    size_t max_memory, memory; // that values may take, and what they took so far
    qn_buf decoded;            // of the string at hand, if it has escapes
} parser;

// What jansson allocates for each, with malloc's own share, on a 64-bit machine; an entry is that
// of a list or an object, whose tables grow by doubling.
enum {
    OBJECT_BYTES = 240,
    LIST_BYTES = 128,
    STRING_BYTES = 80,
    NUMBER_BYTES = 32,
    ELEMENT_BYTES = 16,
    MEMBER_BYTES = 112,
};

static qn_status no_memory(const parser *p, qn_err *err) { return QN_NOMEM(err, p->opts->what); }

// The text without its escapes: borrowed, until the next one.
static qn_status decode(qn_str *out, parser *p, qn_json_text text, qn_err *err) {
    *out = text.raw;
    if (text.size == text.raw.size) return QN_OK; // each escape is longer than what it stands for
    qn_buf_clear(&p->decoded);
    qn_buf_reserve(&p->decoded, text.size);
    if (p->decoded.failed) return no_memory(p, err);
    qn_json_decode(p->decoded.data, text);
    *out = (qn_str){p->decoded.data, text.size};
    return QN_OK;
}

static qn_status spend(parser *p, size_t bytes, qn_err *err) {
    if (bytes > p->max_memory - p->memory) return qn_json_too_large(&p->reader, p->max_memory, err);
    p->memory += bytes;
    return QN_OK;
}

static qn_status parse_value(json_t **out, parser *p, qn_err *err);

// *value is taken in every case. `at` is where the name begins.
static qn_status add_member(json_t *object, parser *p, qn_json_text name, size_t at, json_t *value,
                            qn_err *err) {
    qn_str key;
    const size_t n = json_object_size(object);
    qn_status status = decode(&key, p, name, err);
    if (status) {
        json_decref(value);
        return status;
    }
    if (memchr(key.data, 0, key.size)) {
        json_decref(value);
        return qn_json_wrong(&p->reader, at, err, "a NUL character in a name");
    }
    if (json_object_setn_new_nocheck(object, key.data, key.size, value) != 0)
        return no_memory(p, err);
    if (json_object_size(object) == n)
        return qn_json_wrong(&p->reader, at, err, "duplicate name \"%.*s\"",
                             (int)(key.size < 80 ? key.size : 80), key.data);
    return QN_OK;
}

static qn_status parse_members(json_t *object, parser *p, qn_err *err) {
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        json_t *value = NULL;
        QN_TRY(qn_json_member(&name, &more, &p->reader, first, err));
        if (!more) return QN_OK;
        QN_TRY(spend(p, MEMBER_BYTES + name.size, err));
        QN_TRY(parse_value(&value, p, err));
        const size_t at = (size_t)(name.raw.data - p->reader.text) - 1;
        QN_TRY(add_member(object, p, name, at, value, err));
    }
}

static qn_status parse_elements(json_t *list, parser *p, qn_err *err) {
    for (bool more, first = true;; first = false) {
        json_t *value = NULL;
        QN_TRY(qn_json_element(&more, &p->reader, first, err));
        if (!more) return QN_OK;
        QN_TRY(spend(p, ELEMENT_BYTES, err));
        QN_TRY(parse_value(&value, p, err));
        if (json_array_append_new(list, value) != 0) return no_memory(p, err);
    }
}

static qn_status parse_container(json_t **out, parser *p, bool is_object, qn_err *err) {
    if (p->depth == p->max_depth) return qn_json_too_deep(&p->reader, p->max_depth, err);
    QN_TRY(spend(p, is_object ? OBJECT_BYTES : LIST_BYTES, err));
    json_t *json = is_object ? json_object() : json_array();
    if (!json) return no_memory(p, err);
    p->depth++;
    const qn_status status = is_object ? parse_members(json, p, err) : parse_elements(json, p, err);
    p->depth--;
    if (status)
        json_decref(json);
    else
        *out = json;
    return status;
}

static qn_status make_scalar(json_t **out, parser *p, const qn_json_value *value, qn_err *err) {
    json_t *json = NULL;
    qn_str text;
    const bool is_real = value->kind == QN_JSON_REAL || p->opts->ints_as_real;
    switch (value->kind) {
    case QN_JSON_STRING:
        QN_TRY(spend(p, STRING_BYTES + value->text.size, err));
        QN_TRY(decode(&text, p, value->text, err));
        json = json_stringn_nocheck(text.data, text.size);
        break;
    case QN_JSON_INT:
    case QN_JSON_REAL:
        if (value->kind == QN_JSON_REAL && value->is_whole && !p->opts->ints_as_real)
            return qn_json_wrong(&p->reader, value->at, err, "a whole number beyond 64 bits");
        QN_TRY(spend(p, NUMBER_BYTES, err));
        json = is_real ? json_real(value->f) : json_integer(value->i);
        break;
    case QN_JSON_BOOL:
        json = json_boolean(value->b);
        break;
    default:
        json = json_null();
    }
    if (!json) return no_memory(p, err);
    *out = json;
    return QN_OK;
}

static bool is_container(const qn_json_value *value) {
    return value->kind == QN_JSON_OBJECT || value->kind == QN_JSON_ARRAY;
}

static qn_status build(json_t **out, parser *p, const qn_json_value *value, qn_err *err) {
    return is_container(value) ? parse_container(out, p, value->kind == QN_JSON_OBJECT, err)
                               : make_scalar(out, p, value, err);
}

static qn_status parse_value(json_t **out, parser *p, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &p->reader, err));
    return build(out, p, &value, err);
}

static qn_status parse_root(json_t **out, parser *p, qn_err *err) {
    json_t *json = NULL;
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &p->reader, err));
    if (!p->opts->any && !is_container(&value))
        return qn_json_wrong(&p->reader, value.at, err, "want an object or a list");
    QN_TRY(build(&json, p, &value, err));
    const qn_status status = p->opts->used ? QN_OK : qn_json_end(&p->reader, err);
    if (status)
        json_decref(json);
    else
        *out = json;
    return status;
}

qn_status qn_json_parse_as(json_t **out, const char *text, size_t size, const qn_json_opts *opts,
                           qn_err *err) {
    parser p = {
        .reader = {.text = text, .size = size, .what = opts->what, .takes_nul = opts->takes_nul},
        .opts = opts,
        .max_depth = opts->depth ? opts->depth : QN_JSON_DEPTH,
        .max_memory = opts->memory ? opts->memory : QN_JSON_MEMORY,
    };
    const qn_status status = parse_root(out, &p, err);
    if (!status && opts->used) *opts->used = p.reader.at;
    qn_buf_deinit(&p.decoded);
    return status;
}

qn_status qn_json_parse(json_t **out, const char *text, size_t size, bool ints_as_real,
                        const char *what, qn_err *err) {
    const qn_json_opts opts = {.what = what, .ints_as_real = ints_as_real};
    return qn_json_parse_as(out, text, size, &opts, err);
}

// --- making --------------------------------------------------------------------------------------

static void drop(json_t **to) {
    json_decref(*to);
    *to = NULL;
}

void qn_json_push(json_t **list, json_t *value) {
    if (json_array_append_new(*list, value) != 0) drop(list);
}

void qn_json_put(json_t **object, const char *name, json_t *value) {
    if (json_object_set_new_nocheck(*object, name, value) != 0) drop(object);
}

json_t *qn_json_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *qn_json_string(const char *text, size_t size) {
    qn_buf good = {0};
    for (size_t i = 0; i < size;) {
        const size_t length = qn_utf8_check(text + i, size - i);
        if (length)
            qn_buf_add(&good, text + i, length);
        else
            qn_buf_text(&good, "\xef\xbf\xbd");
        i += length ? length : 1;
    }
    json_t *string =
        good.failed ? NULL : json_stringn_nocheck(good.data ? good.data : "", good.size);
    qn_buf_deinit(&good);
    return string;
}
