// The output head: logits equal those of a plain matmul and soft cap, and the best of each row
// those that a slow search finds, whatever the level, the rows, the pieces and what is asked for.
#include "matmul_rig.h"

#include "ir/build.h"

typedef struct head_case {
    qn_type type;
    qn_word form;
    int64_t n_out, n_in, rows, top; // top 0: all that the op has
    float cap;
    int64_t entries;  // that can be among the best; 0: all
    int64_t computed; // that are computed at all; 0: all
} head_case;

// Width of the temporary that the recipe asks for.
static int64_t temp_width(const weight *w, int64_t top) {
    qn_graph graph = {0};
    qn_build b;
    qn_err err;
    qn_plan_arg temp[QN_MAX_TEMPS];
    qn_build_init(&b, &graph, "head");
    const qn_shape x = {2, {{1, QN_SYM_R}, {w->packed.n_in, QN_SYM_ONE}}};
    const qn_shape shape = {2, {{w->packed.n_out, QN_SYM_ONE}, {w->packed.n_in, QN_SYM_ONE}}};
    const int32_t in = qn_build_input(&b, "x", QN_TENSOR, QN_TYPE_F32, x);
    const int32_t param = qn_build_param(&b, "w", w->packed.type, shape);
    const int32_t out = qn_build2(&b, QN_OP_HEAD, in, param, &(qn_attrs){.top = top});
    ASSERT_OK(qn_build_finish(&b, &err));
    const qn_node *node = &graph.nodes[graph.values[out].node];
    assert_int_equal(level(0)->backend.recipes[QN_OP_HEAD].temps(temp, &graph, node), 1);
    qn_graph_deinit(&graph);
    return temp[0].width;
}

typedef struct entry {
    float logit;
    int32_t id;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

// A row of `best`, `max` entries wide, of which `top` are wanted.
// Only ids below `end` can be among them.
static void slow_best(float *to, const float *row, int64_t n, int64_t top, int64_t max,
                      int64_t end) {
    entry *sorted = qn_alloc((size_t)n, sizeof *sorted);
    size_t kept = 0;
    assert_non_null(sorted);
    to[0] = INFINITY;
    to[1] = -1;
    for (int64_t i = n; i-- > 0;) {
        if (row[i] > -INFINITY && i < end) sorted[kept++] = (entry){row[i], (int32_t)i};
        if (!isfinite(row[i])) to[1] = (float)i;
        to[0] = fminf(to[0], row[i]);
    }
    if (to[1] >= 0) to[0] = row[(int64_t)to[1]];
    qsort(sorted, kept, sizeof *sorted, compare_entries);
    for (int64_t k = 0; k < max; k++) {
        const bool is_there = k < top && k < (int64_t)kept;
        to[2 + k] = is_there ? sorted[k].logit : -INFINITY;
        to[2 + max + k] = is_there ? (float)sorted[k].id : -1;
    }
    qn_free(sorted);
}

static void check_best(const qn_operand *best, const float *row, int64_t r, const head_case *c,
                       const char *what) {
    float want[2 + 2 * QN_HEAD_TOP];
    const float *got = at(best, r);
    slow_best(want, row, c->computed ? c->computed : c->n_out, c->top ? c->top : QN_HEAD_TOP,
              QN_HEAD_TOP, c->entries ? c->entries : c->n_out);
    for (int i = 0; i < 2 + 2 * QN_HEAD_TOP; i++) {
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: %d rows, %d outputs, top %d: row %d, number %d is %g, want %g", what,
                     (int)c->rows, (int)c->n_out, (int)c->top, (int)r, i, (double)got[i],
                     (double)want[i]);
    }
}

// The same by the plain ops.
static qn_operand plain_logits(const qn_cpu_level *backend, const qn_operand *x, const weight *w,
                               const head_case *c) {
    qn_operand product = matmul(backend, x, w, c->rows);
    if (c->cap == 0) return product;
    qn_operand out = make_rows(c->rows, 1, c->n_out, QN_WORD_f32);
    const qn_attrs attrs = {.cap = c->cap};
    const qn_task task = {.attrs = &attrs, .in = {product}, .out = {out}, .rows = c->rows};
    run_op(backend, QN_OP_SOFTCAP, &task, false);
    free(product.data);
    return out;
}

