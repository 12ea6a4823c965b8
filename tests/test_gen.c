// The random generator and the choice of tokens.
#include "testing.h"

#include "gen/logits.h"
#include "gen/philox.h"
#include "gen/chooser.h"

#include <math.h>

static void philox_gives_the_published_numbers(void **state) {
    (void)state;
    // Known answers of the paper's own library.
    static const struct {
        qn_philox counter;
        uint64_t key;
        qn_philox want;
    } cases[] = {
        {{{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         0xffffffffffffffff,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         0x299f31d0a4093822,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const qn_philox got = qn_philox_block(cases[i].counter, cases[i].key);
        assert_memory_equal(&got, &cases[i].want, sizeof got);
    }
}

static void draws_are_uniform_and_depend_on_their_place_alone(void **state) {
    (void)state;
    double mean = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        const float u = qn_philox_uniform(7, i, 0, 0);
        assert_true(u >= 0 && u < 1);
        mean += (double)u / 100000;
    }
    assert_true(fabs(mean - 0.5) < 0.005);
    assert_true(qn_philox_uniform(7, 3, 0, 0) == qn_philox_uniform(7, 3, 0, 0));
    assert_true(qn_philox_uniform(7, 3, 0, 0) != qn_philox_uniform(8, 3, 0, 0));
    assert_true(qn_philox_uniform(7, 3, 0, 0) != qn_philox_uniform(7, 3, 1, 0));
    assert_true(qn_philox_uniform(7, 3, 0, 0) != qn_philox_uniform(7, 3, 0, 1));
}

// One choice with a sampler of its own.
static qn_status choose(int32_t *token, const float *logits, int64_t n, const qn_sample_opts *opts,
                        uint64_t position, qn_err *err) {
    qn_chooser *chooser;
    QN_TRY(qn_chooser_create(&chooser, NULL, n, err));
    const qn_chooser_in in = {.logits = logits, .position = position};
    qn_status status = qn_chooser_set(chooser, opts, err);
    if (!status) status = qn_chooser_choose(token, chooser, &in, err);
    qn_chooser_destroy(chooser);
    return status;
}

static void greedy_takes_the_lower_id_of_a_tie(void **state) {
    (void)state;
    qn_err err;
    const float logits[] = {1, 5, 5, -2};
    int32_t token = -1;
    assert_int_equal(qn_logits_best(logits, 4), 1);
    ASSERT_OK(choose(&token, logits, 4, &QN_INIT(qn_sample_opts), 0, &err));
    assert_int_equal(token, 1);
}

static void sampling_follows_the_probabilities(void **state) {
    (void)state;
    qn_err err;
    enum { N = 5, DRAWS = 100000 };
    const float logits[N] = {0.5f, 2, -1, 2, 0};
    static const float temperatures[] = {0.5f, 1, 3};
    for (int c = 0; c < 3; c++) {
        const qn_sample_opts opts =
            QN_INIT(qn_sample_opts, .temperature = temperatures[c], .seed = 42);
        double p[N], sum = 0;
        int count[N] = {0};
        for (int i = 0; i < N; i++) sum += p[i] = exp((double)logits[i] / opts.temperature);
        for (uint64_t position = 0; position < DRAWS; position++) {
            int32_t token = -1;
            ASSERT_OK(choose(&token, logits, N, &opts, position, &err));
            assert_in_range(token, 0, N - 1);
            count[token]++;
        }
        for (int i = 0; i < N; i++) { // within 4.5 standard deviations
            const double want = p[i] / sum;
            assert_true(fabs(count[i] / (double)DRAWS - want) <
                        4.5 * sqrt(want * (1 - want) / DRAWS) + 1e-9);
        }
    }
}

// One sure token and a tail of 2^18 that weighs as much as one draw in a thousand: what falls on
// the tail must spread over it, not pile up on its last entry.
static void a_long_tail_keeps_its_weight(void **state) {
    (void)state;
    qn_err err;
    enum { N = 1 << 18, DRAWS = 3000 };
    static float logits[N];
    for (int i = 0; i < N; i++) logits[i] = (float)(i % 19) * 0.1f;
    logits[5] = 20;
    int tail = 0, last = 0;
    for (uint64_t position = 0; position < DRAWS; position++) {
        const qn_sample_opts opts = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 1);
        if (qn_philox_uniform(1, position, 0, 0) < 0.998f) continue; // surely the first
        int32_t token = -1;
        ASSERT_OK(choose(&token, logits, N, &opts, position, &err));
        tail += token != 5;
        last += token > 5 && token % 19 == 0; // the least likely of all
    }
    print_message("%d draws in the tail, %d of its least likely kind\n", tail, last);
    assert_true(tail >= 1);
    assert_true(last <= tail / 2);
}

static void broken_logits_are_an_error_not_a_token(void **state) {
    (void)state;
    qn_err err;
    int32_t token = -1;
    const float nan_row[] = {1, NAN, 2}, inf_row[] = {1, 2, INFINITY}, flat[] = {3, 3, 3};
    const float good[] = {1, 2, 3};
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts),
                         cold = QN_INIT(qn_sample_opts, .temperature = -1),
                         odd = QN_INIT(qn_sample_opts, .temperature = NAN);
    ASSERT_FAILS(choose(&token, nan_row, 3, &greedy, 0, &err), QN_NUMERIC, "logit 1 of 3");
    ASSERT_FAILS(choose(&token, inf_row, 3, &greedy, 0, &err), QN_NUMERIC, "inf");
    ASSERT_FAILS(choose(&token, flat, 3, &greedy, 0, &err), QN_NUMERIC, "all 3 logits are 3");
    ASSERT_FAILS(choose(&token, good, 3, &cold, 0, &err), QN_ARGUMENT, "-1");
    ASSERT_FAILS(choose(&token, good, 3, &odd, 0, &err), QN_ARGUMENT, "nan");
    assert_int_equal(token, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(draws_are_uniform_and_depend_on_their_place_alone),
        cmocka_unit_test(greedy_takes_the_lower_id_of_a_tie),
        cmocka_unit_test(sampling_follows_the_probabilities),
        cmocka_unit_test(a_long_tail_keeps_its_weight),
        cmocka_unit_test(broken_logits_are_an_error_not_a_token),
    };
    return cmocka_run_group_tests_name("gen", tests, NULL, NULL);
}
