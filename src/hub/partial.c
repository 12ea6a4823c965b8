#include "hub/partial.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_NOTES = 1 << 20,
    MAX_GAPS = 8192,
    LEAST = 1 << 20, // bytes of a gap: a request has its price
    MOST = 64 << 20, // the same: what one slow connection can hold up
    WANTED = 16,     // gaps of a smaller file
};

static const char part_end[] = ".part", notes_end[] = ".part.json";

static qn_status fail(const char *path, const char *what, qn_err *err) {
    return QN_FAIL(err, IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

// --- gaps ----------------------------------------------------------------------------------------

static bool add(qn_partial *part, size_t *cap, int64_t first, int64_t end) {
    void *items = part->gaps;
    if (!qn_grow(&items, cap, part->n + 1, sizeof *part->gaps)) return false;
    part->gaps = items;
    part->gaps[part->n++] = (qn_gap){first, first, end, false};
    return true;
}

// A range that is missing, cut where it is long.
static bool add_range(qn_partial *part, size_t *cap, int64_t first, int64_t end) {
    const int64_t wanted = part->size / WANTED;
    const int64_t size = qn_max(qn_max(LEAST, part->size / MAX_GAPS + 1), qn_min(wanted, MOST));
    for (int64_t at = first; at < end; at += size) {
        if (!add(part, cap, at, qn_min(at + size, end))) return false;
    }
    return true;
}

int64_t qn_partial_missing(const qn_partial *part) {
    int64_t sum = 0;
    for (size_t i = 0; i < part->n; i++) sum += part->gaps[i].end - part->gaps[i].done;
    return sum;
}

// --- notes ---------------------------------------------------------------------------------------

// Whether the list has ranges that can be missing in a file of that size, ascending.
static bool is_list(const json_t *list, int64_t size) {
    const size_t n = json_array_size(list);
    int64_t before = 0;
    if (!json_is_array(list) || n % 2 || n / 2 > MAX_GAPS) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *at = json_array_get(list, i);
        if (!json_is_integer(at) || json_integer_value(at) < before) return false;
        before = json_integer_value(at);
    }
    return before <= size;
}

static bool is_ours(const qn_partial *part, const json_t *notes) {
    const char *mark = json_string_value(json_object_get(notes, "mark"));
    return mark && strcmp(mark, part->mark) == 0 &&
           json_integer_value(json_object_get(notes, "size")) == part->size &&
           is_list(json_object_get(notes, "missing"), part->size);
}

static qn_status use_notes(bool *is_used, qn_partial *part, const json_t *notes, size_t *cap,
                           qn_err *err) {
    const json_t *list = json_object_get(notes, "missing");
    *is_used = is_ours(part, notes);
    for (size_t i = 0; *is_used && i < json_array_size(list); i += 2) {
        if (!add_range(part, cap, json_integer_value(json_array_get(list, i)),
                       json_integer_value(json_array_get(list, i + 1))))
            return QN_NOMEM(err, part->path);
    }
    return QN_OK;
}

// False: there is nothing to go on with.
static qn_status read_notes(bool *is_used, qn_partial *part, size_t *cap, qn_err *err) {
    struct stat st;
    char *text = NULL;
    size_t size;
    json_t *notes = NULL;
    *is_used = false;
    if (!*part->mark || fstat(part->fd, &st) != 0 || st.st_size != part->size) return QN_OK;
    qn_status status = qn_file_load(&text, &size, part->notes, MAX_NOTES, NULL);
    if (!status) status = qn_json_parse(&notes, text, size, false, part->notes, NULL);
    qn_free(text);
    if (status) return status == QN_MEMORY ? QN_NOMEM(err, part->notes) : QN_OK;
    status = use_notes(is_used, part, notes, cap, err);
    json_decref(notes);
    return status;
}

static json_t *to_json(const qn_partial *part) {
    json_t *list = json_array(), *notes = json_object();
    for (size_t i = 0; i < part->n; i++) {
        const qn_gap *s = &part->gaps[i];
        if (s->done == s->end) continue;
        qn_json_push(&list, json_integer(s->done));
        qn_json_push(&list, json_integer(s->end));
    }
    qn_json_put(&notes, "size", json_integer(part->size));
    qn_json_put(&notes, "mark", json_string(part->mark));
    qn_json_put(&notes, "missing", list);
    return notes;
}

qn_status qn_partial_save(qn_partial *part, qn_err *err) {
    qn_newfile *file = NULL;
    char *text = NULL;
    if (fdatasync(part->fd) != 0) return fail(part->path, "write", err);
    json_t *notes = to_json(part);
    qn_status status = qn_json_print(&text, notes, &(qn_json_form){0}, part->notes, err);
    json_decref(notes);
    if (!status) status = qn_newfile_create(&file, part->notes, 0, err);
    if (!status) status = qn_newfile_write(file, text, strlen(text), err);
    if (!status) status = qn_newfile_commit(file, err);
    qn_newfile_destroy(file);
    qn_free(text);
    return status;
}

// --- the file ------------------------------------------------------------------------------------

// The lock counts for the file that has the name now: another process may have just finished it.
static qn_status lock(const qn_partial *part, qn_err *err) {
    struct stat own, named;
    if (flock(part->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return QN_FAIL(err, STATE, "%s: another process is downloading it", part->path);
    if (fstat(part->fd, &own) != 0 || !S_ISREG(own.st_mode))
        return QN_FAIL(err, IO, "%s: is not a regular file", part->path);
    if (lstat(part->path, &named) != 0 || named.st_ino != own.st_ino || named.st_dev != own.st_dev)
        return QN_FAIL(err, STATE, "%s: another process has just finished it", part->path);
    return QN_OK;
}

static qn_status set_up(qn_partial *part, qn_err *err) {
    size_t cap = 0;
    bool is_used;
    part->fd = open(part->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (part->fd < 0) return fail(part->path, "write", err);
    QN_TRY(lock(part, err));
    QN_TRY(read_notes(&is_used, part, &cap, err));
    if (is_used) return QN_OK;
    if (ftruncate(part->fd, 0) != 0 || ftruncate(part->fd, part->size) != 0)
        return fail(part->path, "make room", err);
    return add_range(part, &cap, 0, part->size) ? QN_OK : QN_NOMEM(err, part->path);
}

static char *with_end(const char *path, const char *end) {
    qn_buf text = {0};
    char *out = NULL;
    qn_buf_text(&text, path);
    qn_buf_text(&text, end);
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

qn_status qn_partial_restart(qn_partial *part, qn_err *err) {
    size_t cap = 0;
    qn_free(part->gaps);
    part->gaps = NULL;
    part->n = 0;
    return add(part, &cap, 0, part->size) ? QN_OK : QN_NOMEM(err, part->path);
}

qn_status qn_partial_open(qn_partial *out, const char *path, int64_t size, const char *mark,
                          qn_err *err) {
    qn_partial part = {.path = with_end(path, part_end),
                       .notes = with_end(path, notes_end),
                       .fd = -1,
                       .size = size,
                       .mark = mark};
    const qn_status status = part.path && part.notes ? set_up(&part, err) : QN_NOMEM(err, path);
    if (status)
        qn_partial_close(&part);
    else
        *out = part;
    return status;
}

qn_status qn_partial_commit(qn_partial *part, const char *path, qn_err *err) {
    char *folder = qn_path_folder(path);
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    qn_status status = QN_OK;
    if (fsync(part->fd) != 0)
        status = fail(part->path, "write", err);
    else if (rename(part->path, path) != 0)
        status = fail(path, "give this name", err);
    else
        (void)unlink(part->notes);
    if (fd >= 0) { // the name, too; where a file system cannot do that, it does it by itself
        (void)fsync(fd);
        close(fd);
    }
    qn_free(folder);
    return status;
}

void qn_partial_drop(qn_partial *part) {
    (void)unlink(part->path);
    (void)unlink(part->notes);
}

void qn_partial_close(qn_partial *part) {
    if (!part->path && !part->notes) return;
    if (part->fd >= 0) close(part->fd);
    qn_free(part->gaps);
    qn_free(part->path);
    qn_free(part->notes);
    *part = (qn_partial){.fd = -1};
}
