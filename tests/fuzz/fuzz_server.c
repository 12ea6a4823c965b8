// Any bytes as the body of a request: the first line names the route, and so the dialect, or its
// first byte chooses one; the handler answers the rest as it would on a socket (it reads the
// fields, prepares the ask, renders, tokenises and starts the rows), from a client that hangs up
// then. What comes back is an answer, or a refusal in JSON that is nobody's fault but the
// request's.
#include "core/mem.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static qn_server *server; // with the bundled model, made once

static qn_status open_engine(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                             qn_err *err) {
    (void)arg;
    QN_TRY(qn_engine_open(out, path, &QN_INIT(qn_engine_opts, .n_threads = 1), err));
    return sample ? qn_engine_sample_defaults(sample, *out, err) : QN_OK;
}

static qn_status peek_engine(void *arg, qn_engine **out, const char *path, qn_err *err) {
    (void)arg;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true);
    return qn_engine_open(out, path, &opts, err);
}

static void open_server(void) {
    const qn_server_opts opts = {.model = MODELS "/quern-mini-Q8_0.gguf",
                                 .open = open_engine,
                                 .peek = peek_engine,
                                 .generate = QN_INIT(qn_generate_opts, .max_tokens = 2),
                                 .context = 256,
                                 .quiet = true};
    if (qn_server_create(&server, &opts, NULL)) abort();
}

// The n-th route that has a body.
static const qn_route *choose(size_t n) {
    size_t n_routes = 0;
    for (size_t i = 0; qn_route_at(i); i++) n_routes += qn_route_at(i)->set != 0;
    n %= n_routes;
    for (size_t i = 0;; i++) {
        if (qn_route_at(i)->set && n-- == 0) return qn_route_at(i);
    }
}

// The route of an input, and the bytes of it that are no part of the body.
static const qn_route *route_of(const uint8_t *data, size_t size, size_t *used) {
    const uint8_t *end = memchr(data, '\n', size);
    const size_t n = end ? (size_t)(end - data) : 0;
    for (size_t i = 0; n && qn_route_at(i); i++) {
        const qn_route *route = qn_route_at(i);
        if (!route->set || strlen(route->path) != n || memcmp(route->path, data, n) != 0) continue;
        *used = n + 1;
        return route;
    }
    *used = 1;
    return choose(data[0]);
}

static void check_answer(const qn_exchange *ex) {
    const qn_json_opts opts = {.what = "an answer", .any = true};
    json_t *value = NULL;
    if (ex->phase != QN_ANSWERING || !ex->is_whole) abort(); // nobody answered
    if (ex->status == 500 || ex->status == 501) abort();
    if (ex->is_stream || !ex->type || strcmp(ex->type, "application/json") != 0) return;
    if (qn_json_parse_as(&value, ex->out.data, ex->out.size, &opts, NULL)) abort();
    if (ex->status >= 400 && !json_object_get(value, "error")) abort();
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qn_exchange *ex;
    if (!server) open_server();
    if (size == 0) return 0;
    if (qn_exchange_create(&ex, server, NULL)) abort();
    size_t used;
    ex->route = route_of(data, size, &used);
    ex->path = strdup(ex->route->path);
    if (!ex->path || !qn_exchange_add_body(ex, (const char *)data + used, size - used)) abort();
    atomic_fetch_add(&ex->owners, 1);
    ex->route->handle(ex);
    qn_exchange_drop(ex);
    while (atomic_load(&server->n_jobs) > 0) sched_yield();
    check_answer(ex);
    qn_exchange_leave(ex);
    return 0;
}
