#include "server/logger.h"

#include "core/printable.h"
#include "core/utf8.h"
#include "server/exchange.h"
#include "server/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

qn_status qn_logger_init(qn_logger *logger, const qn_server_opts *opts, qn_err *err) {
    *logger = (qn_logger){
        .is_json = opts->log_json, .is_quiet = opts->quiet, .has_prompts = opts->log_prompts};
    return pthread_mutex_init(&logger->lock, NULL) == 0 ? QN_OK : QN_NOMEM(err, "a lock");
}

void qn_logger_deinit(qn_logger *logger) { pthread_mutex_destroy(&logger->lock); }

// "2026-01-02T03:04:05.678Z"
static void print_now(char *to, size_t size) {
    struct timespec now;
    struct tm parts;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(to, size, "%s.%03dZ", text, (int)(now.tv_nsec / 1000000));
}

// A text from outside, cut.
static void show(char *to, size_t size, const char *text) {
    snprintf(to, size, "%s", text);
    qn_text_clean(to);
}

// One write, so that lines of several threads and programs do not mix.
static void put(qn_logger *logger, qn_buf *line) {
    qn_buf_add(line, "\n", 1);
    pthread_mutex_lock(&logger->lock);
    // A log that cannot be written is nobody's error.
    if (!line->failed && write(STDERR_FILENO, line->data, line->size) < 0) line->failed = true;
    pthread_mutex_unlock(&logger->lock);
    qn_buf_deinit(line);
}

static void put_json(qn_logger *logger, json_t *object) {
    qn_buf line = {0};
    const qn_json_form form = {.compact = true, .digits = 15}; // 12.3 is 12.3
    if (object) qn_json_write(&line, object, &form);
    json_decref(object);
    put(logger, &line);
}

static json_t *begin_json(const char *level) {
    char now[64];
    json_t *o = json_object();
    print_now(now, sizeof now);
    qn_json_put(&o, "time", json_string(now));
    qn_json_put(&o, "level", json_string(level));
    return o;
}

void qn_logger_say(qn_logger *logger, const char *level, const char *fmt, ...) {
    if (logger->is_quiet && strcmp(level, "info") == 0) return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_text_clean(text);
    if (logger->is_json) {
        json_t *o = begin_json(level);
        qn_json_put(&o, "message", qn_json_string(text, strlen(text)));
        put_json(logger, o);
        return;
    }
    qn_buf line = {0};
    qn_buf_printf(&line, strcmp(level, "info") == 0 ? "quern: %s%s" : "quern: %s: %s",
                  strcmp(level, "info") == 0 ? "" : level, text);
    put(logger, &line);
}

// The id of ours, and the client's own, which it finds its requests by.
static void put_ids(json_t **o, const qn_exchange *ex) {
    qn_json_put(o, "request", json_string(ex->id));
    if (ex->wants) qn_json_put(o, "client_request", json_string(ex->wants));
}

static void print_ids(qn_buf *line, const qn_exchange *ex) {
    qn_buf_printf(line, "[%s%s%s]", ex->id, ex->wants ? " " : "", ex->wants ? ex->wants : "");
}

// A text from outside, on one line: what steers a terminal is escaped.
static void add_escaped(qn_buf *line, const char *text) {
    const size_t size = strlen(text);
    for (size_t i = 0; i < size;) {
        uint32_t code = 0;
        const size_t n = qn_utf8_decode(text + i, size - i, &code);
        const bool is_wrong = n == 0, is_hidden = qn_code_is_control(code) || qn_code_turns(code);
        if (is_wrong)
            qn_buf_printf(line, "\\x%02x", (unsigned)(unsigned char)text[i]);
        else if (code == '\n')
            qn_buf_text(line, "\\n");
        else if (is_hidden)
            qn_buf_printf(line, code < 256 ? "\\x%02x" : "\\u%04x", (unsigned)code);
        else
            qn_buf_add(line, text + i, n);
        i += n ? n : 1;
    }
}

// What is told of an exchange that has ended.
typedef struct ended {
    int status;
    int64_t n_written, n_prompt, n_generated;
    double ms; // a tenth is the last digit
    const char *level, *note;
    char reason[QN_MAX_REASON], served[sizeof((qn_exchange *)0)->served];
} ended;

static void look(ended *to, qn_exchange *ex) {
    pthread_mutex_lock(&ex->lock); // whoever answers may not have noticed the end yet
    *to = (ended){.status = ex->status,
                  .n_written = ex->n_written,
                  .n_prompt = atomic_load(&ex->n_prompt),
                  .n_generated = atomic_load(&ex->n_generated),
                  .ms = (double)((qn_clock_ns() - ex->started) / 100000) / 10,
                  .note = ex->note};
    memcpy(to->reason, ex->reason, sizeof to->reason);
    memcpy(to->served, ex->served, sizeof to->served);
    pthread_mutex_unlock(&ex->lock);
    // Streams that fail have begun with status 200; 501 is for what clients wrongly hope for.
    to->level = (to->status >= 500 && to->status != 501) || (to->status == 200 && *to->reason)
                    ? "error"
                : to->status >= 400 ? "warning"
                                    : "info";
}

