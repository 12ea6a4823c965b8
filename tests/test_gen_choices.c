// Selection from rows of the size of real vocabularies, with many ties, against full sorts; and
// log-probabilities.
#include "testing.h"

#include "gen/choices.h"
#include "gen/logits.h"
#include "gen/logprobs.h"
#include "gen/philox.h"
#include "gen/chooser.h"
#include "gen/weight.h"

#include <math.h>
#include <stdlib.h>

enum { LARGE = 151936 };

static float row[LARGE];
static int32_t sorted[LARGE]; // ids by descending logit, then id

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static double next_real(uint64_t *state) { return (double)next_random(state) / 0x1p31; }

// Kinds of rows that selection may find hard.
static float make_flat(int64_t i, uint64_t *state) {
    (void)i;
    return (float)(next_real(state) * 20);
}
static float make_bell(int64_t i, uint64_t *state) {
    (void)i;
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += next_real(state);
    return (float)(sum * 5);
}
static float make_ties(int64_t i, uint64_t *state) {
    (void)i;
    return (float)(next_random(state) % 5) * 0.75f - 1.5f; // both zeros would be one logit
}
static float make_rising(int64_t i, uint64_t *state) {
    (void)state;
    return (float)i * 1e-4f;
}
static float make_falling(int64_t i, uint64_t *state) {
    (void)state;
    return (float)-(i / 3) * 1e-4f;
}
static float make_peak(int64_t i, uint64_t *state) {
    return i % 1000 == 7 ? 15 + (float)next_real(state) : (float)next_real(state);
}
static float make_equal(int64_t i, uint64_t *state) {
    (void)state;
    return i == 100000 ? 1.25f : 1;
}
static float make_zeros(int64_t i, uint64_t *state) {
    const uint32_t r = next_random(state) % 3;
    return i == 5 ? -9 : r == 0 ? 0.0f : r == 1 ? -0.0f : -1;
}

typedef float make_fn(int64_t i, uint64_t *state);
static make_fn *const kinds[] = {make_flat,    make_bell, make_ties,  make_rising,
                                 make_falling, make_peak, make_equal, make_zeros};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int compare_ids(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (row[x] != row[y]) return row[x] > row[y] ? -1 : 1;
    return (x > y) - (x < y);
}

static void make_row(int kind, int64_t n, uint64_t seed) {
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        row[i] = kinds[kind](i, &state);
        sorted[i] = (int32_t)i;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, compare_ids);
}

static int compare_numbers(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

// The first n items must be the first n of the order, in any order.
static void check_set(const qn_choices *c, int64_t n, const char *what, int kind) {
    static int32_t got[LARGE], want[LARGE];
    for (int64_t i = 0; i < n; i++) got[i] = qn_choices_id(c, i);
    memcpy(want, sorted, (size_t)n * sizeof *want);
    qsort(got, (size_t)n, sizeof *got, compare_numbers);
    qsort(want, (size_t)n, sizeof *want, compare_numbers);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("%s: rows of kind %d: not the first %lld", what, kind, (long long)n);
}

static void exactly_the_first_k_survive(void **state) {
    (void)state;
    static const int64_t sizes[] = {LARGE, 1000, 64, 65, 3};
    static const int64_t ks[] = {1, 2, 40, 64, 65, 1187, 1188, 30000, LARGE + 5};
    qn_err err;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        qn_choices c;
        ASSERT_OK(qn_choices_init(&c, n, n, &err));
        for (int kind = 0; kind < N_KINDS; kind++) {
            make_row(kind, n, 3);
            if (row[sorted[0]] == row[sorted[n - 1]]) continue; // a broken row
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
                ASSERT_OK(qn_choices_begin(&c, row, &err));
                qn_choices_keep(&c, ks[k]);
                const int64_t left = qn_choices_count(&c);
                assert_int_equal(left, ks[k] < n ? ks[k] : n);
                if (left < n) check_set(&c, left, "keep", kind);
                qn_choices_keep(&c, ks[k] / 2 + 1); // of what is listed by now
                if (ks[k] / 2 + 1 < n) check_set(&c, qn_choices_count(&c), "keep again", kind);
            }
            ASSERT_OK(qn_choices_begin(&c, row, &err));
            assert_int_equal(qn_choices_first(&c), sorted[0]);
            assert_int_equal(qn_logits_best(row, n), sorted[0]);
            for (int64_t m = 1; m <= n && m < 5000; m = m * 3 + 1) {
                assert_int_equal(qn_choices_sort(&c, m), m);
                for (int64_t i = 0; i < m; i++) assert_int_equal(qn_choices_id(&c, i), sorted[i]);
            }
        }
        qn_choices_deinit(&c);
    }
}

