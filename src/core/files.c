// Files that a caller keeps: a list of names, and who has the bytes.
#include "core/file.h"

#include "core/mem.h"

#include <string.h>

struct qn_files {
    qn_model_file *items; // (n) names are owned
    size_t n;
};

const qn_model_file *qn_files_find(const qn_files *files, const char *path) {
    const char *name = qn_path_name(path);
    for (size_t i = 0; i < files->n; i++) {
        if (strcmp(files->items[i].name, name) == 0) return &files->items[i];
    }
    return NULL;
}

static qn_status check(const qn_files *files, const qn_model_file *file, qn_err *err) {
    const char *name = file->name;
    if (!name || !*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return QN_FAIL(err, ARGUMENT, "file %zu: '%s' is not a plain name", files->n,
                       name ? name : "NULL");
    if (qn_files_find(files, name))
        return QN_FAIL(err, ARGUMENT, "%s: there are two files of this name", name);
    if (file->size < 0 || (uint64_t)file->size > SIZE_MAX)
        return QN_FAIL(err, ARGUMENT, "%s: %lld bytes", name, (long long)file->size);
    if (file->size > 0 && !file->data && !file->read)
        return QN_FAIL(err, ARGUMENT, "%s: %lld bytes, and neither data nor a reader", name,
                       (long long)file->size);
    return QN_OK;
}

static qn_status add(qn_files *files, const qn_model_file *file, qn_err *err) {
    QN_TRY(check(files, file, err));
    char *name = strdup(file->name);
    if (!name) return QN_NOMEM(err, "files");
    files->items[files->n] = *file;
    files->items[files->n++].name = name;
    return QN_OK;
}

qn_status qn_files_create(qn_files **out, const qn_model_file *list, size_t n, qn_err *err) {
    qn_files *files = qn_alloc(1, sizeof *files);
    if (!files) return QN_NOMEM(err, "files");
    files->items = qn_alloc(n, sizeof *files->items);
    qn_status status = files->items ? QN_OK : QN_NOMEM(err, "files");
    for (size_t i = 0; i < n && !status; i++) status = add(files, &list[i], err);
    if (status)
        qn_files_destroy(files);
    else
        *out = files;
    return status;
}

void qn_files_destroy(qn_files *files) {
    if (!files) return;
    for (size_t i = 0; i < files->n; i++) qn_free((void *)(uintptr_t)files->items[i].name);
    qn_free(files->items);
    qn_free(files);
}

const char *qn_files_name(const qn_files *files, size_t i) {
    return i < files->n ? files->items[i].name : NULL;
}

bool qn_files_has(const qn_files *files, const char *path) {
    return files ? qn_files_find(files, path) != NULL : qn_path_is_file(path);
}

qn_status qn_files_open(qn_file *out, const qn_files *files, const char *path, qn_err *err) {
    if (!files) return qn_file_open(out, path, err);
    const qn_model_file *file = qn_files_find(files, path);
    if (!file)
        return QN_FAIL(err, IO, "%s: not among the %zu files that were given", qn_path_name(path),
                       files->n);
    char *copy = strdup(qn_path_name(path));
    if (!copy) return QN_NOMEM(err, "a file name");
    *out = (qn_file){.fd = -1, .size = file->size, .path = copy, .own = *file};
    return QN_OK;
}
