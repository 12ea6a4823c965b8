// Read-only files, by positioned reads: of the file system, or of a caller who keeps them himself.
//
// Foreign files are never mapped: a file that another process shortens while we use it would kill
// us with SIGBUS at the next access. A read past the new end is an ordinary error here.
#ifndef QN_CORE_FILE_H
#define QN_CORE_FILE_H

#include "core/err.h"

// Caller storage. Positioned reads share no offset, so threads may read one open file together.
typedef struct qn_file {
    int fd;          // -1: a caller's
    int64_t size;    // when it was opened
    int64_t time_ns; // last change, when it was opened; of a caller's 0
    char *path;      // owned
    qn_model_file own;
} qn_file;

// Opens a regular file (or a link to one); anything else is refused by what it is.
QN_MUST_CHECK qn_status qn_file_open(qn_file *out, const char *path, qn_err *err);
// Opens a regular file in an open folder, never through a link. `shown` is the whole path, for
// messages.
QN_MUST_CHECK qn_status qn_file_open_in(qn_file *out, int folder, const char *name,
                                        const char *shown, qn_err *err);
// Reads exactly `n` bytes at `offset`, or fails, naming the file, the range and the size.
QN_MUST_CHECK qn_status qn_file_read(const qn_file *file, int64_t offset, void *to, size_t n,
                                     qn_err *err);
void qn_file_close(qn_file *file);

// The whole file as one heap block with a NUL after it (release with qn_free). Refuses a file
// larger than `limit` bytes before it allocates.
QN_MUST_CHECK qn_status qn_file_load(char **out, size_t *size, const char *path, int64_t limit,
                                     qn_err *err);

// --- files of a caller ---

// A list of them, found by the last part of a path. Constant; what it points to is the caller's.
typedef struct qn_files qn_files;
// Names must be plain and differ, sizes must not be negative, and every file that is not empty
// needs data or a reader: else QN_ARGUMENT names it.
QN_MUST_CHECK qn_status qn_files_create(qn_files **out, const qn_model_file *files, size_t n,
                                        qn_err *err);
void qn_files_destroy(qn_files *files);
// The name of the i-th; NULL after the last.
const char *qn_files_name(const qn_files *files, size_t i);
// The one that a path names; NULL if there is none.
const qn_model_file *qn_files_find(const qn_files *files, const char *path);

// As the functions for paths below and above; files NULL: those of the file system.
bool qn_files_has(const qn_files *files, const char *path);
QN_MUST_CHECK qn_status qn_files_open(qn_file *out, const qn_files *files, const char *path,
                                      qn_err *err);
QN_MUST_CHECK qn_status qn_files_load(char **out, size_t *size, const qn_files *files,
                                      const char *path, int64_t limit, qn_err *err);

// A folder of the file system, or such a list.
typedef struct qn_location {
    const char *path;
    const qn_files *files; // NULL: of the file system
} qn_location;

// --- paths ---

bool qn_path_is_folder(const char *path);
bool qn_path_is_file(const char *path);
// True if both exist and are one file, whatever the names.
bool qn_path_is_same(const char *a, const char *b);
// folder + "/" + name in a heap block (release with qn_free); NULL when memory is short.
char *qn_path_join(const char *folder, const char *name);
// What follows the last slash of `path`, or all of it if nothing does; borrowed from it.
const char *qn_path_name(const char *path);
// The folder that holds `path` ("." if none) in a heap block; NULL when memory is short.
char *qn_path_folder(const char *path);

// Makes a folder, and those that hold it, where they are not there; others have no access to a
// private one. False: errno says why.
bool qn_path_make_folders(const char *path, bool is_private);

#endif
