// What sampling remembers belongs to the session: going away and coming back, forking and stopping
// half way change no token, whatever the choices depend on.
#include "generate_rig.h"
#include "steps.h"

#include "core/mem.h"

#include <math.h>

enum { N_PROMPT = 24, N_BEFORE = 16, N_AFTER = 16, N_ALL = N_BEFORE + N_AFTER, N_SEEDS = 20 };

// Small, and of one thread, for there is much to compute.
static qn_engine *open_engine(void) {
    return family_open("qwen3", &QN_INIT(qn_engine_opts, .n_threads = 1));
}

static const char *const bans[] = {"in", "er", "on", "an", "re", "st", "th", "es"};
enum { N_BANS = sizeof bans / sizeof *bans };

// Ways to choose that look back, by name. The last of a test is greedy.
static const struct way {
    const char *name;
    qn_sample_opts opts;
} ways[] = {
    {"frequency", QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .frequency_penalty = 1.5f)},
    {"presence", QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .presence_penalty = 2)},
    {"repeat", QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .repeat_penalty = 1.7f,
                              .repeat_last_n = -1)},
    {"dry", QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .dry_multiplier = 3,
                           .dry_allowed_length = 1)},
    {"bans", QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .bans = bans, .n_bans = N_BANS)},
    {"mirostat", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .mirostat = 2,
                                .mirostat_tau = 3, .mirostat_eta = 0.5f)},
    {"xtc", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .xtc_probability = 0.5f,
                           .xtc_threshold = 0.05f)},
    {"all", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .frequency_penalty = 0.5f,
                           .presence_penalty = 0.5f, .repeat_penalty = 1.2f, .dry_multiplier = 1,
                           .bans = bans, .n_bans = N_BANS, .mirostat = 2, .mirostat_eta = 0.5f)},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

// End tokens are never chosen, by steps and by generations alike.
static qn_bias ends[8];
static size_t n_ends;

static int find_ends(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    for (int32_t id = 0; id < tokenizer_info(tokenizer).n_tokens; id++) {
        if (!qn_tokenizer_is_end(tokenizer, id)) continue;
        assert_true(n_ends < sizeof ends / sizeof *ends);
        ends[n_ends++] = (qn_bias){id, -INFINITY};
    }
    qn_engine_close(engine);
    return 0;
}

// Seed N_SEEDS is greedy.
static qn_sample_opts way_of(size_t w, uint64_t seed) {
    qn_sample_opts opts = ways[w].opts;
    opts.seed = seed;
    opts.biases = ends;
    opts.n_biases = n_ends;
    if (seed == N_SEEDS) opts.temperature = 0;
    return opts;
}

typedef void leave_fn(qn_session **session);

static void stay(qn_session **session) { (void)session; }

// Goes on elsewhere, and comes back.
static void come_back(qn_session **session) {
    qn_err err;
    qn_snapshot *snapshot;
    size_t n;
    const qn_sample_opts other =
        QN_INIT(qn_sample_opts, .temperature = 2, .mirostat = 2, .mirostat_eta = 1, .seed = 99);
    ASSERT_OK(qn_session_checkpoint(&snapshot, *session, &err));
    ASSERT_OK(take_steps(&n, *session, 7, &other, &err));
    ASSERT_OK(qn_session_set_prompt(*session, (int32_t[]){1, 2, 3}, 3, &err));
    ASSERT_OK(take_steps(&n, *session, 7, &other, &err));
    ASSERT_OK(qn_session_restore(*session, snapshot, &err));
    qn_snapshot_destroy(snapshot);
}

static void fork_off(qn_session **session) {
    qn_err err;
    qn_session *fork;
    size_t n;
    ASSERT_OK(qn_session_fork(&fork, *session, &err));
    ASSERT_OK(take_steps(&n, *session, 7, NULL, &err));
    qn_session_destroy(*session);
    *session = fork;
}

// As steps of a session, or as generations.
typedef void go_on_fn(qn_session *session, size_t n, const qn_sample_opts *opts);

static void step(qn_session *session, size_t n, const qn_sample_opts *opts) {
    qn_err err;
    size_t n_new;
    ASSERT_OK(take_steps(&n_new, session, n, opts, &err));
    assert_int_equal(n_new, n);
}

