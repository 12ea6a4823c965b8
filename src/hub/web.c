#include "hub/web.h"

#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_REDIRECTS = 8, CONNECT_SECONDS = 30, STALL_SECONDS = 60, LONGEST_ADDRESS = 16384 };

struct qn_web {
    qn_web_opts opts;
};

qn_status qn_web_open(qn_web **out, const qn_web_opts *opts, qn_err *err) {
    qn_web *web = qn_alloc(1, sizeof *web);
    if (!web || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        qn_free(web);
        return QN_NOMEM(err, "the network");
    }
    web->opts = *opts;
    *out = web;
    return QN_OK;
}

void qn_web_close(qn_web *web) {
    if (!web) return;
    curl_global_cleanup();
    qn_free(web);
}

const qn_web_opts *qn_web_get_opts(const qn_web *web) { return &web->opts; }

// The bytes of a user and a password, with the "@" behind them; *begin is where they are.
static size_t user_size(size_t *begin, const char *url) {
    const char *slashes = strstr(url, "://"), *end = NULL;
    *begin = slashes ? (size_t)(slashes - url) + strlen("://") : 0;
    for (const char *at = url + *begin; *at && !strchr("/?#", *at); at++)
        if (*at == '@') end = at + 1;
    return end ? (size_t)(end - url) - *begin : 0;
}

void qn_web_public(qn_buf *to, const char *url) {
    size_t begin;
    const size_t n = user_size(&begin, url);
    qn_buf_add(to, url, begin);
    qn_buf_add(to, url + begin + n, strcspn(url + begin + n, "?#"));
}

void qn_web_shown(char out[200], const char *url) {
    enum { MOST = 190 };
    size_t begin;
    const size_t n = user_size(&begin, url);
    const char *rest = url + begin + n;
    const int before = begin > MOST ? MOST : (int)begin;
    const size_t size = strcspn(rest, "?#"), room = (size_t)(MOST - before);
    snprintf(out, 200, "%.*s%.*s%s", before, url, size > room ? (int)room : (int)size, rest,
             size > room ? "..." : "");
}

// --- addresses -----------------------------------------------------------------------------------

