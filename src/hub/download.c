#include "hub/download.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/pool.h"
#include "hub/digest.h"
#include "hub/filename.h"
#include "hub/partial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_CALLS = 4,        // connections at a time
    MAX_FAILURES = 6,     // one after the other, without anything that came in between
    LEAST_GAIN = 4096,    // bytes that count as something
    FIRST_PAUSE_MS = 200, // before the second try; each further one is twice as long
    LONGEST_WAIT = 300,   // seconds that a server may ask to wait
    POLL_MS = 100,
    HEADER = 32 << 20, // bytes that `look` gets to see
    MAGIC = 4,
    MS = 1000000,
};
static const int64_t save_ns = INT64_C(5) * 1000 * MS;

// --- what is offered -----------------------------------------------------------------------------

void qn_offered_deinit(qn_offered *offered) {
    qn_free(offered->url);
    offered->url = NULL;
}

// A page that says something else is what most wrong addresses have.
static qn_status check_magic(const qn_web_reply *reply, const char *path, const char *shown,
                             qn_err *err) {
    char begin[MAGIC + 1] = "";
    const size_t n = reply->body.size < MAGIC ? reply->body.size : MAGIC;
    if (!qn_name_is_gguf(path)) return QN_OK;
    if (n == MAGIC && memcmp(reply->body.data, "GGUF", MAGIC) == 0) return QN_OK;
    if (n) memcpy(begin, reply->body.data, n);
    return QN_FAIL(err, FORMAT, "%s: is no GGUF file: it begins with '%s'%s%s, want 'GGUF'", shown,
                   begin, *reply->head.type ? " and calls itself " : "", reply->head.type);
}

static qn_status read_offer(qn_offered *out, qn_web_reply *reply, const char *url, const char *path,
                            int64_t known, qn_err *err) {
    char shown[200];
    const qn_web_head *h = &reply->head;
    qn_web_shown(shown, url);
    if (h->status != 200 && h->status != 206)
        return qn_web_refused(h, qn_path_name(path), reply->url, err);
    const bool has_ranges = h->status == 206 && h->first == 0;
    const int64_t said = has_ranges ? h->total : h->status == 200 ? h->length : -1;
    const int64_t size = said < 0 ? known : said;
    if (size < 1)
        return QN_FAIL(err, IO, "%s: the server does not say how large the file is", shown);
    QN_TRY(check_magic(reply, path, shown, err));
    *out = (qn_offered){.url = reply->url, .size = size, .has_ranges = has_ranges};
    reply->url = NULL;
    memcpy(out->etag, h->etag, sizeof out->etag);
    memcpy(out->sha256, reply->sha256, sizeof out->sha256);
    return QN_OK;
}

qn_status qn_offered_init(qn_offered *out, const qn_web *web, const char *url, const char *path,
                          int64_t size, qn_err *err) {
    qn_web_reply reply;
    const qn_web_want want = {.n_bytes = MAGIC, .max = MAGIC};
    QN_TRY(qn_web_get(&reply, web, url, &want, err));
    const qn_status status = read_offer(out, &reply, url, path, size, err);
    qn_web_reply_deinit(&reply);
    return status;
}

// --- the state of a download ---------------------------------------------------------------------

typedef enum outcome {
    GOES_ON,
    AGAIN,   // the connection ended early, or the server is busy
    MOVED,   // the address no longer counts, the first one may
    IS_OVER, // it will not get better
} outcome;

typedef struct run run;

// One connection.
typedef struct worker {
    run *run;
    qn_web_call call;
    qn_gap *gap;     // that it fills; NULL: it is idle
    int64_t began;   // with this byte
    bool is_checked; // the head is what was asked for
    outcome outcome; // what the head or the body means
    qn_err why;
} worker;

struct run {
    const qn_download *d;
    qn_offered offered;
    qn_partial part;
    CURLM *multi;
    worker workers[MAX_CALLS];
    int64_t limit; // only what is before this byte, for now
    int64_t wait_until, saved;
    int failures;
    bool is_spoilt; // nothing of the part may be kept
};

// --- what comes ----------------------------------------------------------------------------------

