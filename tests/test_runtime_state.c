// Sequence state, operation by operation: the layout, sizes, steps, windows, logs and sharing.
#include "state_rig.h"

// --- layout and sizes ---

static void layout_groups(void **state) {
    (void)state;
    rig r;
    rig_open(&r, RIG_ALL, rig_plenty);
    assert_int_equal(qn_state_groups(r.state), 3); // full, window 100, window 1
    assert_int_equal(r.layout->n_caches, 4);
    assert_int_equal(r.layout->n_slots, 2);
    const int64_t group[] = {0, 1, 2, 0}, offset[] = {0, 0, 0, 512},
                  bytes[] = {1024, 512, 512, 1024};
    for (size_t i = 0; i < 4; i++) {
        const qn_cache_view *view = qn_kv_cache(qn_state_memory(r.state), i);
        assert_int_equal(view->group, group[i]);
        assert_int_equal(view->offset, offset[i]);
        assert_int_equal(view->page_bytes, bytes[i]);
        assert_int_equal((uintptr_t)view->pages % 64, 0);
    }
    const qn_slots_view *conv = qn_kv_slots(qn_state_memory(r.state), 0),
                        *delta = qn_kv_slots(qn_state_memory(r.state), 1);
    assert_int_equal(conv->state_size, 2);
    assert_int_equal(conv->log_size, 2);
    assert_int_equal(delta->log_size, 5); // k 1, v 2, g 1, beta 1
    assert_int_equal(delta->offset, 64);
    assert_int_equal(conv->log_offset, 128);
    assert_int_equal(delta->log_offset, 128 + 32 * 2 * 4);
    assert_int_equal(delta->slot_bytes, 128 + 32 * 2 * 4 + 32 * 5 * 4);
    assert_int_equal(qn_state_pages_per_seg(r.state), RIG_PAGES);
    rig_close(&r);
}

// The same layers after passes: one op that rotates, writes and attends.
static void layout_of_fused_attention(void **state) {
    (void)state;
    const qn_shape one = {3, {{1, QN_SYM_ONE}, {2, QN_SYM_ONE}, {2, QN_SYM_ONE}}};
    const qn_shape angles = {3, {{1, QN_SYM_T}, {2, QN_SYM_ONE}, {1, QN_SYM_ONE}}};
    qn_graph graph = {0};
    qn_state_layout *layout;
    qn_build b;
    qn_err err;
    qn_build_init(&b, &graph, "fused");
    const int32_t table = qn_build_input(&b, "table", QN_TABLE, QN_TYPE_F32, (qn_shape){0});
    const int32_t x = rig_rows(&b, "x", 1, 2);
    const int32_t turn = qn_build_input(&b, "angles", QN_TENSOR, QN_TYPE_F32, angles);
    for (int64_t i = 0; i < 2; i++) {
        const int32_t cache = qn_build_input(&b, "cache", QN_CACHE, QN_TYPE_F32, one);
        const qn_attrs attrs = {.scale = 1,
                                .window = i * 512,
                                .rule = QN_WORD_causal,
                                .rotate = 2,
                                .pairs = QN_WORD_half};
        qn_build_op(&b, QN_OP_ATTENTION, (int32_t[]){x, x, x, cache, turn, table}, 6, &attrs);
    }
    ASSERT_OK(qn_build_finish(&b, &err));
    ASSERT_OK(rig_layout(&layout, &graph, &rig_backend, QN_CACHE_F16, &err));
    assert_int_equal(layout->n_groups, 2);
    assert_int_equal(layout->groups[0].window, 0);
    assert_int_equal(layout->groups[1].window, 512);
    assert_int_equal(layout->caches[1].group, 1);
    qn_state_layout_destroy(layout);
    qn_graph_deinit(&graph);
}

