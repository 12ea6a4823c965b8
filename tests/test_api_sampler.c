// qn_sampler: choosing from given logits is what sessions and answers do, its state goes to bytes
// and back, and what a caller gives is checked.
#include "generate_rig.h"

#include <math.h>

enum { N_PROMPT = 12, N_NEW = 24, CONTEXT = 64 };

static const qn_sample_opts ways[] = {
    QN_INITIALIZER(qn_sample_opts, .temperature = 0),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1.2f, .seed = 3, .top_k = 20, .top_p = 0.9f),
    QN_INITIALIZER(qn_sample_opts, .temperature = 1, .seed = 4, .mirostat = 2, .mirostat_tau = 3),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 5, .repeat_penalty = 1.3f,
                   .frequency_penalty = 0.5f, .dry_multiplier = 1),
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static qn_sampler *create(const talk *t, const qn_sample_opts *opts) {
    qn_err err;
    qn_sampler *s = NULL;
    ASSERT_OK(qn_sampler_create(&s, qn_engine_tokenizer(t->engine), t->vocab, opts, &err));
    return s;
}

// The rest of an answer by feeding the session and choosing here.
static void go_on(int32_t *to, size_t n, talk *t, qn_sampler *s, const float *logits) {
    qn_err err;
    for (size_t i = 0; i < n; i++) {
        int32_t again;
        ASSERT_OK(qn_sampler_choose(&to[i], s, logits, (size_t)t->vocab, &err));
        ASSERT_OK(qn_sampler_choose(&again, s, logits, (size_t)t->vocab, &err));
        assert_int_equal(again, to[i]); // choosing remembers nothing
        ASSERT_OK(qn_sampler_accept(s, to[i], &err));
        ASSERT_OK(qn_session_feed(&logits, t->session, to[i], &err));
    }
}

static void a_sampler_chooses_what_an_answer_has(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[N_PROMPT];
    random_ids(ids, N_PROMPT, t.vocab, 1);
    for (size_t i = 0; i < N_WAYS; i++) {
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .sample = &ways[i], .max_tokens = N_NEW);
        qn_result want = answer(t.session, ids, N_PROMPT, &opts, NULL, NULL);
        const float *logits;
        int32_t got[N_NEW];
        qn_sampler *s = create(&t, &ways[i]);
        ASSERT_OK(qn_sampler_accept_prompt(s, ids, 5, &err));
        ASSERT_OK(qn_sampler_accept_prompt(s, ids + 5, N_PROMPT - 5, &err));
        ASSERT_OK(qn_session_prefill(&logits, t.session, ids, N_PROMPT, &err));
        go_on(got, N_NEW, &t, s, logits);
        assert_true(want.n_tokens > 8);
        assert_memory_equal(got, want.tokens, want.n_tokens * sizeof *got);
        qn_sampler_destroy(s);
        qn_result_deinit(&want);
    }
    close_talk(&t);
}

// Lists are copied: what the caller does to his own changes nothing until they are set again.
static void settings_are_compared_by_what_they_hold(void **state) {
    (void)state;
    enum { N = 16 };
    qn_err err;
    float logits[N] = {[3] = 2, [5] = 1};
    char word[] = "temperature";
    qn_bias biases[] = {{.token = 3, .bias = 0}};
    const qn_sample_opts opts =
        QN_INIT(qn_sample_opts, .biases = biases, .n_biases = 1, .order = word);
    qn_sampler *s = NULL;
    int32_t token;
    ASSERT_OK(qn_sampler_create(&s, NULL, N, &opts, &err));
    ASSERT_OK(qn_sampler_choose(&token, s, logits, N, &err));
    assert_int_equal(token, 3);
    biases[0].bias = -INFINITY;
    ASSERT_OK(qn_sampler_choose(&token, s, logits, N, &err));
    assert_int_equal(token, 3);
    ASSERT_OK(qn_sampler_set(s, &opts, &err));
    ASSERT_OK(qn_sampler_choose(&token, s, logits, N, &err));
    assert_int_equal(token, 5);
    word[0] = 'x';
    ASSERT_FAILS(qn_sampler_set(s, &opts, &err), QN_ARGUMENT, "xemperature");
    qn_sampler_destroy(s);
}

