// What callers may do inside an answer: change logits before each choice, draft, see end tokens;
// and logits after each of several tokens in one step.
#include "generate_rig.h"

#include <math.h>

enum { N_PROMPT = 12, N_NEW = 24, CONTEXT = 96 };

static const char *const some[] = {"qwen3", "gemma3", "qwen35"}; // full, windows, recurrent
enum { N_SOME = sizeof some / sizeof *some };

static const qn_sample_opts sampled =
    QN_INITIALIZER(qn_sample_opts, .temperature = 1, .seed = 9, .top_k = 30);

// --- logits before choosing ----------------------------------------------------------------------

typedef struct seen {
    int64_t n_vocab;
    size_t n_calls, n_prompt;
    size_t lengths[256];
    int32_t ban; // token that is never chosen; -1: none
    size_t stop_after;
    float write; // to logit 0; 0: nothing
} seen;

static bool see(void *arg, const qn_next_logits *next) {
    seen *s = arg;
    assert_int_equal(next->size, sizeof *next);
    assert_int_equal(next->n_vocab, s->n_vocab);
    assert_true(s->n_calls < 256);
    s->lengths[s->n_calls++] = next->n_tokens;
    s->n_prompt = next->n_prompt;
    if (s->ban >= 0) next->logits[s->ban] = -INFINITY;
    if (s->write != 0) next->logits[0] = s->write;
    return !s->stop_after || s->n_calls < s->stop_after;
}

static qn_result ask(talk *t, const int32_t *ids, const qn_sample_opts *sample, seen *s,
                     const qn_generate_opts *more) {
    qn_generate_opts opts = more ? *more : QN_INIT(qn_generate_opts);
    opts.sample = sample;
    opts.max_tokens = N_NEW;
    opts.ignore_end = true;
    if (s) {
        opts.logits_fn = see;
        opts.logits_arg = s;
    }
    return answer(t->session, ids, N_PROMPT, &opts, NULL, NULL);
}

static void a_hook_that_changes_nothing_changes_nothing(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SOME; f++) {
        talk t = open_talk(some[f], CONTEXT);
        int32_t ids[N_PROMPT];
        random_ids(ids, N_PROMPT, t.vocab, 1);
        for (int way = 0; way < 2; way++) {
            seen s = {.n_vocab = t.vocab, .ban = -1};
            qn_result want = ask(&t, ids, way ? &sampled : NULL, NULL, NULL);
            qn_result got = ask(&t, ids, way ? &sampled : NULL, &s, NULL);
            assert_same_answer(&got, &want, some[f]);
            assert_int_equal(s.n_calls, N_NEW);
            assert_int_equal(s.n_prompt, N_PROMPT);
            for (size_t i = 0; i < N_NEW; i++) assert_int_equal(s.lengths[i], N_PROMPT + i);
            qn_result_deinit(&want);
            qn_result_deinit(&got);
        }
        close_talk(&t);
    }
}

// -inf excludes a token, as a bias does.
static void a_hook_excludes_tokens(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    int32_t ids[N_PROMPT];
    random_ids(ids, N_PROMPT, t.vocab, 2);
    qn_result plain = ask(&t, ids, NULL, NULL, NULL);
    seen s = {.n_vocab = t.vocab, .ban = plain.tokens[3]};
    const qn_bias bias = {s.ban, -INFINITY};
    const qn_sample_opts biased = QN_INIT(qn_sample_opts, .biases = &bias, .n_biases = 1);
    qn_result want = ask(&t, ids, &biased, NULL, NULL);
    qn_result got = ask(&t, ids, NULL, &s, NULL);
    assert_same_answer(&got, &want, "-inf");
    assert_int_not_equal(got.tokens[3], plain.tokens[3]);
    qn_result_deinit(&plain);
    qn_result_deinit(&want);
    qn_result_deinit(&got);
    close_talk(&t);
}

static void a_hook_ends_an_answer_and_what_it_writes_is_checked(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[N_PROMPT];
    random_ids(ids, N_PROMPT, t.vocab, 3);
    seen s = {.n_vocab = t.vocab, .ban = -1, .stop_after = 5};
    qn_result got = ask(&t, ids, NULL, &s, NULL);
    assert_int_equal(got.reason, QN_REASON_CALLER);
    assert_int_equal(got.n_tokens, 4);
    qn_result_deinit(&got);
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        s = (seen){.n_vocab = t.vocab, .ban = -1, .write = bad[i]};
        const qn_generate_opts opts = QN_INIT(qn_generate_opts, .logits_fn = see, .logits_arg = &s);
        ASSERT_OK(qn_session_set_prompt(t.session, ids, N_PROMPT, &err));
        ASSERT_FAILS(qn_generate(NULL, t.session, &opts, NULL, NULL, &err), QN_ARGUMENT,
                     i ? "logit 0 of 512 is inf" : "logit 0 of 512 is nan");
    }
    const qn_generate_opts flags = QN_INIT(qn_generate_opts, .flags = 8);
    ASSERT_OK(qn_session_set_prompt(t.session, ids, N_PROMPT, &err));
    ASSERT_FAILS(qn_generate(NULL, t.session, &flags, NULL, NULL, &err), QN_ARGUMENT, "flags 0x8");
    close_talk(&t);
}

