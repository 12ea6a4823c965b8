// The HTTP library's callbacks (libmicrohttpd: epoll, a few threads of its own).
#include "core/mem.h"
#include "server/page.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    N_THREADS = 4,           // of the HTTP library; not tuned
    HEADER_BYTES = 32 << 10, // of a request's line and headers
    BLOCK_BYTES = 16 << 10,  // of a stream, at a time
    BACKLOG = 511
};

static const char *header_of(struct MHD_Connection *c, const char *name) {
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

// --- the answer ----------------------------------------------------------------------------------

// A content reader: what there is of a stream, else the connection sleeps until there is more.
static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t max) {
    qn_exchange *ex = arg;
    (void)at;
    pthread_mutex_lock(&ex->lock);
    const size_t left = ex->out.size - ex->sent, n = left < max ? left : max;
    ssize_t result = (ssize_t)n;
    if (n > 0) {
        memcpy(to, ex->out.data + ex->sent, n);
        ex->sent += n;
    } else if (ex->is_whole) {
        result = ex->is_cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        ex->is_suspended = true;
        MHD_suspend_connection(ex->connection);
    }
    pthread_mutex_unlock(&ex->lock);
    return result;
}

static void leave_stream(void *arg) { qn_exchange_leave(arg); }

static struct MHD_Response *make_response(qn_exchange *ex) {
    if (!ex->is_stream) {
        struct MHD_Response *whole =
            MHD_create_response_from_buffer(ex->out.size, ex->out.data, MHD_RESPMEM_MUST_COPY);
        qn_buf_deinit(&ex->out);
        return whole;
    }
    atomic_fetch_add(&ex->owners, 1);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, ex, leave_stream);
    if (!response) qn_exchange_leave(ex);
    return response;
}

static void add_header(struct MHD_Response *response, const char *name, const char *value) {
    // A header that finds no memory is left out: none of them decides what is said.
    (void)MHD_add_response_header(response, name, value);
}

static void add_cors(struct MHD_Response *response, qn_exchange *ex, struct MHD_Connection *c) {
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    if (!qn_guard_is_listed(&ex->server->guard, origin)) return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    add_header(response, "Vary", "Origin");
    add_header(response, "Access-Control-Allow-Headers", "*, Authorization");
    add_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    add_header(response, "Access-Control-Max-Age", "600");
    // Browsers ask for this before a page of the internet reaches a machine of a home network.
    if (header_of(c, "Access-Control-Request-Private-Network"))
        add_header(response, "Access-Control-Allow-Private-Network", "true");
}

static enum MHD_Result send_answer(qn_exchange *ex, struct MHD_Connection *c) {
    struct MHD_Response *response = make_response(ex);
    if (!response) return MHD_NO;
    if (ex->type && *ex->type) add_header(response, "Content-Type", ex->type);
    add_header(response, "X-Request-Id", ex->wants ? ex->wants : ex->id);
    if (ex->route && ex->route->form == QN_FORM_ANTHROPIC)
        add_header(response, "Request-Id", ex->wants ? ex->wants : ex->id);
    add_header(response, "Server", "quern");
    add_header(response, "X-Content-Type-Options", "nosniff");
    bool has_cache = false;
    for (size_t i = 0; i < ex->n_headers; i++) {
        has_cache |= strcmp(ex->headers[i].name, "Cache-Control") == 0;
        add_header(response, ex->headers[i].name, ex->headers[i].value);
    }
    if (!has_cache) add_header(response, "Cache-Control", "no-store");
    if (ex->is_stream) add_header(response, "X-Accel-Buffering", "no"); // proxies must not collect
    if (atomic_load(&ex->server->n_stops)) add_header(response, "Connection", "close");
    add_cors(response, ex, c);
    const enum MHD_Result sent = MHD_queue_response(c, (unsigned)ex->status, response);
    MHD_destroy_response(response);
    return sent;
}

// --- the request ---------------------------------------------------------------------------------

// A client's own id for a request is repeated if it is short and plain.
static char *read_wanted_id(struct MHD_Connection *c) {
    enum { LONGEST = 64 };
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
    const char *id = header_of(c, "X-Request-Id");
    const size_t n = id ? strlen(id) : 0;
    return n > 0 && n <= LONGEST && strspn(id, plain) == n ? strdup(id) : NULL;
}

