// A server inside the test, and a client of plain sockets.
#ifndef QN_TESTS_SERVE_RIG_H
#define QN_TESTS_SERVE_RIG_H

#include "testing.h"

#include "core/buf.h"
#include "core/json.h"
#include "core/thread.h"
#include "server/server_int.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

// --- the server ----------------------------------------------------------------------------------

typedef struct serve_rig {
    qn_server *server;
    pthread_t thread;
    int port;
} serve_rig;

// A qn_open_fn: two threads, and the settings of the model's file.
static inline qn_status rig_open(void *arg, qn_engine **out, qn_sample_opts *sample,
                                 const char *path, qn_err *err) {
    (void)arg;
    QN_TRY(qn_engine_open(out, path, &QN_INIT(qn_engine_opts, .n_threads = 2), err));
    return sample ? qn_engine_sample_defaults(sample, *out, err) : QN_OK;
}

static inline qn_status rig_peek(void *arg, qn_engine **out, const char *path, qn_err *err) {
    (void)arg;
    return qn_engine_open(out, path, &QN_INIT(qn_engine_opts, .n_threads = 2, .no_weights = true),
                          err);
}

static inline void *rig_run(void *arg) {
    serve_rig *rig = arg;
    qn_err err;
    ASSERT_OK(qn_server_run(rig->server, &err));
    return NULL;
}

// Serves opts->model (NULL: the bundled one, unless a folder is given) on any port.
static inline void serve_start(serve_rig *rig, const qn_server_opts *opts) {
    qn_err err;
    qn_server_opts o = opts ? *opts : (qn_server_opts){0};
    if (!o.model && !o.folder) o.model = MODELS "/quern-mini-Q8_0.gguf";
    if (!o.open) o.open = rig_open;
    if (!o.peek) o.peek = rig_peek;
    if (!o.generate.size) o.generate = QN_INIT(qn_generate_opts);
    o.quiet = !o.log_json; // tests of the log ask for that
    o.page = true;
    *rig = (serve_rig){0};
    ASSERT_OK(qn_server_create(&rig->server, &o, &err));
    rig->port = qn_server_port(rig->server);
    assert_true(qn_thread_start(&rig->thread, rig_run, rig));
}

static inline void serve_stop(serve_rig *rig) {
    qn_server_stop(rig->server);
    pthread_join(rig->thread, NULL);
    qn_server_destroy(rig->server);
}

// Rows of all models, computed and waiting.
static inline int64_t serve_rows(const serve_rig *rig) {
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    (void)qn_registry_counts(&rig->server->registry, &counts);
    return counts.rows + counts.queued;
}

// Waits until fn(rig) is `want`; the test's time limit ends what never comes.
static inline void serve_wait(const serve_rig *rig, int64_t (*fn)(const serve_rig *rig),
                              int64_t want) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    while (fn(rig) != want) nanosleep(&pause, NULL);
}

static inline int64_t serve_jobs(const serve_rig *rig) { return atomic_load(&rig->server->n_jobs); }

static inline int64_t serve_links(const serve_rig *rig) {
    return qn_links_count(&rig->server->links);
}

// --- the client ----------------------------------------------------------------------------------

static inline int serve_connect(const serve_rig *rig) {
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)rig->port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static inline void serve_send(int fd, const char *bytes, size_t n) {
    for (size_t sent = 0; sent < n;) {
        const ssize_t k = send(fd, bytes + sent, n - sent, MSG_NOSIGNAL);
        if (k <= 0) return; // the server has closed it: what it said is read
        sent += (size_t)k;
    }
}

// An answer; release with http_deinit.
typedef struct http_answer {
    int status;    // 0: the connection ended without one
    qn_buf head;   // status line and headers
    qn_buf body;   // without its chunks' sizes
    bool is_whole; // it came to its end
} http_answer;

static inline void http_deinit(http_answer *a) {
    qn_buf_deinit(&a->head);
    qn_buf_deinit(&a->body);
    *a = (http_answer){0};
}

// The value of a header; NULL: it is not there. Borrowed, up to the end of the line.
static inline const char *http_header(const http_answer *a, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = a->head.data; at; at = strstr(at, "\r\n")) {
        if (*at == '\r') at += 2;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':') return at + n + 1 + (at[n + 1] == ' ');
    }
    return NULL;
}

// Takes the sizes of chunks out of `raw`; true if the last one is there.
static inline bool http_unchunk(qn_buf *to, const char *raw, size_t size) {
    for (size_t at = 0; at < size;) {
        char *end;
        const size_t n = strtoul(raw + at, &end, 16);
        const char *data = strstr(raw + at, "\r\n");
        if (!data || n == 0) return data && n == 0;
        data += 2;
        const size_t left = size - (size_t)(data - raw);
        qn_buf_add(to, data, n < left ? n : left);
        if (left < n + 2) return false;
        at = (size_t)(data - raw) + n + 2;
    }
    return false;
}

