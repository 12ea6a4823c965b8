#include "server/exchange.h"

#include "core/mem.h"
#include "core/printable.h"
#include "server/problem.h"
#include "server/server_int.h"

#include <microhttpd.h>
#include <string.h>
#include <time.h>

int64_t qn_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

qn_status qn_exchange_create(qn_exchange **out, qn_server *server, qn_err *err) {
    qn_exchange *ex = qn_alloc(1, sizeof *ex);
    if (!ex || pthread_mutex_init(&ex->lock, NULL) != 0) {
        qn_free(ex);
        return QN_NOMEM(err, "a request");
    }
    const qn_status status = qn_stop_flag_create(&ex->stop, err);
    if (status) {
        pthread_mutex_destroy(&ex->lock);
        qn_free(ex);
        return status;
    }
    ex->server = server;
    ex->started = qn_clock_ns();
    atomic_init(&ex->owners, 1);
    *out = ex;
    return QN_OK;
}

// Bytes of the body count until the answer is there: a client that has it may ask again at once.
static void give_back(qn_exchange *ex) {
    atomic_fetch_sub(&ex->server->n_held, ex->n_held);
    ex->n_held = 0;
}

void qn_exchange_leave(qn_exchange *ex) {
    enum { LARGE = 1 << 20 }; // bytes of a request and its answer
    if (!ex || atomic_fetch_sub(&ex->owners, 1) != 1) return;
    const bool was_large = atomic_load(&ex->n_read) + (size_t)ex->n_written > LARGE;
    qn_server *server = ex->server;
    pthread_mutex_destroy(&ex->lock);
    give_back(ex);
    atomic_fetch_sub(&server->n_untaken, ex->n_untaken);
    qn_buf_deinit(&ex->body);
    qn_buf_deinit(&ex->out);
    qn_stop_flag_destroy(ex->stop);
    qn_free(ex->path);
    qn_free(ex->model);
    qn_free(ex->tag);
    qn_free(ex->wants);
    qn_free(ex);
    if (was_large) qn_server_trim_soon(server);
}

bool qn_exchange_add_body(qn_exchange *ex, const char *bytes, size_t n) {
    qn_server *s = ex->server;
    ex->n_held += n;
    if (atomic_fetch_add(&s->n_held, n) + n > s->limits.held) return false;
    qn_buf_add(&ex->body, bytes, n);
    return !ex->body.failed;
}

// --- answering -----------------------------------------------------------------------------------

// With the lock: lets the HTTP side go on.
static void resume(qn_exchange *ex) {
    if (!ex->is_suspended || !ex->connection) return;
    ex->is_suspended = false;
    MHD_resume_connection(ex->connection);
}

void qn_exchange_header(qn_exchange *ex, const char *name, const char *value) {
    if (ex->n_headers == QN_MAX_HEADERS) return;
    qn_header *h = &ex->headers[ex->n_headers];
    if (strlen(name) >= sizeof h->name || strlen(value) >= sizeof h->value) return;
    ex->n_headers++;
    memcpy(h->name, name, strlen(name) + 1);
    memcpy(h->value, value, strlen(value) + 1);
}

// Counts an answer until its client has it, or is gone. Short ones, as errors are, always go.
static bool hold_answer(qn_exchange *ex, size_t n) {
    enum { SHORT = 64 << 10 };
    qn_server *s = ex->server;
    const bool is_fine = atomic_fetch_add(&s->n_untaken, n) + n <= s->limits.untaken || n <= SHORT;
    if (is_fine)
        ex->n_untaken = n;
    else
        atomic_fetch_sub(&s->n_untaken, n);
    return is_fine;
}

static void refuse_answer(qn_exchange *ex) {
    qn_problem problem;
    (void)QN_REFUSE(&problem, 503, "",
                    "the server is busy: answers that their clients have not taken fill %zu bytes",
                    ex->server->limits.untaken);
    problem.retry_after = 1;
    qn_problem_reply(ex, &problem);
}