// A cache that several layers read is kept as far as the widest of them sees.
static void layout_of_shared_caches(void **state) {
    (void)state;
    const qn_shape one = {3, {{1, QN_SYM_ONE}, {1, QN_SYM_ONE}, {1, QN_SYM_ONE}}};
    const int64_t windows[][3] = {{100, 0, 0}, {0, 100, 0}, {100, 50, 100}, {50, 100, 100}};
    for (size_t i = 0; i < 4; i++) {
        qn_graph graph = {0};
        qn_state_layout *layout;
        qn_build b;
        qn_err err;
        qn_build_init(&b, &graph, "shared");
        const int32_t table = qn_build_input(&b, "table", QN_TABLE, QN_TYPE_F32, (qn_shape){0});
        const int32_t x = rig_rows(&b, "x", 1, 1);
        const int32_t cache = qn_build_input(&b, "cache", QN_CACHE, QN_TYPE_F32, one);
        const int32_t in[] = {cache, x, x, table};
        const int32_t next = qn_build_op(&b, QN_OP_KV_WRITE, in, 4, NULL);
        for (int k = 0; k < 2; k++) {
            const qn_attrs attrs = {.scale = 1, .window = windows[i][k], .rule = QN_WORD_causal};
            qn_build3(&b, QN_OP_ATTEND, x, next, table, &attrs);
        }
        ASSERT_OK(qn_build_finish(&b, &err));
        ASSERT_OK(rig_layout(&layout, &graph, &rig_backend, QN_CACHE_F32, &err));
        assert_int_equal(layout->n_groups, 1);
        assert_int_equal(layout->groups[0].window, windows[i][2]);
        qn_state_layout_destroy(layout);
        qn_graph_deinit(&graph);
    }
}

static int64_t no_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size) {
    (void)type, (void)heads, (void)k_size, (void)v_size;
    return INT64_MAX;
}

static void layout_refuses(void **state) {
    (void)state;
    const qn_backend huge = {.name = "huge", .cache_bytes = no_bytes};
    const qn_shape vast = {3, {{1, QN_SYM_ONE}, {INT64_MAX / 4, QN_SYM_ONE}, {8, QN_SYM_ONE}}};
    const qn_shape tail = {2, {{1, QN_SYM_ONE}, {2, QN_SYM_ONE}}};
    qn_state_layout *layout = NULL;
    qn_graph graph = {0}, lonely = {0}, large = {0};
    qn_build b;
    qn_err err;
    rig_graph(&graph, RIG_WINDOW);
    ASSERT_FAILS(rig_layout(&layout, &graph, &rig_backend, QN_CACHE_AUTO, &err), QN_ARGUMENT,
                 "cache type 0");
    ASSERT_FAILS(rig_layout(&layout, &graph, &huge, QN_CACHE_F32, &err), QN_LIMIT, "full.0");
    qn_build_init(&b, &lonely, "lonely");
    qn_build_input(&b, "alone", QN_STATE_VALUE, QN_TYPE_F32, tail);
    ASSERT_OK(qn_build_finish(&b, &err));
    ASSERT_FAILS(rig_layout(&layout, &lonely, &rig_backend, QN_CACHE_F32, &err), QN_FORMAT,
                 "alone");
    qn_build_init(&b, &large, "large");
    qn_build_input(&b, "vast", QN_CACHE, QN_TYPE_F32, vast);
    ASSERT_OK(qn_build_finish(&b, &err));
    ASSERT_FAILS(rig_layout(&layout, &large, &rig_backend, QN_CACHE_F32, &err), QN_LIMIT, "vast");
    assert_null(layout);
    qn_graph_deinit(&graph);
    qn_graph_deinit(&lonely);
    qn_graph_deinit(&large);
}

