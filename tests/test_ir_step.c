// Messages: what is written comes back, and whatever else is in one is refused before it runs.
#include "testing.h"

#include "core/mem.h"
#include "ir/step.h"

// Two segments of a model with two groups of pages (all positions, and a window of 100) and slots:
// 3 rows after 70, 2 rows after 200.
enum { ROWS = 6, SEGS = 2, OUTS = 2, GROUPS = 2, PAGES = 4, COPIES = 3, VOCAB = 50 };
static const int64_t n_pages[GROUPS] = {16, 16}, windows[GROUPS] = {0, 100};
static const qn_step_limits limits = {.vocab = VOCAB,
                                      .context = 256,
                                      .rows = 8,
                                      .segs = 4,
                                      .outs = 4,
                                      .n_groups = GROUPS,
                                      .n_pages = n_pages,
                                      .windows = windows,
                                      .n_slots = 8,
                                      .log_rows = 32,
                                      .extra_width = 3,
                                      .top = 64};

typedef struct field_text {
    qn_step_field field;
    int n;
    int32_t words[20];
} field_text;

static const field_text sample[] = {
    {QN_STEP_IDS, 6, {1, 2, 3, 4, 49, 0}},
    {QN_STEP_POS, 20, {70, 70, 70, 0, 71, 71, 71, 0, 72, 72, 72, 0, 200, 200, 200, 0, 201, 201}},
    {QN_STEP_ROW_SEG, 6, {0, 0, 0, 1, 1, -1}},
    {QN_STEP_SEG_ROW, 3, {0, 3, 5}},
    {QN_STEP_SEG_PAST, 2, {70, 200}},
    {QN_STEP_SEG_PAGES, 16, {0, 1, -1, -1, 0, 1, -1, -1, 0, 2, 3, 4, -1, 2, 3, 5}},
    {QN_STEP_SEG_SLOT, 2, {0, 7}},
    {QN_STEP_SEG_ACCEPT, 2, {0, 32}},
    {QN_STEP_SEG_COMMIT, 2, {3, 0}},
    {QN_STEP_SEG_ADAPTER, 2, {-1, -1}},
    {QN_STEP_ROW_OUT, 2, {2, 4}},
    {QN_STEP_OUT_FULL, 2, {1, 0}},
    {QN_STEP_EXTRA_ROW, 6, {-1, 0, -1, -1, -1, -1}},
    {QN_STEP_EXTRA, 3, {0x3f800000, 0, 0}},
    {QN_STEP_COPIES,
     15,
     {QN_COPY_PAGE, 1, 3, 5, 0, QN_COPY_SLOT, 0, 1, 7, 32, QN_COPY_PAGE, 0, 2, 2}},
};

static const qn_step_sizes sample_sizes = {.rows = ROWS,
                                           .segs = SEGS,
                                           .outs = OUTS,
                                           .groups = GROUPS,
                                           .pages = PAGES,
                                           .extra = 1,
                                           .extra_width = 3,
                                           .copies = COPIES};

// The sample; release with qn_free.
static int32_t *make_sample(size_t *words) {
    qn_err err;
    ASSERT_OK(qn_step_measure(words, &sample_sizes, &err));
    int32_t *message = qn_alloc(*words, sizeof *message);
    assert_non_null(message);
    qn_step_begin(message, &sample_sizes, 5, 40);
    for (size_t i = 0; i < sizeof sample / sizeof *sample; i++)
        memcpy(qn_step_at(message, sample[i].field), sample[i].words,
               (size_t)sample[i].n * sizeof *message);
    return message;
}

static void a_message_holds_what_was_written(void **state) {
    (void)state;
    size_t words;
    qn_err err;
    qn_step step;
    int32_t *message = make_sample(&words);
    assert_int_equal(qn_step_words(message), words);
    ASSERT_OK(qn_step_check(message, words, &limits, &err));
    qn_step_view(&step, message);
    assert_int_equal(step.n_rows, ROWS);
    assert_int_equal(step.n_segs, SEGS);
    assert_int_equal(step.n_out, OUTS);
    assert_int_equal(step.ids[4], 49);
    assert_int_equal(step.seg_row[2], 5);
    assert_int_equal(step.seg_pages[15], 5);
    assert_int_equal(step.n_groups, GROUPS);
    assert_int_equal(step.pages_per_seg, PAGES);
    assert_int_equal(step.seg_accept[1], 32);
    assert_int_equal(step.row_out[1], 4);
    assert_int_equal(step.extra_row[1], 0);
    assert_true(step.extra[0] == 1.0f);
    assert_int_equal(step.copies[1].kind, QN_COPY_SLOT);
    assert_int_equal(step.copies[1].to, 7);
    assert_int_equal(step.top, 5);
    assert_int_equal(step.entries, 40);
    qn_free(message);
}