static void a_state_goes_on_from_its_bytes(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[N_PROMPT], first[8], want[8], got[8];
    random_ids(ids, N_PROMPT, t.vocab, 2);
    for (size_t i = 0; i < N_WAYS; i++) {
        const float *logits;
        void *data = NULL;
        size_t size = 0;
        qn_sampler *s = create(&t, &ways[i]), *other = create(&t, &ways[i]);
        ASSERT_OK(qn_sampler_accept_prompt(s, ids, N_PROMPT, &err));
        ASSERT_OK(qn_session_prefill(&logits, t.session, ids, N_PROMPT, &err));
        go_on(first, 8, &t, s, logits);
        ASSERT_OK(qn_sampler_save(&data, &size, s, &err));
        qn_session *fork;
        ASSERT_OK(qn_session_fork(&fork, t.session, &err));
        go_on(want, 8, &t, s, qn_session_logits(t.session));
        ASSERT_OK(qn_sampler_load(other, data, size, &err));
        talk f = t;
        f.session = fork;
        go_on(got, 8, &f, other, qn_session_logits(fork));
        assert_memory_equal(got, want, sizeof got);
        qn_session_destroy(fork);
        qn_sampler_destroy(s);
        qn_sampler_destroy(other);
        qn_free(data);
    }
    close_talk(&t);
}

static void damaged_states_are_refused_and_change_nothing(void **state) {
    (void)state;
    enum { V = 8 };
    qn_err err;
    qn_sampler *s, *other, *third, *larger;
    const float logits[V] = {0, 1, 2, 3, 4, 5, 6, 7};
    const qn_sample_opts opts = QN_INIT(qn_sample_opts, .repeat_penalty = 50);
    int32_t token;
    void *data;
    size_t size;
    ASSERT_OK(qn_sampler_create(&s, NULL, V, &opts, &err));
    ASSERT_OK(qn_sampler_create(&other, NULL, V, &opts, &err));
    ASSERT_OK(qn_sampler_create(&third, NULL, V, &opts, &err));
    ASSERT_OK(qn_sampler_create(&larger, NULL, V + 1, NULL, &err));
    ASSERT_OK(qn_sampler_accept(s, 7, &err));
    ASSERT_OK(qn_sampler_accept(other, 6, &err));
    ASSERT_OK(qn_sampler_save(&data, &size, s, &err));
    for (size_t n = 0; n < size; n++)
        ASSERT_FAILS(qn_sampler_load(other, data, n, &err), QN_FORMAT, "the state of a sampler");
    ASSERT_FAILS(qn_sampler_load(larger, data, size, &err), QN_FORMAT,
                 "for 8 logits, this one is for 9");
    for (size_t i = 0; i < 8 * size; i++) { // every bit: refused, or a state that can be used
        unsigned char *byte = (unsigned char *)data + i / 8;
        *byte ^= (unsigned char)(1 << i % 8);
        const qn_status status = qn_sampler_load(third, data, size, &err);
        *byte ^= (unsigned char)(1 << i % 8);
        if (status && status != QN_FORMAT) fail_msg("bit %zu: %s", i, err.message);
        if (i < 8 * 32) assert_true(status || i / 8 >= 24); // magic, vocabulary, number of tokens
        ASSERT_OK(qn_sampler_choose(&token, third, logits, V, &err));
    }
    memset((char *)data + size - 4, 0xff, 4);
    ASSERT_FAILS(qn_sampler_load(other, data, size, &err), QN_FORMAT, "token 0 is -1, want 0 to 7");
    ASSERT_OK(qn_sampler_choose(&token, other, logits, V, &err));
    assert_int_equal(token, 7); // 6 is still the token that is penalised
    qn_sampler_destroy(s);
    qn_sampler_destroy(other);
    qn_sampler_destroy(third);
    qn_sampler_destroy(larger);
    qn_free(data);
}

static void given_logits_may_exclude_tokens(void **state) {
    (void)state;
    enum { V = 6 };
    qn_err err;
    qn_sampler *s;
    const qn_sample_opts opts = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 1);
    const float one[V] = {-INFINITY, -INFINITY, -3, -INFINITY, -INFINITY, -INFINITY};
    const float none[V] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const float flat[V] = {0}, nan[V] = {0, 0, NAN}, inf[V] = {0, 0, 0, INFINITY};
    int32_t token = -7;
    ASSERT_OK(qn_sampler_create(&s, NULL, V, &opts, &err));
    ASSERT_OK(qn_sampler_choose(&token, s, one, V, &err));
    assert_int_equal(token, 2);
    ASSERT_OK(qn_sampler_choose(&token, s, flat, V, &err));
    assert_in_range(token, 0, V - 1);
    token = -7;
    ASSERT_FAILS(qn_sampler_choose(&token, s, none, V, &err), QN_ARGUMENT, "no token is left");
    ASSERT_FAILS(qn_sampler_choose(&token, s, nan, V, &err), QN_ARGUMENT, "logit 2 of 6 is nan");
    ASSERT_FAILS(qn_sampler_choose(&token, s, inf, V, &err), QN_ARGUMENT, "logit 3 of 6 is inf");
    ASSERT_FAILS(qn_sampler_choose(&token, s, flat, V - 1, &err), QN_ARGUMENT,
                 "5 logits, the sampler is for 6");
    assert_int_equal(token, -7);
    qn_sampler_destroy(s);
}

