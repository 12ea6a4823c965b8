#include "hub/repo.h"

#include "core/json.h"
#include "core/mem.h"
#include "hub/digest.h"
#include "hub/filename.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_PAGE = 16 << 20, MAX_PAGES = 64, MAX_FILES = 20000, MEMORY = 128 << 20 };

// --- addresses -----------------------------------------------------------------------------------

// Each part by itself: a slash stays one.
static void add_escaped(qn_buf *to, const char *path) {
    while (*path && !to->failed) {
        const size_t n = strcspn(path, "/");
        char *part = curl_easy_escape(NULL, path, (int)n);
        if (!part) to->failed = true;
        if (part) qn_buf_text(to, part);
        curl_free(part);
        path += n;
        if (*path) qn_buf_add(to, path++, 1);
    }
}

static const char *revision_of(const qn_spec *spec) {
    return spec->revision ? spec->revision : "main";
}

// A name with a slash in it is one part of the address.
static void add_revision(qn_buf *to, const qn_spec *spec) {
    char *part = curl_easy_escape(NULL, revision_of(spec), 0);
    if (!part) to->failed = true;
    if (part) qn_buf_text(to, part);
    curl_free(part);
}

char *qn_repo_address(const char *endpoint, const qn_spec *spec, const char *path) {
    qn_buf url = {0};
    char *out = NULL;
    qn_buf_printf(&url, "%s/%s/%s/resolve/", endpoint, spec->owner, spec->repo);
    add_revision(&url, spec);
    qn_buf_text(&url, "/");
    add_escaped(&url, path);
    if (qn_buf_take(&out, &url, NULL)) return NULL;
    return out;
}

// --- the list ------------------------------------------------------------------------------------

static int by_path(const void *a, const void *b) {
    const qn_repo_file *x = a, *y = b;
    return strcmp(x->path, y->path);
}

void qn_repo_deinit(qn_repo *repo) {
    for (size_t i = 0; i < repo->n; i++) qn_free(repo->files[i].path);
    qn_free(repo->files);
    *repo = (qn_repo){0};
}

const qn_repo_file *qn_repo_find(const qn_repo *repo, const char *path, size_t n) {
    for (size_t i = 0; i < repo->n; i++) {
        const char *own = repo->files[i].path;
        if (strlen(own) == n && strncasecmp(own, path, n) == 0) return &repo->files[i];
    }
    return NULL;
}

static qn_status add_file(qn_repo *to, const json_t *row, qn_err *err) {
    const json_t *lfs = json_object_get(row, "lfs");
    const char *path = json_string_value(json_object_get(row, "path"));
    const char *sha256 = json_string_value(json_object_get(lfs, "oid"));
    const json_t *size = json_object_get(lfs ? lfs : row, "size");
    if (!path || !qn_hub_path_is_plain(path, strlen(path)) || !json_is_integer(size) ||
        json_integer_value(size) < 0)
        return QN_OK;
    if (to->n == MAX_FILES)
        return QN_FAIL(err, LIMIT, "the repository has more than %d files", MAX_FILES);
    void *items = to->files;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof *to->files)) return QN_NOMEM(err, "files");
    to->files = items;
    char *copy = strdup(path);
    if (!copy) return QN_NOMEM(err, "files");
    qn_repo_file *f = &to->files[to->n++];
    *f = (qn_repo_file){.path = copy, .size = json_integer_value(size)};
    if (qn_digest_is(sha256)) memcpy(f->sha256, sha256, sizeof f->sha256);
    return QN_OK;
}

static qn_status add_page(qn_repo *to, const qn_buf *body, const char *what, qn_err *err) {
    const qn_json_opts opts = {.what = what, .memory = MEMORY};
    json_t *list = NULL;
    QN_TRY(qn_json_parse_as(&list, body->data ? body->data : "", body->size, &opts, err));
    qn_status status =
        json_is_array(list) ? QN_OK : QN_FAIL(err, FORMAT, "%s: no list of files", what);
    for (size_t i = 0; i < json_array_size(list) && !status; i++) {
        const json_t *row = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(row, "type"));
        if (type && strcmp(type, "file") == 0) status = add_file(to, row, err);
    }
    json_decref(list);
    return status;
}

