// The options of sampling: from words of a command line to what the library is asked for.
#include "testing.h"

#include "cli/args.h"
#include "cli/sampling.h"

#include <math.h>

typedef struct options {
    qn_sampling_args sampling;
} options;

static const qn_sample_opts none =
    QN_INITIALIZER(qn_sample_opts); // a model without settings of its own

static const qn_option table[] = {QN_OPTIONS_SAMPLING(options)};

static qn_status check(const qn_call *call, qn_err *err) {
    return qn_sampling_args_check(&((const options *)call->options)->sampling, err);
}

static const qn_command command = {.name = "test",
                                   .args = "",
                                   .options = table,
                                   .n_options = sizeof table / sizeof *table,
                                   .options_size = sizeof(options),
                                   .check = check};

// Words end with NULL.
static qn_status parse(qn_call *call, const char *const *words, qn_err *err) {
    char *typed[64] = {NULL};
    size_t n = 0;
    bool wants_help;
    for (; words[n]; n++) typed[n] = (char *)(uintptr_t)words[n];
    QN_TRY(qn_call_parse(call, &wants_help, &command, typed, n, err));
    const qn_status status = qn_call_check(call, &command, err);
    if (status) qn_call_deinit(call, &command);
    return status;
}

static void nothing_typed_is_greedy(void **state) {
    (void)state;
    qn_err err;
    qn_call call;
    qn_sampling got = {0};
    ASSERT_OK(parse(&call, (const char *const[]){NULL}, &err));
    ASSERT_OK(qn_sampling_init(&got, &((options *)call.options)->sampling, &none, &err));
    assert_true(got.opts.temperature == 0 && got.opts.seed == 0 && got.opts.top_k == 0);
    assert_true(got.opts.n_bans == 0 && !got.opts.dry_breakers && !got.opts.order);
    qn_sampling_deinit(&got);
    qn_call_deinit(&call, &command);
}

static void what_is_typed_reaches_the_library(void **state) {
    (void)state;
    const char *const words[] = {"--temp",
                                 "0.7",
                                 "--seed",
                                 "18446744073709551615",
                                 "--top-k",
                                 "40",
                                 "--top-p=0.9",
                                 "--min-p",
                                 "0.05",
                                 "--typical",
                                 "0.8",
                                 "--top-nsigma",
                                 "1.5",
                                 "--xtc-probability",
                                 "0.5",
                                 "--xtc-threshold",
                                 "0.2",
                                 "--dynatemp-range",
                                 "0.3",
                                 "--dynatemp-exp",
                                 "2",
                                 "--repeat-penalty",
                                 "1.1",
                                 "--repeat-last-n",
                                 "-1",
                                 "--frequency-penalty",
                                 "-0.5",
                                 "--presence-penalty",
                                 "0.25",
                                 "--mirostat",
                                 "2",
                                 "--logit-bias",
                                 "15+2.5",
                                 "--logit-bias",
                                 "7-inf",
                                 "--ban",
                                 "no",
                                 "--ban",
                                 "never",
                                 "--samplers",
                                 "top_k;temperature",
                                 NULL};
    qn_err err;
    qn_call call;
    qn_sampling got = {0};
    ASSERT_OK(parse(&call, words, &err));
    ASSERT_OK(qn_sampling_init(&got, &((options *)call.options)->sampling, &none, &err));
    const qn_sample_opts *o = &got.opts;
    assert_true(o->temperature == 0.7f && o->seed == UINT64_MAX && o->top_k == 40);
    assert_true(o->top_p == 0.9f && o->min_p == 0.05f && o->typical_p == 0.8f);
    assert_true(o->top_n_sigma == 1.5f && o->xtc_probability == 0.5f && o->xtc_threshold == 0.2f);
    assert_true(o->dynatemp_range == 0.3f && o->dynatemp_exponent == 2);
    assert_true(o->repeat_penalty == 1.1f && o->repeat_last_n == -1);
    assert_true(o->frequency_penalty == -0.5f && o->presence_penalty == 0.25f && o->mirostat == 2);
    assert_int_equal(o->n_biases, 2);
    assert_true(o->biases[0].token == 15 && o->biases[0].bias == 2.5f);
    assert_true(o->biases[1].token == 7 && o->biases[1].bias == -INFINITY);
    assert_int_equal(o->n_bans, 2);
    assert_string_equal(o->bans[1], "never");
    assert_string_equal(o->order, "top_k;temperature");
    qn_sampling_deinit(&got);
    qn_call_deinit(&call, &command);
}

static qn_sample_opts with_model(const char *const *words) {
    const qn_sample_opts defaults = QN_INIT(
        qn_sample_opts, .temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1.1f,
        .repeat_last_n = QN_LAST_N_ALL, .order = "top_k;temperature");
    qn_err err;
    qn_call call;
    qn_sampling got = {0};
    ASSERT_OK(parse(&call, words, &err));
    ASSERT_OK(qn_sampling_init(&got, &((options *)call.options)->sampling, &defaults, &err));
    const qn_sample_opts opts = got.opts;
    qn_sampling_deinit(&got);
    qn_call_deinit(&call, &command);
    return opts;
}

