#include "hub/remove.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "hub/filename.h"
#include "hub/provenance.h"
#include "hub/ledger.h"
#include "hub/stock_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct remover {
    const qn_places *places;
    int64_t *bytes;
} remover;

// --- one file ------------------------------------------------------------------------------------

static qn_status remove_file(remover *r, const char *path, qn_err *err) {
    struct stat st;
    if (lstat(path, &st) != 0) return QN_OK;
    if (unlink(path) != 0 && errno != ENOENT)
        return QN_FAIL(err, IO, "%s: cannot remove it: %s", path, strerror(errno));
    if (S_ISREG(st.st_mode)) *r->bytes += qn_min((int64_t)st.st_blocks * 512, st.st_size);
    return QN_OK;
}

// A qn_ledger_fn.
static qn_status forget(void *arg, qn_ledger *ledger, const char *file, qn_err *err) {
    (void)arg;
    return qn_ledger_find(ledger, file) ? qn_ledger_set(ledger, file, NULL, err) : QN_OK;
}

// A file, what was not finished of it, and its row.
static qn_status remove_whole(remover *r, const char *path, qn_err *err) {
    static const char *const ends[] = {"", ".part", ".part.json"};
    qn_status status = QN_OK;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !status; i++) {
        qn_buf name = {0};
        qn_buf_printf(&name, "%s%s", path, ends[i]);
        status = name.failed ? QN_NOMEM(err, "a path") : remove_file(r, name.data, err);
        qn_buf_deinit(&name);
    }
    return status ? status : qn_ledgers_visit(path, r->places, forget, NULL, err);
}

// Folders that are empty now, up to ours.
static void remove_folders(const remover *r, const char *path) {
    char *folder = qn_path_folder(path);
    while (folder && strlen(folder) > strlen(r->places->models) && rmdir(folder) == 0) {
        char *above = qn_path_folder(folder);
        qn_free(folder);
        folder = above;
    }
    qn_free(folder);
}

// Packed weights that 'quern compile' made beside the models of a folder. Of a link to another
// place only the link goes: who knows what else is there.
static void remove_cache(const char *folder) {
    char *cache = qn_path_join(folder, ".quern-cache");
    const int fd =
        cache ? open(cache, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    if (cache) (void)remove(cache);
    qn_free(cache);
}

// --- a model -------------------------------------------------------------------------------------

static qn_status remove_parts(remover *r, const char *path, qn_err *err) {
    const qn_split_name s = qn_split_name_read(path);
    if (s.of < 2) return remove_whole(r, path, err);
    for (int i = 1; i <= s.of; i++) {
        char *part = qn_split_name_part(path, &s, i);
        const qn_status status = part ? remove_whole(r, part, err) : QN_NOMEM(err, "a path");
        qn_free(part);
        QN_TRY(status);
    }
    return QN_OK;
}

// All files of a checkpoint's folder, not folders in it; and no GGUF files where other models are.
static qn_status remove_checkpoint(remover *r, const char *folder, bool has_others, qn_err *err) {
    qn_names names;
    qn_stock own = {0}; // which counts the folders that are read
    QN_TRY(qn_names_read(&names, &own, folder, err));
    qn_status status = QN_OK;
    for (size_t i = 0; i < names.n && !status; i++) {
        struct stat st;
        if (has_others && qn_name_is_gguf(names.items[i])) continue;
        char *path = qn_path_join(folder, names.items[i]);
        if (!path)
            status = QN_NOMEM(err, "a path");
        else if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode))
            status = remove_whole(r, path, err);
        qn_free(path);
    }
    qn_names_deinit(&names);
    return status;
}

static bool has_other_user(const qn_stock *stock, const qn_stocked *model) {
    for (size_t i = 0; i < stock->n; i++) {
        const qn_stocked *m = &stock->items[i];
        if (m != model && m->tower && strcmp(m->tower, model->tower) == 0) return true;
    }
    return false;
}

static bool has_neighbour(const qn_stock *stock, const qn_stocked *model, const char *folder) {
    const size_t n = strlen(folder);
    for (size_t i = 0; i < stock->n; i++) {
        const qn_stocked *m = &stock->items[i];
        const bool is_below =
            strncmp(m->path, folder, n) == 0 && (m->path[n] == '/' || !m->path[n]);
        if (m != model && is_below) return true;
    }
    return false;
}

qn_status qn_stock_remove(int64_t *bytes, const qn_stock *stock, const qn_stocked *model,
                          const qn_places *places, qn_err *err) {
    remover r = {places, bytes};
    *bytes = 0;
    if (model->keeper != QN_KEEPER_OWN)
        return QN_FAIL(err, ARGUMENT, "%s: is kept by %s (%s), and only read here", model->name,
                       qn_keeper_names[model->keeper], model->path);
    char *folder = model->is_folder ? strdup(model->path) : qn_path_folder(model->path);
    if (!folder) return QN_NOMEM(err, "a path");
    const bool is_last = !has_neighbour(stock, model, folder);
    qn_status status = model->is_folder ? remove_checkpoint(&r, model->path, !is_last, err)
                                        : remove_parts(&r, model->path, err);
    if (!status && model->tower && !has_other_user(stock, model))
        status = remove_whole(&r, model->tower, err);
    if (!status && is_last) remove_cache(folder);
    if (!status && model->is_folder && rmdir(folder) != 0 && errno != ENOTEMPTY)
        status = QN_FAIL(err, IO, "%s: cannot remove it: %s", folder, strerror(errno));
    if (!status && model->tower) remove_folders(&r, model->tower);
    if (!status) remove_folders(&r, model->path);
    qn_free(folder);
    return status;
}

qn_status qn_unfinished_remove(int64_t *bytes, const qn_unfinished *download,
                               const qn_places *places, qn_err *err) {
    static const char *const ends[] = {".part", ".part.json"};
    remover r = {places, bytes};
    qn_status status = QN_OK;
    *bytes = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !status; i++) {
        qn_buf name = {0};
        qn_buf_printf(&name, "%s%s", download->path, ends[i]);
        status = name.failed ? QN_NOMEM(err, "a path") : remove_file(&r, name.data, err);
        qn_buf_deinit(&name);
    }
    remove_folders(&r, download->path);
    return status;
}
