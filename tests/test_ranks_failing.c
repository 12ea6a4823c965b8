// Ranks that fail, end, hang or are stopped: every other one ends too, with the reason, and one of
// them tells it.
#include "threads_ranks.h"

#include "faulty_ranks.h"
#include "ranks_cases.h"
#include "testing.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { MAX_N = 5, CALLS = 6 };

// --- a world in which something goes wrong -------------------------------------------------------

typedef struct trial {
    threads_world *world;
    faulty_ranks faulty[MAX_N];
    qn_ranks_opts opts[MAX_N];
    threads_end ends[MAX_N];
    int n;
} trial;

static void begin_trial(trial *t, int n) {
    *t = (trial){.n = n, .world = threads_world_create(&(threads_world_opts){.n = n})};
    for (int i = 0; i < n; i++) {
        t->faulty[i] = (faulty_ranks){.inner = threads_world_api(t->world),
                                      .inner_arg = threads_world_seat(t->world, i),
                                      .die = threads_rank_end};
        t->opts[i] =
            (qn_ranks_opts){.api = faulty_ranks_api(&t->faulty[i]), .api_arg = &t->faulty[i]};
    }
}

static void end_trial(trial *t, threads_fn *fn, void *arg) {
    threads_run(t->ends, t->n, t->opts, fn, arg);
    threads_world_destroy(t->world);
}

static int count_tellers(const trial *t, int except) {
    int n = 0;
    for (int i = 0; i < t->n; i++) n += i != except && t->ends[i].tells;
    return n;
}

static void must_fail(const trial *t, int rank, qn_status status, const char *part) {
    const threads_end *end = &t->ends[rank];
    if (end->status != status || !strstr(end->err.message, part))
        fail_msg("rank %d: %s '%s', want %s '%s'", rank, qn_status_name(end->status),
                 end->status ? end->err.message : "", qn_status_name(status), part);
}

// --- at every call -------------------------------------------------------------------------------

// How many of its calls each rank has begun; the last one is a barrier, which nobody passes before
// all have come.
typedef struct progress {
    atomic_int calls[MAX_N];
} progress;

static qn_status work(qn_ranks *ranks, void *arg, qn_err *err) {
    progress *p = arg;
    const int own = qn_ranks_own(ranks), n = qn_ranks_count(ranks);
    unsigned char mine[40] = {0}, all[sizeof mine * MAX_N];
    size_t sizes[MAX_N];
    qn_ranks_request sent, got;
    for (int i = 0; i < n; i++) sizes[i] = 10 * (size_t)i;
    atomic_fetch_add(&p->calls[own], 1);
    QN_TRY(qn_ranks_all_gather(ranks, all, mine, sizes, err));
    atomic_fetch_add(&p->calls[own], 1);
    QN_TRY(qn_ranks_broadcast(ranks, mine, sizeof mine, n - 1, err));
    atomic_fetch_add(&p->calls[own], 1);
    QN_TRY(qn_ranks_send(&sent, ranks, mine, sizeof mine, (own + 1) % n, 1, err));
    QN_TRY(qn_ranks_receive(&got, ranks, all, sizeof mine, (own + n - 1) % n, 1, err));
    atomic_fetch_add(&p->calls[own], 1);
    QN_TRY(qn_ranks_wait(ranks, &got, err));
    QN_TRY(qn_ranks_wait(ranks, &sent, err));
    atomic_fetch_add(&p->calls[own], 1);
    QN_TRY(qn_ranks_agree(ranks, QN_OK, err));
    atomic_fetch_add(&p->calls[own], 1);
    return qn_ranks_barrier(ranks, err);
}

// A rank that ends by itself leaves nothing behind but its end; one that fails tells the others.
static void must_all_end(const trial *t, const progress *p, int rank, bool ends) {
    const bool has_come = atomic_load(&p->calls[rank]) == CALLS;
    char part[64];
    snprintf(part, sizeof part, ends ? "rank %d of %d was lost" : "rank %d of %d: ", rank, t->n);
    assert_true(t->ends[rank].status || (ends && has_come));
    for (int i = 0; i < t->n; i++) {
        if (i == rank || (has_come && t->ends[i].status == QN_OK)) continue;
        must_fail(t, i, QN_IO, part);
    }
    if (!has_come) assert_int_equal(count_tellers(t, ends ? rank : -1), 1);
}

