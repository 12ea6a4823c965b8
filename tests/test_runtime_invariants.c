// What must be equal to the bit, for every family: cached and naive, any chunks, any plan cache,
// any number of threads, any company in a step, any CPU level, fused or not, restored or never
// left, reused or fresh.
#include "families.h"
#include "steps.h"
#include "format_files.h"

#include "core/mem.h"
#include "backends/cpu/cpu.h"
#include "runtime/kv_memory.h"
#include "session/generate_int.h"

#include <stdlib.h>

enum { N_IDS = 150, N_NEW = 12 };

// All families as they come, and some again with caches of few bits: attention of all positions,
// of a window, and beside recurrent layers.
static const struct {
    const char *family;
    qn_engine_opts opts;
} small_caches[] = {{"qwen3", QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q4_0)},
                    {"gemma3", QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q4_0R)},
                    {"qwen35", QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q8_0R)}};
enum { N_SUBJECTS = N_FAMILIES + sizeof small_caches / sizeof *small_caches };

static const char *family_of(size_t i) {
    return i < N_FAMILIES ? families[i] : small_caches[i - N_FAMILIES].family;
}

static const qn_engine_opts *opts_of(size_t i) {
    return i < N_FAMILIES ? NULL : &small_caches[i - N_FAMILIES].opts;
}

// Logits of all rows of the ids; release with qn_logits_deinit.
static qn_logits all_logits(const qn_engine *engine, const int32_t *ids, size_t n,
                            qn_logits_opts opts) {
    qn_err err;
    qn_logits logits = QN_INIT(qn_logits);
    opts.all_rows = true;
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, n, &opts, &err));
    return logits;
}

static void assert_same_logits(const qn_logits *a, const qn_logits *b, const char *what) {
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_vocab, b->n_vocab);
    for (int64_t i = 0; i < a->n_rows; i++) {
        if (memcmp(a->logits + i * a->n_vocab, b->logits + i * b->n_vocab,
                   (size_t)a->n_vocab * sizeof(float)) != 0)
            fail_msg("%s: row %lld differs", what, (long long)i);
    }
}

static qn_logits family_logits(const char *family, const qn_engine_opts *opts) {
    qn_engine *engine = family_open(family, opts);
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, engine_info(engine).n_vocab, 1);
    const qn_logits logits = all_logits(engine, ids, N_IDS, QN_INIT(qn_logits_opts));
    qn_engine_close(engine);
    return logits;
}

// Logits after a prompt of 100 tokens and after each of 20 more, one a step, by a session.
static qn_logits session_logits(const char *family, const qn_engine_opts *opts) {
    enum { PROMPT = 100, ROWS = 21 };
    qn_err err;
    qn_engine *engine = family_open(family, opts);
    const int64_t vocab = engine_info(engine).n_vocab;
    qn_logits out = QN_INIT(qn_logits, .n_rows = ROWS, .n_vocab = vocab);
    out.logits = qn_alloc((size_t)(ROWS * vocab), sizeof *out.logits);
    qn_session *session;
    int32_t ids[N_IDS];
    const float *logits;
    random_ids(ids, N_IDS, vocab, 1);
    ASSERT_OK(qn_session_create(&session, engine,
                                &QN_INIT(qn_session_opts, .context = 300, .chunk = 70), &err));
    for (int i = 0; i < ROWS; i++) {
        if (i)
            ASSERT_OK(qn_session_feed(&logits, session, ids[PROMPT + i - 1], &err));
        else
            ASSERT_OK(qn_session_prefill(&logits, session, ids, PROMPT, &err));
        memcpy(out.logits + i * vocab, logits, (size_t)vocab * sizeof *logits);
    }
    qn_session_destroy(session);
    qn_engine_close(engine);
    return out;
}

