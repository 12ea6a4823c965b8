#define _DEFAULT_SOURCE // madvise
#include "backends/cpu/limits.h"

#include "backends/cpu/probe.h"
#include "core/err.h"
#include "core/machine.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    PIECE = 1 << 19,  // bytes that a thread reads at a time: 50 microseconds at 10 GB/s
    MIN_PIECES = 512, // more than caches hold
    MAX_PASSES = 256  // that are counted
};

// How much trouble is taken.
typedef struct effort {
    double read_seconds, peak_seconds; // that tries may take
    int64_t max_pieces;                // of which caches should hold little
    int enough;                        // tries in which all threads were at work
} effort;
static const effort careful = {1, 2, 4096, 1000}, quick = {0.1, 0.04, MIN_PIECES, 20};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// A job of the pool.
typedef struct job {
    const qn_probes *probes;
    const effort *effort;
    unsigned char *at; // (pieces, PIECE)
    int streams;
    qn_probe_peak_fn *peak;
    int64_t rounds;
    double *times; // by thread: when it began and ended
    int n_threads;
    _Atomic int n_here; // threads that have met
} job;

// Uses the result of a probe, so that compilers cannot remove it.
static void see(uint64_t sink) {
    volatile uint64_t seen = sink;
    (void)seen;
}

// --- reading -------------------------------------------------------------------------------------

static void fill_piece(void *arg, int64_t piece) {
    const job *j = arg;
    memset(j->at + piece * PIECE, 1, PIECE);
}

static void read_piece(void *arg, int64_t piece) {
    const job *j = arg;
    uint64_t sink = 0;
    j->probes->read(&sink, j->at + piece * PIECE, PIECE, j->streams);
    see(sink);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// In bytes a second: the median of many passes, because the speed of a shared machine fluctuates.
// Each thread reads one stream, then two; the better way counts.
static double measure_read(job *j, qn_pool *pool, int64_t pieces) {
    double rates[2][MAX_PASSES], medians[2];
    int n = 0;
    qn_pool_run(pool, pieces, fill_piece, j);
    const double begin = now();
    while (n == 0 || (n < MAX_PASSES && now() - begin < j->effort->read_seconds)) {
        for (int way = 0; way < 2; way++) {
            const double start = now();
            j->streams = 1 + way;
            qn_pool_run(pool, pieces, read_piece, j);
            rates[way][n] = (double)pieces * PIECE / (now() - start);
        }
        n++;
    }
    for (int way = 0; way < 2; way++) {
        qsort(rates[way], (size_t)n, sizeof *rates[way], by_size);
        medians[way] = rates[way][n / 2];
    }
    return medians[0] > medians[1] ? medians[0] : medians[1];
}

// As many as wanted, or a quarter of what is free.
static int64_t choose_pieces(const effort *how) {
    int64_t available;
    if (!qn_machine_free_memory(&available) || available / 4 / PIECE > how->max_pieces)
        return how->max_pieces;
    return available / 4 / PIECE < MIN_PIECES ? MIN_PIECES : available / 4 / PIECE;
}

static qn_status read_limit(double *out, job *j, qn_pool *pool, qn_err *err) {
    const int64_t pieces = choose_pieces(j->effort);
    const size_t bytes = (size_t)pieces * PIECE;
    j->at = qn_reserve(bytes);
    if (!j->at) return QN_NOMEM(err, "measuring the read bandwidth");
#ifdef MADV_HUGEPAGE
    (void)madvise(j->at, bytes, MADV_HUGEPAGE); // fewer misses; small pages do too
#endif
    *out = measure_read(j, pool, pieces);
    qn_unreserve(j->at, bytes);
    return QN_OK;
}

// --- peaks ---------------------------------------------------------------------------------------

// Waits for the other threads, so that all work at the same time; by spinning, because a thread
// that sleeps is not at work. A late one only spoils this try.
static void meet(job *j) {
    const double late = now() + 0.05;
    atomic_fetch_add(&j->n_here, 1);
    while (atomic_load(&j->n_here) < j->n_threads && now() < late) continue;
}

static void peak_piece(void *arg, int64_t piece) {
    job *j = arg;
    uint64_t sink = 0;
    meet(j);
    j->times[2 * piece] = now();
    (void)j->peak(&sink, j->rounds);
    j->times[2 * piece + 1] = now();
    see(sink);
}

// In operations a second of all threads; 0 without a probe. A try is one short piece for each
// thread, from the first beginning to the last end. On a busy machine the threads rarely work at
// the same time, so tries go on until enough of them did, or that takes too long.
static double measure_peak(job *j, qn_pool *pool, qn_probe_peak_fn *peak) {
    enum { ROUNDS = 1 << 14 };
    const double begin = now();
    uint64_t sink = 0;
    double best = 0;
    int n_met = 0;
    if (!peak) return 0;
    const double each = peak(&sink, 1) * ROUNDS;
    see(sink);
    j->peak = peak;
    j->rounds = ROUNDS;
    do {
        atomic_store(&j->n_here, 0);
        qn_pool_run(pool, j->n_threads, peak_piece, j);
        double first = j->times[0], last = j->times[1], latest = first;
        for (int i = 1; i < j->n_threads; i++) {
            if (j->times[2 * i] < first) first = j->times[2 * i];
            if (j->times[2 * i] > latest) latest = j->times[2 * i];
            if (j->times[2 * i + 1] > last) last = j->times[2 * i + 1];
        }
        const double rate = each * j->n_threads / (last - first);
        if (rate > best) best = rate;
        n_met += latest - first < (last - first) / 8;
    } while (n_met < j->effort->enough && now() - begin < j->effort->peak_seconds);
    return best;
}

static qn_status measure(qn_limits *out, qn_pool *pool, const effort *how, qn_err *err) {
    job j = {.probes = qn_cpu_probes(), .effort = how, .n_threads = qn_pool_awake(pool)};
    double read = 0;
    j.times = qn_alloc(2 * (size_t)j.n_threads, sizeof *j.times);
    const qn_status status =
        j.times ? read_limit(&read, &j, pool, err) : QN_NOMEM(err, "measuring limits");
    if (!status) {
        *out = (qn_limits){.n_threads = j.n_threads,
                           .level = j.probes->level,
                           .read_gbs = read * 1e-9,
                           .int8_tops = measure_peak(&j, pool, j.probes->int8) * 1e-12,
                           .f32_gflops = measure_peak(&j, pool, j.probes->f32) * 1e-9};
    }
    qn_free(j.times);
    return status;
}

qn_status qn_limits_measure(qn_limits *out, const char *variant, int n_threads, qn_err *err) {
    (void)variant;
    qn_pool *pool;
    QN_TRY(qn_pool_create(&pool, n_threads, err));
    const qn_status status = measure(out, pool, &careful, err);
    qn_pool_destroy(pool);
    return status;
}

qn_status qn_limits_sample(qn_limits *out, qn_pool *pool, qn_err *err) {
    return measure(out, pool, &quick, err);
}