static void go_wrong_at_every_call(int n, bool ends) {
    for (int rank = 0; rank < n; rank++) {
        bool is_through = false;
        for (int at = 1; !is_through; at++) {
            trial t;
            progress p = {0};
            begin_trial(&t, n);
            if (ends)
                t.faulty[rank].end_at = at;
            else
                t.faulty[rank].fail_at = at;
            end_trial(&t, work, &p);
            is_through = t.faulty[rank].calls < at;
            if (is_through) {
                for (int i = 0; i < n; i++) assert_int_equal(t.ends[i].status, QN_OK);
                assert_in_range(at, n + 12, n + 20);  // it has reached all of them
            } else if (atomic_load(&p.calls[rank])) { // else it has not even joined
                must_all_end(&t, &p, rank, ends);
            }
        }
    }
}

static void a_rank_fails_at_any_call(void **state) {
    (void)state;
    go_wrong_at_every_call(2, false);
    go_wrong_at_every_call(3, false);
}

static void a_rank_ends_at_any_call(void **state) {
    (void)state;
    go_wrong_at_every_call(2, true);
    go_wrong_at_every_call(4, true);
}

// --- afterwards ----------------------------------------------------------------------------------

#define MUST_REPEAT(call)                                                                          \
    do {                                                                                           \
        qn_err again = {0};                                                                        \
        qn_err *const to = &again;                                                                 \
        RANKS_CHECK((call) == first.status);                                                       \
        RANKS_CHECK(again.status == first.status && strcmp(again.message, first.message) == 0);    \
    } while (0)

static qn_status repeat_all(qn_ranks *ranks, void *arg, qn_err *err) {
    qn_err first;
    char data[64] = {0};
    const size_t sizes[2] = {1, 1};
    qn_ranks_request request, open = {.is_open = true};
    (void)arg;
    RANKS_CHECK(qn_ranks_failure(ranks, NULL) == QN_OK);
    RANKS_CHECK(qn_ranks_barrier(ranks, &first) == QN_IO);
    const int64_t calls = qn_ranks_get_counts(ranks).messages;
    MUST_REPEAT(qn_ranks_failure(ranks, to));
    MUST_REPEAT(qn_ranks_barrier(ranks, to));
    MUST_REPEAT(qn_ranks_broadcast(ranks, data, 1, 0, to));
    MUST_REPEAT(qn_ranks_await(ranks, data, 1, 0, to));
    MUST_REPEAT(qn_ranks_all_gather(ranks, data, data, sizes, to));
    MUST_REPEAT(qn_ranks_agree(ranks, QN_OK, to));
    MUST_REPEAT(qn_ranks_send(&request, ranks, data, 1, 1 - qn_ranks_own(ranks), 1, to));
    MUST_REPEAT(qn_ranks_receive(&request, ranks, data, 1, 1 - qn_ranks_own(ranks), 1, to));
    RANKS_CHECK(!request.is_open);
    RANKS_CHECK(qn_ranks_wait(ranks, &request, err) == QN_OK);
    MUST_REPEAT(qn_ranks_wait(ranks, &open, to));
    qn_ranks_fail(ranks, &(qn_err){.status = QN_NUMERIC, .message = "later"});
    MUST_REPEAT(qn_ranks_failure(ranks, to));
    RANKS_CHECK(qn_ranks_get_counts(ranks).messages == calls);
    return QN_OK;
}

static void the_first_failure_stays(void **state) {
    (void)state;
    trial t;
    begin_trial(&t, 2);
    t.faulty[1].fail_at = 2; // its first call after it began to listen
    end_trial(&t, repeat_all, NULL);
    for (int i = 0; i < 2; i++) {
        if (t.ends[i].status) fail_msg("%s", t.ends[i].err.message);
    }
}

// --- reasons of its own --------------------------------------------------------------------------

static qn_status fail_alone(qn_ranks *ranks, void *arg, qn_err *err) {
    const int *rank = arg;
    if (qn_ranks_own(ranks) == *rank) {
        (void)QN_FAIL(err, NUMERIC, "the sum is NaN");
        qn_ranks_fail(ranks, &(qn_err){.status = QN_OK}); // which is no failure
        RANKS_CHECK(qn_ranks_failure(ranks, NULL) == QN_OK);
        qn_ranks_fail(ranks, err);
        return qn_ranks_failure(ranks, err);
    }
    char order[8];
    return qn_ranks_await(ranks, order, sizeof order, *rank, err);
}

static void a_rank_tells_its_own_reasons(void **state) {
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        trial t;
        char part[64];
        begin_trial(&t, 3);
        end_trial(&t, fail_alone, &rank);
        snprintf(part, sizeof part, "rank %d of 3: the sum is NaN", rank);
        for (int i = 0; i < 3; i++) {
            must_fail(&t, i, QN_NUMERIC, i == rank ? "the sum is NaN" : part);
        }
        assert_true(t.ends[0].tells);
        assert_int_equal(count_tellers(&t, -1), 1);
    }
}

// --- limits --------------------------------------------------------------------------------------

