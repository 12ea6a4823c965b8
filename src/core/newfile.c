#define _GNU_SOURCE // O_TMPFILE
#include "core/newfile.h"

#include "core/file.h"
#include "core/mem.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { BUFFER = 1 << 18, TRIES = 8, HEX = 16, NAME = 32, DAY = 24 * 60 * 60 };

struct qn_newfile {
    int fd, folder;           // the folder as it was found, whatever has its name now
    bool is_named, is_placed; // the temporary name exists; the file has its place
    bool takes_over;          // owner and permissions of the file that is replaced
    bool is_private;          // but not if another user owns it
    char *path, *name;        // owned: for messages; in the folder
    char temporary[NAME];
    int64_t size;
    size_t n_held;
    unsigned char held[BUFFER];
};

static qn_status fail(const qn_newfile *file, const char *what, qn_err *err) {
    return QN_FAIL(err, IO, "%s: cannot %s: %s", file->path, what, strerror(errno));
}

// --- temporary names ---
//
// ".quern-0123456789abcdef.tmp", short whatever the file will be called. The first choice follows
// from its name, so that the next writer finds what a killed one left. The others are for
// writers of one file at the same time.

static void set_temporary(qn_newfile *file, int i) {
    uint64_t number = XXH3_64bits(file->name, strlen(file->name)), salt = 0;
    if (i > 0 && getrandom(&salt, sizeof salt, GRND_NONBLOCK) != sizeof salt)
        salt = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)file ^ (uint64_t)i;
    snprintf(file->temporary, sizeof file->temporary, ".quern-%016llx.tmp",
             (unsigned long long)(number ^ salt));
}

static bool is_temporary(const char *name) {
    static const char before[] = ".quern-", after[] = ".tmp";
    if (strncmp(name, before, sizeof before - 1) != 0) return false;
    name += sizeof before - 1;
    return strspn(name, "0123456789abcdef") == HEX && strcmp(name + HEX, after) == 0;
}

static bool is_at(int folder, const char *name, const struct stat *st) {
    struct stat there;
    return fstatat(folder, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_dev == st->st_dev &&
           there.st_ino == st->st_ino;
}

// Whether no one is writing the file any more: a writer holds a lock.
static bool is_left(int fd, const struct stat *st) {
    if (!S_ISREG(st->st_mode) || st->st_uid != geteuid()) return false;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    return errno != EWOULDBLOCK && time(NULL) - st->st_mtime > DAY;
}

static void sweep(int folder, const char *name) {
    struct stat st;
    const int fd = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &st) == 0 && is_left(fd, &st) && is_at(folder, name, &st))
        unlinkat(folder, name, 0);
    close(fd);
}

void qn_newfile_sweep(int folder) {
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (is_temporary(entry->d_name)) sweep(folder, entry->d_name);
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

// Takes the lock that shows others that this file is being written. False if another writer was
// faster, and is removing it. Not every file system has locks.
static bool hold(const qn_newfile *file, int fd) {
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return !file->is_named || (fstat(fd, &st) == 0 && is_at(file->folder, file->temporary, &st));
}

// --- creating ---

static qn_status check_place(const char *path, qn_err *err) {
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISREG(st.st_mode)) return QN_OK;
        return QN_FAIL(err, ARGUMENT, "%s: %s", path,
                       S_ISDIR(st.st_mode) ? "is a folder" : "exists and is not a regular file");
    }
    // Nothing is there, which is fine; a missing folder shows when the file is created.
    if (errno != ENOENT)
        return QN_FAIL(err, IO, "%s: cannot write there: %s", path, strerror(errno));
    if (lstat(path, &st) == 0)
        return QN_FAIL(err, ARGUMENT, "%s: is a link to something that does not exist", path);
    return QN_OK;
}

// A file for its owner alone does not go where another user would own it, or chose the place.
static qn_status check_owner(const char *path, qn_err *err) {
    struct stat st;
    const uid_t user = geteuid();
    if (lstat(path, &st) != 0) return QN_OK;
    const bool is_link = S_ISLNK(st.st_mode);
    bool is_own = st.st_uid == user || (is_link && st.st_uid == 0);
    if (is_link && is_own && stat(path, &st) == 0) is_own = st.st_uid == user;
    if (is_own) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "%s: belongs to user %u; what is written here is for user %u alone", path,
                   (unsigned)st.st_uid, (unsigned)user);
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
    return QN_FAIL(err, ARGUMENT, "%s: exists and is not %s; it is left alone", path, kind->name);
}

// Where the file goes: through a link, which stays one. NULL when memory is short.
static char *target_of(const char *path) {
    struct stat st;
    const bool is_link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    return is_link ? realpath(path, NULL) : strdup(path);
}

// Opens a file that has its temporary name from the start. -1: errno says why.
static int open_named(qn_newfile *file, mode_t mode) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    qn_newfile_sweep(file->folder); // they may be large, and users do not see them
    for (int i = 0; i < TRIES; i++) {
        set_temporary(file, i);
        const int fd = openat(file->folder, file->temporary, flags, mode);
        if (fd < 0 && errno != EEXIST) return -1;
        file->is_named = fd >= 0;
        if (fd >= 0 && hold(file, fd)) return fd;
        if (fd >= 0) close(fd);
        file->is_named = false;
    }
    errno = EEXIST;
    return -1;
}

