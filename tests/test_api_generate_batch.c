// Many prompts at once: every row is what it is alone.
#include "generate_rig.h"

#include "core/mem.h"

enum { CONTEXT = 128, MAX_IDS = 60 };

// Ids, length and settings of row i.
typedef struct row {
    int32_t ids[MAX_IDS];
    qn_sample_opts sample;
    qn_generate_opts opts;
    qn_row_opts row;
    qn_prompt prompt;
} row;

static void make_row(row *r, size_t i, int64_t vocab) {
    random_ids(r->ids, MAX_IDS, vocab, 100 + i);
    r->sample = QN_INIT(qn_sample_opts, .temperature = i % 3 ? 0.8f : 0, .seed = i);
    r->opts = QN_INIT(qn_generate_opts, .sample = &r->sample,
                      .max_tokens = 3 + (int64_t)(i * 7 % 23), .ignore_end = i % 2,
                      .lookup = i % 5 == 0, .draft_max = 4, .draft_min = i % 5 == 0 ? 4 : 0);
    r->row = QN_INIT(qn_row_opts, .generate = &r->opts);
    r->prompt = (qn_prompt){.ids = r->ids, .n = 1 + i * 11 % MAX_IDS, .opts = &r->row};
}

static qn_result *new_results(size_t n) {
    qn_result *results = qn_alloc(n, sizeof *results);
    for (size_t i = 0; i < n; i++) results[i] = QN_INIT(qn_result);
    return results;
}

static void assert_rows_are_alone(const char *family, size_t n, const qn_session_opts *session) {
    qn_err err;
    talk t = {.engine = family_open(family, NULL)};
    t.vocab = engine_info(t.engine).n_vocab;
    ASSERT_OK(qn_session_create(&t.session, t.engine, session, &err));
    qn_session *alone = open_session(t.engine, CONTEXT);
    row *rows = qn_alloc(n, sizeof *rows);
    heard *h = qn_alloc(n, sizeof *h);
    qn_prompt *prompts = qn_alloc(n, sizeof *prompts);
    qn_result *got = new_results(n);
    for (size_t i = 0; i < n; i++) {
        make_row(&rows[i], i, t.vocab);
        prompts[i] = rows[i].prompt;
    }
    h[1].stop_after = 3; // ends one row, no other
    ASSERT_OK(qn_generate_batch(got, n, t.session, prompts, n, hear_rows, h, &err));
    for (size_t i = 0; i < n; i++) {
        heard *lone = qn_alloc(1, sizeof *lone);
        lone->stop_after = i == 1 ? 3 : 0;
        qn_result want = answer(alone, rows[i].ids, prompts[i].n, &rows[i].opts, hear, lone);
        assert_same_answer(&got[i], &want, family);
        assert_int_equal(h[i].n, got[i].n_tokens);
        assert_memory_equal(h[i].tokens, got[i].tokens, got[i].n_tokens * sizeof *got[i].tokens);
        assert_int_equal(h[i].n_ends, i == 1 && want.reason == QN_REASON_CALLER ? 0 : 1);
        assert_int_equal(h[i].size, lone->size);
        qn_free(lone);
        qn_result_deinit(&want);
        qn_result_deinit(&got[i]);
    }
    qn_free(rows);
    qn_free(h);
    qn_free(prompts);
    qn_free(got);
    qn_session_destroy(alone);
    close_talk(&t);
}

static void rows_are_what_they_are_alone(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++)
        assert_rows_are_alone(families[f], 7, &QN_INIT(qn_session_opts, .context = CONTEXT));
}

// More rows than a step and a family of sessions hold; steps smaller than the rows.
static void rows_wait_for_place(void **state) {
    (void)state;
    assert_rows_are_alone("qwen3", 40, &QN_INIT(qn_session_opts, .context = CONTEXT));
    assert_rows_are_alone("qwen35", 40, &QN_INIT(qn_session_opts, .context = CONTEXT));
    assert_rows_are_alone("gemma3", 12, &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 5));
    assert_rows_are_alone("qwen35", 6, &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 1));
}

