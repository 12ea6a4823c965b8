// What the radix tree of sequence state finds, keeps and forgets.
#include "state_rig.h"

// Full attention: any beginning, to the row; also where two paths part inside a page.
static void finds_any_prefix(void **state) {
    (void)state;
    static rig_seq a, b, keys;
    rig r;
    rig_open(&r, RIG_FULL, rig_plenty);
    rig_open_seq(&r, &a);
    rig_grow_to(&r, &a, 300, 0);
    assert_int_equal(rig_try_find(&r, &a, 300), 0);
    qn_state_remember(a.seq, a.keys);
    qn_seq_close(a.seq);
    for (int64_t n = 1; n <= 300; n += 13) assert_int_equal(rig_try_find(&r, &a, n), n);
    keys = a;
    rig_add_key(&keys, 200, 99999);
    for (int64_t i = 201; i < 400; i++) rig_add_key(&keys, i, (uint64_t)i);
    assert_int_equal(rig_find(&r, &b, &keys, 400), 200);
    while (qn_seq_length(b.seq) < 400) { // parts from the other inside a page
        const int64_t past = qn_seq_length(b.seq);
        qn_err err;
        ASSERT_OK(qn_seq_prepare(b.seq, 100, 100, &err));
        assert_true(rig_run(&r, &b, 0, 100));
        qn_seq_finish(b.seq);
        assert_int_equal(qn_seq_length(b.seq), past + 100);
    }
    rig_check(&r, &b);
    qn_state_remember(b.seq, b.keys);
    qn_seq_close(b.seq);
    assert_int_equal(rig_try_find(&r, &keys, 400), 400);
    assert_int_equal(rig_try_find(&r, &a, 300), 300);
    assert_int_equal(qn_state_get_counts(r.state).hits, 24 + 3);
    assert_int_equal(qn_state_get_counts(r.state).evictions, 0);
    assert_int_equal(rig_pages_used(&r), 5 + 4); // 3 shared pages
    rig_must_be_empty(&r);
}

// Others go on from checkpoints alone: the longest that the keys allow, across siblings.
static void finds_checkpoints(void **state) {
    (void)state;
    for (rig_kind kind = RIG_WINDOW; kind <= RIG_STATES; kind++) {
        static rig_seq a, b, keys;
        rig r;
        rig_open(&r, kind, rig_plenty);
        rig_open_seq(&r, &a);
        const int64_t ends[] = {10, 170, 300};
        for (int i = 0; i < 3; i++) {
            rig_grow_to(&r, &a, ends[i], 0);
            qn_state_remember(a.seq, a.keys);
            rig_check(&r, &a);
        }
        qn_state_remember(a.seq, a.keys); // again: nothing new
        assert_int_equal(r.state->tree.n_marks_used, 3);
        qn_seq_close(a.seq);
        assert_int_equal(rig_try_find(&r, &a, 9), 0);
        assert_int_equal(rig_try_find(&r, &a, 10), 10);
        assert_int_equal(rig_try_find(&r, &a, 169), 10);
        assert_int_equal(rig_try_find(&r, &a, 170), 170);
        assert_int_equal(rig_try_find(&r, &a, 299), 170);
        assert_int_equal(rig_try_find(&r, &a, 1000), 300);
        // Parts at 180: finds 170, and its own checkpoint later. 170 lies in a sibling's node.
        keys = a;
        for (int64_t i = 180; i < 290; i++) rig_add_key(&keys, i, 5);
        assert_int_equal(rig_find(&r, &b, &keys, 290), 170);
        while (qn_seq_length(b.seq) < 290) {
            qn_err err;
            ASSERT_OK(qn_seq_prepare(b.seq, 60, 60, &err));
            assert_true(rig_run(&r, &b, 0, 60));
            qn_seq_finish(b.seq);
        }
        qn_state_remember(b.seq, b.keys);
        qn_seq_close(b.seq);
        assert_int_equal(rig_try_find(&r, &keys, 290), 290);
        assert_int_equal(rig_try_find(&r, &keys, 289), 170);
        assert_int_equal(rig_try_find(&r, &a, 300), 300);
        rig_must_be_empty(&r);
    }
}

