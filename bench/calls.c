// What handing over a call costs: plans of calls that do nothing, or spin for some microseconds, by
// threads and by pieces of a call. Microseconds of a call, beside what its work would take alone on
// the threads that are awake.
//
//   bench_calls [CPUS]   threads that are woken at most; default: CPUs of this process
#include "backends/cpu/walk.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 300, RUNS = 15 };

static int64_t work_ns;

static void run_piece(const qn_task *task, int64_t piece, void *scratch) {
    (void)task, (void)piece, (void)scratch;
    const int64_t began = qn_clock();
    while (work_ns && qn_clock() - began < work_ns) continue;
}

static const qn_kernel kernel = {.name = "nothing", .run = run_piece};

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// Pieces of call i: the same of all, or of every other one, those between having one.
static int64_t pieces_of(int i, int n, int is_mixed) { return is_mixed && i % 2 ? 1 : n; }

// Median nanoseconds of a run of all calls, each after the one before.
static int64_t time_calls(qn_pool *pool, int n_pieces, int is_mixed) {
    const size_t n_shares = (size_t)qn_pool_awake(pool);
    const qn_kernel *kernels[CALLS];
    static qn_task tasks[CALLS];
    int64_t pieces[CALLS], times[RUNS];
    int32_t after[CALLS];
    qn_binding binding = {.pieces = pieces, .after = after};
    qn_err err;
    for (int i = 0; i < CALLS; i++) {
        kernels[i] = &kernel;
        pieces[i] = pieces_of(i, n_pieces, is_mixed);
        after[i] = i - 1;
    }
    qn_walk walk = {.kernels = kernels,
                    .tasks = tasks,
                    .binding = &binding,
                    .n_calls = CALLS,
                    .n_shares = (int64_t)n_shares,
                    .taken = qn_alloc(CALLS * n_shares, sizeof *walk.taken),
                    .done = qn_alloc(CALLS, sizeof *walk.done),
                    .scratch = qn_alloc((size_t)qn_pool_threads(pool), 64),
                    .scratch_bytes = 64};
    if (!walk.taken || !walk.done || !walk.scratch || qn_gate_create(&walk.gate, &err)) exit(1);
    for (int r = 0; r < RUNS; r++) {
        const int64_t began = qn_clock();
        qn_walk_run(&walk, pool, 0, CALLS);
        times[r] = qn_clock() - began;
    }
    qsort(times, RUNS, sizeof *times, by_value);
    qn_free(walk.taken);
    qn_free(walk.done);
    qn_free(walk.scratch);
    qn_gate_destroy(walk.gate);
    return times[RUNS / 2];
}

int main(int argc, char **argv) {
    static const int threads[] = {1, 2, 4, 16, 64};
    static const int pieces[] = {1, 4, 16, 64};
    static const int us[] = {0, 5};
    const int n_cpus = argc > 1 ? atoi(argv[1]) : 0;
    printf("threads  pieces  us of each   us per call   mixed with calls of one piece\n");
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        qn_pool *pool;
        qn_err err;
        const qn_pool_opts opts = {.n_threads = threads[t], .n_cpus = n_cpus};
        if (qn_pool_open(&pool, &opts, &err)) {
            fprintf(stderr, "bench_calls: %s\n", err.message);
            return 1;
        }
        for (size_t p = 0; p < 2 * sizeof pieces / sizeof *pieces; p++) {
            const int n = pieces[p / 2];
            work_ns = us[p % 2] * (int64_t)1000;
            const double all = (double)time_calls(pool, n, 0),
                         mixed = (double)time_calls(pool, n, 1);
            printf("%7d %7d %11d %13.2f %11.2f\n", threads[t], n, us[p % 2], all / CALLS / 1000,
                   mixed / CALLS / 1000);
        }
        qn_pool_destroy(pool);
    }
    return 0;
}
