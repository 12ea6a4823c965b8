#include "server/problem.h"

#include "server/routes.h"

#include <stdio.h>
#include <string.h>

// --- kinds ---------------------------------------------------------------------------------------

static const struct {
    int status;
    const char *openai, *anthropic;
} kinds[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large"},
    {500, "server_error", "api_error"},
    {501, "not_supported_error", "invalid_request_error"},
    {503, "unavailable_error", "overloaded_error"},
};

static const char *type_of(const qn_problem *p, qn_error_form form) {
    if (p->type && form == QN_FORM_OPENAI) return p->type;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].status == p->status)
            return form == QN_FORM_ANTHROPIC ? kinds[i].anthropic : kinds[i].openai;
    }
    return form == QN_FORM_ANTHROPIC ? "api_error" : "server_error";
}

void qn_problem_set(qn_problem *problem, int http_status, const char *field) {
    *problem = (qn_problem){.status = http_status};
    snprintf(problem->param, sizeof problem->param, "%s", field ? field : "");
}

qn_status qn_problem_take(qn_problem *problem, qn_status status, const char *field) {
    const int http_status = status == QN_MEMORY                                             ? 503
                            : status == QN_STOPPED                                          ? 503
                            : status == QN_NUMERIC || status == QN_STATE || status == QN_IO ? 500
                                                                                            : 400;
    const qn_err err = problem->err;
    qn_problem_set(problem, http_status, field);
    problem->err = err;
    return status;
}

qn_status qn_problem_memory(qn_problem *problem, const char *field) {
    return qn_problem_take(problem, QN_NOMEM(&problem->err, "a request"), field);
}

// --- forms ---------------------------------------------------------------------------------------

static json_t *openai_error(const qn_problem *p) {
    json_t *e = json_object(), *o = json_object();
    qn_json_put(&e, "message", qn_json_string(p->err.message, strlen(p->err.message)));
    qn_json_put(&e, "type", json_string(type_of(p, QN_FORM_OPENAI)));
    qn_json_put(&e, "param", *p->param ? qn_json_string(p->param, strlen(p->param)) : json_null());
    qn_json_put(&e, "code", p->code ? json_string(p->code) : json_integer(p->status));
    if (p->n_context) {
        qn_json_put(&e, "n_prompt_tokens", json_integer(p->n_prompt));
        qn_json_put(&e, "n_ctx", json_integer(p->n_context));
    }
    qn_json_put(&o, "error", e);
    return o;
}

// Clients shorten their conversation when they find these words in an error.
static json_t *too_long(const qn_problem *p) {
    qn_buf text = {0};
    qn_buf_printf(&text, "prompt is too long: %lld tokens > %lld maximum; %s",
                  (long long)p->n_prompt, (long long)p->n_context, p->err.message);
    json_t *message = text.failed ? NULL : qn_json_string(text.data, text.size);
    qn_buf_deinit(&text);
    return message;
}

static json_t *anthropic_error(const qn_problem *p) {
    json_t *e = json_object(), *o = json_object();
    qn_json_put(&e, "type", json_string(type_of(p, QN_FORM_ANTHROPIC)));
    qn_json_put(&e, "message",
                p->n_context ? too_long(p)
                             : qn_json_string(p->err.message, strlen(p->err.message)));
    qn_json_put(&o, "type", json_string("error"));
    qn_json_put(&o, "error", e);
    return o;
}

static json_t *ollama_error(const qn_problem *p) {
    json_t *o = json_object();
    qn_json_put(&o, "error", qn_json_string(p->err.message, strlen(p->err.message)));
    return o;
}

json_t *qn_problem_json(const qn_problem *problem, qn_error_form form) {
    static json_t *(*const makers[])(const qn_problem *) = {[QN_FORM_OPENAI] = openai_error,
                                                            [QN_FORM_ANTHROPIC] = anthropic_error,
                                                            [QN_FORM_OLLAMA] = ollama_error};
    return makers[form](problem);
}

// --- answers -------------------------------------------------------------------------------------

const qn_json_form qn_compact = {.compact = true};

static const char content_type[] = "application/json";

void qn_reply_json(qn_exchange *ex, int status, json_t *value) {
    static const char no_memory[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\",\"code\":503}}";
    qn_buf body = {0};
    if (value) qn_json_write(&body, value, &qn_compact);
    json_decref(value);
    if (!value || body.failed) {
        qn_buf_deinit(&body);
        qn_buf_text(&body, no_memory);
        qn_exchange_tell_reason(ex, "out of memory");
        status = 503;
    }
    qn_exchange_reply(ex, status, content_type, &body);
}

void qn_problem_reply(qn_exchange *ex, const qn_problem *problem) {
    static const char models[] = "/v1/models"; // of two dialects
    if (problem->retry_after) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", problem->retry_after);
        qn_exchange_header(ex, "Retry-After", seconds);
    }
    if (problem->status == 401) qn_exchange_header(ex, "WWW-Authenticate", "Bearer");
    qn_exchange_tell_reason(ex, problem->err.message);
    const qn_error_form none = ex->path ? qn_route_form(ex->path) : QN_FORM_OPENAI;
    const qn_error_form own = ex->route ? ex->route->form : none;
    const bool is_shared =
        ex->is_anthropic && ex->path && strncmp(ex->path, models, sizeof models - 1) == 0;
    const qn_error_form form = is_shared ? QN_FORM_ANTHROPIC : own;
    qn_reply_json(ex, problem->status, qn_problem_json(problem, form));
}