static void sizes_are_refused(void **state) {
    (void)state;
    rig r;
    qn_state *made = NULL;
    qn_err err;
    rig_open(&r, RIG_ALL, rig_plenty);
    const struct {
        qn_state_opts opts;
        qn_status status;
        const char *part;
    } cases[] = {
        {{.context = 0, .step_rows = 1, .n_seqs = 1}, QN_ARGUMENT, "context of 0"},
        {{.context = INT64_MAX, .step_rows = 1, .n_seqs = 1}, QN_ARGUMENT, "9223372036854775807"},
        {{.context = 9, .step_rows = 0, .n_seqs = 1}, QN_ARGUMENT, "0 rows"},
        {{.context = 9, .step_rows = 1, .n_seqs = 0}, QN_ARGUMENT, "0 sequences"},
        {{.context = 9, .step_rows = 1, .n_seqs = INT64_MAX}, QN_ARGUMENT, "1073741823"},
        {{.context = 9, .step_rows = 1, .n_seqs = 1, .kept_bytes = -1}, QN_ARGUMENT, "-1 bytes"},
        {{.context = 99, .step_rows = 1, .n_seqs = 1, .positions = 98},
         QN_ARGUMENT,
         "98 positions"},
        {{.context = 1 << 30, .step_rows = 1, .n_seqs = 1 << 20}, QN_LIMIT, "1048576 sequences"},
        {{.context = 9, .step_rows = 1, .n_seqs = 1, .kept_bytes = INT64_MAX}, QN_LIMIT, "pages"},
        {{.context = 1 << 30, .step_rows = INT64_MAX, .n_seqs = 64}, QN_MEMORY, "bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_state_opts opts = cases[i].opts;
        opts.layout = r.layout;
        if (cases[i].status == QN_MEMORY) { // measured, not taken
            qn_state_size size;
            ASSERT_OK(qn_state_measure(&size, &opts, &err));
            assert_true(size.all > (int64_t)1 << 30);
            continue;
        }
        ASSERT_FAILS(qn_state_create(&made, &opts, &err), cases[i].status, cases[i].part);
    }
    assert_null(made);
    rig_close(&r);
}

// `all` is what the pools hold; `used` is what one long sequence comes to hold at most.
static void sizes_are_exact(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s;
        rig r;
        qn_state_size size;
        qn_err err;
        qn_state_opts opts = rig_plenty;
        opts.step_rows = 71; // comes to lie at many places relative to page borders
        rig_open(&r, kind, opts);
        opts.layout = r.layout;
        ASSERT_OK(qn_state_measure(&size, &opts, &err));
        const qn_state_counts counts = qn_state_get_counts(r.state);
        int64_t all = counts.slots_all * r.layout->slot_bytes, max[RIG_GROUPS] = {0};
        for (int64_t g = 0; g < r.state->n_groups; g++)
            all += r.state->groups[g].n * r.state->groups[g].page_bytes;
        assert_int_equal(size.all, all);
        assert_int_equal(size.slots_used, r.layout->slot_bytes);
        rig_open_seq(&r, &s);
        while (qn_seq_length(s.seq) < RIG_CONTEXT) {
            const int64_t past = qn_seq_length(s.seq), left = RIG_CONTEXT - past;
            const int64_t rows = left < 71 ? left : 71;
            ASSERT_OK(qn_seq_prepare(s.seq, rows, rows > 32 ? rows - 32 : 0, &err));
            for (int64_t g = 0; g < r.state->n_groups; g++) {
                const state_pages *pages = &r.state->groups[g];
                const int64_t held = (pages->n - pages->n_free) * pages->page_bytes;
                if (held > max[g]) max[g] = held;
            }
            for (int64_t i = 0; i < rows; i++) rig_add_key(&s, past + i, 7);
            assert_true(rig_run(&r, &s, 0, rows));
            qn_seq_finish(s.seq);
            rig_check(&r, &s);
        }
        assert_int_equal(size.cache_used, max[0] + max[1] + max[2]);
        qn_seq_close(s.seq);
        rig_must_be_empty(&r);
    }
}

// --- steps ---

static void prepare_refuses(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    qn_err err;
    rig_open(&r, RIG_RECURRENT, rig_plenty);
    rig_open_seq(&r, &s);
    ASSERT_FAILS(qn_seq_prepare(s.seq, 0, 0, &err), QN_LIMIT, "0 rows");
    ASSERT_FAILS(qn_seq_prepare(s.seq, 201, 201, &err), QN_LIMIT, "201 rows, want 1 to 200");
    ASSERT_FAILS(qn_seq_prepare(s.seq, 5, 6, &err), QN_ARGUMENT, "6 certain rows in a step of 5");
    ASSERT_FAILS(qn_seq_prepare(s.seq, 33, 0, &err), QN_LIMIT, "33 uncertain rows, a log holds 32");
    rig_grow_to(&r, &s, 990, 0);
    ASSERT_FAILS(qn_seq_prepare(s.seq, 11, 11, &err), QN_LIMIT, "11 rows after 990");
    ASSERT_OK(qn_seq_prepare(s.seq, 10, 10, &err));
    ASSERT_FAILS(qn_seq_prepare(s.seq, 1, 1, &err), QN_ARGUMENT, "while one of 10 is prepared");
    qn_seq_cancel(s.seq);
    rig_check(&r, &s);
    qn_seq_close(s.seq);
    rig_must_be_empty(&r);
}