// n completions are n runs with their numbers, and the prompt is read once.
static void completions_are_separate_runs(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], CONTEXT);
        const size_t n = f == 2 ? 40 : 5; // more than there is place for
        int32_t ids[MAX_IDS];
        random_ids(ids, MAX_IDS, t.vocab, 9);
        qn_sample_opts sample =
            QN_INIT(qn_sample_opts, .temperature = 1, .seed = 3, .completion = 2);
        qn_generate_opts opts = QN_INIT(qn_generate_opts, .sample = &sample, .max_tokens = 12,
                                        .ignore_end = true, .prompt_logprobs = f % 2);
        const qn_prompt prompts[] = {
            {.ids = ids,
             .n = 50,
             .opts = &QN_INIT(qn_row_opts, .completions = (uint32_t)n, .generate = &opts)},
            {.ids = ids + 1, .n = 30, .opts = &QN_INIT(qn_row_opts, .generate = &opts)}};
        qn_result *got = new_results(n + 1);
        heard *h = qn_alloc(n + 1, sizeof *h);
        ASSERT_OK(qn_generate_batch(got, n + 1, t.session, prompts, 2, hear_rows, h, &err));
        const int64_t n_rows = session_counts(t.session).rows;
        assert_true(n_rows <= 50 + 30 + (int64_t)(n + 1) * 11);
        int different = 0;
        opts.prompt_logprobs = false;
        for (size_t i = 0; i <= n; i++) {
            sample.completion = 2 + (i < n ? (uint32_t)i : 0);
            qn_result want =
                answer(t.session, i < n ? ids : ids + 1, i < n ? 50 : 30, &opts, NULL, NULL);
            assert_same_answer(&got[i], &want, families[f]);
            assert_int_equal(h[i].n_prompt, f % 2 == 0 ? 0 : i == 0 ? 49 : i == n ? 29 : 0);
            different += memcmp(got[i].tokens, got[0].tokens, 12 * sizeof(int32_t)) != 0;
            qn_result_deinit(&want);
        }
        assert_true(different > 0);
        for (size_t i = 0; i <= n; i++) qn_result_deinit(&got[i]);
        qn_free(got);
        qn_free(h);
        close_talk(&t);
    }
}

// Each row has a draft session of its own, as long as there is place.
static void rows_have_drafts(void **state) {
    (void)state;
    enum { N = 34 };
    qn_err err;
    for (int m = 0; m < 2; m++) {
        talk t = open_talk(m ? "qwen35" : "qwen3", CONTEXT),
             d = open_talk(m ? "qwen35" : "qwen3", CONTEXT);
        row *rows = qn_alloc(N, sizeof *rows);
        qn_prompt prompts[N];
        qn_result *got = new_results(N);
        int64_t n_drafted = 0;
        for (size_t i = 0; i < N; i++) {
            make_row(&rows[i], i, t.vocab);
            rows[i].opts.lookup = false;
            rows[i].opts.draft = d.session;
            rows[i].opts.draft_min = 3;
            prompts[i] = rows[i].prompt;
        }
        ASSERT_OK(qn_generate_batch(got, N, t.session, prompts, N, NULL, NULL, &err));
        for (size_t i = 0; i < N; i++) {
            rows[i].opts.draft = NULL;
            qn_result want =
                answer(t.session, rows[i].ids, prompts[i].n, &rows[i].opts, NULL, NULL);
            assert_same_answer(&got[i], &want, "with drafts");
            n_drafted += got[i].n_drafted;
            qn_result_deinit(&want);
            qn_result_deinit(&got[i]);
        }
        assert_true(n_drafted > 0);
        qn_free(got);
        qn_free(rows);
        close_talk(&t);
        close_talk(&d);
    }
}

// --- reading prompts -----------------------------------------------------------------------------

