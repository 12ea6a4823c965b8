#include "hub/spec.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <curl/curl.h>
#include <string.h>
#include <strings.h>

enum {
    LONGEST_TYPED = 2048,
    LONGEST_NAME = 96,
    LONGEST_PART = 200,
    LONGEST_PATH = 512,
    MAX_PARTS = 8
};

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// --- names from outside --------------------------------------------------------------------------

bool qn_hub_name_is_plain(const char *name, size_t n) {
    return n > 0 && n <= LONGEST_NAME && *name != '.' && *name != '-' && strspn(name, LETTERS) >= n;
}

static bool is_part(const char *part, size_t n) {
    if (n == 0 || n > LONGEST_PART || *part == '.') return false;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)part[i];
        if (c < ' ' || c == 0x7f || c == '\\') return false;
    }
    return true;
}

bool qn_hub_path_is_plain(const char *path, size_t n) {
    size_t parts = 0;
    if (n == 0 || n > LONGEST_PATH) return false;
    for (size_t at = 0; at <= n; parts++) {
        const char *slash = memchr(path + at, '/', n - at);
        const size_t size = slash ? (size_t)(slash - path) - at : n - at;
        if (!is_part(path + at, size)) return false;
        at += size + 1;
    }
    return parts <= MAX_PARTS;
}

bool qn_hub_revision_is_plain(const char *text) {
    return qn_hub_path_is_plain(text, strlen(text)) && !text[strspn(text, LETTERS "/")];
}

// --- parts of what was typed ---------------------------------------------------------------------

// What follows `prefix`, letters of any case; NULL: it does not begin like that.
static const char *after(const char *text, const char *prefix) {
    const size_t n = strlen(prefix);
    return strncasecmp(text, prefix, n) == 0 ? text + n : NULL;
}

// What follows the hub's name, in any of its spellings; NULL: something else was typed.
static const char *after_hub(const char *typed, const char *endpoint) {
    static const char *const hosts[] = {"huggingface.co/", "www.huggingface.co/", "hf.co/"};
    const char *rest = after(typed, "hf:");
    const char *own = after(typed, endpoint);
    if (rest) return rest;
    if (own && *own == '/') return own + 1;
    const char *host = after(typed, "https://");
    if (!host) host = after(typed, "http://");
    if (!host) host = typed;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        if ((rest = after(host, hosts[i]))) return rest;
    }
    return NULL;
}

static bool copy(char **out, const char *text, size_t n) {
    *out = strndup(text, n);
    return *out != NULL;
}

// "resolve/main/FILE" of an address, or a path. False: no memory.
static bool read_rest(qn_spec *spec, const char *rest) {
    static const char *const views[] = {"resolve/", "blob/", "raw/", "tree/"};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        const char *revision = after(rest, views[i]);
        if (!revision) continue;
        const size_t n = strcspn(revision, "/");
        if (!copy(&spec->revision, revision, n)) return false;
        rest = revision + n + (revision[n] == '/');
        break;
    }
    const size_t n = strlen(rest);
    return n == 0 || copy(&spec->which, rest, n);
}

// ":TYPE" or ":FILE", or what an address has there. Ollama's tag for no tag is none. False: no
// memory.
static bool read_which(qn_spec *spec, const char *rest) {
    if (*rest != ':') return !*rest || read_rest(spec, rest + 1);
    return strcmp(rest, ":latest") == 0 || copy(&spec->which, rest + 1, strlen(rest + 1));
}

// OWNER/REPO, and what follows it.
static qn_status read_repo(qn_spec *spec, const char *text, const char *typed, qn_err *err) {
    const size_t owner = strcspn(text, "/:"), at = owner + (text[owner] == '/');
    const size_t repo = strcspn(text + at, "/:");
    const char *rest = text + at + repo;
    if (text[owner] != '/' || !qn_hub_name_is_plain(text, owner) ||
        !qn_hub_name_is_plain(text + at, repo))
        return QN_FAIL(err, ARGUMENT,
                       "'%s' is not the name of a repository, want OWNER/REPO, as in "
                       "hf:Qwen/Qwen3-0.6B-GGUF",
                       typed);
    if (!copy(&spec->owner, text, owner) || !copy(&spec->repo, text + at, repo))
        return QN_NOMEM(err, typed);
    return read_which(spec, rest) ? QN_OK : QN_NOMEM(err, typed);
}

static qn_status check_rest(const qn_spec *spec, const char *typed, qn_err *err) {
    if (spec->revision && !qn_hub_revision_is_plain(spec->revision))
        return QN_FAIL(err, ARGUMENT, "'%s': '%s' cannot be a revision", typed, spec->revision);
    if (spec->which && !qn_hub_path_is_plain(spec->which, strlen(spec->which)))
        return QN_FAIL(err, ARGUMENT, "'%s': '%s' is neither a type nor a file of a repository",
                       typed, spec->which);
    return QN_OK;
}

// The text without what follows a '?' or '#', and without %20 and the like (owned: curl_free).
static qn_status decode(char **out, const char *text, const char *typed, qn_err *err) {
    int n = 0;
    char *plain = curl_easy_unescape(NULL, text, (int)strcspn(text, "?#"), &n);
    if (!plain) return QN_NOMEM(err, typed);
    if (strlen(plain) != (size_t)n || !qn_utf8_valid(plain, (size_t)n)) {
        curl_free(plain);
        return QN_FAIL(err, ARGUMENT, "'%s' is not text", typed);
    }
    while (n > 0 && plain[n - 1] == '/') plain[--n] = 0;
    *out = plain;
    return QN_OK;
}

static qn_status read_hub(qn_spec *spec, const char *rest, const char *typed, qn_err *err) {
    char *plain;
    QN_TRY(decode(&plain, rest, typed, err));
    qn_status status = read_repo(spec, plain, typed, err);
    if (!status) status = check_rest(spec, typed, err);
    curl_free(plain);
    return status;
}

static qn_status read_any(qn_spec *spec, const char *typed, const char *endpoint, qn_err *err) {
    const char *rest = after_hub(typed, endpoint);
    if (strlen(typed) > LONGEST_TYPED)
        return QN_FAIL(err, ARGUMENT, "'%.60s...' has %zu bytes, want at most %d", typed,
                       strlen(typed), LONGEST_TYPED);
    if (rest) return read_hub(spec, rest, typed, err);
    if (after(typed, "https://") || after(typed, "http://"))
        return copy(&spec->url, typed, strlen(typed)) ? QN_OK : QN_NOMEM(err, typed);
    if (strstr(typed, "://"))
        return QN_FAIL(err, ARGUMENT, "'%s': want an address of https:// or http://", typed);
    if (strchr(typed, '/')) return read_hub(spec, typed, typed, err);
    return QN_FAIL(
        err, ARGUMENT,
        "'%s': want a repository of the hub, OWNER/REPO as in hf:Qwen/Qwen3-0.6B-GGUF, or "
        "the address of a .gguf file; Ollama's library is not asked",
        typed);
}

qn_status qn_spec_parse(qn_spec *out, const char *typed, const char *endpoint, qn_err *err) {
    qn_spec spec = {0};
    const qn_status status = read_any(&spec, typed, endpoint, err);
    if (status)
        qn_spec_deinit(&spec);
    else
        *out = spec;
    return status;
}

void qn_spec_deinit(qn_spec *s) {
    char *const all[] = {s->owner, s->repo, s->revision, s->which, s->url};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_free(all[i]);
    *s = (qn_spec){0};
}