// Codes of a server that may have changed its mind later, and of an address that ran out.
static outcome judge_status(long status) {
    static const struct {
        long status;
        outcome outcome;
    } rows[] = {{401, MOVED}, {403, MOVED}, {404, MOVED}, {410, MOVED}, {408, AGAIN},
                {429, AGAIN}, {500, AGAIN}, {502, AGAIN}, {503, AGAIN}, {504, AGAIN}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].status == status) return rows[i].outcome;
    }
    return status >= 300 && status < 400 ? MOVED : IS_OVER;
}

static outcome check_range(worker *w, const char *shown) {
    const qn_web_head *h = &w->call.head;
    const qn_gap *s = w->gap;
    if (h->first == s->done && h->last < s->end && h->total == w->run->part.size) return GOES_ON;
    (void)QN_FAIL(&w->why, IO,
                  "%s: the server sends bytes %lld to %lld of %lld, want %lld to %lld of %lld",
                  shown, (long long)h->first, (long long)h->last, (long long)h->total,
                  (long long)s->done, (long long)s->end - 1, (long long)w->run->part.size);
    return IS_OVER;
}

static outcome check_head(worker *w) {
    char shown[200];
    const run *r = w->run;
    qn_web_head *h = &w->call.head;
    curl_easy_getinfo(w->call.curl, CURLINFO_RESPONSE_CODE, &h->status);
    qn_web_shown(shown, r->d->url);
    if (h->status == 206 && r->offered.has_ranges) return check_range(w, shown);
    if (h->status == 200 && !r->offered.has_ranges) return GOES_ON;
    if (h->status == 200 || h->status == 416) {
        w->run->is_spoilt = true;
        (void)QN_FAIL(&w->why, IO, "%s: the file has changed since the download began", shown);
        return IS_OVER;
    }
    (void)qn_web_refused(h, qn_path_name(r->d->path), r->d->url, &w->why);
    return judge_status(h->status);
}