static void chunks_change_nothing(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 7, 64, 65, 149};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = family_open(families[f], NULL);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, engine_info(engine).n_vocab, 2);
        qn_logits whole = all_logits(engine, ids, N_IDS, QN_INIT(qn_logits_opts, .naive = true));
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            qn_logits parts =
                all_logits(engine, ids, N_IDS, QN_INIT(qn_logits_opts, .chunk = chunks[i]));
            assert_same_logits(&parts, &whole, families[f]);
            qn_logits_deinit(&parts);
        }
        qn_logits_deinit(&whole);
        qn_engine_close(engine);
    }
}

// Each row of the table below against the default options.
// In one step and where they begin inside one of several, by plans and by the interpreter.
static void last_rows_are_those_of_all(void **state) {
    (void)state;
    static const int64_t wanted[] = {1, 2, 7, 8, 9, 29, 30}, chunks[] = {0, 8};
    enum { N = 30 };
    for (int is_ref = 0; is_ref < 2; is_ref++) {
        const qn_engine_opts how = QN_INIT(qn_engine_opts, .reference = is_ref);
        qn_engine *engine = family_open("qwen3", &how);
        int32_t ids[N];
        random_ids(ids, N, engine_info(engine).n_vocab, 1);
        qn_logits all = all_logits(engine, ids, N, QN_INIT(qn_logits_opts));
        for (size_t i = 0; i < 2 * sizeof wanted / sizeof *wanted; i++) {
            qn_err err;
            qn_logits last = QN_INIT(qn_logits);
            const int64_t n = wanted[i / 2];
            const qn_logits_opts opts =
                QN_INIT(qn_logits_opts, .chunk = chunks[i % 2], .last_rows = n);
            ASSERT_OK(qn_engine_logits(&last, engine, ids, N, &opts, &err));
            assert_int_equal(last.n_rows, n);
            assert_memory_equal(last.logits, all.logits + (N - n) * all.n_vocab,
                                (size_t)(n * all.n_vocab) * sizeof(float));
            qn_logits_deinit(&last);
        }
        qn_err err;
        qn_logits none = QN_INIT(qn_logits);
        ASSERT_FAILS(qn_engine_logits(&none, engine, ids, N,
                                      &QN_INIT(qn_logits_opts, .last_rows = N + 1), &err),
                     QN_ARGUMENT, "the last 31 of 30 tokens");
        ASSERT_FAILS(qn_engine_logits(&none, engine, ids, N,
                                      &QN_INIT(qn_logits_opts, .last_rows = 1, .all_rows = true),
                                      &err),
                     QN_ARGUMENT, "and after all");
        qn_logits_deinit(&all);
        qn_engine_close(engine);
    }
}

static void options_change_nothing(void **state) {
    (void)state;
    static const struct {
        const char *what;
        qn_engine_opts opts;
    } cases[] = {
        {"one thread", QN_INITIALIZER(qn_engine_opts, .n_threads = 1)},
        {"two threads", QN_INITIALIZER(qn_engine_opts, .n_threads = 2)},
        {"five threads", QN_INITIALIZER(qn_engine_opts, .n_threads = 5)},
        {"exact plans", QN_INITIALIZER(qn_engine_opts, .plans = QN_PLANS_EXACT)},
        {"bucketed plans", QN_INITIALIZER(qn_engine_opts, .plans = QN_PLANS_BUCKETED)},
        {"dynamic plans", QN_INITIALIZER(qn_engine_opts, .plans = QN_PLANS_DYNAMIC)},
    };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_logits want = family_logits(families[f], NULL);
        qn_logits steps = session_logits(families[f], NULL);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char what[256];
            snprintf(what, sizeof what, "%s, %s", families[f], cases[i].what);
            qn_logits got = family_logits(families[f], &cases[i].opts);
            assert_same_logits(&got, &want, what);
            qn_logits_deinit(&got);
            got = session_logits(families[f], &cases[i].opts);
            assert_same_logits(&got, &steps, what);
            qn_logits_deinit(&got);
        }
        qn_logits_deinit(&want);
        qn_logits_deinit(&steps);
    }
}

