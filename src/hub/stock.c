#define _XOPEN_SOURCE 700 // realpath
#include "hub/stock.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "hub/filename.h"
#include "hub/stock_int.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

const char *const qn_keeper_names[QN_KEEPERS] = {
    [QN_KEEPER_OWN] = "quern",
    [QN_KEEPER_HF] = "huggingface",
    [QN_KEEPER_LLAMA] = "llama.cpp",
    [QN_KEEPER_OLLAMA] = "ollama",
};

// --- names in a folder ---------------------------------------------------------------------------

static int by_text(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

void qn_names_deinit(qn_names *names) {
    for (size_t i = 0; i < names->n; i++) qn_free(names->items[i]);
    qn_free(names->items);
    *names = (qn_names){0};
}

qn_status qn_names_read(qn_names *out, qn_stock *stock, const char *folder, qn_err *err) {
    qn_names names = {0};
    const bool is_enough = stock->n_folders++ >= QN_STOCK_FOLDERS;
    DIR *dir = is_enough ? NULL : opendir(folder);
    qn_status status =
        !is_enough && !dir && errno == ENOMEM ? QN_NOMEM(err, "names of files") : QN_OK;
    for (const struct dirent *e; dir && !status && (e = readdir(dir));) {
        void *items = names.items;
        if (*e->d_name == '.' || names.n == QN_STOCK_MOST) continue;
        char *copy = strdup(e->d_name);
        if (!copy || !qn_grow(&items, &names.cap, names.n + 1, sizeof *names.items)) {
            qn_free(copy);
            status = QN_NOMEM(err, "names of files");
            continue;
        }
        names.items = items;
        names.items[names.n++] = copy;
    }
    if (dir) closedir(dir);
    if (names.n) qsort(names.items, names.n, sizeof *names.items, by_text);
    if (status)
        qn_names_deinit(&names);
    else
        *out = names;
    return status;
}

// --- one model -----------------------------------------------------------------------------------

void qn_stocked_deinit(qn_stocked *m) {
    char *const all[] = {m->name, m->repo, m->stem, m->path, m->tower};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_free(all[i]);
    *m = (qn_stocked){0};
}

qn_status qn_stock_add(qn_stock *stock, qn_stocked *model, qn_err *err) {
    void *items = stock->items;
    if (!model->name || !model->path || (model->keeper != QN_KEEPER_OLLAMA && !model->stem) ||
        stock->n == QN_STOCK_MOST ||
        !qn_grow(&items, &stock->cap, stock->n + 1, sizeof *stock->items)) {
        const bool is_full = stock->n == QN_STOCK_MOST;
        qn_stocked_deinit(model);
        return is_full ? QN_OK : QN_NOMEM(err, "a list of models");
    }
    stock->items = items;
    stock->items[stock->n++] = *model;
    return QN_OK;
}

bool qn_stock_is_inside(const char *path, const char *root, int64_t *bytes, int64_t *modified) {
    struct stat st;
    char real[PATH_MAX];
    const size_t n = root ? strlen(root) : 0;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    if (root && (!realpath(path, real) || strncmp(real, root, n) != 0 || real[n] != '/'))
        return false;
    *bytes = st.st_size;
    *modified = st.st_mtime;
    return true;
}

// --- a folder of one origin ----------------------------------------------------------------------

typedef struct walk {
    const struct walk *above; // the folder that this one is in; NULL: none that counts
    qn_stock *stock;
    const qn_stock_folder *folder;
    const char *path;  // of the folder that is looked at
    const char *below; // the same below folder->path; "" at first
    qn_names names;    // in it
    const char *tower; // for its models; NULL: none
} walk;

static char *join_text(const char *a, size_t n, const char *between, const char *b) {
    qn_buf text = {0};
    char *out = NULL;
    qn_buf_add(&text, a, n);
    qn_buf_text(&text, between);
    qn_buf_text(&text, b);
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

// What models of this folder are called by: OWNER/REPO, HOST or nothing (NULL). False: no memory.
static bool find_repo(char **out, const walk *w) {
    *out = NULL;
    if (w->folder->repo) return (*out = strdup(w->folder->repo)) != NULL;
    size_t n = strcspn(w->below, "/");
    if (w->below[n]) n += 1 + strcspn(w->below + n + 1, "/");
    return n == 0 || (*out = strndup(w->below, n)) != NULL;
}

// A tower in the folder (owned); NULL: none.
static qn_status find_tower(char **out, const walk *w, qn_err *err) {
    *out = NULL;
    for (int k = 0; k < QN_TOWER_TYPES; k++) {
        const char *type = qn_tower_types[k];
        for (size_t i = 0; i < w->names.n; i++) {
            int64_t bytes, modified;
            const char *name = w->names.items[i];
            if (!qn_name_is_tower(name) || !qn_name_is_gguf(name)) continue;
            if (type && !qn_name_has_type(name, type)) continue;
            *out = qn_path_join(w->path, name);
            if (!*out) return QN_NOMEM(err, "a path");
            if (qn_stock_is_inside(*out, w->folder->root, &bytes, &modified)) return QN_OK;
            qn_free(*out);
            *out = NULL;
        }
    }
    return QN_OK;
}

static bool has_name(const qn_names *names, const char *name) {
    return names->n && bsearch(&name, names->items, names->n, sizeof *names->items, by_text);
}

// Files with holes have any size that they say.
static void add_bytes(qn_stocked *m, int64_t bytes) {
    if (!qn_i64_add(&m->bytes, m->bytes, bytes)) m->bytes = INT64_MAX;
}

// Bytes of all parts of a set, of which the first is counted; false: one is not there.
static qn_status add_parts(bool *is_whole, qn_stocked *m, const walk *w, const char *name,
                           const qn_split_name *s, qn_err *err) {
    *is_whole = true;
    for (int i = 2; i <= s->of && *is_whole; i++) {
        int64_t bytes = 0, modified;
        char *part = qn_split_name_part(name, s, i);
        char *path = part ? qn_path_join(w->path, part) : NULL;
        const bool has_path = path != NULL;
        *is_whole = path && has_name(&w->names, part) &&
                    qn_stock_is_inside(path, w->folder->root, &bytes, &modified);
        qn_free(part);
        qn_free(path);
        if (!has_path) return QN_NOMEM(err, "a path");
        add_bytes(m, bytes);
        m->n_files++;
    }
    return QN_OK;
}

static char *name_of(const qn_stocked *m, const char *name) {
    const qn_str type = qn_name_type(name);
    if (!m->repo) return strdup(m->stem);
    if (!strchr(m->repo, '/')) return join_text(m->repo, strlen(m->repo), "/", m->stem);
    char *label = type.size ? strndup(type.data, type.size) : strdup(name);
    char *all = label ? join_text(m->repo, strlen(m->repo), ":", label) : NULL;
    qn_free(label);
    return all;
}

// Everything about a model but its place in the list.
static qn_status describe(bool *is_model, qn_stocked *m, const walk *w, const char *name,
                          qn_err *err) {
    const qn_split_name s = qn_split_name_read(name);
    m->path = qn_path_join(w->path, name);
    m->stem = strndup(name, s.stem);
    if (!m->path || !m->stem || !find_repo(&m->repo, w)) return QN_NOMEM(err, "a model");
    *is_model = qn_stock_is_inside(m->path, w->folder->root, &m->bytes, &m->modified);
    if (*is_model) QN_TRY(add_parts(is_model, m, w, name, &s, err));
    m->name = name_of(m, name);
    m->tower = w->tower ? strdup(w->tower) : NULL;
    return m->name && (m->tower || !w->tower) ? QN_OK : QN_NOMEM(err, "a model");
}

static qn_status add_gguf(const walk *w, const char *name, qn_err *err) {
    qn_stocked m = {.keeper = w->folder->keeper, .n_files = 1};
    bool is_model = false;
    if (!qn_name_is_gguf(name) || qn_name_is_tower(name) || qn_split_name_read(name).part > 1)
        return QN_OK;
    const qn_status status = describe(&is_model, &m, w, name, err);
    if (!status && is_model) return qn_stock_add(w->stock, &m, err);
    qn_stocked_deinit(&m);
    return status;
}

static qn_status add_checkpoint_file(bool *has_weights, qn_stocked *m, const walk *w,
                                     const char *name, qn_err *err) {
    int64_t bytes, modified;
    char *path = qn_path_join(w->path, name);
    if (!path) return QN_NOMEM(err, "a path");
    if (qn_stock_is_inside(path, w->folder->root, &bytes, &modified)) {
        add_bytes(m, bytes);
        m->modified = qn_max(m->modified, modified);
        m->n_files++;
        *has_weights = *has_weights || qn_name_ends(name, ".safetensors");
    }
    qn_free(path);
    return QN_OK;
}

// config.json and safetensors are one model; GGUF files beside them are others.
static qn_status add_checkpoint(const walk *w, qn_err *err) {
    qn_stocked m = {.keeper = w->folder->keeper, .is_folder = true};
    bool has_weights = false;
    for (size_t i = 0; i < w->names.n; i++) {
        const char *name = w->names.items[i];
        if (!qn_name_is_gguf(name)) QN_TRY(add_checkpoint_file(&has_weights, &m, w, name, err));
    }
    if (!has_weights) return QN_OK;
    if (!find_repo(&m.repo, w)) return QN_NOMEM(err, "a model");
    if (!m.repo) return QN_OK; // our folder itself
    m.path = strdup(w->path);
    m.name = strdup(m.repo);
    m.stem = strdup(qn_path_name(m.repo));
    return qn_stock_add(w->stock, &m, err);
}

// "FILE.part": what is there of it, as the blocks say that the file has.
static qn_status add_unfinished(const walk *w, const char *name, qn_err *err) {
    struct stat st;
    qn_stock *stock = w->stock;
    void *items = stock->unfinished;
    if (w->folder->keeper != QN_KEEPER_OWN || !qn_name_ends(name, ".part")) return QN_OK;
    char *path = qn_path_join(w->path, name);
    if (!path || !qn_grow(&items, &stock->cap_unfinished, stock->n_unfinished + 1,
                          sizeof *stock->unfinished)) {
        qn_free(path);
        return QN_NOMEM(err, "a list of downloads");
    }
    stock->unfinished = items;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        qn_free(path);
        return QN_OK;
    }
    path[strlen(path) - strlen(".part")] = 0;
    stock->unfinished[stock->n_unfinished++] =
        (qn_unfinished){path, qn_min((int64_t)st.st_blocks * 512, st.st_size), st.st_size};
    return QN_OK;
}

static qn_status look_at(const walk *above, const char *name, int depth, qn_err *err);

static qn_status look_in(walk *w, int depth, qn_err *err) {
    QN_TRY(qn_names_read(&w->names, w->stock, w->path, err));
    // The tower of a repository lies beside the model, or where the folders of its types are.
    const bool is_repo = w->folder->repo || strchr(w->below, '/');
    char *own = NULL;
    qn_status status = is_repo ? find_tower(&own, w, err) : QN_OK;
    w->tower = own ? own : w->above ? w->above->tower : NULL;
    if (!status && has_name(&w->names, "config.json")) status = add_checkpoint(w, err);
    for (size_t i = 0; i < w->names.n && !status; i++) {
        status = add_gguf(w, w->names.items[i], err);
        if (!status) status = add_unfinished(w, w->names.items[i], err);
        if (!status && depth > 0) status = look_at(w, w->names.items[i], depth - 1, err);
    }
    qn_names_deinit(&w->names);
    qn_free(own);
    return status;
}

// A folder in the one of `above`. In a foreign one, a link to a folder is not followed.
static qn_status look_at(const walk *above, const char *name, int depth, qn_err *err) {
    struct stat st;
    char *path = qn_path_join(above->path, name);
    if (!path) return QN_NOMEM(err, "a path");
    const bool is_there = (above->folder->root ? lstat(path, &st) : stat(path, &st)) == 0;
    if (!is_there || !S_ISDIR(st.st_mode)) {
        qn_free(path);
        return QN_OK;
    }
    char *below = *above->below ? qn_path_join(above->below, name) : strdup(name);
    walk w = {.above = above,
              .stock = above->stock,
              .folder = above->folder,
              .path = path,
              .below = below};
    const qn_status status = below ? look_in(&w, depth, err) : QN_NOMEM(err, "a path");
    qn_free(path);
    qn_free(below);
    return status;
}

qn_status qn_stock_walk(qn_stock *stock, const qn_stock_folder *folder, qn_err *err) {
    walk w = {.stock = stock, .folder = folder, .path = folder->path, .below = ""};
    return look_in(&w, QN_STOCK_DEPTH, err);
}

// --- all of it -----------------------------------------------------------------------------------

static int by_keeper(const void *a, const void *b) {
    const qn_stocked *x = a, *y = b;
    if (x->keeper != y->keeper) return x->keeper < y->keeper ? -1 : 1;
    const int order = strcasecmp(x->name, y->name);
    return order ? order : strcmp(x->path, y->path);
}

// Files of one repository and one type are told apart by their own names.
static qn_status tell_apart(qn_stock *stock, qn_err *err) {
    for (size_t i = 0, n = 1; i < stock->n; i += n) {
        const qn_stocked *first = &stock->items[i];
        for (n = 1; i + n < stock->n; n++) {
            const qn_stocked *next = &stock->items[i + n];
            if (next->keeper != first->keeper || strcasecmp(next->name, first->name) != 0) break;
        }
        for (size_t k = i; n > 1 && k < i + n; k++) {
            qn_stocked *m = &stock->items[k];
            char *name = m->repo && m->stem && !m->is_folder
                             ? join_text(m->repo, strlen(m->repo), ":", qn_path_name(m->path))
                             : strdup(m->name);
            if (!name) return QN_NOMEM(err, "a name");
            qn_free(m->name);
            m->name = name;
        }
    }
    return QN_OK;
}

static qn_status read_all(qn_stock *stock, const qn_places *places, qn_err *err) {
    if (places->models)
        QN_TRY(qn_stock_walk(stock, &(qn_stock_folder){.path = places->models}, err));
    if (places->hf) QN_TRY(qn_stock_add_hf(stock, places->hf, err));
    if (places->llama) QN_TRY(qn_stock_add_llama(stock, places->llama, err));
    if (places->ollama) QN_TRY(qn_stock_add_ollama(stock, places->ollama, err));
    if (places->service) QN_TRY(qn_stock_add_ollama(stock, places->service, err));
    if (stock->n) qsort(stock->items, stock->n, sizeof *stock->items, by_keeper);
    return tell_apart(stock, err);
}

qn_status qn_stock_read(qn_stock *out, const qn_places *places, qn_err *err) {
    qn_stock stock = {0};
    const qn_status status = read_all(&stock, places, err);
    if (status)
        qn_stock_deinit(&stock);
    else
        *out = stock;
    return status;
}

void qn_stock_deinit(qn_stock *stock) {
    for (size_t i = 0; i < stock->n; i++) qn_stocked_deinit(&stock->items[i]);
    for (size_t i = 0; i < stock->n_unfinished; i++) qn_free(stock->unfinished[i].path);
    qn_free(stock->items);
    qn_free(stock->unfinished);
    *stock = (qn_stock){0};
}
