#include "cli/folder.h"

#include "core/file.h"
#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const void *a, const void *b) {
    const qn_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

// Anything but a regular file, and what disappears meanwhile, is left out.
static qn_status add_entry(qn_folder *to, const char *folder, const char *name, qn_err *err) {
    struct stat st;
    char *path = qn_path_join(folder, name);
    if (!path) return QN_NOMEM(err, "a path");
    const bool is_file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    qn_free(path);
    if (!is_file) return QN_OK;
    void *items = to->items;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof *to->items)) return QN_NOMEM(err, "files");
    to->items = items;
    char *copy = strdup(name);
    if (!copy) return QN_NOMEM(err, "files");
    to->items[to->n++] =
        (qn_entry){.name = copy,
                   .bytes = st.st_size,
                   .time_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                   .inode = st.st_ino};
    return QN_OK;
}

qn_status qn_folder_list(qn_folder *out, const char *path, qn_err *err) {
    qn_folder folder = {0};
    qn_status status = QN_OK;
    DIR *dir = opendir(path);
    if (!dir && errno != ENOENT)
        return QN_FAIL(err, IO, "%s: cannot open: %s", path, strerror(errno));
    for (const struct dirent *e; dir && !status && (e = readdir(dir));)
        status = add_entry(&folder, path, e->d_name, err);
    if (dir) closedir(dir);
    if (status) {
        qn_folder_deinit(&folder);
        return status;
    }
    if (folder.n) qsort(folder.items, folder.n, sizeof *folder.items, by_name);
    *out = folder;
    return QN_OK;
}

void qn_folder_deinit(qn_folder *folder) {
    for (size_t i = 0; i < folder->n; i++) qn_free(folder->items[i].name);
    qn_free(folder->items);
    *folder = (qn_folder){0};
}

const qn_entry *qn_folder_find(const qn_folder *folder, const char *name) {
    const qn_entry key = {.name = (char *)(uintptr_t)name};
    return folder->n ? bsearch(&key, folder->items, folder->n, sizeof key, by_name) : NULL;
}

qn_status qn_folder_make(const char *path, qn_err *err) {
    if (mkdir(path, 0700) == 0 || (errno == EEXIST && qn_path_is_folder(path))) return QN_OK;
    return QN_FAIL(err, IO, "%s: cannot make this folder: %s", path, strerror(errno));
}

qn_status qn_folder_make_temporary(char **out, qn_err *err) {
    char *path = strdup("/tmp/quern-XXXXXX");
    if (!path) return QN_NOMEM(err, "a path");
    if (mkdtemp(path)) {
        *out = path;
        return QN_OK;
    }
    const qn_status status = QN_FAIL(err, IO, "cannot make a folder in /tmp: %s", strerror(errno));
    qn_free(path);
    return status;
}

void qn_folder_remove(const char *path) {
    qn_folder files;
    if (qn_folder_list(&files, path, NULL)) return;
    for (size_t i = 0; i < files.n; i++) {
        char *file = qn_path_join(path, files.items[i].name);
        if (file) unlink(file);
        qn_free(file);
    }
    qn_folder_deinit(&files);
    rmdir(path);
}
