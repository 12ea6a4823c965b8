#include "server/registry.h"

#include "core/machine.h"
#include "core/mem.h"
#include "server/server_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

// --- names ---------------------------------------------------------------------------------------

static bool ends_with(const char *text, size_t n, const char *end) {
    const size_t n_end = strlen(end);
    return n > n_end && strncasecmp(text + n - n_end, end, n_end) == 0;
}

// Bytes of a name without "-00001-of-00003"; *part is its number, 0: it has none.
static size_t cut_part(const char *name, size_t n, int *part) {
    enum { SUFFIX = sizeof "-00001-of-00003" - 1 };
    int of = 0, used = 0;
    *part = 0;
    if (n <= SUFFIX) return n;
    const char *suffix = name + n - SUFFIX;
    if (sscanf(suffix, "-%5d-of-%5d%n", part, &of, &used) == 2 && used == SUFFIX) return n - SUFFIX;
    *part = 0;
    return n;
}

// The name of a model in a path: the last part without ".gguf" and the number of a split set.
static char *name_of(const char *path) {
    size_t n = strlen(path);
    int part;
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    const char *name = path + from;
    n -= from;
    if (ends_with(name, n, ".gguf")) n = cut_part(name, n - strlen(".gguf"), &part);
    return strndup(name, n);
}

// --- entries -------------------------------------------------------------------------------------

static void destroy_entry(qn_entry *e) {
    if (!e) return;
    qn_served_close(e->served);
    qn_free(e->name);
    qn_free(e->path);
    qn_free(e);
}

static qn_status add_entry(qn_registry *r, const char *path, const char *alias, qn_err *err) {
    struct stat info;
    qn_entry *e = qn_alloc(1, sizeof *e);
    qn_entry **grown = qn_realloc(r->entries, r->n + 1, sizeof *grown);
    if (grown) r->entries = grown;
    if (e) {
        e->registry = r;
        e->path = strdup(path);
        e->name = alias ? strdup(alias) : name_of(path);
    }
    if (!grown || !e || !e->path || !e->name) {
        destroy_entry(e);
        return QN_NOMEM(err, "a model");
    }
    if (stat(path, &info) == 0) {
        e->file_bytes = S_ISREG(info.st_mode) ? info.st_size : 0;
        e->modified = info.st_mtime;
    }
    r->entries[r->n++] = e;
    return QN_OK;
}