// A window that the context never leaves keeps everything: any prefix can be found.
static void wide_windows_are_full(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    qn_state_opts opts = rig_plenty;
    opts.context = 100; // the window, too
    rig_open(&r, RIG_WINDOW, opts);
    rig_open_seq(&r, &s);
    rig_grow_to(&r, &s, 100, 0);
    qn_state_remember(s.seq, s.keys);
    assert_int_equal(qn_seq_truncate(s.seq, 1), 1);
    qn_seq_close(s.seq);
    assert_int_equal(rig_try_find(&r, &s, 77), 77);
    rig_must_be_empty(&r);
}

static void checkpoints_are_thinned(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    rig_open(&r, RIG_RECURRENT, rig_plenty);
    rig_open_seq(&r, &s);
    for (int64_t n = 1; n <= 512; n++) {
        rig_step(&r, &s, 1, 0, (uint64_t)n);
        qn_state_remember(s.seq, s.keys);
    }
    rig_check(&r, &s);
    // One for each of the distances 1, 2-3, 4-7, ..., 256-511, and the end itself.
    assert_int_equal(r.state->tree.n_marks_used, 10);
    int64_t n_classes = 0;
    for (int64_t low = 1; low < 512; low *= 2) {
        const int64_t got = rig_try_find(&r, &s, 512 - low);
        n_classes += got > 512 - 2 * low && got <= 512 - low;
    }
    assert_int_equal(n_classes, 9);
    qn_seq_close(s.seq);
    rig_must_be_empty(&r);
}

static void the_budget_holds(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s[8];
        rig r;
        qn_state_opts opts = rig_plenty;
        opts.kept_bytes = 20000;
        rig_open(&r, kind, opts);
        for (uint64_t i = 0; i < 8; i++) {
            rig_open_seq(&r, &s[i]);
            rig_grow_to(&r, &s[i], 300, i * 1000);
            qn_state_remember(s[i].seq, s[i].keys);
            qn_seq_close(s[i].seq);
            assert_int_equal(rig_try_find(&r, &s[0], 300), 300); // used again and again: stays
            assert_true(qn_state_get_counts(r.state).kept_bytes <= 20000);
        }
        assert_int_equal(rig_try_find(&r, &s[7], 300), 300);
        if (kind != RIG_STATES) { // there 20 fit
            assert_true(qn_state_get_counts(r.state).evictions > 0);
            assert_true(rig_try_find(&r, &s[1], 300) < 300);
        }
        rig_must_be_empty(&r);
    }
}

static void nothing_kept(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s;
        rig r;
        qn_state_opts opts = rig_plenty;
        opts.kept_bytes = 0;
        rig_open(&r, kind, opts);
        rig_open_seq(&r, &s);
        rig_grow_to(&r, &s, 300, 0);
        qn_state_remember(s.seq, s.keys);
        // What an open sequence holds can be found without keeping anything but slots.
        const int64_t got = rig_try_find(&r, &s, 300);
        assert_int_equal(got, kind == RIG_FULL || kind == RIG_WINDOW ? 300 : 0);
        qn_seq_close(s.seq);
        assert_int_equal(rig_pages_used(&r), 0);
        rig_must_be_empty(&r);
    }
}

// More paths than nodes: the oldest go, never the one that is being written.
static void nodes_run_out(void **state) {
    (void)state;
    static rig_seq s[12];
    rig r;
    rig_open(&r, RIG_STATES,
             (qn_state_opts){
                 .context = 192, .step_rows = RIG_STEP, .n_seqs = 1, .kept_bytes = RIG_KEPT});
    assert_int_equal(r.state->tree.n_nodes, 7); // two paths and the root
    for (uint64_t i = 0; i < 12; i++) {
        rig_open_seq(&r, &s[i]);
        rig_grow_to(&r, &s[i], 64, i / 3 * 1000);
        qn_state_remember(s[i].seq, s[i].keys);
        rig_grow_to(&r, &s[i], 192, i * 1000);
        qn_state_remember(s[i].seq, s[i].keys);
        rig_check(&r, &s[i]);
        qn_seq_close(s[i].seq);
        assert_int_equal(rig_try_find(&r, &s[i], 192), 192);
    }
    assert_true(qn_state_get_counts(r.state).evictions > 0);
    rig_must_be_empty(&r);
}

// Remembers `length` rows with keys `first`, first + 1, ... in a sequence of their own.
static void remember(rig *r, rig_seq *s, int64_t length, uint64_t first) {
    rig_open_seq(r, s);
    rig_grow_to(r, s, length, first);
    qn_state_remember(s->seq, s->keys);
    rig_check(r, s);
    qn_seq_close(s->seq);
}