// The first opening fills the folder, the second finds plans and weights there.
static void ahead_of_time_changes_nothing(void **state) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_logits want = family_logits(families[f], NULL);
        for (int round = 0; round < 2; round++) {
            const qn_engine_opts opts = QN_INIT(qn_engine_opts, .cache_dir = *state);
            qn_engine *engine = family_open(families[f], &opts);
            const qn_engine_info info = engine_info(engine);
            assert_true(round ? info.cached_bytes >= info.weight_bytes : info.cached_bytes == 0);
            int32_t ids[N_IDS];
            random_ids(ids, N_IDS, info.n_vocab, 1);
            qn_logits got = all_logits(engine, ids, N_IDS, QN_INIT(qn_logits_opts));
            assert_same_logits(&got, &want, families[f]);
            qn_logits_deinit(&got);
            qn_engine_close(engine);
        }
        qn_logits_deinit(&want);
    }
}

// The same with a switch of the environment set to each of some values.
static void assert_switch_changes_nothing(const char *name, const char *const *values) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        unsetenv(name);
        qn_logits want = family_logits(families[f], NULL);
        qn_logits steps = session_logits(families[f], NULL);
        for (size_t i = 0; values[i]; i++) {
            char what[512];
            snprintf(what, sizeof what, "%s, %s=%s", families[f], name, values[i]);
            setenv(name, values[i], 1);
            qn_logits got = family_logits(families[f], NULL);
            assert_same_logits(&got, &want, what);
            qn_logits_deinit(&got);
            got = session_logits(families[f], NULL);
            assert_same_logits(&got, &steps, what);
            qn_logits_deinit(&got);
        }
        unsetenv(name);
        qn_logits_deinit(&want);
        qn_logits_deinit(&steps);
    }
}

static int clear_switches(void **state) {
    (void)state;
    unsetenv("QN_LEVEL");
    unsetenv("QN_SKIP");
    return 0;
}

static void levels_are_equal(void **state) {
    (void)state;
    const char *levels[8] = {0};
    for (size_t i = 0; i < 7; i++) levels[i] = qn_cpu_level_name(i);
    assert_switch_changes_nothing("QN_LEVEL", levels);
}

static void fused_is_unfused(void **state) {
    (void)state;
    static const char *const skips[] = {
        "fuse_norm,fuse_residual,fuse_gate,fuse_project,fuse_rope,fuse_write,fuse_attention,fuse_"
        "experts",
        "fuse_attention",
        "fuse_project,fuse_residual",
        "cse,fold,schedule",
        "decompose",
        NULL};
    assert_switch_changes_nothing("QN_SKIP", skips);
}

// --- sessions ------------------------------------------------------------------------------------

typedef struct talk {
    qn_engine *engine;
    qn_session *session;
    int32_t ids[N_IDS];
} talk;

static talk talk_open(const char *family, const qn_engine_opts *opts,
                      const qn_session_opts *session_opts) {
    qn_err err;
    talk t = {.engine = family_open(family, opts)};
    const qn_session_opts defaults = QN_INIT(qn_session_opts, .context = 512, .logits = true);
    ASSERT_OK(
        qn_session_create(&t.session, t.engine, session_opts ? session_opts : &defaults, &err));
    random_ids(t.ids, N_IDS, engine_info(t.engine).n_vocab, 3);
    return t;
}

static void talk_close(talk *t) {
    qn_session_destroy(t->session);
    qn_engine_close(t->engine);
}

// The logits of the session are those of its history computed from nothing.
static void assert_fresh(talk *t, qn_session *session, size_t n, const char *what) {
    qn_err err;
    size_t n_tokens;
    const int32_t *tokens = qn_session_tokens(session, &n_tokens);
    const float *got = qn_session_logits(session);
    assert_non_null(got);
    assert_true(n <= n_tokens);
    qn_logits want = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&want, t->engine, tokens, n, &QN_INIT(qn_logits_opts, .naive = true),
                               &err));
    if (memcmp(got, want.logits, (size_t)want.n_vocab * sizeof *got) != 0)
        fail_msg("%s: logits after %zu tokens differ", what, n);
    qn_logits_deinit(&want);
}

