// One model on several ranks: every result is what one process computes, to the bit.
#include "split_life.h"
#include "team_rig.h"

static split_life live(const char *family, const team_opts *team) {
    char path[256];
    qn_err err = {0};
    qn_engine *engine = NULL;
    family_path(path, sizeof path, family);
    if (team)
        ASSERT_OK(team_open(&engine, path, NULL, team, &err));
    else
        ASSERT_OK(qn_engine_open(&engine, path, NULL, &err));
    split_life life = life_of(engine);
    qn_engine_close(engine);
    if (team) assert_int_equal(team_wait(), 0);
    return life;
}

static void check_split(qn_split split) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        split_life want = live(families[f], NULL);
        for (int n = 1; n <= 4; n++) {
            const team_opts team = {.split = split, .n_ranks = n, .seed = 7 * f + (size_t)n};
            char what[256];
            snprintf(what, sizeof what, "%s on %d", families[f], n);
            split_life got = live(families[f], &team);
            assert_same_life(&want, &got, what);
            life_deinit(&got);
        }
        life_deinit(&want);
    }
}

static void layers_on_ranks_give_the_same_bits(void **state) {
    (void)state;
    check_split(QN_SPLIT_LAYERS);
}

static void tensors_on_ranks_give_the_same_bits(void **state) {
    (void)state;
    check_split(QN_SPLIT_TENSORS);
}

// --- failures ------------------------------------------------------------------------------------

// A short life that may fail anywhere; what it computed is right as far as it came.
static qn_status try_life(const qn_engine *engine, const float *want, qn_err *err) {
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10};
    qn_session *s = NULL;
    const float *logits;
    qn_status status = qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = 64), err);
    if (!status) status = qn_session_prefill(&logits, s, ids, 5, err);
    if (!status) status = qn_session_feed(&logits, s, ids[5], err);
    if (!status) {
        const size_t vocab = (size_t)engine_info(engine).n_vocab;
        assert_memory_equal(logits, want, vocab * sizeof *want);
    }
    qn_session_destroy(s);
    return status;
}

// Whether the life ended well; else the error says something, and all ranks have ended.
static bool survives(const char *path, const team_opts *team, const float *want) {
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .rank_timeout_ms = 20000);
    qn_engine *engine = NULL;
    qn_err err = {0};
    qn_status status = team_open(&engine, path, &opts, team, &err);
    if (!status) status = try_life(engine, want, &err);
    qn_engine_close(engine);
    const int n_failed = team_wait();
    // Rank 0 tells, but for its own end.
    if (status && !err.message[0] && team->fail_rank != 0)
        fail_msg("rank %d, call %lld: no message", team->fail_rank, (long long)team->fail_at);
    return !status && n_failed == 0;
}

// Every call of every rank fails once, or is the last that the rank makes.
static void lose_ranks(qn_split split, bool ends) {
    char path[256];
    qn_err err;
    qn_session *s;
    const float *want;
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10};
    family_path(path, sizeof path, "qwen35");
    qn_engine *engine = family_open("qwen35", NULL);
    ASSERT_OK(qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = 64), &err));
    ASSERT_OK(qn_session_prefill(&want, s, ids, 5, &err));
    ASSERT_OK(qn_session_feed(&want, s, ids[5], &err));
    for (int rank = 0; rank < 3; rank++) {
        int64_t n_lost = 0;
        team_opts team = {.split = split, .n_ranks = 3, .fail_rank = rank};
        for (int64_t call = 1, step = 1; call < 4000; call += step, step = 1 + call / 16) {
            *(ends ? &team.end_at : &team.fail_at) = call;
            if (survives(path, &team, want)) break;
            n_lost++;
        }
        assert_true(n_lost > 20);
    }
    qn_session_destroy(s);
    qn_engine_close(engine);
}

static void a_call_that_fails_ends_all_ranks(void **state) {
    (void)state;
    lose_ranks(QN_SPLIT_LAYERS, false);
    lose_ranks(QN_SPLIT_TENSORS, false);
}

static void a_rank_that_ends_ends_all_ranks(void **state) {
    (void)state;
    lose_ranks(QN_SPLIT_LAYERS, true);
    lose_ranks(QN_SPLIT_TENSORS, true);
}