// Each step carries every row that has begun, and a part of a prompt.
static void a_long_prompt_stalls_nobody(void **state) {
    (void)state;
    enum { CHUNK = 16, LONG = 100 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = {.engine = family_open(families[f], NULL)};
        t.vocab = engine_info(t.engine).n_vocab;
        ASSERT_OK(qn_session_create(&t.session, t.engine,
                                    &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = CHUNK),
                                    &err));
        qn_session *other;
        ASSERT_OK(qn_session_create(&other, t.engine, &QN_INIT(qn_session_opts, .share = t.session),
                                    &err));
        int32_t ids[LONG];
        random_ids(ids, LONG, t.vocab, 31);
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .ignore_end = true, .max_tokens = 20);
        qn_generation *gens[2];
        ASSERT_OK(qn_session_set_prompt(t.session, ids, 5, &err));
        ASSERT_OK(qn_session_set_prompt(other, ids, LONG, &err));
        ASSERT_OK(qn_generation_create(&gens[0], t.session, &opts, &err));
        ASSERT_OK(qn_generation_create(&gens[1], other, &opts, &err));
        for (size_t i = 0; i < 7; i++) { // 16 + 6 x 15 - 5 rows that the first prompt takes
            const int64_t before = session_counts(t.session).rows;
            ASSERT_OK(step_rows(NULL, gens, 2, NULL, NULL, &err));
            assert_int_equal(gens[0]->result.n_tokens, i + 1);
            assert_in_range(session_counts(t.session).rows - before, 1, CHUNK);
            assert_int_equal(gens[1]->result.n_tokens, i == 6);
        }
        size_t n_active = 2;
        while (n_active) ASSERT_OK(step_rows(&n_active, gens, 2, NULL, NULL, &err));
        qn_session *alone = open_session(t.engine, CONTEXT);
        for (int i = 0; i < 2; i++) {
            qn_result want = answer(alone, ids, i ? LONG : 5, &opts, NULL, NULL);
            assert_same_answer(&gens[i]->result, &want, families[f]);
            qn_result_deinit(&want);
            qn_generation_destroy(gens[i]);
        }
        qn_session_destroy(alone);
        qn_session_destroy(other);
        close_talk(&t);
    }
}

// Prompts that begin alike: the beginning is computed once, the others wait for it.
static void a_common_beginning_is_read_once(void **state) {
    (void)state;
    enum { N = 4, COMMON = 90, OWN = 10 };
    static const char *const models[] = {"qwen3", "llama32"};
    for (size_t m = 0; m < 2; m++) {
        qn_err err;
        talk t = open_talk(models[m], CONTEXT);
        int32_t ids[N][COMMON + OWN];
        qn_prompt prompts[N];
        qn_result *got = new_results(N);
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .ignore_end = true, .max_tokens = 2);
        const qn_row_opts row_opts = QN_INIT(qn_row_opts, .generate = &opts);
        for (size_t i = 0; i < N; i++) {
            random_ids(ids[i], COMMON, t.vocab, 5);
            random_ids(ids[i] + COMMON, OWN, t.vocab, 6 + i);
            prompts[i] = (qn_prompt){.ids = ids[i], .n = COMMON + OWN, .opts = &row_opts};
        }
        ASSERT_OK(qn_generate_batch(got, N, t.session, prompts, N, NULL, NULL, &err));
        assert_int_equal(got[0].n_reused, 0);
        int64_t n_rows = session_counts(t.session).rows - N; // a token each after the prompt
        for (size_t i = 0; i < N; i++) {
            if (i) assert_in_range(got[i].n_reused, 64, COMMON);
            n_rows -= COMMON + OWN - got[i].n_reused;
            qn_result want = answer(t.session, ids[i], COMMON + OWN, &opts, NULL, NULL);
            assert_same_answer(&got[i], &want, models[m]);
            qn_result_deinit(&want);
            qn_result_deinit(&got[i]);
        }
        assert_int_equal(n_rows, 0);
        qn_free(got);
        close_talk(&t);
    }
}