static void tokens_and_settings_are_checked(void **state) {
    (void)state;
    enum { V = 6 };
    qn_err err;
    qn_sampler *s = NULL;
    const qn_sample_opts wrong = QN_INIT(qn_sample_opts, .temperature = -1);
    const qn_sample_opts flags = QN_INIT(qn_sample_opts, .flags = 2);
    const float up[V] = {0, 1, 2, 3, 4, 5};
    const int32_t ids[] = {1, 9};
    int32_t token;
    ASSERT_FAILS(qn_sampler_create(&s, NULL, 0, NULL, &err), QN_ARGUMENT, "n_vocab 0");
    ASSERT_FAILS(qn_sampler_create(&s, NULL, -1, NULL, &err), QN_LIMIT, "-1 tokens");
    ASSERT_FAILS(qn_sampler_create(&s, NULL, V, &wrong, &err), QN_ARGUMENT, "temperature -1");
    ASSERT_FAILS(qn_sampler_create(&s, NULL, V, &flags, &err), QN_ARGUMENT, "flags 0x2");
    assert_null(s);
    ASSERT_OK(qn_sampler_create(&s, NULL, V, NULL, &err));
    ASSERT_FAILS(qn_sampler_accept(s, V, &err), QN_ARGUMENT, "id 6 (number 1)");
    ASSERT_FAILS(qn_sampler_accept(s, -1, &err), QN_ARGUMENT, "id -1 (number 1)");
    ASSERT_FAILS(qn_sampler_accept_prompt(s, ids, 2, &err), QN_ARGUMENT, "id 9 (number 2)");
    ASSERT_FAILS(qn_sampler_set(s, &wrong, &err), QN_ARGUMENT, "temperature -1");
    ASSERT_OK(qn_sampler_accept(s, 5, &err));
    ASSERT_FAILS(qn_sampler_accept_prompt(s, ids, 1, &err), QN_STATE, "after 1 of the answer");
    ASSERT_OK(qn_sampler_set(s, &QN_INIT(qn_sample_opts, .repeat_penalty = 10), &err));
    ASSERT_OK(qn_sampler_choose(&token, s, up, V, &err));
    assert_int_equal(token, 4);
    ASSERT_OK(qn_sampler_reset(s, &err));
    ASSERT_OK(qn_sampler_choose(&token, s, up, V, &err));
    assert_int_equal(token, 5);
    qn_sampler_destroy(s);
}

// 4 / 1.5 is above 2.5; 4 / 1.5 / 1.5 is not.
static void a_penalty_may_count_each_occurrence(void **state) {
    (void)state;
    enum { V = 3 };
    qn_err err;
    const float logits[V] = {4, 2.5f, 0};
    const int32_t twice[] = {0, 2, 0};
    for (int each = 0; each < 2; each++) {
        qn_sampler *s;
        int32_t token;
        const qn_sample_opts opts = QN_INIT(qn_sample_opts, .repeat_penalty = 1.5f,
                                            .flags = each ? QN_SAMPLE_REPEAT_EACH : 0);
        ASSERT_OK(qn_sampler_create(&s, NULL, V, &opts, &err));
        ASSERT_OK(qn_sampler_accept_prompt(s, twice, 3, &err));
        ASSERT_OK(qn_sampler_choose(&token, s, logits, V, &err));
        assert_int_equal(token, each);
        qn_sampler_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sampler_chooses_what_an_answer_has),
        cmocka_unit_test(settings_are_compared_by_what_they_hold),
        cmocka_unit_test(a_state_goes_on_from_its_bytes),
        cmocka_unit_test(damaged_states_are_refused_and_change_nothing),
        cmocka_unit_test(given_logits_may_exclude_tokens),
        cmocka_unit_test(tokens_and_settings_are_checked),
        cmocka_unit_test(a_penalty_may_count_each_occurrence),
    };
    return cmocka_run_group_tests_name("api_sampler", tests, NULL, NULL);
}