static void cached_is_naive(void **state) {
    (void)state;
    static const qn_sample_opts samples[] = {
        QN_INITIALIZER(qn_sample_opts),
        QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 7)};
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        for (size_t i = 0; i < 2; i++) {
            qn_err err;
            talk t = talk_open(family_of(f), opts_of(f), NULL);
            qn_session *naive;
            ASSERT_OK(qn_session_create(&naive, t.engine, NULL, &err));
            ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 60, &err));
            ASSERT_OK(qn_session_set_prompt(naive, t.ids, 60, &err));
            for (size_t k = 0; k < N_NEW; k++) {
                int32_t a, b;
                ASSERT_OK(qn_session_step(&a, t.session, &samples[i], &err));
                ASSERT_OK(qn_session_step_naive(&b, naive, &samples[i], &err));
                assert_int_equal(a, b);
                assert_int_equal(qn_session_cached(t.session), 60 + k);
                assert_fresh(&t, t.session, 60 + k, family_of(f));
            }
            qn_session_destroy(naive);
            talk_close(&t);
        }
    }
}

static void prefill_and_feed_give_fresh_logits(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = talk_open(families[f], NULL, NULL);
        const float *logits;
        size_t n;
        ASSERT_FAILS(qn_session_feed(&logits, t.session, 1, &err), QN_STATE, "qn_session_prefill");
        ASSERT_OK(qn_session_prefill(&logits, t.session, t.ids, 70, &err));
        assert_int_equal(qn_session_cached(t.session), 70);
        assert_fresh(&t, t.session, 70, families[f]);
        ASSERT_OK(qn_session_feed(&logits, t.session, t.ids[70], &err));
        assert_int_equal(qn_session_cached(t.session), 71);
        assert_fresh(&t, t.session, 71, families[f]);
        ASSERT_OK(qn_session_commit(t.session, t.ids + 71, 20, &err));
        assert_int_equal(qn_session_cached(t.session), 91);
        ASSERT_OK(qn_session_feed(&logits, t.session, t.ids[91], &err));
        assert_fresh(&t, t.session, 92, families[f]);
        qn_session_tokens(t.session, &n);
        assert_int_equal(n, 92);
        talk_close(&t);
    }
}

static void restored_is_never_left(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        qn_err err;
        talk t = talk_open(family_of(f), opts_of(f), NULL);
        int32_t token;
        size_t n_new;
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 100, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        qn_snapshot *snapshot;
        ASSERT_OK(qn_session_checkpoint(&snapshot, t.session, &err));
        for (int round = 0; round < 3; round++) {
            ASSERT_OK(take_steps(&n_new, t.session, 40, NULL, &err));
            assert_int_equal(n_new, 40);
            assert_fresh(&t, t.session, 140, family_of(f));
            ASSERT_OK(qn_session_restore(t.session, snapshot, &err));
            assert_int_equal(qn_session_cached(t.session), 100);
            assert_fresh(&t, t.session, 100, family_of(f));
        }
        qn_snapshot_destroy(snapshot);
        talk_close(&t);
    }
}

// What is left of a long prompt is not read again from its beginning, whatever the model keeps.
static void the_end_of_a_prompt_can_be_changed(void **state) {
    (void)state;
    enum { N = 150, CHUNK = 32, CUT = 5 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t =
            talk_open(families[f], NULL,
                      &QN_INIT(qn_session_opts, .context = 512, .chunk = CHUNK, .logits = true));
        int32_t token;
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, N, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        const int64_t before = session_counts(t.session).rows;
        ASSERT_OK(qn_session_truncate(t.session, N - CUT, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        const int64_t rows = session_counts(t.session).rows - before;
        if (rows > 2 * CHUNK) fail_msg("%s: %lld rows", families[f], (long long)rows);
        assert_fresh(&t, t.session, N - CUT, families[f]);
        talk_close(&t);
    }
}

// Cutting off tokens of an answer: full attention goes on at once; anything else is computed again
// from the end of the prompt, which stays where it is however often that happens.
static void the_end_of_an_answer_can_be_changed(void **state) {
    (void)state;
    enum { N_PROMPT = 150, N_ANSWER = 90, N_LEFT = N_PROMPT + 70, N_TIMES = 3 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = talk_open(families[f], NULL,
                           &QN_INIT(qn_session_opts, .context = 512, .chunk = 32, .logits = true));
        int32_t token;
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, N_PROMPT, &err));
        for (int time = 0; time < N_TIMES; time++) {
            for (size_t n = 0; n < N_PROMPT + N_ANSWER; (void)qn_session_tokens(t.session, &n))
                ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
            const int64_t before = session_counts(t.session).rows;
            ASSERT_OK(qn_session_truncate(t.session, N_LEFT, &err));
            ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
            const int64_t rows = session_counts(t.session).rows - before;
            if (rows > N_LEFT - N_PROMPT) fail_msg("%s: %lld rows", families[f], (long long)rows);
        }
        assert_fresh(&t, t.session, N_LEFT, families[f]);
        talk_close(&t);
    }
}

