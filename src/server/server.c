#include "server/server_int.h"

#include "core/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    N_WORKERS = 4,     // not tuned
    MAX_WAITING = 256, // requests that wait for a worker
    IDLE_SECONDS = 60,
    POLL_MS = 50,
};
static const int64_t GRACE_NS = 30000000000;

// --- life ----------------------------------------------------------------------------------------

static qn_status check_address(const qn_server *s, qn_err *err) {
    const qn_server_opts *o = &s->opts;
    const char *host = o->host ? o->host : "127.0.0.1";
    if (o->insecure || o->n_keys || o->key_file || qn_host_is_local(host)) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "--host %s can be reached by others, and there is no --api-key; --insecure "
                   "serves everybody",
                   host);
}

static qn_status open_models(qn_server *s, qn_err *err) {
    qn_entry *first = NULL;
    QN_TRY(qn_registry_init(&s->registry, s, err));
    if (!s->opts.model) return QN_OK; // of a folder, each when it is asked for
    QN_TRY(qn_registry_take(&first, &s->registry, "", err));
    qn_entry_leave(first);
    return QN_OK;
}

static qn_status fill(qn_server *s, qn_err *err) {
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0) return QN_FAIL(err, IO, "cannot make an event: %s", strerror(errno));
    if (getrandom(&s->id_key, sizeof s->id_key, 0) < 0) s->id_key = (uint64_t)qn_clock_ns();
    QN_TRY(check_address(s, err));
    QN_TRY(qn_guard_init(&s->guard, &s->opts, err));
    QN_TRY(open_models(s, err));
    QN_TRY(qn_links_init(&s->links, IDLE_SECONDS * (int64_t)1000000000, err));
    QN_TRY(qn_workers_init(&s->workers, N_WORKERS, MAX_WAITING, err));
    return qn_http_start(s, err);
}

qn_status qn_server_create(qn_server **out, const qn_server_opts *opts, qn_err *err) {
    qn_server *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "the server");
    s->opts = *opts;
    s->limits = (qn_server_limits){
        .body = (size_t)64 << 20, .unsent = (size_t)4 << 20, .connections = 2048};
    s->started = time(NULL);
    s->wake = s->links.epoll = s->links.wake = -1;
    qn_status status = qn_logger_init(&s->logger, opts->log_json, opts->quiet, err);
    if (status) {
        qn_free(s);
        return status;
    }
    status = fill(s, err);
    if (status)
        qn_server_destroy(s);
    else
        *out = s;
    return status;
}

void qn_server_destroy(qn_server *s) {
    if (!s) return;
    qn_workers_deinit(&s->workers);
    qn_http_stop(s);
    if (s->links.epoll >= 0) qn_links_deinit(&s->links);
    qn_registry_deinit(&s->registry);
    qn_guard_deinit(&s->guard);
    qn_logger_deinit(&s->logger);
    if (s->wake >= 0) close(s->wake);
    qn_free(s);
}

int qn_server_port(const qn_server *server) { return server->port; }

// --- running -------------------------------------------------------------------------------------

// Both run in signal handlers, too.
static void wake(qn_server *s) {
    const uint64_t one = 1;
    const int before = errno;
    if (write(s->wake, &one, sizeof one) < 0) errno = before; // a full counter wakes as well
    errno = before;
}

void qn_server_stop(qn_server *server) {
    atomic_fetch_add(&server->n_stops, 1);
    wake(server);
}

void qn_server_reload(qn_server *server) {
    atomic_store(&server->is_reload, true);
    wake(server);
}

static void wait_for_wake(qn_server *s, int timeout_ms) {
    struct pollfd event = {.fd = s->wake, .events = POLLIN};
    uint64_t n;
    if (poll(&event, 1, timeout_ms) > 0 && read(s->wake, &n, sizeof n) < 0) return;
}

static void reload(qn_server *s) {
    qn_err err;
    if (qn_guard_reload(&s->guard, &err))
        qn_logger_say(&s->logger, "error", "keys are as before: %s", err.message);
    else
        qn_logger_say(&s->logger, "info", "read the keys again");
}

// Answers that have begun may end, for a while.
static void drain(qn_server *s) {
    const int64_t grace = s->opts.grace_ms ? s->opts.grace_ms * 1000000 : GRACE_NS;
    const int64_t until = qn_clock_ns() + grace;
    while (atomic_load(&s->n_jobs) > 0 && qn_clock_ns() < until && atomic_load(&s->n_stops) < 2)
        wait_for_wake(s, POLL_MS);
    while (atomic_load(&s->n_jobs) > 0) {
        qn_links_drop(&s->links);
        wait_for_wake(s, POLL_MS);
    }
}

qn_status qn_server_run(qn_server *server, qn_err *err) {
    (void)err;
    while (atomic_load(&server->n_stops) == 0) {
        wait_for_wake(server, -1);
        if (atomic_exchange(&server->is_reload, false)) reload(server);
    }
    qn_logger_say(&server->logger, "info", "stopping");
    qn_http_quiesce(server);
    drain(server);
    return QN_OK;
}

// --- for people ----------------------------------------------------------------------------------

// What is known of a model, and the memory that it takes or will take.
static void describe_model(qn_buf *out, const qn_entry_info *info) {
    static const double mib = 1 << 20;
    const qn_facts *f = &info->facts;
    qn_buf_printf(out, "  model    %s", info->name);
    if (!info->is_open) {
        qn_buf_text(out, " (opened when it is asked for)\n");
        return;
    }
    qn_buf_printf(out, " (%s, %.2f billion parameters, context %lld)\n", info->architecture,
                  (double)info->n_parameters / 1e9, (long long)info->context);
    qn_buf_printf(out,
                  "  memory   %.1f MiB of weights, %.1f of activations, %.1f for a request of full "
                  "length\n",
                  (double)f->weights / mib, (double)f->activations / mib,
                  (double)f->row_state / mib);
}

qn_status qn_server_describe(char **text, qn_server *s, qn_err *err) {
    const qn_server_opts *o = &s->opts;
    const char *host = o->host ? o->host : "127.0.0.1", *scheme = o->tls_cert ? "https" : "http";
    qn_buf out = {0};
    qn_entry_info info;
    char model[300] = "";
    qn_buf_printf(&out, "Quern %s\n\n", qn_version());
    qn_buf_printf(&out, "  address  %s://%s:%d\n", scheme, host, s->port);
    if (o->page) qn_buf_printf(&out, "  page     %s://%s:%d/\n", scheme, host, s->port);
    for (size_t i = 0; qn_registry_info(&info, &s->registry, i); i++) {
        describe_model(&out, &info);
        if (o->folder) snprintf(model, sizeof model, "\"model\": \"%s\", ", info.name);
    }
    qn_buf_printf(&out, "  key      %s\n", qn_guard_has_keys(&s->guard) ? "needed" : "none");
    qn_buf_printf(&out,
                  "\n  curl %s://%s:%d/v1/chat/completions -d '{%s\"messages\": [{\"role\": "
                  "\"user\", \"content\": \"Hello!\"}]}'\n",
                  scheme, host, s->port, model);
    return qn_buf_take(text, &out, err);
}