// Whether both lead to the same server in the same way.
static bool is_same_place(const char *a, const char *b) {
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *x = curl_url(), *y = curl_url();
    bool is_same = x && y && curl_url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                   curl_url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK;
    for (size_t i = 0; is_same && i < sizeof parts / sizeof *parts; i++) {
        char *p = NULL, *q = NULL;
        is_same = curl_url_get(x, parts[i], &p, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                  curl_url_get(y, parts[i], &q, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                  strcasecmp(p, q) == 0;
        curl_free(p);
        curl_free(q);
    }
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return is_same;
}

static bool is_scheme(const char *url, const char *scheme) {
    return strncasecmp(url, scheme, strlen(scheme)) == 0;
}

// Where `location`, found at `from`, leads (owned: curl_free).
static qn_status follow(char **out, const char *from, const char *location, qn_err *err) {
    char shown[200], there[200];
    char *url = NULL;
    CURLU *address = curl_url();
    if (!address) return QN_NOMEM(err, "an address");
    CURLUcode code = curl_url_set(address, CURLUPART_URL, from, 0);
    if (!code) code = curl_url_set(address, CURLUPART_URL, location, CURLU_DISALLOW_USER);
    if (!code) code = curl_url_get(address, CURLUPART_URL, &url, 0);
    curl_url_cleanup(address);
    if (code == CURLUE_OUT_OF_MEMORY) return QN_NOMEM(err, "an address");
    qn_web_shown(shown, from);
    qn_web_shown(there, url ? url : location);
    const bool is_web = !code && (is_scheme(url, "https://") || is_scheme(url, "http://"));
    qn_status status = QN_OK;
    if (!is_web)
        status = QN_FAIL(err, IO, "%s: leads to '%s', which is not followed", shown, there);
    else if (is_scheme(from, "https://") && !is_scheme(url, "https://"))
        status =
            QN_FAIL(err, IO, "%s: leads from https to '%s', which is not followed", shown, there);
    if (status)
        curl_free(url);
    else
        *out = url;
    return status;
}

// --- what an answer says -------------------------------------------------------------------------

static int64_t read_number(const char *text) {
    char *end;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    return errno || end == text || *text < '0' || *text > '9' ? -1 : n;
}

// "bytes 0-99/1234"
static void take_range(qn_web_head *h, const char *value) {
    long long first, last, total;
    if (sscanf(value, "bytes %18lld-%18lld/%18lld", &first, &last, &total) != 3) return;
    h->first = first;
    h->last = last;
    h->total = total;
}

static void take_length(qn_web_head *h, const char *value) { h->length = read_number(value); }
static void take_wait(qn_web_head *h, const char *value) { h->wait = read_number(value); }
static void take_type(qn_web_head *h, const char *value) {
    snprintf(h->type, sizeof h->type, "%.*s", (int)strcspn(value, "; "), value);
}

// A weak one ("W/...") does not promise the same bytes.
static void take_etag(qn_web_head *h, const char *value) {
    if (*value == '"' && strlen(value) < sizeof h->etag)
        snprintf(h->etag, sizeof h->etag, "%s", value);
}

static void take_sha256(qn_web_head *h, const char *value) {
    if (*value == '"') value++;
    if (strspn(value, "0123456789abcdef") != QN_SHA256_TEXT - 1) return;
    memcpy(h->sha256, value, QN_SHA256_TEXT - 1);
    h->sha256[QN_SHA256_TEXT - 1] = 0;
}

static void take_location(qn_web_head *h, const char *value) {
    qn_free(h->location);
    h->location = strndup(value, LONGEST_ADDRESS);
}

// <https://...>; rel="next"
static void take_links(qn_web_head *h, const char *value) {
    const char *end = strchr(value, '>');
    if (*value != '<' || !end || !strstr(end, "rel=\"next\"")) return;
    qn_free(h->next);
    h->next = strndup(value + 1, (size_t)(end - value - 1));
}

static const struct {
    const char *name;
    void (*take)(qn_web_head *h, const char *value);
} fields[] = {
    {"content-length:", take_length},
    {"content-range:", take_range},
    {"retry-after:", take_wait},
    {"content-type:", take_type},
    {"etag:", take_etag},
    {"x-linked-etag:", take_sha256},
    {"location:", take_location},
    {"link:", take_links},
};

static void clear_head(qn_web_head *h) {
    qn_free(h->location);
    qn_free(h->next);
    *h = (qn_web_head){.length = -1, .first = -1, .last = -1, .total = -1, .wait = -1};
}

// Lines of the head, and of one that came before ("100 Continue").
static size_t take_head(char *bytes, size_t size, size_t n, void *arg) {
    qn_web_call *call = arg;
    char line[LONGEST_ADDRESS];
    const size_t all = size * n;
    if (all >= 5 && memcmp(bytes, "HTTP/", 5) == 0) clear_head(&call->head);
    if (all >= sizeof line) return all;
    memcpy(line, bytes, all);
    line[all] = 0;
    line[strcspn(line, "\r\n")] = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const size_t name = strlen(fields[i].name);
        if (strncasecmp(line, fields[i].name, name) != 0) continue;
        fields[i].take(&call->head, line + name + strspn(line + name, " \t"));
    }
    return all;
}

// --- one request ---------------------------------------------------------------------------------

static bool add_header(struct curl_slist **list, const char *name, const char *value) {
    qn_buf line = {0};
    qn_buf_printf(&line, "%s: %s", name, value);
    struct curl_slist *more = line.failed ? NULL : curl_slist_append(*list, line.data);
    if (more) *list = more;
    qn_buf_deinit(&line);
    return more != NULL;
}

static bool add_headers(qn_web_call *call, const qn_web *web, const char *url,
                        const qn_web_part *part) {
    struct curl_slist **list = &call->headers;
    qn_buf token = {0};
    bool is_fine = true;
    if (web->opts.token && is_same_place(url, web->opts.endpoint)) {
        qn_buf_printf(&token, "Bearer %s", web->opts.token);
        is_fine = !token.failed && add_header(list, "Authorization", token.data);
        qn_buf_deinit(&token);
    }
    if (is_fine && part->if_range) is_fine = add_header(list, "If-Range", part->if_range);
    return is_fine;
}

qn_status qn_web_call_init(qn_web_call *call, const qn_web *web, const char *url,
                           const qn_web_part *part, qn_err *err) {
    char range[64];
    *call = (qn_web_call){.curl = curl_easy_init()};
    CURL *c = call->curl;
    clear_head(&call->head);
    if (!c || !add_headers(call, web, url, part)) {
        qn_web_call_deinit(call);
        return QN_NOMEM(err, "a request");
    }
    snprintf(range, sizeof range, "%lld-%lld", (long long)part->first, (long long)part->last);
    // Without its range, the answer would be taken for a file that has changed.
    if ((part->first >= 0 && curl_easy_setopt(c, CURLOPT_RANGE, range) != CURLE_OK) ||
        curl_easy_setopt(c, CURLOPT_URL, url) != CURLE_OK) {
        qn_web_call_deinit(call);
        return QN_NOMEM(err, "a request");
    }
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, call->headers);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    // Several connections are faster than one that several requests share.
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "quern");
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_head);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, call->why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, part->take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, part->arg);
    return QN_OK;
}