typedef struct counted {
    const char *name;
    int n;
} counted;

// A MHD_KeyValueIterator.
static enum MHD_Result count_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    counted *c = arg;
    (void)kind, (void)value;
    c->n += strcasecmp(name, c->name) == 0;
    return MHD_YES;
}

// What decides where a request ends, or who it is for, must be said once: a proxy in front of this
// server could read another one of several.
static qn_status check_once(struct MHD_Connection *c, qn_problem *p) {
    static const char *const names[] = {"Content-Length", "Transfer-Encoding", "Host"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        counted count = {names[i], 0};
        (void)MHD_get_connection_values(c, MHD_HEADER_KIND, count_header, &count);
        if (count.n > 1)
            return QN_REFUSE(p, 400, "", "the request has %d headers %s, want one", count.n,
                             names[i]);
    }
    return QN_OK;
}

static qn_status check_length(const qn_exchange *ex, struct MHD_Connection *c, qn_problem *p) {
    const char *text = header_of(c, "Content-Length");
    char *end;
    errno = 0;
    const unsigned long long n = text ? strtoull(text, &end, 10) : 0;
    // A proxy in front of this server could take the one where we take the other.
    if (text && header_of(c, "Transfer-Encoding"))
        return QN_REFUSE(p, 400, "", "the request has both Content-Length and Transfer-Encoding");
    if (text && (errno || n > ex->server->limits.body))
        return QN_REFUSE(p, 413, "", "the body has %.24s bytes, at most %zu are read", text,
                         ex->server->limits.body);
    return QN_OK;
}

// `is_there`: the path is known, with another method.
static qn_status check(qn_exchange *ex, struct MHD_Connection *c, bool is_there, qn_problem *p) {
    const qn_credentials shown = {.host = header_of(c, "Host"),
                                  .origin = header_of(c, "Origin"),
                                  .authorization = header_of(c, "Authorization"),
                                  .x_api_key = header_of(c, "X-Api-Key"),
                                  .is_tls = qn_tls_is_on(&ex->server->tls)};
    QN_TRY(check_once(c, p));
    if (qn_guard_check_place(&ex->server->guard, &shown, &p->err)) {
        const qn_err err = p->err;
        qn_problem_set(p, 403, NULL);
        p->err = err;
        return QN_ARGUMENT;
    }
    if (strcmp(ex->method, "OPTIONS") == 0) return QN_OK;
    const bool is_public = ex->route && ex->route->flags & QN_ROUTE_PUBLIC;
    if (!is_public && qn_guard_check_key(&ex->server->guard, &shown, &p->err)) {
        const qn_err err = p->err;
        qn_problem_set(p, 401, NULL);
        p->code = "invalid_api_key";
        p->err = err;
        return QN_ARGUMENT;
    }
    if (!ex->route && is_there) {
        const char *allowed = qn_route_allowed(ex->path);
        qn_exchange_header(ex, "Allow", allowed);
        return QN_REFUSE(p, 405, "", "%s takes %s, not %s", ex->path, allowed, ex->method);
    }
    if (!ex->route)
        return QN_REFUSE(p, 404, "", "there is no %.200s here; /openapi.json lists what there is",
                         ex->path);
    return QN_OK;
}

// Clients put a path after an address that ends in a slash, or one at its end.
static void fold_slashes(char *path) {
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (*from != '/' || to == path || to[-1] != '/') *to++ = *from;
    }
    if (to > path + 1 && to[-1] == '/') to--;
    *to = 0;
}

// One of the codings in "gzip, deflate;q=0.5", n bytes: whether it is `name`, and not turned off by
// a weight of 0.
static bool is_coding(const char *text, size_t n, const char *name) {
    static const char blanks[] = " \t";
    const size_t skipped = strspn(text, blanks), n_name = strlen(name);
    if (skipped + n_name > n || strncasecmp(text + skipped, name, n_name) != 0) return false;
    const char *rest = text + skipped + n_name, *end = text + n;
    rest += strspn(rest, blanks);
    if (rest >= end) return true;
    if (*rest != ';') return false;
    const char *weight = memchr(rest, '=', (size_t)(end - rest));
    for (const char *c = weight; c && c < end; c++) {
        if (*c >= '1' && *c <= '9') return true;
    }
    return !weight;
}

