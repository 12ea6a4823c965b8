#include "server/shelf.h"

#include "core/mem.h"
#include "core/printable.h"

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

char *qn_model_name(const char *path) {
    size_t n = strlen(path);
    int part;
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    const char *name = path + from;
    n -= from;
    if (ends_with(name, n, ".gguf")) n = cut_part(name, n - strlen(".gguf"), &part);
    char *copy = strndup(name, n);
    if (copy) qn_text_clean(copy); // requests can say it
    return copy;
}

// --- files ---------------------------------------------------------------------------------------

static bool is_checkpoint(const char *path) {
    struct stat info;
    char config[1200];
    if (snprintf(config, sizeof config, "%s/config.json", path) >= (int)sizeof config) return false;
    return stat(config, &info) == 0 && S_ISREG(info.st_mode);
}

static bool is_model(const char *path, const char *name, struct stat *info) {
    const size_t n = strlen(name);
    int part = 0;
    if (*name == '.' || stat(path, info) != 0) return false;
    if (S_ISDIR(info->st_mode)) return is_checkpoint(path);
    if (!S_ISREG(info->st_mode) || !ends_with(name, n, ".gguf")) return false;
    if (strncasecmp(name, "mmproj", strlen("mmproj")) == 0) return false;
    (void)cut_part(name, n - strlen(".gguf"), &part);
    return part <= 1;
}

// --- lists ---------------------------------------------------------------------------------------

void qn_found_destroy(qn_found *found, size_t n) {
    for (size_t i = 0; i < n; i++) {
        qn_free(found[i].name);
        qn_free(found[i].path);
    }
    qn_free(found);
}

static int by_name(const void *a, const void *b) {
    const qn_found *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->path, y->path);
}

// Takes out those that have the name of the one before.
static size_t drop_doubles(qn_found *found, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept && strcmp(found[kept - 1].name, found[i].name) == 0) {
            qn_free(found[i].name);
            qn_free(found[i].path);
        } else {
            found[kept++] = found[i];
        }
    }
    return kept;
}

static bool add(qn_found **list, size_t *n, size_t *cap, const char *path,
                const struct stat *info) {
    void *items = *list;
    if (!qn_grow(&items, cap, *n + 1, sizeof **list)) return false;
    *list = items;
    qn_found *f = &(*list)[(*n)++]; // counted even if a name is missing: it is released
    *f = (qn_found){.name = qn_model_name(path),
                    .path = strdup(path),
                    .file_bytes = S_ISREG(info->st_mode) ? info->st_size : 0,
                    .modified = info->st_mtime};
    return f->name && f->path;
}

typedef struct shelf {
    qn_found *list;
    size_t n, cap;
} shelf;

// Models of a folder, and of those in it. False: no memory. What cannot be read has none.
static bool look_in(shelf *s, const char *folder, int depth) {
    DIR *dir = opendir(folder);
    bool is_fine = true;
    for (const struct dirent *at; dir && is_fine && (at = readdir(dir)) != NULL;) {
        char path[1024];
        struct stat info = {0};
        const int size = snprintf(path, sizeof path, "%s/%s", folder, at->d_name);
        if (size >= (int)sizeof path || *at->d_name == '.') continue;
        if (is_model(path, at->d_name, &info))
            is_fine = add(&s->list, &s->n, &s->cap, path, &info);
        else if (depth > 0 && S_ISDIR(info.st_mode))
            is_fine = look_in(s, path, depth - 1);
    }
    if (dir) closedir(dir);
    return is_fine;
}

qn_status qn_shelf_list(qn_found **out, size_t *n_out, const char *folder, qn_err *err) {
    enum { DEPTH = 3 }; // OWNER/REPO/TYPE, as 'quern pull' keeps them
    shelf s = {0};
    DIR *dir = opendir(folder);
    if (!dir) return QN_FAIL(err, IO, "--models: cannot open '%s': %s", folder, strerror(errno));
    closedir(dir);
    if (!look_in(&s, folder, DEPTH)) {
        qn_found_destroy(s.list, s.n);
        return QN_NOMEM(err, "a list of models");
    }
    if (s.n) qsort(s.list, s.n, sizeof *s.list, by_name);
    *out = s.list;
    *n_out = drop_doubles(s.list, s.n);
    return QN_OK;
}