// Without room prepare says what it wants and what there is, and changes nothing.
static void prepare_without_room(void **cmocka_state) {
    (void)cmocka_state;
    static rig_seq a, b;
    rig r;
    qn_err err;
    rig_open(&r, RIG_WINDOW,
             (qn_state_opts){.context = 640, .step_rows = RIG_STEP, .n_seqs = 2, .positions = 640});
    rig_open_seq(&r, &a);
    rig_open_seq(&r, &b);
    rig_grow_to(&r, &a, 640, 0); // 10 of 12 pages
    rig_grow_to(&r, &b, 100, 0);
    const int64_t before = rig_pages_used(&r);
    ASSERT_FAILS(qn_seq_prepare(b.seq, 100, 100, &err), QN_LIMIT,
                 "needs 2 pages, 0 of 12 are free");
    assert_int_equal(rig_pages_used(&r), before);
    rig_step(&r, &b, 28, 0, 100);
    rig_check(&r, &a);
    rig_check(&r, &b);
    qn_seq_close(a.seq);
    rig_step(&r, &b, 100, 0, 128);
    rig_check(&r, &b);
    qn_seq_close(b.seq);
    rig_must_be_empty(&r);
}

// One sequence of the whole context fits, whatever the tree holds and shares with it.
static void context_fits_beside_the_tree(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s;
        rig r;
        rig_open(
            &r, kind,
            (qn_state_opts){
                .context = RIG_CONTEXT, .step_rows = RIG_STEP, .n_seqs = 1, .kept_bytes = 5000});
        for (uint64_t i = 0; i < 6; i++) {
            rig_open_seq(&r, &s);
            rig_grow_to(&r, &s, 70 + (int64_t)i * 30, i * 10000);
            qn_state_remember(s.seq, s.keys);
            rig_check(&r, &s);
            while (qn_seq_length(s.seq) + 33 <= RIG_CONTEXT) {
                rig_step(&r, &s, 33, 0, i * 10000 + (uint64_t)qn_seq_length(s.seq));
                qn_state_remember(s.seq, s.keys); // the last page is shared with the tree
            }
            rig_grow_to(&r, &s, RIG_CONTEXT, i * 10000);
            rig_check(&r, &s);
            qn_seq_close(s.seq);
        }
        rig_must_be_empty(&r);
    }
}

static void cancel_restores(void **state) {
    (void)state;
    static rig_seq a, b;
    rig r;
    qn_err err;
    rig_open(&r, RIG_ALL, rig_plenty);
    rig_open_seq(&r, &a);
    rig_grow_to(&r, &a, 100, 0);
    ASSERT_OK(qn_seq_fork(&b.seq, a.seq, &err));
    rig_copy_keys(&b, &a);
    const int32_t tail = b.seq->groups[0].pages[1];
    const int64_t before = rig_pages_used(&r);
    ASSERT_OK(qn_seq_prepare(b.seq, 60, 60, &err));
    assert_int_equal(rig_pages_used(&r), before + 3 * 2); // three groups: a copy and a new page
    assert_true(b.seq->groups[0].pages[1] != tail);
    qn_seq_cancel(b.seq);
    qn_seq_cancel(b.seq); // nothing is prepared: nothing happens
    assert_int_equal(rig_pages_used(&r), before);
    assert_int_equal(b.seq->groups[0].pages[1], tail);
    rig_check(&r, &b);
    ASSERT_OK(qn_seq_prepare(b.seq, 60, 60, &err));
    qn_seq_close(b.seq); // cancels
    assert_int_equal(rig_pages_used(&r), before);
    qn_seq_close(a.seq);
    rig_must_be_empty(&r);
}

// --- windows and logs ---

static void windows_give_back(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    rig_open(&r, RIG_WINDOW, rig_plenty);
    rig_open_seq(&r, &s);
    rig_grow_to(&r, &s, 1000, 0);
    const seq_group *own = &s.seq->groups[1];
    assert_int_equal(own->end, 16);
    assert_int_equal(own->first, (1000 - 100 + 1) / 64);
    assert_int_equal(s.seq->groups[0].first, 0);
    int32_t past, slot, accept, commit, pages[2 * RIG_PAGES];
    qn_err err;
    qn_seq_truncate(s.seq, 999);
    ASSERT_OK(qn_seq_prepare(s.seq, 1, 1, &err));
    qn_seq_fill(
        s.seq,
        &(qn_seg_tables){&past, &slot, &accept, &commit, pages, qn_state_pages_per_seg(r.state)},
        0);
    for (int i = 0; i < RIG_PAGES; i++) {
        assert_true(pages[i] >= 0);
        assert_int_equal(pages[RIG_PAGES + i] >= 0, i >= own->first);
    }
    assert_int_equal(past, 999);
    qn_seq_cancel(s.seq);
    qn_seq_close(s.seq);
    rig_must_be_empty(&r);
}