// *next is the address of the page after it (owned); NULL: there is none.
static qn_status read_page(qn_repo *to, char **next, const qn_web *web, const char *url,
                           const char *what, qn_err *err) {
    qn_web_reply reply;
    QN_TRY(qn_web_get(&reply, web, url, &(qn_web_want){.max = MAX_PAGE}, err));
    qn_status status =
        reply.head.status == 200 ? QN_OK : qn_web_refused(&reply.head, what, url, err);
    if (!status) status = add_page(to, &reply.body, what, err);
    *next = NULL;
    if (!status && reply.head.next) {
        *next = strdup(reply.head.next);
        if (!*next) status = QN_NOMEM(err, what);
    }
    qn_web_reply_deinit(&reply);
    return status;
}

static qn_status read_pages(qn_repo *to, const qn_web *web, const qn_spec *spec, const char *what,
                            qn_err *err) {
    qn_buf first = {0};
    char *url = NULL, *next = NULL;
    qn_buf_printf(&first, "%s/api/models/%s/%s/tree/", qn_web_get_opts(web)->endpoint, spec->owner,
                  spec->repo);
    add_revision(&first, spec);
    qn_buf_text(&first, "?recursive=true");
    QN_TRY(qn_buf_take(&url, &first, err));
    qn_status status = QN_OK;
    for (int page = 0; url && !status; page++) {
        status = page < MAX_PAGES
                     ? read_page(to, &next, web, url, what, err)
                     : QN_FAIL(err, LIMIT, "%s: a list of more than %d pages", what, MAX_PAGES);
        qn_free(url);
        url = status ? NULL : next;
    }
    return status;
}

qn_status qn_repo_list(qn_repo *out, const qn_web *web, const qn_spec *spec, qn_err *err) {
    char what[256];
    qn_repo repo = {0};
    snprintf(what, sizeof what, "%s/%s", spec->owner, spec->repo);
    const qn_status status = read_pages(&repo, web, spec, what, err);
    if (status) {
        qn_repo_deinit(&repo);
        return status;
    }
    if (repo.n) qsort(repo.files, repo.n, sizeof *repo.files, by_path);
    *out = repo;
    return QN_OK;
}

// --- which of them -------------------------------------------------------------------------------

void qn_picked_deinit(qn_picked *choice) {
    qn_free((void *)(uintptr_t)choice->items);
    *choice = (qn_picked){0};
}

static qn_status add(qn_picked *to, const qn_repo_file *file, qn_err *err) {
    void *items = (void *)(uintptr_t)to->items;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof *to->items)) return QN_NOMEM(err, "files");
    to->items = items;
    to->items[to->n++] = file;
    return QN_OK;
}

// A GGUF model, of a split set the first part.
static bool is_model(const qn_repo_file *file) {
    return qn_name_is_gguf(file->path) && !qn_name_is_tower(file->path) &&
           qn_split_name_read(file->path).part <= 1;
}

static qn_status add_models(qn_picked *to, const qn_repo *repo, const char *type, qn_err *err) {
    for (size_t i = 0; i < repo->n; i++) {
        const qn_repo_file *f = &repo->files[i];
        if (is_model(f) && (!type || qn_name_has_type(f->path, type))) QN_TRY(add(to, f, err));
    }
    return QN_OK;
}

// By its path, or by its name alone where no folder was typed.
static qn_status add_named(qn_picked *to, const qn_repo *repo, const char *which, qn_err *err) {
    const qn_repo_file *file = qn_repo_find(repo, which, strlen(which));
    if (file) return add(to, file, err);
    for (size_t i = 0; i < repo->n; i++) {
        const char *name = strrchr(repo->files[i].path, '/');
        if (name && strcasecmp(name + 1, which) == 0) QN_TRY(add(to, &repo->files[i], err));
    }
    return QN_OK;
}

static void list_names(char *to, size_t size, const qn_picked *choice) {
    enum { MOST = 8 };
    const char *names[MOST];
    size_t n = 0;
    for (; n < choice->n && n < MOST; n++) names[n] = choice->items[n]->path;
    qn_names_join(to, size, names, n, choice->n);
}

static qn_status refuse_none(const qn_repo *repo, const qn_spec *spec, qn_err *err) {
    char names[400];
    qn_picked all = {0};
    const qn_status status = add_models(&all, repo, NULL, err);
    list_names(names, sizeof names, &all);
    const size_t n = all.n;
    qn_picked_deinit(&all);
    if (status) return status;
    if (n == 0)
        return QN_FAIL(err, ARGUMENT, "%s/%s: none of its %zu files is a model that can be read",
                       spec->owner, spec->repo, repo->n);
    // Without a name any model would have done: there is one.
    return QN_FAIL(err, ARGUMENT, "%s/%s: no file '%s', and none of that type; there are %s",
                   spec->owner, spec->repo, spec->which, names);
}