// What all of them want, and none can have.
static void what_ranks_cannot_do_is_refused(void **state) {
    (void)state;
    static const struct {
        qn_engine_opts opts;
        const char *word;
    } bad[] = {
        {QN_INITIALIZER(qn_engine_opts, .reference = true), "the reference interpreter"},
        {QN_INITIALIZER(qn_engine_opts, .expert_budget = 2), "an expert budget"},
        {QN_INITIALIZER(qn_engine_opts, .device = "cpu,cpu"), "2 devices of one rank"},
        {QN_INITIALIZER(qn_engine_opts, .device = "abacus"), "no device 'abacus'"},
        {QN_INITIALIZER(qn_engine_opts, .mtp = true), "without a prediction head"},
        {QN_INITIALIZER(qn_engine_opts, .rank_timeout_ms = -1), "a rank timeout of -1 ms"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        qn_err err = {0};
        qn_engine *engine = NULL;
        const team_opts team = {.split = QN_SPLIT_LAYERS, .n_ranks = 3};
        assert_true(
            team_open(&engine, family_path(path, sizeof path, "qwen3"), &bad[i].opts, &team, &err));
        if (!strstr(err.message, bad[i].word))
            fail_msg("'%s' does not say '%s'", err.message, bad[i].word);
        assert_null(engine);
        assert_int_equal(team_wait(), 2);
    }
}

// One of them wants or has something else: the message names it, and both values.
static void refuse_difference(const char *family, const team_opts *team, const char *want) {
    char path[256];
    qn_err err = {0};
    qn_engine *engine = NULL;
    (void)team_open(&engine, family_path(path, sizeof path, family), NULL, team, &err);
    if (engine) fail_msg("ranks were opened, want '%s'", want);
    if (!strstr(err.message, want)) fail_msg("'%s' does not say '%s'", err.message, want);
    assert_int_equal(team_wait(), team->n_ranks - 1);
}

static void ranks_that_differ_are_refused(void **state) {
    (void)state;
    static const struct {
        qn_engine_opts opts;
        qn_split split;
        const char *says;
    } rows[] = {
        {QN_INITIALIZER(qn_engine_opts, .numerics = QN_NUMERICS_FAST), QN_SPLIT_TENSORS,
         "ranks differ in the numerics: rank 2 has fast, rank 0 exact"},
        {QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q8_0), QN_SPLIT_LAYERS,
         "ranks differ in the type of the KV cache: rank 2 has q8_0, rank 0 f"},
        {QN_INITIALIZER(qn_engine_opts, .split = QN_SPLIT_LAYERS), QN_SPLIT_TENSORS,
         "ranks differ in the split: rank 2 has layers, rank 0 tensors"},
        {QN_INITIALIZER(qn_engine_opts, .shares = "2,1,1"), QN_SPLIT_LAYERS,
         "ranks differ in the shares of layers: rank 2 has 2,1,1, rank 0 1,1,1"},
        {QN_INITIALIZER(qn_engine_opts, .device = "ref"), QN_SPLIT_TENSORS,
         "ranks differ in the kind of device: rank 2 has ref, rank 0 cpu"},
        {QN_INITIALIZER(qn_engine_opts, .rank_timeout_ms = 5000), QN_SPLIT_LAYERS,
         "ranks differ in the rank timeout: rank 2 has 5000 ms, rank 0 60000 ms"},
        {QN_INITIALIZER(qn_engine_opts, .no_weights = true), QN_SPLIT_LAYERS,
         "ranks differ in the dry run: rank 2 has yes, rank 0 no"},
        {QN_INITIALIZER(qn_engine_opts, .plans = QN_PLANS_EXACT), QN_SPLIT_LAYERS,
         "ranks differ in the plans for prefill and decode: rank 2 has exact and exact, rank 0 "
         "bucketed and bucketed"},
        {QN_INITIALIZER(qn_engine_opts,
                        .profile_text = "prefill.skip = [\"fuse_gate\", \"cse\"]\n"),
         QN_SPLIT_TENSORS,
         "ranks differ in the passes that are left out: rank 2 has cse,fuse_gate, rank 0 none"},
        {QN_INITIALIZER(qn_engine_opts, .rope_scaling = "linear", .rope_factor = 2),
         QN_SPLIT_LAYERS, "ranks differ in the rope scaling: rank 2 has factor 2 of context 0 ("},
        {QN_INITIALIZER(qn_engine_opts, .mtp = true), QN_SPLIT_LAYERS,
         "ranks differ in the use of the prediction head: rank 2 has yes, rank 0 no"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const team_opts team = {.split = rows[i].split, .n_ranks = 3, .odd_opts = &rows[i].opts};
        refuse_difference(rows[i].opts.mtp ? "qwen35" : "qwen3", &team, rows[i].says);
    }
}

static void ranks_with_other_models_are_refused(void **state) {
    (void)state;
    char path[256];
    const team_opts team = {.split = QN_SPLIT_LAYERS,
                            .n_ranks = 2,
                            .odd_path = family_path(path, sizeof path, "llama32")};
    refuse_difference("qwen3", &team, "ranks differ in the model: rank 1 has llama of ");
    refuse_difference("qwen3", &team, ", rank 0 qwen3 of ");
}

// By layers ranks may compute on different devices.
static void devices_may_differ_by_layers(void **state) {
    (void)state;
    static const qn_engine_opts ref = QN_INITIALIZER(qn_engine_opts, .device = "ref");
    const team_opts team = {.split = QN_SPLIT_LAYERS, .n_ranks = 2, .odd_opts = &ref};
    split_life want = live("qwen3", NULL), got = live("qwen3", &team);
    assert_same_life(&want, &got, "cpu and ref");
    life_deinit(&want);
    life_deinit(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_on_ranks_give_the_same_bits),
        cmocka_unit_test(tensors_on_ranks_give_the_same_bits),
        cmocka_unit_test(a_call_that_fails_ends_all_ranks),
        cmocka_unit_test(a_rank_that_ends_ends_all_ranks),
        cmocka_unit_test(what_ranks_cannot_do_is_refused),
        cmocka_unit_test(ranks_that_differ_are_refused),
        cmocka_unit_test(ranks_with_other_models_are_refused),
        cmocka_unit_test(devices_may_differ_by_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
