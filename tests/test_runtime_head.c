// Choosing by the best logits alone: the same tokens as by whole rows, for every family, in every
// company.
#include "families.h"
#include "steps.h"

#include "session/generate_int.h"

#include <stdlib.h>

enum { N_PROMPT = 21, N_NEW = 20, CONTEXT = 128 };

static qn_session *open_session(const qn_engine *engine, bool all_logits, uint64_t seed) {
    qn_err err;
    qn_session *session = NULL;
    int32_t ids[N_PROMPT];
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = CONTEXT, .logits = all_logits);
    ASSERT_OK(qn_session_create(&session, engine, &opts, &err));
    random_ids(ids, N_PROMPT, engine_info(engine).n_vocab, seed);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
    return session;
}

static void assert_same_history(const qn_session *a, const qn_session *b, const char *what) {
    size_t n_a, n_b;
    const int32_t *x = qn_session_tokens(a, &n_a), *y = qn_session_tokens(b, &n_b);
    if (n_a != n_b || memcmp(x, y, n_a * sizeof *x) != 0) fail_msg("%s: tokens differ", what);
}

// Ways to choose: by the best logit, by some of the best, by all.
static const qn_sample_opts ways[] = {
    QN_INITIALIZER(qn_sample_opts, .temperature = 0),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1.3f, .top_k = 5, .seed = 3),
    QN_INITIALIZER(qn_sample_opts, .temperature = 2.0f, .top_k = 40, .seed = 9, .top_p = 0.95f),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .top_k = 1),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 4),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .top_k = 64, .seed = 5, .min_p = 0.01f),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .top_k = 65, .seed = 6),
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void whole_rows_change_no_token(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = family_open(families[f], NULL);
        for (int w = 0; w < N_WAYS; w++) {
            qn_err err;
            size_t n;
            qn_session *best = open_session(engine, false, 7),
                       *whole = open_session(engine, true, 7);
            ASSERT_OK(take_steps(&n, best, N_NEW, &ways[w], &err));
            ASSERT_OK(take_steps(&n, whole, N_NEW, &ways[w], &err));
            assert_same_history(best, whole, families[f]);
            assert_non_null(qn_session_logits(whole));
            const bool is_small =
                ways[w].temperature == 0 || (ways[w].top_k && ways[w].top_k <= 64);
            assert_int_equal(qn_session_logits(best) == NULL, is_small);
            qn_session_destroy(best);
            qn_session_destroy(whole);
        }
        qn_engine_close(engine);
    }
}

// Without the pass there are whole rows only.
static void the_pass_changes_no_token(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        size_t n;
        qn_engine *with = family_open(families[f], NULL);
        setenv("QN_SKIP", "fuse_head", 1);
        qn_engine *without = family_open(families[f], NULL);
        unsetenv("QN_SKIP");
        for (int w = 0; w < 2; w++) {
            qn_session *a = open_session(with, w, 7), *b = open_session(without, w, 7);
            ASSERT_OK(take_steps(&n, a, N_NEW, &ways[w], &err));
            ASSERT_OK(take_steps(&n, b, N_NEW, &ways[w], &err));
            assert_same_history(a, b, families[f]);
            assert_non_null(qn_session_logits(b));
            qn_session_destroy(a);
            qn_session_destroy(b);
        }
        qn_engine_close(with);
        qn_engine_close(without);
    }
}

// Forks that choose in all ways at once, and each alone.
static void company_changes_no_token(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], NULL);
        qn_session *forks[N_WAYS] = {open_session(engine, false, 7)};
        for (int w = 1; w < N_WAYS; w++) ASSERT_OK(qn_session_fork(&forks[w], forks[0], &err));
        qn_generation *gens[N_WAYS];
        for (int w = 0; w < N_WAYS; w++) {
            const qn_generate_opts opts =
                QN_INIT(qn_generate_opts, .sample = &ways[w], .max_tokens = N_NEW);
            ASSERT_OK(qn_generation_create(&gens[w], forks[w], &opts, &err));
        }
        for (int i = 0; i <= N_NEW; i++) ASSERT_OK(qn_generations_step(gens, N_WAYS, 0, &err));
        for (int w = 0; w < N_WAYS; w++) {
            size_t n;
            qn_session *alone = open_session(engine, true, 7);
            assert_int_not_equal(gens[w]->result.reason, QN_REASON_NONE);
            ASSERT_OK(take_steps(&n, alone, gens[w]->result.n_tokens, &ways[w], &err));
            assert_same_history(alone, forks[w], families[f]);
            qn_session_destroy(alone);
            qn_generation_destroy(gens[w]);
        }
        for (int w = 0; w < N_WAYS; w++) qn_session_destroy(forks[w]);
        qn_engine_close(engine);
    }
}