void qn_exchange_reply(qn_exchange *ex, int status, const char *type, qn_buf *body) {
    if (!hold_answer(ex, body->size)) {
        qn_buf_deinit(body);
        refuse_answer(ex);
        return;
    }
    pthread_mutex_lock(&ex->lock);
    qn_buf_deinit(&ex->out);
    ex->out = *body;
    *body = (qn_buf){0};
    ex->status = status;
    ex->type = type;
    ex->is_whole = true;
    ex->n_written = (int64_t)ex->out.size;
    ex->wrote = qn_clock_ns();
    ex->phase = QN_ANSWERING;
    give_back(ex);
    resume(ex);
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_begin(qn_exchange *ex, int status, const char *type, const char *ping) {
    pthread_mutex_lock(&ex->lock);
    ex->status = status;
    ex->type = type;
    ex->is_stream = true;
    ex->ping = ping;
    ex->wrote = qn_clock_ns();
    ex->phase = QN_ANSWERING;
    resume(ex);
    pthread_mutex_unlock(&ex->lock);
}

// With the lock: moves what is unsent to the front once that pays.
static void compact(qn_exchange *ex) {
    if (ex->sent < ex->out.size / 2) return;
    memmove(ex->out.data, ex->out.data + ex->sent, ex->out.size - ex->sent);
    ex->out.size -= ex->sent;
    ex->sent = 0;
}

// With the lock: adds bytes to a stream that has not ended. False: nobody will read them.
static bool add_bytes(qn_exchange *ex, const char *bytes, size_t n) {
    if (ex->is_gone) resume(ex); // the HTTP side shall see that
    if (ex->is_gone || ex->is_whole) return false;
    if (ex->out.size) compact(ex);
    const bool is_slow = ex->out.size - ex->sent + n > ex->server->limits.unsent;
    if (!is_slow) qn_buf_add(&ex->out, bytes, n);
    const bool is_lost = is_slow || ex->out.failed;
    if (is_lost) {
        ex->is_cut = ex->is_whole = ex->is_gone = true;
        qn_buf_deinit(&ex->out); // nobody will read it
        ex->sent = 0;
        ex->note = is_slow ? "dropped: reads too slowly" : "dropped: out of memory";
    }
    ex->n_written += is_lost ? 0 : (int64_t)n;
    ex->wrote = qn_clock_ns();
    resume(ex);
    return !is_lost;
}

bool qn_exchange_write(qn_exchange *ex, const char *bytes, size_t n) {
    pthread_mutex_lock(&ex->lock);
    const bool is_fine = add_bytes(ex, bytes, n);
    pthread_mutex_unlock(&ex->lock);
    return is_fine;
}

void qn_exchange_end(qn_exchange *ex, bool is_well) {
    pthread_mutex_lock(&ex->lock);
    ex->is_whole = true;
    ex->is_cut |= !is_well;
    give_back(ex);
    ex->wrote = qn_clock_ns();
    resume(ex);
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_tell_model(qn_exchange *ex, const char *name) {
    pthread_mutex_lock(&ex->lock);
    qn_text_cut(ex->served, sizeof ex->served, name);
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_tell_reason(qn_exchange *ex, const char *message) {
    pthread_mutex_lock(&ex->lock);
    // What becomes of an answer that nobody waits for is no news.
    if (!ex->is_gone) qn_text_cut(ex->reason, sizeof ex->reason, message);
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_tell_note(qn_exchange *ex, const char *note) {
    pthread_mutex_lock(&ex->lock);
    if (!ex->note) ex->note = note;
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_ping(qn_exchange *ex, int64_t silence_ns) {
    pthread_mutex_lock(&ex->lock);
    const bool is_due =
        ex->ping && ex->phase == QN_ANSWERING && qn_clock_ns() - ex->wrote > silence_ns;
    // In the same hold of the lock, so that no ping follows the end. Who is gone is noticed
    // elsewhere.
    if (is_due) (void)add_bytes(ex, ex->ping, strlen(ex->ping));
    pthread_mutex_unlock(&ex->lock);
}

void qn_exchange_drop(qn_exchange *ex) {
    pthread_mutex_lock(&ex->lock);
    ex->is_gone = true;
    pthread_mutex_unlock(&ex->lock);
    qn_stop_flag_set(ex->stop);
}

void qn_exchange_stop(qn_exchange *ex) { qn_stop_flag_set(ex->stop); }

// --- time ----------------------------------------------------------------------------------------

bool qn_exchange_is_busy(qn_exchange *ex) {
    pthread_mutex_lock(&ex->lock);
    const bool is_busy = ex->is_read;
    pthread_mutex_unlock(&ex->lock);
    return is_busy;
}

bool qn_exchange_is_late(qn_exchange *ex, int64_t now, int64_t since, int64_t idle_ns) {
    enum { BYTE_NS = 1000000000 / (64 << 10) }; // 64 KiB a second: slower than any line of today
    pthread_mutex_lock(&ex->lock);
    const int64_t read = (int64_t)atomic_load(&ex->n_read) * BYTE_NS;
    const int64_t unsent = (ex->is_stream ? (int64_t)(ex->out.size - ex->sent) : ex->n_written);
    const bool is_late = !ex->is_read
                             ? now - since > idle_ns + read
                             : ex->is_whole && now - ex->wrote > idle_ns + unsent * BYTE_NS;
    const bool is_dropped = ex->is_whole && ex->is_cut && ex->is_gone;
    pthread_mutex_unlock(&ex->lock);
    return is_late || is_dropped;
}
