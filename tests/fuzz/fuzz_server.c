// Any bytes as the body of a request: the first one chooses the dialect, the others are read,
// prepared and made options for an answer, or refused with a message. The model has a tokenizer, and
// nothing that computes.
#include "server/api.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static qn_server server; // all made once
static qn_served model;
static qn_tokenizer *tokenizer;

static void open_model(void) {
    if (qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", NULL)) abort();
    server.opts.generate = QN_INIT(qn_generate_opts);
    server.limits.held = SIZE_MAX;
    if (qn_logger_init(&server.logger, false, true, NULL)) abort();
    model.server = &server;
    model.tokenizer = tokenizer;
    model.sample = QN_INIT(qn_sample_opts);
    if (pthread_mutex_init(&model.lock, NULL)) abort();
}

// The set of fields of the n-th route that has one.
static const qn_route *choose(size_t n) {
    size_t n_sets = 0;
    for (size_t i = 0; qn_route_at(i); i++) n_sets += qn_route_at(i)->set != 0;
    n %= n_sets;
    for (size_t i = 0;; i++) {
        if (qn_route_at(i)->set && n-- == 0) return qn_route_at(i);
    }
}

// A refusal says why, and is nobody's fault but the request's.
static void check_problem(const qn_problem *p, qn_error_form form) {
    if (p->status < 400 || p->status == 500 || p->status == 501 || !*p->err.message) abort();
    json_t *error = qn_problem_json(p, form);
    qn_buf text = {0};
    if (error) qn_json_write(&text, error, &qn_compact);
    if (!text.size) abort();
    qn_buf_deinit(&text);
    json_decref(error);
}

static void ask(const qn_route *route, qn_exchange *ex) {
    qn_ask asked;
    qn_answer_opts opts = {0};
    qn_problem problem = {0};
    qn_status status = qn_ask_read(&asked, ex, route->set, &problem);
    if (!status && route->set & QN_SET_OPENAI) status = qn_openai_prepare(&asked, &problem);
    if (!status && route->set & QN_SET_CHAT) status = qn_openai_tool_choice(&asked, &problem);
    if (!status) status = qn_ask_set_effort(&asked, asked.effort, "reasoning_effort", &problem);
    if (!status) status = qn_answer_opts_init(&opts, &asked, &model, &problem);
    if (status) check_problem(&problem, route->form);
    qn_answer_opts_deinit(&opts);
    qn_ask_deinit(&asked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tokenizer) open_model();
    if (size == 0) return 0;
    qn_exchange *ex;
    if (qn_exchange_create(&ex, &server, NULL)) abort();
    ex->route = choose(data[0]);
    if (!qn_exchange_add_body(ex, (const char *)data + 1, size - 1)) abort();
    ask(ex->route, ex);
    qn_exchange_leave(ex);
    return 0;
}