// --- drafts --------------------------------------------------------------------------------------

typedef struct oracle {
    const qn_result *known;
    size_t n_calls;
    int32_t n_wrong; // the draft is wrong from there on
    int32_t wrong_id;
    int32_t says; // returned instead of the number; 0: the number
} oracle;

static int32_t draft(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    oracle *o = arg;
    const size_t at = n - N_PROMPT;
    int32_t k = 0;
    (void)tokens;
    o->n_calls++;
    assert_in_range(max, 1, QN_MAX_DRAFT);
    for (; k < max && at + (size_t)k < o->known->n_tokens; k++)
        to[k] = k < o->n_wrong ? o->known->tokens[at + (size_t)k] : o->wrong_id;
    return o->says ? o->says : k;
}

static void drafts_of_a_callback_change_no_token(void **state) {
    (void)state;
    for (size_t f = 0; f < N_SOME; f++) {
        talk t = open_talk(some[f], CONTEXT);
        int32_t ids[N_PROMPT];
        random_ids(ids, N_PROMPT, t.vocab, 4);
        for (int way = 0; way < 2; way++) {
            const qn_sample_opts *sample = way ? &sampled : NULL;
            qn_result want = ask(&t, ids, sample, NULL, NULL);
            const oracle cases[] = {{&want, 0, 99, 0, 0},
                                    {&want, 0, 2, 0, 0},
                                    {&want, 0, 0, -1, 0},
                                    {&want, 0, 1, 1 << 30, 0},
                                    {&want, 0, 99, 0, -3}};
            for (size_t i = 0; i < 5; i++) {
                oracle o = cases[i];
                seen s = {.n_vocab = t.vocab, .ban = -1};
                const qn_generate_opts opts =
                    QN_INIT(qn_generate_opts, .draft_fn = draft, .draft_arg = &o, .draft_min = 4);
                // With a hook too: it sees the same rows in the same order.
                qn_result got = ask(&t, ids, sample, i % 2 ? &s : NULL, &opts);
                assert_same_answer(&got, &want, some[f]);
                assert_true(o.n_calls > 0);
                if (i == 0) assert_true(got.n_accepted >= 16 && got.n_accepted == got.n_drafted);
                if (i == 2 || i == 4) assert_int_equal(got.n_drafted, 0);
                for (size_t k = 0; i % 2 && k < N_NEW; k++)
                    assert_int_equal(s.lengths[k], N_PROMPT + k);
                qn_result_deinit(&got);
            }
            qn_result_deinit(&want);
        }
        close_talk(&t);
    }
}

// Hooks and drafts of the rows of a batch are each row's own.
static void rows_of_a_batch_have_hooks_of_their_own(void **state) {
    (void)state;
    enum { ROWS = 3 };
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[ROWS][N_PROMPT];
    seen s[ROWS];
    qn_result want[ROWS], got[ROWS];
    qn_generate_opts opts[ROWS];
    qn_row_opts rows[ROWS];
    qn_prompt prompts[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        random_ids(ids[i], N_PROMPT, t.vocab, 10 + i);
        s[i] = (seen){.n_vocab = t.vocab, .ban = -1};
        qn_result plain = ask(&t, ids[i], NULL, NULL, NULL);
        s[i].ban = plain.tokens[i];
        qn_result_deinit(&plain);
        want[i] = ask(&t, ids[i], NULL, &s[i], NULL);
        s[i].n_calls = 0;
        opts[i] = QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .ignore_end = true,
                          .logits_fn = see, .logits_arg = &s[i]);
        rows[i] = QN_INIT(qn_row_opts, .generate = &opts[i]);
        prompts[i] = (qn_prompt){ids[i], N_PROMPT, &rows[i]};
        got[i] = QN_INIT(qn_result);
    }
    ASSERT_OK(qn_generate_batch(got, ROWS, t.session, prompts, ROWS, NULL, NULL, &err));
    for (size_t i = 0; i < ROWS; i++) {
        assert_same_answer(&got[i], &want[i], "row");
        assert_int_equal(s[i].n_calls, N_NEW);
        qn_result_deinit(&got[i]);
        qn_result_deinit(&want[i]);
    }
    close_talk(&t);
}

// --- end tokens ----------------------------------------------------------------------------------

