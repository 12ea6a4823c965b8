// Speculative decoding: what lookup finds, and how many drafts pay.
#include "testing.h"

#include "gen/draft.h"
#include "gen/lookup.h"

// Ids are written as letters.
static void assert_lookup(const char *history, int32_t max, const char *want) {
    int32_t tokens[64], got[16];
    const size_t n = strlen(history);
    for (size_t i = 0; i < n; i++) tokens[i] = history[i];
    const int32_t n_got = qn_lookup(got, max, tokens, n);
    char text[17] = {0};
    for (int32_t i = 0; i < n_got; i++) text[i] = (char)got[i];
    assert_string_equal(text, want);
}

static void lookup_finds_the_last_longest_repetition(void **state) {
    (void)state;
    assert_lookup("", 4, "");
    assert_lookup("a", 4, "");
    assert_lookup("ab", 4, "");
    assert_lookup("aba", 4, ""); // one token says too little
    assert_lookup("abcab", 3, "cab");
    assert_lookup("abcab", 1, "c");
    assert_lookup("abcab", 0, "");
    assert_lookup("ab1ab2ab", 3, "2ab");   // of equal ones, the latest
    assert_lookup("xab1ab2xab", 3, "1ab"); // of different ones, the longest
    assert_lookup("aaa", 4, "aaaa");       // goes on as it began
    assert_lookup("12121", 5, "21212");
    assert_lookup("abcdefgh1zabcdefgh2abcdefgh", 2, "2a"); // more than eight are not compared
}

enum { MS = 1000000 };

static qn_step_costs make_costs(const int64_t *ns, size_t n) {
    qn_step_costs costs = {0};
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 4 && ns[i]; k++) qn_step_costs_add(&costs, (int64_t)i + 1, ns[i]);
    }
    return costs;
}

static void costs_are_measured_or_estimated(void **state) {
    (void)state;
    static const int64_t ns[] = {10 * MS, 0, 0, 16 * MS};
    const qn_step_costs costs = make_costs(ns, 4);
    assert_true(qn_step_costs_get(&costs, 1) == 10.0 * MS);
    assert_true(qn_step_costs_get(&costs, 2) == 12.0 * MS); // between
    assert_true(qn_step_costs_get(&costs, 4) == 16.0 * MS);
    assert_true(qn_step_costs_get(&costs, 9) == 26.0 * MS); // as it grew so far
    assert_true(qn_step_costs_get(&costs, 1000) == qn_step_costs_get(&costs, QN_COST_ROWS));
    assert_true(qn_step_costs_get(&(qn_step_costs){0}, 1) == 0);
    qn_step_costs other = {0};
    qn_step_costs_add(&other, 1, 50 * MS); // the first time, plans are made
    qn_step_costs_add(&other, 1, 10 * MS);
    assert_true(qn_step_costs_get(&other, 1) == 10.0 * MS);
    for (int i = 0; i < 200; i++) qn_step_costs_add(&other, 1, 20 * MS); // deeper and deeper
    assert_true(qn_step_costs_get(&other, 1) > 19.0 * MS);
    qn_step_costs_add(&other, 1, INT64_MAX); // an interruption
    assert_true(qn_step_costs_get(&other, 1) < 40.0 * MS);
    qn_step_costs_add(&other, 0, 1);
    qn_step_costs_add(&other, QN_COST_ROWS + 1, 1);
    qn_step_costs_add(&other, 1, -1);
}

// The choice after many rounds in which this share of the drafts is right.
static int32_t settle(const qn_step_costs *costs, int32_t right, int64_t each_ns) {
    qn_draft_record record = {0};
    int32_t n = 0;
    for (int i = 0; i < 200; i++) {
        n = qn_draft_choose(&record, costs, 1, 8);
        qn_draft_record_add(&record, n, n < right ? n : right, n * each_ns);
    }
    return n;
}

