// Pages of weights lie on the node whose threads read them, whatever the nodes and the weights; a
// system that declines is asked once, and nothing else happens.
#include "testing.h"

#include "backends/cpu/executor.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, MAX_BYTES = 8 << 20, MAX_PAGES = MAX_BYTES / PAGE, MAX_WEIGHTS = 3 };

// Weights one after the other, and the node that each page was put on last.
typedef struct world {
    unsigned char *base;
    size_t used;
    qn_packed weights[MAX_WEIGHTS];
    uint64_t nodes[MAX_PAGES];
    int n_calls;
    bool declines;
    qn_numa numa;
    qn_task task;
} world;

static bool place(void *arg, void *at, size_t bytes, uint64_t nodes) {
    world *w = arg;
    const size_t offset = (size_t)((unsigned char *)at - w->base);
    w->n_calls++;
    if (w->declines) return false;
    assert_int_equal(offset % PAGE, 0);
    assert_int_equal(bytes % PAGE, 0);
    assert_true(bytes > 0 && offset + bytes <= MAX_BYTES);
    for (size_t i = 0; i < bytes / PAGE; i++) w->nodes[offset / PAGE + i] = nodes;
    return true;
}

static bool pin(void *arg, const qn_cpus *cpus) {
    (void)arg, (void)cpus;
    return true;
}

static int first_cpu(void *arg) {
    (void)arg;
    return 0;
}

static void add_weight(world *w, int i, int64_t n_experts, int64_t n_out, int64_t n_in) {
    qn_err err;
    qn_packed *p = &w->weights[i];
    ASSERT_OK(qn_packed_init(p, QN_TYPE_Q4_K, n_experts, n_out, n_in, &err));
    p->data = w->base + w->used;
    w->used += (size_t)(qn_packed_bytes(p) + PAGE - 1) / PAGE * PAGE;
    assert_true(w->used <= MAX_BYTES);
    w->task.in[1 + i].packed = p;
    w->task.in[1 + i].parts = 1;
}

// Node k has k % 3 + 1 CPUs, and the memory of node 2k + 1.
static void begin(world *w, qn_pool **pool, int n_nodes, int n_threads) {
    qn_err err;
    memset(w, 0, sizeof *w);
    w->base = qn_reserve(MAX_BYTES);
    assert_non_null(w->base);
    w->task.rows = 1;
    w->task.in[0].parts = 1;
    w->numa.calls = (qn_numa_calls){.arg = w, .place = place, .pin = pin, .cpu = first_cpu};
    w->numa.n_nodes = n_nodes;
    for (int k = 0; k < n_nodes; k++) {
        w->numa.nodes[k].memory = 2 * k + 1;
        w->numa.nodes[k].n_cpus = k % 3 + 1;
        w->numa.n_cpus += k % 3 + 1;
    }
    if (n_threads > w->numa.n_cpus) n_threads = w->numa.n_cpus;
    const qn_pool_opts opts = {.n_threads = n_threads, .n_cpus = n_threads, .numa = &w->numa};
    ASSERT_OK(qn_pool_open(pool, &opts, &err));
}

static void end(world *w, qn_pool *pool) {
    qn_pool_destroy(pool);
    qn_unreserve(w->base, MAX_BYTES);
}

// The memory of the threads that piece `i` of `n` is for first: as walk.h says.
static uint64_t memory_of(const world *w, const qn_pool *pool, int64_t i, int64_t n) {
    const int64_t n_shares = qn_pool_awake(pool);
    for (int64_t share = 0; share < n_shares; share++) {
        if (i >= n * (share + 1) / n_shares) continue;
        return (uint64_t)1
               << w->numa.nodes[qn_numa_node_of(&w->numa, (int)share, (int)n_shares)].memory;
    }
    fail();
    return 0;
}

// Every page of tiles first ... end - 1 of a weight is where `memory` is, but for a page at either
// end, which another node reads, too.
static void check_tiles(const world *w, const qn_packed *p, qn_range tiles, uint64_t memory) {
    const size_t from = (size_t)(p->data - w->base) + (size_t)(tiles.first * p->tile_bytes);
    const size_t to = from + (size_t)((tiles.end - tiles.first) * p->tile_bytes);
    for (size_t page = from / PAGE; page * PAGE < to; page++) {
        const bool is_whole = page * PAGE >= from && (page + 1) * PAGE <= to;
        assert_int_not_equal(w->nodes[page], 0);
        if (is_whole) assert_int_equal(w->nodes[page], memory);
    }
}