// full_every 0: out_full is NULL; else every so many rows are wanted whole.
static void check_case(const head_case *c, const weight *w, const qn_operand *x, int full_every) {
    const qn_attrs attrs = {.top = QN_HEAD_TOP, .cap = c->cap};
    int32_t full[MAX_ROWS];
    for (int i = 0; i < MAX_ROWS; i++) full[i] = full_every && i % full_every == 0;
    const qn_step step = {.n_out = c->rows,
                          .out_full = full_every ? full : NULL,
                          .top = c->top,
                          .entries = c->entries,
                          .computed = c->computed};
    for (size_t l = 0; level(l); l++) {
        const char *what = describe(w->kind, c->form, c->n_in, level(l)->name);
        qn_operand panels = packed_rows(level(l), x, c->rows, c->form);
        qn_operand want = plain_logits(level(l), &panels, w, c);
        qn_operand logits = make_rows(c->rows, 1, c->n_out, QN_WORD_f32);
        qn_operand best = make_rows(c->rows, 1, 2 + 2 * QN_HEAD_TOP, QN_WORD_f32);
        qn_operand temp = make_rows(c->rows, 1, temp_width(w, QN_HEAD_TOP), QN_WORD_f32);
        const qn_task task = {.attrs = &attrs,
                              .in = {panels, weight_operand(w)},
                              .out = {logits, best},
                              .temp = {temp},
                              .step = &step,
                              .rows = c->rows};
        run_op(level(l), QN_OP_HEAD, &task, (l + (size_t)c->rows) % 2);
        for (int64_t r = 0; r < c->rows; r++) {
            check_best(&best, at(&want, r), r, c, what);
            if (full_every && !full[r]) memset(at(&want, r), 0xee, (size_t)want.stride);
            if (c->computed) // the rest stays as it was
                memset((float *)at(&want, r) + c->computed, 0xee,
                       (size_t)(c->n_out - c->computed) * sizeof(float));
        }
        same_rows(&want, &logits, c->rows, what);
        free(panels.data);
        free(want.data);
        free(logits.data);
        free(best.data);
        free(temp.data);
    }
}

static void run_case(const head_case *c, const weight *w, uint64_t seed) {
    qn_operand x = make_rows(c->rows, 1, c->n_in, QN_WORD_f32);
    fill_rows(&x, c->rows, seed);
    for (int every = 0; every <= 3; every += 1 + (every == 1)) check_case(c, w, &x, every);
    free(x.data);
}

static void head_is_matmul_and_search(void **state) {
    (void)state;
    static const head_case cases[] = {
        {QN_TYPE_Q6_K, QN_WORD_i12_256, 1003, 512, 1, 1, 0, 0, 0},
        {QN_TYPE_Q6_K, QN_WORD_i8_32, 130, 256, 9, 40, 30, 0, 0},
        {QN_TYPE_Q4_K, QN_WORD_i12_256, 49, 256, 3, 5, 0, 0, 0},
        {QN_TYPE_Q8_0, QN_WORD_i12_256, 2000, 96, 65, 1, 0, 0, 0},
        {QN_TYPE_Q8_0, QN_WORD_i8_32, 48, 32, 8, 64, 5, 0, 0},
        {QN_TYPE_BF16, QN_WORD_f32, 47, 61, 2, 64, 0, 0, 0},
        {QN_TYPE_F16, QN_WORD_f32, 1, 31, 4, 3, 0, 0, 0},
        {QN_TYPE_F32, QN_WORD_f32, 5, 29, 70, 2, 0, 0, 0},
        {QN_TYPE_F32, QN_WORD_f32, 13003, 256, 1, 7, 0, 0, 0}, // runs of several panels
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const head_case *c = &cases[i];
        weight w = make_weight(kind_of(c->type), 1, c->n_out, c->n_in, i);
        run_case(c, &w, i + 5);
        free_weight(&w);
    }
}

static void head_of_any_rows(void **state) {
    (void)state;
    static const int64_t tops[] = {1, 0, 5, 40};
    head_case c = {QN_TYPE_Q4_K, QN_WORD_i12_256, 197, 256, 0, 0, 0, 0, 0};
    weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 3);
    for (c.rows = 1; c.rows <= 33; c.rows++) {
        c.top = tops[c.rows % 4];
        c.cap = c.rows % 3 ? 0 : 2;
        run_case(&c, &w, (uint64_t)c.rows);
    }
    free_weight(&w);
}

