// Joining ranks: launchers, plug-ins that cannot be used, odd systems, and arguments.
#include "threads_ranks.h"

#include "alloc_rig.h"
#include "ranks_cases.h"
#include "testing.h"

#include "core/debug.h"
#include "ranks/mpi_plugin.h"

#include <stdio.h>
#include <stdlib.h>

// --- launchers -----------------------------------------------------------------------------------

static void set(const char *name, const char *value) {
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void launchers_leave_marks(void **state) {
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_STEP_NUM_TASKS", "PMIX_RANK",
                                        "SLURM_NTASKS",         "SLURM_PROCID"};
    enum { N = sizeof names / sizeof *names };
    static const struct {
        const char *values[N];
        bool is_launched;
    } rows[] = {
        {{NULL}, false},
        {{"4", NULL, NULL, "0"}, true},              // mpirun -n 4
        {{"1", NULL, NULL, "0"}, false},             // mpirun -n 1
        {{"2", NULL, "1", "0", "2"}, true},          // mpirun in a batch script
        {{NULL, "3"}, true},                         // mpiexec of MPICH
        {{NULL, "1"}, false},                        //
        {{NULL, NULL, "8", NULL, "8"}, true},        // srun -n 8
        {{NULL, NULL, "1", "0", "8"}, false},        // srun -n 1 in a larger job
        {{NULL, NULL, NULL, NULL, "8", "0"}, false}, // a batch script itself
        {{NULL, NULL, NULL, "3"}, true},             // some launcher with PMIx
        {{"", "", "", ""}, false},
        {{"many"}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < N; k++) set(names[k], rows[i].values[k]);
        if (qn_launch_has_others() != rows[i].is_launched) fail_msg("row %zu", i);
    }
    for (int k = 0; k < N; k++) set(names[k], NULL);
}

// --- plug-ins ------------------------------------------------------------------------------------

static void plugins_that_cannot_be_used(void **state) {
    (void)state;
    static const struct {
        const char *path, *part;
    } rows[] = {
        {"/nowhere/libquern-mpi.so", "ranks: the library /nowhere/libquern-mpi.so cannot be used"},
        {"/nowhere/libquern-mpi.so", "it is built where MPI is found (docs/mpi.md)"},
        {TEST_DATA "/layout.txt", "it needs the MPI that it was built with (docs/mpi.md)"},
        {ODD_MPI "1.so", "libquern-mpi.so has version 3, this program wants 2"},
        {ODD_MPI "2.so", "has no qn_ranks_api_get"},
        {ODD_MPI "3.so", "libquern-mpi.so has version 0, this program wants 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_ranks *ranks = NULL;
        qn_err err;
        set("QN_MPI_LIBRARY", rows[i].path);
        ASSERT_FAILS(qn_ranks_join(&ranks, NULL, &err), QN_UNSUPPORTED, rows[i].part);
        assert_null(ranks);
    }
    set("QN_MPI_LIBRARY", NULL);
}

// --- odd systems ---------------------------------------------------------------------------------

typedef struct odd {
    qn_ranks_place place;
    int error; // of opening
    int n_closed;
} odd;

static const char *explain(int error) { return error == 7 ? "nobody is there" : "unknown"; }

static int open_odd(qn_ranks_group **out, qn_ranks_place *place, const qn_ranks_opening *opening) {
    odd *o = opening->arg;
    *out = (qn_ranks_group *)opening->arg;
    *place = o->place;
    return o->error;
}

static void close_odd(qn_ranks_group *group, bool is_failed) {
    assert_true(is_failed);
    ((odd *)(void *)group)->n_closed++;
}

static int refuse(void **handle, qn_ranks_group *group, void *data, size_t bytes, int from,
                  int tag) {
    (void)handle, (void)group, (void)data, (void)bytes, (void)from, (void)tag;
    return 7;
}

static void systems_that_cannot_be_joined(void **state) {
    (void)state;
    static const qn_ranks_api api = {.version = QN_RANKS_API_VERSION,
                                     .name = "odd",
                                     .max_bytes = 100,
                                     .explain = explain,
                                     .open = open_odd,
                                     .close = close_odd,
                                     .receive = refuse};
    static const struct {
        odd system;
        qn_status status;
        const char *part;
        int n_closed;
    } rows[] = {
        {{{0, 2, 1}, 7, 0}, QN_IO, "ranks: odd cannot be joined: nobody is there", 0},
        {{{2, 2, 1}, 0, 0}, QN_IO, "ranks: odd says that this is rank 2 of 2", 1},
        {{{-1, 2, 1}, 0, 0}, QN_IO, "ranks: odd says that this is rank -1 of 2", 1},
        {{{0, 2, 1}, 0, 0}, QN_IO, "rank 0 of 2 cannot listen to rank 1: odd: nobody is there", 1},
        {{{0, 2, 1}, QN_RANKS_LATE, 0},
         QN_LIMIT,
         "ranks: not all processes have joined odd: waited 70 ms",
         0},
    };
    qn_ranks *ranks = NULL;
    qn_err err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        odd system = rows[i].system;
        const qn_ranks_opts opts = {.api = &api, .api_arg = &system, .join_ms = 70};
        ASSERT_FAILS(qn_ranks_join(&ranks, &opts, &err), rows[i].status, rows[i].part);
        assert_null(ranks);
        assert_int_equal(system.n_closed, rows[i].n_closed);
    }
    qn_ranks_api other = api;
    other.version = QN_RANKS_API_VERSION + 1;
    ASSERT_FAILS(qn_ranks_join(&ranks, &(qn_ranks_opts){.api = &other}, &err), QN_UNSUPPORTED,
                 "ranks: odd has version 3, this program wants 2");
    ASSERT_FAILS(qn_ranks_join(&ranks, &(qn_ranks_opts){.timeout_ms = -1}, &err), QN_ARGUMENT,
                 "a limit of -1 ms");
    ASSERT_FAILS(qn_ranks_join(&ranks, &(qn_ranks_opts){.join_ms = -2}, &err), QN_ARGUMENT,
                 "a limit of -2 ms");
    qn_ranks_leave(NULL);
}

