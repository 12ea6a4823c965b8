#include "chat/template.h"

#include "chat/clock.h"
#include "chat/chat_text.h"
#include "chat/tree.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/structs.h"

struct qn_template {
    qn_arena arena;
    qn_jinja_tree *tree;
    qn_jinja_val bos, eos; // QN_VAL_ABSENT: none
    bool has_own_ends;
    const char *source; // in the arena
};

qn_status qn_template_create(qn_template **out, const char *text, size_t size, qn_err *err) {
    QN_NEED(out, err);
    if (size) QN_NEED(text, err);
    qn_template *template = qn_alloc(1, sizeof *template);
    if (!template) return QN_NOMEM(err, "template");
    const qn_status status =
        qn_jinja_tree_parse(&template->tree, &template->arena, text ? text : "", size, err);
    if (status) {
        qn_template_destroy(template);
        return qn_err_prefix(err, status, "template");
    }
    template->source = qn_arena_strdup(&template->arena, text ? text : "", size);
    if (!template->source) {
        qn_template_destroy(template);
        return QN_NOMEM(err, "template");
    }
    *out = template;
    return QN_OK;
}

void qn_template_destroy(qn_template *template) {
    if (!template) return;
    qn_arena_deinit(&template->arena);
    qn_free(template);
}

static qn_status set_end(qn_jinja_val *out, qn_template *template, const qn_str *text,
                         qn_err *err) {
    if (!text) return QN_OK;
    const char *copy = qn_arena_strdup(&template->arena, text->data, text->size);
    if (!copy) return QN_NOMEM(err, "template");
    *out = qn_jinja_val_text((qn_str){copy, text->size});
    return QN_OK;
}

qn_status qn_template_set_ends(qn_template *template, const qn_str *bos, const qn_str *eos,
                               qn_err *err) {
    QN_TRY(set_end(&template->bos, template, bos, err));
    return set_end(&template->eos, template, eos, err);
}

void qn_template_own_ends(qn_template *template) { template->has_own_ends = true; }

bool qn_template_has_own_ends(const qn_template *template) { return template->has_own_ends; }

const char *qn_template_text(const qn_template *template) { return template->source; }

bool qn_template_mentions(const qn_template *template, const char *word) {
    return strstr(template->source, word) != NULL;
}

// --- JSON to values ------------------------------------------------------------------------------

static qn_status convert(qn_jinja_val *out, qn_jinja_run *r, json_t *json, qn_err *err);

static qn_status copy_text(qn_jinja_val *out, qn_jinja_run *r, const char *text, size_t size,
                           qn_err *err) {
    char *copy;
    QN_TRY(qn_jinja_alloc(&copy, r, size + 1, 1, err));
    if (size) memcpy(copy, text, size);
    *out = qn_jinja_val_text((qn_str){copy, size});
    return QN_OK;
}

static qn_status convert_object(qn_jinja_val *out, qn_jinja_run *r, json_t *json, qn_err *err) {
    qn_jinja_dict *dict;
    const char *key;
    size_t size;
    json_t *value;
    QN_TRY(qn_jinja_dict_make(&dict, r, json_object_size(json), err));
    *out = (qn_jinja_val){.kind = QN_VAL_DICT, .as.dict = dict};
    json_object_keylen_foreach(json, key, size, value) { // keys are known to differ
        QN_TRY(copy_text(&dict->keys[dict->n], r, key, size, err));
        QN_TRY(convert(&dict->values[dict->n], r, value, err));
        dict->n++;
    }
    return QN_OK;
}

static qn_status convert_array(qn_jinja_val *out, qn_jinja_run *r, json_t *json, qn_err *err) {
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_LIST, json_array_size(json), err));
    for (size_t i = 0; i < json_array_size(json); i++)
        QN_TRY(convert(&out->as.list->items[i], r, json_array_get(json, i), err));
    return QN_OK;
}

static qn_status convert(qn_jinja_val *out, qn_jinja_run *r, json_t *json, qn_err *err) {
    qn_status status = QN_OK;
    QN_TRY(qn_jinja_enter(r, err));
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        status = convert_object(out, r, json, err);
        break;
    case JSON_ARRAY:
        status = convert_array(out, r, json, err);
        break;
    case JSON_STRING:
        status = copy_text(out, r, json_string_value(json), json_string_length(json), err);
        break;
    case JSON_INTEGER:
        *out = qn_jinja_val_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = qn_jinja_val_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = qn_jinja_val_bool(json_is_true(json));
        break;
    case JSON_NULL:
        *out = qn_jinja_val_none();
        break;
    }
    qn_jinja_leave(r);
    return status;
}

// --- the request ---------------------------------------------------------------------------------

typedef enum request_key {
    KEY_MESSAGES,
    KEY_TOOLS,
    KEY_PROMPT,
    KEY_BOS,
    KEY_EOS,
    KEY_NOW,
    KEY_KWARGS,
    N_KEYS
} request_key;