// Reads one answer up to its end; the connection must be closed by the server after it
// ("Connection: close").
static inline http_answer http_read(int fd) {
    http_answer a = {0};
    qn_buf raw = {0};
    char block[4096];
    for (ssize_t n; (n = recv(fd, block, sizeof block, 0)) > 0;) qn_buf_add(&raw, block, (size_t)n);
    const char *end = raw.data ? strstr(raw.data, "\r\n\r\n") : NULL;
    if (end) {
        const char *body = end + 4;
        const size_t size = raw.size - (size_t)(body - raw.data);
        qn_buf_add(&a.head, raw.data, (size_t)(body - raw.data));
        a.status = atoi(raw.data + strlen("HTTP/1.1 "));
        const char *chunked = http_header(&a, "Transfer-Encoding");
        const char *length = http_header(&a, "Content-Length");
        if (chunked) a.is_whole = http_unchunk(&a.body, body, size);
        if (!chunked) qn_buf_add(&a.body, body, size);
        if (!chunked) a.is_whole = length && strtoul(length, NULL, 10) == size;
    }
    qn_buf_deinit(&raw);
    return a;
}

// Reads one answer of a connection that stays open, byte by byte. `has_body` false: of HEAD.
static inline http_answer http_read_one(int fd, bool has_body) {
    http_answer a = {0};
    qn_buf raw = {0};
    size_t want = SIZE_MAX; // bytes of the body; SIZE_MAX - 1: in chunks
    char c;
    while (recv(fd, &c, 1, 0) == 1) {
        if (want == SIZE_MAX) {
            qn_buf_add(&a.head, &c, 1);
            if (a.head.size < 4 || memcmp(a.head.data + a.head.size - 4, "\r\n\r\n", 4) != 0)
                continue;
            a.status = atoi(a.head.data + strlen("HTTP/1.1 "));
            const char *length = http_header(&a, "Content-Length");
            want = length ? strtoul(length, NULL, 10) : SIZE_MAX - 1;
            if (a.status < 200 || a.status == 204 || !has_body) want = 0;
        } else {
            qn_buf_add(&raw, &c, 1);
        }
        a.is_whole = want == SIZE_MAX - 1
                         ? raw.size >= 5 && memcmp(raw.data + raw.size - 5, "0\r\n\r\n", 5) == 0
                         : raw.size == want;
        if (a.is_whole) break;
    }
    if (want == SIZE_MAX - 1)
        (void)http_unchunk(&a.body, raw.data ? raw.data : "", raw.size);
    else
        qn_buf_add(&a.body, raw.data ? raw.data : "", raw.size);
    qn_buf_deinit(&raw);
    return a;
}

// A request with further headers ("Name: value\r\n", may be ""), and its answer. body NULL: none.
static inline http_answer http_with(const serve_rig *rig, const char *method, const char *path,
                                    const char *headers, const char *body) {
    qn_buf request = {0};
    qn_buf_printf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method,
                  path, headers);
    if (body)
        qn_buf_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      strlen(body));
    qn_buf_text(&request, "\r\n");
    if (body) qn_buf_text(&request, body);
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&request);
    http_answer a = http_read(fd);
    close(fd);
    return a;
}

static inline http_answer http_get(const serve_rig *rig, const char *path) {
    return http_with(rig, "GET", path, "", NULL);
}

static inline http_answer http_post(const serve_rig *rig, const char *path, const char *body) {
    return http_with(rig, "POST", path, "", body);
}

// The body as JSON, to be released by json_decref; it must be valid.
static inline json_t *http_json(const http_answer *a) {
    qn_err err;
    json_t *value = NULL;
    const qn_json_opts opts = {.what = "an answer", .any = true};
    ASSERT_OK(
        qn_json_parse_as(&value, a->body.data ? a->body.data : "", a->body.size, &opts, &err));
    return value;
}

// A POST that must be answered with this status; its JSON, to be released.
static inline json_t *post_json(const serve_rig *rig, const char *path, const char *body,
                                int status) {
    http_answer a = http_post(rig, path, body);
    if (a.status != status)
        fail_msg("POST %s: status %d, want %d: %s", path, a.status, status,
                 a.body.data ? a.body.data : "");
    assert_true(a.is_whole);
    json_t *value = http_json(&a);
    http_deinit(&a);
    return value;
}

// A value inside another by a path: "choices.0.message.content"; NULL: there is none.
static inline json_t *json_at(const json_t *value, const char *path) {
    json_t *at = (json_t *)(uintptr_t)value;
    for (const char *p = path; at && *p;) {
        char name[64];
        const size_t n = strcspn(p, ".");
        assert_true(n < sizeof name);
        memcpy(name, p, n);
        name[n] = 0;
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        p += n + (p[n] == '.');
    }
    return at;
}

static inline const char *text_at(const json_t *value, const char *path) {
    const char *text = json_string_value(json_at(value, path));
    if (!text) fail_msg("there is no text at %s", path);
    return text;
}

// JSON in C strings is easier to read with ' in place of ": its text, to be freed, and its value,
// to be released.
static inline char *json_text(const char *text) {
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++) *c = *c == '\'' ? '"' : *c;
    return copy;
}

static inline json_t *json_of(const char *text) {
    qn_err err;
    json_t *value = NULL;
    const qn_json_opts opts = {.what = "a case", .any = true};
    char *copy = json_text(text);
    ASSERT_OK(qn_json_parse_as(&value, copy, strlen(copy), &opts, &err));
    free(copy);
    return value;
}

