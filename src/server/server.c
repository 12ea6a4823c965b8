#include "server/server_int.h"

#include "core/mem.h"
#include "core/printable.h"
#include "server/job.h"
#include "server/problem.h"

#include <curl/curl.h>
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    N_WORKERS = 4, // not tuned
    POLL_MS = 50,
};
static const int64_t GRACE_NS = 30000000000;
static const qn_server_limits usual_limits = {.body = (size_t)96 << 20,
                                              .held = (size_t)256 << 20,
                                              .untaken = (size_t)512 << 20,
                                              .pixels = (size_t)768 << 20, // of one request
                                              .unsent = (size_t)4 << 20,
                                              .waiting = 256,
                                              .connections = 2048,
                                              .idle_ms = 60000};

// --- life ----------------------------------------------------------------------------------------

// By the keys that are there, not by those that were to be.
static qn_status check_address(qn_server *s, qn_err *err) {
    const qn_server_opts *o = &s->opts;
    const char *host = o->host ? o->host : "127.0.0.1";
    if (o->insecure || qn_guard_has_keys(&s->guard) || qn_host_is_local(host)) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "--host %s can be reached by others, and there is no --api-key; --insecure "
                   "serves everybody",
                   host);
}

static qn_status open_models(qn_server *s, qn_err *err) {
    qn_offer *first = NULL;
    QN_TRY(qn_registry_init(&s->registry, s, err));
    if (!s->opts.model) return QN_OK; // of a folder, each when it is asked for
    QN_TRY(qn_registry_take(&first, &s->registry, "", err));
    qn_offer_leave(first);
    return QN_OK;
}

static qn_status fill(qn_server *s, qn_err *err) {
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0) return QN_FAIL(err, IO, "cannot make an event: %s", strerror(errno));
    if (getrandom(&s->id_key, sizeof s->id_key, 0) < 0) s->id_key = (uint64_t)qn_clock_ns();
    if (s->opts.n_image_hosts && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return QN_NOMEM(err, "fetching images");
    QN_TRY(qn_guard_init(&s->guard, &s->opts, err));
    QN_TRY(check_address(s, err));
    QN_TRY(qn_tls_init(&s->tls, &s->opts, err));
    QN_TRY(open_models(s, err));
    s->registry.is_public = true;
    QN_TRY(qn_links_init(&s->links, s->limits.idle_ms * 1000000, err));
    QN_TRY(qn_workers_init(&s->workers, N_WORKERS, s->limits.waiting, err));
    return qn_http_start(s, err);
}

static void set_limits(qn_server_limits *to, const qn_server_limits *from) {
    *to = usual_limits;
    if (from->body) to->body = from->body;
    if (from->held) to->held = from->held;
    if (from->untaken) to->untaken = from->untaken;
    if (from->pixels) to->pixels = from->pixels;
    if (from->unsent) to->unsent = from->unsent;
    if (from->waiting) to->waiting = from->waiting;
    if (from->connections) to->connections = from->connections;
    if (from->idle_ms) to->idle_ms = from->idle_ms;
}

qn_status qn_server_create(qn_server **out, const qn_server_opts *opts, qn_err *err) {
    qn_server *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "the server");
    s->opts = *opts;
    set_limits(&s->limits, &opts->limits);
    s->wake = s->links.epoll = s->links.wake = -1;
    qn_status status = qn_logger_init(&s->logger, opts, err);
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

// For a request that no worker took, or an answer that is all there and was to be written.
static void give_up(qn_exchange *ex) {
    if (ex->task) {
        qn_job_write(ex);
        return;
    }
    qn_problem problem;
    (void)QN_REFUSE(&problem, 503, "", "the server is stopping");
    qn_problem_reply(ex, &problem);
    qn_exchange_leave(ex);
}