void qn_web_call_deinit(qn_web_call *call) {
    curl_easy_cleanup(call->curl);
    curl_slist_free_all(call->headers);
    clear_head(&call->head);
    call->curl = NULL;
    call->headers = NULL;
}

typedef struct taken {
    qn_buf *body;
    bool is_enough; // what more comes is left
    bool ends_early;
} taken;

// Another value than the bytes ends the transfer.
static size_t take_body(char *bytes, size_t size, size_t n, void *arg) {
    taken *t = arg;
    const size_t all = size * n, room = t->body->max - t->body->size;
    if (t->ends_early && all >= room) {
        qn_buf_add(t->body, bytes, room);
        t->is_enough = true;
        return all == room ? all : CURL_WRITEFUNC_ERROR;
    }
    qn_buf_add(t->body, bytes, all);
    return t->body->failed ? CURL_WRITEFUNC_ERROR : all;
}

static int look_at_stop(void *arg, curl_off_t total, curl_off_t done, curl_off_t up_total,
                        curl_off_t up) {
    const qn_web_opts *o = arg;
    (void)total, (void)done, (void)up_total, (void)up;
    return o->wait && !o->wait(o->wait_arg, 0, 0);
}

static qn_status explain(CURLcode code, const qn_web_call *call, const qn_web_reply *reply,
                         qn_err *err) {
    char shown[200];
    qn_web_shown(shown, reply->url);
    if (code == CURLE_OUT_OF_MEMORY || (reply->body.failed && !reply->body.is_over))
        return QN_NOMEM(err, shown);
    if (code == CURLE_ABORTED_BY_CALLBACK) return QN_FAIL(err, STOPPED, "%s: stopped", shown);
    if (reply->body.is_over)
        return QN_FAIL(err, LIMIT, "%s: the answer has more than %zu bytes", shown,
                       reply->body.max);
    return QN_FAIL(err, IO, "%s: %s", shown, *call->why ? call->why : curl_easy_strerror(code));
}

// The answer of reply->url, a redirection or not.
static qn_status ask(qn_web_reply *reply, const qn_web *web, const qn_web_want *want, qn_err *err) {
    qn_web_call call;
    taken t = {.body = &reply->body, .ends_early = want->n_bytes > 0};
    const qn_web_part part = {
        .first = want->n_bytes ? 0 : -1, .last = want->n_bytes - 1, .take = take_body, .arg = &t};
    QN_TRY(qn_web_call_init(&call, web, reply->url, &part, err));
    reply->body.max = want->max;
    curl_easy_setopt(call.curl, CURLOPT_XFERINFOFUNCTION, look_at_stop);
    curl_easy_setopt(call.curl, CURLOPT_XFERINFODATA, &web->opts);
    curl_easy_setopt(call.curl, CURLOPT_NOPROGRESS, 0L);
    const CURLcode code = curl_easy_perform(call.curl);
    curl_easy_getinfo(call.curl, CURLINFO_RESPONSE_CODE, &call.head.status);
    qn_status status = QN_OK;
    if (code != CURLE_OK && !t.is_enough) status = explain(code, &call, reply, err);
    clear_head(&reply->head);
    reply->head = call.head;
    call.head = (qn_web_head){0};
    qn_web_call_deinit(&call);
    return status;
}