static void generate(qn_session *session, size_t n, const qn_sample_opts *opts) {
    qn_err err;
    qn_result result = QN_INIT(qn_result);
    const qn_generate_opts o = QN_INIT(qn_generate_opts, .sample = opts, .max_tokens = (int64_t)n);
    ASSERT_OK(qn_generate(&result, session, &o, NULL, NULL, &err));
    assert_int_equal(result.n_tokens, n);
    qn_result_deinit(&result);
}

// Drafts decide how many tokens a step gives, and never which.
static void generate_drafting(qn_session *session, size_t n, const qn_sample_opts *opts) {
    qn_err err;
    qn_result result = QN_INIT(qn_result);
    const qn_generate_opts o = QN_INIT(qn_generate_opts, .sample = opts, .max_tokens = (int64_t)n,
                                       .lookup = true, .draft_min = 3);
    ASSERT_OK(qn_generate(&result, session, &o, NULL, NULL, &err));
    assert_int_equal(result.n_tokens, n);
    qn_result_deinit(&result);
}

// The tokens of N_BEFORE, then leaving, then N_AFTER.
static void answer_leaving(int32_t *to, const qn_engine *engine, const qn_sample_opts *opts,
                           leave_fn *leave, go_on_fn *go_on, size_t n_before) {
    qn_err err;
    int32_t ids[N_PROMPT];
    size_t n;
    qn_session *session = open_session(engine, 128);
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
    if (n_before) go_on(session, n_before, opts);
    leave(&session);
    go_on(session, N_ALL - n_before, opts);
    const int32_t *tokens = qn_session_tokens(session, &n);
    assert_int_equal(n, N_PROMPT + N_ALL);
    memcpy(to, tokens + N_PROMPT, N_ALL * sizeof *to);
    qn_session_destroy(session);
}

static void assert_leaving_changes_nothing(leave_fn *leave, go_on_fn *go_on) {
    qn_engine *engine = open_engine();
    int n_wrong = 0;
    for (size_t w = 0; w < N_WAYS; w++) {
        int n_other = 0;
        for (uint64_t seed = 0; seed <= N_SEEDS; seed++) {
            const qn_sample_opts opts = way_of(w, seed);
            int32_t got[N_ALL], want[N_ALL];
            answer_leaving(want, engine, &opts, stay, go_on, 0);
            answer_leaving(got, engine, &opts, leave, go_on, N_BEFORE);
            n_other += memcmp(got, want, sizeof got) != 0;
        }
        if (n_other)
            print_error("%s: %d of %d answers differ\n", ways[w].name, n_other, N_SEEDS + 1);
        n_wrong += n_other;
    }
    assert_int_equal(n_wrong, 0);
    qn_engine_close(engine);
}

static void restored_is_never_left_whatever_choices_remember(void **state) {
    (void)state;
    assert_leaving_changes_nothing(come_back, step);
}

static void forked_is_never_forked_whatever_choices_remember(void **state) {
    (void)state;
    assert_leaving_changes_nothing(fork_off, step);
}

static void generations_go_on_after_a_restore(void **state) {
    (void)state;
    assert_leaving_changes_nothing(come_back, generate);
}

static void generations_go_on_after_a_fork(void **state) {
    (void)state;
    assert_leaving_changes_nothing(fork_off, generate_drafting);
}

static void two_generations_are_one(void **state) {
    (void)state;
    assert_leaving_changes_nothing(stay, generate);
}

// The string that would go on across the place where the session was left is banned.
static void a_ban_reaches_across(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    leave_fn *const leaves[] = {stay, come_back, fork_off};
    go_on_fn *const ways_on[] = {step, generate};
    const qn_sample_opts free = QN_INIT(qn_sample_opts, .biases = ends, .n_biases = n_ends);
    int32_t without[N_ALL];
    char *text;
    size_t size;
    qn_err err;
    answer_leaving(without, engine, &free, stay, step, 0);
    ASSERT_OK(qn_detokenize(&text, &size, qn_engine_tokenizer(engine), without + N_BEFORE - 1, 2,
                            false, &err));
    qn_sample_opts opts = free;
    opts.bans = (const char *const[]){text};
    opts.n_bans = 1;
    for (int w = 0; w < 2; w++) {
        for (int l = 0; l < 3; l++) {
            int32_t got[N_ALL];
            answer_leaving(got, engine, &opts, leaves[l], ways_on[w], N_BEFORE);
            assert_memory_equal(got, without, N_BEFORE * sizeof *got);
            assert_int_not_equal(got[N_BEFORE], without[N_BEFORE]);
        }
    }
    qn_free(text);
    qn_engine_close(engine);
}