static bool takes_gzip(const char *accepted) {
    bool takes = false;
    for (const char *at = accepted; at && *at && !takes;) {
        const size_t n = strcspn(at, ",");
        takes = is_coding(at, n, "gzip") || is_coding(at, n, "*");
        at += n + (at[n] == ',');
    }
    return takes;
}

static qn_status fill(qn_exchange *ex, struct MHD_Connection *c, const char *method,
                      const char *path, qn_err *err) {
    qn_server *s = ex->server;
    const uint64_t n = atomic_fetch_add(&s->last_id, 1);
    snprintf(ex->id, sizeof ex->id, "req_%016llx",
             (unsigned long long)((n ^ s->id_key) * 0x9E3779B97F4A7C15u));
    snprintf(ex->method, sizeof ex->method, "%s",
             strlen(method) < sizeof ex->method ? method : "?");
    ex->path = strdup(path);
    if (ex->path) fold_slashes(ex->path);
    ex->connection = c;
    ex->wants = read_wanted_id(c);
    const char *model = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "model");
    const char *tag = header_of(c, "If-None-Match");
    ex->model = model ? strdup(model) : NULL;
    ex->takes_gzip = takes_gzip(header_of(c, "Accept-Encoding"));
    ex->is_anthropic = header_of(c, "Anthropic-Version") != NULL;
    ex->tag = tag ? strdup(tag) : NULL; // without memory the page is sent again
    return ex->path && (ex->model || !model) ? QN_OK : QN_NOMEM(err, "a request");
}

static qn_link *link_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

// --- callbacks -----------------------------------------------------------------------------------

// The first call for a request: its headers are there.
static enum MHD_Result begin(void **to, qn_server *server, struct MHD_Connection *c,
                             const char *path, const char *method) {
    qn_exchange *ex;
    qn_problem problem = {0};
    if (qn_exchange_create(&ex, server, NULL)) return MHD_NO;
    qn_link *link = link_of(c);
    if (!link || fill(ex, c, method, path, NULL)) {
        qn_exchange_leave(ex);
        return MHD_NO;
    }
    *to = ex;
    qn_link_begin(&server->links, link, ex);
    bool is_there = false;
    ex->route = qn_route_find(ex->method, ex->path, &is_there);
    const bool is_sound = !check_length(ex, c, &problem);
    if (is_sound && !check(ex, c, is_there, &problem)) return MHD_YES;
    ex->refusal = problem.status;
    qn_problem_reply(ex, &problem);
    // What is too long is not read to its end; the rest is, so that the client hears the answer.
    return is_sound ? MHD_YES : send_answer(ex, c);
}

// A request that is refused while its body comes: the rest of it is read, and not kept.
static void refuse_body(qn_exchange *ex) {
    const qn_server_limits *limits = &ex->server->limits;
    qn_problem problem;
    if (atomic_load(&ex->n_read) > limits->body)
        (void)QN_REFUSE(&problem, 413, "", "the body has more than the %zu bytes that are read",
                        limits->body);
    else
        (void)QN_REFUSE(&problem, 503, "", "the server is busy: bodies of requests fill %zu bytes",
                        limits->held);
    problem.retry_after = problem.status == 503 ? 1 : 0;
    ex->refusal = problem.status;
    qn_buf_deinit(&ex->body);
    qn_problem_reply(ex, &problem);
}

static enum MHD_Result take_body(qn_exchange *ex, const char *bytes, size_t n) {
    enum { MAX_IGNORED = 1 << 20 };
    const size_t read = atomic_fetch_add(&ex->n_read, n) + n;
    if (!ex->refusal) {
        if (read > ex->server->limits.body || !qn_exchange_add_body(ex, bytes, n)) refuse_body(ex);
        return MHD_YES;
    }
    ex->n_ignored += n;
    if (ex->n_ignored <= MAX_IGNORED) return MHD_YES;
    ex->note = "dropped: the body is too long";
    return MHD_NO;
}

