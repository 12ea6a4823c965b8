#define _GNU_SOURCE // statx
#include "runtime/cache_folder.h"

#include "core/buf.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/newfile.h"
#include "ir/plan_text.h"
#include "passes/passes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEX = 16, HEAD_LIMIT = 128, WHY = 200 };

#define TEXT_OF(number)  #number
#define VERSION(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *qn_disk_version(void) {
    return VERSION(QN_VERSION_MAJOR, QN_VERSION_MINOR, QN_VERSION_PATCH);
}

// --- files ---

bool qn_disk_has(const qn_disk *disk, const char *name) {
    struct stat st;
    return fstatat(disk->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

// Whether only this user, or root, decides what is in it.
static bool is_own(const struct stat *st) {
    return (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & 022);
}

qn_status qn_disk_open_file(qn_file *out, const qn_disk *disk, const char *name, const char *shown,
                            qn_err *err) {
    qn_file file;
    struct stat st;
    QN_TRY(qn_file_open_in(&file, disk->fd, name, shown, err));
    qn_status status = QN_OK;
    if (fstat(file.fd, &st) != 0)
        status = QN_FAIL(err, IO, "%s: %s", shown, strerror(errno));
    else if (!is_own(&st))
        status = QN_FAIL(err, FORMAT, "%s: others may write it: it belongs to user %u, mode %04o",
                         shown, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
    if (status)
        qn_file_close(&file);
    else
        *out = file;
    return status;
}

// Whether a file has this text. One that is missing or cannot be read has not.
static qn_status holds(bool *out, const qn_disk *disk, const char *name, const char *text,
                       size_t size, qn_err *err) {
    qn_file file = {.fd = -1};
    const qn_status opened = qn_disk_open_file(&file, disk, name, name, err);
    if (opened == QN_MEMORY) return opened;
    char *there = NULL;
    qn_status status = QN_OK;
    const bool is_as_long = !opened && file.size == (int64_t)size;
    if (is_as_long && !(there = qn_alloc(size + 1, 1)))
        status = QN_NOMEM(err, "a file of a cache folder");
    else
        *out = is_as_long && qn_file_read(&file, 0, there, size, NULL) == QN_OK &&
               memcmp(there, text, size) == 0;
    qn_free(there);
    if (!opened) qn_file_close(&file);
    return status;
}

// A small file, unless it is there.
static qn_status keep_text(const qn_disk *disk, const char *name, const char *text, size_t size,
                           qn_err *err) {
    bool is_there;
    QN_TRY(holds(&is_there, disk, name, text, size, err));
    if (is_there) return QN_OK;
    char *path = qn_path_join(disk->dir, name);
    if (!path) return QN_NOMEM(err, "a path");
    qn_newfile *file = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_newfile_create_in(&file, disk->fd, name, path, err));
    QN_TRY_TO(done, qn_newfile_write(file, text, size, err));
    status = qn_newfile_commit(file, err);

done:
    qn_newfile_destroy(file);
    qn_free(path);
    return status;
}

// --- the folder ---

static const char origin_name[] = "origin";

// What distinguishes a folder from its copies: an archive can choose neither inode number nor birth
// time. False: the file system does not report both.
static bool print_origin(char to[HEAD_LIMIT], int fd) {
    enum { WANTED = STATX_INO | STATX_BTIME };
    struct statx st = {0};
    if (statx(fd, "", AT_EMPTY_PATH, WANTED, &st) != 0 || (st.stx_mask & WANTED) != WANTED ||
        !st.stx_ino || (!st.stx_btime.tv_sec && !st.stx_btime.tv_nsec))
        return false;
    snprintf(to, HEAD_LIMIT, "quern cache folder %llu %lld.%09u\n", (unsigned long long)st.stx_ino,
             (long long)st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
    return true;
}

// Opens the folder itself, never what a link at its place points to. -1: errno says why.
static int open_folder(const char *dir) {
    char *name = strdup(dir);
    if (!name) return -1;
    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--) name[n - 1] = 0;
    const int fd = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int why = errno;
    struct stat st;
    const bool is_link = fd < 0 && lstat(name, &st) == 0 && S_ISLNK(st.st_mode);
    qn_free(name);
    errno = is_link ? ELOOP : why;
    return fd;
}

// A folder that was not named explicitly counts if it was made where it is.
static qn_status find_foreign(char why[WHY], const qn_disk *disk, const struct stat *st,
                              qn_err *err) {
    char text[HEAD_LIMIT];
    bool is_ours = false;
    const bool can_tell = print_origin(text, disk->fd);
    if (can_tell) QN_TRY(holds(&is_ours, disk, origin_name, text, strlen(text), err));
    if (!can_tell)
        snprintf(why, WHY,
                 "its file system does not tell when folders were made, so it may have been "
                 "copied or unpacked here; name the folder if it is yours");
    else if (!is_ours && faccessat(disk->fd, origin_name, R_OK, AT_EACCESS) != 0 && errno == EACCES)
        snprintf(why, WHY,
                 "its file %s, which tells whether it was made here, cannot be read by user %u",
                 origin_name, (unsigned)geteuid());
    else if (!is_ours)
        snprintf(why, WHY,
                 "it belongs to user %u and has mode %04o, but was copied or unpacked "
                 "here, not made here; compile the model again",
                 (unsigned)st->st_uid, (unsigned)st->st_mode & 07777);
    return QN_OK;
}

// Why a folder is not used; empty: it is.
static qn_status find_fault(char why[WHY], const qn_disk *disk, qn_cache_use use, qn_err *err) {
    struct stat st;
    why[0] = 0;
    if (fstat(disk->fd, &st) != 0)
        snprintf(why, WHY, "%s", strerror(errno));
    else if (!is_own(&st))
        snprintf(why, WHY,
                 "it belongs to user %u and has mode %04o; wanted: user %u or root, and nobody "
                 "else may write to it",
                 (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
    else if (use == QN_CACHE_DIR_FOUND)
        return find_foreign(why, disk, &st, err);
    return QN_OK;
}

static qn_status pass_over(const qn_disk_opts *o, const char *why, qn_err *err) {
    if (o->use == QN_CACHE_DIR_FILL)
        return QN_FAIL(err, IO, "cache folder %s is not used: %s", o->dir, why);
    qn_log(o->log, o->log_arg, QN_LOG_WARNING, "cache folder %s is not used: %s", o->dir, why);
    return QN_OK;
}

static const char *explain(int error) {
    return error == ELOOP                        ? "it is a link; name the folder itself"
           : error == ENOTDIR || error == EEXIST ? "it is a file, not a folder, or is inside one"
                                                 : strerror(error);
}

static int open_or_make(const qn_disk_opts *o) {
    const int fd = open_folder(o->dir);
    if (fd >= 0 || errno != ENOENT || o->use == QN_CACHE_DIR_FOUND) return fd;
    return qn_path_make_folders(o->dir, true) ? open_folder(o->dir) : -1;
}

static bool is_packs(const char *name) {
    static const char ending[] = ".packs";
    const size_t size = strlen(name), n = sizeof ending - 1;
    return size > n && strcmp(name + size - n, ending) == 0;
}

// Removes the packed weights of all models but those in the file `kept`.
static qn_status drop_packs(const qn_disk *disk, const char *kept, qn_err *err) {
    const int fd = openat(disk->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    qn_status status = QN_OK;
    if (!dir && errno == ENOMEM)
        status = QN_NOMEM(err, disk->dir);
    else if (!dir)
        status = QN_FAIL(err, IO, "cache folder %s: %s", disk->dir, strerror(errno));
    for (const struct dirent *e; !status && (e = readdir(dir));) {
        if (!is_packs(e->d_name) || strcmp(e->d_name, kept) == 0) continue;
        if (unlinkat(disk->fd, e->d_name, 0) != 0)
            status = QN_FAIL(err, IO, "%s/%s: cannot remove it: %s", disk->dir, e->d_name,
                             strerror(errno));
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return status;
}

qn_status qn_disk_claim(const qn_disk *disk, const char *kept, qn_err *err) {
    char text[HEAD_LIMIT];
    if (!disk->is_foreign || !print_origin(text, disk->fd)) return QN_OK;
    QN_TRY(drop_packs(disk, kept, err));
    return keep_text(disk, origin_name, text, strlen(text), err);
}

// Whether a folder that is to be filled brings anything from elsewhere.
static qn_status find_origin(qn_disk *disk, const qn_disk_opts *o, qn_err *err) {
    char text[HEAD_LIMIT];
    bool is_ours = false;
    const bool can_tell = print_origin(text, disk->fd);
    if (can_tell) QN_TRY(holds(&is_ours, disk, origin_name, text, strlen(text), err));
    disk->is_foreign = can_tell && !is_ours;
    if (!can_tell)
        qn_log(o->log, o->log_arg, QN_LOG_WARNING,
               "cache folder %s: its file system does not tell when folders were made: it is used "
               "only where it is named",
               o->dir);
    return QN_OK;
}

// Settles whether anything is written, and tidies up if so.
static qn_status prepare(qn_disk *disk, const qn_disk_opts *o, qn_err *err) {
    if (o->use == QN_CACHE_DIR_FOUND) return QN_OK;
    disk->may_write = faccessat(disk->fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
    disk->must_write = o->use == QN_CACHE_DIR_FILL;
    if (!disk->may_write && disk->must_write)
        return QN_FAIL(err, IO, "cache folder %s: cannot write to it: %s", o->dir, strerror(errno));
    if (!disk->may_write)
        qn_log(o->log, o->log_arg, QN_LOG_WARNING, "cache folder %s: %s: nothing new is kept",
               o->dir, strerror(errno));
    if (disk->may_write) qn_newfile_sweep(disk->fd);
    return disk->must_write ? find_origin(disk, o, err) : QN_OK;
}

qn_status qn_disk_open(qn_disk *out, const qn_disk_opts *o, qn_err *err) {
    char why[WHY];
    if (!o->dir) return QN_OK;
    qn_disk disk = {.dir = o->dir, .fd = open_or_make(o), .log = o->log, .log_arg = o->log_arg};
    if (disk.fd < 0 && errno == ENOENT && o->use == QN_CACHE_DIR_FOUND) return QN_OK;
    if (disk.fd < 0 && errno == ENOMEM) return QN_NOMEM(err, "the path of a cache folder");
    if (disk.fd < 0) return pass_over(o, explain(errno), err);
    qn_status status = find_fault(why, &disk, o->use, err);
    const bool is_used = !status && !why[0];
    if (is_used) status = prepare(&disk, o, err);
    if (!status && !is_used) status = pass_over(o, why, err);
    if (status || !is_used)
        qn_disk_close(&disk);
    else
        *out = disk;
    return status;
}

void qn_disk_close(qn_disk *disk) {
    if (disk->dir) close(disk->fd);
    *disk = (qn_disk){0};
}

// --- plans ---
//
// A plan's file is text for people: "quern plan 1 KEY CHECKSUM\n", then the plan (plan_text.h).
// Compiling takes no longer than reading it back would (docs/decisions), so it is not read.

static void mix(XXH128_hash_t *hash, const char *text) {
    const XXH128_hash_t part = XXH3_128bits_withSeed(text, strlen(text), hash->low64);
    hash->low64 = part.low64 ^ (hash->high64 << 1 | hash->high64 >> 63);
    hash->high64 = part.high64 + hash->low64;
}

static void key_text(char to[2 * HEX + 1], const qn_plan_key *key) {
    const char *const parts[] = {qn_disk_version(), key->device, key->options, key->graph};
    XXH128_hash_t hash = {0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) mix(&hash, parts[i]);
    for (size_t i = 0; qn_pass_name(i); i++) mix(&hash, qn_pass_name(i)); // what made the plan
    snprintf(to, 2 * HEX + 1, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

qn_status qn_disk_keep_plan(const qn_disk *disk, const qn_plan_key *key, const qn_plan *plan,
                            qn_err *err) {
    char digits[2 * HEX + 1], name[64];
    qn_buf text = {0}, file = {0};
    key_text(digits, key);
    snprintf(name, sizeof name, "%s.plan", digits);
    qn_plan_print(&text, plan);
    if (!text.failed) {
        qn_buf_printf(&file, "quern plan 1 %s %016llx\n", digits,
                      (unsigned long long)XXH3_64bits(text.data, text.size));
        qn_buf_add(&file, text.data, text.size);
    }
    const qn_status status = text.failed || file.failed
                                 ? QN_NOMEM(err, "the text of a plan")
                                 : keep_text(disk, name, file.data, file.size, err);
    qn_buf_deinit(&text);
    qn_buf_deinit(&file);
    return status;
}