// A server that is busy may ask for a little patience. False: it did not, or for too much.
static qn_status wait_for(bool *waited, const qn_web *web, const qn_web_head *head, int tries,
                          qn_err *err) {
    enum { MAX_TRIES = 3, LONGEST_WAIT = 60, STEP_MS = 50 };
    const qn_web_opts *o = &web->opts;
    *waited = (head->status == 429 || head->status == 503) && head->wait >= 0 &&
              head->wait <= LONGEST_WAIT && tries < MAX_TRIES;
    if (!*waited) return QN_OK;
    for (int64_t left = head->wait * 1000; left > 0; left -= STEP_MS) {
        const struct timespec step = {.tv_nsec = STEP_MS * 1000000};
        (void)nanosleep(&step, NULL);
        if (o->wait && !o->wait(o->wait_arg, 0, 0)) return QN_FAIL(err, STOPPED, "stopped");
    }
    return QN_OK;
}

// The answer, asked for again where the server wants that.
static qn_status ask_patiently(qn_web_reply *reply, const qn_web *web, const qn_web_want *want,
                               qn_err *err) {
    bool waited = true;
    for (int tries = 0; waited; tries++) {
        qn_buf_clear(&reply->body);
        QN_TRY(ask(reply, web, want, err));
        QN_TRY(wait_for(&waited, web, &reply->head, tries, err));
    }
    return QN_OK;
}

static qn_status walk(qn_web_reply *reply, const qn_web *web, const qn_web_want *want,
                      qn_err *err) {
    char shown[200], *next = NULL;
    qn_web_shown(shown, reply->url);
    for (int i = 0; i <= MAX_REDIRECTS; i++) {
        QN_TRY(ask_patiently(reply, web, want, err));
        const bool is_ours = is_same_place(reply->url, web->opts.endpoint);
        if (is_ours && *reply->head.sha256 && !*reply->sha256)
            memcpy(reply->sha256, reply->head.sha256, sizeof reply->sha256);
        if (reply->head.status < 300 || reply->head.status > 399 || !reply->head.location)
            return QN_OK;
        QN_TRY(follow(&next, reply->url, reply->head.location, err));
        qn_free(reply->url);
        reply->url = strdup(next);
        curl_free(next);
        if (!reply->url) return QN_NOMEM(err, "an address");
    }
    return QN_FAIL(err, IO, "%s: leads from one address to the next, more than %d times", shown,
                   MAX_REDIRECTS);
}

qn_status qn_web_get(qn_web_reply *out, const qn_web *web, const char *url, const qn_web_want *want,
                     qn_err *err) {
    qn_web_reply reply = {.url = strdup(url)};
    if (!reply.url) return QN_NOMEM(err, "an address");
    const qn_status status = walk(&reply, web, want, err);
    if (status)
        qn_web_reply_deinit(&reply);
    else
        *out = reply;
    return status;
}

void qn_web_reply_deinit(qn_web_reply *reply) {
    clear_head(&reply->head);
    qn_buf_deinit(&reply->body);
    qn_free(reply->url);
    reply->url = NULL;
}

// --- refusals ------------------------------------------------------------------------------------

qn_status qn_web_refused(const qn_web_head *head, const char *what, const char *url, qn_err *err) {
    static const struct {
        long status;
        const char *why;
    } rows[] = {
        {401, "it does not exist, or needs a token that may read it (HF_TOKEN)"},
        {403, "access is restricted: accept its terms on its page, and set HF_TOKEN"},
        {404, "not found"},
        {410, "it is no longer there"},
        {416, "it has not the bytes that were asked for"},
        {429, "too many requests"},
        {500, "the server failed"},
        {502, "the server failed"},
        {503, "the server is busy"},
        {504, "the server failed"},
    };
    const char *why = "want 200";
    char shown[200], later[64] = "";
    qn_web_shown(shown, url);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].status == head->status) why = rows[i].why;
    }
    if (head->wait >= 0)
        snprintf(later, sizeof later, "; try again in %lld s", (long long)head->wait);
    return QN_FAIL(err, IO, "%s: %s answers with status %ld: %s%s", what, shown, head->status, why,
                   later);
}