// The value must be equal to the JSON `want`, with ' in place of ". `of` is told if it is not.
static inline void assert_json(const json_t *value, const char *want, const char *of) {
    json_t *expected = json_of(want);
    if (!json_equal(value, expected)) {
        qn_buf text = {0};
        qn_json_write(&text, value, &(qn_json_form){.compact = true});
        fail_msg("%s\n  is   %s\n  want %s", of, text.data, want);
    }
    json_decref(expected);
}

// A request whose JSON has ' in place of ".
static inline json_t *post_quoted(const serve_rig *rig, const char *path, const char *body,
                                  int status) {
    char *text = json_text(body);
    json_t *a = post_json(rig, path, text, status);
    free(text);
    return a;
}

// The message of an error must have this part.
static inline void assert_says(const json_t *error, const char *part) {
    if (!strstr(text_at(error, "error.message"), part))
        fail_msg("'%s' does not contain '%s'", text_at(error, "error.message"), part);
}

// Requests that get a 400: the field it names (NULL: the dialect names none), and a part of what it
// says.
typedef struct refused_case {
    const char *body, *param, *part;
} refused_case;

static inline void assert_all_refused(const serve_rig *rig, const char *path,
                                      const refused_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        json_t *a = post_quoted(rig, path, cases[i].body, 400);
        assert_string_equal(text_at(a, "error.type"), "invalid_request_error");
        if (cases[i].param) assert_string_equal(text_at(a, "error.param"), cases[i].param);
        assert_says(a, cases[i].part);
        json_decref(a);
    }
}

// A chat template, as a file, whose prompts end in an open reasoning block: what the model writes
// is reasoning.
static inline void write_thinking_template(char *path, size_t size) {
    static const char text[] =
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' "
        "}}{%- endfor %}{{- '<|im_start|>assistant\\n<think>\\n' }}";
    snprintf(path, size, "/tmp/quern-thinking-%ld.jinja", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

// --- streams -------------------------------------------------------------------------------------

// The events of a stream as a list of {"event": name or null, "data": JSON or text}; to be
// released.
static inline json_t *sse_events(const http_answer *a) {
    json_t *events = json_array();
    const char *at = a->body.data;
    const char *name = NULL;
    size_t name_size = 0;
    while (at && *at) {
        const char *line = at, *end = strchr(at, '\n');
        assert_non_null(end);
        const size_t n = (size_t)(end - line);
        at = end + 1;
        if (n > 7 && strncmp(line, "event: ", 7) == 0) name = line + 7, name_size = n - 7;
        if (n <= 6 || strncmp(line, "data: ", 6) != 0) continue;
        qn_err err;
        json_t *data = NULL;
        const qn_json_opts opts = {.what = "an event", .any = true};
        if (line[6] == '{')
            ASSERT_OK(qn_json_parse_as(&data, line + 6, n - 6, &opts, &err));
        else
            data = json_stringn(line + 6, n - 6);
        json_array_append_new(events,
                              json_pack("{s:o?, s:o}", "event",
                                        name ? json_stringn(name, name_size) : NULL, "data", data));
        name = NULL;
    }
    return events;
}

// --- the log -------------------------------------------------------------------------------------

// stderr goes into a file meanwhile.
typedef struct capture {
    int before, fd;
} capture;

static inline capture begin_capture(void) {
    char path[] = "/tmp/quern_log_XXXXXX";
    capture c = {.before = dup(STDERR_FILENO), .fd = mkstemp(path)};
    assert_true(c.before >= 0 && c.fd >= 0);
    unlink(path);
    assert_int_equal(dup2(c.fd, STDERR_FILENO), STDERR_FILENO);
    return c;
}

static inline qn_buf end_capture_text(const capture *c) {
    qn_buf text = {0};
    char block[4096];
    assert_int_equal(dup2(c->before, STDERR_FILENO), STDERR_FILENO);
    assert_int_equal(lseek(c->fd, 0, SEEK_SET), 0);
    for (ssize_t n; (n = read(c->fd, block, sizeof block)) > 0;)
        qn_buf_add(&text, block, (size_t)n);
    close(c->before);
    close(c->fd);
    return text;
}

// The lines, as values; to be released.
static inline json_t *end_capture(const capture *c) {
    json_t *lines = json_array();
    qn_buf text = end_capture_text(c);
    for (char *at = text.data, *end; at && (end = strchr(at, '\n')); at = end + 1) {
        qn_err err;
        json_t *line = NULL;
        ASSERT_OK(qn_json_parse(&line, at, (size_t)(end - at), false, "a line of the log", &err));
        json_array_append_new(lines, line);
    }
    qn_buf_deinit(&text);
    return lines;
}

// The line that has this member; NULL: none has.
static inline const json_t *line_with(const json_t *lines, const char *member) {
    for (size_t i = 0; i < json_array_size(lines); i++) {
        if (json_object_get(json_array_get(lines, i), member)) return json_array_get(lines, i);
    }
    return NULL;
}

#endif