static void truncated_and_forked_is_fresh(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        qn_err err;
        talk t = talk_open(family_of(f), opts_of(f), NULL);
        qn_session *fork;
        int32_t token;
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 130, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        ASSERT_OK(qn_session_fork(&fork, t.session, &err));
        ASSERT_OK(qn_session_truncate(t.session, 90, &err));
        ASSERT_OK(qn_session_commit(t.session, t.ids, 3, &err));
        ASSERT_OK(qn_session_step(&token, fork, NULL, &err));
        assert_fresh(&t, fork, 131, family_of(f));
        ASSERT_OK(qn_session_commit(t.session, t.ids + 5, 2, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        assert_int_equal(qn_session_cached(t.session), 95);
        assert_fresh(&t, t.session, 95, family_of(f));
        ASSERT_FAILS(qn_session_truncate(t.session, 97, &err), QN_ARGUMENT, "97");
        qn_session_destroy(t.session);
        t.session = fork; // outlives what it was forked from
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        assert_fresh(&t, t.session, 132, family_of(f));
        talk_close(&t);
    }
}

static void reused_is_fresh(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        qn_err err;
        talk t = talk_open(family_of(f), opts_of(f), NULL);
        int32_t token, other[N_IDS];
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 120, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        memcpy(other, t.ids, sizeof other);
        for (size_t i = 120; i < N_IDS; i++) other[i] = t.ids[i - 100];
        ASSERT_OK(qn_session_set_prompt(t.session, other, N_IDS, &err));
        assert_int_equal(qn_session_cached(t.session), 0);
        const int64_t rows = session_counts(t.session).rows;
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        assert_fresh(&t, t.session, N_IDS, family_of(f));
        const qn_session_counts counts = session_counts(t.session);
        assert_true(counts.reused >= 64); // at least the whole page
        assert_int_equal(counts.rows - rows, N_IDS - counts.reused);
        talk_close(&t);
    }
}

// Sessions that share state find each other's prompts; a mark is where a later prompt goes on.
static void shared_and_marked_is_fresh(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        qn_err err;
        talk t = talk_open(family_of(f), opts_of(f), NULL);
        qn_session *other;
        int32_t token, ids[N_IDS];
        ASSERT_OK(qn_session_create(&other, t.engine, &QN_INIT(qn_session_opts, .share = t.session),
                                    &err));
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 110, &err));
        ASSERT_FAILS(qn_session_mark(t.session, 111, &err), QN_ARGUMENT, "111");
        ASSERT_OK(qn_session_mark(t.session, 83, &err));
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        assert_fresh(&t, t.session, 110, family_of(f));
        memcpy(ids, t.ids, sizeof ids);
        for (size_t i = 83; i < N_IDS; i++) ids[i] = t.ids[i - 50]; // the same up to the mark
        ASSERT_OK(qn_session_set_prompt(other, ids, 130, &err));
        ASSERT_OK(qn_session_step(&token, other, NULL, &err));
        assert_fresh(&t, other, 130, family_of(f));
        const int64_t reused = session_counts(other).reused;
        if (reused < 83) fail_msg("%s: %lld tokens were reused", family_of(f), (long long)reused);
        qn_session_destroy(other);
        talk_close(&t);
    }
}