// Recurrent state is kept where a mark is: rows wait for that, and go on from it.
static void a_marked_beginning_is_read_once(void **state) {
    (void)state;
    enum { N = 3, COMMON = 90, OWN = 10 };
    qn_err err;
    talk t = open_talk("qwen35", CONTEXT);
    qn_session *sessions[N];
    qn_generation *gens[N];
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .ignore_end = true, .max_tokens = 8);
    int32_t ids[N][COMMON + OWN];
    for (size_t i = 0; i < N; i++) {
        random_ids(ids[i], COMMON, t.vocab, 5);
        random_ids(ids[i] + COMMON, OWN, t.vocab, 6 + i);
        ASSERT_OK(qn_session_create(&sessions[i], t.engine,
                                    &QN_INIT(qn_session_opts, .share = t.session), &err));
        ASSERT_OK(qn_session_set_prompt(sessions[i], ids[i], COMMON + OWN, &err));
        ASSERT_OK(qn_session_mark(sessions[i], COMMON, &err));
        ASSERT_OK(qn_generation_create(&gens[i], sessions[i], &opts, &err));
    }
    size_t n_active = N;
    while (n_active) ASSERT_OK(step_rows(&n_active, gens, N, NULL, NULL, &err));
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(gens[i]->result.n_reused, i ? COMMON : 0);
        qn_result want = answer(t.session, ids[i], COMMON + OWN, &opts, NULL, NULL);
        assert_same_answer(&gens[i]->result, &want, "marked");
        qn_result_deinit(&want);
        qn_generation_destroy(gens[i]);
        qn_session_destroy(sessions[i]);
    }
    close_talk(&t);
}

static bool stop_reading(void *arg, int64_t done, int64_t total) {
    int64_t *seen = arg;
    seen[0] = done;
    seen[1] = total;
    return false;
}

static void reading_can_be_stopped(void **state) {
    (void)state;
    qn_err err;
    int64_t seen[2] = {0};
    qn_engine *engine = family_open("qwen3", NULL);
    qn_session *session;
    ASSERT_OK(qn_session_create(&session, engine,
                                &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 20,
                                         .progress = stop_reading, .progress_arg = seen),
                                &err));
    int32_t ids[MAX_IDS];
    random_ids(ids, MAX_IDS, engine_info(engine).n_vocab, 1);
    ASSERT_OK(qn_session_set_prompt(session, ids, MAX_IDS, &err));
    ASSERT_FAILS(qn_generate(NULL, session, NULL, NULL, NULL, &err), QN_STOPPED,
                 "stopped after 20 of 60 tokens");
    assert_null(strstr(err.message, "row")); // there is one
    assert_int_equal(seen[0], 20);
    assert_int_equal(seen[1], MAX_IDS);
    assert_int_equal(qn_session_cached(session), 20);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

// --- wrong use -----------------------------------------------------------------------------------