static void what_is_typed_stands_above_the_models_settings(void **state) {
    (void)state;
    qn_sample_opts o = with_model((const char *const[]){NULL});
    assert_true(o.temperature == 0.6f && o.top_k == 20 && o.top_p == 0.95f);
    assert_true(o.repeat_penalty == 1.1f && o.repeat_last_n == -1);
    assert_string_equal(o.order, "top_k;temperature");
    o = with_model((const char *const[]){"--temp", "0", "--top-k", "0", NULL});
    assert_true(o.temperature == 0 && o.top_k == 0 && o.top_p == 0.95f);
    o = with_model((const char *const[]){"--temp", "1.5", "--top-p=1", "--repeat-penalty", "1",
                                         "--repeat-last-n", "7", "--samplers", "top_p", NULL});
    assert_true(o.temperature == 1.5f && o.top_k == 20 && o.top_p == 1);
    assert_true(o.repeat_penalty == 1 && o.repeat_last_n == 7);
    assert_string_equal(o.order, "top_p");
    o = with_model((const char *const[]){"--greedy", NULL});
    assert_true(o.temperature == 0 && o.top_k == 0 && o.top_p == 0 && o.repeat_penalty == 0);
    assert_true(o.repeat_last_n == 0 && !o.order);
    o = with_model((const char *const[]){"--greedy", "--repeat-penalty", "1.3", NULL});
    assert_true(o.temperature == 0 && o.repeat_penalty == 1.3f && o.top_k == 0);
}

static void settings_of_a_model_are_shown_as_they_are_typed(void **state) {
    (void)state;
    const qn_sample_opts defaults = QN_INIT(qn_sample_opts, .temperature = 0.6f, .top_k = 20,
                                            .repeat_last_n = QN_LAST_N_ALL, .order = "top_k");
    assert_string_equal(qn_sampling_find_default(&defaults, "--temp").value, "0.6");
    assert_string_equal(qn_sampling_find_default(&defaults, "--top-k").value, "20");
    assert_string_equal(qn_sampling_find_default(&defaults, "--repeat-last-n").value, "-1");
    assert_string_equal(qn_sampling_find_default(&defaults, "--samplers").value, "top_k");
    assert_string_equal(qn_sampling_find_default(&defaults, "--min-p").value, "");
    assert_string_equal(qn_sampling_find_default(&defaults, "--seed").value, "");
}

static void zeros_that_turn_off_do(void **state) {
    (void)state;
    const char *const words[] = {"--repeat-penalty",
                                 "1.5",
                                 "--repeat-last-n",
                                 "0",
                                 "--dry-multiplier",
                                 "1",
                                 "--dry-penalty-last-n",
                                 "0",
                                 "--dry-sequence-breaker",
                                 "none",
                                 "--top-nsigma",
                                 "-1",
                                 "--seed",
                                 "-1",
                                 NULL};
    qn_err err;
    qn_call call;
    qn_sampling got = {0};
    ASSERT_OK(parse(&call, words, &err));
    ASSERT_OK(qn_sampling_init(&got, &((options *)call.options)->sampling, &none, &err));
    assert_int_equal(got.opts.repeat_last_n, QN_LAST_N_NONE);
    assert_int_equal(got.opts.dry_last_n, QN_LAST_N_NONE);
    assert_true(got.opts.dry_breakers && got.opts.n_dry_breakers == 0);
    assert_true(got.opts.top_n_sigma == 0 && got.is_random_seed);
    qn_sampling_deinit(&got);
    qn_call_deinit(&call, &command);
}

static void wrong_values_are_named(void **state) {
    (void)state;
    static const struct {
        const char *words[3], *want;
    } cases[] = {
        {{"--temp", "-1"}, "--temp: '-1', want a number from 0 to 100"},
        {{"--top-k", "-3"}, "--top-k: '-3'"},
        {{"--top-p", "1.5"}, "--top-p: '1.5', want a number from 0 to 1"},
        {{"--top-p", "nan"}, "--top-p: 'nan'"},
        {{"--repeat-last-n", "-3"}, "--repeat-last-n: '-3', want a whole number from -2"},
        {{"--repeat-last-n", "9999999999"}, "--repeat-last-n: '9999999999'"},
        {{"--dry-penalty-last-n", "x"}, "--dry-penalty-last-n: 'x'"},
        {{"--dry-base", "0.5"}, "--dry-base: '0.5', want a number from 1"},
        {{"--mirostat", "1"}, "--mirostat: '1', want 0 (off) or 2"},
        {{"--seed", "-2"}, "--seed: '-2'"},
        {{"--seed", "18446744073709551616"}, "--seed: '18446744073709551616'"},
        {{"--seed", ""}, "--seed: ''"},
        {{"--logit-bias", "12"}, "--logit-bias: '12'"},
        {{"--logit-bias", "+5"}, "--logit-bias: '+5'"},
        {{"--logit-bias", "12+"}, "--logit-bias: '12+'"},
        {{"--logit-bias", "12+inf"}, "--logit-bias: '12+inf'"},
        {{"--logit-bias", "12+2000"}, "--logit-bias: '12+2000'"},
        {{"--logit-bias", "99999999999+1"}, "--logit-bias: '99999999999+1'"},
        {{"--ban", ""}, "--ban: the text is empty"},
        {{"--dry-sequence-breaker", ""}, "--dry-sequence-breaker: the text is empty"},
        {{"--samplers", "top_k;typo"}, "--samplers: no sampler 'typo'"},
        {{"--samplers", ""}, "no sampler ''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err;
        qn_call call;
        ASSERT_FAILS(parse(&call, cases[i].words, &err), QN_ARGUMENT, cases[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_typed_is_greedy),
        cmocka_unit_test(what_is_typed_reaches_the_library),
        cmocka_unit_test(what_is_typed_stands_above_the_models_settings),
        cmocka_unit_test(settings_of_a_model_are_shown_as_they_are_typed),
        cmocka_unit_test(zeros_that_turn_off_do),
        cmocka_unit_test(wrong_values_are_named),
    };
    return cmocka_run_group_tests_name("cli_sampling", tests, NULL, NULL);
}