// Steps of a session and generations share what is remembered.
static void generations_and_steps_take_turns(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    for (size_t w = 0; w < N_WAYS; w++) {
        qn_err err;
        const qn_sample_opts opts = way_of(w, 5);
        int32_t ids[N_PROMPT], want[N_ALL];
        size_t n;
        answer_leaving(want, engine, &opts, stay, step, 0);
        qn_session *session = open_session(engine, 128);
        random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
        ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
        for (int i = 0; i < 4; i++) (i % 2 ? step : generate)(session, N_ALL / 4, &opts);
        const int32_t *tokens = qn_session_tokens(session, &n);
        if (memcmp(tokens + N_PROMPT, want, sizeof want) != 0) fail_msg("%s", ways[w].name);
        qn_session_destroy(session);
    }
    qn_engine_close(engine);
}

// A generation that is under way, too: the session of its snapshot goes on by another one.
static void a_generation_half_way_is_restored(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    for (size_t w = 0; w < N_WAYS; w++) {
        qn_err err;
        const qn_sample_opts opts = way_of(w, 7);
        int32_t ids[N_PROMPT], want[N_ALL];
        size_t n;
        answer_leaving(want, engine, &opts, stay, generate, 0);
        qn_session *session = open_session(engine, 128), *fork = NULL;
        random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
        ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
        const qn_generate_opts o = QN_INIT(qn_generate_opts, .sample = &opts, .max_tokens = N_ALL);
        qn_generation *generation;
        ASSERT_OK(qn_generation_create(&generation, session, &o, &err));
        for (size_t i = 0, active = 1; active; i++) {
            ASSERT_OK(step_rows(&active, &generation, 1, NULL, NULL, &err));
            if (i == N_BEFORE) ASSERT_OK(qn_session_fork(&fork, session, &err));
        }
        assert_memory_equal(generation->result.tokens, want, sizeof want);
        (void)qn_session_tokens(fork, &n);
        generate(fork, N_PROMPT + N_ALL - n, &opts);
        const int32_t *tokens = qn_session_tokens(fork, &n);
        if (memcmp(tokens + N_PROMPT, want, sizeof want) != 0) fail_msg("%s", ways[w].name);
        qn_generation_destroy(generation);
        qn_session_destroy(fork);
        qn_session_destroy(session);
    }
    qn_engine_close(engine);
}

// A session that was used answers as a new one.
static void a_new_prompt_begins_anew(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    qn_session *used = open_session(engine, 128);
    int32_t ids[N_PROMPT];
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
    for (size_t w = 0; w < N_WAYS; w++) {
        for (uint64_t seed = 0; seed <= N_SEEDS; seed++) {
            qn_err err;
            const qn_sample_opts opts = way_of(w, seed);
            int32_t want[N_ALL];
            size_t n;
            answer_leaving(want, engine, &opts, stay, step, 0);
            for (int round = 0; round < 2; round++) {
                ASSERT_OK(qn_session_set_prompt(used, ids, N_PROMPT, &err));
                (round ? generate : step)(used, N_ALL, &opts);
                const int32_t *tokens = qn_session_tokens(used, &n);
                if (memcmp(tokens + N_PROMPT, want, sizeof want) != 0)
                    fail_msg("%s, seed %d, round %d", ways[w].name, (int)seed, round);
            }
        }
    }
    qn_session_destroy(used);
    qn_engine_close(engine);
}