static void refuse_busy(qn_exchange *ex) {
    qn_problem problem;
    if (atomic_load(&ex->server->n_stops))
        (void)QN_REFUSE(&problem, 503, "", "the server is stopping");
    else
        (void)QN_REFUSE(&problem, 503, "", "the server is busy: %zu requests wait already",
                        ex->server->workers.max_waiting);
    problem.retry_after = 1;
    qn_problem_reply(ex, &problem);
}

// The whole request is there: a quick route answers now, others on a thread of their own.
static void dispatch(qn_exchange *ex, struct MHD_Connection *c) {
    qn_buf nothing = {0};
    pthread_mutex_lock(&ex->lock);
    ex->phase = QN_WORKING;
    pthread_mutex_unlock(&ex->lock);
    if (!ex->route) { // OPTIONS: what a browser asks before it sends a page's request
        qn_exchange_reply(ex, 204, "", &nothing);
        return;
    }
    atomic_fetch_add(&ex->owners, 1); // the handler's
    if (ex->route->flags & QN_ROUTE_QUICK) {
        ex->route->handle(ex);
        return;
    }
    qn_link_watch(&ex->server->links, link_of(c));
    pthread_mutex_lock(&ex->lock);
    ex->is_suspended = true;
    MHD_suspend_connection(c);
    pthread_mutex_unlock(&ex->lock);
    if (qn_workers_add(&ex->server->workers, ex->route->handle, ex)) return;
    refuse_busy(ex);
    qn_exchange_leave(ex);
}

static enum MHD_Result take_request(void *arg, struct MHD_Connection *c, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *n_upload, void **state) {
    qn_exchange *ex = *state;
    (void)version;
    if (!ex) return begin(state, arg, c, url, method);
    if (*n_upload) {
        const enum MHD_Result taken = take_body(ex, upload, *n_upload);
        *n_upload = 0;
        return taken;
    }
    pthread_mutex_lock(&ex->lock);
    ex->is_read = true;
    const bool is_new = ex->phase == QN_READING;
    pthread_mutex_unlock(&ex->lock);
    if (is_new) dispatch(ex, c);
    pthread_mutex_lock(&ex->lock);
    const bool is_ready = ex->phase == QN_ANSWERING && !ex->is_suspended;
    pthread_mutex_unlock(&ex->lock);
    return is_ready ? send_answer(ex, c) : MHD_YES;
}

// A client that was dropped does not read: what the kernel still holds for it, megabytes, goes too.
static void forget_unread(int fd) {
    const struct linger none = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

static void end_request(void *arg, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode why) {
    qn_server *server = arg;
    qn_exchange *ex = *state;
    *state = NULL;
    qn_link *link = link_of(c);
    if (!ex) return;
    if (link) qn_link_end(&server->links, link);
    pthread_mutex_lock(&ex->lock);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && !ex->note) ex->note = "cut";
    if (link && ex->is_cut && ex->is_gone) forget_unread(link->fd);
    ex->connection = NULL;
    ex->phase = QN_ENDED;
    pthread_mutex_unlock(&ex->lock);
    qn_exchange_drop(ex);
    qn_logger_exchange(&server->logger, ex);
    qn_exchange_leave(ex);
}

static void take_connection(void *arg, struct MHD_Connection *c, void **context,
                            enum MHD_ConnectionNotificationCode what) {
    qn_server *server = arg;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        qn_link *link = info ? qn_link_add(&server->links, info->connect_fd) : NULL;
        if (link) link->server = server;
        *context = link;
    } else if (*context) {
        qn_link_remove(&server->links, *context);
        *context = NULL;
    }
}

// Which certificate a handshake shows. A connection without a link was not taken: it gets none.
static int show_certificate(gnutls_session_t session, const gnutls_datum_t *names, int n_names,
                            const gnutls_pk_algorithm_t *kinds, int n_kinds,
                            gnutls_pcert_st **certs, unsigned *n, gnutls_privkey_t *key) {
    struct MHD_Connection *c = gnutls_session_get_ptr(session);
    const qn_link *link = c ? link_of(c) : NULL;
    (void)names, (void)n_names, (void)kinds, (void)n_kinds;
    if (!link) return -1;
    qn_tls_show(&link->server->tls, certs, n, key);
    return 0;
}

