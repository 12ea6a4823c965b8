// A thread pool: the caller and n - 1 workers take numbered pieces of one job until none is left.
//
// A pool is passed in, never global. The thread that calls qn_pool_run works too. Threads may share
// a pool: while one job has the workers, another caller does its pieces alone. Pieces are handed
// out in order, to any thread that is free, so a busy neighbour on the machine costs only its
// share. What a piece computes must not depend on which worker runs it.
#ifndef QN_CORE_POOL_H
#define QN_CORE_POOL_H

#include "quern.h"

typedef struct qn_pool qn_pool;
typedef void qn_pool_fn(void *arg, int64_t piece);

// n_threads 0: as many as this process may use (affinity and cgroup quota).
QN_MUST_CHECK qn_status qn_pool_create(qn_pool **out, int n_threads, qn_err *err);
void qn_pool_destroy(qn_pool *pool);
int qn_pool_threads(const qn_pool *pool);
// Calls fn(arg, 0 .. n_pieces-1), each once; returns when all are done. pool may be NULL (then the
// calling thread does everything).
void qn_pool_run(qn_pool *pool, int64_t n_pieces, qn_pool_fn *fn, void *arg);
// Waiting for something that another thread makes true: spinning for a moment, then asleep. The one
// that makes it true opens the gate afterwards; that costs next to nothing while no thread sleeps.
// What is made true and looked at is an atomic in sequentially consistent order.
typedef struct qn_gr_gate qn_gr_gate;
typedef bool qn_gr_gate_fn(void *arg);
QN_MUST_CHECK qn_status qn_gr_gate_create(qn_gr_gate **out, qn_err *err);
void qn_gr_gate_destroy(qn_gr_gate *gate);
void qn_gr_gate_open(qn_gr_gate *gate);
void qn_gr_gate_wait(qn_gr_gate *gate, qn_gr_gate_fn *is_true, void *arg);

// Nanoseconds of the monotonic clock.
int64_t qn_clock(void);

// The number of threads that n_threads 0 means.
int qn_pool_default_threads(void);

#endif
