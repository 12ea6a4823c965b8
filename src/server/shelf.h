// Models in a folder, and how they are called.
#ifndef QN_SERVER_SHELF_H
#define QN_SERVER_SHELF_H

#include "core/err.h"

#include <time.h>

typedef struct qn_found {
    char *name, *path; // owned
    int64_t file_bytes;
    time_t modified;
} qn_found;

// The name of a model: the last part of its path, without ".gguf" and the number of a split set.
// Owned; NULL: no memory.
char *qn_model_name(const char *path);

// .gguf files (of a split set the first one; no vision towers) and checkpoint folders, also those
// of folders inside, three deep, in the order of their names; of several with one name, the first
// path. To be released by qn_found_destroy.
QN_MUST_CHECK qn_status qn_shelf_list(qn_found **out, size_t *n, const char *folder, qn_err *err);
void qn_found_destroy(qn_found *found, size_t n);

#endif