static qn_status write_all(const qn_partial *part, const char *bytes, size_t n, int64_t at,
                           qn_err *err) {
    while (n > 0) {
        const ssize_t done = pwrite(part->fd, bytes, n, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return QN_FAIL(err, IO, "%s: cannot write byte %lld: %s", part->path, (long long)at,
                           done ? strerror(errno) : "no room");
        bytes += done;
        n -= (size_t)done;
        at += done;
    }
    return QN_OK;
}

// A callback of the fetching library; another value than the bytes ends the transfer.
static size_t take_bytes(char *bytes, size_t size, size_t n, void *arg) {
    worker *w = arg;
    qn_gap *s = w->gap;
    const size_t all = size * n;
    if (!w->is_checked) w->outcome = check_head(w);
    w->is_checked = true;
    if (w->outcome != GOES_ON) return CURL_WRITEFUNC_ERROR;
    if ((int64_t)all > s->end - s->done) {
        char shown[200];
        qn_web_shown(shown, w->run->d->url);
        (void)QN_FAIL(&w->why, IO, "%s: the server sends more than the %lld bytes it was asked for",
                      shown, (long long)(s->end - w->began));
        w->outcome = IS_OVER;
    } else if (write_all(&w->run->part, bytes, all, s->done, &w->why)) {
        w->outcome = IS_OVER;
    }
    if (w->outcome != GOES_ON) return CURL_WRITEFUNC_ERROR;
    s->done += (int64_t)all;
    return all;
}

// --- connections ---------------------------------------------------------------------------------

static qn_gap *next_gap(const run *r) {
    for (size_t i = 0; i < r->part.n; i++) {
        qn_gap *s = &r->part.gaps[i];
        if (!s->is_busy && s->done < s->end && s->first < r->limit) return s;
    }
    return NULL;
}

static qn_status start(worker *w, qn_gap *s, qn_err *err) {
    run *r = w->run;
    const bool has_ranges = r->offered.has_ranges;
    // A sum says more; and mirrors of one content may have etags of their own.
    const bool needs_etag = has_ranges && !*r->d->sha256 && *r->offered.etag;
    const qn_web_part part = {.first = has_ranges ? s->done : -1,
                              .last = s->end - 1,
                              .if_range = needs_etag ? r->offered.etag : NULL,
                              .take = take_bytes,
                              .arg = w};
    if (!has_ranges) s->done = s->first; // from the beginning, as before
    QN_TRY(qn_web_call_init(&w->call, r->d->web, r->offered.url, &part, err));
    w->gap = s;
    w->began = s->done;
    w->is_checked = false;
    w->outcome = GOES_ON;
    s->is_busy = true;
    curl_easy_setopt(w->call.curl, CURLOPT_PRIVATE, w);
    if (curl_multi_add_handle(r->multi, w->call.curl) == CURLM_OK) return QN_OK;
    return QN_NOMEM(err, "a connection");
}

static void stop(worker *w) {
    if (!w->gap) return;
    (void)curl_multi_remove_handle(w->run->multi, w->call.curl);
    qn_web_call_deinit(&w->call);
    w->gap->is_busy = false;
    w->gap = NULL;
}

static qn_status start_all(run *r, qn_err *err) {
    const int n = r->offered.has_ranges ? MAX_CALLS : 1;
    if (qn_clock() < r->wait_until) return QN_OK;
    for (int i = 0; i < n; i++) {
        worker *w = &r->workers[i];
        qn_gap *s = w->gap ? NULL : next_gap(r);
        if (s) QN_TRY(start(w, s, err));
    }
    return QN_OK;
}

// --- what went wrong -----------------------------------------------------------------------------

// The address that the first one leads to now.
static qn_status find_again(run *r, qn_err *err) {
    qn_offered offered;
    QN_TRY(qn_offered_init(&offered, r->d->web, r->d->url, r->d->path, r->d->size, err));
    const bool is_same = *r->d->sha256 || strcmp(offered.etag, r->offered.etag) == 0;
    if (offered.size != r->part.size || offered.has_ranges != r->offered.has_ranges || !is_same) {
        qn_offered_deinit(&offered);
        char shown[200];
        qn_web_shown(shown, r->d->url);
        r->is_spoilt = true;
        return QN_FAIL(err, IO, "%s: the file has changed since the download began", shown);
    }
    qn_offered_deinit(&r->offered);
    r->offered = offered;
    return QN_OK;
}

// After a failure that may pass: waits, first a little, or as long as the server asks.
static qn_status pause_after(run *r, const worker *w, int64_t wait, qn_err *err) {
    const int64_t own = (int64_t)FIRST_PAUSE_MS * MS << (r->failures > 0 ? r->failures - 1 : 0);
    if (r->failures > MAX_FAILURES || wait > LONGEST_WAIT) {
        if (err) *err = w->why;
        return QN_IO;
    }
    const int64_t asked = wait * 1000 * MS;
    if (r->failures > 0) r->wait_until = qn_clock() + qn_max(own, asked);
    return QN_OK;
}

static qn_status recover(run *r, worker *w, int64_t gained, int64_t wait, qn_err *err) {
    if (gained >= LEAST_GAIN)
        r->failures = 0;
    else if (qn_clock() >= r->wait_until) // several that fail at a time are one failure
        r->failures++;
    if (w->outcome == IS_OVER) {
        if (err) *err = w->why;
        return QN_IO;
    }
    QN_TRY(pause_after(r, w, wait, err));
    return w->outcome == MOVED ? find_again(r, err) : QN_OK;
}

// A connection has ended, as it should or before.
static qn_status finish(run *r, worker *w, CURLcode code, qn_err *err) {
    char shown[200];
    const qn_gap *s = w->gap;
    const int64_t gained = s->done - w->began;
    qn_web_shown(shown, r->d->url);
    if (code == CURLE_OUT_OF_MEMORY) {
        stop(w);
        return QN_NOMEM(err, shown);
    }
    if (!w->is_checked && code == CURLE_OK) w->outcome = check_head(w); // there was no body
    const bool is_done = s->done == s->end && w->outcome == GOES_ON;
    if (!is_done && w->outcome == GOES_ON) {
        w->outcome = AGAIN;
        (void)QN_FAIL(&w->why, IO, "%s: ended %lld bytes early: %s", shown,
                      (long long)(s->end - s->done),
                      *w->call.why       ? w->call.why
                      : code == CURLE_OK ? "the server sent no more"
                                         : curl_easy_strerror(code));
    }
    const int64_t wait = w->call.head.wait;
    const bool restarts = !r->offered.has_ranges; // what came does not count then
    stop(w);
    if (!is_done) return recover(r, w, restarts ? 0 : gained, wait, err);
    r->failures = 0;
    return QN_OK;
}

static qn_status finish_all(run *r, qn_err *err) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(r->multi, &left)) != NULL;) {
        worker *w = NULL;
        const CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &w);
        QN_TRY(finish(r, w, code, err));
    }
    return QN_OK;
}

