#define _GNU_SOURCE // O_TMPFILE
#include "core/newfile.h"

#include "core/file.h"
#include "core/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 18 };

struct qn_newfile {
    int fd;
    bool is_named, is_placed;        // the temporary name exists; the file has its place
    char *path, *folder, *temporary; // owned
    int64_t size;
    size_t n_held;
    unsigned char held[BUFFER];
};

static qn_status fail(const qn_newfile *file, const char *what, qn_err *err) {
    return QN_FAIL(err, IO, "%s: cannot %s: %s", file->path, what, strerror(errno));
}

// A name in the folder that nobody else has, short whatever the file will be called.
static char *temporary_name(const char *folder, const qn_newfile *file) {
    char name[48];
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, GRND_NONBLOCK) != sizeof salt)
        salt = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)file;
    snprintf(name, sizeof name, ".quern-%016llx.tmp", (unsigned long long)salt);
    return qn_path_join(folder, name);
}

static qn_status check_place(const char *path, qn_err *err) {
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISREG(st.st_mode)) return QN_OK;
        return QN_FAIL(err, ARGUMENT, "%s: %s", path,
                       S_ISDIR(st.st_mode) ? "is a folder" : "exists and is no regular file");
    }
    // Nothing is there, which is fine; a missing folder shows when the file is created.
    if (errno != ENOENT)
        return QN_FAIL(err, IO, "%s: cannot write there: %s", path, strerror(errno));
    if (lstat(path, &st) == 0)
        return QN_FAIL(err, ARGUMENT, "%s: is a link to something that does not exist", path);
    return QN_OK;
}

static bool has_mark(const char *bytes, int64_t size, const qn_newfile_kind *kind) {
    for (int i = 0; i < 2 && kind->marks[i]; i++) {
        const size_t n = strlen(kind->marks[i]);
        if (size >= (int64_t)(kind->at + n) && memcmp(bytes + kind->at, kind->marks[i], n) == 0)
            return true;
    }
    return false;
}

qn_status qn_newfile_check(const char *path, const qn_newfile_kind *kind, qn_err *err) {
    char head[64] = {0};
    qn_file file;
    QN_TRY(check_place(path, err));
    if (!qn_path_is_file(path)) return QN_OK;
    QN_TRY(qn_file_open(&file, path, err));
    const int64_t size = file.size, n = size < (int64_t)sizeof head ? size : (int64_t)sizeof head;
    const qn_status status = n ? qn_file_read(&file, 0, head, (size_t)n, err) : QN_OK;
    qn_file_close(&file);
    if (status) return status;
    if (size == 0 || has_mark(head, n, kind)) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s: exists and is no %s; it is left alone", path, kind->name);
}

// Where the file goes: through a link, which stays one. NULL when memory is short.
static char *target_of(const char *path) {
    struct stat st;
    const bool is_link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    return is_link ? realpath(path, NULL) : strdup(path);
}

qn_status qn_newfile_create(qn_newfile **out, const char *path, qn_err *err) {
    QN_TRY(check_place(path, err));
    qn_newfile *file = qn_alloc(1, sizeof *file);
    if (!file) return QN_NOMEM(err, "a new file");
    qn_status status = QN_OK;
    file->fd = -1;
    file->path = target_of(path);
    file->folder = file->path ? qn_path_folder(file->path) : NULL;
    file->temporary = file->folder ? temporary_name(file->folder, file) : NULL;
    if (!file->temporary) {
        status = QN_NOMEM(err, "a new file");
        goto done;
    }
    // A nameless file gets its name through /proc; without that it has one from the start.
    if (access("/proc/self/fd", X_OK) == 0)
        file->fd = open(file->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        file->is_named = file->fd >= 0;
    }
    if (file->fd < 0) {
        status = fail(file, "create", err);
        goto done;
    }
    *out = file;
    file = NULL;

done:
    qn_newfile_destroy(file);
    return status;
}

static qn_status write_all(qn_newfile *file, const void *bytes, size_t n, qn_err *err) {
    for (size_t done = 0; done < n;) {
        const ssize_t got = write(file->fd, (const char *)bytes + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(file, "write", err);
        done += (size_t)got;
    }
    return QN_OK;
}

static qn_status flush(qn_newfile *file, qn_err *err) {
    const size_t n = file->n_held;
    file->n_held = 0;
    return write_all(file, file->held, n, err);
}

qn_status qn_newfile_write(qn_newfile *file, const void *bytes, size_t n, qn_err *err) {
    file->size += (int64_t)n;
    if (n > BUFFER - file->n_held) QN_TRY(flush(file, err));
    if (n >= BUFFER) return write_all(file, bytes, n, err);
    if (n) memcpy(file->held + file->n_held, bytes, n);
    file->n_held += n;
    return QN_OK;
}

int64_t qn_newfile_size(const qn_newfile *file) { return file->size; }

// Gives a nameless file its temporary name.
static qn_status give_name(qn_newfile *file, qn_err *err) {
    if (file->is_named) return QN_OK;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    if (linkat(AT_FDCWD, link, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) != 0)
        return fail(file, "name the new file", err);
    file->is_named = true;
    return QN_OK;
}

qn_status qn_newfile_prepare(qn_newfile *file, qn_err *err) {
    QN_TRY(flush(file, err));
    if (fsync(file->fd) != 0) return fail(file, "write", err);
    return give_name(file, err);
}

// A new name outlives a power cut once its folder is on the disk. The file is in place by then, and
// not every file system can do this, so failures do not count.
static void sync_folder(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

qn_status qn_newfile_place(qn_newfile *file, qn_err *err) {
    assert(file->is_named && !file->is_placed && file->n_held == 0);
    if (rename(file->temporary, file->path) != 0) return fail(file, "put in place", err);
    file->is_placed = true;
    sync_folder(file->folder);
    return QN_OK;
}

qn_status qn_newfile_commit(qn_newfile *file, qn_err *err) {
    QN_TRY(qn_newfile_prepare(file, err));
    return qn_newfile_place(file, err);
}

void qn_newfile_destroy(qn_newfile *file) {
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    if (file->is_named && !file->is_placed) unlink(file->temporary);
    qn_free(file->path);
    qn_free(file->folder);
    qn_free(file->temporary);
    qn_free(file);
}