// All uncertain rows can be taken back, one by one, from every place relative to page borders.
static void uncertain_rows_go_back(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq s;
        rig r;
        rig_open(&r, kind, rig_plenty);
        for (int64_t length = 150; length < 150 + 70; length++) {
            rig_open_seq(&r, &s);
            rig_grow_to(&r, &s, length, 0);
            rig_step(&r, &s, 40, QN_LOG_ROWS, 5000);
            for (int64_t back = 1; back <= QN_LOG_ROWS; back++) {
                assert_int_equal(qn_seq_truncate(s.seq, length + 40 - back), length + 40 - back);
                rig_check(&r, &s);
            }
            rig_step(&r, &s, 3, 1, 6000);
            rig_check(&r, &s);
            assert_int_equal(qn_seq_truncate(s.seq, -1), 0);
            qn_seq_close(s.seq);
        }
        rig_must_be_empty(&r);
    }
}

static void truncate_tells_what_is_left(void **state) {
    (void)state;
    const int64_t want[] = {[RIG_FULL] = 500, [RIG_WINDOW] = 0, [RIG_RECURRENT] = 0};
    for (rig_kind kind = RIG_FULL; kind <= RIG_RECURRENT; kind++) {
        static rig_seq s;
        rig r;
        rig_open(&r, kind, rig_plenty);
        rig_open_seq(&r, &s);
        rig_grow_to(&r, &s, 900, 0);
        assert_int_equal(qn_seq_truncate(s.seq, 901), 900);
        assert_int_equal(qn_seq_truncate(s.seq, 500), want[kind]);
        rig_check(&r, &s);
        rig_grow_to(&r, &s, 600, 3);
        rig_check(&r, &s);
        qn_seq_close(s.seq);
        rig_must_be_empty(&r);
    }
}

// --- sharing ---

static void forks_part(void **state) {
    (void)state;
    static rig_seq a, b, c;
    rig r;
    qn_err err;
    rig_open(&r, RIG_ALL, rig_plenty);
    rig_open_seq(&r, &a);
    rig_grow_to(&r, &a, 290, 0);
    rig_step(&r, &a, 10, 10, 290);
    ASSERT_OK(qn_seq_fork(&b.seq, a.seq, &err));
    rig_copy_keys(&b, &a);
    assert_int_equal(qn_seq_truncate(b.seq, 295), 295);
    ASSERT_OK(qn_seq_fork(&c.seq, b.seq, &err));
    rig_copy_keys(&c, &b);
    // Both in one step: prepared, then run, then finished.
    ASSERT_OK(qn_seq_prepare(a.seq, 50, 50, &err));
    ASSERT_OK(qn_seq_prepare(b.seq, 50, 20, &err));
    for (int64_t i = 0; i < 50; i++) {
        rig_add_key(&a, 300 + i, 1);
        rig_add_key(&b, 295 + i, 2);
    }
    assert_true(rig_run(&r, &b, 1, 50));
    assert_true(rig_run(&r, &a, 0, 50));
    qn_seq_finish(a.seq);
    qn_seq_finish(b.seq);
    rig_step(&r, &c, 100, 0, 77);
    rig_check(&r, &a);
    rig_check(&r, &b);
    rig_check(&r, &c);
    rig_seq *all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) qn_seq_close(all[i]->seq);
    rig_must_be_empty(&r);
}

