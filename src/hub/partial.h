// A file that is being downloaded: PATH.part, and PATH.part.json, which says what is missing of it.
//
// It stays when the program ends before everything is there, and the next download of the same
// content goes on with it. One process at a time: it is locked.
#ifndef QN_HUB_PARTIAL_H
#define QN_HUB_PARTIAL_H

#include "core/err.h"

#include <stdbool.h>

// Bytes from `first` to before `end`; those before `done` are there.
typedef struct qn_gap {
    int64_t first, done, end;
    bool is_busy; // somebody is writing it
} qn_gap;

typedef struct qn_partial {
    char *path, *notes; // owned
    int fd;
    int64_t size;
    const char *mark; // of the content, borrowed: its SHA-256 or an etag; "": it has none
    qn_gap *gaps;     // (n) owned, ascending; what is in none of them is there
    size_t n;
} qn_partial;

// Caller storage. What an earlier download of the same size and mark left is used.
QN_MUST_CHECK qn_status qn_partial_open(qn_partial *out, const char *path, int64_t size,
                                        const char *mark, qn_err *err);
// Bytes that are not there yet.
int64_t qn_partial_missing(const qn_partial *part);
// Brings what is there to the disk, and writes down what is missing.
QN_MUST_CHECK qn_status qn_partial_save(qn_partial *part, qn_err *err);
// Nothing counts of what is there: it is one gap.
QN_MUST_CHECK qn_status qn_partial_restart(qn_partial *part, qn_err *err);
// Everything is there: gives the file its name.
QN_MUST_CHECK qn_status qn_partial_commit(qn_partial *part, const char *path, qn_err *err);
// Nothing of it is worth keeping.
void qn_partial_drop(qn_partial *part);
// What is there stays for the next time. A zeroed struct is fine.
void qn_partial_close(qn_partial *part);

#endif
