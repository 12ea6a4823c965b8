#include "core/pool.h"

#include "core/cgroup.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/thread.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum {
    MAX_THREADS = 256,
    // Waits inside a step are shorter than a piece, about 10 us, and waking a sleeper costs some
    // microseconds: two pieces long. Other values were not measured.
    SPIN_NS = 20000,
    SPINS_PER_LOOK = 32, // so that reading the clock is a small part of the wait
    // A thread that is woken wakes others in turn, so that one of 64 pays for a few only. Not tuned.
    WAKE_EACH = 2,
    LINE = 64 // bytes of a cache line
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

bool qn_wait_briefly(qn_gate_fn *is_true, void *arg) {
    if (is_true(arg)) return true;
    const int64_t began = qn_clock();
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (is_true(arg)) return true;
            qn_thread_pause();
        }
    } while (qn_clock() - began < SPIN_NS);
    return false;
}

void qn_gate_wait(qn_gate *gate, qn_gate_fn *is_true, void *arg) {
    if (!qn_wait_briefly(is_true, arg)) sleep_until(gate, is_true, arg);
}

// --- the pool ------------------------------------------------------------------------------------

enum { IS_OPEN = 1 << 30 }; // of `inside`

typedef struct worker {
    qn_pool *pool;
    pthread_t thread;
    int index; // from 1 on; 0 is the caller of a job
    int node;
} worker;

struct qn_pool {
    int n_workers; // threads besides the caller's
    int n_awake;   // of them and the caller: most that are woken
    qn_pool_join_fn *fn;
    void *arg;
    sem_t tickets;       // one for each sleeper that was woken
    sem_t last;          // the last worker left a job that is closed
    atomic_flag is_busy; // acquired by the thread whose job runs, released when it is done
    _Atomic bool is_ending;
    char apart[LINE];
    // Workers that may touch the job, and IS_OPEN: others may still come. The job's fields are
    // written before it is opened, and not before it is closed and left.
    _Atomic int32_t inside;
    char apart_too[LINE];
    _Atomic uint32_t bell; // changes when there is a new job, or the end
    // Workers that are asleep or about to be. Whoever wakes one takes it off, and gives a ticket.
    _Atomic int32_t sleepers;
    char apart_again[LINE];
    qn_numa numa;                      // constant; n_nodes is 0 where threads run anywhere
    int node_first[QN_NUMA_NODES + 1]; // threads of each node
    worker workers[MAX_THREADS];
};

static bool enter(qn_pool *pool) {
    int32_t inside = atomic_load(&pool->inside);
    while (inside & IS_OPEN) {
        if (atomic_compare_exchange_weak(&pool->inside, &inside, inside + 1)) return true;
    }
    return false;
}

static void leave(qn_pool *pool) {
    if (atomic_fetch_sub(&pool->inside, 1) == 1) sem_post(&pool->last);
}

static bool take_sleeper(qn_pool *pool) {
    int32_t n = atomic_load(&pool->sleepers);
    while (n > 0) {
        if (atomic_compare_exchange_weak(&pool->sleepers, &n, n - 1)) return true;
    }
    return false;
}

typedef struct look {
    qn_pool *pool;
    uint32_t seen; // the bell
} look;

static bool has_rung(void *arg) {
    const look *l = arg;
    return atomic_load(&l->pool->bell) != l->seen;
}

// Sequentially consistent with the bell: either this worker hears it, or who rings sees a sleeper.
// Sleepers are all alike: one that takes itself off may leave its ticket to another.
static void sleep_through(look *l) {
    atomic_fetch_add(&l->pool->sleepers, 1);
    if (has_rung(l) && take_sleeper(l->pool)) return;
    while (sem_wait(&l->pool->tickets) != 0) continue; // interrupted
}

static void *worker_main(void *arg) {
    const worker *self = arg;
    qn_pool *pool = self->pool;
    const qn_numa *numa = &pool->numa;
    if (numa->n_nodes) (void)numa->calls.pin(numa->calls.arg, &numa->nodes[self->node].cpus);
    for (;;) {
        look l = {pool, atomic_load(&pool->bell)};
        bool is_tired = false;
        if (atomic_load(&pool->is_ending)) return NULL;
        if (enter(pool)) {
            is_tired = !pool->fn(pool->arg, pool, self->index);
            leave(pool);
        }
        // the next job often comes at once
        if (is_tired || !qn_wait_briefly(has_rung, &l)) sleep_through(&l);
    }
}

void qn_pool_call(qn_pool *pool, int64_t wanted) {
    const int64_t max = pool ? qn_min(wanted, pool->n_awake) : 0;
    for (int i = 0; i < WAKE_EACH; i++) {
        if (1 + qn_pool_awake_workers(pool) >= max || !take_sleeper(pool)) return;
        sem_post(&pool->tickets);
    }
}

int qn_pool_awake_workers(const qn_pool *pool) {
    return pool ? pool->n_workers - atomic_load(&pool->sleepers) : 0;
}

// Waits until no worker is left inside.
static void close_job(qn_pool *pool) {
    if (atomic_fetch_and(&pool->inside, ~IS_OPEN) == IS_OPEN) return;
    while (sem_wait(&pool->last) != 0) continue;
}