static void as_many_as_pay(void **state) {
    (void)state;
    static const int64_t flat[] = {10 * MS, 10 * MS, 10 * MS, 10 * MS, 10 * MS,
                                   11 * MS, 11 * MS, 11 * MS, 11 * MS};
    static const int64_t steep[] = {10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS,
                                    60 * MS, 70 * MS, 80 * MS, 90 * MS};
    const qn_step_costs cheap = make_costs(flat, 9), dear = make_costs(steep, 9);
    assert_int_equal(settle(&cheap, 8, MS / 100), 8); // always right, nearly free
    assert_int_equal(settle(&cheap, 0, MS), 0);       // never right
    assert_int_equal(settle(&dear, 8, MS), 0);        // right, and no faster
    const int32_t some = settle(&cheap, 2, MS);       // two in a row: not eight
    assert_true(some >= 1 && some <= 5);
    qn_draft_record record = {0};
    assert_int_equal(qn_draft_choose(&record, &(qn_step_costs){0}, 1, 8), 0); // measure first
    assert_int_equal(qn_draft_choose(&record, &cheap, 1, 0), 0);
    static const int64_t one[] = {10 * MS};
    const qn_step_costs little = make_costs(one, 1);
    assert_in_range(qn_draft_choose(&record, &little, 1, 8), 1, 2); // try a few, then more
}

// Where drafts do not pay, they are tried again every so often, and found when they do.
static void tried_again(void **state) {
    (void)state;
    static const int64_t flat[] = {10 * MS, 10 * MS, 10 * MS, 10 * MS, 10 * MS,
                                   11 * MS, 11 * MS, 11 * MS, 11 * MS};
    const qn_step_costs costs = make_costs(flat, 9);
    qn_draft_record record = {0};
    int tries = 0;
    for (int i = 0; i < 10000; i++) {
        const int32_t n = qn_draft_choose(&record, &costs, 1, 8);
        tries += n > 0;
        qn_draft_record_add(&record, n, 0, n * MS);
    }
    assert_in_range(tries, 6, 40);
    int wait = 0;
    for (int32_t n = 0; n < 8 && wait < 20000; wait++) {
        n = qn_draft_choose(&record, &costs, 1, 8);
        qn_draft_record_add(&record, n, n, n * MS / 100);
    }
    assert_in_range(wait, 1, 64 << 6);
}

// A head that is never right, at the price that it has in a model of billions of weights: a second
// row costs almost nothing, a draft a tenth of a step or less. Drafts end all the same; left are
// tries of two tokens after 64, 128, 256, ... steps. Also where other programs made the steps of
// one row look slower than those of two.
static void drafts_that_are_never_right_end(void **state) {
    (void)state;
    enum { FAILURES = 30, STEPS = 2000 };
    static const int64_t steps[][5] = {
        {1000 * MS, 1001 * MS, 1002 * MS, 1003 * MS, 1004 * MS},
        {1000 * MS, 800 * MS, 801 * MS, 802 * MS, 803 * MS},
    };
    for (int c = 0; c < 2; c++) {
        const qn_step_costs costs = make_costs(steps[c], 5);
        for (int64_t each = 1; each <= 100 * MS; each *= 10) {
            qn_draft_record record = {0};
            int drafts = 0;
            int32_t late = 0;
            for (int i = 0; i < STEPS; i++) {
                const int32_t n = qn_draft_choose(&record, &costs, 1, 8);
                qn_draft_record_add(&record, n, 0, n * each);
                drafts += n > 0;
                if (i >= STEPS / 2) late += n;
            }
            assert_in_range(drafts, 1, FAILURES + 5);
            assert_true(late <= 2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_finds_the_last_longest_repetition),
        cmocka_unit_test(costs_are_measured_or_estimated),
        cmocka_unit_test(as_many_as_pay),
        cmocka_unit_test(tried_again),
        cmocka_unit_test(drafts_that_are_never_right_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