static void wrong_calls_name_what_is_missing(void **state) {
    (void)state;
    qn_err err;
    talk t = talk_open("qwen3", NULL, &QN_INIT(qn_session_opts, .context = 8));
    int32_t token;
    ASSERT_FAILS(qn_session_step(&token, t.session, NULL, &err), QN_STATE, "qn_session_set_prompt");
    ASSERT_FAILS(qn_session_set_prompt(t.session, t.ids, 9, &err), QN_LIMIT, "9 tokens");
    ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 7, &err));
    ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
    ASSERT_FAILS(qn_session_step(&token, t.session, NULL, &err), QN_LIMIT, "context of 8");
    const int32_t odd = -1;
    ASSERT_FAILS(qn_session_commit(t.session, &odd, 1, &err), QN_ARGUMENT, "id -1");
    qn_session *none = NULL;
    ASSERT_FAILS(
        qn_session_create(&none, t.engine, &QN_INIT(qn_session_opts, .context = 5000), &err),
        QN_LIMIT, "4096");
    talk_close(&t);
}

// --- company -------------------------------------------------------------------------------------

// Several sequences of different lengths in the same steps, against each alone.
static void a_row_does_not_depend_on_its_company(void **state) {
    (void)state;
    enum { SEQS = 3 };
    static const int64_t lengths[SEQS] = {5, 70, 33};
    for (size_t f = 0; f < N_SUBJECTS; f++) {
        qn_err err;
        qn_engine *engine = family_open(family_of(f), opts_of(f));
        const int64_t vocab = engine_info(engine).n_vocab;
        int32_t ids[SEQS][N_IDS];
        qn_runner *runner;
        qn_seq *seqs[SEQS];
        const qn_runner_opts opts = {
            .engine = engine, .context = 256, .rows = 128, .outs = 8, .segs = SEQS, .n_seqs = SEQS};
        ASSERT_OK(qn_runner_create(&runner, &opts, &err));
        qn_segment segments[SEQS];
        for (int b = 0; b < SEQS; b++) {
            random_ids(ids[b], N_IDS, vocab, 10 + (uint64_t)b);
            ASSERT_OK(qn_seq_open(&seqs[b], qn_runner_state(runner), &err));
            segments[b] =
                (qn_segment){.seq = seqs[b], .ids = ids[b], .rows = lengths[b], .outs = 1};
        }
        for (int step = 0; step < 4; step++) {
            ASSERT_OK(qn_runner_step(runner, segments, SEQS, &err));
            for (int b = 0; b < SEQS; b++) {
                qn_logits alone = QN_INIT(qn_logits);
                const size_t n = (size_t)(lengths[b] + step);
                ASSERT_OK(qn_engine_logits(&alone, engine, ids[b], n, NULL, &err));
                if (memcmp(qn_runner_row(runner, "logits", b), alone.logits,
                           (size_t)vocab * sizeof(float)) != 0)
                    fail_msg("%s: step %d, sequence %d differs", family_of(f), step, b);
                qn_logits_deinit(&alone);
                segments[b].ids = ids[b] + n;
                segments[b].rows = 1;
            }
        }
        for (int b = 0; b < SEQS; b++) qn_seq_close(seqs[b]);
        qn_runner_destroy(runner);
        qn_engine_close(engine);
    }
}