// Logits past the last token are never among the best, wherever in a panel or a run that is.
static void some_entries_are_not_chosen(void **state) {
    (void)state;
    static const int64_t ends[] = {1, 15, 16, 17, 300, 1023, 1024, 1600, 1696, 1699, 1700};
    head_case c = {QN_TYPE_F32, QN_WORD_f32, 1700, 64, 3, 0, 0, 0, 0};
    weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 8);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        c.entries = ends[i];
        c.top = i % 3 ? 40 : 1;
        c.cap = i % 2 ? 0 : 2;
        run_case(&c, &w, i);
    }
    free_weight(&w);
}

// Logits that are left out are not written, and not among the best, wherever the others end.
static void some_entries_are_not_computed(void **state) {
    (void)state;
    static const int64_t ends[] = {1, 15, 16, 17, 300, 1023, 1024, 1600, 1696, 1699, 1700};
    head_case c = {QN_TYPE_F32, QN_WORD_f32, 1700, 64, 3, 0, 0, 0, 0};
    weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 8);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        c.computed = ends[i];
        c.entries = i % 2 ? 0 : ends[i] + 100;
        c.top = i % 3 ? 40 : 1;
        c.cap = i % 2 ? 0 : 2;
        run_case(&c, &w, i);
    }
    free_weight(&w);
}

// Equal logits go by id, inside a panel, across panels and across runs.
static void ties_go_to_the_lower_id(void **state) {
    (void)state;
    head_case c = {QN_TYPE_F32, QN_WORD_f32, 1700, 64, 3, 0, 0, 0, 0};
    weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 8);
    for (int64_t o = 0; o < c.n_out; o++) // five different rows
        memcpy(w.rows + o * w.row_bytes, w.rows + o * 7 % 5 * w.row_bytes, (size_t)w.row_bytes);
    for (int64_t t = 0; t < qn_packed_tiles(&w.packed); t++)
        qn_pack_tile(w.bytes, &w.packed, w.rows, t);
    static const int64_t tops[] = {1, 2, 64, 0};
    for (int i = 0; i < 4; i++) {
        c.top = tops[i];
        run_case(&c, &w, 2);
    }
    free_weight(&w);
}

// Logits that are not numbers are reported, the first of a row, and never chosen.
static void broken_logits_are_found(void **state) {
    (void)state;
    static const struct {
        int64_t first, second;
        float value;
    } broken[] = {{0, 1, NAN}, {1301, 1650, NAN}, {17, 900, INFINITY}, {1699, 48, -INFINITY}};
    static const int64_t tops[] = {1, 3, 0};
    head_case c = {QN_TYPE_F32, QN_WORD_f32, 1700, 64, 2, 0, 0, 0, 0};
    for (int i = 0; i < 12; i++) {
        weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 4);
        memcpy(w.rows + broken[i % 4].first * w.row_bytes, &broken[i % 4].value, sizeof(float));
        memcpy(w.rows + broken[i % 4].second * w.row_bytes, &broken[i % 4].value, sizeof(float));
        for (int64_t t = 0; t < qn_packed_tiles(&w.packed); t++)
            qn_pack_tile(w.bytes, &w.packed, w.rows, t);
        c.top = tops[i / 4];
        c.cap = i % 2 ? 0 : 20;
        run_case(&c, &w, 2);
        free_weight(&w);
    }
    weight w = make_weight(kind_of(c.type), 1, c.n_out, c.n_in, 4);
    memset(w.bytes, 0, (size_t)qn_packed_bytes(&w.packed)); // all logits are 0
    run_case(&c, &w, 2);
    qn_operand x = make_rows(2, 1, c.n_in, QN_WORD_f32);
    for (int64_t i = 0; i < c.n_in; i++) part_at(&x, 0, 0)[i] = NAN, part_at(&x, 1, 0)[i] = 1;
    check_case(&c, &w, &x, 2);
    free(x.data);
    free_weight(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_is_matmul_and_search),
        cmocka_unit_test(head_of_any_rows),
        cmocka_unit_test(some_entries_are_not_chosen),
        cmocka_unit_test(some_entries_are_not_computed),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(broken_logits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