// Each row changes one word of the sample.
static const struct {
    qn_step_field field;
    int at;
    int32_t value;
    const char *message;
} wrong[] = {
    {QN_STEP_IDS, 4, VOCAB, "ids[4] is 50, want 0 to 49"},
    {QN_STEP_IDS, 0, -1, "ids[0] is -1"},
    {QN_STEP_POS, 3, -1, "pos[3] is -1"},
    {QN_STEP_ROW_SEG, 2, 1, "row_seg[2] is 1, want 0 to 0"},
    {QN_STEP_ROW_SEG, 5, 0, "row_seg[5] is 0, want -1 to -1"},
    {QN_STEP_SEG_ROW, 0, 1, "seg_row[0] is 1"},
    {QN_STEP_SEG_ROW, 1, 0, "seg_row[1] is 0, want 1 to 6"},
    {QN_STEP_SEG_ROW, 2, 7, "seg_row[2] is 7"},
    {QN_STEP_SEG_PAST, 0, 254, "seg_past[0] is 254, want 0 to 253"},
    {QN_STEP_SEG_PAST, 1, -1, "seg_past[1] is -1"},
    {QN_STEP_SEG_PAGES, 0, -1, "seg_pages[0] is -1, want 0 to 15"},
    {QN_STEP_SEG_PAGES, 2, 16, "seg_pages[2] is 16, want -1 to 15"},
    {QN_STEP_SEG_PAGES, 13, -1, "seg_pages[1] is -1, want 0 to 15"},
    {QN_STEP_SEG_PAGES, 11, 1, "page 1 of group 0 is written twice"},
    {QN_STEP_SEG_PAGES, 9, 1, "segment 1 reads page 1 of group 0, which is written"},
    {QN_STEP_SEG_SLOT, 1, 8, "seg_slot[1] is 8, want 0 to 7"},
    {QN_STEP_SEG_SLOT, 1, 0, "segment 1 has slot 0, as one before it has"},
    {QN_STEP_SEG_ACCEPT, 0, 33, "seg_accept[0] is 33, want 0 to 32"},
    {QN_STEP_SEG_COMMIT, 0, 4, "seg_commit[0] is 4, want 0 to 3"},
    {QN_STEP_SEG_ADAPTER, 0, 0, "seg_adapter[0] is 0, want -1 to -1"},
    {QN_STEP_ROW_OUT, 0, ROWS, "row_out[0] is 6, want 0 to 5"},
    {QN_STEP_OUT_FULL, 0, 2, "out_full[0] is 2"},
    {QN_STEP_EXTRA_ROW, 0, 1, "extra_row[0] is 1, want -1 to 0"},
    {QN_STEP_COPIES, 0, 2, "copies.kind[0] is 2"},
    {QN_STEP_COPIES, 1, 2, "copies.group[0] is 2, want 0 to 1"},
    {QN_STEP_COPIES, 2, 16, "copies.from[0] is 16, want 0 to 15"},
    {QN_STEP_COPIES, 8, 8, "copies.to[1] is 8, want 0 to 7"},
    {QN_STEP_COPIES, 9, 33, "copies.log_rows[1] is 33, want 0 to 32"},
    {QN_STEP_COPIES, 4, 1, "copies.log_rows[0] is 1, want 0 to 0"},
};

static void every_index_is_checked(void **state) {
    (void)state;
    size_t words;
    qn_err err;
    int32_t *message = make_sample(&words);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int32_t *word = qn_step_at(message, wrong[i].field) + wrong[i].at;
        const int32_t good = *word;
        *word = wrong[i].value;
        ASSERT_FAILS(qn_step_check(message, words, &limits, &err), QN_FORMAT, wrong[i].message);
        *word = good;
    }
    ASSERT_OK(qn_step_check(message, words, &limits, &err));
    qn_free(message);
}

// Any word may have any value: the message runs or is refused. Copies of exact size, so that
// sanitizers see a read past the end.
static void any_word_may_be_anything(void **state) {
    (void)state;
    static const int32_t values[] = {INT32_MIN, -2, -1, 0,   1,       2,
                                     5,         63, 64, 100, 1 << 20, INT32_MAX};
    size_t words;
    qn_err err;
    int64_t n_accepted = 0;
    int32_t *message = make_sample(&words);
    for (size_t at = 0; at < words; at++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            int32_t *copy = qn_alloc(words, sizeof *copy);
            assert_non_null(copy);
            memcpy(copy, message, words * sizeof *copy);
            copy[at] = values[v];
            n_accepted += qn_step_check(copy, words, &limits, &err) == QN_OK;
            qn_free(copy);
        }
    }
    assert_true(n_accepted > 0);
    for (size_t n = 0; n < words; n++) {
        int32_t *copy = qn_alloc(n ? n : 1, sizeof *copy);
        assert_non_null(copy);
        memcpy(copy, message, n * sizeof *copy);
        assert_int_equal(qn_step_check(copy, n, &limits, &err), QN_FORMAT);
        qn_free(copy);
    }
    qn_free(message);
}

static void sizes_that_no_message_has_are_refused(void **state) {
    (void)state;
    size_t words = 7;
    qn_err err;
    const qn_step_sizes sizes[] = {
        {.rows = -1},
        {.rows = (int64_t)INT32_MAX + 1},
        {.segs = 1 << 16, .groups = 2, .pages = 1 << 16},
        {.extra = 1 << 16, .extra_width = 1 << 16},
        {.copies = INT32_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ASSERT_FAILS(qn_step_measure(&words, &sizes[i], &err), QN_LIMIT, "words");
    assert_int_equal(words, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_holds_what_was_written),
        cmocka_unit_test(every_index_is_checked),
        cmocka_unit_test(any_word_may_be_anything),
        cmocka_unit_test(sizes_that_no_message_has_are_refused),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