void qn_pool_join(qn_pool *pool, int64_t wanted, qn_pool_join_fn *fn, void *arg) {
    if (!pool || pool->n_workers == 0 || wanted < 2 ||
        atomic_flag_test_and_set_explicit(&pool->is_busy, memory_order_acquire)) {
        (void)fn(arg, NULL, 0);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store(&pool->inside, IS_OPEN);
    atomic_fetch_add(&pool->bell, 1);
    qn_pool_call(pool, wanted);
    (void)fn(arg, pool, 0);
    close_job(pool);
    atomic_flag_clear_explicit(&pool->is_busy, memory_order_release);
}

int qn_pool_default_threads(void) {
    qn_cpus cpus;
    int n = qn_cpus_allowed(&cpus) ? qn_cpus_count(&cpus) : 1;
    int quota;
    if (qn_cgroup_cpus(&quota, "") && quota < n) n = quota;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

static qn_status start_workers(qn_pool *pool, int n_threads, qn_err *err) {
    for (int i = 0; i < n_threads - 1; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .index = i + 1};
        if (pool->numa.n_nodes) w->node = qn_numa_node_of(&pool->numa, i + 1, n_threads);
        if (!qn_thread_start(&w->thread, worker_main, w))
            return QN_FAIL(err, MEMORY, "cannot start thread %d of %d: out of memory or of threads",
                           i + 2, n_threads);
        pool->n_workers++;
    }
    return QN_OK;
}

static void divide(qn_pool *pool, const qn_numa *numa, int n_threads) {
    pool->numa = *numa;
    for (int i = 0; i < n_threads; i++) pool->node_first[qn_numa_node_of(numa, i, n_threads) + 1]++;
    for (int k = 0; k < numa->n_nodes; k++) pool->node_first[k + 1] += pool->node_first[k];
}

qn_status qn_pool_open(qn_pool **out, const qn_pool_opts *opts, qn_err *err) {
    const int cpus = opts->n_cpus ? opts->n_cpus : qn_pool_default_threads();
    const int n_threads = opts->n_threads ? opts->n_threads : cpus;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return QN_FAIL(err, ARGUMENT, "threads: %d, want 1 to %d", n_threads, MAX_THREADS);
    qn_pool *pool = qn_alloc(1, sizeof *pool);
    if (!pool) return QN_NOMEM(err, "thread pool");
    pool->n_awake = (int)qn_min(n_threads, cpus);
    if (opts->numa && opts->numa->n_nodes > 1 && n_threads <= qn_min(cpus, opts->numa->n_cpus))
        divide(pool, opts->numa, n_threads);
    atomic_flag_clear(&pool->is_busy);
    sem_init(&pool->tickets, 0, 0);
    sem_init(&pool->last, 0, 0);
    const qn_status status = start_workers(pool, n_threads, err);
    if (status)
        qn_pool_destroy(pool);
    else
        *out = pool;
    return status;
}

qn_status qn_pool_create(qn_pool **out, int n_threads, qn_err *err) {
    return qn_pool_open(out, &(qn_pool_opts){.n_threads = n_threads}, err);
}

void qn_pool_destroy(qn_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->is_ending, true);
    atomic_fetch_add(&pool->bell, 1);
    while (take_sleeper(pool)) sem_post(&pool->tickets);
    for (int i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    sem_destroy(&pool->tickets);
    sem_destroy(&pool->last);
    qn_free(pool);
}

int qn_pool_threads(const qn_pool *pool) { return pool ? pool->n_workers + 1 : 1; }
int qn_pool_awake(const qn_pool *pool) { return pool ? pool->n_awake : 1; }

const qn_numa *qn_pool_numa(const qn_pool *pool) {
    return pool && pool->numa.n_nodes ? &pool->numa : NULL;
}

qn_pool_span qn_pool_node(const qn_pool *pool, int node) {
    return (qn_pool_span){pool->node_first[node], pool->node_first[node + 1]};
}

// The caller of a job is nobody's to pin.
static int find_node(const qn_pool *pool) {
    const int cpu = pool->numa.calls.cpu(pool->numa.calls.arg);
    for (int k = 0; k < pool->numa.n_nodes; k++) {
        if (qn_cpus_has(&pool->numa.nodes[k].cpus, cpu)) return k;
    }
    return 0;
}

qn_pool_span qn_pool_near(const qn_pool *pool, int index) {
    if (!qn_pool_numa(pool)) return (qn_pool_span){0, qn_pool_awake(pool)};
    return qn_pool_node(pool, index ? pool->workers[index - 1].node : find_node(pool));
}

// --- numbered pieces -----------------------------------------------------------------------------

typedef struct pieces_job {
    qn_pool_fn *fn;
    void *arg;
    int64_t n;
    _Atomic int64_t next; // relaxed: the pool orders the job itself
} pieces_job;

static bool take_pieces(void *arg, qn_pool *helpers, int index) {
    pieces_job *job = arg;
    bool has_called = index == 0;
    for (;;) {
        const int64_t piece = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (piece >= job->n) return true;
        if (!has_called) qn_pool_call(helpers, job->n);
        has_called = true;
        job->fn(job->arg, piece);
    }
}

void qn_pool_run(qn_pool *pool, int64_t n_pieces, qn_pool_fn *fn, void *arg) {
    pieces_job job = {.fn = fn, .arg = arg, .n = n_pieces};
    qn_pool_join(pool, n_pieces, take_pieces, &job);
}