// One rank does not come before the others have given up.
typedef struct absence {
    int rank, call;
    atomic_int n_over;
} absence;

static qn_status call_one(qn_ranks *ranks, int call, qn_err *err) {
    unsigned char data[4 * MAX_N] = {0};
    const size_t sizes[MAX_N] = {4, 4, 4, 4, 4};
    const int other = (qn_ranks_own(ranks) + 1) % qn_ranks_count(ranks);
    qn_ranks_request request;
    if (call == 0) return qn_ranks_barrier(ranks, err);
    if (call == 1) return qn_ranks_agree(ranks, QN_OK, err);
    if (call == 2) return qn_ranks_all_gather(ranks, data, data + 4, sizes, err);
    if (call == 3) return qn_ranks_broadcast(ranks, data, sizeof data, other, err);
    QN_TRY(qn_ranks_receive(&request, ranks, data, 4, other, 9, err));
    return qn_ranks_wait(ranks, &request, err);
}

static qn_status be_absent(qn_ranks *ranks, void *arg, qn_err *err) {
    absence *a = arg;
    if (qn_ranks_own(ranks) != a->rank) {
        const qn_status status = call_one(ranks, a->call, err);
        atomic_fetch_add(&a->n_over, 1);
        return status;
    }
    char nothing;
    qn_ranks_request request;
    while (atomic_load(&a->n_over) < qn_ranks_count(ranks) - 1) sched_yield();
    QN_TRY(qn_ranks_receive(&request, ranks, &nothing, 1, 1 - a->rank, 11, err));
    return qn_ranks_wait(ranks, &request, err);
}

static const char *const limited[] = {
    "barrier of 2 bytes: waited ",    "agreement of ",
    "all_gather of 8 bytes: waited ", "broadcast of 20 bytes from rank ",
    "receive of 4 bytes from rank ",
};

// Rank 0 is missed by rank 1, which tells of it then; and rank 1 by rank 0.
static void waits_have_a_limit(void **state) {
    (void)state;
    for (int i = 0; i < 2 * (int)(sizeof limited / sizeof *limited); i++) {
        trial t;
        absence a = {.rank = i % 2, .call = i / 2};
        const int other = 1 - a.rank;
        begin_trial(&t, 2);
        for (int k = 0; k < 2; k++) t.opts[k].timeout_ms = 5;
        end_trial(&t, be_absent, &a);
        must_fail(&t, other, QN_LIMIT, limited[a.call]);
        must_fail(&t, other, QN_LIMIT,
                  other == 0 ? "rank 1 of 2 does not answer: " : "rank 0 of 2 does not answer: ");
        must_fail(&t, other, QN_LIMIT,
                  other == 0 ? " ms, the limit is 5 ms" : " ms, the limit is 10 ms");
        must_fail(&t, a.rank, QN_LIMIT, other == 0 ? "rank 0 of 2: " : "rank 1 of 2: ");
        assert_true(t.ends[other].tells);
        assert_false(t.ends[a.rank].tells);
    }
}

// Two of five do not come; those that do are not blamed.
static qn_status be_absent_together(qn_ranks *ranks, void *arg, qn_err *err) {
    atomic_int *n_over = arg;
    const int own = qn_ranks_own(ranks);
    if (own != 2 && own != 4) {
        const qn_status status = qn_ranks_barrier(ranks, err);
        atomic_fetch_add(n_over, 1);
        return status;
    }
    while (atomic_load(n_over) < 3) sched_yield();
    return qn_ranks_barrier(ranks, err);
}

static void those_that_do_not_answer_are_named(void **state) {
    (void)state;
    trial t;
    atomic_int n_over = 0;
    begin_trial(&t, 5);
    for (int i = 0; i < 5; i++) t.opts[i].timeout_ms = 1000; // time to answer, too
    end_trial(&t, be_absent_together, &n_over);
    must_fail(&t, 0, QN_LIMIT, "ranks 2, 4 of 5 do not answer: barrier of 5 bytes: waited ");
    must_fail(&t, 1, QN_LIMIT, "rank 0 of 5: barrier of 5 bytes: waited ");
    assert_int_equal(count_tellers(&t, -1), 1);
}

// The next order may come at any time.
static qn_status come_late(qn_ranks *ranks, void *arg, qn_err *err) {
    char order[8] = "go on";
    (void)arg;
    if (qn_ranks_own(ranks) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        return qn_ranks_await(ranks, order, sizeof order, 0, err);
    }
    memset(order, 0, sizeof order);
    QN_TRY(qn_ranks_await(ranks, order, sizeof order, 0, err));
    RANKS_CHECK(strcmp(order, "go on") == 0);
    return QN_OK;
}

