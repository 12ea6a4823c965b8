// Running a bound plan: every thread walks the list of calls and takes pieces.
//
// The pieces of a call are cut into one share for each thread, so that what a thread reads lies in
// one stretch of memory, and what those of a node read in one on that node (place_weights.c). A
// thread that is done with its share takes what is left of the others', those of its own node
// first, piece by piece: a slow one costs only what it holds. A call starts when all calls up to
// the one it comes after are done; until then a thread waits, at first busily; then it leaves, and
// is called back when there are more pieces than threads.
#ifndef QN_BACKENDS_CPU_WALK_H
#define QN_BACKENDS_CPU_WALK_H

#include "backends/cpu/kernel.h"
#include "core/pool.h"
#include "backends/cpu/bind.h"

#include <stdatomic.h>

// Times of one call, in nanoseconds of the monotonic clock.
typedef struct qn_call_times {
    _Atomic int64_t begin, end;
} qn_call_times;

typedef struct qn_walk {
    const qn_kernel *const *kernels; // (n_calls)
    const qn_task *tasks;            // (n_calls)
    const qn_binding *binding;
    size_t n_calls;
    size_t end;             // of the calls to run now
    int64_t n_shares;       // threads that are awake at one time
    _Atomic int64_t *taken; // (n_calls, n_shares): of the share's pieces
    _Atomic int64_t *done;  // (n_calls): of all
    qn_gate *gate;          // where the thread that began sleeps
    unsigned char *scratch; // (threads, scratch_bytes), aligned to 64
    int64_t scratch_bytes;
    qn_call_times *times;     // (n_calls); NULL: not wanted
    bool (*go_on)(void *arg); // once false, pieces are left out; NULL: all are run
    void *go_on_arg;
    char apart[64]; // all wait for `front`: nothing else that is written shares its cache line
    _Atomic size_t front; // all calls before it are done
    char apart_too[64];
} qn_walk;

// Forgets what was run. Allocates nothing, as the next.
void qn_walk_reset(qn_walk *walk);
// Runs calls first ... end - 1, those before being done; once more, if they were run before.
void qn_walk_run(qn_walk *walk, qn_pool *pool, size_t first, size_t end);

#endif
