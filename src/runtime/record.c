#define _GNU_SOURCE
#include "runtime/record.h"

#include "core/file.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_BYTES = 16, NAMES_MAX = 100, HEAD_WORDS_MIN = 2 };
static const char magic[MAGIC_BYTES] = "quern steps 1\n";

// --- writing -------------------------------------------------------------------------------------

struct qn_record {
    int fd;
    char *path; // owned
};

static qn_status write_all(const qn_record *record, const void *bytes, size_t n, qn_err *err) {
    for (size_t done = 0; done < n;) {
        const ssize_t got = write(record->fd, (const char *)bytes + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return QN_FAIL(err, IO, "%s: cannot write a step: %s", record->path, strerror(errno));
        done += (size_t)got;
    }
    return QN_OK;
}

static qn_status open_new(qn_record *record, const char *path, qn_err *err) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const size_t room = strlen(path) + 8;
    record->path = qn_alloc(room, 1);
    if (!record->path) return QN_NOMEM(err, "a record of steps");
    snprintf(record->path, room, "%s", path);
    struct stat info;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return QN_FAIL(err, IO, "%s: cannot record steps there: not a regular file", path);
    for (int i = 1; (record->fd = open(record->path, flags, 0600)) < 0; i++) {
        if (errno != EEXIST || i == NAMES_MAX)
            return QN_FAIL(err, IO, "%s: cannot record steps there: %s", record->path,
                           strerror(errno));
        snprintf(record->path, room, "%s.%d", path, i);
    }
    return QN_OK;
}

qn_status qn_record_create(qn_record **out, const char *path, const qn_record_head *head,
                           qn_err *err) {
    qn_record *record = qn_alloc(1, sizeof *record);
    if (!record) return QN_NOMEM(err, "a record of steps");
    record->fd = -1;
    qn_status status = open_new(record, path, err);
    if (!status) status = write_all(record, magic, sizeof magic, err);
    if (!status) status = write_all(record, head, sizeof *head, err);
    if (status)
        qn_record_destroy(record);
    else
        *out = record;
    return status;
}

const char *qn_record_path(const qn_record *record) { return record->path; }

qn_status qn_record_add(qn_record *record, const int32_t *message, qn_err *err) {
    return write_all(record, message, qn_step_words(message) * sizeof *message, err);
}

void qn_record_destroy(qn_record *record) {
    if (!record) return;
    if (record->fd >= 0) close(record->fd);
    qn_free(record->path);
    qn_free(record);
}

// --- reading -------------------------------------------------------------------------------------

struct qn_replay {
    qn_file file;
    int64_t at;
};

qn_status qn_replay_open(qn_replay **out, qn_record_head *head, const char *path, qn_err *err) {
    char begin[MAGIC_BYTES] = {0};
    qn_replay *replay = qn_alloc(1, sizeof *replay);
    if (!replay) return QN_NOMEM(err, "a record of steps");
    qn_status status = qn_file_open(&replay->file, path, err);
    if (status) {
        qn_free(replay);
        return status;
    }
    const int64_t size = replay->file.size;
    if (size >= MAGIC_BYTES)
        QN_TRY_TO(done, qn_file_read(&replay->file, 0, begin, sizeof begin, err));
    if (memcmp(begin, magic, sizeof magic) != 0 || size < MAGIC_BYTES + (int64_t)sizeof *head) {
        status = QN_FAIL(err, FORMAT, "%s: not a record of steps: %lld bytes that begin otherwise",
                         path, (long long)size);
        goto done;
    }
    QN_TRY_TO(done, qn_file_read(&replay->file, MAGIC_BYTES, head, sizeof *head, err));
    replay->at = MAGIC_BYTES + (int64_t)sizeof *head;
    *out = replay;
    return QN_OK;

done:
    qn_replay_close(replay);
    return status;
}

qn_status qn_replay_next(int32_t *message, bool *more, qn_replay *replay, size_t max_words,
                         qn_err *err) {
    const qn_file *file = &replay->file;
    const int64_t left = file->size - replay->at;
    int32_t head[HEAD_WORDS_MIN]; // magic, words
    *more = left > 0;
    if (left == 0) return QN_OK;
    if (left < (int64_t)sizeof head)
        return QN_FAIL(err, FORMAT, "the file ends too early, in the middle of a step");
    QN_TRY(qn_file_read(file, replay->at, head, sizeof head, err));
    const int64_t bytes = head[1] * (int64_t)sizeof *message;
    if (head[1] < HEAD_WORDS_MIN || (size_t)head[1] > max_words)
        return QN_FAIL(err, FORMAT, "a step of %d words at byte %lld, want %d to %zu", head[1],
                       (long long)replay->at, HEAD_WORDS_MIN, max_words);
    if (bytes > left)
        return QN_FAIL(err, FORMAT,
                       "the file ends too early: a step of %lld bytes at byte %lld, %lld are there",
                       (long long)bytes, (long long)replay->at, (long long)left);
    QN_TRY(qn_file_read(file, replay->at, message, (size_t)bytes, err));
    replay->at += bytes;
    return QN_OK;
}

void qn_replay_close(qn_replay *replay) {
    if (!replay) return;
    qn_file_close(&replay->file);
    qn_free(replay);
}
