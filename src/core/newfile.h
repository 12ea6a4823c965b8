// A file that appears whole or not at all.
//
// It is written without a name where the file system can do that (Linux: O_TMPFILE), else under a
// temporary name in the same folder (.quern-*.tmp), and takes its place in one step when it is
// committed. A process killed before leaves the old file as it was, and in the second case, or in the
// short time between preparing and placing, the temporary one. One thread at a time.
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

// `path` may exist; it must be a regular file then, or a link to one, which stays a link.
QN_MUST_CHECK qn_status qn_newfile_create(qn_newfile **out, const char *path, qn_err *err);
// Appends; buffered.
QN_MUST_CHECK qn_status qn_newfile_write(qn_newfile *file, const void *bytes, size_t n,
                                         qn_err *err);
// Bytes appended so far.
int64_t qn_newfile_size(const qn_newfile *file);
// Brings everything to the disk under the temporary name, after which hardly anything can go wrong:
// for files that belong together, all are prepared before one is placed.
QN_MUST_CHECK qn_status qn_newfile_prepare(qn_newfile *file, qn_err *err);
// Puts a prepared file in its place.
QN_MUST_CHECK qn_status qn_newfile_place(qn_newfile *file, qn_err *err);
// Both. On failure nothing changes but the temporary file, which qn_newfile_destroy removes.
QN_MUST_CHECK qn_status qn_newfile_commit(qn_newfile *file, qn_err *err);
// Ends the writing; without a commit nothing stays. NULL is fine.
void qn_newfile_destroy(qn_newfile *file);

#endif