// Forks that go on together are what each would be alone.
static void steps_of_a_family_are_steps_alone(void **state) {
    (void)state;
    enum { FORKS = 5 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = talk_open(families[f], NULL, NULL);
        qn_session *sessions[FORKS] = {t.session};
        qn_generation *gens[FORKS];
        ASSERT_OK(qn_session_set_prompt(t.session, t.ids, 62, &err));
        for (int i = 1; i < FORKS; i++) ASSERT_OK(qn_session_fork(&sessions[i], t.session, &err));
        ASSERT_OK(qn_session_commit(sessions[2], t.ids, 9, &err)); // another length
        for (int i = 0; i < FORKS; i++) {
            const qn_generate_opts opts = QN_INIT(
                qn_generate_opts,
                .sample = &QN_INIT(qn_sample_opts, .temperature = (float)i, .seed = (uint64_t)i),
                .ignore_end = true);
            ASSERT_OK(qn_generation_create(&gens[i], sessions[i], &opts, &err));
        }
        ASSERT_OK(qn_generations_step(gens, FORKS, 0, &err)); // they read
        for (int step = 0; step < 6; step++) {
            ASSERT_OK(qn_generations_step(gens, FORKS, 0, &err));
            for (int i = 0; i < FORKS; i++) {
                size_t n;
                const int32_t *history = qn_session_tokens(sessions[i], &n);
                const qn_result *result = &gens[i]->result;
                assert_true(result->n_tokens >= (size_t)step + 1);
                assert_int_equal(history[n - 1], result->tokens[result->n_tokens - 1]);
                assert_int_equal(qn_session_cached(sessions[i]), n - 1);
            }
        }
        for (int i = 0; i < FORKS; i++) { // the logits after what they have computed
            int32_t token;
            size_t n;
            qn_generation_destroy(gens[i]);
            qn_session_tokens(sessions[i], &n);
            ASSERT_OK(qn_session_step(&token, sessions[i], NULL, &err));
            assert_fresh(&t, sessions[i], n, families[f]);
        }
        for (int i = 1; i < FORKS; i++) qn_session_destroy(sessions[i]);
        talk_close(&t);
    }
}

// Keys and values of a sequence's first `n` positions, all layers; release with qn_free.
static float *read_state(const qn_engine *engine, qn_runner *runner, qn_seq *seq, int64_t n,
                         size_t *size) {
    qn_err err;
    qn_state *state = qn_runner_state(runner);
    const int64_t groups = qn_state_groups(state), pages = qn_state_pages_per_seg(state);
    int32_t numbers[4], *table = qn_alloc((size_t)(groups * pages), sizeof *table);
    const qn_seg_tables to = {numbers,     numbers + 1, numbers + 2,
                              numbers + 3, table,       qn_state_pages_per_seg(state)};
    ASSERT_OK(qn_seq_prepare(seq, 1, 1, &err)); // shows the pages of a step to come
    qn_seq_fill(seq, &to, 0);
    qn_seq_cancel(seq);
    float *all = NULL;
    *size = 0;
    for (size_t i = 0; i < engine->stages[0].prefill.n_leaves[QN_PLACE_CACHE]; i++) {
        const qn_cache_view *view = qn_kv_cache(qn_state_memory(state), i);
        const size_t keys = (size_t)(view->heads * view->k_size);
        const size_t row = keys + (size_t)(view->heads * view->v_size);
        for (int64_t p = 0; p < n; p++) {
            const int32_t page = table[view->group * pages + p / QN_PAGE_ROWS];
            if (page < 0) continue; // before the window
            all = qn_realloc(all, *size + row, sizeof *all);
            qn_device *device = engine->stages[0].device;
            device->kind->read_kv(all + *size, all + *size + keys, device, view, page,
                                  p % QN_PAGE_ROWS);
            *size += row;
        }
    }
    qn_free(table);
    return all;
}