// Going back, forking and putting back between choices of other kinds.
static void logits_belong_to_their_history(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], NULL);
        qn_session *s[2] = {open_session(engine, false, 11), open_session(engine, true, 11)};
        qn_session *forks[2];
        for (int i = 0; i < 2; i++) {
            int32_t token;
            size_t n, n_tokens;
            const float *logits;
            qn_snapshot *snapshot;
            ASSERT_OK(take_steps(&n, s[i], 3, &ways[0], &err));
            ASSERT_OK(qn_session_checkpoint(&snapshot, s[i], &err));
            qn_session_tokens(s[i], &n_tokens);
            ASSERT_OK(qn_session_truncate(s[i], n_tokens - 1, &err));
            ASSERT_OK(qn_session_step(&token, s[i], &ways[4], &err));
            ASSERT_OK(qn_session_fork(&forks[i], s[i], &err));
            ASSERT_OK(qn_session_step(&token, forks[i], &ways[1], &err));
            ASSERT_OK(qn_session_restore(s[i], snapshot, &err));
            ASSERT_OK(qn_session_step(&token, s[i], &ways[4], &err));
            ASSERT_OK(qn_session_commit(s[i], (int32_t[]){3, 4}, 2, &err));
            ASSERT_OK(qn_session_step(&token, s[i], &ways[0], &err));
            ASSERT_OK(qn_session_prefill(&logits, s[i], (int32_t[]){5, 6, 7}, 3, &err));
            assert_ptr_equal(logits, qn_session_logits(s[i]));
            ASSERT_OK(qn_session_step(&token, s[i], &ways[0], &err));
            assert_non_null(qn_session_logits(s[i])); // those of the prefill
            ASSERT_OK(qn_session_step(&token, s[i], &ways[0], &err));
            assert_int_equal(qn_session_logits(s[i]) != NULL, i);
            qn_snapshot_destroy(snapshot);
        }
        assert_same_history(s[0], s[1], families[f]);
        assert_same_history(forks[0], forks[1], families[f]);
        for (int i = 0; i < 2; i++) {
            qn_session_destroy(forks[i]);
            qn_session_destroy(s[i]);
        }
        qn_engine_close(engine);
    }
}

// --- steps of the runner -------------------------------------------------------------------------

// What qn_runner_find_top must give, from a row that was wanted whole.
static void check_top(const qn_runner_top *got, const float *row, int64_t n_vocab, int64_t top) {
    assert_true(got->n >= (top < n_vocab ? top : n_vocab));
    assert_int_equal(got->broken, -1);
    float min = row[0];
    for (int64_t i = 1; i < n_vocab; i++) min = row[i] < min ? row[i] : min;
    assert_true(got->min == min);
    for (int64_t k = 0; k < top; k++) {
        const int64_t id = (int64_t)got->ids[k];
        assert_true(got->logits[k] == row[id]);
        int64_t before = 0;
        for (int64_t i = 0; i < n_vocab; i++)
            before += row[i] > row[id] || (row[i] == row[id] && i < id);
        assert_int_equal(before, k);
    }
}

// Segments with several wanted rows, as speculative decoding has them, each with a wish of its own.
static void steps_mix_all_and_top_logits(void **state) {
    (void)state;
    enum { SEGS = 4, ROWS = 9 };
    static const int64_t tops[SEGS] = {1, 0, 40, QN_HEAD_TOP}, outs[SEGS] = {4, 3, 9, 1};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], NULL);
        const int64_t vocab = engine_info(engine).n_vocab;
        const qn_runner_opts opts = {.engine = engine,
                                     .context = 64,
                                     .rows = SEGS * ROWS,
                                     .outs = SEGS * ROWS,
                                     .segs = SEGS,
                                     .n_seqs = SEGS};
        qn_runner *runner;
        ASSERT_OK(qn_runner_create(&runner, &opts, &err));
        qn_segment segments[SEGS];
        int32_t ids[SEGS][ROWS];
        for (int b = 0; b < SEGS; b++) {
            random_ids(ids[b], ROWS, vocab, 20 + (uint64_t)b);
            segments[b] = (qn_segment){
                .ids = ids[b], .rows = ROWS, .uncertain = 3, .outs = outs[b], .top = tops[b]};
            ASSERT_OK(qn_seq_open(&segments[b].seq, qn_runner_state(runner), &err));
        }
        ASSERT_OK(qn_runner_step(runner, segments, SEGS, &err));
        for (int b = 0, row = 0; b < SEGS; row += (int)outs[b++]) {
            qn_logits alone = QN_INIT(qn_logits);
            ASSERT_OK(qn_engine_logits(&alone, engine, ids[b], ROWS,
                                       &QN_INIT(qn_logits_opts, .all_rows = true), &err));
            for (int64_t k = 0; k < outs[b]; k++) {
                const float *want = alone.logits + (ROWS - outs[b] + k) * vocab;
                qn_runner_top top;
                assert_true(qn_runner_find_top(&top, runner, row + k));
                check_top(&top, want, vocab, tops[b] ? tops[b] : 1);
                if (tops[b] == 0)
                    assert_memory_equal(qn_runner_row(runner, "logits", row + k), want,
                                        (size_t)vocab * sizeof *want);
            }
            qn_logits_deinit(&alone);
        }
        segments[0].top = QN_HEAD_TOP + 1;
        ASSERT_FAILS(qn_runner_step(runner, segments, 1, &err), QN_ARGUMENT, "65 best");
        for (int b = 0; b < SEGS; b++) qn_seq_close(segments[b].seq);
        qn_runner_destroy(runner);
        qn_engine_close(engine);
    }
}

int main(void) {
    unsetenv("QN_SKIP");
    unsetenv("QN_REF");
    unsetenv("QN_LAYERS");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_rows_change_no_token),
        cmocka_unit_test(the_pass_changes_no_token),
        cmocka_unit_test(company_changes_no_token),
        cmocka_unit_test(logits_belong_to_their_history),
        cmocka_unit_test(steps_mix_all_and_top_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