// Running sums over the sorted row are exact, so the place is the same, not nearly the same.
static void places_of_running_sums_are_those_of_a_full_sort(void **state) {
    (void)state;
    static uint64_t sums[LARGE];
    static const float temperatures[] = {0.05f, 0.8f, 40};
    qn_err err;
    qn_choices c;
    ASSERT_OK(qn_choices_init(&c, LARGE, LARGE, &err));
    for (int kind = 0; kind < N_KINDS; kind++) {
        make_row(kind, LARGE, 8);
        for (int t = 0; t < 3; t++) {
            uint64_t sum = 0, random = 5;
            for (int64_t i = 0; i < LARGE; i++)
                sums[i] = sum += qn_weight(row[sorted[i]], row[sorted[0]], temperatures[t]);
            for (int draw = 0; draw < 6; draw++) {
                ASSERT_OK(qn_choices_begin(&c, row, &err));
                c.temperature = temperatures[t];
                assert_true(qn_choices_sum(&c) == sum);
                uint64_t target = (uint64_t)(next_real(&random) * (double)sum);
                if (draw == 0) target = 0;
                if (draw == 1) target = sum - 1;
                if (target >= sum) target = sum - 1;
                int64_t want = 0;
                while (sums[want] <= target) want++;
                const int64_t got = qn_choices_find(&c, target);
                assert_int_equal(got, want);
                assert_int_equal(qn_choices_id(&c, got), sorted[want]);
                check_set(&c, got, "find", kind);
                qn_choices_keep_items(&c, got + 1);
                assert_true(qn_choices_sum(&c) == sums[want]);
            }
        }
    }
    qn_choices_deinit(&c);
}

static void logits_above_a_bound_survive(void **state) {
    (void)state;
    qn_err err;
    qn_choices c;
    ASSERT_OK(qn_choices_init(&c, LARGE, LARGE, &err));
    for (int kind = 0; kind < N_KINDS; kind++) {
        make_row(kind, LARGE, 11);
        static const int64_t places[] = {0, 10, 700, 90000, LARGE - 1};
        for (int i = 0; i < 5; i++) {
            const float min = row[sorted[places[i]]];
            int64_t want = 0;
            while (want < LARGE && row[sorted[want]] >= min) want++;
            for (int is_listed = 0; is_listed < 2; is_listed++) {
                ASSERT_OK(qn_choices_begin(&c, row, &err));
                if (is_listed) (void)qn_choices_sort(&c, 100);
                qn_choices_keep_above(&c, min);
                assert_int_equal(qn_choices_count(&c), want);
                check_set(&c, want, "keep_above", kind);
            }
        }
    }
    qn_choices_deinit(&c);
}

// The choice as it was made before there were selections: a full sort, exp of the C library, sums
// in double.
static int32_t choose_plainly(const qn_sample_opts *o, int64_t n, uint64_t position) {
    static float p[LARGE];
    int64_t left = o->top_k && o->top_k < n ? o->top_k : n;
    double sum = 0, running = 0, kept = 0;
    // Filters look at probabilities without temperature, as it is the last step.
    for (int64_t i = 0; i < left; i++) sum += exp((double)row[sorted[i]] - (double)row[sorted[0]]);
    int64_t n_kept = 0;
    while (o->top_p != 0 && n_kept < left && kept < (double)o->top_p * sum)
        kept += exp((double)row[sorted[n_kept++]] - (double)row[sorted[0]]);
    if (o->top_p != 0) left = n_kept;
    sum = 0;
    for (int64_t i = 0; i < left; i++)
        sum += (double)(p[i] = expf((row[sorted[i]] - row[sorted[0]]) / o->temperature));
    const double u = (double)qn_philox_uniform(o->seed, position, o->completion, 0) * sum;
    int64_t i = 0;
    while (i + 1 < left && p[i + 1] > 0 && (running += (double)p[i]) <= u) i++;
    return sorted[i];
}

