// Walking a plan: whatever the threads and the pieces, each piece runs once, with scratch of its
// own, and no call begins before those that it comes after are done.
#include "testing.h"

#include "core/mem.h"
#include "backends/cpu/walk.h"

#include <stdlib.h>
#include <string.h>

enum { CALLS = 9, MAX_PIECES = 1000, SCRATCH = 64, ROUNDS = 20 };

static const int64_t pieces[CALLS] = {0, 1, 3, 64, MAX_PIECES, 2, 0, 7, 1};
static const int32_t after[CALLS] = {-1, -1, 1, 2, 1, 4, 4, 6, 7};

// A plan of nothing: what pieces leave behind is plain memory, which the walk must order.
typedef struct world {
    int runs[CALLS][MAX_PIECES];
    qn_task tasks[CALLS];
    const qn_kernel *kernels[CALLS];
    qn_binding binding;
    qn_call_times times[CALLS];
    _Atomic int faults;
    qn_walk walk;
} world;

static void run_piece(const qn_task *task, int64_t piece, void *scratch) {
    world *w = task->in[0].data;
    const ptrdiff_t call = task - w->tasks;
    unsigned char mark[SCRATCH];
    memset(mark, (int)(piece + 3 * call), sizeof mark);
    memcpy(scratch, mark, sizeof mark);
    for (int32_t before = 0; before <= after[call]; before++) {
        for (int64_t p = 0; p < pieces[before]; p++) w->faults += w->runs[before][p] != 1;
    }
    w->runs[call][piece]++;
    w->faults += memcmp(scratch, mark, sizeof mark) != 0;
}

static void world_open(world *w, const qn_pool *pool, bool is_timed) {
    const int n_shares = qn_pool_awake(pool), n_threads = qn_pool_threads(pool);
    static const qn_kernel kernel = {.name = "piece", .run = run_piece};
    qn_err err;
    memset(w, 0, sizeof *w);
    for (int i = 0; i < CALLS; i++) {
        w->kernels[i] = &kernel;
        w->tasks[i].in[0].data = w;
    }
    w->binding.pieces = (int64_t *)(uintptr_t)pieces;
    w->binding.after = (int32_t *)(uintptr_t)after;
    w->walk = (qn_walk){.kernels = w->kernels,
                        .tasks = w->tasks,
                        .binding = &w->binding,
                        .n_calls = CALLS,
                        .n_shares = n_shares,
                        .taken = qn_alloc((size_t)(CALLS * n_shares), sizeof *w->walk.taken),
                        .done = qn_alloc(CALLS, sizeof *w->walk.done),
                        .scratch = qn_alloc((size_t)n_threads, SCRATCH),
                        .scratch_bytes = SCRATCH,
                        .times = is_timed ? w->times : NULL};
    assert_true(w->walk.taken && w->walk.done && w->walk.scratch);
    ASSERT_OK(qn_gate_create(&w->walk.gate, &err));
}

static void world_close(world *w) {
    qn_free(w->walk.taken);
    qn_free(w->walk.done);
    qn_free(w->walk.scratch);
    qn_gate_destroy(w->walk.gate);
}

// Every piece ran once since the last time.
static void check_runs(world *w) {
    assert_int_equal(w->faults, 0);
    for (int i = 0; i < CALLS; i++) {
        for (int64_t p = 0; p < MAX_PIECES; p++) assert_int_equal(w->runs[i][p], p < pieces[i]);
    }
    memset(w->runs, 0, sizeof w->runs);
}

// All calls, in two runs.
static void run_all(world *w, qn_pool *pool, size_t middle) {
    qn_walk_reset(&w->walk);
    qn_walk_run(&w->walk, pool, 0, middle);
    qn_walk_run(&w->walk, pool, middle, CALLS);
}

static void each_piece_runs_once_and_in_order(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 17, 100}, cpus[] = {1, 2, 3, 17, 2};
    static world w;
    qn_err err;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        qn_pool *pool;
        const qn_pool_opts opts = {.n_threads = threads[t], .n_cpus = cpus[t]};
        ASSERT_OK(qn_pool_open(&pool, &opts, &err));
        world_open(&w, pool, t % 2);
        for (int round = 0; round < ROUNDS; round++) {
            const int64_t began = qn_clock();
            run_all(&w, pool, (size_t)round % (CALLS + 1));
            check_runs(&w);
            for (int i = 0; i < CALLS && w.walk.times; i++)
                assert_true(!pieces[i] ||
                            (began <= w.times[i].begin && w.times[i].begin <= w.times[i].end));
        }
        world_close(&w);
        qn_pool_destroy(pool);
    }
}

