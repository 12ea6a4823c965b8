#include "core/file.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

// Makes a file of the descriptor, and owns it; -1: it was not opened, errno says why.
static qn_status take(qn_file *out, int fd, const char *path, qn_err *err) {
    if (fd < 0) return QN_FAIL(err, IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    qn_status status = QN_OK;
    if (fstat(fd, &st) != 0) {
        status = QN_FAIL(err, IO, "%s: cannot read its size: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = QN_FAIL(err, FORMAT, "%s: %s, want a regular file", path, kind_of(st.st_mode));
    }
    char *copy = status ? NULL : strdup(path);
    if (!status && !copy) status = QN_NOMEM(err, "a file name");
    if (status) {
        close(fd);
        return status;
    }
    *out = (qn_file){.fd = fd,
                     .size = st.st_size,
                     .time_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                     .path = copy};
    return QN_OK;
}

// O_NONBLOCK: opening a pipe must not wait for a writer.
qn_status qn_file_open(qn_file *out, const char *path, qn_err *err) {
    return take(out, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), path, err);
}

qn_status qn_file_open_in(qn_file *out, int folder, const char *name, const char *shown,
                          qn_err *err) {
    const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    const int fd = openat(folder, name, flags);
    if (fd < 0 && errno == ELOOP)
        return QN_FAIL(err, FORMAT, "%s: a link, want a regular file", shown);
    return take(out, fd, shown, err);
}

// Up to n bytes; those of a reader can be any number.
static ssize_t read_some(const qn_file *file, void *to, size_t n, int64_t at) {
    if (file->fd >= 0) return pread(file->fd, to, n, at);
    if (!file->own.data) return file->own.read(file->own.arg, to, n, at);
    memcpy(to, (const char *)file->own.data + at, n);
    return (ssize_t)n;
}

static qn_status fail_read(const qn_file *file, ssize_t got, size_t n, int64_t at, qn_err *err) {
    if (file->fd < 0)
        return QN_FAIL(err, IO, "%s: the caller's reader gave %lld for %zu bytes at %lld",
                       file->path, (long long)got, n, (long long)at);
    if (got < 0) return QN_FAIL(err, IO, "%s: read failed: %s", file->path, strerror(errno));
    return QN_FAIL(err, IO, "%s: became shorter while in use: no byte at %lld, had %lld",
                   file->path, (long long)at, (long long)file->size);
}

qn_status qn_file_read(const qn_file *file, int64_t offset, void *to, size_t n, qn_err *err) {
    if (offset < 0 || offset > file->size || n > (uint64_t)(file->size - offset))
        return QN_FAIL(err, FORMAT, "%s: wants %zu bytes at %lld, the file has %lld", file->path, n,
                       (long long)offset, (long long)file->size);
    for (size_t done = 0; done < n;) {
        const int64_t at = offset + (int64_t)done;
        const ssize_t got = read_some(file, (char *)to + done, n - done, at);
        if (got < 0 && file->fd >= 0 && errno == EINTR) continue;
        if (got <= 0 || (size_t)got > n - done) return fail_read(file, got, n - done, at, err);
        done += (size_t)got;
    }
    return QN_OK;
}

void qn_file_close(qn_file *file) {
    if (!file->path) return;
    if (file->fd >= 0) close(file->fd);
    qn_free(file->path);
    *file = (qn_file){0};
}

qn_status qn_file_load(char **out, size_t *size, const char *path, int64_t limit, qn_err *err) {
    return qn_files_load(out, size, NULL, path, limit, err);
}

qn_status qn_files_load(char **out, size_t *size, const qn_files *files, const char *path,
                        int64_t limit, qn_err *err) {
    qn_file file;
    QN_TRY(qn_files_open(&file, files, path, err));
    qn_status status = QN_OK;
    char *data = NULL;
    if (file.size > limit) {
        status = QN_FAIL(err, LIMIT, "%s: %lld bytes, the limit is %lld", path,
                         (long long)file.size, (long long)limit);
        goto done;
    }
    data = qn_alloc((size_t)file.size + 1, 1);
    if (!data) {
        status = QN_NOMEM(err, path);
        goto done;
    }
    QN_TRY_TO(done, qn_file_read(&file, 0, data, (size_t)file.size, err));
    *out = data;
    *size = (size_t)file.size;
    data = NULL;

done:
    qn_free(data);
    qn_file_close(&file);
    return status;
}

bool qn_path_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool qn_path_is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool qn_path_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *qn_path_join(const char *folder, const char *name) {
    size_t n;
    if (!qn_size_add(&n, strlen(folder), strlen(name)) || !qn_size_add(&n, n, 2)) return NULL;
    char *path = qn_alloc(n, 1);
    const size_t end = strlen(folder);
    const char *slash = end > 0 && folder[end - 1] == '/' ? "" : "/";
    if (path) snprintf(path, n, "%s%s%s", folder, slash, name);
    return path;
}

const char *qn_path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

char *qn_path_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

bool qn_path_make_folders(const char *path, bool is_private) {
    char *part = strdup(path);
    bool is_made = part != NULL;
    for (char *at = part; is_made && at;) {
        at = strchr(at + 1, '/');
        if (at) *at = 0;
        is_made = mkdir(part, is_private && !at ? 0700 : 0777) == 0 ||
                  (errno == EEXIST && qn_path_is_folder(part));
        if (!is_made && errno == EEXIST && at) errno = ENOTDIR; // what holds the folder is a file
        if (at) *at = '/';
    }
    qn_free(part);
    return is_made;
}
