#include "hub/ledger.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20 };

static const char files[] = "files";

// The rows as they are now (owned); what cannot be read is empty.
static qn_status read_ledger(json_t **out, const char *path, qn_err *err) {
    char *text;
    size_t size;
    json_t *all = NULL;
    qn_status status = qn_file_load(&text, &size, path, MAX_BYTES, NULL);
    if (!status) {
        status = qn_json_parse(&all, text, size, false, path, NULL);
        qn_free(text);
        if (status) all = NULL;
    }
    if (status == QN_MEMORY) return QN_NOMEM(err, "a ledger");
    if (!json_is_object(json_object_get(all, files))) {
        json_decref(all);
        all = json_object();
        qn_json_put(&all, files, json_object());
    }
    *out = all;
    return all ? QN_OK : QN_NOMEM(err, "a ledger");
}

qn_status qn_ledger_open(qn_ledger *out, const char *folder, qn_err *err) {
    qn_ledger r = {.path = qn_path_join(folder, ".quern-pull.json")};
    if (!r.path) return QN_NOMEM(err, "a path");
    const qn_status status = read_ledger(&r.all, r.path, err);
    if (status)
        qn_ledger_close(&r);
    else
        *out = r;
    return status;
}

const json_t *qn_ledger_find(const qn_ledger *ledger, const char *file) {
    return json_object_get(json_object_get(ledger->all, files), file);
}

static qn_status write_ledger(const qn_ledger *r, qn_err *err) {
    qn_newfile *file = NULL;
    char *text = NULL;
    qn_status status = qn_json_print(&text, r->all, &(qn_json_form){.indent = 1}, r->path, err);
    if (!status) status = qn_newfile_create(&file, r->path, 0, err);
    if (!status) status = qn_newfile_write(file, text, strlen(text), err);
    if (!status) status = qn_newfile_commit(file, err);
    qn_newfile_destroy(file);
    qn_free(text);
    return status;
}

// Others that write rows of the same folder wait, and so does this one: a moment, for whoever holds
// the lock longer writes none. -1: there is no lock, and rows of others may be lost.
static int lock_folder(const qn_ledger *r) {
    enum { TRIES = 100 };
    const struct timespec pause = {.tv_nsec = 10 * 1000000};
    char *folder = qn_path_folder(r->path);
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    qn_free(folder);
    for (int i = 0; fd >= 0 && i < TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
        (void)nanosleep(&pause, NULL);
    }
    if (fd >= 0) close(fd);
    return -1;
}

// Takes the row.
static qn_status change(qn_ledger *ledger, const char *file, json_t *row, qn_err *err) {
    json_t *list = json_object_get(ledger->all, files);
    if (row && json_object_set_new(list, file, row) != 0) return QN_NOMEM(err, "a ledger");
    if (!row) (void)json_object_del(list, file);
    if (json_object_size(list) > 0) return write_ledger(ledger, err);
    (void)unlink(ledger->path);
    return QN_OK;
}

qn_status qn_ledger_set(qn_ledger *ledger, const char *file, json_t *row, qn_err *err) {
    json_t *now = NULL;
    const int lock = lock_folder(ledger);
    qn_status status = read_ledger(&now, ledger->path, err); // others may have written since
    if (status) {
        json_decref(row);
    } else {
        json_decref(ledger->all);
        ledger->all = now;
        status = change(ledger, file, row, err);
    }
    if (lock >= 0) close(lock);
    return status;
}

void qn_ledger_close(qn_ledger *ledger) {
    json_decref(ledger->all);
    qn_free(ledger->path);
    *ledger = (qn_ledger){0};
}
