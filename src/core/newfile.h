// A file that appears whole or not at all.
//
// It is written without a name where the file system can do that (Linux: O_TMPFILE), else under a
// temporary name beside its place, and takes its place in one step when it is committed. A process
// killed before leaves the old file as it was. One thread at a time.
#ifndef QN_CORE_NEWFILE_H
#define QN_CORE_NEWFILE_H

#include "core/err.h"

typedef struct qn_newfile qn_newfile;

// What tells files of one kind from others: one of the marks, `at` bytes from the beginning.
typedef struct qn_newfile_kind {
    const char *name; // "GGUF file"
    size_t at;
    const char *marks[2]; // the second may be NULL
} qn_newfile_kind;

// Whether a new file of that kind may take this place: nothing is there, or an empty file, or one of
// the same kind. Anything else was named by mistake; the error says what it is.
QN_MUST_CHECK qn_status qn_newfile_check(const char *path, const qn_newfile_kind *kind,
                                         qn_err *err);

// `path` may exist; it must be a regular file then.
QN_MUST_CHECK qn_status qn_newfile_create(qn_newfile **out, const char *path, qn_err *err);
// Appends; buffered.
QN_MUST_CHECK qn_status qn_newfile_write(qn_newfile *file, const void *bytes, size_t n,
                                         qn_err *err);
// Bytes appended so far.
int64_t qn_newfile_size(const qn_newfile *file);
// Brings everything to the disk and puts the file in its place. On failure nothing changes but the
// temporary file, which qn_newfile_destroy removes.
QN_MUST_CHECK qn_status qn_newfile_commit(qn_newfile *file, qn_err *err);
// Ends the writing; without a commit nothing stays. NULL is fine.
void qn_newfile_destroy(qn_newfile *file);

#endif
