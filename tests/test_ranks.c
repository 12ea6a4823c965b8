// Ranks over threads: every call, any number of ranks, with delays and in any order.
#include "threads_ranks.h"

#include "faulty_ranks.h"
#include "ranks_cases.h"
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_N = 7 };

static const int counts[] = {1, 2, 3, 4, MAX_N};

typedef struct job {
    const ranks_case *what;
    uint64_t seed;
} job;

static qn_status run_job(qn_ranks *ranks, void *arg, qn_err *err) {
    const job *j = arg;
    return j->what->run(ranks, j->seed, err);
}

static void must_be_well(const threads_end *ends, int n, const job *j, const char *how) {
    for (int i = 0; i < n; i++) {
        if (ends[i].status)
            fail_msg("%s, seed %llu, %s, rank %d of %d: %s", j->what->name,
                     (unsigned long long)j->seed, how, i, n, ends[i].err.message);
        assert_int_equal(ends[i].tells, i == 0);
    }
}

static void run_plain(const threads_world_opts *world, job j, const char *how) {
    threads_end ends[MAX_N];
    threads_run_plain(ends, world, run_job, &j);
    must_be_well(ends, world->n, &j, how);
}

static void run_late(const threads_world_opts *world, job j, const char *how) {
    threads_end ends[MAX_N];
    threads_world *w = threads_world_create(world);
    qn_ranks_opts opts[MAX_N];
    faulty_ranks faulty[MAX_N];
    for (int i = 0; i < world->n; i++) {
        faulty[i] = (faulty_ranks){.inner = threads_world_api(w),
                                   .inner_arg = threads_world_seat(w, i),
                                   .seed = j.seed * 16 + (uint64_t)i + 1,
                                   .max_delay_us = 200};
        opts[i] = (qn_ranks_opts){.api = faulty_ranks_api(&faulty[i]), .api_arg = &faulty[i]};
    }
    threads_run(ends, world->n, opts, run_job, &j);
    must_be_well(ends, world->n, &j, how);
    threads_world_destroy(w);
}

static void every_case_gives_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int k = 0; k < n_ranks_cases; k++) {
            const job j = {.what = &ranks_cases[k], .seed = i};
            const threads_world_opts world = {.n = counts[i]};
            run_plain(&world, j, "plain");
            run_late(&world, j, "late");
        }
    }
}

static void nobody_relies_on_room_between_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int k = 0; k < n_ranks_cases; k++) {
            const job j = {.what = &ranks_cases[k], .seed = i + 10};
            const threads_world_opts world = {.n = counts[i], .is_synchronous = true};
            run_plain(&world, j, "synchronous");
            run_late(&world, j, "synchronous and late");
        }
    }
}

// Long messages are cut: here those of more than 400,000 bytes, and of more than 30,000 where no
// case sends four times that to one rank.
static void long_messages_are_cut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int k = 0; k < n_ranks_cases; k++) {
            const job j = {.what = &ranks_cases[k], .seed = i + 20};
            for (size_t max = 30000; max <= 400000; max += 370000) {
                const threads_world_opts world = {.n = counts[i], .max_bytes = max};
                run_plain(&world, j, "cut");
                run_late(&world, j, "cut and late");
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_gives_the_same),
        cmocka_unit_test(nobody_relies_on_room_between_ranks),
        cmocka_unit_test(long_messages_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