// The node that grows is itself the one used longest ago.
static void the_oldest_node_grows(void **state) {
    (void)state;
    static rig_seq s;
    static uint64_t other[64];
    rig r;
    qn_state_opts opts = {
        .context = 192, .step_rows = RIG_STEP, .n_seqs = 1, .kept_bytes = RIG_KEPT};
    rig_open(&r, RIG_STATES, opts);
    remember(&r, &s, 64, 0);
    remember(&r, &s, 192, 1000);
    remember(&r, &s, 128, 2000);
    assert_int_equal(r.state->tree.free_node, -1);
    assert_int_equal(r.state->tree.n_nodes_touched, r.state->tree.n_nodes);
    remember(&r, &s, 192, 0);
    assert_int_equal(rig_try_find(&r, &s, 192), 192);
    rig_must_be_empty(&r);
    // With full attention only wrong keys use up the nodes.
    opts.context = 128;
    opts.kept_bytes = 0;
    rig_open(&r, RIG_FULL, opts);
    rig_open_seq(&r, &s);
    rig_grow_to(&r, &s, 64, 0);
    qn_state_remember(s.seq, s.keys);
    qn_state_remember(s.seq, other);
    assert_int_equal(r.state->tree.free_node, -1);
    assert_int_equal(r.state->tree.n_nodes_touched, r.state->tree.n_nodes);
    rig_grow_to(&r, &s, 128, 0);
    qn_state_remember(s.seq, s.keys);
    rig_check(&r, &s);
    qn_seq_close(s.seq);
    rig_must_be_empty(&r);
}

static void remembering_again_is_use(void **state) {
    (void)state;
    static rig_seq a, b, c;
    rig r;
    rig_open(
        &r, RIG_STATES,
        (qn_state_opts){.context = 192, .step_rows = RIG_STEP, .n_seqs = 1, .kept_bytes = 2048});
    assert_int_equal(r.state->tree.n_marks, 2);
    remember(&r, &a, 100, 0);
    remember(&r, &b, 100, 1000);
    remember(&r, &a, 100, 0);
    remember(&r, &c, 100, 2000);
    assert_int_equal(rig_try_find(&r, &a, 100), 100);
    assert_int_equal(rig_try_find(&r, &b, 100), 0);
    assert_int_equal(rig_try_find(&r, &c, 100), 100);
    rig_must_be_empty(&r);
}

// Keys that contradict the content are the caller's fault, and nobody's crash.
static void wrong_keys(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s;
        static uint64_t keys[RIG_CONTEXT];
        rig r;
        rig_open(&r, kind, rig_plenty);
        rig_open_seq(&r, &s);
        rig_grow_to(&r, &s, 400, 0);
        for (uint64_t i = 0; i < 300; i++) {
            for (size_t k = i % 7 * 60; k < RIG_CONTEXT; k++) keys[k] = i % 11;
            qn_state_remember(s.seq, keys);
            const char *fault = rig_check_counts(&r);
            if (fault) fail_msg("%s", fault);
        }
        qn_seq_close(s.seq);
        rig_must_be_empty(&r);
    }
}

static void nothing_is_no_trouble(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    rig_open(&r, RIG_ALL, rig_plenty);
    rig_open_seq(&r, &s);
    qn_state_remember(s.seq, s.keys);
    assert_int_equal(qn_state_find(s.seq, s.keys, 0), 0);
    assert_int_equal(qn_seq_truncate(s.seq, 0), 0);
    qn_state_evict(r.state, -5);
    qn_seq_close(s.seq);
    qn_seq_close(NULL);
    qn_state_destroy(NULL);
    qn_state_layout_destroy(NULL);
    rig_must_be_empty(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_any_prefix),
        cmocka_unit_test(finds_checkpoints),
        cmocka_unit_test(wide_windows_are_full),
        cmocka_unit_test(checkpoints_are_thinned),
        cmocka_unit_test(the_budget_holds),
        cmocka_unit_test(nothing_kept),
        cmocka_unit_test(nodes_run_out),
        cmocka_unit_test(the_oldest_node_grows),
        cmocka_unit_test(remembering_again_is_use),
        cmocka_unit_test(wrong_keys),
        cmocka_unit_test(nothing_is_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