// The HTTP library must not stop while connections are suspended: first every request is answered.
// Its threads may still bring new ones, which are refused. Streams that are ended say so, to
// clients that take it at once.
static void end_requests(qn_server *s) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    static const int64_t TAKE_NS = 1000000000;
    atomic_fetch_add(&s->n_stops, 1);
    qn_links_stop(&s->links);
    qn_workers_stop(&s->workers, give_up);
    while (atomic_load(&s->n_jobs) > 0) {
        qn_links_stop(&s->links);
        nanosleep(&pause, NULL);
    }
    const int64_t until = qn_clock_ns() + TAKE_NS;
    while (qn_links_busy(&s->links) > 0 && qn_clock_ns() < until) nanosleep(&pause, NULL);
    qn_links_drop(&s->links);
}

void qn_server_destroy(qn_server *s) {
    if (!s) return;
    if (s->links.epoll >= 0) end_requests(s);
    qn_http_stop(s);
    qn_workers_deinit(&s->workers);
    if (s->links.epoll >= 0) qn_links_deinit(&s->links);
    qn_registry_deinit(&s->registry);
    qn_guard_deinit(&s->guard);
    qn_tls_deinit(&s->tls);
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

void qn_server_end(qn_server *server, const qn_err *why) {
    if (atomic_exchange(&server->is_ending, true)) return;
    server->end = *why;
    atomic_store(&server->has_end, true);
    qn_server_stop(server);
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
    if (!qn_tls_is_on(&s->tls)) return;
    if (qn_tls_reload(&s->tls, &err))
        qn_logger_say(&s->logger, "error", "the certificate is as before: %s", err.message);
    else
        qn_logger_say(&s->logger, "info", "read the certificate again");
}

// Answers that have begun may end, and be taken by their clients, for a while.
static void drain(qn_server *s) {
    const int64_t grace = s->opts.grace_ms ? s->opts.grace_ms * 1000000 : GRACE_NS;
    const int64_t until = qn_clock_ns() + grace;
    while ((atomic_load(&s->n_jobs) > 0 || qn_links_busy(&s->links) > 0) && qn_clock_ns() < until &&
           atomic_load(&s->n_stops) < 2)
        wait_for_wake(s, POLL_MS);
}

void qn_server_trim_soon(qn_server *server) {
    if (!atomic_exchange(&server->wants_trim, true)) wake(server);
}

// What bursts of large requests and closed models leave behind stays in the heap of this process
// otherwise.
static void trim(qn_server *s) {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    atomic_fetch_add(&s->n_trims, 1);
}

// Once a second at most: it goes through all of the heap. Returns how long to wait for the next,
// in ms; -1: none is wanted.
static int trim_at_times(qn_server *s, int64_t *last) {
    enum { EVERY_MS = 1000 };
    if (!atomic_load(&s->wants_trim)) return -1;
    const int64_t since = *last ? (qn_clock_ns() - *last) / 1000000 : EVERY_MS;
    if (since < EVERY_MS) return (int)(EVERY_MS - since);
    atomic_store(&s->wants_trim, false);
    trim(s);
    *last = qn_clock_ns();
    return -1;
}

qn_status qn_server_run(qn_server *server, qn_err *err) {
    int64_t trimmed = 0;
    while (atomic_load(&server->n_stops) == 0) {
        wait_for_wake(server, trim_at_times(server, &trimmed));
        if (atomic_exchange(&server->is_reload, false)) reload(server);
    }
    if (!atomic_load(&server->has_end)) qn_logger_say(&server->logger, "info", "stopping");
    qn_http_quiesce(server);
    drain(server);
    if (!atomic_load(&server->has_end)) return QN_OK;
    if (err) *err = server->end;
    return server->end.status;
}

// --- for people ----------------------------------------------------------------------------------

static const double mib = 1 << 20;

// What is known of a model, and the memory that it takes or will take. `wanted`: context by -c.
static void describe_model(qn_buf *out, const qn_offer_info *info, int64_t wanted) {
    const qn_facts *f = &info->facts;
    qn_buf_printf(out, "  model    %s", info->name);
    if (!info->is_known) {
        qn_buf_text(out, " (opened when it is asked for)\n");
        return;
    }
    qn_buf_printf(out, " (%s, %.2f billion parameters, context %lld", info->architecture,
                  (double)info->n_parameters / 1e9, (long long)info->context);
    if (wanted > info->context)
        qn_buf_printf(out, ", its limit: -c %lld is more", (long long)wanted);
    qn_buf_text(out, ")\n");
    qn_buf_printf(out, "  memory   %.1f MiB of weights, %.1f of activations, ",
                  (double)f->weights / mib, (double)f->activations / mib);
    if (info->is_open)
        qn_buf_printf(out, "%.1f of KV cache and state for up to %lld answers at a time\n",
                      (double)info->state_bytes / mib, (long long)info->rows);
    else
        qn_buf_text(out, "when it is asked for\n");
    qn_buf_printf(out,
                  "           (%.1f MiB of KV cache and state for one answer of full length)\n",
                  (double)f->row_state / mib);
}

enum { MAX_SHOWN = 5 };

// Models that cannot be opened, apart from those that can.
static void describe_damaged(qn_buf *out, qn_server *s) {
    qn_offer_info info;
    size_t n = 0;
    for (size_t i = 0; qn_registry_info(&info, &s->registry, i); i++) {
        if (!*info.problem) continue;
        char reason[100];
        qn_text_cut(reason, sizeof reason, info.problem);
        if (n++ < MAX_SHOWN) qn_buf_printf(out, "  damaged  %s: %s\n", info.name, reason);
    }
    if (n > MAX_SHOWN) qn_buf_printf(out, "  ...      and %zu more: the log\n", n - MAX_SHOWN);
}

// As many as fit on a screen. `name` (size n) is that of the first one that can be asked.
static void describe_models(qn_buf *out, char *name, size_t n, qn_server *s) {
    qn_offer_info info;
    size_t n_fine = 0;
    if (s->opts.folder) qn_registry_refresh(&s->registry);
    for (size_t i = 0; qn_registry_info(&info, &s->registry, i); i++) {
        if (*info.problem) continue;
        if (n_fine++ < MAX_SHOWN) describe_model(out, &info, s->opts.context);
        if (!*name) snprintf(name, n, "%s", info.name);
    }
    if (n_fine > MAX_SHOWN)
        qn_buf_printf(out, "  ...      and %zu more models: /v1/models\n", n_fine - MAX_SHOWN);
    describe_damaged(out, s);
}

static void describe_example(qn_buf *out, const char *url, const char *model, bool has_key) {
    qn_buf_printf(out, "\n  curl %s/v1/chat/completions", url);
    if (has_key) qn_buf_text(out, " -H \"Authorization: Bearer $KEY\"");
    qn_buf_text(out, " -d '{");
    if (*model) qn_buf_printf(out, "\"model\": \"%s\", ", model);
    qn_buf_text(out, "\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'\n");
}

qn_status qn_server_describe(char **text, qn_server *s, qn_err *err) {
    const qn_server_opts *o = &s->opts;
    const char *host = o->host ? o->host : "127.0.0.1";
    const bool has_key = qn_guard_has_keys(&s->guard), is_v6 = strchr(host, ':') != NULL;
    qn_buf out = {0};
    char url[320], model[256] = "";
    snprintf(url, sizeof url, "%s://%s%.255s%s:%d", o->tls_cert ? "https" : "http",
             is_v6 ? "[" : "", host, is_v6 ? "]" : "", s->port);
    qn_buf_printf(&out, "Quern %s\n\n  address  %s\n", qn_version(), url);
    if (o->page) qn_buf_printf(&out, "  page     %s/\n", url);
    qn_buf_printf(&out, "  key      %s\n", has_key ? "needed" : "none");
    describe_models(&out, model, sizeof model, s);
    describe_example(&out, url, o->folder ? model : "", has_key);
    return qn_buf_take(text, &out, err);
}