static void put_ended_json(qn_logger *logger, const qn_exchange *ex, const ended *e) {
    json_t *o = begin_json(e->level);
    put_ids(&o, ex);
    qn_json_put(&o, "method", json_string(ex->method));
    qn_json_put(&o, "path", qn_json_string(ex->path, strlen(ex->path)));
    qn_json_put(&o, "status", json_integer(e->status));
    qn_json_put(&o, "ms", qn_json_real(e->ms));
    qn_json_put(&o, "bytes_in", json_integer((json_int_t)atomic_load(&ex->n_read)));
    qn_json_put(&o, "bytes_out", json_integer(e->n_written));
    if (*e->served) qn_json_put(&o, "model", qn_json_string(e->served, strlen(e->served)));
    if (e->n_prompt) {
        qn_json_put(&o, "prompt_tokens", json_integer(e->n_prompt));
        qn_json_put(&o, "answer_tokens", json_integer(e->n_generated));
    }
    if (*e->reason) qn_json_put(&o, "reason", qn_json_string(e->reason, strlen(e->reason)));
    if (e->note) qn_json_put(&o, "note", json_string(e->note));
    put_json(logger, o);
}

void qn_logger_exchange(qn_logger *logger, qn_exchange *ex) {
    ended e;
    look(&e, ex);
    // What clients do wrong is theirs to know, unless somebody looks.
    if (logger->is_quiet && strcmp(e.level, "error") != 0) return;
    if (logger->is_json) {
        put_ended_json(logger, ex, &e);
        return;
    }
    qn_buf line = {0};
    char path[128];
    show(path, sizeof path, ex->path);
    qn_buf_printf(&line, "%s %s %d %.1f ms, ", ex->method, path, e.status, e.ms);
    if (*e.served) add_escaped(&line, e.served);
    if (*e.served) qn_buf_text(&line, ", ");
    if (e.n_prompt)
        qn_buf_printf(&line, "%lld + %lld tokens, ", (long long)e.n_prompt,
                      (long long)e.n_generated);
    qn_buf_printf(&line, "%lld bytes ", (long long)e.n_written);
    print_ids(&line, ex);
    if (e.note) qn_buf_printf(&line, " %s", e.note);
    if (*e.reason) qn_buf_text(&line, ": ");
    add_escaped(&line, e.reason);
    put(logger, &line);
}

void qn_logger_field(qn_logger *logger, const qn_exchange *ex, const char *name) {
    char shown[64];
    show(shown, sizeof shown, name);
    qn_logger_say(logger, "info", "%s %s: the field '%s' is not known, and ignored [%s]",
                  ex->method, ex->path, shown, ex->id);
}

// The members of a body that are read by the model, in any dialect, as JSON.
static void write_prompt(qn_buf *to, const json_t *body) {
    static const char *const members[] = {"system", "instructions", "messages",
                                          "prompt", "input",        "content"};
    const qn_json_form form = {.compact = true};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(body, members[i]);
        if (!value) continue;
        qn_buf_printf(to, "%s\"%s\":", to->size ? "," : "{", members[i]);
        qn_json_write(to, value, &form);
    }
    if (to->size) qn_buf_text(to, "}");
}

void qn_logger_prompt(qn_logger *logger, const qn_exchange *ex, const json_t *body) {
    enum { MAX_SHOWN = 16 << 10 };
    if (!logger->has_prompts || logger->is_quiet) return;
    qn_buf text = {0};
    write_prompt(&text, body);
    if (text.failed || text.size == 0) {
        qn_buf_deinit(&text);
        return;
    }
    size_t n = text.size < MAX_SHOWN ? text.size : MAX_SHOWN;
    n -= qn_utf8_incomplete_tail(text.data, n);
    if (logger->is_json) {
        json_t *o = begin_json("info");
        put_ids(&o, ex);
        qn_json_put(&o, "prompt", qn_json_string(text.data, n));
        qn_json_put(&o, "prompt_bytes", json_integer((json_int_t)text.size));
        put_json(logger, o);
    } else {
        qn_buf line = {0};
        qn_buf_text(&line, "prompt ");
        print_ids(&line, ex);
        qn_buf_text(&line, " ");
        qn_buf_add(&line, text.data, n);
        if (n < text.size) qn_buf_printf(&line, " ... (%zu bytes)", text.size);
        put(logger, &line);
    }
    qn_buf_deinit(&text);
}