static void memory_may_run_out(void **state) {
    (void)state;
    odd system = {.place = {.rank = 0, .n_ranks = 1}};
    const qn_ranks_api api = {
        .version = QN_RANKS_API_VERSION, .name = "odd", .open = open_odd, .close = close_odd};
    const qn_ranks_opts opts = {.api = &api, .api_arg = &system};
    const long living = atomic_load(&n_living);
    qn_ranks *ranks = NULL;
    qn_err err;
    qn_status status = QN_MEMORY;
    int n = 0;
    for (; status; n++) {
        atomic_store(&countdown, n);
        status = qn_ranks_join(&ranks, &opts, &err);
        atomic_store(&countdown, -1);
        if (!status) break;
        assert_int_equal(status, QN_MEMORY);
        assert_int_equal(atomic_load(&n_living), living);
    }
    assert_int_equal(n, 5);
    qn_ranks_fail(ranks, &(qn_err){.status = QN_MEMORY}); // close_odd wants a failure
    qn_ranks_leave(ranks);
    assert_int_equal(atomic_load(&n_living), living);
    assert_int_equal(system.n_closed, 5);
}

// --- arguments -----------------------------------------------------------------------------------

// A wrong argument is no failure of the ranks.
#define MUST_REFUSE(call, part)                                                                    \
    do {                                                                                           \
        RANKS_CHECK((call) == QN_ARGUMENT);                                                        \
        RANKS_CHECK(strstr(err->message, part));                                                   \
        RANKS_CHECK(qn_ranks_failure(ranks, NULL) == QN_OK);                                       \
    } while (0)

static qn_status give_wrong_arguments(qn_ranks *ranks, void *arg, qn_err *err) {
    char data[8] = {0};
    qn_ranks_request request;
    const int own = qn_ranks_own(ranks);
    const size_t sizes[2] = {SIZE_MAX, 1};
    (void)arg;
    MUST_REFUSE(qn_ranks_broadcast(ranks, data, 1, 2, err), "broadcast from rank 2, there are 2");
    MUST_REFUSE(qn_ranks_await(ranks, data, 1, -1, err), "broadcast from rank -1, there are 2");
    MUST_REFUSE(qn_ranks_all_gather(ranks, data, data, sizes, err), "the parts of 2 ranks have");
    MUST_REFUSE(qn_ranks_send(&request, ranks, data, 1, 2, 1, err), "send to rank 2: this is rank");
    MUST_REFUSE(qn_ranks_send(&request, ranks, data, 1, -1, 1, err), "send to rank -1: this is");
    MUST_REFUSE(qn_ranks_receive(&request, ranks, data, 1, own, 1, err), "receive from rank ");
    MUST_REFUSE(qn_ranks_send(&request, ranks, data, 1, 1 - own, -1, err), "tag -1, want 0 to");
    MUST_REFUSE(qn_ranks_receive(&request, ranks, data, 1, 1 - own, 32768, err), "tag 32768, want");
    RANKS_CHECK(qn_ranks_send(&request, ranks, data, 401, 1 - own, 1, err) == QN_LIMIT);
    RANKS_CHECK(strstr(err->message, "401 bytes, at most 4 times 100 go at a time"));
    RANKS_CHECK(qn_ranks_failure(ranks, NULL) == QN_OK);
    RANKS_CHECK(!request.is_open);
    RANKS_CHECK(qn_ranks_get_counts(ranks).messages == 0);
    RANKS_CHECK(strcmp(qn_ranks_system(ranks), "threads") == 0);
    return qn_ranks_barrier(ranks, err);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    threads_end ends[2];
    const threads_world_opts world = {.n = 2, .max_bytes = 100};
    threads_run_plain(ends, &world, give_wrong_arguments, NULL);
    for (int i = 0; i < 2; i++) {
        if (ends[i].status) fail_msg("%s", ends[i].err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_leave_marks),
        cmocka_unit_test(plugins_that_cannot_be_used),
        cmocka_unit_test(systems_that_cannot_be_joined),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