static void run(const qn_pool *pool, world *w,
                int64_t (*pieces)(const qn_task *, int64_t, int64_t)) {
    const qn_kernel kernel = {.pieces = pieces};
    bool has_failed = false;
    qn_cpu_place_call(&has_failed, pool, &kernel, &w->task);
    assert_int_equal(has_failed, w->declines);
}

static void weights_lie_where_they_are_read(void **state) {
    (void)state;
    static world w;
    for (int n_nodes = 2; n_nodes <= 8; n_nodes++) {
        for (int n_threads = 1; n_threads <= 16; n_threads += 5) {
            qn_pool *pool;
            begin(&w, &pool, n_nodes, n_threads); // side by side
            add_weight(&w, 0, 1, 2000, 512);
            add_weight(&w, 1, 1, 256, 512);
            add_weight(&w, 2, 1, 16, 512);
            run(pool, &w, qn_cpu_pieces_tiles);
            int64_t n = qn_cpu_pieces_tiles(&w.task, 1, 1);
            for (int64_t i = 0; i < n; i++) {
                qn_range left = qn_cpu_cut_tiles(&w.task, i).tiles;
                for (int k = 0; k < 3; k++) {
                    const int64_t tiles = qn_packed_tiles(&w.weights[k]);
                    const qn_range own = {qn_min(qn_max(left.first, 0), tiles),
                                          qn_min(qn_max(left.end, 0), tiles)};
                    if (own.first < own.end)
                        check_tiles(&w, &w.weights[k], own, memory_of(&w, pool, i, n));
                    left.first -= tiles;
                    left.end -= tiles;
                }
            }
            end(&w, pool);

            begin(&w, &pool, n_nodes, n_threads); // gate and up
            add_weight(&w, 0, 1, 3000, 256);
            add_weight(&w, 1, 1, 3000, 256);
            run(pool, &w, qn_cpu_pieces_gated);
            n = qn_cpu_pieces_gated(&w.task, 1, 1);
            for (int64_t i = 0; i < n; i++) {
                for (int k = 0; k < 2; k++)
                    check_tiles(&w, &w.weights[k], qn_cpu_cut_gated(&w.task, i).tiles,
                                memory_of(&w, pool, i, n));
            }
            end(&w, pool);

            begin(&w, &pool, n_nodes, n_threads); // a head
            add_weight(&w, 0, 1, 9001, 256);
            run(pool, &w, qn_cpu_pieces_head);
            n = qn_cpu_pieces_head(&w.task, 1, 1);
            for (int64_t i = 0; i < n; i++)
                check_tiles(&w, &w.weights[0], qn_cpu_cut_head(&w.task, i).tiles,
                            memory_of(&w, pool, i, n));
            end(&w, pool);
        }
    }
}

static void experts_are_spread(void **state) {
    (void)state;
    static world w;
    qn_pool *pool;
    begin(&w, &pool, 3, 6);
    w.task.in[1].width = 4; // experts
    add_weight(&w, 1, 4, 64, 256);
    add_weight(&w, 2, 4, 64, 256);
    run(pool, &w, qn_cpu_pieces_experts_up);
    for (size_t i = 0; i < w.used / PAGE; i++) assert_int_equal(w.nodes[i], 2 + 8 + 32);
    end(&w, pool);
}

static void other_calls_are_left_alone(void **state) {
    (void)state;
    static world w;
    qn_pool *pool;
    begin(&w, &pool, 2, 3);
    add_weight(&w, 0, 1, 512, 256);
    run(pool, &w, qn_cpu_pieces_rows);
    w.weights[0].data = NULL; // on another device
    run(pool, &w, qn_cpu_pieces_tiles);
    assert_int_equal(w.n_calls, 0);
    end(&w, pool);
}

static void a_system_may_decline(void **state) {
    (void)state;
    static world w;
    qn_pool *pool;
    begin(&w, &pool, 2, 3);
    w.declines = true;
    add_weight(&w, 0, 1, 512, 256);
    run(pool, &w, qn_cpu_pieces_tiles);
    assert_int_equal(w.n_calls, 1);
    end(&w, pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_lie_where_they_are_read),
        cmocka_unit_test(experts_are_spread),
        cmocka_unit_test(other_calls_are_left_alone),
        cmocka_unit_test(a_system_may_decline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
