#include "server/fetch.h"

#include "server/server_int.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_BYTES = 32 << 20, // of an image's file
    MAX_SECONDS = 30,     // of one fetch
    MAX_IMAGES = 64       // of a request; the library takes no more
};

// --- base64 --------------------------------------------------------------------------------------

static void add_base64(qn_buf *to, const unsigned char *bytes, size_t n) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned b = left > 1 ? bytes[i + 1] : 0, c = left > 2 ? bytes[i + 2] : 0;
        const unsigned all = (unsigned)bytes[i] << 16 | b << 8 | c;
        const char four[4] = {letters[all >> 18], letters[all >> 12 & 63],
                              left > 1 ? letters[all >> 6 & 63] : '=',
                              left > 2 ? letters[all & 63] : '='};
        qn_buf_add(to, four, sizeof four);
    }
}

// --- fetching ------------------------------------------------------------------------------------

typedef struct fetch {
    qn_exchange *ex;
    qn_buf body;
} fetch;

// Both are callbacks of the fetching library; another value than the bytes, or than 0, ends it.
static size_t take_bytes(char *bytes, size_t size, size_t n, void *arg) {
    fetch *f = arg;
    qn_buf_add(&f->body, bytes, size * n);
    return f->body.failed ? 0 : size * n;
}

static int look_at_stop(void *arg, curl_off_t total, curl_off_t done, curl_off_t up_total,
                        curl_off_t up) {
    const fetch *f = arg;
    (void)total, (void)done, (void)up_total, (void)up;
    return qn_stop_flag_is_set(f->ex->stop);
}

static bool is_listed(const qn_server_opts *o, const char *host) {
    for (size_t i = 0; i < o->n_image_hosts; i++) {
        if (strcmp(o->image_hosts[i], "*") == 0 || strcasecmp(o->image_hosts[i], host) == 0)
            return true;
    }
    return false;
}

// The parsed address, if it may be fetched: to be released by curl_url_cleanup.
static qn_status read_address(CURLU **out, const qn_exchange *ex, const char *url,
                              const char *field, qn_problem *p) {
    char *scheme = NULL, *host = NULL;
    CURLU *address = curl_url();
    if (!address) return qn_problem_take(p, QN_NOMEM(&p->err, "an address"), field);
    const bool is_read =
        curl_url_set(address, CURLUPART_URL, url, CURLU_DISALLOW_USER) == CURLUE_OK &&
        curl_url_get(address, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(address, CURLUPART_HOST, &host, 0) == CURLUE_OK;
    const bool is_web = is_read && (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    qn_status status = QN_OK;
    if (!is_web)
        status = QN_REFUSE(p, 400, field, "%s: '%.60s' is not an address of an image", field, url);
    else if (!is_listed(&ex->server->opts, host))
        status = QN_REFUSE(p, 400, field,
                           "%s: the image is at '%.60s', but only data: URLs are read; fetching "
                           "others needs --image-urls",
                           field, url);
    curl_free(scheme);
    curl_free(host);
    if (status)
        curl_url_cleanup(address);
    else
        *out = address;
    return status;
}

static CURLcode run(fetch *f, CURLU *address, long *code) {
    CURL *c = curl_easy_init();
    if (!c) return CURLE_OUT_OF_MEMORY;
    f->body.max = MAX_BYTES;
    curl_easy_setopt(c, CURLOPT_CURLU, address);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)MAX_SECONDS);
    curl_easy_setopt(c, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)MAX_BYTES);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "quern");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look_at_stop);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, f);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    const CURLcode result = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, code);
    curl_easy_cleanup(c);
    return result;
}

// What came, as a data: URL.
static qn_status fetch_one(json_t **out, qn_exchange *ex, const char *url, const char *field,
                           qn_problem *p) {
    fetch f = {.ex = ex};
    CURLU *address = NULL;
    long code = 0;
    QN_TRY(read_address(&address, ex, url, field, p));
    const CURLcode result = run(&f, address, &code);
    curl_url_cleanup(address);
    qn_status status = QN_OK;
    if (result == CURLE_OUT_OF_MEMORY || (f.body.failed && !f.body.is_over))
        status = qn_problem_take(p, QN_NOMEM(&p->err, "an image"), field);
    else if (result != CURLE_OK || f.body.is_over)
        status = QN_REFUSE(p, 400, field, "%s: '%.60s' cannot be fetched: %s", field, url,
                           f.body.is_over ? "it is too large" : curl_easy_strerror(result));
    else if (code != 200)
        status = QN_REFUSE(p, 400, field, "%s: '%.60s' answers with status %ld, want 200", field,
                           url, code);
    if (!status) {
        qn_buf text = {0};
        qn_buf_text(&text, "data:image/png;base64,"); // its first bytes say what it really is
        add_base64(&text, (const unsigned char *)f.body.data, f.body.size);
        *out = text.failed ? NULL : json_stringn(text.data, text.size);
        qn_buf_deinit(&text);
        if (!*out) status = qn_problem_take(p, QN_NOMEM(&p->err, "an image"), field);
    }
    qn_buf_deinit(&f.body);
    return status;
}

static qn_status fetch_part(qn_exchange *ex, const json_t *part, const char *field, int *n,
                            qn_problem *p) {
    json_t *image = json_object_get(part, "image_url"), *data = NULL;
    const char *url = json_string_value(json_object_get(image, "url"));
    if (!url || strncasecmp(url, "data:", 5) == 0) return QN_OK;
    if (++*n > MAX_IMAGES)
        return QN_REFUSE(p, 400, field, "%s: more than %d images", field, MAX_IMAGES);
    QN_TRY(fetch_one(&data, ex, url, field, p));
    if (json_object_set_new(image, "url", data) == 0) return QN_OK;
    return qn_problem_take(p, QN_NOMEM(&p->err, "an image"), field);
}

qn_status qn_fetch_images(qn_exchange *ex, const json_t *messages, qn_problem *problem) {
    int n = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        char field[48];
        snprintf(field, sizeof field, "messages[%zu].content", i);
        for (size_t k = 0; k < json_array_size(content); k++)
            QN_TRY(fetch_part(ex, json_array_get(content, k), field, &n, problem));
    }
    return QN_OK;
}