static const char *const key_names[N_KEYS] = {
    "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "now", "kwargs"};

static qn_status read_keys(qn_jinja_val values[N_KEYS], const qn_jinja_val *request, qn_err *err) {
    if (request->kind != QN_VAL_DICT)
        return QN_FAIL(err, ARGUMENT, "request: not a JSON object, want {\"messages\": [...]}");
    const qn_jinja_dict *dict = request->as.dict;
    for (size_t i = 0; i < dict->n; i++) {
        int key = 0;
        while (key < N_KEYS && !qn_str_is(dict->keys[i].as.s, key_names[key])) key++;
        if (key == N_KEYS)
            return QN_FAIL(err, ARGUMENT,
                           "request: unknown name '%.80s'; anything else for a template goes into "
                           "\"kwargs\"",
                           dict->keys[i].as.s.data);
        values[key] = dict->values[i];
    }
    if (values[KEY_MESSAGES].kind != QN_VAL_LIST)
        return QN_FAIL(err, ARGUMENT, "request: \"messages\" is %s",
                       values[KEY_MESSAGES].kind ? "not a list" : "missing");
    if (values[KEY_KWARGS].kind > QN_VAL_NONE && values[KEY_KWARGS].kind != QN_VAL_DICT)
        return QN_FAIL(err, ARGUMENT, "request: \"kwargs\" is not an object");
    return QN_OK;
}

static qn_status set_names(qn_jinja_run *r, const qn_template *template,
                           qn_jinja_val values[N_KEYS], qn_err *err) {
    if (!values[KEY_TOOLS].kind) values[KEY_TOOLS] = qn_jinja_val_none();
    if (!values[KEY_PROMPT].kind) values[KEY_PROMPT] = qn_jinja_val_bool(true);
    if (!values[KEY_BOS].kind) values[KEY_BOS] = template->bos;
    if (!values[KEY_EOS].kind) values[KEY_EOS] = template->eos;
    for (int key = 0; key < KEY_NOW; key++) {
        if (values[key].kind)
            QN_TRY(qn_jinja_scope_set(r, qn_str_of(key_names[key]), &values[key], err));
    }
    if (values[KEY_KWARGS].kind != QN_VAL_DICT) return QN_OK;
    const qn_jinja_dict *more = values[KEY_KWARGS].as.dict;
    for (size_t i = 0; i < more->n; i++)
        QN_TRY(qn_jinja_scope_set(r, more->keys[i].as.s, &more->values[i], err));
    return QN_OK;
}

static qn_status set_clock(qn_jinja_run *r, const qn_jinja_val *now, qn_err *err) {
    if (now->kind == QN_VAL_TEXT) return qn_jinja_clock_read(r->now, now->as.s, err);
    if (now->kind > QN_VAL_NONE) return QN_FAIL(err, ARGUMENT, "request: \"now\" is not a text");
    qn_jinja_clock_now(r->now);
    return QN_OK;
}

static qn_status read_request(qn_jinja_run *r, const qn_template *template, const char *text,
                              size_t size, qn_err *err) {
    json_t *json = NULL;
    qn_jinja_val request, values[N_KEYS] = {{0}};
    QN_TRY(qn_json_parse(&json, text, size, false, "request", err));
    const qn_status status = convert(&request, r, json, err);
    json_decref(json);
    if (status) return status;
    QN_TRY(read_keys(values, &request, err));
    QN_TRY(qn_jinja_scope_push(r, NULL, err));
    QN_TRY(set_names(r, template, values, err));
    return set_clock(r, &values[KEY_NOW], err);
}

// --- rendering -----------------------------------------------------------------------------------

qn_status qn_template_render_within(char **text, size_t *size, const qn_template *template,
                                    const char *request, size_t request_size,
                                    const qn_chat_limits *limits, qn_err *err) {
    qn_jinja_run r = {.limits = *limits};
    qn_jinja_begin(&r);
    qn_buf out = qn_jinja_buf(&r);
    r.out = &out;
    qn_status status = read_request(&r, template, request, request_size, err);
    if (!status) {
        status = qn_jinja_exec(&r, template->tree, err);
        if (status) (void)qn_err_prefix(err, status, "template");
    }
    qn_arena_deinit(&r.arena);
    if (limits->taken) *limits->taken = limits->steps - r.steps;
    if (status) {
        qn_buf_deinit(&out);
        return status;
    }
    const size_t n = out.size;
    QN_TRY(qn_buf_take(text, &out, err));
    if (size) *size = n;
    return QN_OK;
}

qn_status qn_template_render(char **text, size_t *size, const qn_template *template,
                             const char *request, size_t request_size, const qn_template_opts *opts,
                             qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(template, err);
    QN_NEED(request, err);
    qn_template_opts o;
    QN_TRY(QN_OPTS_READ(qn_template_opts, &o, opts, err));
    qn_chat_limits limits = qn_chat_default_limits;
    limits.progress = o.progress;
    limits.progress_arg = o.progress_arg;
    limits.stop = o.stop;
    return qn_template_render_within(text, size, template, request, request_size, &limits, err);
}