static void wrong_batches_name_the_row(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT);
    static const int32_t ids[] = {1, 2, 3}, outside[] = {1, -7};
    qn_generate_opts bad = QN_INIT(qn_generate_opts, .max_tokens = -5);
    qn_result got[4];
    memset(got, 0x5a, sizeof got);
    for (size_t i = 0; i < 4; i++) got[i].size = sizeof *got;
    qn_prompt prompts[] = {
        {.ids = ids,
         .n = 3,
         .opts = &QN_INIT(qn_row_opts, .generate = &QN_INIT(qn_generate_opts, .max_tokens = 2))},
        {.ids = ids, .n = 0}};
    ASSERT_FAILS(qn_generate_batch(got, 2, t.session, prompts, 2, NULL, NULL, &err), QN_ARGUMENT,
                 "prompt 1");
    prompts[1] = (qn_prompt){.ids = outside, .n = 2};
    ASSERT_FAILS(qn_generate_batch(got, 2, t.session, prompts, 2, NULL, NULL, &err), QN_ARGUMENT,
                 "prompt 1");
    prompts[1] = (qn_prompt){.ids = ids, .n = 3, .opts = &QN_INIT(qn_row_opts, .generate = &bad)};
    ASSERT_FAILS(qn_generate_batch(got, 2, t.session, prompts, 2, NULL, NULL, &err), QN_ARGUMENT,
                 "prompt 1: max_tokens -5");
    prompts[1] = (qn_prompt){.ids = ids, .n = 3, .opts = &QN_INIT(qn_row_opts, .completions = 3)};
    ASSERT_FAILS(qn_generate_batch(got, 3, t.session, prompts, 2, NULL, NULL, &err), QN_ARGUMENT,
                 "3 results for 2 prompts with 4 completions");
    ASSERT_FAILS(qn_generate_batch(got, 0, t.session, prompts, 0, NULL, NULL, &err), QN_ARGUMENT,
                 "0 prompts");
    int32_t long_ids[CONTEXT + 1] = {0};
    prompts[1] = (qn_prompt){.ids = long_ids, .n = CONTEXT + 1};
    ASSERT_FAILS(qn_generate_batch(got, 2, t.session, prompts, 2, NULL, NULL, &err), QN_LIMIT,
                 "prompt 1");
    const size_t n_many = QN_MAX_COMPLETIONS + 2;
    qn_result *many = new_results(n_many);
    prompts[1] = (qn_prompt){
        .ids = ids, .n = 3, .opts = &QN_INIT(qn_row_opts, .completions = QN_MAX_COMPLETIONS + 1)};
    ASSERT_FAILS(qn_generate_batch(many, n_many, t.session, prompts, 2, NULL, NULL, &err),
                 QN_ARGUMENT, "prompt 1: 65537 completions of a prompt, at most 65536");
    qn_free(many);
    for (size_t i = 0; i < sizeof got; i++) {
        if (i % sizeof *got >= sizeof got->size) assert_int_equal(((unsigned char *)got)[i], 0x5a);
    }
    close_talk(&t);
}

// Forks and snapshots of the caller take places: with all of them taken, each row says so.
static void rows_without_a_place_fail(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT);
    static const int32_t ids[] = {1, 2, 3};
    qn_session *forks[QN_DEFAULT_SESSIONS] = {0};
    for (int i = 1; i < QN_DEFAULT_SESSIONS; i++)
        ASSERT_OK(qn_session_fork(&forks[i], t.session, &err));
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 4, .ignore_end = true);
    const qn_prompt prompt = {
        .ids = ids, .n = 3, .opts = &QN_INIT(qn_row_opts, .completions = 3, .generate = &opts)};
    qn_result *got = new_results(3);
    ASSERT_OK(qn_generate_batch(got, 3, t.session, &prompt, 1, NULL, NULL, &err));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(got[i].reason, QN_REASON_FAILED);
        assert_int_equal(got[i].status, QN_LIMIT);
        assert_non_null(strstr(got[i].message, "32 sessions and snapshots"));
        qn_result_deinit(&got[i]);
    }
    qn_session_destroy(forks[1]); // one place: one after the other
    ASSERT_OK(qn_generate_batch(got, 3, t.session, &prompt, 1, NULL, NULL, &err));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(got[i].n_tokens, 4);
        qn_result_deinit(&got[i]);
    }
    for (int i = 2; i < QN_DEFAULT_SESSIONS; i++) qn_session_destroy(forks[i]);
    qn_free(got);
    close_talk(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_they_are_alone),
        cmocka_unit_test(rows_wait_for_place),
        cmocka_unit_test(completions_are_separate_runs),
        cmocka_unit_test(rows_have_drafts),
        cmocka_unit_test(a_long_prompt_stalls_nobody),
        cmocka_unit_test(a_common_beginning_is_read_once),
        cmocka_unit_test(a_marked_beginning_is_read_once),
        cmocka_unit_test(reading_can_be_stopped),
        cmocka_unit_test(wrong_batches_name_the_row),
        cmocka_unit_test(rows_without_a_place_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