static int by_name(const void *a, const void *b) {
    const qn_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool is_checkpoint(const char *path) {
    struct stat info;
    char config[1200];
    if (snprintf(config, sizeof config, "%s/config.json", path) >= (int)sizeof config) return false;
    return stat(config, &info) == 0 && S_ISREG(info.st_mode);
}

// A .gguf file that is not a vision tower and not a later part of a set, or a checkpoint folder.
static bool is_model(const char *path, const char *name) {
    struct stat info;
    const size_t n = strlen(name);
    int part = 0;
    if (*name == '.' || stat(path, &info) != 0) return false;
    if (S_ISDIR(info.st_mode)) return is_checkpoint(path);
    if (!S_ISREG(info.st_mode) || !ends_with(name, n, ".gguf")) return false;
    if (strncasecmp(name, "mmproj", strlen("mmproj")) == 0) return false;
    (void)cut_part(name, n - strlen(".gguf"), &part);
    return part <= 1;
}

static qn_status add_folder(qn_registry *r, const char *folder, qn_err *err) {
    DIR *dir = opendir(folder);
    if (!dir) return QN_FAIL(err, IO, "--models: cannot open '%s': %s", folder, strerror(errno));
    qn_status status = QN_OK;
    for (const struct dirent *at; !status && (at = readdir(dir)) != NULL;) {
        char path[1024];
        const int n = snprintf(path, sizeof path, "%s/%s", folder, at->d_name);
        if (n < (int)sizeof path && is_model(path, at->d_name))
            status = add_entry(r, path, NULL, err);
    }
    closedir(dir);
    if (!status && r->n == 0)
        status = QN_FAIL(err, IO, "--models: there is no model in '%s'", folder);
    if (r->n) qsort(r->entries, r->n, sizeof(qn_entry *), by_name);
    return status;
}

// --- life ----------------------------------------------------------------------------------------

qn_status qn_registry_init(qn_registry *r, qn_server *server, qn_err *err) {
    const qn_server_opts *o = &server->opts;
    *r = (qn_registry){.server = server};
    if (pthread_mutex_init(&r->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    if (pthread_cond_init(&r->changed, NULL) != 0) {
        pthread_mutex_destroy(&r->lock);
        return QN_NOMEM(err, "a lock");
    }
    r->is_open = true;
    qn_status status = o->folder ? add_folder(r, o->folder, err) : QN_OK;
    if (!status && o->model) status = add_entry(r, o->model, o->alias, err);
    if (status) qn_registry_deinit(r);
    return status;
}

void qn_registry_deinit(qn_registry *r) {
    if (!r->is_open) return;
    for (size_t i = 0; i < r->n; i++) destroy_entry(r->entries[i]);
    qn_free(r->entries);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    *r = (qn_registry){0};
}

// --- taking --------------------------------------------------------------------------------------

// With the lock. The one that was named to the server is the last; alone, it answers to any name, as
// clients have names of other models built in.
static qn_entry *find(qn_registry *r, const char *name) {
    for (size_t i = 0; name && i < r->n; i++) {
        if (strcmp(r->entries[i]->name, name) == 0) return r->entries[i];
    }
    const bool has_own = r->server->opts.model != NULL;
    if (has_own && (r->n == 1 || !name || !*name)) return r->entries[r->n - 1];
    return r->n == 1 && (!name || !*name) ? r->entries[0] : NULL;
}

static qn_status refuse_name(const qn_registry *r, const char *name, qn_err *err) {
    char known[300] = "";
    size_t used = 0;
    for (size_t i = 0; i < r->n && used < sizeof known - 1; i++) {
        const int n =
            snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", r->entries[i]->name);
        used += n > 0 ? (size_t)n : 0;
    }
    if (!name || !*name)
        return QN_FAIL(err, ARGUMENT, "the request names no model; there are %s", known);
    return QN_FAIL(err, ARGUMENT, "there is no model '%.80s'; there are %s", name, known);
}

// With the lock: closes the least recently used model without a user. False: there is none.
static bool close_one(qn_registry *r) {
    qn_entry *oldest = NULL;
    for (size_t i = 0; i < r->n; i++) {
        qn_entry *e = r->entries[i];
        if (e->state != QN_ENTRY_OPEN || e->n_users) continue;
        if (!oldest || e->last_used < oldest->last_used) oldest = e;
    }
    if (!oldest) return false;
    qn_served *served = oldest->served;
    oldest->served = NULL;
    oldest->state = QN_ENTRY_OPENING; // nobody takes it meanwhile
    pthread_mutex_unlock(&r->lock);
    qn_logger_say(&r->server->logger, "info", "closing %s to make room", oldest->name);
    qn_served_close(served);
    pthread_mutex_lock(&r->lock);
    oldest->state = QN_ENTRY_CLOSED;
    pthread_cond_broadcast(&r->changed);
    return true;
}

// What opening will take: its weights, and as much state as a request needs.
static bool fits(const qn_entry *e) {
    int64_t available;
    if (!qn_machine_free_memory(&available)) return true;
    return e->file_bytes + e->file_bytes / 8 < available;
}

// With the lock, which is given up meanwhile.
static qn_status open_entry(qn_registry *r, qn_entry *e, qn_err *err) {
    qn_served *served = NULL;
    e->state = QN_ENTRY_OPENING;
    while (!fits(e) && close_one(r)) continue;
    qn_status status;
    do {
        pthread_mutex_unlock(&r->lock);
        status = qn_served_open(&served, r->server, e->path, err);
        pthread_mutex_lock(&r->lock);
    } while (status == QN_MEMORY && close_one(r));
    e->served = served;
    e->state = status ? QN_ENTRY_CLOSED : QN_ENTRY_OPEN;
    pthread_cond_broadcast(&r->changed);
    return status;
}

qn_status qn_registry_take(qn_entry **out, qn_registry *r, const char *name, qn_err *err) {
    qn_status status = QN_OK;
    pthread_mutex_lock(&r->lock);
    qn_entry *e = find(r, name);
    if (!e) status = refuse_name(r, name, err);
    while (!status && e->state == QN_ENTRY_OPENING) pthread_cond_wait(&r->changed, &r->lock);
    if (!status && e->state == QN_ENTRY_CLOSED) status = open_entry(r, e, err);
    if (!status) {
        e->n_users++;
        e->last_used = qn_clock_ns();
        *out = e;
    }
    pthread_mutex_unlock(&r->lock);
    return status;
}

void qn_entry_leave(qn_entry *e) {
    qn_registry *r = e->registry;
    pthread_mutex_lock(&r->lock);
    e->n_users--;
    e->last_used = qn_clock_ns();
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

bool qn_registry_info(qn_entry_info *out, qn_registry *r, size_t i) {
    if (i >= r->n) return false; // entries never change
    const qn_entry *e = r->entries[i];
    *out = (qn_entry_info){.file_bytes = e->file_bytes, .modified = e->modified};
    snprintf(out->name, sizeof out->name, "%s", e->name);
    snprintf(out->path, sizeof out->path, "%s", e->path);
    pthread_mutex_lock(&r->lock);
    const qn_served *m = e->state == QN_ENTRY_OPEN ? e->served : NULL;
    if (m) {
        out->is_open = true;
        out->context = m->context;
        out->n_users = e->n_users;
        out->n_parameters = m->info.n_parameters;
        out->n_vocab = m->info.n_vocab;
        out->width = m->info.width;
        out->trained_context = m->info.context;
        out->has_vision = m->has_vision;
        out->has_thinking = m->has_thinking;
        out->has_tools = m->has_tools;
        snprintf(out->architecture, sizeof out->architecture, "%s", m->info.architecture);
    }
    pthread_mutex_unlock(&r->lock);
    return true;
}

int64_t qn_registry_counts(qn_registry *r, qn_batch_counts *out) {
    int64_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        const qn_entry *e = r->entries[i];
        qn_batch_counts c = QN_INIT(qn_batch_counts);
        if (e->state != QN_ENTRY_OPEN || qn_batch_get_counts(&c, e->served->batch, NULL)) continue;
        n++;
        out->rows += c.rows, out->queued += c.queued;
        out->pages += c.pages, out->pages_all += c.pages_all;
        out->kept_bytes += c.kept_bytes;
        out->steps += c.steps, out->tokens += c.tokens;
        out->hits += c.hits, out->preemptions += c.preemptions;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}