// What a prompt leaves in the cache is the beginning of what a longer one leaves; looking at it
// changes no logit.
static void keys_of_a_prefix_are_the_prefix_of_keys(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], NULL);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, engine_info(engine).n_vocab, 6);
        const qn_runner_opts opts = {
            .engine = engine, .context = 200, .rows = 200, .outs = 1, .segs = 1, .n_seqs = 2};
        qn_runner *runner;
        qn_seq *seqs[2];
        float *kept[2];
        size_t sizes[2];
        ASSERT_OK(qn_runner_create(&runner, &opts, &err));
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(qn_seq_open(&seqs[i], qn_runner_state(runner), &err));
            const qn_segment s = {.seq = seqs[i], .ids = ids, .rows = i ? 60 : 40, .outs = 1};
            ASSERT_OK(qn_runner_step(runner, &s, 1, &err));
            kept[i] = read_state(engine, runner, seqs[i], 40, &sizes[i]);
        }
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(kept[0], kept[1], sizes[0] * sizeof(float));
        const qn_segment more = {.seq = seqs[1], .ids = ids + 60, .rows = 1, .outs = 1};
        ASSERT_OK(qn_runner_step(runner, &more, 1, &err));
        qn_logits alone = QN_INIT(qn_logits);
        ASSERT_OK(qn_engine_logits(&alone, engine, ids, 61, NULL, &err));
        assert_memory_equal(qn_runner_row(runner, "logits", 0), alone.logits,
                            (size_t)alone.n_vocab * sizeof(float));
        qn_logits_deinit(&alone);
        for (int i = 0; i < 2; i++) {
            qn_free(kept[i]);
            qn_seq_close(seqs[i]);
        }
        qn_runner_destroy(runner);
        qn_engine_close(engine);
    }
}

// Drafted rows that are taken back leave no trace.
static void rolled_back_is_never_drafted(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], NULL);
        const int64_t vocab = engine_info(engine).n_vocab;
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, vocab, 5);
        qn_runner *runner;
        qn_seq *seq;
        const qn_runner_opts opts = {
            .engine = engine, .context = 256, .rows = 128, .outs = 8, .segs = 1, .n_seqs = 1};
        ASSERT_OK(qn_runner_create(&runner, &opts, &err));
        ASSERT_OK(qn_seq_open(&seq, qn_runner_state(runner), &err));
        qn_segment s = {.seq = seq, .ids = ids, .rows = 61};
        ASSERT_OK(qn_runner_step(runner, &s, 1, &err));
        for (int64_t kept = 0; kept <= 5; kept++) {
            const int64_t at = qn_seq_length(seq);
            s = (qn_segment){.seq = seq, .ids = ids + at, .rows = 5, .uncertain = 5};
            ASSERT_OK(qn_runner_step(runner, &s, 1, &err));
            assert_int_equal(qn_seq_truncate(seq, at + kept), at + kept);
            s = (qn_segment){.seq = seq, .ids = ids + at + kept, .rows = 1, .outs = 1};
            ASSERT_OK(qn_runner_step(runner, &s, 1, &err));
            qn_logits alone = QN_INIT(qn_logits);
            ASSERT_OK(qn_engine_logits(&alone, engine, ids, (size_t)(at + kept + 1), NULL, &err));
            if (memcmp(qn_runner_row(runner, "logits", 0), alone.logits,
                       (size_t)vocab * sizeof(float)) != 0)
                fail_msg("%s: %lld of 5 kept: logits differ", families[f], (long long)kept);
            qn_logits_deinit(&alone);
        }
        qn_seq_close(seq);
        qn_runner_destroy(runner);
        qn_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(last_rows_are_those_of_all),
        cmocka_unit_test(options_change_nothing),
        FOLDER_TEST(ahead_of_time_changes_nothing),
        cmocka_unit_test_teardown(levels_are_equal, clear_switches),
        cmocka_unit_test_teardown(fused_is_unfused, clear_switches),
        cmocka_unit_test(cached_is_naive),
        cmocka_unit_test(prefill_and_feed_give_fresh_logits),
        cmocka_unit_test(restored_is_never_left),
        cmocka_unit_test(the_end_of_a_prompt_can_be_changed),
        cmocka_unit_test(the_end_of_an_answer_can_be_changed),
        cmocka_unit_test(truncated_and_forked_is_fresh),
        cmocka_unit_test(reused_is_fresh),
        cmocka_unit_test(shared_and_marked_is_fresh),
        cmocka_unit_test(wrong_calls_name_what_is_missing),
        cmocka_unit_test(a_row_does_not_depend_on_its_company),
        cmocka_unit_test(steps_of_a_family_are_steps_alone),
        cmocka_unit_test(keys_of_a_prefix_are_the_prefix_of_keys),
        cmocka_unit_test(rolled_back_is_never_drafted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