static void the_last_holder_writes_in_place(void **state) {
    (void)state;
    static rig_seq a, b;
    rig r;
    qn_err err;
    rig_open(&r, RIG_FULL, rig_plenty);
    rig_open_seq(&r, &a);
    rig_grow_to(&r, &a, 100, 0);
    ASSERT_OK(qn_seq_fork(&b.seq, a.seq, &err));
    rig_copy_keys(&b, &a);
    const int32_t tail = a.seq->groups[0].pages[1];
    rig_step(&r, &a, 1, 0, 1);
    assert_true(a.seq->groups[0].pages[1] != tail);
    rig_step(&r, &b, 1, 0, 2);
    assert_int_equal(b.seq->groups[0].pages[1], tail);
    assert_int_equal(a.seq->groups[0].pages[0], b.seq->groups[0].pages[0]);
    assert_int_equal(rig_pages_used(&r), 3);
    qn_seq_close(a.seq);
    qn_seq_close(b.seq);
    rig_must_be_empty(&r);
}

static void checkpoints_restore(void **state) {
    (void)state;
    for (rig_kind kind = RIG_FULL; kind <= RIG_STATES; kind++) {
        static rig_seq a, b, then;
        rig r, other;
        qn_checkpoint *checkpoint, *more;
        qn_err err;
        rig_open(&r, kind, rig_plenty);
        rig_open(&other, kind, rig_plenty);
        rig_open_seq(&r, &a);
        rig_open_seq(&other, &b);
        rig_grow_to(&r, &a, 300, 0);
        rig_step(&r, &a, 9, 9, 300);
        then = a;
        ASSERT_OK(qn_checkpoint_create(&checkpoint, a.seq, &err));
        assert_int_equal(qn_checkpoint_length(checkpoint), 309);
        for (uint64_t i = 0; i < 3; i++) {
            rig_grow_to(&r, &a, 800, 900 * i);
            ASSERT_OK(qn_seq_restore(a.seq, checkpoint, &err));
            rig_copy_keys(&a, &then);
            rig_check(&r, &a);
            assert_int_equal(qn_seq_truncate(a.seq, 303), 303); // its log came along
            rig_check(&r, &a);
        }
        ASSERT_FAILS(qn_seq_restore(b.seq, checkpoint, &err), QN_ARGUMENT, "another state");
        ASSERT_OK(qn_seq_prepare(a.seq, 1, 1, &err));
        ASSERT_FAILS(qn_seq_restore(a.seq, checkpoint, &err), QN_ARGUMENT, "prepared");
        qn_seq_cancel(a.seq);
        ASSERT_OK(qn_checkpoint_create(&more, a.seq, &err));
        qn_checkpoint_destroy(checkpoint);
        qn_checkpoint_destroy(more);
        qn_checkpoint_destroy(NULL);
        qn_seq_close(a.seq);
        qn_seq_close(b.seq);
        rig_must_be_empty(&r);
        rig_must_be_empty(&other);
    }
}

static void too_many(void **state) {
    (void)state;
    static rig_seq s;
    rig r;
    qn_checkpoint *checkpoints[3];
    qn_seq *more;
    qn_err err;
    rig_open(&r, RIG_ALL, rig_plenty);
    rig_open_seq(&r, &s);
    for (int i = 0; i < 3; i++) ASSERT_OK(qn_checkpoint_create(&checkpoints[i], s.seq, &err));
    ASSERT_FAILS(qn_seq_open(&more, r.state, &err), QN_LIMIT, "4 sessions and snapshots");
    ASSERT_FAILS(qn_seq_fork(&more, s.seq, &err), QN_LIMIT, "made for 4");
    for (int i = 0; i < 3; i++) qn_checkpoint_destroy(checkpoints[i]);
    qn_seq_close(s.seq);
    rig_must_be_empty(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_groups),
        cmocka_unit_test(layout_of_fused_attention),
        cmocka_unit_test(layout_of_shared_caches),
        cmocka_unit_test(layout_refuses),
        cmocka_unit_test(sizes_are_refused),
        cmocka_unit_test(sizes_are_exact),
        cmocka_unit_test(prepare_refuses),
        cmocka_unit_test(prepare_without_room),
        cmocka_unit_test(context_fits_beside_the_tree),
        cmocka_unit_test(cancel_restores),
        cmocka_unit_test(windows_give_back),
        cmocka_unit_test(uncertain_rows_go_back),
        cmocka_unit_test(truncate_tells_what_is_left),
        cmocka_unit_test(forks_part),
        cmocka_unit_test(the_last_holder_writes_in_place),
        cmocka_unit_test(checkpoints_restore),
        cmocka_unit_test(too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