// A nameless file gets its name through /proc; without that it has one from the start.
static int open_new(qn_newfile *file, int flags) {
    struct stat st;
    const bool replaces = fstatat(file->folder, file->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    const mode_t mode = replaces || flags & QN_NEWFILE_PRIVATE ? 0600 : 0666;
    if (!(flags & QN_NEWFILE_NAMED) && access("/proc/self/fd", X_OK) == 0) {
        const int fd = openat(file->folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
        if (fd >= 0) (void)hold(file, fd); // no other writer can have it
        if (fd >= 0) return fd;
    }
    return open_named(file, mode);
}

// Takes `path`, which must be a heap block or NULL, and `folder`, which may be -1: errno says why.
static qn_status create(qn_newfile **out, int folder, char *path, const char *name, int flags,
                        qn_err *err) {
    qn_newfile *file = qn_alloc(1, sizeof *file);
    if (!file || !path || !(file->name = strdup(name))) {
        qn_free(file);
        qn_free(path);
        if (folder >= 0) close(folder);
        return QN_NOMEM(err, "a new file");
    }
    file->path = path;
    file->folder = folder;
    file->fd = folder >= 0 ? open_new(file, flags) : -1;
    if (file->fd < 0) {
        const qn_status status = fail(file, "create", err);
        qn_newfile_destroy(file);
        return status;
    }
    *out = file;
    return QN_OK;
}

qn_status qn_newfile_create(qn_newfile **out, const char *path, int flags, qn_err *err) {
    QN_TRY(check_place(path, err));
    if (flags & QN_NEWFILE_PRIVATE) QN_TRY(check_owner(path, err));
    char *target = target_of(path), *folder = target ? qn_path_folder(target) : NULL;
    if (!folder) {
        qn_free(target);
        return QN_NOMEM(err, "a new file");
    }
    const int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    const int why = errno;
    qn_free(folder);
    errno = why;
    QN_TRY(create(out, fd, target, qn_path_name(target), flags, err));
    (*out)->takes_over = true;
    (*out)->is_private = flags & QN_NEWFILE_PRIVATE;
    return QN_OK;
}

qn_status qn_newfile_create_in(qn_newfile **out, int folder, const char *name, const char *shown,
                               qn_err *err) {
    return create(out, fcntl(folder, F_DUPFD_CLOEXEC, 0), strdup(shown), name, QN_NEWFILE_PRIVATE,
                  err);
}

// --- writing ---

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

qn_status qn_newfile_rewrite(qn_newfile *file, int64_t offset, const void *bytes, size_t n,
                             qn_err *err) {
    assert(offset >= 0 && offset + (int64_t)n <= file->size);
    QN_TRY(flush(file, err));
    for (size_t done = 0; done < n;) {
        const ssize_t got =
            pwrite(file->fd, (const char *)bytes + done, n - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(file, "write", err);
        done += (size_t)got;
    }
    return QN_OK;
}

int64_t qn_newfile_size(const qn_newfile *file) { return file->size; }

// Owner, group and permissions of the file that is replaced. A group that cannot be given is
// another one, and gets what everybody gets.
static void take_over(const qn_newfile *file) {
    struct stat old, own;
    if (!file->takes_over || fstatat(file->folder, file->name, &old, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(old.st_mode) || fstat(file->fd, &own) != 0)
        return;
    if (file->is_private && old.st_uid != own.st_uid) return; // it was put there meanwhile
    mode_t mode = old.st_mode & 0777;
    const bool is_given = (own.st_uid == old.st_uid && own.st_gid == old.st_gid) ||
                          fchown(file->fd, old.st_uid, old.st_gid) == 0 ||
                          own.st_gid == old.st_gid || fchown(file->fd, (uid_t)-1, old.st_gid) == 0;
    if (!is_given) mode = (mode & 0707) | (mode & 07) << 3;
    (void)fchmod(file->fd, mode); // where that fails it is for its owner alone
}

// Gives a nameless file its temporary name.
static qn_status give_name(qn_newfile *file, qn_err *err) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    for (int i = 0; i < TRIES && !file->is_named; i++) {
        set_temporary(file, i);
        sweep(file->folder, file->temporary);
        file->is_named =
            linkat(AT_FDCWD, link, file->folder, file->temporary, AT_SYMLINK_FOLLOW) == 0;
        if (!file->is_named && errno != EEXIST) break;
    }
    return file->is_named ? QN_OK : fail(file, "name the new file", err);
}

qn_status qn_newfile_prepare(qn_newfile *file, qn_err *err) {
    QN_TRY(flush(file, err));
    take_over(file);
    if (fsync(file->fd) != 0) return fail(file, "write", err);
    return give_name(file, err);
}

// A new name outlives a power cut once its folder is on the disk. The file is in place by then, and
// not every file system can do this, so failures do not count.
static void sync_folder(int folder) {
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

qn_status qn_newfile_place(qn_newfile *file, qn_err *err) {
    assert(file->is_named && !file->is_placed && file->n_held == 0);
    if (renameat(file->folder, file->temporary, file->folder, file->name) != 0)
        return fail(file, "put in place", err);
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
    if (file->is_named && !file->is_placed) unlinkat(file->folder, file->temporary, 0);
    if (file->fd >= 0) close(file->fd);
    if (file->folder >= 0) close(file->folder);
    qn_free(file->path);
    qn_free(file->name);
    qn_free(file);
}
