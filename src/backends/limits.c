#define _DEFAULT_SOURCE // madvise
#include "backends/limits.h"

#include "backends/cpu/probe.h"
#include "core/err.h"
#include "core/machine.h"
#include "core/mem.h"
#include "core/pool.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    PIECE = 1 << 20,    // bytes that a thread reads at a time
    WINDOW = 128 << 20, // that are timed together: many times what caches hold of them
    PASSES = 4,         // over all windows
};
static const double peak_seconds = 0.2; // that tries of a peak may take
static const int64_t most_bytes = INT64_C(2) << 30, least_bytes = WINDOW;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// One timed job of the pool. Other programs disturb it, so the best of many short ones counts.
typedef struct job {
    const qn_probes *probes;
    unsigned char *at; // of a window
    int streams;
    qn_probe_peak_fn *peak;
    int64_t rounds;
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
    see(sink);
}

// In bytes a second: of the best window, read as one stream or as two by each thread.
static double measure_read(job *j, qn_pool *pool, unsigned char *memory, int64_t bytes) {
    double best = 0;
    j->at = memory;
    qn_pool_run(pool, bytes / PIECE, fill_piece, j);
    for (int pass = 0; pass < PASSES; pass++) {
        j->streams = 1 + pass % 2;
        for (int64_t i = 0; i < bytes / WINDOW; i++) {
            j->at = memory + i * WINDOW;
            const double start = now();
            qn_pool_run(pool, WINDOW / PIECE, read_piece, j);
            const double rate = WINDOW / (now() - start);
            if (rate > best) best = rate;
        }
    }
    return best;
}

// 2 GiB, or a quarter of what is free; whole windows.
static int64_t choose_bytes(void) {
    int64_t available;
    if (!qn_machine_free_memory(&available) || available / 4 > most_bytes) return most_bytes;
    const int64_t bytes = available / 4 / WINDOW * WINDOW;
    return bytes < least_bytes ? least_bytes : bytes;
}

static qn_status read_limit(double *out, job *j, qn_pool *pool, qn_err *err) {
    const int64_t bytes = choose_bytes();
    unsigned char *memory = qn_reserve((size_t)bytes);
    if (!memory) return QN_NOMEM(err, "measuring the read bandwidth");
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE); // fewer misses; small pages do too
#endif
    *out = measure_read(j, pool, memory, bytes);
    qn_unreserve(memory, (size_t)bytes);
    return QN_OK;
}

// --- peaks ---------------------------------------------------------------------------------------

static void peak_piece(void *arg, int64_t piece) {
    const job *j = arg;
    uint64_t sink = 0;
    (void)piece;
    (void)j->peak(&sink, j->rounds);
    see(sink);
}

// In operations a second of all threads; 0 without a probe. A try takes a few milliseconds and is
// cut into pieces, so that a thread that was held up costs only its own piece.
static double measure_peak(job *j, qn_pool *pool, qn_probe_peak_fn *peak) {
    enum { ROUNDS = 1 << 14, PIECES_EACH = 32, LEAST_TRIES = 16 };
    if (!peak) return 0;
    const int64_t pieces = (int64_t)PIECES_EACH * qn_pool_threads(pool);
    uint64_t sink = 0;
    j->peak = peak;
    j->rounds = ROUNDS;
    const double each = peak(&sink, 1) * ROUNDS;
    const double begin = now();
    double best = 0;
    for (int i = 0; i < LEAST_TRIES || now() - begin < peak_seconds; i++) {
        const double start = now();
        qn_pool_run(pool, pieces, peak_piece, j);
        const double rate = each * (double)pieces / (now() - start);
        if (rate > best) best = rate;
    }
    see(sink);
    return best;
}

qn_status qn_limits_measure(qn_limits *out, int n_threads, qn_err *err) {
    qn_pool *pool;
    job j = {.probes = qn_cpu_probes()};
    double read = 0;
    QN_TRY(qn_pool_create(&pool, n_threads, err));
    const qn_status status = read_limit(&read, &j, pool, err);
    if (!status) {
        *out = (qn_limits){.n_threads = qn_pool_threads(pool),
                           .level = j.probes->level,
                           .read_gbs = read * 1e-9,
                           .int8_tops = measure_peak(&j, pool, j.probes->int8) * 1e-12,
                           .f32_gflops = measure_peak(&j, pool, j.probes->f32) * 1e-9};
    }
    qn_pool_destroy(pool);
    return status;
}
