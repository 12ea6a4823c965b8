// A thread pool: the caller of a job and n - 1 workers, which join it and leave it.
//
// A pool is passed in, never global. The thread that begins a job works too, and could do all of it
// alone. Threads may share a pool: while one job has the workers, another caller is alone. No more
// threads are woken than there are CPUs and a job has pieces for, each by one that is awake; those
// that find nothing to do spin for a moment, then sleep. What is computed must not depend on which
// worker does it.
#ifndef QN_CORE_POOL_H
#define QN_CORE_POOL_H

#include "core/numa.h"
#include "quern.h"

typedef struct qn_pool qn_pool;
typedef void qn_pool_fn(void *arg, int64_t piece);

typedef struct qn_pool_opts {
    int n_threads; // 0: as many as this process may use (affinity and cgroup quota)
    int n_cpus;    // of its threads, how many are woken at most; 0: the same
    // Several nodes: its threads are divided among them, and workers are pinned to the CPUs of
    // theirs. NULL, or fewer CPUs than threads: they run anywhere.
    const qn_numa *numa;
} qn_pool_opts;

QN_MUST_CHECK qn_status qn_pool_open(qn_pool **out, const qn_pool_opts *opts, qn_err *err);
QN_MUST_CHECK qn_status qn_pool_create(qn_pool **out, int n_threads, qn_err *err);
void qn_pool_destroy(qn_pool *pool);
int qn_pool_threads(const qn_pool *pool);
// Most that are at work at one time, the caller of a job among them.
int qn_pool_awake(const qn_pool *pool);
// The nodes that its threads are divided among; NULL: there is nothing to divide.
const qn_numa *qn_pool_numa(const qn_pool *pool);
// Threads first ... end - 1 are those of a node, by its place in the list.
typedef struct qn_pool_span {
    int first, end;
} qn_pool_span;
qn_pool_span qn_pool_node(const qn_pool *pool, int node);
// The threads of the node that a thread of this index runs on; without nodes, all that are awake.
qn_pool_span qn_pool_near(const qn_pool *pool, int index);
// Calls fn(arg, 0 .. n_pieces-1), each once; returns when all are done. pool may be NULL (then the
// calling thread does everything). Pieces are handed out in order, to any thread that is free, so a
// busy neighbour on the machine costs only its share.
void qn_pool_run(qn_pool *pool, int64_t n_pieces, qn_pool_fn *fn, void *arg);

// --- jobs that threads join and leave ---

// Called with index 0 on the thread that begins the job, which returns when all of it is done, and
// with 1 .. threads - 1 on workers, any number of times for each, one at a time. `helpers` is NULL
// where no worker can come. False from a worker: it waited long enough, and may sleep at once.
typedef bool qn_pool_join_fn(void *arg, qn_pool *helpers, int index);
// `wanted`: how many threads, the caller included, find something to do at the beginning.
void qn_pool_join(qn_pool *pool, int64_t wanted, qn_pool_join_fn *fn, void *arg);
// Wakes some workers while fewer than `wanted` threads are awake. Those that come call again.
void qn_pool_call(qn_pool *pool, int64_t wanted);
// Workers that do not sleep.
int qn_pool_awake_workers(const qn_pool *pool);

// --- waiting ---

// Waiting for something that another thread makes true: spinning for a moment, then asleep. The one
// that makes it true opens the gate afterwards; that costs next to nothing while no thread sleeps.
// What is made true and looked at is an atomic in sequentially consistent order.
typedef struct qn_gate qn_gate;
typedef bool qn_gate_fn(void *arg);
QN_MUST_CHECK qn_status qn_gate_create(qn_gate **out, qn_err *err);
void qn_gate_destroy(qn_gate *gate);
void qn_gate_open(qn_gate *gate);
void qn_gate_wait(qn_gate *gate, qn_gate_fn *is_true, void *arg);
// The same without sleeping; false: it did not become true for a moment.
bool qn_wait_briefly(qn_gate_fn *is_true, void *arg);

// Nanoseconds of the monotonic clock.
int64_t qn_clock(void);

// The number of threads that n_threads 0 means.
int qn_pool_default_threads(void);

#endif
