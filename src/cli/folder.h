// Files of a folder, and folders that go away again.
#ifndef QN_CLI_FOLDER_H
#define QN_CLI_FOLDER_H

#include "core/err.h"

typedef struct qn_entry {
    char *name; // owned
    int64_t bytes, time_ns;
    uint64_t inode;
} qn_entry;

// Caller storage; `{0}` is an empty one.
typedef struct qn_folder {
    qn_entry *items; // regular files, by name
    size_t n, cap;
} qn_folder;

// A folder that does not exist has no files.
QN_MUST_CHECK qn_status qn_folder_list(qn_folder *out, const char *path, qn_err *err);
void qn_folder_deinit(qn_folder *folder);
// The file of this name; NULL: none.
const qn_entry *qn_folder_find(const qn_folder *folder, const char *name);

// Makes the folder, for this user alone, if it is not there; the one that holds it must be.
QN_MUST_CHECK qn_status qn_folder_make(const char *path, qn_err *err);
// A new folder for a while (owned: qn_free).
QN_MUST_CHECK qn_status qn_folder_make_temporary(char **out, qn_err *err);
// Removes the folder and the files in it. What cannot be removed stays.
void qn_folder_remove(const char *path);

#endif