// --- life ----------------------------------------------------------------------------------------

// A listening socket for the address.
static qn_status listen_on(int *out, const qn_server *s, qn_err *err) {
    const char *host = s->opts.host ? s->opts.host : "127.0.0.1";
    const struct addrinfo want = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", s->opts.port);
    const int why = getaddrinfo(host, port, &want, &found);
    if (why) return QN_FAIL(err, IO, "--host %s: %s", host, gai_strerror(why));
    int fd = -1, error = 0;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        const int yes = 1;
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
        if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
            break;
        error = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return QN_FAIL(err, IO, "cannot listen on %s, port %d: %s%s", host, s->opts.port,
                       strerror(error), error == EADDRINUSE ? "; --port chooses another one" : "");
    *out = fd;
    return QN_OK;
}

static int port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char port[16];
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, NULL, 0, port, sizeof port, NI_NUMERICSERV))
        return 0;
    return atoi(port);
}

// Connections at a time, which leave descriptors for models and files.
static unsigned max_connections(const qn_server *s) {
    enum { OTHERS = 128 };
    const rlim_t want = (rlim_t)s->limits.connections + OTHERS;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return (unsigned)s->limits.connections;
    if (files.rlim_cur < want) {
        files.rlim_cur = files.rlim_max < want ? files.rlim_max : want;
        (void)setrlimit(RLIMIT_NOFILE, &files); // else there are fewer connections
        (void)getrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur >= want) return (unsigned)s->limits.connections;
    if (files.rlim_cur > 2 * OTHERS) return (unsigned)files.rlim_cur - OTHERS;
    return files.rlim_cur > 4 * N_THREADS ? (unsigned)files.rlim_cur / 4 : N_THREADS;
}

// Of these, those of one address: nobody shall have them all. An address that only this machine
// reaches has no others to protect, and its clients have one address.
static unsigned max_connections_of_one(const qn_server *s, unsigned all) {
    return !s->opts.host || qn_host_is_local(s->opts.host) ? 0 : all / 2;
}

qn_status qn_http_start(qn_server *server, qn_err *err) {
    int fd;
    const unsigned max = max_connections(server);
    QN_TRY(listen_on(&fd, server, err));
    server->port = port_of(fd);
    const bool is_tls = qn_tls_is_on(&server->tls);
    char versions[] = "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1";
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                           (is_tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_THREAD_POOL_SIZE, N_THREADS, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, max, NULL},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, max_connections_of_one(server, max), NULL}, // 0: any
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_BYTES, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        // Without progress while sending or receiving. It sees some resets only then, too.
        {MHD_OPTION_CONNECTION_TIMEOUT, (server->limits.idle_ms + 999) / 1000, NULL},
        {is_tls ? MHD_OPTION_HTTPS_PRIORITIES : MHD_OPTION_END, 0, versions},
        {MHD_OPTION_END, 0, NULL}};
    server->daemon = MHD_start_daemon(flags, 0, NULL, NULL, take_request, server, MHD_OPTION_ARRAY,
                                      options, MHD_OPTION_NOTIFY_COMPLETED, end_request, server,
                                      MHD_OPTION_NOTIFY_CONNECTION, take_connection, server,
                                      is_tls ? MHD_OPTION_HTTPS_CERT_CALLBACK : MHD_OPTION_END,
                                      show_certificate, MHD_OPTION_END);
    if (server->daemon) return QN_OK;
    close(fd);
    return QN_FAIL(err, IO, "the HTTP library does not start%s",
                   is_tls ? " with TLS; was it built without?" : "");
}

// Nobody connects any more. The socket stays open until the library's threads, which take it out of
// their sets when they next wake, have ended: one that is closed before makes them abort.
void qn_http_quiesce(qn_server *server) {
    if (!server->daemon) return;
    const int fd = MHD_quiesce_daemon(server->daemon);
    if (fd < 0) return;
    (void)shutdown(fd, SHUT_RDWR);
    server->quiesced = fd + 1;
}

void qn_http_stop(qn_server *server) {
    if (server->daemon) MHD_stop_daemon(server->daemon);
    if (server->quiesced) close(server->quiesced - 1);
    server->quiesced = 0;
    server->daemon = NULL;
}
