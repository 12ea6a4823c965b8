// Batches of a model that ranks have by layers: groups of rows are under way at the same time, each
// on another rank, and every row is what it is alone. The random lives of test_session_interleave.c
// and the promises of test_session_batch.c are kept on ranks, too.
#include "generate_rig.h"
#include "team_rig.h"

#include "core/mem.h"
#include "core/thread.h"
#include "session/batch_int.h"

enum { CONTEXT = 192, MAX_IDS = 150, N_ROWS = 9, N_TOKENS = 12 };

typedef struct request {
    int32_t ids[MAX_IDS];
    size_t n;
    qn_sample_opts sample;
    qn_generate_opts opts;
    qn_result want;
    uint64_t id;
    size_t n_heard;
    qn_reason reason;
} request;

static bool listen(void *arg, const qn_event *e) {
    request *r = arg;
    if (e->token < 0) {
        r->reason = e->reason;
        return true;
    }
    assert_in_range(r->n_heard, 0, r->want.n_tokens - 1);
    assert_int_equal(e->token, r->want.tokens[r->n_heard]);
    r->n_heard++;
    return true;
}

// What the requests get alone, in one process.
static void make_requests(request *requests, const char *family) {
    qn_engine *engine = family_open(family, NULL);
    qn_session *alone = open_session(engine, CONTEXT);
    for (size_t i = 0; i < N_ROWS; i++) {
        request *r = &requests[i];
        *r = (request){.n = 3 + i * 31 % (MAX_IDS - 3)};
        random_ids(r->ids, MAX_IDS, engine_info(engine).n_vocab, 70 + i / 3); // some begin alike
        r->sample = QN_INIT(qn_sample_opts, .temperature = i % 2 ? 0.9f : 0, .seed = i,
                            .repeat_penalty = i % 4 == 3 ? 1.2f : 0); // which needs all logits
        r->opts = QN_INIT(qn_generate_opts, .sample = &r->sample, .max_tokens = N_TOKENS,
                          .ignore_end = true, .lookup = i % 5 == 4);
        r->want = answer(alone, r->ids, r->n, &r->opts, NULL, NULL);
    }
    qn_session_destroy(alone);
    qn_engine_close(engine);
}

static void free_requests(request *requests) {
    for (size_t i = 0; i < N_ROWS; i++) qn_result_deinit(&requests[i].want);
}

static qn_engine *open_ranks(const char *family, const team_opts *team) {
    char path[256];
    qn_err err;
    qn_engine *engine;
    ASSERT_OK(team_open(&engine, family_path(path, sizeof path, family), NULL, team, &err));
    return engine;
}

static void close_ranks(qn_engine *engine) {
    qn_engine_close(engine);
    assert_int_equal(team_wait(), 0);
}

static qn_batch *open_batch(const qn_engine *engine) {
    qn_batch *b;
    qn_err err;
    ASSERT_OK(qn_batch_create(
        &b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = N_ROWS, .chunk = 96),
        &err));
    return b;
}

static void add(qn_batch *b, request *r) {
    qn_err err;
    const qn_row_opts opts = QN_INIT(qn_row_opts, .generate = &r->opts);
    r->n_heard = 0;
    r->reason = QN_REASON_NONE;
    ASSERT_OK(qn_batch_add(&r->id, b, r->ids, r->n, &opts, listen, r, &err));
}

static size_t step(qn_batch *b) {
    qn_err err;
    size_t n;
    ASSERT_OK(qn_batch_step(&n, b, &err));
    return n;
}

static void check_end(const request *r) {
    assert_int_equal(r->reason, r->want.reason);
    assert_int_equal(r->n_heard, r->want.n_tokens);
}

// --- bits ----------------------------------------------------------------------------------------

static void check_ranks(request *requests, const char *family, const team_opts *team) {
    qn_engine *engine = open_ranks(family, team);
    qn_batch *b = open_batch(engine);
    int64_t most = 0;
    print_message("%s on %d\n", family, team->n_ranks);
    for (int round = 0; round < 2; round++) { // the second finds prefixes of the first
        for (size_t i = 0; i < N_ROWS; i++) add(b, &requests[i]);
        while (step(b)) most = qn_max(most, b->n_under_way);
        for (size_t i = 0; i < N_ROWS; i++) check_end(&requests[i]);
        assert_int_equal(b->n_under_way, 0);
    }
    assert_int_equal(most, team->n_ranks);
    qn_batch_destroy(b);
    close_ranks(engine);
}

static void groups_have_the_bits_of_rows_alone(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        request requests[N_ROWS];
        make_requests(requests, families[f]);
        for (int n = 2; n <= 4; n++)
            check_ranks(requests, families[f],
                        &(team_opts){.split = QN_SPLIT_LAYERS, .n_ranks = n, .seed = f + 1});
        free_requests(requests);
    }
}

// Nothing relies on room between ranks: a message is done when it was received.
static void ranks_need_no_room_between_them(void **state) {
    (void)state;
    request requests[N_ROWS];
    make_requests(requests, "qwen3");
    for (int n = 2; n <= 4; n++)
        check_ranks(requests, "qwen3",
                    &(team_opts){.split = QN_SPLIT_LAYERS, .n_ranks = n, .is_synchronous = true});
    free_requests(requests);
}

// --- turns ---------------------------------------------------------------------------------------

