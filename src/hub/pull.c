#include "hub/pull.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "hub/digest.h"
#include "hub/download.h"
#include "hub/filename.h"
#include "hub/ledger.h"
#include "hub/repo.h"
#include "hub/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// One file.
typedef struct target {
    char *url, *name, *path; // owned; name: below the folder
    int64_t size, there;     // bytes that need no download
    char sha256[QN_SHA256_TEXT];
    char mark[QN_ETAG]; // the same, or an etag; "": nothing tells one content from another
    bool is_there;
} target;

typedef struct pull {
    const qn_pull_opts *opts;
    const char *endpoint;
    char *token, *folder; // owned; where the files go
    qn_spec spec;
    qn_web *web;
    qn_ledger ledger;
    target *targets; // (n)
    size_t n, cap;
    int64_t bytes, before; // of all; of those that are done
    bool is_checkpoint, is_stage;
} pull;

// --- what is wanted ------------------------------------------------------------------------------

// Takes the url.
static qn_status add_target(pull *p, char *url, const char *name, const qn_repo_file *file,
                            qn_err *err) {
    void *items = p->targets;
    char *path = qn_path_join(p->folder, name), *copy = strdup(name);
    if (!url || !path || !copy || !qn_grow(&items, &p->cap, p->n + 1, sizeof *p->targets)) {
        qn_free(url);
        qn_free(path);
        qn_free(copy);
        return QN_NOMEM(err, "files");
    }
    p->targets = items;
    target *t = &p->targets[p->n++];
    *t = (target){.url = url, .name = copy, .path = path, .size = file->size};
    memcpy(t->sha256, file->sha256, sizeof t->sha256);
    memcpy(t->mark, file->sha256, sizeof file->sha256);
    if (!qn_i64_add(&p->bytes, p->bytes, t->size))
        return QN_FAIL(err, LIMIT, "%s: its files have more bytes than can be counted", p->folder);
    return QN_OK;
}