// A stop token is shown as the last of the answer.
static void end_tokens_are_shown_if_asked(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    int32_t ids[N_PROMPT];
    size_t n;
    random_ids(ids, N_PROMPT, t.vocab, 5);
    qn_result plain = ask(&t, ids, NULL, NULL, NULL);
    const int32_t stop = plain.tokens[9];
    size_t first = 0;
    while (plain.tokens[first] != stop) first++;
    for (int shows = 0; shows < 2; shows++) {
        heard h = {0};
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .stop_tokens = &stop, .n_stop_tokens = 1,
                    .logprobs = true, .flags = shows ? QN_GENERATE_SHOW_END : 0);
        qn_result got = answer(t.session, ids, N_PROMPT, &opts, hear, &h);
        assert_int_equal(got.reason, QN_REASON_STOP);
        assert_int_equal(got.stop_token, stop);
        assert_int_equal(got.n_tokens, first + (size_t)shows);
        assert_int_equal(h.n, got.n_tokens);
        assert_int_equal(h.size, got.text_size);
        assert_memory_equal(h.text, got.text, h.size);
        (void)qn_session_tokens(t.session, &n);
        assert_int_equal(n, N_PROMPT + got.n_tokens);
        if (shows) {
            char *text;
            qn_err err;
            assert_int_equal(got.tokens[first], stop);
            assert_true(h.logprobs[first] < 0);
            ASSERT_OK(qn_detokenize(&text, &n, qn_engine_tokenizer(t.engine), plain.tokens,
                                    first + 1, NULL, &err));
            assert_int_equal(got.text_size, n); // once
            assert_memory_equal(got.text, text, n);
            qn_free(text);
        }
        qn_result_deinit(&got);
    }
    qn_result_deinit(&plain);
    close_talk(&t);
}

// --- logits after each of several tokens ---------------------------------------------------------

static void many_tokens_at_once_give_the_logits_of_each(void **state) {
    (void)state;
    enum { N = 40, BACK = 30 }; // more than one step; all of the last but two
    for (size_t f = 0; f < N_SOME; f++) {
        talk t = open_talk(some[f], CONTEXT);
        qn_err err;
        int32_t ids[N_PROMPT + N];
        const float *row;
        qn_logits all = QN_INIT(qn_logits);
        random_ids(ids, N_PROMPT + N, t.vocab, 6);
        const size_t bytes = (size_t)t.vocab * sizeof(float);
        ASSERT_OK(qn_session_prefill(&row, t.session, ids, N_PROMPT, &err));
        ASSERT_OK(qn_session_feed_all(&all, t.session, ids + N_PROMPT, N, &err));
        assert_int_equal(all.n_rows, N);
        assert_int_equal(all.n_vocab, t.vocab);
        assert_memory_equal(qn_session_logits(t.session), all.logits + (N - 1) * t.vocab, bytes);
        qn_session *other = open_session(t.engine, CONTEXT);
        ASSERT_OK(qn_session_prefill(&row, other, ids, N_PROMPT, &err));
        for (size_t i = 0; i < N; i++) {
            ASSERT_OK(qn_session_feed(&row, other, ids[N_PROMPT + i], &err));
            assert_memory_equal(row, all.logits + (int64_t)i * t.vocab, bytes);
        }
        // Back to one of the last tokens: nothing before it is computed again.
        const size_t keep = N_PROMPT + N - BACK;
        const int64_t rows = session_counts(t.session).rows;
        ASSERT_OK(qn_session_truncate(t.session, keep, &err));
        assert_int_equal(qn_session_cached(t.session), keep);
        ASSERT_OK(qn_session_feed(&row, t.session, ids[keep], &err));
        assert_int_equal(session_counts(t.session).rows, rows + 1);
        assert_memory_equal(row, all.logits + (N - BACK) * t.vocab, bytes);
        qn_logits_deinit(&all);
        qn_session_destroy(other);
        close_talk(&t);
    }
}

static void feeding_many_is_checked_and_rolled_back(void **state) {
    (void)state;
    talk t = open_talk("qwen3", 32);
    qn_err err;
    int32_t ids[40];
    const float *row;
    qn_logits all = QN_INIT(qn_logits);
    random_ids(ids, 40, t.vocab, 7);
    ASSERT_FAILS(qn_session_feed_all(&all, t.session, ids, 2, &err), QN_STATE, "0 of 0 tokens");
    ASSERT_OK(qn_session_prefill(&row, t.session, ids, 10, &err));
    ASSERT_FAILS(qn_session_feed_all(&all, t.session, ids, 23, &err), QN_LIMIT,
                 "the context of 32 tokens is full: 10 are there, 23 more");
    ASSERT_FAILS(qn_session_feed_all(&all, t.session, ids, 0, &err), QN_ARGUMENT, "no token ids");
    ids[3] = -1;
    ASSERT_FAILS(qn_session_feed_all(&all, t.session, ids, 5, &err), QN_ARGUMENT,
                 "id -1 (number 4)");
    assert_null(all.logits);
    assert_int_equal(qn_session_cached(t.session), 10);
    ASSERT_OK(qn_session_feed(&row, t.session, 1, &err));
    close_talk(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hook_that_changes_nothing_changes_nothing),
        cmocka_unit_test(a_hook_excludes_tokens),
        cmocka_unit_test(a_hook_ends_an_answer_and_what_it_writes_is_checked),
        cmocka_unit_test(drafts_of_a_callback_change_no_token),
        cmocka_unit_test(rows_of_a_batch_have_hooks_of_their_own),
        cmocka_unit_test(end_tokens_are_shown_if_asked),
        cmocka_unit_test(many_tokens_at_once_give_the_logits_of_each),
        cmocka_unit_test(feeding_many_is_checked_and_rolled_back),
    };
    return cmocka_run_group_tests_name("api_hooks", tests, NULL, NULL);
}
