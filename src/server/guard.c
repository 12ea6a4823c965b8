#define _DEFAULT_SOURCE // gethostname
#include "server/guard.h"

#include "core/file.h"
#include "core/mem.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_KEY_FILE = 1 << 20 };

// --- keys ----------------------------------------------------------------------------------------

static void drop_keys(char **keys, size_t n) {
    for (size_t i = 0; i < n; i++) qn_free(keys[i]);
    qn_free(keys);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// A key exactly as it was given.
static qn_status add_key(char ***keys, size_t *n, size_t *cap, const char *text, size_t size,
                         qn_err *err) {
    char *copy = strndup(text, size);
    if (!copy || !qn_grow((void **)keys, cap, *n + 1, sizeof **keys)) {
        qn_free(copy);
        return QN_NOMEM(err, "a key");
    }
    (*keys)[(*n)++] = copy;
    return QN_OK;
}

// A line of a key file: without the blanks around it, and none if it is empty or a comment.
static qn_status add_line(char ***keys, size_t *n, size_t *cap, const char *text, size_t size,
                          qn_err *err) {
    while (size && is_blank(text[size - 1])) size--;
    while (size && is_blank(*text)) text++, size--;
    return size == 0 || *text == '#' ? QN_OK : add_key(keys, n, cap, text, size, err);
}

// A key of the options is no line of a file: '#' is a character of it. One that HTTP would carry
// differently, as it drops blanks around a header's value, could never be shown.
static qn_status add_given(char ***keys, size_t *n, size_t *cap, const char *key, qn_err *err) {
    const size_t size = strlen(key);
    if (size == 0) return QN_FAIL(err, ARGUMENT, "--api-key: the key is empty");
    if (strspn(key, " \t\r\n") == size)
        return QN_FAIL(err, ARGUMENT, "--api-key: the key has %zu blanks and nothing else", size);
    if (strpbrk(key, "\r\n") || is_blank(*key) || is_blank(key[size - 1]))
        return QN_FAIL(err, ARGUMENT,
                       "--api-key: a key of %zu bytes has a line break, or blanks around it, which "
                       "no request can show",
                       size);
    return add_key(keys, n, cap, key, size, err);
}

static qn_status read_file(char ***keys, size_t *n, size_t *cap, const qn_server_opts *opts,
                           qn_err *err) {
    const size_t before = *n;
    char *text = NULL;
    size_t text_size = 0;
    qn_status status = qn_file_load(&text, &text_size, opts->key_file, MAX_KEY_FILE, err);
    const char *at = text, *end = text ? text + text_size : NULL;
    while (!status && at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        const size_t size = (size_t)((line ? line : end) - at);
        status = add_line(keys, n, cap, at, size, err);
        at = line ? line + 1 : end;
    }
    qn_free(text);
    if (!status && *n == before)
        status = QN_FAIL(err, FORMAT, "%s has no key: want one in each line", opts->key_file);
    return status;
}

static qn_status read_keys(char ***keys, size_t *n, const qn_server_opts *opts, qn_err *err) {
    size_t cap = 0;
    for (size_t i = 0; i < opts->n_keys; i++) QN_TRY(add_given(keys, n, &cap, opts->keys[i], err));
    return opts->key_file ? read_file(keys, n, &cap, opts, err) : QN_OK;
}

qn_status qn_guard_reload(qn_guard *guard, qn_err *err) {
    char **keys = NULL;
    size_t n = 0;
    const qn_status status = read_keys(&keys, &n, guard->opts, err);
    if (status) {
        drop_keys(keys, n);
        return status;
    }
    pthread_rwlock_wrlock(&guard->lock);
    char **old = guard->keys;
    const size_t n_old = guard->n_keys;
    guard->keys = keys;
    guard->n_keys = n;
    pthread_rwlock_unlock(&guard->lock);
    drop_keys(old, n_old);
    return QN_OK;
}

qn_status qn_guard_init(qn_guard *guard, const qn_server_opts *opts, qn_err *err) {
    *guard = (qn_guard){0};
    for (size_t i = 0; i < opts->n_hosts; i++) QN_TRY(qn_host_check(opts->hosts[i], err));
    for (size_t i = 0; i < opts->n_origins; i++) QN_TRY(qn_origin_check(opts->origins[i], err));
    if (pthread_rwlock_init(&guard->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    guard->opts = opts; // from here on there is something to release
    if (gethostname(guard->machine, sizeof guard->machine - 1)) *guard->machine = 0;
    const qn_status status = qn_guard_reload(guard, err);
    if (status) qn_guard_deinit(guard);
    return status;
}

void qn_guard_deinit(qn_guard *guard) {
    if (!guard->opts) return;
    drop_keys(guard->keys, guard->n_keys);
    pthread_rwlock_destroy(&guard->lock);
    *guard = (qn_guard){0};
}

bool qn_guard_has_keys(qn_guard *guard) {
    pthread_rwlock_rdlock(&guard->lock);
    const bool has_keys = guard->n_keys > 0;
    pthread_rwlock_unlock(&guard->lock);
    return has_keys;
}

// Looks at all bytes of what was shown, whatever the key.
static bool is_equal(const char *key, const char *shown) {
    const size_t n_key = strlen(key), n = strlen(shown);
    volatile unsigned char difference = n_key != n;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)shown[i] ^ (unsigned char)key[n_key ? i % n_key : 0];
    return difference == 0;
}

static const char *shown_key(const qn_credentials *shown) {
    static const char bearer[] = "Bearer ";
    const char *text = shown->authorization;
    if (text && strncasecmp(text, bearer, sizeof bearer - 1) == 0) return text + sizeof bearer - 1;
    return shown->x_api_key;
}

qn_status qn_guard_check_key(qn_guard *guard, const qn_credentials *shown, qn_err *err) {
    const char *key = shown_key(shown);
    bool is_known = false;
    pthread_rwlock_rdlock(&guard->lock);
    const bool is_open = guard->n_keys == 0;
    for (size_t i = 0; key && i < guard->n_keys; i++) is_known |= is_equal(guard->keys[i], key);
    pthread_rwlock_unlock(&guard->lock);
    if (is_open || is_known) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s; send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                   key ? "the API key is not one of this server's"
                       : "this server wants an API key");
}

// --- places --------------------------------------------------------------------------------------

static const char name_letters[] =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";

// Nothing, or ':' and a port's digits.
static bool is_port(const char *text) {
    enum { DIGITS = 5 };
    const size_t n = *text == ':' ? strspn(text + 1, "0123456789") : 0;
    return *text == 0 || (n > 0 && n <= DIGITS && text[1 + n] == 0);
}

// The name in "name", "name:port", "[address]" or "[address]:port", without brackets. False: it is
// none of these; what other programs would take for the name is not guessed.
static bool split_host(char *to, size_t size, const char *host) {
    const bool has_bracket = *host == '[';
    const char *from = host + has_bracket;
    const size_t n = has_bracket ? strcspn(from, "]") : strspn(from, name_letters);
    struct in6_addr v6;
    if (n == 0 || n >= size || (has_bracket && from[n] != ']')) return false;
    if (!is_port(from + n + has_bracket)) return false;
    memcpy(to, from, n);
    to[n] = 0;
    return !has_bracket || inet_pton(AF_INET6, to, &v6) == 1;
}

qn_status qn_host_check(const char *name, qn_err *err) {
    const size_t n = strlen(name);
    if (n > 0 && n < QN_HOST_NAME && strspn(name, name_letters) == n) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "--allow-host: '%.80s', want a name such as example.org, without a port", name);
}