static void choices_are_those_of_a_full_sort(void **state) {
    (void)state;
    static const qn_sample_opts settings[] = {
        {.temperature = 0.8f, .seed = 1},
        {.temperature = 1, .seed = 2, .top_k = 40},
        {.temperature = 1.3f, .seed = 3, .top_p = 0.95f},
        {.temperature = 0.7f, .seed = 4, .top_k = 5000, .top_p = 0.5f, .completion = 3},
        {.temperature = 100, .seed = 5},
    };
    qn_err err;
    qn_chooser *chooser;
    ASSERT_OK(qn_chooser_create(&chooser, NULL, LARGE, &err));
    for (int kind = 0; kind < N_KINDS; kind++) {
        make_row(kind, LARGE, 21);
        for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
            ASSERT_OK(qn_chooser_set(chooser, &settings[s], &err));
            for (uint64_t position = 0; position < 8; position++) {
                const qn_chooser_in in = {.logits = row, .position = position};
                int32_t token = -1;
                ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
                assert_int_equal(token, choose_plainly(&settings[s], LARGE, position));
            }
        }
    }
    qn_chooser_destroy(chooser);
}

static void weights_are_exponentials(void **state) {
    (void)state;
    for (int i = 0; i <= 40000; i++) {
        const float x = -(float)i * 0.002f;
        const double want = exp((double)x);
        assert_true(fabs((double)qn_exp_negative(x) - want) <= want * 2e-7);
        assert_true(fabs((double)qn_weight(x, 0, 1) - want * QN_WEIGHT_ONE) <=
                    want * QN_WEIGHT_ONE * 2e-7 + 0.5);
    }
    assert_true(qn_exp_negative(0) == 1);
    assert_true(qn_weight(5, 5, 3) == (uint64_t)QN_WEIGHT_ONE);
    assert_true(qn_weight(-INFINITY, 5, 3) == 0);
    assert_true(qn_weight(-3e38f, 3e38f, 1) == 0);
}

static void logprobs_are_those_of_the_softmax(void **state) {
    (void)state;
    enum { N_TOP = 50 };
    static const int64_t sizes[] = {LARGE, 1000, 63, 1};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        for (int kind = 0; kind < N_KINDS; kind++) {
            make_row(kind, n, 31);
            double sum = 0;
            for (int64_t i = n; i-- > 0;)
                sum += exp((double)row[sorted[i]] - (double)row[sorted[0]]);
            const double base = (double)row[sorted[0]] + log(sum);
            qn_token_logprob top[N_TOP];
            const int32_t token = (int32_t)(n / 3);
            for (int64_t n_top = 0; n_top <= N_TOP; n_top += 25) {
                int64_t n_got = -1;
                const float chosen = qn_logprobs_get(&n_got, top, n_top, row, n, token);
                assert_true(fabs((double)chosen - ((double)row[token] - base)) < 2e-6);
                assert_int_equal(n_got, n_top < n ? n_top : n);
                for (int64_t i = 0; i < n_got; i++) {
                    assert_int_equal(top[i].token, sorted[i]);
                    assert_true(top[i].logprob <= 0);
                    assert_true(fabs((double)top[i].logprob - ((double)row[sorted[i]] - base)) <
                                2e-6);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactly_the_first_k_survive),
        cmocka_unit_test(places_of_running_sums_are_those_of_a_full_sort),
        cmocka_unit_test(logits_above_a_bound_survive),
        cmocka_unit_test(choices_are_those_of_a_full_sort),
        cmocka_unit_test(weights_are_exponentials),
        cmocka_unit_test(logprobs_are_those_of_the_softmax),
    };
    return cmocka_run_group_tests_name("gen_choices", tests, NULL, NULL);
}
