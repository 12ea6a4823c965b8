#define _DEFAULT_SOURCE // madvise
#include "backends/limits.h"

#include "backends/cpu/probe.h"
#include "core/err.h"
#include "core/machine.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    PIECE = 1 << 19,    // bytes that a thread reads at a time
    WINDOW = 64,        // pieces that are timed together
    MOST_PIECES = 4096, // 2 GiB: what caches hold of it is little
    LEAST_PIECES = 512, // more than caches hold
    PIECES_EACH = 64,   // of a peak, for each thread
};
static const double read_seconds = 1, peak_seconds = 0.2; // that tries may take

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// A job of the pool. Other programs disturb it, so the best of many short ones counts.
typedef struct job {
    const qn_probes *probes;
    unsigned char *at; // (pieces, PIECE)
    int streams;
    qn_probe_peak_fn *peak;
    int64_t rounds;
    double *times; // by piece: when it ended, or its speed
} job;

// What a probe computes is looked at, so that it cannot be left out.
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
    j->times[piece] = now();
    see(sink);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// In bytes a second: of the best WINDOW pieces that ended one after the other, whoever read them.
// Each thread reads one stream, then two.
static double measure_read(job *j, qn_pool *pool, int64_t pieces) {
    double best = 0;
    qn_pool_run(pool, pieces, fill_piece, j);
    const double begin = now();
    for (int pass = 0; pass < 2 || now() - begin < read_seconds; pass++) {
        j->streams = 1 + pass % 2;
        qn_pool_run(pool, pieces, read_piece, j);
        qsort(j->times, (size_t)pieces, sizeof *j->times, by_size);
        for (int64_t i = WINDOW; i < pieces; i++) {
            const double rate = (double)WINDOW * PIECE / (j->times[i] - j->times[i - WINDOW]);
            if (rate > best) best = rate;
        }
    }
    return best;
}

// 2 GiB, or a quarter of what is free.
static int64_t choose_pieces(void) {
    int64_t available;
    if (!qn_machine_free_memory(&available) || available / 4 / PIECE > MOST_PIECES)
        return MOST_PIECES;
    return available / 4 / PIECE < LEAST_PIECES ? LEAST_PIECES : available / 4 / PIECE;
}

static qn_status read_limit(double *out, job *j, qn_pool *pool, qn_err *err) {
    const int64_t pieces = choose_pieces();
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

static void peak_piece(void *arg, int64_t piece) {
    const job *j = arg;
    uint64_t sink = 0;
    const double start = now();
    const double n = j->peak(&sink, j->rounds);
    j->times[piece] = n / (now() - start);
    see(sink);
}

// In operations a second of all threads; 0 without a probe. All threads work, each piece is timed
// alone, and the median counts for every thread: a piece during which the thread was held up is left
// out, and so is one beside which the others had ended.
static double measure_peak(job *j, qn_pool *pool, qn_probe_peak_fn *peak) {
    enum { ROUNDS = 1 << 13 };
    const int n_threads = qn_pool_threads(pool);
    const int pieces = PIECES_EACH * n_threads;
    const double begin = now();
    double best = 0;
    if (!peak) return 0;
    j->peak = peak;
    j->rounds = ROUNDS;
    do {
        qn_pool_run(pool, pieces, peak_piece, j);
        qsort(j->times, (size_t)pieces, sizeof *j->times, by_size);
        const double rate = j->times[pieces / 2] * n_threads;
        if (rate > best) best = rate;
    } while (now() - begin < peak_seconds);
    return best;
}

qn_status qn_limits_measure(qn_limits *out, int n_threads, qn_err *err) {
    qn_pool *pool;
    job j = {.probes = qn_cpu_probes()};
    double read = 0;
    QN_TRY(qn_pool_create(&pool, n_threads, err));
    j.times =
        qn_alloc((size_t)(MOST_PIECES + qn_pool_threads(pool) * PIECES_EACH), sizeof *j.times);
    const qn_status status =
        j.times ? read_limit(&read, &j, pool, err) : QN_NOMEM(err, "measuring limits");
    if (!status) {
        *out = (qn_limits){.n_threads = qn_pool_threads(pool),
                           .level = j.probes->level,
                           .read_gbs = read * 1e-9,
                           .int8_tops = measure_peak(&j, pool, j.probes->int8) * 1e-12,
                           .f32_gflops = measure_peak(&j, pool, j.probes->f32) * 1e-9};
    }
    qn_free(j.times);
    qn_pool_destroy(pool);
    return status;
}