static void run_walk(void *arg, int64_t i) {
    world *w = arg;
    run_all(&w[i], (qn_pool *)w[i].tasks[0].in[1].data, 0);
}

// A pool that is busy lends no thread: each caller walks alone.
static void walks_need_no_pool(void **state) {
    (void)state;
    static world w[4];
    qn_err err;
    qn_pool *pool;
    ASSERT_OK(qn_pool_open(&pool, &(qn_pool_opts){.n_threads = 3, .n_cpus = 3}, &err));
    for (int i = 0; i < 4; i++) {
        world_open(&w[i], pool, false);
        w[i].tasks[0].in[1].data = pool;
    }
    for (int round = 0; round < ROUNDS; round++) {
        qn_pool_run(pool, 4, run_walk, w);
        for (int i = 0; i < 4; i++) check_runs(&w[i]);
    }
    run_all(&w[0], NULL, CALLS);
    check_runs(&w[0]);
    for (int i = 0; i < 4; i++) world_close(&w[i]);
    qn_pool_destroy(pool);
}

// --- nodes ---------------------------------------------------------------------------------------

enum { NODE_THREADS = 6, NODE_PIECES = 3000 };

typedef struct visits {
    const qn_pool *pool;
    unsigned char *scratch;
    int caller_cpu;
    int left[NODE_THREADS]; // how far each walker has gone: its share, its node, the others
    _Atomic int n, faults;
} visits;

static bool stay(void *arg, const qn_cpus *cpus) {
    (void)arg, (void)cpus;
    return true;
}

static int caller_cpu(void *arg) { return ((visits *)arg)->caller_cpu; }

// A walker never goes back: to its own share from those of its node, or to its node from the other.
static void visit(const qn_task *task, int64_t piece, void *scratch) {
    visits *v = task->in[0].data;
    const int64_t index = ((unsigned char *)scratch - v->scratch) / SCRATCH;
    const int share = (int)(((piece + 1) * NODE_THREADS - 1) / NODE_PIECES);
    const int node = index ? index >= 2 : v->caller_cpu >= 2; // threads 0 and 1 are of the first
    // The caller's own share may be of another node than it runs on: it counts as any other.
    const int far = index && share == index ? 0 : (share >= 2) == node ? 1 : 2;
    v->faults += far < v->left[index];
    v->left[index] = far;
    v->n++;
}

static void walkers_begin_on_their_node(void **state) {
    (void)state;
    static const qn_kernel kernel = {.name = "visit", .run = visit};
    const qn_kernel *kernels[] = {&kernel};
    static qn_task task;
    static int64_t n_pieces[] = {NODE_PIECES};
    static int32_t first_of_all[] = {-1};
    const qn_binding binding = {.pieces = n_pieces, .after = first_of_all};
    static visits v;
    qn_err err;
    qn_pool *pool;
    const qn_numa numa = {.n_nodes = 2,
                          .n_cpus = NODE_THREADS,
                          .nodes = {{0, {{0x3}}, 2}, {1, {{0x3c}}, 4}},
                          .calls = {.arg = &v, .pin = stay, .cpu = caller_cpu}};
    const qn_pool_opts opts = {.n_threads = NODE_THREADS, .n_cpus = NODE_THREADS, .numa = &numa};
    ASSERT_OK(qn_pool_open(&pool, &opts, &err));
    qn_walk walk = {.kernels = kernels,
                    .tasks = &task,
                    .binding = &binding,
                    .n_calls = 1,
                    .n_shares = NODE_THREADS,
                    .taken = qn_alloc(NODE_THREADS, sizeof *walk.taken),
                    .done = qn_alloc(1, sizeof *walk.done),
                    .scratch = qn_alloc(NODE_THREADS, SCRATCH),
                    .scratch_bytes = SCRATCH};
    assert_true(walk.taken && walk.done && walk.scratch);
    ASSERT_OK(qn_gate_create(&walk.gate, &err));
    task.in[0].data = &v;
    for (int round = 0; round < ROUNDS; round++) {
        v = (visits){.pool = pool, .scratch = walk.scratch, .caller_cpu = round % NODE_THREADS};
        qn_walk_run(&walk, pool, 0, 1);
        assert_int_equal(v.n, NODE_PIECES);
        assert_int_equal(v.faults, 0);
    }
    qn_free(walk.taken);
    qn_free(walk.done);
    qn_free(walk.scratch);
    qn_gate_destroy(walk.gate);
    qn_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_piece_runs_once_and_in_order),
        cmocka_unit_test(walks_need_no_pool),
        cmocka_unit_test(walkers_begin_on_their_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