static qn_status refuse_many(const qn_picked *choice, const qn_spec *spec, qn_err *err) {
    char names[400];
    list_names(names, sizeof names, choice);
    return QN_FAIL(err, ARGUMENT, "%s/%s: several files fit: %s; choose one by %s/%s:FILE",
                   spec->owner, spec->repo, names, spec->owner, spec->repo);
}

// The model as a list of one or more first parts.
static qn_status find_models(qn_picked *to, const qn_repo *repo, const qn_spec *spec, qn_err *err) {
    if (spec->which) {
        QN_TRY(add_named(to, repo, spec->which, err));
        return to->n ? QN_OK : add_models(to, repo, spec->which, err);
    }
    for (int i = 0; i < QN_MODEL_TYPES && to->n == 0; i++)
        QN_TRY(add_models(to, repo, qn_model_types[i], err));
    return QN_OK;
}

// What was named may be any part of a set.
static qn_status add_parts(qn_picked *to, const qn_repo *repo, const qn_repo_file *first,
                           qn_err *err) {
    const qn_split_name s = qn_split_name_read(first->path);
    if (s.of < 2) return add(to, first, err);
    for (int i = 1; i <= s.of; i++) {
        char *path = qn_split_name_part(first->path, &s, i);
        if (!path) return QN_NOMEM(err, first->path);
        const qn_repo_file *part = qn_repo_find(repo, path, strlen(path));
        qn_free(path);
        if (!part)
            return QN_FAIL(err, FORMAT, "%s: part %d of %d is missing in the repository",
                           first->path, i, s.of);
        QN_TRY(add(to, part, err));
    }
    return QN_OK;
}

static qn_status add_tower(qn_picked *to, const qn_repo *repo, qn_err *err) {
    for (int k = 0; k < QN_TOWER_TYPES; k++) {
        const char *type = qn_tower_types[k];
        for (size_t i = 0; i < repo->n; i++) {
            const qn_repo_file *f = &repo->files[i];
            const bool is_tower = qn_name_is_gguf(f->path) && qn_name_is_tower(f->path);
            if (is_tower && (!type || qn_name_has_type(f->path, type))) return add(to, f, err);
        }
    }
    return QN_OK;
}

// --- checkpoints ---------------------------------------------------------------------------------

// Files of a checkpoint that mean something to us. `consolidated...` are the same weights again.
static bool is_of_checkpoint(const qn_repo_file *file) {
    static const char *const ends[] = {".safetensors", ".json", ".jinja", ".model"};
    enum { MOST = 64 << 20 }; // of what is no weights
    const char *path = file->path;
    if (strchr(path, '/') || strncasecmp(path, "consolidated", strlen("consolidated")) == 0)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (qn_name_ends(path, ends[i])) return i == 0 || file->size <= MOST;
    }
    return false;
}

static qn_status add_checkpoint(qn_picked *to, const qn_repo *repo, qn_err *err) {
    bool has_weights = false;
    if (!qn_repo_find(repo, "config.json", strlen("config.json"))) return QN_OK;
    for (size_t i = 0; i < repo->n; i++) {
        const bool is_wanted = is_of_checkpoint(&repo->files[i]);
        has_weights =
            has_weights || (is_wanted && qn_name_ends(repo->files[i].path, ".safetensors"));
        if (is_wanted) QN_TRY(add(to, &repo->files[i], err));
    }
    if (!has_weights) to->n = 0;
    return QN_OK;
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status choose(qn_picked *out, qn_picked *found, const qn_repo *repo, const qn_spec *spec,
                        bool with_tower, qn_err *err) {
    QN_TRY(find_models(found, repo, spec, err));
    if (found->n == 0 && !spec->which) {
        QN_TRY(add_checkpoint(out, repo, err));
        if (out->n) return QN_OK;
    }
    if (found->n == 0) return refuse_none(repo, spec, err);
    if (found->n > 1) return refuse_many(found, spec, err);
    const qn_repo_file *first = found->items[0];
    const bool has_place = qn_name_is_gguf(first->path) && !qn_name_is_tower(first->path);
    QN_TRY(add_parts(out, repo, first, err));
    return with_tower && has_place ? add_tower(out, repo, err) : QN_OK;
}

qn_status qn_repo_choose(qn_picked *out, const qn_repo *repo, const qn_spec *spec, bool with_tower,
                         qn_err *err) {
    qn_picked choice = {0}, found = {0};
    const qn_status status = choose(&choice, &found, repo, spec, with_tower, err);
    qn_picked_deinit(&found);
    if (status)
        qn_picked_deinit(&choice);
    else
        *out = choice;
    return status;
}