// --- the loop ------------------------------------------------------------------------------------

static bool is_busy(const run *r) {
    for (int i = 0; i < MAX_CALLS; i++) {
        if (r->workers[i].gap) return true;
    }
    return false;
}

static qn_status report(run *r, qn_err *err) {
    const qn_download *d = r->d;
    const int64_t now = qn_clock();
    if (d->progress && !d->progress(d->arg, d->size - qn_partial_missing(&r->part), d->size))
        return QN_FAIL(err, STOPPED, "%s: stopped", d->path);
    if (now - r->saved < save_ns) return QN_OK;
    r->saved = now;
    return qn_partial_save(&r->part, err);
}

// Everything before the limit.
static qn_status fetch(run *r, int64_t limit, qn_err *err) {
    int n;
    for (r->limit = limit; is_busy(r) || next_gap(r);) {
        QN_TRY(start_all(r, err));
        if (curl_multi_perform(r->multi, &n) != CURLM_OK) return QN_NOMEM(err, "connections");
        QN_TRY(finish_all(r, err));
        QN_TRY(report(r, err));
        if (is_busy(r) || qn_clock() < r->wait_until)
            (void)curl_multi_poll(r->multi, NULL, 0, POLL_MS, NULL);
    }
    return QN_OK;
}

static qn_status check_sum(run *r, qn_err *err) {
    char sum[QN_SHA256_TEXT];
    const qn_download *d = r->d;
    if (!*d->sha256) return QN_OK;
    if (d->stage) d->stage(d->arg, "checking");
    QN_TRY(qn_digest_file(sum, r->part.fd, d->size, d->path, d->progress, d->arg, err));
    if (strcmp(sum, d->sha256) == 0) return QN_OK;
    r->is_spoilt = true;
    return QN_FAIL(err, FORMAT, "%s: has the SHA-256 %s, want %s; it is not kept", d->path, sum,
                   d->sha256);
}

static qn_status fill(run *r, qn_err *err) {
    const qn_download *d = r->d;
    const int64_t head = qn_min(HEADER, d->size);
    r->saved = qn_clock();
    if (d->look && r->offered.has_ranges) {
        QN_TRY(fetch(r, head, err));
        QN_TRY(d->look(d->arg, r->part.fd, head, d->size, err));
    }
    QN_TRY(fetch(r, d->size, err));
    QN_TRY(check_sum(r, err));
    return qn_partial_commit(&r->part, d->path, err);
}

static qn_status open_run(run *r, const qn_download *d, qn_err *err) {
    char shown[200];
    qn_web_shown(shown, d->url);
    QN_TRY(qn_offered_init(&r->offered, d->web, d->url, d->path, d->size, err));
    if (r->offered.size != d->size)
        return QN_FAIL(err, FORMAT, "%s: has %lld bytes, want %lld", shown,
                       (long long)r->offered.size, (long long)d->size);
    for (int i = 0; i < MAX_CALLS; i++) r->workers[i].run = r;
    r->multi = curl_multi_init();
    if (!r->multi) return QN_NOMEM(err, "connections");
    const char *mark = *d->sha256 ? d->sha256 : r->offered.etag;
    QN_TRY(qn_partial_open(&r->part, d->path, d->size, mark, err));
    return r->offered.has_ranges ? QN_OK : qn_partial_restart(&r->part, err);
}

qn_status qn_download_run(const qn_download *d, qn_err *err) {
    run *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "a download");
    r->d = d;
    r->part.fd = -1;
    qn_status status = open_run(r, d, err);
    const bool has_part = !status;
    if (!status) status = fill(r, err);
    for (int i = 0; i < MAX_CALLS; i++) stop(&r->workers[i]);
    if (has_part && status && r->is_spoilt) qn_partial_drop(&r->part);
    if (has_part && status && !r->is_spoilt) {
        const qn_status saved = qn_partial_save(&r->part, NULL);
        (void)saved; // what was told first is what counts
    }
    qn_partial_close(&r->part);
    curl_multi_cleanup(r->multi);
    qn_offered_deinit(&r->offered);
    qn_free(r);
    return status;
}