static void rows_take_turns(void **state) {
    (void)state;
    request requests[N_ROWS];
    make_requests(requests, "qwen3");
    qn_engine *engine = open_ranks("qwen3", &(team_opts){.split = QN_SPLIT_LAYERS, .n_ranks = 3});
    qn_batch *b = open_batch(engine);
    add(b, &requests[0]);
    for (size_t n = 1; n > 0;) { // one row: nothing is under way between calls
        n = step(b);
        assert_int_equal(b->n_under_way, 0);
    }
    check_end(&requests[0]);
    const int64_t before = qn_runner_steps(b->shared->runner);
    for (size_t i = 0; i < N_ROWS; i++) add(b, &requests[i]);
    for (int i = 1; i <= 3; i++) {
        (void)step(b);
        assert_int_equal(b->n_under_way, i);
    }
    assert_int_equal(qn_runner_steps(b->shared->runner), before); // none has come back
    while (requests[N_ROWS - 1].n_heard < 4) (void)step(b);
    for (int i = 0; i < 3; i++) { // all read their prompts by now: thirds
        (void)step(b);
        assert_int_equal(b->n_under_way, 3);
        for (int k = 0; k < 3; k++) assert_int_equal(b->under_way[k]->n, 3);
    }
    for (size_t i = 1; i < N_ROWS; i++) (void)qn_batch_remove(b, requests[i].id);
    while (step(b)) {
    }
    check_end(&requests[0]);
    assert_int_equal(b->n_active, 0);
    qn_batch_destroy(b);
    close_ranks(engine);
    free_requests(requests);
}

// Where a row is removed, or the batch destroyed, while its step is under way, others go on.
static void rows_end_while_their_step_is_under_way(void **state) {
    (void)state;
    request requests[N_ROWS];
    make_requests(requests, "qwen35"); // with recurrent states
    qn_engine *engine = open_ranks("qwen35", &(team_opts){.split = QN_SPLIT_LAYERS, .n_ranks = 2});
    for (int round = 0; round < 12; round++) {
        qn_batch *b = open_batch(engine);
        for (size_t i = 0; i < N_ROWS; i++) add(b, &requests[i]);
        for (int i = 0; i < round; i++) (void)step(b);
        const size_t at = (size_t)round % N_ROWS, n_heard = requests[at].n_heard;
        (void)qn_batch_remove(b, requests[at].id);
        for (int i = 0; i < round / 2; i++) (void)step(b);
        assert_int_equal(requests[at].n_heard, n_heard);
        qn_batch_destroy(b);
    }
    qn_batch *b = open_batch(engine);
    for (size_t i = 0; i < N_ROWS; i++) add(b, &requests[i]);
    while (step(b)) {
    }
    for (size_t i = 0; i < N_ROWS; i++) check_end(&requests[i]);
    qn_batch_destroy(b);
    close_ranks(engine);
    free_requests(requests);
}

// --- several batches -----------------------------------------------------------------------------

typedef struct lane_user {
    qn_engine *engine;
    request requests[N_ROWS];
    bool is_well;
} lane_user;

static void *use_lanes(void *arg) {
    lane_user *u = arg;
    qn_batch *b = open_batch(u->engine);
    for (size_t i = 0; i < N_ROWS; i++) add(b, &u->requests[i]);
    while (step(b)) {
    }
    for (size_t i = 0; i < N_ROWS; i++) check_end(&u->requests[i]);
    qn_batch_destroy(b);
    u->is_well = true;
    return NULL;
}

// Their steps are under way at the same time, in lanes of the same numbers.
static void batches_do_not_mix(void **state) {
    (void)state;
    static lane_user users[2];
    pthread_t threads[2];
    qn_engine *engine =
        open_ranks("llama32", &(team_opts){.split = QN_SPLIT_LAYERS, .n_ranks = 3, .seed = 9});
    for (int i = 0; i < 2; i++) {
        users[i].engine = engine;
        make_requests(users[i].requests, "llama32");
        assert_true(qn_thread_start(&threads[i], use_lanes, &users[i]));
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(users[i].is_well);
        free_requests(users[i].requests);
    }
    close_ranks(engine);
}

// --- failures ------------------------------------------------------------------------------------

// Whether the batch comes to its end; else the error says something. What was heard is right.
static bool survives(request *requests, const team_opts *team) {
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .rank_timeout_ms = 20000);
    char path[256];
    qn_engine *engine = NULL;
    qn_batch *b = NULL;
    qn_err err = {0};
    size_t n = 1;
    qn_status status =
        team_open(&engine, family_path(path, sizeof path, "qwen35"), &opts, team, &err);
    if (!status)
        status = qn_batch_create(&b, engine,
                                 &QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = N_ROWS), &err);
    for (size_t i = 0; i < 4 && !status; i++) add(b, &requests[i]);
    while (!status && n > 0) status = qn_batch_step(&n, b, &err);
    qn_batch_destroy(b);
    qn_engine_close(engine);
    const int n_failed = team_wait();
    if (status && !err.message[0] && team->fail_rank != 0)
        fail_msg("rank %d, call %lld: no message", team->fail_rank, (long long)team->fail_at);
    return !status && n_failed == 0;
}

// Calls of every rank fail, or are the last that the rank makes, while groups are under way.
static void lost_ranks_end_a_batch(void **state) {
    (void)state;
    request requests[N_ROWS];
    make_requests(requests, "qwen35");
    for (int i = 0; i < 6; i++) {
        team_opts team = {.split = QN_SPLIT_LAYERS, .n_ranks = 3, .fail_rank = i % 3};
        int n_lost = 0;
        for (int64_t call = 40; call < 4000; call += 1 + call / 5) {
            *(i < 3 ? &team.fail_at : &team.end_at) = call;
            if (survives(requests, &team)) break;
            n_lost++;
        }
        assert_true(n_lost > 5);
    }
    free_requests(requests);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_the_bits_of_rows_alone),
        cmocka_unit_test(ranks_need_no_room_between_them),
        cmocka_unit_test(rows_take_turns),
        cmocka_unit_test(rows_end_while_their_step_is_under_way),
        cmocka_unit_test(batches_do_not_mix),
        cmocka_unit_test(lost_ranks_end_a_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
