// Measuring ranks and what lies between them, over threads: every rank gets the same numbers, and
// they are numbers that the cost model can compute with. How fast anything is is not tested.
#include "families.h"
#include "faulty_ranks.h"
#include "threads_ranks.h"

#include "core/mem.h"
#include "runtime/engine.h"
#include "runtime/split_measure.h"
#include "runtime/split_plan.h"

#include <math.h>

enum { MAX_N = 7 };

typedef struct found {
    qn_split_link link;
    qn_split_rank ranks[MAX_N];
} found;

static qn_split_rank rank_of(int r) {
    return (qn_split_rank){.read_gbs = 10 + r,
                           .int8_tops = 1 + r,
                           .f32_gflops = 100 + r,
                           .memory = (int64_t)(r + 1) * 420000,
                           .n_threads = r + 1};
}

static qn_status measure(qn_ranks *ranks, void *arg, qn_err *err) {
    found *out = (found *)arg + qn_ranks_own(ranks);
    const qn_split_rank own = rank_of(qn_ranks_own(ranks));
    return qn_split_measure_link(&out->link, out->ranks, &own, ranks, err);
}

static void all_ranks_find_the_same(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_N; n++) {
        threads_end ends[MAX_N];
        static found all[MAX_N];
        memset(all, 0, sizeof all);
        threads_run_plain(ends, &(threads_world_opts){.n = n}, measure, all);
        for (int r = 0; r < n; r++) {
            if (ends[r].status) fail_msg("rank %d of %d: %s", r, n, ends[r].err.message);
            assert_memory_equal(&all[r], &all[0], sizeof all[0]);
            const qn_split_rank want = rank_of(r), *got = &all[0].ranks[r];
            assert_true(got->read_gbs == want.read_gbs && got->int8_tops == want.int8_tops &&
                        got->f32_gflops == want.f32_gflops && got->n_threads == want.n_threads);
            assert_int_equal(got->memory, want.memory / n); // they run on one machine
        }
        const qn_split_system s = {.ranks = all[0].ranks, .n = n, .link = all[0].link};
        qn_err err;
        ASSERT_OK(qn_split_check_system(&s, &err));
        if (n == 2) assert_true(all[0].link.message_us == 0);
    }
}

static qn_status measure_alike(qn_ranks *ranks, void *arg, qn_err *err) {
    const int rank = qn_ranks_own(ranks);
    found *out = (found *)arg + rank;
    qn_split_rank own = rank_of(rank);
    own.n_threads = rank == 3 ? 8 : 2;
    return qn_split_measure_link(&out->link, out->ranks, &own, ranks, err);
}

// Three of four ranks have as many threads on one machine: 10, 11 and 12 GB/s are 11 for each.
static void equal_ranks_are_equally_fast(void **state) {
    (void)state;
    threads_end ends[4];
    found all[MAX_N];
    threads_run_plain(ends, &(threads_world_opts){.n = 4}, measure_alike, all);
    for (int r = 0; r < 4; r++) {
        if (ends[r].status) fail_msg("rank %d: %s", r, ends[r].err.message);
        const qn_split_rank *got = &all[0].ranks[r], want = rank_of(r == 3 ? 3 : 1);
        assert_true(got->read_gbs == want.read_gbs && got->int8_tops == want.int8_tops &&
                    got->f32_gflops == want.f32_gflops);
    }
}

// One rank's call fails: all of them say so, and none waits forever.
static void a_failing_rank_ends_all(void **state) {
    (void)state;
    enum { N = 3, STEP = 23 };
    int n_failed = 0, n_ended_all = 0;
    for (int64_t at = 1;; at += STEP) {
        threads_world *world = threads_world_create(&(threads_world_opts){.n = N});
        assert_non_null(world);
        threads_end ends[N];
        qn_ranks_opts opts[N];
        found all[N];
        for (int r = 0; r < N; r++)
            opts[r] = (qn_ranks_opts){.api = threads_world_api(world),
                                      .api_arg = threads_world_seat(world, r)};
        faulty_ranks faulty = {.inner = opts[1].api, .inner_arg = opts[1].api_arg, .fail_at = at};
        opts[1].api = faulty_ranks_api(&faulty);
        opts[1].api_arg = &faulty;
        threads_run(ends, N, opts, measure, all);
        threads_world_destroy(world);
        if (!ends[1].status) break; // there are no more calls
        n_ended_all += ends[0].status && ends[2].status;
        n_failed++;
    }
    assert_true(n_failed > 5);
    assert_true(n_ended_all >= n_failed - 1); // after the last call nobody waits any more
}

static void a_rank_is_measured(void **state) {
    (void)state;
    qn_engine *engine =
        family_open("qwen3", &QN_INIT(qn_engine_opts, .n_threads = 2, .no_weights = true));
    qn_split_rank rank = {0};
    qn_err err;
    ASSERT_OK(qn_split_measure_rank(&rank, engine->stages[0].device, engine->pool, &err));
    const qn_split_system s = {.ranks = &rank, .n = 1};
    ASSERT_OK(qn_split_check_system(&s, &err));
    assert_int_equal(rank.n_threads, 2);
    assert_true(rank.memory >= 0);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_find_the_same),
        cmocka_unit_test(equal_ranks_are_equally_fast),
        cmocka_unit_test(a_failing_rank_ends_all),
        cmocka_unit_test(a_rank_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