static char *join3(const char *a, const char *b, const char *c) {
    qn_buf text = {0};
    char *out = NULL;
    qn_buf_printf(&text, "%s/%s%s%s", a, b, c ? "/" : "", c ? c : "");
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

static qn_status find_in_repo(pull *p, qn_err *err) {
    qn_repo repo = {0};
    qn_picked choice = {0};
    const qn_spec *spec = &p->spec;
    p->folder = join3(p->opts->places->models, spec->owner, spec->repo);
    if (!p->folder) return QN_NOMEM(err, "a path");
    qn_status status = qn_repo_list(&repo, p->web, spec, err);
    if (!status) status = qn_repo_choose(&choice, &repo, spec, !p->opts->no_tower, err);
    for (size_t i = 0; i < choice.n && !status; i++) {
        const qn_repo_file *f = choice.items[i];
        char *url = qn_repo_address(p->endpoint, spec, f->path);
        if (f->size == 0)
            qn_free(url);
        else
            status = add_target(p, url, f->path, f, err);
    }
    p->is_checkpoint = choice.n > 1 && !qn_name_is_gguf(choice.items[0]->path);
    qn_picked_deinit(&choice);
    qn_repo_deinit(&repo);
    return status;
}

// --- an address ----------------------------------------------------------------------------------

// HOST, and the file's name (both owned by curl_free) of an address.
static qn_status read_address(char **host, char **name, const char *url, qn_err *err) {
    char *path = NULL;
    CURLU *address = curl_url();
    if (!address) return QN_NOMEM(err, "an address");
    const bool is_read =
        curl_url_set(address, CURLUPART_URL, url, CURLU_DISALLOW_USER) == CURLUE_OK &&
        curl_url_get(address, CURLUPART_HOST, host, 0) == CURLUE_OK &&
        curl_url_get(address, CURLUPART_PATH, &path, CURLU_URLDECODE) == CURLUE_OK;
    curl_url_cleanup(address);
    const char *last = is_read ? qn_path_name(path) : "";
    char shown[200];
    qn_web_shown(shown, url);
    qn_status status = QN_OK;
    if (!is_read)
        status = QN_FAIL(err, ARGUMENT, "'%s' is not an address", shown);
    else if (!qn_name_is_gguf(last) || !qn_hub_path_is_plain(last, strlen(last)) ||
             !qn_hub_name_is_plain(*host, strlen(*host)))
        status = QN_FAIL(err, ARGUMENT, "'%s': want the address of a .gguf file", shown);
    else if (!(*name = strdup(last)))
        status = QN_NOMEM(err, "a name");
    curl_free(path);
    return status;
}

// The address of another part of the same set (owned); what follows the name stays.
static char *address_of_part(const char *url, const char *name, const char *part) {
    const char *query = url + strcspn(url, "?#");
    const size_t n = strlen(name);
    qn_buf text = {0};
    char *out = NULL;
    if ((size_t)(query - url) < n || strncmp(query - n, name, n) != 0) return NULL;
    qn_buf_add(&text, url, (size_t)(query - url) - n);
    qn_buf_text(&text, part);
    qn_buf_text(&text, query);
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

static qn_status add_address(pull *p, char *url, const char *name, qn_err *err) {
    qn_offered offered = {0};
    qn_repo_file file = {0};
    if (!url) return QN_FAIL(err, ARGUMENT, "'%s': cannot tell where its other parts are", name);
    const qn_status status = qn_offered_init(&offered, p->web, url, name, 0, err);
    if (status) {
        qn_free(url);
        return status;
    }
    file.size = offered.size;
    memcpy(file.sha256, offered.sha256, sizeof file.sha256);
    qn_offered_deinit(&offered);
    QN_TRY(add_target(p, url, name, &file, err));
    target *t = &p->targets[p->n - 1];
    if (!*t->mark) memcpy(t->mark, offered.etag, sizeof t->mark);
    return QN_OK;
}

static qn_status add_addresses(pull *p, const char *name, qn_err *err) {
    const qn_split_name s = qn_split_name_read(name);
    if (s.of < 2) return add_address(p, strdup(p->spec.url), name, err);
    for (int i = 1; i <= s.of; i++) {
        char *part = qn_split_name_part(name, &s, i);
        if (!part) return QN_NOMEM(err, "a name");
        const qn_status status =
            add_address(p, address_of_part(p->spec.url, name, part), part, err);
        qn_free(part);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status find_at_address(pull *p, qn_err *err) {
    char *host = NULL, *name = NULL;
    qn_status status = read_address(&host, &name, p->spec.url, err);
    if (!status) p->folder = qn_path_join(p->opts->places->models, host);
    if (!status) status = p->folder ? add_addresses(p, name, err) : QN_NOMEM(err, "a path");
    curl_free(host);
    qn_free(name);
    return status;
}

// --- what is there already -----------------------------------------------------------------------

// Bytes of an address without what follows a '?', which may be a secret.
static size_t plain_size(const char *url) { return strcspn(url, "?#"); }

static qn_status remember(pull *p, const target *t, qn_err *err) {
    json_t *row = json_object();
    qn_buf from = {0};
    qn_web_public(&from, t->url);
    qn_json_put(&row, "size", json_integer(t->size));
    qn_json_put(&row, "mark", json_string(t->mark));
    qn_json_put(&row, "from", from.failed ? NULL : qn_json_string(from.data, from.size));
    qn_buf_deinit(&from);
    return row ? qn_ledger_set(&p->ledger, t->name, row, err) : QN_NOMEM(err, "a ledger");
}

// A file that somebody put there: remembered if it is the right one.
static qn_status check_sum(bool *is_right, pull *p, const target *t, qn_err *err) {
    char sum[QN_SHA256_TEXT];
    const qn_pull_opts *o = p->opts;
    const int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return QN_OK;
    if (o->stage) o->stage(o->arg, "checking");
    const qn_status status = qn_digest_file(sum, fd, t->size, t->path, o->progress, o->arg, err);
    close(fd);
    *is_right = !status && strcmp(sum, t->sha256) == 0;
    return *is_right ? remember(p, t, err) : status;
}

// The ledger says which content a file has; without a row in it, its sum does.
static qn_status look_for(bool *is_there, pull *p, const target *t, qn_err *err) {
    struct stat st;
    *is_there = false;
    if (stat(t->path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != t->size) return QN_OK;
    const json_t *row = qn_ledger_find(&p->ledger, t->name);
    const char *mark = json_string_value(json_object_get(row, "mark"));
    *is_there = mark && strcmp(mark, t->mark) == 0;
    return row || !*t->sha256 ? QN_OK : check_sum(is_there, p, t, err);
}

// Of an earlier download, by the blocks that it has.
static int64_t unfinished_bytes(const target *t) {
    struct stat st;
    qn_buf path = {0};
    int64_t bytes = 0;
    qn_buf_printf(&path, "%s.part", t->path);
    if (!path.failed && lstat(path.data, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == t->size)
        bytes = qn_min((int64_t)st.st_blocks * 512, t->size);
    qn_buf_deinit(&path);
    return bytes;
}

// Files of one host have no names but their own.
static qn_status check_origin(const pull *p, const target *t, qn_err *err) {
    const json_t *row = qn_ledger_find(&p->ledger, t->name);
    const char *from = json_string_value(json_object_get(row, "from"));
    const size_t n = plain_size(t->url);
    if (!p->spec.url || !from || (strlen(from) == n && strncmp(from, t->url, n) == 0)) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s: is there, and came from another address, %s; 'quern rm' it",
                   t->path, from);
}

static qn_status look_at_disk(pull *p, qn_err *err) {
    for (size_t i = 0; i < p->n; i++) {
        target *t = &p->targets[i];
        QN_TRY(look_for(&t->is_there, p, t, err));
        t->there = t->is_there ? t->size : unfinished_bytes(t);
        if (!t->is_there) QN_TRY(check_origin(p, t, err));
    }
    return QN_OK;
}

static qn_status make_folder(const char *path, qn_err *err) {
    if (qn_path_make_folders(path, false)) return QN_OK;
    return QN_FAIL(err, IO, "%s: cannot make this folder: %s", path, strerror(errno));
}

// Some room is left: a disk that is full to the last byte helps nobody.
static qn_status check_room(const pull *p, qn_err *err) {
    struct statvfs fs;
    int64_t wanted = 64 << 20, free_bytes;
    for (size_t i = 0; i < p->n; i++) {
        const int64_t missing = p->targets[i].size - p->targets[i].there;
        if (!qn_i64_add(&wanted, wanted, missing)) wanted = INT64_MAX;
    }
    if (statvfs(p->folder, &fs) != 0) return QN_OK; // then writing says what is wrong
    if (!qn_i64_mul(&free_bytes, (int64_t)fs.f_bavail, (int64_t)fs.f_frsize)) return QN_OK;
    if (wanted <= free_bytes) return QN_OK;
    return QN_FAIL(err, IO, "%s: needs %.1f GiB more, and %.1f GiB are free", p->folder,
                   (double)wanted / (1 << 30), (double)free_bytes / (1 << 30));
}

// --- downloading ---------------------------------------------------------------------------------

typedef struct current {
    pull *p;
    const target *t;
} current;

static bool show(void *arg, int64_t done, int64_t total) {
    const current *c = arg;
    const qn_pull_opts *o = c->p->opts;
    if (!o->progress) return true;
    if (total == 0 || c->p->is_stage) return o->progress(o->arg, done, total);
    return o->progress(o->arg, c->p->before + done, c->p->bytes);
}

static void set_stage(void *arg, const char *what) {
    const current *c = arg;
    c->p->is_stage = true;
    if (c->p->opts->stage) c->p->opts->stage(c->p->opts->arg, what);
}

static qn_status look(void *arg, int fd, int64_t there, int64_t size, qn_err *err) {
    const current *c = arg;
    const qn_pull_opts *o = c->p->opts;
    return o->look(o->arg, qn_path_name(c->t->name), fd, there, size, c->p->bytes, err);
}

static qn_status fetch(pull *p, const target *t, bool is_first, qn_err *err) {
    current c = {p, t};
    const bool is_model = is_first && qn_name_is_gguf(t->path) && !qn_name_is_tower(t->path);
    const qn_download download = {.web = p->web,
                                  .url = t->url,
                                  .path = t->path,
                                  .sha256 = t->sha256,
                                  .size = t->size,
                                  .progress = show,
                                  .stage = set_stage,
                                  .look = is_model && p->opts->look ? look : NULL,
                                  .arg = &c};
    char *folder = qn_path_folder(t->path);
    qn_status status = folder ? make_folder(folder, err) : QN_NOMEM(err, "a path");
    p->is_stage = false;
    qn_free(folder);
    if (!status) status = qn_download_run(&download, err);
    return status ? status : remember(p, t, err);
}

static qn_status fetch_all(pull *p, qn_pulled *out, qn_err *err) {
    const qn_pull_opts *o = p->opts;
    size_t n_new = 0;
    for (size_t i = 0; i < p->n; i++) n_new += !p->targets[i].is_there;
    for (size_t i = 0; i < p->n; i++) {
        const target *t = &p->targets[i];
        const qn_pull_file file = {t->name, t->size, t->there, out->n_new, n_new};
        if (!t->is_there) {
            if (o->begin) o->begin(o->arg, &file);
            QN_TRY(fetch(p, t, i == 0, err));
            out->n_new++;
        }
        p->before += t->size;
    }
    return QN_OK;
}

// --- all of it -----------------------------------------------------------------------------------

static bool wait_on(void *arg, int64_t done, int64_t total) {
    const qn_pull_opts *o = arg;
    return !o->progress || o->progress(o->arg, done, total);
}

static qn_status open_pull(pull *p, qn_err *err) {
    const qn_pull_opts *o = p->opts;
    QN_TRY(qn_spec_parse(&p->spec, o->typed, p->endpoint, err));
    if (o->revision && p->spec.url)
        return QN_FAIL(err, ARGUMENT, "a revision is of a repository, not of '%s'", o->typed);
    if (o->revision) {
        qn_free(p->spec.revision);
        p->spec.revision = strdup(o->revision);
        if (!p->spec.revision) return QN_NOMEM(err, "a revision");
    }
    QN_TRY(qn_places_token(&p->token, o->places, err));
    const qn_web_opts web = {.endpoint = p->endpoint,
                             .token = p->token,
                             .wait = wait_on,
                             .wait_arg = (void *)(uintptr_t)o};
    QN_TRY(qn_web_open(&p->web, &web, err));
    QN_TRY(p->spec.url ? find_at_address(p, err) : find_in_repo(p, err));
    QN_TRY(make_folder(p->folder, err));
    return qn_ledger_open(&p->ledger, p->folder, err);
}

static qn_status run(pull *p, qn_pulled *out, qn_err *err) {
    QN_TRY(open_pull(p, err));
    QN_TRY(look_at_disk(p, err));
    if (p->n == 0) return QN_FAIL(err, FORMAT, "%s: is empty there", p->folder);
    QN_TRY(check_room(p, err));
    QN_TRY(fetch_all(p, out, err));
    out->bytes = p->bytes;
    out->path = strdup(p->is_checkpoint ? p->folder : p->targets[0].path);
    return out->path ? QN_OK : QN_NOMEM(err, "a path");
}

static void close_pull(pull *p) {
    for (size_t i = 0; i < p->n; i++) {
        qn_free(p->targets[i].url);
        qn_free(p->targets[i].name);
        qn_free(p->targets[i].path);
    }
    qn_free(p->targets);
    qn_ledger_close(&p->ledger);
    qn_web_close(p->web);
    qn_spec_deinit(&p->spec);
    qn_free(p->folder);
    qn_free(p->token);
}

// Folders that were made for nothing.
static void remove_empty(const pull *p) {
    char *above = p->folder && rmdir(p->folder) == 0 ? qn_path_folder(p->folder) : NULL;
    if (above && strlen(above) > strlen(p->opts->places->models)) (void)rmdir(above);
    qn_free(above);
}

qn_status qn_pull(qn_pulled *out, const qn_pull_opts *opts, qn_err *err) {
    pull p = {.opts = opts, .endpoint = opts->places->endpoint};
    qn_pulled pulled = {0};
    if (!opts->places->models)
        return QN_FAIL(err, ARGUMENT, "no folder for models: neither QUERN_MODELS nor HOME is set");
    const qn_status status = run(&p, &pulled, err);
    if (status) remove_empty(&p);
    close_pull(&p);
    if (status)
        qn_pulled_deinit(&pulled);
    else
        *out = pulled;
    return status;
}

void qn_pulled_deinit(qn_pulled *pulled) {
    qn_free(pulled->path);
    *pulled = (qn_pulled){0};
}
