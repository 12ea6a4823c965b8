// The steps of the sampler: what is drawn against exact probabilities, computed here by plain code
// on a small vocabulary, and the edges of every setting. Seeds are fixed: nothing here is random.
#include "testing.h"

#include "gen/chooser.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 12 };

static const float test_logits[N] = {0.5f, 2, -1, 2, 0, 3.1f, 1.3f, -4, 2.6f, 0.1f, -0.2f, 1.7f};
static const int32_t history[] = {5, 1, 5, 8, 0, 5, 3, 8, 5, 1};
enum { N_HISTORY = sizeof history / sizeof *history, N_PROMPT = 4 };

// --- exact probabilities -------------------------------------------------------------------------

typedef struct dist {
    double x[N]; // logits
    bool is_in[N];
} dist;

static void find_p(double p[N], const dist *d) {
    double sum = 0, max = -INFINITY;
    for (int i = 0; i < N; i++) {
        if (d->is_in[i] && d->x[i] > max) max = d->x[i];
    }
    for (int i = 0; i < N; i++) sum += p[i] = d->is_in[i] ? exp(d->x[i] - max) : 0;
    for (int i = 0; i < N; i++) p[i] /= sum;
}

// Ids by descending key, then id; those that are out come last.
static int sort_ids(int ids[N], const dist *d, const double key[N]) {
    int n = 0;
    for (int i = 0; i < N; i++) {
        if (!d->is_in[i]) continue;
        int at = n++;
        for (; at > 0 && key[ids[at - 1]] < key[i]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return n;
}

static void keep(dist *d, const int *ids, int n) {
    bool is_in[N] = {false};
    for (int i = 0; i < n; i++) is_in[ids[i]] = true;
    memcpy(d->is_in, is_in, sizeof is_in);
}

static void keep_share(dist *d, const double key[N], double share) {
    int ids[N], kept = 0;
    double p[N], sum = 0;
    find_p(p, d);
    const int n = sort_ids(ids, d, key);
    while (kept < n && sum < share) sum += p[ids[kept++]];
    keep(d, ids, kept);
}

static double find_entropy(const dist *d) {
    double p[N], h = 0;
    find_p(p, d);
    for (int i = 0; i < N; i++) h -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    return h;
}

static void do_penalties(dist *d, const qn_sample_opts *o) {
    const int last_n = o->repeat_last_n == 0                ? 64
                       : o->repeat_last_n == QN_LAST_N_NONE ? 0
                                                            : o->repeat_last_n;
    for (int i = 0; i < N; i++) {
        int n_all = 0, n_answer = 0;
        for (int j = 0; j < N_HISTORY; j++) {
            n_all += history[j] == i && (last_n < 0 || j >= N_HISTORY - last_n);
            n_answer += history[j] == i && j >= N_PROMPT;
        }
        if (n_all && o->repeat_penalty != 0)
            d->x[i] *= d->x[i] > 0 ? 1 / (double)o->repeat_penalty : (double)o->repeat_penalty;
        d->x[i] -= n_answer * (double)o->frequency_penalty;
        d->x[i] -= n_answer ? (double)o->presence_penalty : 0;
    }
}

static void do_sigma(dist *d, const qn_sample_opts *o) {
    double sum = 0, squares = 0, max = -INFINITY;
    int n = 0;
    for (int i = 0; i < N; i++) {
        if (!d->is_in[i]) continue;
        n++;
        sum += d->x[i];
        max = fmax(max, d->x[i]);
    }
    for (int i = 0; i < N; i++)
        squares += d->is_in[i] ? (d->x[i] - sum / n) * (d->x[i] - sum / n) : 0;
    const double min = max - (double)o->top_n_sigma * sqrt(squares / n);
    for (int i = 0; i < N && o->top_n_sigma != 0; i++) d->is_in[i] &= d->x[i] >= min;
}

static void do_top_k(dist *d, const qn_sample_opts *o) {
    int ids[N];
    const int n = sort_ids(ids, d, d->x);
    if (o->top_k > 0 && o->top_k < n) keep(d, ids, o->top_k);
}

static void do_typical(dist *d, const qn_sample_opts *o) {
    double p[N], key[N];
    const double h = find_entropy(d);
    find_p(p, d);
    for (int i = 0; i < N; i++) key[i] = d->is_in[i] ? -fabs(-log(p[i]) - h) : 0;
    if (o->typical_p != 0) keep_share(d, key, (double)o->typical_p);
}

static void do_top_p(dist *d, const qn_sample_opts *o) {
    if (o->top_p != 0) keep_share(d, d->x, (double)o->top_p);
}

static void do_min_p(dist *d, const qn_sample_opts *o) {
    double p[N], max = 0;
    find_p(p, d);
    for (int i = 0; i < N; i++) max = fmax(max, p[i]);
    for (int i = 0; i < N && o->min_p != 0; i++) d->is_in[i] &= p[i] >= (double)o->min_p * max;
}

static void do_xtc(dist *d, const qn_sample_opts *o) {
    const double threshold = o->xtc_threshold != 0 ? (double)o->xtc_threshold : (double)0.1f;
    double p[N];
    int ids[N], likely = 0;
    find_p(p, d);
    const int n = sort_ids(ids, d, d->x);
    while (likely < n && p[ids[likely]] >= threshold) likely++;
    if (likely > 1) keep(d, ids + likely - 1, n - likely + 1);
}

static void do_temperature(dist *d, const qn_sample_opts *o) {
    double t = (double)o->temperature;
    const double range = (double)o->dynatemp_range;
    int n = 0;
    for (int i = 0; i < N; i++) n += d->is_in[i];
    if (range != 0) {
        const double min = fmax(0, t - range), max = t + range;
        const double e = o->dynatemp_exponent != 0 ? (double)o->dynatemp_exponent : 1;
        t = min + (max - min) * pow(find_entropy(d) / log(n), e);
    }
    for (int i = 0; i < N; i++) d->x[i] /= t;
}

typedef void step_fn(dist *d, const qn_sample_opts *o);
static const struct {
    const char *name;
    step_fn *run;
} steps[] = {
    {"penalties", do_penalties},
    {"top_n_sigma", do_sigma},
    {"top_k", do_top_k},
    {"typ_p", do_typical},
    {"top_p", do_top_p},
    {"min_p", do_min_p},
    {"xtc", do_xtc},
    {"temperature", do_temperature},
};

static const char default_order[] = "penalties;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";

static void find_exact(double p[N], const qn_sample_opts *o, bool does_xtc) {
    dist d;
    for (int i = 0; i < N; i++) {
        d.x[i] = (double)test_logits[i];
        d.is_in[i] = true;
    }
    for (size_t i = 0; i < o->n_biases; i++) {
        d.x[o->biases[i].token] += (double)o->biases[i].bias;
        if (isinf(o->biases[i].bias)) d.is_in[o->biases[i].token] = false;
    }
    for (const char *word = o->order ? o->order : default_order; *word;) {
        const size_t size = strcspn(word, ";");
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            if (strlen(steps[i].name) != size || memcmp(steps[i].name, word, size) != 0) continue;
            if (does_xtc || steps[i].run != do_xtc) steps[i].run(&d, o);
        }
        word += size + (word[size] == ';');
    }
    find_p(p, &d);
}

// --- drawing -------------------------------------------------------------------------------------

static qn_chooser *make_chooser(int64_t n, const qn_sample_opts *opts) {
    qn_err err;
    qn_chooser *chooser = NULL;
    ASSERT_OK(qn_chooser_create(&chooser, NULL, n, &err));
    ASSERT_OK(qn_chooser_set(chooser, opts, &err));
    return chooser;
}

static int32_t choose_after(qn_chooser_memory *memory, qn_chooser *chooser, const float *row,
                            uint64_t position) {
    qn_err err;
    int32_t token = -1;
    const qn_chooser_in in = {.logits = row,
                              .tokens = history,
                              .n_tokens = N_HISTORY,
                              .n_prompt = N_PROMPT,
                              .position = position,
                              .memory = memory};
    ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
    return token;
}

static int32_t choose_at(qn_chooser *chooser, const float *row, uint64_t position) {
    return choose_after(NULL, chooser, row, position);
}

// Chi-square of `draws` draws against p; a token of no probability must never be drawn.
static void check_draws(const qn_sample_opts *opts, const double p[N], const char *name) {
    enum { DRAWS = 40000 };
    int count[N] = {0};
    qn_chooser *chooser = make_chooser(N, opts);
    for (uint64_t i = 0; i < DRAWS; i++) {
        const int32_t token = choose_at(chooser, test_logits, i);
        assert_in_range(token, 0, N - 1);
        count[token]++;
    }
    qn_chooser_destroy(chooser);
    double chi = 0;
    for (int i = 0; i < N; i++) {
        const double want = p[i] * DRAWS;
        if (p[i] < 1e-12 ? count[i] != 0 : false)
            fail_msg("%s: token %d was drawn %d times, it is excluded", name, i, count[i]);
        if (want > 1) chi += (count[i] - want) * (count[i] - want) / want;
    }
    if (chi > 40) fail_msg("%s: chi-square %g of at most 11 degrees", name, chi); // p < 4e-5
}

static void check_setting(const qn_sample_opts *opts, const char *name) {
    double p[N], with[N];
    find_exact(p, opts, false);
    find_exact(with, opts, true);
    for (int i = 0; i < N; i++) p[i] += (double)opts->xtc_probability * (with[i] - p[i]);
    check_draws(opts, p, name);
}

static void draws_follow_the_exact_probabilities(void **state) {
    (void)state;
    static const qn_bias biases[] = {{5, -2}, {7, 6.5f}, {1, -INFINITY}, {5, 0.5f}};
    const struct {
        const char *name;
        qn_sample_opts opts;
    } cases[] = {
        {"temperature 1", {.temperature = 1, .seed = 1}},
        {"temperature 0.3", {.temperature = 0.3f, .seed = 2}},
        {"temperature 7", {.temperature = 7, .seed = 3}},
        {"top_k 4", {.temperature = 1, .seed = 4, .top_k = 4}},
        {"top_k 3 inside a tie", {.temperature = 1, .seed = 5, .top_k = 3}},
        {"top_k huge", {.temperature = 1, .seed = 6, .top_k = INT32_MAX}},
        {"top_p 0.7", {.temperature = 1, .seed = 7, .top_p = 0.7f}},
        {"top_p small", {.temperature = 1, .seed = 8, .top_p = 0.01f}},
        {"top_p 1", {.temperature = 1, .seed = 9, .top_p = 1}},
        {"min_p 0.2", {.temperature = 1, .seed = 10, .min_p = 0.2f}},
        {"min_p 1", {.temperature = 1, .seed = 11, .min_p = 1}},
        {"typical_p 0.6", {.temperature = 1, .seed = 12, .typical_p = 0.6f}},
        {"typical_p 0.05", {.temperature = 1, .seed = 13, .typical_p = 0.05f}},
        {"top_n_sigma 1", {.temperature = 1, .seed = 14, .top_n_sigma = 1}},
        {"top_n_sigma 0.5", {.temperature = 2, .seed = 15, .top_n_sigma = 0.5f}},
        {"xtc always", {.temperature = 1, .seed = 16, .xtc_probability = 1}},
        {"xtc sometimes",
         {.temperature = 1, .seed = 17, .xtc_probability = 0.4f, .xtc_threshold = 0.05f}},
        {"xtc of one", {.temperature = 1, .seed = 18, .xtc_probability = 1, .xtc_threshold = 0.5f}},
        {"dynatemp", {.temperature = 1, .seed = 19, .dynatemp_range = 0.8f}},
        {"dynatemp from 0",
         {.temperature = 1, .seed = 20, .dynatemp_range = 3, .dynatemp_exponent = 2}},
        {"repeat_penalty", {.temperature = 1, .seed = 21, .repeat_penalty = 1.7f}},
        {"repeat_penalty of the last 3",
         {.temperature = 1, .seed = 22, .repeat_penalty = 0.5f, .repeat_last_n = 3}},
        {"repeat_penalty of all",
         {.temperature = 1, .seed = 23, .repeat_penalty = 1.3f, .repeat_last_n = -1}},
        {"repeat_penalty of none",
         {.temperature = 1, .seed = 30, .repeat_penalty = 1.7f, .repeat_last_n = QN_LAST_N_NONE}},
        {"frequency", {.temperature = 1, .seed = 24, .frequency_penalty = 0.6f}},
        {"presence", {.temperature = 1, .seed = 25, .presence_penalty = -1.5f}},
        {"all penalties",
         {.temperature = 0.8f,
          .seed = 26,
          .repeat_penalty = 1.2f,
          .frequency_penalty = 0.3f,
          .presence_penalty = 0.4f}},
        {"biases", {.temperature = 1, .seed = 27, .biases = biases, .n_biases = 4}},
        {"many", {.temperature = 1.4f, .seed = 28, .top_k = 9, .top_p = 0.9f, .min_p = 0.06f}},
        {"all filters",
         {.temperature = 1.4f,
          .seed = 29,
          .top_n_sigma = 2,
          .top_k = 10,
          .typical_p = 0.95f,
          .top_p = 0.97f,
          .min_p = 0.02f,
          .xtc_probability = 0.5f,
          .biases = biases,
          .n_biases = 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_setting(&cases[i].opts, cases[i].name);
}

static void steps_run_in_the_order_that_is_set(void **state) {
    (void)state;
    const char *const orders[] = {
        "temperature;top_p",
        "top_p;temperature",
        "min_p;top_p;temperature",
        "temperature;min_p;top_p",
        "temperature;penalties;top_k",
        "top_k;penalties;temperature",
        "top_p;penalties;typ_p;temperature",
        "xtc;top_k;temperature",
        "top_k;xtc;temperature",
        "temperature;top_n_sigma",
        "top_p",
    };
    char drawn[sizeof orders / sizeof *orders][N + 1];
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        const qn_sample_opts opts =
            QN_INIT(qn_sample_opts, .temperature = 2.5f, .seed = i, .top_k = 5, .top_p = 0.8f,
                    .min_p = 0.3f, .typical_p = 0.7f, .top_n_sigma = 0.7f, .xtc_probability = 0.5f,
                    .repeat_penalty = 1.8f, .order = orders[i]);
        const bool has_xtc = strstr(orders[i], "xtc");
        double p[N], with[N];
        find_exact(p, &opts, false);
        find_exact(with, &opts, true);
        for (int j = 0; j < N && has_xtc; j++) p[j] += 0.5 * (with[j] - p[j]);
        check_draws(&opts, p, orders[i]);
        for (int j = 0; j < N; j++) drawn[i][j] = p[j] > 1e-12 ? 'x' : '.';
        drawn[i][N] = 0;
    }
    assert_string_not_equal(drawn[0], drawn[1]); // the order matters in these cases
    assert_string_not_equal(drawn[2], drawn[3]);
    assert_string_not_equal(drawn[4], drawn[5]);
}

static void words_for_steps_may_be_spelled_otherwise(void **state) {
    (void)state;
    const qn_sample_opts a = QN_INIT(qn_sample_opts, .temperature = 1, .top_k = 3,
                                     .typical_p = 0.5f, .order = "top-k;typical-p;temp");
    qn_sample_opts b = a;
    b.order = "top_k;typ_p;temperature";
    qn_chooser *x = make_chooser(N, &a), *y = make_chooser(N, &b);
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(choose_at(x, test_logits, i), choose_at(y, test_logits, i));
    qn_chooser_destroy(x);
    qn_chooser_destroy(y);
}

// --- mirostat ------------------------------------------------------------------------------------

// The running state is followed here; what is drawn must be within the surprise it allows, and
// follow the probabilities of what is left.
static void mirostat_follows_its_target(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    const qn_sample_opts opts =
        QN_INIT(qn_sample_opts, .temperature = 1.5f, .seed = 3, .mirostat = 2, .mirostat_tau = 2.7f,
                .mirostat_eta = 0.05f, .top_k = 1,
                .min_p = 0.9f); // filters do nothing here
    qn_chooser *chooser = make_chooser(N, &opts);
    double p[N], max = 2 * (double)2.7f, mean = 0;
    qn_chooser_memory memory = {0};
    dist d;
    for (int i = 0; i < N; i++) {
        d.x[i] = (double)test_logits[i] / 1.5;
        d.is_in[i] = true;
    }
    find_p(p, &d);
    int beyond_first = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        const int32_t token = choose_after(&memory, chooser, test_logits, i);
        const double surprise = -log2(p[token]);
        // Weights are exact to 1e-7, an error that each of the steps adds 0.05 of.
        if (token != 5) assert_true(surprise <= max + DRAWS * 0.05 * 1e-7);
        beyond_first += token != 5;
        mean += surprise / DRAWS;
        max -= (double)0.05f * (surprise - (double)2.7f);
    }
    memory = (qn_chooser_memory){0};
    const int32_t again = choose_after(&memory, chooser, test_logits, 0);
    qn_chooser *fresh = make_chooser(N, &opts);
    assert_int_equal(again, choose_at(fresh, test_logits, 0));
    print_message("mean surprise %.3f bits, want 2.7\n", mean);
    assert_true(fabs(mean - 2.7) < 0.05);
    assert_true(beyond_first > DRAWS / 2);
    qn_chooser_destroy(chooser);
    qn_chooser_destroy(fresh);
}

// --- edges ---------------------------------------------------------------------------------------

static void greedy_is_the_best_whatever_else_is_set(void **state) {
    (void)state;
    const qn_sample_opts cases[] = {
        {.temperature = 0},
        {.temperature = 0, .top_k = 5, .top_p = 0.5f, .typical_p = 0.01f},
        {.temperature = 0, .xtc_probability = 1, .xtc_threshold = 0.01f},
        {.temperature = 5, .top_k = 1},
        {.temperature = 5, .top_k = 1, .xtc_probability = 1},
        {.temperature = 0, .mirostat = 2},
        {.temperature = 0, .repeat_penalty = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_chooser *chooser = make_chooser(N, &cases[i]);
        assert_true(qn_chooser_is_greedy(chooser));
        for (uint64_t j = 0; j < 50; j++) assert_int_equal(choose_at(chooser, test_logits, j), 5);
        qn_chooser_destroy(chooser);
    }
}

static void what_changes_logits_is_not_plain_greedy(void **state) {
    (void)state;
    const qn_bias bias = {7, 100};
    const struct {
        qn_sample_opts opts;
        int32_t want;
    } cases[] = {
        {{.temperature = 0, .biases = &bias, .n_biases = 1}, 7},
        {{.temperature = 0, .repeat_penalty = 3}, 11}, // 5, 8, 1 and 3 were there
        {{.temperature = 0, .frequency_penalty = 1}, 11},
        {{.temperature = 0, .presence_penalty = 2.2f}, 11},
        {{.temperature = 0, .dry_multiplier = 9, .dry_allowed_length = 1}, 8}, // 5 1: 5 came next
        {{.dry_multiplier = 9, .dry_allowed_length = 1, .dry_last_n = QN_LAST_N_ALL}, 8},
        {{.temperature = 1}, -1},
        {{.temperature = 1, .top_k = 2}, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_chooser *chooser = make_chooser(N, &cases[i].opts);
        assert_false(qn_chooser_is_greedy(chooser));
        if (cases[i].want >= 0) assert_int_equal(choose_at(chooser, test_logits, 0), cases[i].want);
        qn_chooser_destroy(chooser);
    }
}

static void penalties_that_are_off_change_no_bit(void **state) {
    (void)state;
    const qn_sample_opts plain = {.temperature = 0.9f, .seed = 4},
                         offs[] = {
                             {.temperature = 0.9f, .seed = 4, .repeat_penalty = 1},
                             {.temperature = 0.9f,
                              .seed = 4,
                              .repeat_penalty = 3,
                              .repeat_last_n = QN_LAST_N_NONE},
                             {.temperature = 0.9f,
                              .seed = 4,
                              .dry_multiplier = 9,
                              .dry_allowed_length = 1,
                              .dry_last_n = QN_LAST_N_NONE},
                         };
    for (size_t k = 0; k < sizeof offs / sizeof *offs; k++) {
        qn_chooser *a = make_chooser(N, &plain), *b = make_chooser(N, &offs[k]);
        for (uint64_t i = 0; i < 2000; i++)
            assert_int_equal(choose_at(a, test_logits, i), choose_at(b, test_logits, i));
        qn_chooser_destroy(a);
        qn_chooser_destroy(b);
    }
}

static void masks_leave_only_what_is_allowed(void **state) {
    (void)state;
    qn_err err;
    const qn_sample_opts cases[] = {
        {.temperature = 0},
        {.temperature = 3},
        {.temperature = 3, .top_p = 0.99f, .repeat_penalty = 2},
        {.temperature = 3, .typical_p = 0.5f, .dynatemp_range = 1},
        {.temperature = 3, .top_n_sigma = 0.1f, .min_p = 0.5f, .xtc_probability = 1},
        {.temperature = 3, .mirostat = 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qn_chooser *chooser = make_chooser(N, &cases[c]);
        for (uint32_t mask = 0; mask < 1 << N; mask += 13) {
            int32_t token = -1;
            const qn_chooser_in in = {.logits = test_logits,
                                      .tokens = history,
                                      .n_tokens = N_HISTORY,
                                      .position = mask,
                                      .allowed = &mask};
            if (mask == 0) {
                ASSERT_FAILS(qn_chooser_choose(&token, chooser, &in, &err), QN_ARGUMENT,
                             "no token is left");
                assert_int_equal(token, -1);
                continue;
            }
            ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
            assert_true(token >= 0 && (mask >> token & 1));
        }
        qn_chooser_destroy(chooser);
    }
}

static void one_that_is_left_is_chosen(void **state) {
    (void)state;
    qn_bias biases[N];
    for (int i = 0; i < N; i++) biases[i] = (qn_bias){i, -INFINITY};
    biases[7].bias = 0;
    const qn_sample_opts opts =
        QN_INIT(qn_sample_opts, .temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.1f,
                .typical_p = 0.9f, .top_n_sigma = 1, .xtc_probability = 1, .dynatemp_range = 0.5f,
                .repeat_penalty = 1.1f, .biases = biases, .n_biases = N);
    qn_chooser *chooser = make_chooser(N, &opts);
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(choose_at(chooser, test_logits, i), 7);
    qn_chooser_destroy(chooser);
}

static void broken_rows_are_refused_wherever_the_fault_is(void **state) {
    (void)state;
    enum { LARGE = 1000 };
    qn_err err;
    static float row[LARGE];
    const qn_sample_opts opts = QN_INIT(qn_sample_opts, .temperature = 1, .top_k = 40);
    qn_chooser *chooser = make_chooser(LARGE, &opts);
    const qn_chooser_in in = {.logits = row};
    const float faults[] = {NAN, INFINITY, -INFINITY};
    int32_t token = -1;
    for (int i = 0; i < LARGE; i++) row[i] = (float)(i % 7);
    for (int at = 0; at < LARGE; at += 37) {
        for (int f = 0; f < 3; f++) {
            char want[32];
            const float was = row[at];
            row[at] = faults[f];
            snprintf(want, sizeof want, "logit %d of 1000 is %s", at,
                     f == 0   ? "nan"
                     : f == 1 ? "inf"
                              : "-inf");
            ASSERT_FAILS(qn_chooser_choose(&token, chooser, &in, &err), QN_NUMERIC, want);
            row[at] = was;
        }
    }
    for (int i = 0; i < LARGE; i++) row[i] = 2.5f;
    ASSERT_FAILS(qn_chooser_choose(&token, chooser, &in, &err), QN_NUMERIC, "all 1000 logits");
    row[777] = 2.6f;
    ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
    row[777] = 2.4f;
    ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
    qn_chooser_destroy(chooser);
}

static void huge_logits_do_not_overflow(void **state) {
    (void)state;
    const float row[N] = {3e38f, -3e38f, 3.2e38f, 0, 1, -3.4e38f, 2, 3, 4, 5, 6, 7};
    const qn_sample_opts opts = QN_INIT(
        qn_sample_opts, .temperature = 0.001f, .repeat_penalty = 0.001f, .repeat_last_n = -1,
        .frequency_penalty = 100, .top_n_sigma = 1000, .typical_p = 0.9f, .dynatemp_range = 0.001f);
    qn_chooser *chooser = make_chooser(N, &opts);
    for (uint64_t i = 0; i < 20; i++) {
        const int32_t token = choose_at(chooser, row, i);
        assert_true(token == 0 || token == 2);
    }
    qn_chooser_destroy(chooser);
}

static void values_out_of_range_are_named(void **state) {
    (void)state;
    qn_err err;
    const char *const text[] = {"x"}, *const empty[] = {""}, *const broken[] = {"\xff"};
    const qn_bias far = {N, 1}, negative = {-1, 1}, odd = {3, NAN}, high = {3, INFINITY};
    const struct {
        qn_sample_opts opts;
        const char *want;
    } cases[] = {
        {{.temperature = -0.5f}, "temperature -0.5, want 0 to 1000"},
        {{.temperature = INFINITY}, "temperature inf"},
        {{.top_k = -1}, "top_k -1, want 0 to"},
        {{.top_p = 1.5f}, "top_p 1.5, want 0 to 1"},
        {{.min_p = -0.1f}, "min_p -0.1, want 0 to 1"},
        {{.min_p = NAN}, "min_p"},
        {{.typical_p = 2}, "typical_p 2, want 0 to 1"},
        {{.top_n_sigma = -1}, "top_n_sigma -1, want 0 to 1000"},
        {{.xtc_probability = 7}, "xtc_probability 7, want 0 to 1"},
        {{.xtc_threshold = -7}, "xtc_threshold -7, want 0 to 1"},
        {{.dynatemp_range = -1}, "dynatemp_range -1"},
        {{.dynatemp_exponent = 1e9f}, "dynatemp_exponent 1e+09, want 0 to 100"},
        {{.repeat_penalty = -1}, "repeat_penalty -1"},
        {{.repeat_last_n = -3}, "repeat_last_n -3, want -2 to"},
        {{.frequency_penalty = 101}, "frequency_penalty 101, want -100 to 100"},
        {{.presence_penalty = NAN}, "presence_penalty"},
        {{.dry_multiplier = -1}, "dry_multiplier -1"},
        {{.dry_base = 0.5f}, "dry_base 0.5, want 1 to"},
        {{.dry_allowed_length = -3}, "dry_allowed_length -3"},
        {{.dry_last_n = -3}, "dry_last_n -3, want -2 to"},
        {{.mirostat = 1}, "mirostat 1"},
        {{.mirostat = 3}, "mirostat 3, want 0 to 2"},
        {{.mirostat_tau = -1}, "mirostat_tau -1"},
        {{.mirostat_eta = 11}, "mirostat_eta 11, want 0 to 10"},
        {{.order = "top_k;top_q"},
         "no sampler 'top_q'; there are, separated by semicolons, penalties;dry;"},
        {{.order = ""}, "no sampler ''"},
        {{.order = "top_k;;min_p"}, "no sampler ''"},
        {{.order = "top_k;temperature;top-k"}, "top_k is there twice"},
        {{.biases = &far, .n_biases = 1}, "token 12, want 0 to 11"},
        {{.biases = &negative, .n_biases = 1}, "token -1, want 0 to 11"},
        {{.biases = &odd, .n_biases = 1}, "of token 3: "},
        {{.biases = &high, .n_biases = 1}, "of token 3: inf, want -1000 to 1000, or -inf"},
        {{.n_biases = 1}, "the list is NULL"},
        {{.bans = text, .n_bans = 1}, "no tokenizer"},
    };
    const qn_sample_opts good = QN_INIT(qn_sample_opts, .temperature = 2, .seed = 9, .top_k = 5);
    qn_chooser *chooser = make_chooser(N, &good), *other = make_chooser(N, &good);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ASSERT_FAILS(qn_chooser_set(chooser, &cases[i].opts, &err), QN_ARGUMENT, cases[i].want);
        assert_int_equal(choose_at(chooser, test_logits, i),
                         choose_at(other, test_logits, i)); // unchanged
    }
    qn_chooser_destroy(chooser);
    qn_chooser_destroy(other);

    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err));
    ASSERT_OK(qn_chooser_create(&chooser, tokenizer, 1000, &err));
    const qn_sample_opts bad[] = {
        {.bans = empty, .n_bans = 1},
        {.bans = broken, .n_bans = 1},
        {.bans = text, .n_bans = 5000},
        {.dry_multiplier = 1, .dry_breakers = empty, .n_dry_breakers = 1}};
    const char *const want[] = {"banned string 0 is empty", "banned string 0 is not UTF-8",
                                "5000 banned strings, at most 1024", "DRY breaker 0 is empty"};
    for (int i = 0; i < 4; i++)
        ASSERT_FAILS(qn_chooser_set(chooser, &bad[i], &err), i == 2 ? QN_LIMIT : QN_ARGUMENT,
                     want[i]);
    qn_chooser_destroy(chooser);
    qn_tokenizer_close(tokenizer);
    ASSERT_FAILS(qn_chooser_create(&chooser, NULL, 1 << 30, &err), QN_LIMIT, "1073741824");
}

static void draws_depend_on_seed_completion_and_position_alone(void **state) {
    (void)state;
    enum { DRAWS = 300 };
    const qn_sample_opts base = QN_INIT(qn_sample_opts, .temperature = 3, .seed = 1),
                         seed = QN_INIT(qn_sample_opts, .temperature = 3, .seed = 2),
                         completion =
                             QN_INIT(qn_sample_opts, .temperature = 3, .seed = 1, .completion = 1);
    qn_chooser *a = make_chooser(N, &base), *b = make_chooser(N, &base),
               *c = make_chooser(N, &seed), *d = make_chooser(N, &completion);
    int as_c = 0, as_d = 0;
    int32_t got[DRAWS];
    for (uint64_t i = 0; i < DRAWS; i++) got[i] = choose_at(a, test_logits, i);
    for (uint64_t i = DRAWS; i-- > 0;) { // backwards: nothing is remembered
        assert_int_equal(choose_at(b, test_logits, i), got[i]);
        as_c += choose_at(c, test_logits, i) == got[i];
        as_d += choose_at(d, test_logits, i) == got[i];
    }
    assert_true(as_c < DRAWS / 2 && as_d < DRAWS / 2);
    qn_chooser_destroy(a);
    qn_chooser_destroy(b);
    qn_chooser_destroy(c);
    qn_chooser_destroy(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_exact_probabilities),
        cmocka_unit_test(steps_run_in_the_order_that_is_set),
        cmocka_unit_test(words_for_steps_may_be_spelled_otherwise),
        cmocka_unit_test(mirostat_follows_its_target),
        cmocka_unit_test(greedy_is_the_best_whatever_else_is_set),
        cmocka_unit_test(what_changes_logits_is_not_plain_greedy),
        cmocka_unit_test(penalties_that_are_off_change_no_bit),
        cmocka_unit_test(masks_leave_only_what_is_allowed),
        cmocka_unit_test(one_that_is_left_is_chosen),
        cmocka_unit_test(broken_rows_are_refused_wherever_the_fault_is),
        cmocka_unit_test(huge_logits_do_not_overflow),
        cmocka_unit_test(values_out_of_range_are_named),
        cmocka_unit_test(draws_depend_on_seed_completion_and_position_alone),
    };
    return cmocka_run_group_tests_name("gen_sampler", tests, NULL, NULL);
}