static void waits_for_orders_have_none(void **state) {
    (void)state;
    trial t;
    begin_trial(&t, 3);
    for (int i = 0; i < 3; i++) t.opts[i].timeout_ms = 1;
    end_trial(&t, come_late, NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(t.ends[i].status, QN_OK);
}

// --- stopping ------------------------------------------------------------------------------------

// Rank 0 is stopped while it waits for rank 1, which waits for its order.
static qn_status wait_for_stop(qn_ranks *ranks, void *arg, qn_err *err) {
    char data[8] = {0};
    qn_ranks_request request;
    (void)arg;
    if (qn_ranks_own(ranks) == 0) {
        QN_TRY(qn_ranks_receive(&request, ranks, data, sizeof data, 1, 1, err));
        return qn_ranks_wait(ranks, &request, err);
    }
    return qn_ranks_await(ranks, data, sizeof data, 0, err);
}

static void *stop_soon(void *arg) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    qn_stop_flag_set(arg);
    return NULL;
}

static void a_stop_flag_ends_waits(void **state) {
    (void)state;
    trial t;
    qn_stop_flag *flag;
    qn_err err;
    pthread_t thread;
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    begin_trial(&t, 2);
    t.opts[0].stop = flag;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, flag), 0);
    end_trial(&t, wait_for_stop, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    must_fail(&t, 0, QN_STOPPED, "told to stop during a wait: receive of 8 bytes from rank 1");
    must_fail(&t, 1, QN_STOPPED,
              "rank 0 of 2: told to stop during a wait: receive of 8 bytes from rank 1");
    assert_true(t.ends[0].tells && !t.ends[1].tells);
    qn_stop_flag_destroy(flag);
}

// Whoever stops because a rank was lost is told that.
static qn_status end_before_stop(qn_ranks *ranks, void *arg, qn_err *err) {
    trial *t = arg;
    if (qn_ranks_own(ranks) == 1) {
        threads_rank_end(t->faulty[1].group);
        return QN_FAIL(err, STATE, "it has ended");
    }
    while (!t->opts[0].api->has_ended((qn_ranks_group *)(void *)&t->faulty[0], 1)) sched_yield();
    return qn_ranks_barrier(ranks, err);
}

static void a_lost_rank_is_a_better_reason_than_a_stop(void **state) {
    (void)state;
    trial t;
    qn_stop_flag *flag;
    qn_err err;
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    qn_stop_flag_set(flag);
    begin_trial(&t, 2);
    t.opts[0].stop = flag;
    end_trial(&t, end_before_stop, &t);
    must_fail(&t, 0, QN_IO, "rank 1 of 2 was lost");
    qn_stop_flag_destroy(flag);
}

// --- disagreement --------------------------------------------------------------------------------

static qn_status disagree(qn_ranks *ranks, int way, qn_err *err) {
    const int own = qn_ranks_own(ranks);
    unsigned char data[64] = {0};
    const size_t sizes[2][2] = {{8, 8}, {8, 9}};
    qn_ranks_request request;
    if (way == 0) return qn_ranks_broadcast(ranks, data, 8 + (size_t)own, 0, err);
    if (way == 1) return qn_ranks_all_gather(ranks, data, data + 32, sizes[own], err);
    if (way == 2 && own) return qn_ranks_barrier(ranks, err);
    if (way == 2) return qn_ranks_broadcast(ranks, data, 2, 0, err);
    if (own)
        QN_TRY(qn_ranks_send(&request, ranks, data, 9, 0, 1, err));
    else
        QN_TRY(qn_ranks_receive(&request, ranks, data, 8, 1, 1, err));
    return qn_ranks_wait(ranks, &request, err);
}

// One of them may have all it wants; the other fails then, and tells.
static qn_status disagree_and_meet(qn_ranks *ranks, void *arg, qn_err *err) {
    QN_TRY(disagree(ranks, *(const int *)arg, err));
    return qn_ranks_barrier(ranks, err);
}

static void ranks_that_disagree_end(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        trial t;
        begin_trial(&t, 2);
        end_trial(&t, disagree_and_meet, &way);
        for (int i = 0; i < 2; i++) must_fail(&t, i, QN_IO, "sizes disagree");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_fails_at_any_call),
        cmocka_unit_test(a_rank_ends_at_any_call),
        cmocka_unit_test(the_first_failure_stays),
        cmocka_unit_test(a_rank_tells_its_own_reasons),
        cmocka_unit_test(waits_have_a_limit),
        cmocka_unit_test(those_that_do_not_answer_are_named),
        cmocka_unit_test(waits_for_orders_have_none),
        cmocka_unit_test(a_stop_flag_ends_waits),
        cmocka_unit_test(a_lost_rank_is_a_better_reason_than_a_stop),
        cmocka_unit_test(ranks_that_disagree_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
