#define _GNU_SOURCE // sched_getaffinity, CPU_COUNT
#include "core/pool.h"

#include "core/cgroup.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum {
    MAX_THREADS = 256,
    // Waits inside a step are shorter than a piece, about 10 us, and waking a sleeper costs some
    // microseconds: two pieces long. Other values were not measured.
    SPIN_NS = 20000,
    SPINS_PER_LOOK = 32 // so that reading the clock is a small part of the wait
};

int64_t qn_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// --- gates ---------------------------------------------------------------------------------------

struct qn_gate {
    _Atomic int32_t sleepers;
    pthread_mutex_t lock;
    pthread_cond_t opened;
};

qn_status qn_gate_create(qn_gate **out, qn_err *err) {
    qn_gate *gate = qn_alloc(1, sizeof *gate);
    if (!gate) return QN_NOMEM(err, "gate");
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->opened, NULL);
    *out = gate;
    return QN_OK;
}

void qn_gate_destroy(qn_gate *gate) {
    if (!gate) return;
    pthread_cond_destroy(&gate->opened);
    pthread_mutex_destroy(&gate->lock);
    qn_free(gate);
}

// Sequentially consistent with sleep_until and with what `is_true` reads: either the opener sees
// the sleeper, or the sleeper sees what was made true.
void qn_gate_open(qn_gate *gate) {
    if (atomic_load(&gate->sleepers) == 0) return;
    pthread_mutex_lock(&gate->lock);
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void sleep_until(qn_gate *gate, qn_gate_fn *is_true, void *arg) {
    pthread_mutex_lock(&gate->lock);
    atomic_fetch_add(&gate->sleepers, 1);
    while (!is_true(arg)) pthread_cond_wait(&gate->opened, &gate->lock);
    atomic_fetch_sub(&gate->sleepers, 1);
    pthread_mutex_unlock(&gate->lock);
}

void qn_gate_wait(qn_gate *gate, qn_gate_fn *is_true, void *arg) {
    if (is_true(arg)) return;
    const int64_t began = qn_clock();
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (is_true(arg)) return;
            qn_thread_pause();
        }
    } while (qn_clock() - began < SPIN_NS);
    sleep_until(gate, is_true, arg);
}

// --- the pool ------------------------------------------------------------------------------------

struct qn_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle; // "a job came or the end", "the last worker left the job"
    pthread_t threads[MAX_THREADS];
    int n_workers;       // threads besides the caller's
    int n_inside;        // workers that may still touch the job; under lock
    _Atomic int64_t job; // number of the current job; written under lock
    bool is_ending;      // under lock
    qn_pool_fn *fn;
    void *arg;
    int64_t n_pieces;
    _Atomic int64_t next; // relaxed: the lock orders the job itself
    atomic_flag is_busy;  // acquired by the thread whose job runs, released when it is done
};

static void take_pieces(qn_pool *pool) {
    for (;;) {
        const int64_t piece = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (piece >= pool->n_pieces) return;
        pool->fn(pool->arg, piece);
    }
}

static void wait_briefly(const qn_pool *pool, int64_t seen) {
    const int64_t began = qn_clock();
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) qn_thread_pause();
        if (atomic_load_explicit(&pool->job, memory_order_relaxed) != seen) return;
    } while (qn_clock() - began < SPIN_NS);
}

static void *worker_main(void *arg) {
    qn_pool *pool = arg;
    int64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        if (pool->job == seen && !pool->is_ending) { // the next job often comes at once
            pthread_mutex_unlock(&pool->lock);
            wait_briefly(pool, seen);
            pthread_mutex_lock(&pool->lock);
        }
        while (!pool->is_ending && pool->job == seen) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->is_ending) break;
        seen = pool->job;
        pthread_mutex_unlock(&pool->lock);
        take_pieces(pool);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_inside == 0) pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int qn_pool_default_threads(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota;
    if (qn_cgroup_cpus(&quota, "") && quota < n) n = quota;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

qn_status qn_pool_create(qn_pool **out, int n_threads, qn_err *err) {
    if (n_threads == 0) n_threads = qn_pool_default_threads();
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return QN_FAIL(err, ARGUMENT, "threads: %d, want 1 to %d", n_threads, MAX_THREADS);
    qn_pool *pool = qn_alloc(1, sizeof *pool);
    if (!pool) return QN_NOMEM(err, "thread pool");
    atomic_flag_clear(&pool->is_busy);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        if (!qn_thread_start(&pool->threads[i], worker_main, pool)) {
            qn_pool_destroy(pool);
            return QN_FAIL(err, MEMORY, "cannot start thread %d of %d: out of memory or of threads",
                           i + 2, n_threads);
        }
        pool->n_workers++;
    }
    *out = pool;
    return QN_OK;
}

void qn_pool_destroy(qn_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->is_ending = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_workers; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    qn_free(pool);
}

int qn_pool_threads(const qn_pool *pool) { return pool ? pool->n_workers + 1 : 1; }

void qn_pool_run(qn_pool *pool, int64_t n_pieces, qn_pool_fn *fn, void *arg) {
    if (!pool || pool->n_workers == 0 || n_pieces < 2 ||
        atomic_flag_test_and_set_explicit(&pool->is_busy, memory_order_acquire)) {
        for (int64_t i = 0; i < n_pieces; i++) fn(arg, i);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->n_pieces = n_pieces;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->n_inside = pool->n_workers;
    pool->job++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    take_pieces(pool);
    pthread_mutex_lock(&pool->lock);
    while (pool->n_inside > 0) pthread_cond_wait(&pool->idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    atomic_flag_clear_explicit(&pool->is_busy, memory_order_release);
}