// Cutting an answer short keeps its beginning an answer; cutting into a prompt leaves prompt alone.
static void what_is_left_of_a_prompt_is_prompt(void **state) {
    (void)state;
    qn_engine *engine = open_engine();
    const qn_sample_opts opts = QN_INIT(qn_sample_opts, .temperature = 0, .frequency_penalty = 2,
                                        .bans = bans, .n_bans = N_BANS);
    int32_t ids[N_PROMPT], want[N_ALL], token;
    qn_err err;
    size_t n;
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
    qn_session *session = open_session(engine, 128);
    answer_leaving(want, engine, &opts, stay, step, 0);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
    step(session, N_ALL, &opts);
    ASSERT_OK(qn_session_truncate(session, N_PROMPT + N_BEFORE, &err));
    step(session, N_AFTER, &opts);
    assert_memory_equal(qn_session_tokens(session, &n) + N_PROMPT, want, sizeof want);

    int32_t cut[N_ALL];
    qn_session *fresh = open_session(engine, 128);
    ASSERT_OK(qn_session_truncate(session, N_PROMPT / 2, &err));
    ASSERT_OK(qn_session_step(&token, session, &opts, &err));
    step(session, N_ALL - 1, &opts);
    memcpy(cut, qn_session_tokens(session, &n) + N_PROMPT / 2, sizeof cut);
    ASSERT_OK(qn_session_set_prompt(fresh, ids, N_PROMPT / 2, &err));
    step(fresh, N_ALL, &opts);
    assert_memory_equal(qn_session_tokens(fresh, &n) + N_PROMPT / 2, cut, sizeof cut);
    qn_session_destroy(fresh);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

// Random numbers go on where they were after tokens were dropped from a full context.
static void a_shifted_session_goes_on(void **state) {
    (void)state;
    enum { CONTEXT = 64, N_LONG = 80 };
    qn_engine *engine = open_engine();
    int32_t ids[N_PROMPT];
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        qn_err err;
        int32_t tokens[2][2 * N_LONG];
        for (int parts = 1; parts <= 2; parts++) {
            qn_session *session = open_session(engine, CONTEXT);
            ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
            const qn_generate_opts opts = QN_INIT(
                qn_generate_opts,
                .sample = &QN_INIT(qn_sample_opts, .temperature = 1.5f, .seed = seed,
                                   .frequency_penalty = 0.5f),
                .max_tokens = 2 * N_LONG / parts, .ignore_end = true, .shift = true, .keep = 4);
            for (int i = 0; i < parts; i++) {
                qn_result r = QN_INIT(qn_result);
                ASSERT_OK(qn_generate(&r, session, &opts, NULL, NULL, &err));
                assert_int_equal(r.n_tokens, opts.max_tokens);
                assert_true(r.n_shifts > 0);
                memcpy(tokens[parts - 1] + i * N_LONG, r.tokens, r.n_tokens * sizeof *r.tokens);
                qn_result_deinit(&r);
            }
            qn_session_destroy(session);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    }
    qn_engine_close(engine);
}

// What was appended before an error is told.
static void tokens_before_an_error_are_counted(void **state) {
    (void)state;
    enum { ROOM = 5 };
    qn_err err;
    qn_engine *engine = open_engine();
    qn_session *session = open_session(engine, N_PROMPT + ROOM);
    int32_t ids[N_PROMPT];
    size_t n_new = 99, n;
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, 3);
    ASSERT_FAILS(take_steps(&n_new, session, 3, NULL, &err), QN_STATE, "qn_session_set_prompt");
    assert_int_equal(n_new, 0);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
    ASSERT_FAILS(take_steps(&n_new, session, 20, NULL, &err), QN_LIMIT, "is full");
    assert_int_equal(n_new, ROOM);
    (void)qn_session_tokens(session, &n);
    assert_int_equal(n, N_PROMPT + ROOM);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_is_never_left_whatever_choices_remember),
        cmocka_unit_test(forked_is_never_forked_whatever_choices_remember),
        cmocka_unit_test(generations_go_on_after_a_restore),
        cmocka_unit_test(generations_go_on_after_a_fork),
        cmocka_unit_test(two_generations_are_one),
        cmocka_unit_test(a_ban_reaches_across),
        cmocka_unit_test(generations_and_steps_take_turns),
        cmocka_unit_test(a_generation_half_way_is_restored),
        cmocka_unit_test(a_new_prompt_begins_anew),
        cmocka_unit_test(what_is_left_of_a_prompt_is_prompt),
        cmocka_unit_test(a_shifted_session_goes_on),
        cmocka_unit_test(tokens_before_an_error_are_counted),
    };
    return cmocka_run_group_tests(tests, find_ends, NULL);
}
