// A model from the hub, or from an address, into our folder: all its files, those that are there
// already left as they are.
#ifndef QN_HUB_PULL_H
#define QN_HUB_PULL_H

#include "hub/places.h"

#include <stdbool.h>

typedef struct qn_pull_file {
    const char *name; // as it is called in the repository
    int64_t size, there;
    size_t i, n; // the i-th of n that are downloaded, from 0
} qn_pull_file;

typedef struct qn_pull_opts {
    const qn_places *places;
    const char *typed;    // spec.h
    const char *revision; // NULL: as it was typed, else "main"
    bool no_tower;
    // Bytes of all files; while something is only waited for, nothing of nothing. False stops.
    qn_progress_fn *progress;
    void (*begin)(void *arg, const qn_pull_file *file); // a file's download
    void (*stage)(void *arg, const char *what); // what the progress is about, until the next file
    // The first bytes of a model's first file are there: `bytes` are those of all its files. What
    // it returns, if it is not QN_OK, ends the pull.
    qn_status (*look)(void *arg, const char *name, int fd, int64_t there, int64_t size,
                      int64_t bytes, qn_err *err);
    void *arg;
} qn_pull_opts;

// Caller storage, owned.
typedef struct qn_pulled {
    char *path;    // of the model: its first file, or the folder of a checkpoint
    int64_t bytes; // of all files
    size_t n_new;  // files that were downloaded
} qn_pulled;

// QN_STOPPED: what is there stays, and the same call goes on with it.
QN_MUST_CHECK qn_status qn_pull(qn_pulled *out, const qn_pull_opts *opts, qn_err *err);
void qn_pulled_deinit(qn_pulled *pulled);

#endif