qn_status qn_origin_check(const char *origin, qn_err *err) {
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-.";
    char name[QN_HOST_NAME];
    const size_t n = strspn(origin, letters);
    if (strcmp(origin, "*") == 0 || strcmp(origin, "null") == 0) return QN_OK;
    if (n > 0 && strncmp(origin + n, "://", 3) == 0 &&
        split_host(name, sizeof name, origin + n + 3))
        return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "--cors-origin: '%.80s', want SCHEME://HOST or SCHEME://HOST:PORT with nothing "
                   "after it, null, or *",
                   origin);
}

static bool is_address(const char *name) {
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && strcasecmp(text + n - n_end, end) == 0;
}

static bool is_our_name(const qn_guard *guard, const char *name) {
    const qn_server_opts *o = guard->opts;
    if (is_address(name) || strcasecmp(name, "localhost") == 0 || ends_with(name, ".localhost"))
        return true;
    if (o->host && strcasecmp(name, o->host) == 0) return true;
    if (*guard->machine && strcasecmp(name, guard->machine) == 0) return true;
    for (size_t i = 0; i < o->n_hosts; i++) {
        if (strcasecmp(name, o->hosts[i]) == 0) return true;
    }
    return false;
}

bool qn_guard_is_listed(const qn_guard *guard, const char *origin) {
    const qn_server_opts *o = guard->opts;
    for (size_t i = 0; origin && i < o->n_origins; i++) {
        if (strcmp(o->origins[i], "*") == 0 || strcasecmp(o->origins[i], origin) == 0) return true;
    }
    return false;
}

// A page of this server: the same scheme, name and port.
static bool is_own_page(const qn_credentials *shown) {
    const char *scheme = shown->is_tls ? "https://" : "http://";
    const size_t n = strlen(scheme);
    return shown->host && strncasecmp(shown->origin, scheme, n) == 0 &&
           strcasecmp(shown->origin + n, shown->host) == 0;
}

qn_status qn_guard_check_place(const qn_guard *guard, const qn_credentials *shown, qn_err *err) {
    char name[QN_HOST_NAME];
    if (shown->host && (!split_host(name, sizeof name, shown->host) || !is_our_name(guard, name)))
        return QN_FAIL(err, ARGUMENT,
                       "Host '%.100s' is not a name of this server; --allow-host adds one",
                       shown->host);
    if (shown->origin && !is_own_page(shown) && !qn_guard_is_listed(guard, shown->origin))
        return QN_FAIL(err, ARGUMENT,
                       "pages of '%.100s' may not use this server; --cors-origin allows one",
                       shown->origin);
    return QN_OK;
}

bool qn_host_is_local(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (strcasecmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && memcmp(&v6, &in6addr_loopback, sizeof v6) == 0;
}
