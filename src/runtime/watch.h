// A caller's progress function as something that a step can ask (qn_runner_opts.go_on).
#ifndef QN_RUNTIME_WATCH_H
#define QN_RUNTIME_WATCH_H

#include "core/err.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct qn_watch {
    qn_progress_fn *progress; // called on one thread alone; NULL: never stops
    void *arg;
    int64_t done, total; // what it is told
    pthread_t owner;     // that calls it
    int asked;           // by that thread
    atomic_bool is_over; // it has said so
} qn_watch;

// The calling thread is the owner.
void qn_watch_init(qn_watch *watch, qn_progress_fn *progress, void *arg, int64_t total);
// On the owner's thread: calls the function.
bool qn_watch_tell(qn_watch *watch, int64_t done);
// Whether to go on; any thread may ask. The owner's calls the function now and then.
bool qn_watch_goes_on(void *watch);

#endif
