// A file that appears whole or not at all.
//
// It is written without a name where the file system can do that (Linux: O_TMPFILE), else under a
// temporary name in the same folder (.quern-*.tmp), and takes its place in one step when it is
// committed. A process killed before leaves the old file as it was, and in the second case, or in
// the short time between preparing and placing, the temporary one. That is removed by the next
// writer of the same file, and by qn_newfile_sweep: writers hold a lock on theirs, which ends with
// them. One thread at a time.
//
// A file that replaces another one has its permissions, and its owner and group where this process
// may give them.
#ifndef QN_CORE_NEWFILE_H
#define QN_CORE_NEWFILE_H

#include "core/err.h"

typedef struct qn_newfile qn_newfile;

// How files of one kind are recognised: one of the marks, `at` bytes from the beginning.
typedef struct qn_newfile_kind {
    const char *name; // "a GGUF file"
    size_t at;
    const char *marks[2]; // the second may be NULL
    bool is_private;      // a new one is for its owner alone
} qn_newfile_kind;

enum {
    QN_NEWFILE_PRIVATE =
        1, // a new file is for its owner alone; else as the umask says. One that would
           // replace a file of another user, or follow his link, is an error
    QN_NEWFILE_NAMED = 2, // never without a name, as where the file system cannot do that
};

// Whether a new file of that kind may take this place: nothing is there, or an empty file, or one
// of the same kind. Anything else was named by mistake; the error says what it is.
QN_MUST_CHECK qn_status qn_newfile_check(const char *path, const qn_newfile_kind *kind,
                                         qn_err *err);

// `path` may exist; it must be a regular file then, or a link to one, which stays a link.
QN_MUST_CHECK qn_status qn_newfile_create(qn_newfile **out, const char *path, int flags,
                                          qn_err *err);
// A file in an open folder, for its owner alone. Whatever has that name is replaced, a link itself
// and not what it points to; a folder is not. `shown` is the whole path, for messages.
QN_MUST_CHECK qn_status qn_newfile_create_in(qn_newfile **out, int folder, const char *name,
                                             const char *shown, qn_err *err);
// Appends; buffered.
QN_MUST_CHECK qn_status qn_newfile_write(qn_newfile *file, const void *bytes, size_t n,
                                         qn_err *err);
// Writes once more what was appended before, inside it.
QN_MUST_CHECK qn_status qn_newfile_rewrite(qn_newfile *file, int64_t offset, const void *bytes,
                                           size_t n, qn_err *err);
// Bytes appended so far.
int64_t qn_newfile_size(const qn_newfile *file);
// Brings everything to the disk under the temporary name, after which hardly anything can go wrong:
// for files that belong together, all are prepared before one is placed.
QN_MUST_CHECK qn_status qn_newfile_prepare(qn_newfile *file, qn_err *err);
QN_MUST_CHECK qn_status qn_newfile_place(qn_newfile *file, qn_err *err);
// Both. On failure nothing changes but the temporary file, which qn_newfile_destroy removes.
QN_MUST_CHECK qn_status qn_newfile_commit(qn_newfile *file, qn_err *err);
// Ends the writing; without a commit nothing stays. NULL is fine.
void qn_newfile_destroy(qn_newfile *file);

// Removes the temporary files of this user that killed writers left in an open folder. Where files
// cannot be locked, those unchanged for a day.
void qn_newfile_sweep(int folder);

#endif
