// Kernels that know the sequence: keys and values in pages, attention, recurrent state in slots.
// The same bits on every level, for any split into steps and any order of pieces, and close to the
// reference interpreter (f32 within 1e-5; other types of the cache against a reference fed the
// rounded keys and values, within the same).
#include "testing.h"

#include "task.h"

#include "backends/kernel_math.h"
#include "core/mem.h"
#include "ir/ref.h"
#include "ir/text.h"
#include "quant/type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 3, LOG_ROWS = 8, MAX_LENGTH = 2300, COMPANY = 9 };

static const qn_cpu_level *level_at(size_t i) {
    qn_err err;
    const qn_cpu_level *backend;
    if (!qn_cpu_level_name(i)) return NULL;
    ASSERT_OK(qn_cpu_level_find(&backend, qn_cpu_level_name(i), &err));
    return backend;
}

static void check_near(const float *got, const float *want, int64_t n, double bound,
                       const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * (1 + fabs((double)want[i]))))
            fail_msg("%s: element %lld is %.9g, want %.9g", what, (long long)i, (double)got[i],
                     (double)want[i]);
    }
}

// --- attention ---

// A layer's shape and how it attends; 0 and NULL are the plain case.
typedef struct layer {
    int64_t heads, kv_heads, k_size, v_size; // H, K, E, F
    qn_cache_type type;                      // AUTO counts as F32
    int64_t window;
    float cap;
    bool has_sinks, has_allow;
    const char *rule;
} layer;

// A layer with its cache, and sequences (one per slot) of q, k, v rows.
typedef struct world {
    layer l;
    qn_graph graph; // kv_write, then attend
    qn_cache_view cache;
    float *q[SLOTS], *k[SLOTS], *v[SLOTS]; // (MAX_LENGTH, heads, size)
    float sinks[64];
    float *sum[3]; // rows of a step, gathered: q, k, v
} world;

static const qn_kv_type *kv_type(const layer *l) {
    return qn_kv_type_get(l->type ? l->type : QN_CACHE_F32);
}

static void world_open(world *w, const layer *l) {
    qn_err err;
    char text[1024];
    memset(w, 0, sizeof *w);
    w->l = *l;
    const int h = (int)l->heads, n = (int)l->kv_heads, e = (int)l->k_size, f = (int)l->v_size;
    snprintf(text, sizeof text,
             "graph \"t\"\n%%0 \"q\" f32 (T, %d, %d) = input\n%%1 \"k\" f32 (T, %d, %d) = input\n"
             "%%2 \"v\" f32 (T, %d, %d) = input\n%%3 \"cache\" cache (%d, %d, %d) = input\n"
             "%%4 \"table\" table () = input\n%%5 \"sinks\" f32 (%d) = param\n"
             "%%6 \"allow\" i32 (T, T) = input\n"
             "%%7 cache (%d, %d, %d) = kv_write(%%3, %%1, %%2, %%4)\n"
             "%%8 f32 (T, %d, %d) = attend(%%0, %%7, %%4, %s, %s) "
             "{scale=0.3, cap=%g, window=%d, rule=%s}\noutput \"y\" %%8\n",
             h, e, n, e, n, f, n, e, f, h, n, e, f, h, f, l->has_sinks ? "%5" : "_",
             l->has_allow ? "%6" : "_", (double)l->cap, (int)l->window,
             l->rule ? l->rule : "causal");
    ASSERT_OK(qn_graph_parse(&w->graph, text, strlen(text), &err));
    const int64_t bytes =
        level_at(0)->backend.cache_bytes(kv_type(l)->type, l->kv_heads, l->k_size, l->v_size);
    w->cache = (qn_cache_view){.page_bytes = bytes + 192,
                               .offset = 128, // other layers lie before and after
                               .type = kv_type(l)->type,
                               .is_rotated = kv_type(l)->is_rotated,
                               .heads = l->kv_heads,
                               .k_size = l->k_size,
                               .v_size = l->v_size};
    w->cache.pages = qn_alloc((size_t)(SLOTS * TASK_PAGES * w->cache.page_bytes), 1);
    const int64_t sizes[] = {l->heads * l->k_size, l->kv_heads * l->k_size,
                             l->kv_heads * l->v_size};
    for (int s = 0; s < SLOTS; s++) {
        float **rows[] = {&w->q[s], &w->k[s], &w->v[s]};
        for (int i = 0; i < 3; i++) {
            *rows[i] = qn_alloc((size_t)(MAX_LENGTH * sizes[i]), sizeof(float));
            task_fill(*rows[i], MAX_LENGTH * sizes[i], (uint32_t)(s * 3 + i + 1));
        }
    }
    for (int i = 0; i < 3; i++) w->sum[i] = qn_alloc((size_t)(TASK_ROWS * sizes[i]), sizeof(float));
    task_fill(w->sinks, l->heads, 77);
}

static void world_close(world *w) {
    for (int s = 0; s < SLOTS; s++) {
        qn_free(w->q[s]);
        qn_free(w->k[s]);
        qn_free(w->v[s]);
    }
    for (int i = 0; i < 3; i++) qn_free(w->sum[i]);
    qn_free(w->cache.pages);
    qn_graph_deinit(&w->graph);
}

// A cache that nothing was written to holds NaN in every type.
static void spoil_cache(world *w) {
    memset(w->cache.pages, 0xff, (size_t)(SLOTS * TASK_PAGES * w->cache.page_bytes));
}

// The rows of a step, end to end.
static void gather(world *w, const task_step *s) {
    const int64_t sizes[] = {w->l.heads * w->l.k_size, w->l.kv_heads * w->l.k_size,
                             w->l.kv_heads * w->l.v_size};
    for (int64_t t = 0; t < s->step.n_rows; t++) {
        const int32_t b = s->row_seg[t];
        const int32_t slot = b < 0 ? 0 : s->seg_slot[b];
        const int64_t at = b < 0 ? 0 : s->seg_past[b] + t - s->seg_row[b];
        float *const rows[] = {w->q[slot], w->k[slot], w->v[slot]};
        for (int i = 0; i < 3; i++)
            memcpy(w->sum[i] + t * sizes[i], rows[i] + at * sizes[i],
                   (size_t)sizes[i] * sizeof(float));
    }
}

// Row t may see row u: a pattern with holes. Depends on positions alone.
static void fill_allow(int32_t *allow, const task_step *s) {
    for (int64_t t = 0; t < s->step.n_rows; t++) {
        for (int64_t u = 0; u < s->step.n_rows; u++)
            allow[t * s->step.n_rows + u] = (s->pos[4 * t] * 3 + s->pos[4 * u]) % 4 != 1;
    }
}

// kv_write, then attend; returns the rows of the result.
static float *attend(world *w, const task_step *s, const qn_cpu_level *backend, int order) {
    const int64_t n = s->step.n_rows;
    int32_t *allow = qn_alloc((size_t)(n * n), sizeof *allow);
    void *outs[QN_MAX_OUT];
    fill_allow(allow, s);
    gather(w, s);
    const qn_node *nodes = w->graph.nodes + w->graph.n_nodes - 2;
    const task_call write = {.graph = &w->graph,
                             .node = &nodes[0],
                             .data = {NULL, w->sum[1], w->sum[2]},
                             .step = &s->step,
                             .cache = &w->cache,
                             .order = order};
    task_call read = write;
    read.node = &nodes[1];
    memset(read.data, 0, sizeof read.data);
    read.data[0] = w->sum[0];
    if (w->l.has_sinks) read.data[3] = w->sinks;
    if (w->l.has_allow) read.data[4] = allow;
    task_run(outs, &write, backend);
    task_run(outs, &read, backend);
    qn_free(allow);
    return outs[0];
}

// What is left of a row after it was kept in the cache: as it is kept there, or rotated back.
static void round_rows(float *rows, int64_t n_rows, int64_t size, const qn_kv_type *kv,
                       bool is_back) {
    const qn_type_info *info = qn_type_get(kv->type);
    float room[256];
    unsigned char packed[1024];
    for (int64_t r = 0; r < n_rows; r++) {
        memset(room, 0, sizeof room);
        memcpy(room, rows + r * size, (size_t)size * sizeof *room);
        if (kv->is_rotated) qn_kv_rotate(room, size);
        info->pack(packed, room, (size + 31) / 32 * 32, NULL);
        info->unpack(room, packed, (size + 31) / 32 * 32);
        if (kv->is_rotated && is_back) qn_kv_rotate(room, size);
        memcpy(rows + r * size, room, (size_t)size * sizeof *room);
    }
}

// The `last` rows of slot 0 after `past` by the reference.
static float *attend_reference(world *w, int32_t past, int32_t last) {
    qn_err err;
    qn_ref *ref;
    static task_step s;
    const void *params[16] = {0};
    params[5] = w->sinks;
    const qn_ref_opts opts = {
        .graph = &w->graph, .params = params, .n_pages = TASK_PAGES, .n_slots = 1};
    ASSERT_OK(qn_ref_create(&ref, &opts, &err));
    for (int32_t at = past > 0 ? 0 : past; at < past + last; at = at < past ? past : past + last) {
        const int32_t rows = at < past ? past : last;
        task_step_init(&s, &(task_seg){.past = at, .rows = rows}, 1, 0);
        int32_t *allow = qn_alloc((size_t)rows * (size_t)rows, sizeof *allow);
        fill_allow(allow, &s);
        gather(w, &s);
        round_rows(w->sum[1], rows * w->l.kv_heads, w->l.k_size, kv_type(&w->l), true);
        round_rows(w->sum[2], rows * w->l.kv_heads, w->l.v_size, kv_type(&w->l), true);
        for (int i = 0; i < 3; i++) qn_ref_set_input(ref, i, w->sum[i]);
        qn_ref_set_input(ref, 6, allow);
        ASSERT_OK(qn_ref_run(ref, &s.step, &err));
        qn_free(allow);
    }
    int64_t n;
    const float *y = qn_ref_output(ref, "y", &n);
    float *copy = qn_alloc((size_t)n, sizeof *copy);
    memcpy(copy, y, (size_t)n * sizeof *copy);
    qn_ref_destroy(ref);
    return copy;
}

// Fills the cache with `past` rows, then runs `last` rows in company: another sequence before them,
// padding after them. Returns the result's rows of all.
static float *attend_after(world *w, const qn_cpu_level *backend, int32_t past, int32_t last) {
    static task_step s;
    spoil_cache(w);
    if (past > 0) {
        task_step_init(&s, &(task_seg){.rows = past}, 1, 0);
        qn_free(attend(w, &s, backend, 1));
    }
    const task_seg segs[] = {{.rows = COMPANY, .slot = 2}, {.past = past, .rows = last}};
    task_step_init(&s, segs, 2, 3);
    for (int64_t i = 0; w->l.window > 0 && (i + 1) * QN_PAGE_ROWS <= past - w->l.window; i++)
        s.seg_pages[TASK_PAGES + i] = -1; // every window has passed it
    return attend(w, &s, backend, 2);
}

// Rows `past` ... of slot 0 give the bits of `whole` (from row 0 on), one at a time.
static void check_alone(world *w, const qn_cpu_level *backend, const float *whole, int32_t past,
                        int32_t last) {
    static task_step s;
    const int64_t row = w->l.heads * w->l.v_size;
    for (int32_t t = past; t < past + last; t++) {
        task_step_init(&s, &(task_seg){.past = t, .rows = 1}, 1, 0);
        float *got = attend(w, &s, backend, 0);
        if (memcmp(got, whole + t * row, (size_t)row * sizeof *got) != 0)
            fail_msg("level %s: row %d alone differs", backend->name, (int)t);
        qn_free(got);
    }
}

static void check_layer(const layer *l, int32_t past, int32_t last) {
    world w;
    static task_step s;
    char what[160];
    world_open(&w, l);
    const int64_t row = l->heads * l->v_size;
    // With such rules a row's result depends on the step it is in.
    const bool is_free = !l->has_allow && (!l->rule || strcmp(l->rule, "full") != 0);
    snprintf(what, sizeof what, "%s, %d + %d rows, window %d, rule %s", kv_type(l)->name, past,
             last, (int)l->window, l->rule ? l->rule : "causal");
    float *want = attend_reference(&w, past, last);
    float *first = attend_after(&w, level_at(0), past, last);
    check_near(first + COMPANY * row, want, last * row, 1e-5, what);
    for (int64_t k = 0; k < 3 * row; k++) assert_true(first[(COMPANY + last) * row + k] == 0);
    spoil_cache(&w);
    task_step_init(&s, &(task_seg){.rows = past + last}, 1, 0);
    float *whole = attend(&w, &s, level_at(0), 0); // all at once, from the beginning
    if (is_free && memcmp(first + COMPANY * row, whole + past * row,
                          (size_t)(last * row) * sizeof *whole) != 0)
        fail_msg("%s: cached rows differ from computed ones", what);
    for (size_t i = 0; level_at(i); i++) {
        float *got = attend_after(&w, level_at(i), past, last);
        if (memcmp(got, first, (size_t)((COMPANY + last + 3) * row) * sizeof *got) != 0)
            fail_msg("%s: level %s differs", what, level_at(i)->name);
        if (is_free) check_alone(&w, level_at(i), whole, past, last);
        qn_free(got);
    }
    qn_free(first);
    qn_free(whole);
    qn_free(want);
    world_close(&w);
}

static void attention_is_the_reference(void **state) {
    (void)state;
    static const layer layers[] = {
        {.heads = 4, .kv_heads = 2, .k_size = 8, .v_size = 8},
        {.heads = 3, .kv_heads = 1, .k_size = 33, .v_size = 7, .cap = 2, .has_sinks = true},
        {.heads = 2, .kv_heads = 2, .k_size = 5, .v_size = 37, .window = 20},
        {.heads = 6, .kv_heads = 2, .k_size = 64, .v_size = 32, .type = QN_CACHE_F16},
        {.heads = 5, .kv_heads = 1, .k_size = 40, .v_size = 33, .type = QN_CACHE_Q8_0, .cap = 5},
        {.heads = 2, .kv_heads = 1, .k_size = 8, .v_size = 8, .rule = "full", .has_sinks = true},
        {.heads = 2, .kv_heads = 1, .k_size = 8, .v_size = 8, .rule = "full", .window = 9},
        {.heads = 2, .kv_heads = 1, .k_size = 8, .v_size = 8, .rule = "spans"},
        {.heads = 2, .kv_heads = 1, .k_size = 8, .v_size = 8, .rule = "spans", .has_allow = true},
        {.heads = 2, .kv_heads = 1, .k_size = 8, .v_size = 8, .has_allow = true, .window = 30},
        // As wide as the registers of every level, and wider; groups parted and whole.
        {.heads = 4, .kv_heads = 2, .k_size = 128, .v_size = 128, .type = QN_CACHE_F16},
        {.heads = 7, .kv_heads = 1, .k_size = 96, .v_size = 150},
        {.heads = 8, .kv_heads = 8, .k_size = 40, .v_size = 136, .type = QN_CACHE_Q8_0},
        {.heads = 9, .kv_heads = 1, .k_size = 36, .v_size = 70, .type = QN_CACHE_F16, .window = 33},
        {.heads = 5, .kv_heads = 1, .k_size = 20, .v_size = 72, .has_allow = true, .rule = "spans"},
        // Heads that are no whole blocks, and that rotate in parts of 1, 2, 4, 16, 32 and in one.
        {.heads = 5, .kv_heads = 1, .k_size = 40, .v_size = 33, .type = QN_CACHE_Q4_0, .cap = 5},
        {.heads = 4, .kv_heads = 2, .k_size = 128, .v_size = 64, .type = QN_CACHE_Q4_0},
        {.heads = 4, .kv_heads = 2, .k_size = 80, .v_size = 96, .type = QN_CACHE_Q4_0R},
        {.heads = 2, .kv_heads = 1, .k_size = 33, .v_size = 18, .type = QN_CACHE_Q8_0R},
        {.heads = 3, .kv_heads = 1, .k_size = 20, .v_size = 8, .type = QN_CACHE_Q4_0R, .window = 9},
        {.heads = 8, .kv_heads = 1, .k_size = 128, .v_size = 256, .type = QN_CACHE_Q8_0R},
        {.heads = 6, .kv_heads = 2, .k_size = 64, .v_size = 64, .type = QN_CACHE_Q4_0R, .cap = 3},
    };
    static const int32_t pasts[] = {0, 29, 63, 64, 65, 127}; // 29: rows of several 16s of a page
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        for (size_t k = 0; k < sizeof pasts / sizeof pasts[0]; k++)
            check_layer(&layers[i], pasts[k], 20);
    }
}

static void chunks_meet(void **state) {
    (void)state;
    static const layer layers[] = {
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .window = 100, .has_sinks = true},
        {.heads = 1, .kv_heads = 1, .k_size = 4, .v_size = 4, .type = QN_CACHE_Q8_0, .cap = 1},
        {.heads = 1, .kv_heads = 1, .k_size = 4, .v_size = 8, .type = QN_CACHE_Q4_0R, .window = 70},
    };
    static const int32_t pasts[] = {255, 256, 257, 511, 1023, 1024, 1025};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        for (size_t k = 0; k < sizeof pasts / sizeof pasts[0]; k++)
            check_layer(&layers[i], pasts[k], 2);
    }
}

// Rows that cut positions into runs of chunks have the bits of those that do not: in company of more
// rows, and alone from the beginning. Sequences of different lengths, whole and behind windows that
// begin and end within runs, chunks and blocks.
static void runs_of_chunks_change_no_bit(void **state) {
    (void)state;
    static const layer layers[] = {
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6},
        {.heads = 6, .kv_heads = 2, .k_size = 33, .v_size = 70, .type = QN_CACHE_F16},
        {.heads = 8, .kv_heads = 8, .k_size = 8, .v_size = 8, .has_sinks = true, .cap = 2},
        {.heads = 3, .kv_heads = 3, .k_size = 4, .v_size = 5, .window = 1500, .has_sinks = true},
        {.heads = 4, .kv_heads = 1, .k_size = 40, .v_size = 8, .type = QN_CACHE_Q8_0},
        {.heads = 4, .kv_heads = 1, .k_size = 8, .v_size = 40, .type = QN_CACHE_Q4_0R},
        {.heads = 5,
         .kv_heads = 1,
         .k_size = 8,
         .v_size = 33,
         .type = QN_CACHE_Q8_0R,
         .window = 1200},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .rule = "full"},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .rule = "after_first"},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .rule = "spans", .has_allow = true},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .has_allow = true, .window = 1100},
    };
    static const task_seg segs[] = {{.past = 2113, .rows = 3},
                                    {.past = 255, .rows = 1, .slot = 1},
                                    {.past = 1535, .rows = 2, .slot = 2}};
    enum { ROWS = 6 };
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        world w;
        static task_step s;
        world_open(&w, &layers[i]);
        const size_t row = (size_t)(w.l.heads * w.l.v_size);
        const bool is_free = !w.l.has_allow && (!w.l.rule || strcmp(w.l.rule, "full") != 0);
        float *whole[SLOTS] = {0};
        spoil_cache(&w);
        for (int b = 0; b < SLOTS; b++) {
            task_step_init(&s, &(task_seg){.rows = segs[b].past + 3, .slot = segs[b].slot}, 1, 0);
            whole[b] = attend(&w, &s, level_at(0), 0);
        }
        task_step_init(&s, segs, SLOTS, 9); // too many rows for runs
        float *want = attend(&w, &s, level_at(0), 0);
        for (size_t k = 0; level_at(k); k++) {
            for (int order = 0; order < 3; order++) {
                task_step_init(&s, segs, SLOTS, 1);
                float *got = attend(&w, &s, level_at(k), order);
                if (memcmp(got, want, (ROWS + 1) * row * sizeof *got) != 0)
                    fail_msg("layer %zu, level %s: runs differ", i, level_at(k)->name);
                for (int b = 0, r = 0; is_free && b < SLOTS; r += segs[b++].rows)
                    assert_memory_equal(got + (size_t)r * row,
                                        whole[b] + (size_t)segs[b].past * row,
                                        (size_t)segs[b].rows * row * sizeof *got);
                qn_free(got);
            }
        }
        qn_free(want);
        for (int b = 0; b < SLOTS; b++) qn_free(whole[b]);
        world_close(&w);
    }
}

// One sequence behind 4096 positions has a piece for each of 64 threads, and what its pieces share is
// far less than what they read.
static void one_sequence_has_enough_pieces(void **state) {
    (void)state;
    const layer l = {
        .heads = 16, .kv_heads = 8, .k_size = 128, .v_size = 128, .type = QN_CACHE_F16};
    world w;
    world_open(&w, &l);
    const qn_node *node = &w.graph.nodes[w.graph.n_nodes - 1];
    qn_task task = {.attrs = &node->attrs, .cache = &w.cache};
    task.in[0].parts = l.heads;
    const qn_cpu_level *level = level_at(0);
    const qn_recipe *recipe = &level->backend.recipes[QN_OP_ATTEND];
    const qn_kernel *kernel = &level->kernels[recipe->stages[0]];
    const qn_kernel *merge = &level->kernels[recipe->stages[1]];
    assert_true(kernel->pieces(&task, 1, 4096) >= 64);
    assert_int_equal(merge->pieces(&task, 1, 4096), 8);
    assert_int_equal(kernel->pieces(&task, 1, 512), 8); // nothing to merge
    assert_int_equal(merge->pieces(&task, 1, 512), 0);
    assert_int_equal(kernel->shared(&task, 1, 512), 0);
    const int64_t most = kernel->shared(&task, 8, 40960);
    assert_true(most * 10 < 40960 / QN_PAGE_ROWS * w.cache.page_bytes);
    assert_int_equal(kernel->shared(&task, 512, 40960), most);
    world_close(&w);
}

// --- the written formula of docs/numbers.md, once more and one number at a time ---

typedef struct plain {
    float max, total, o[160];
} plain;

static float lane_sum(const float *x, int n) {
    float lane[16] = {0};
    for (int i = 0; i < n; i++) lane[i % 16] += x[i];
    for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

// Positions first ... end - 1 of one block join the softmax of a chunk.
static void plain_block(const world *w, plain *c, const float *q, int64_t kv, int64_t first,
                        int64_t end) {
    float p[QN_PAGE_ROWS] = {0}, max = c->max;
    for (int64_t j = first; j < end; j++) {
        const float *k = w->k[0] + (j * w->l.kv_heads + kv) * w->l.k_size;
        float sum = 0;
        for (int64_t e = 0; e < w->l.k_size; e++) sum = fmaf(q[e], k[e], sum);
        sum *= 0.3f;
        if (w->l.cap > 0) sum = w->l.cap * math_tanh(sum / w->l.cap);
        p[j % QN_PAGE_ROWS] = sum;
        if (sum > max) max = sum;
    }
    const float scale = math_exp(c->max - max);
    for (int64_t j = first; j < end; j++) p[j % QN_PAGE_ROWS] = math_exp(p[j % QN_PAGE_ROWS] - max);
    c->total = fmaf(c->total, scale, lane_sum(p, QN_PAGE_ROWS));
    c->max = max;
    for (int64_t f = 0; f < w->l.v_size; f++) {
        c->o[f] *= scale;
        for (int64_t j = first; j < end; j++)
            c->o[f] = fmaf(p[j % QN_PAGE_ROWS], w->v[0][(j * w->l.kv_heads + kv) * w->l.v_size + f],
                           c->o[f]);
    }
}

// Row `t` and head `h` of slot 0.
static void plain_head(const world *w, float *to, int64_t t, int64_t h) {
    const int64_t kv = h / (w->l.heads / w->l.kv_heads), v_size = w->l.v_size;
    const int64_t first = w->l.window > 0 && t >= w->l.window ? t - w->l.window + 1 : 0;
    plain all = {.max = -INFINITY};
    for (int64_t chunk = first / 256 * 256; chunk <= t; chunk += 256) {
        plain c = {.max = -INFINITY};
        for (int64_t block = chunk; block < chunk + 256; block += QN_PAGE_ROWS) {
            const int64_t from = first > block ? first : block;
            const int64_t end = t + 1 < block + QN_PAGE_ROWS ? t + 1 : block + QN_PAGE_ROWS;
            if (from < end)
                plain_block(w, &c, w->q[0] + (t * w->l.heads + h) * w->l.k_size, kv, from, end);
        }
        const float max = c.max > all.max ? c.max : all.max;
        const float a = math_exp(all.max - max), b = math_exp(c.max - max);
        all.max = max;
        all.total = fmaf(all.total, a, c.total * b);
        for (int64_t f = 0; f < v_size; f++) all.o[f] = fmaf(all.o[f], a, c.o[f] * b);
    }
    float a = 1;
    if (w->l.has_sinks) {
        const float max = w->sinks[h] > all.max ? w->sinks[h] : all.max;
        a = math_exp(all.max - max);
        all.total = fmaf(all.total, a, math_exp(w->sinks[h] - max));
    }
    for (int64_t f = 0; f < v_size; f++) to[f] = all.o[f] * a * (1.0f / all.total);
}

// As the formula sees them: keys and values as they are kept, queries rotated where keys are.
static void keep_rows(world *w) {
    const layer *l = &w->l;
    const qn_kv_type *kv = kv_type(l);
    round_rows(w->k[0], MAX_LENGTH * l->kv_heads, l->k_size, kv, false);
    round_rows(w->v[0], MAX_LENGTH * l->kv_heads, l->v_size, kv, false);
    for (int64_t r = 0; kv->is_rotated && r < MAX_LENGTH * l->heads; r++)
        qn_kv_rotate(w->q[0] + r * l->k_size, l->k_size);
}

// The transform by its definition: of n numbers, number i is the sum over j of those whose i & j
// has an even number of bits, less the others, over the root of n.
static void rotation_is_by_definition(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},     {2, 2},    {33, 1},   {18, 2},  {20, 4},
                                       {40, 8},    {80, 16},  {96, 32},  {64, 64}, {72, 8},
                                       {128, 128}, {192, 64}, {256, 256}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t size = sizes[k][0], n = sizes[k][1];
        float x[256], y[256];
        task_fill(x, size, (uint32_t)k + 90);
        memcpy(y, x, sizeof y);
        qn_kv_rotate(y, size);
        for (int64_t i = 0; i < size; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += (double)x[i / n * n + j] *
                       (__builtin_parityll((unsigned long long)(i % n & j)) ? -1 : 1);
            assert_true(fabs((double)y[i] - sum / sqrt((double)n)) < 2e-6);
        }
        qn_kv_rotate(y, size);
        check_near(y, x, size, 1e-6, "rotated back");
    }
}

static void attention_keeps_the_contract(void **state) {
    (void)state;
    static const layer layers[] = {
        {.heads = 2, .kv_heads = 1, .k_size = 7, .v_size = 6},
        {.heads = 2, .kv_heads = 1, .k_size = 4, .v_size = 6, .window = 100, .has_sinks = true},
        {.heads = 3, .kv_heads = 3, .k_size = 4, .v_size = 19, .cap = 1},
        {.heads = 1, .kv_heads = 1, .k_size = 37, .v_size = 150},
        {.heads = 2, .kv_heads = 1, .k_size = 24, .v_size = 40, .type = QN_CACHE_Q8_0},
        {.heads = 2, .kv_heads = 1, .k_size = 24, .v_size = 40, .type = QN_CACHE_Q4_0},
        {.heads = 2, .kv_heads = 1, .k_size = 24, .v_size = 64, .type = QN_CACHE_Q8_0R},
        {.heads = 2, .kv_heads = 1, .k_size = 96, .v_size = 9, .type = QN_CACHE_Q4_0R},
    };
    static const int32_t rows[] = {0,   1,   62,  63,  64,  65,  126,  254,  255,  256,
                                   257, 300, 511, 512, 767, 768, 1022, 1023, 1024, 1090};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        world w;
        static task_step s;
        float want[160];
        world_open(&w, &layers[i]);
        spoil_cache(&w);
        task_step_init(&s, &(task_seg){.rows = MAX_LENGTH}, 1, 0);
        float *got = attend(&w, &s, level_at(0), 0);
        keep_rows(&w);
        for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
            for (int64_t h = 0; h < w.l.heads; h++) {
                plain_head(&w, want, rows[k], h);
                if (w.cache.is_rotated) qn_kv_rotate(want, w.l.v_size);
                assert_memory_equal(got + (rows[k] * w.l.heads + h) * w.l.v_size, want,
                                    (size_t)w.l.v_size * sizeof *want);
            }
        }
        qn_free(got);
        world_close(&w);
    }
}

// Padding and other sequences' pages keep every byte.
static void only_own_rows_are_written(void **state) {
    (void)state;
    static const layer l = {.heads = 2, .kv_heads = 2, .k_size = 9, .v_size = 5};
    world w;
    static task_step s;
    world_open(&w, &l);
    spoil_cache(&w);
    task_step_init(&s, &(task_seg){.past = 62, .rows = 3, .slot = 1}, 1, 4);
    qn_free(attend(&w, &s, level_at(0), 0));
    int64_t written = 0;
    for (int64_t i = 0; i < SLOTS * TASK_PAGES * w.cache.page_bytes; i += 4) {
        const int32_t page = (int32_t)(i / w.cache.page_bytes);
        if (memcmp(w.cache.pages + i, "\xff\xff\xff\xff", 4) == 0) continue;
        written++;
        assert_true(page == s.seg_pages[0] || page == s.seg_pages[1]);
    }
    assert_int_equal(written, 3 * 2 * (9 + 5));
    world_close(&w);
}

// --- fused attention ---

// Operands of a layer with turned keys: norms, angles.
#define TURN "{eps=1e-6, rotate=12, pairs=half}"
static const char fused_text[] =
    "graph \"t\"\n%0 \"q\" f32 (T, 4, 18) = input\n%1 \"k\" f32 (T, 2, 18) = input\n"
    "%2 \"v\" f32 (T, 2, 10) = input\n%3 \"cache\" cache (2, 18, 10) = input\n"
    "%4 \"angles\" f32 (T, 2, 6) = input\n%5 \"table\" table () = input\n"
    "%6 \"q_norm\" f32 (18) = param\n%7 \"k_norm\" f32 (18) = param\n"
    "%8 \"sinks\" f32 (4) = param\n"
    "%9 f32 (T, 4, 18) = rotate(%0, %4, %6) " TURN "\n"
    "%10 f32 (T, 2, 18) = rotate(%1, %4, %7) " TURN "\n"
    "%11 cache (2, 18, 10) = kv_write(%3, %10, %2, %5)\n"
    "%12 f32 (T, 4, 10) = attend(%9, %11, %5, %8, _) {scale=0.2, cap=3, window=11, rule=causal}\n"
    "%13 cache (2, 18, 10) = rotate_write(%3, %1, %2, %5, %4, %7) " TURN "\n"
    "%14 f32 (T, 4, 10), %15 cache (2, 18, 10) = attention(%0, %1, %2, %3, %4, %5, %6, %7, %8) "
    "{eps=1e-6, scale=0.2, cap=3, window=11, rule=causal, rotate=12, pairs=half}\n";

static const qn_node *node_of(const qn_graph *graph, qn_op op) {
    for (size_t i = graph->n_nodes; i-- > 0;) {
        if (graph->nodes[i].op == op) return &graph->nodes[i];
    }
    fail_msg("no such node");
    return NULL;
}

// rotate + write + attend, and both fused forms, give the same bits: results and cache.
static void fusing_changes_no_bit(void **state) {
    (void)state;
    static float in[9][TASK_ROWS * 72];
    static task_step s;
    qn_err err;
    qn_graph graph = {0};
    ASSERT_OK(qn_graph_parse(&graph, fused_text, strlen(fused_text), &err));
    const task_seg segs[] = {{.rows = 30}, {.past = 0, .rows = 7, .slot = 2}};
    task_step_init(&s, segs, 2, 2);
    for (int i = 0; i < 9; i++) task_fill(in[i], TASK_ROWS * 72, (uint32_t)i + 40);
    for (size_t i = 0; level_at(i); i++) {
        for (int k = QN_CACHE_F32; k < QN_KV_TYPES; k++) {
            const qn_kv_type *kv = qn_kv_type_get((qn_cache_type)k);
            qn_cache_view cache = {.type = kv->type,
                                   .is_rotated = kv->is_rotated,
                                   .heads = 2,
                                   .k_size = 18,
                                   .v_size = 10};
            cache.page_bytes = level_at(i)->backend.cache_bytes(kv->type, 2, 18, 10);
            const size_t bytes = (size_t)(cache.page_bytes * SLOTS * TASK_PAGES);
            unsigned char *pages[3];
            void *q[2], *key[2], *y[2], *none[2], *fused[2];
            for (int p = 0; p < 3; p++) pages[p] = qn_alloc(bytes, 1);
            task_call call = {.graph = &graph, .step = &s.step, .cache = &cache};
            call.node = &graph.nodes[9];
            memcpy(call.data, (const void *[]){in[0], in[4], in[6]}, 3 * sizeof(void *));
            task_run(q, &call, level_at(0));
            call.node = &graph.nodes[10];
            memcpy(call.data, (const void *[]){in[1], in[4], in[7]}, 3 * sizeof(void *));
            task_run(key, &call, level_at(0));
            cache.pages = pages[0];
            call.node = node_of(&graph, QN_OP_KV_WRITE);
            memcpy(call.data, (const void *[]){NULL, key[0], in[2]}, 3 * sizeof(void *));
            task_run(none, &call, level_at(0));
            call.node = node_of(&graph, QN_OP_ATTEND);
            memcpy(call.data, (const void *[]){q[0], NULL, NULL, in[8]}, 4 * sizeof(void *));
            task_run(y, &call, level_at(0));
            cache.pages = pages[1];
            call.node = node_of(&graph, QN_OP_ROTATE_WRITE);
            memcpy(call.data, (const void *[]){NULL, in[1], in[2], NULL, in[4], in[7]},
                   6 * sizeof(void *));
            task_run(none, &call, level_at(i));
            cache.pages = pages[2];
            call.node = node_of(&graph, QN_OP_ATTENTION);
            memcpy(call.data,
                   (const void *[]){in[0], in[1], in[2], NULL, in[4], NULL, in[6], in[7], in[8]},
                   9 * sizeof(void *));
            task_run(fused, &call, level_at(i));
            assert_memory_equal(pages[0], pages[1], bytes);
            assert_memory_equal(pages[0], pages[2], bytes);
            assert_memory_equal(y[0], fused[0], (size_t)(39 * 4 * 10) * sizeof(float));
            void *all[] = {pages[0], pages[1], pages[2], q[0], key[0], y[0], fused[0]};
            for (size_t a = 0; a < sizeof all / sizeof all[0]; a++) qn_free(all[a]);
        }
    }
    qn_graph_deinit(&graph);
}

// --- recurrent state ---

enum { LENGTH = 40, MAX_NUMBERS = 1300 }; // rows of a sequence, numbers of a row

// A recurrent op with its slots, and sequences (one per slot) of its inputs.
typedef struct memory {
    qn_graph graph;
    const qn_node *node;
    qn_slots_view slots;
    int64_t sizes[QN_MAX_IN];      // of a row of each input; 0: not a tensor with rows
    float *rows[SLOTS][QN_MAX_IN]; // (LENGTH, size)
    float *step[QN_MAX_IN];        // rows of a step, gathered
    float weight[MAX_NUMBERS * 4]; // of conv
    int64_t out_size;
    size_t bytes; // of all slots
} memory;

static void memory_open(memory *m, const char *text) {
    qn_err err;
    memset(m, 0, sizeof *m);
    ASSERT_OK(qn_graph_parse(&m->graph, text, strlen(text), &err));
    m->node = &m->graph.nodes[m->graph.n_nodes - 1];
    int64_t state_size = 1;
    const qn_shape *kept = &m->graph.values[m->node->out[1]].shape;
    for (int i = 0; i < kept->n_dims; i++) state_size *= kept->dims[i].n;
    const task_call call = {.graph = &m->graph, .node = m->node, .step = &(qn_step){0}};
    m->out_size = task_row_bytes(&call, m->node->out[0]) / 4;
    for (int i = 0; i < m->node->n_in; i++) {
        const qn_value *value = &m->graph.values[m->node->in[i]];
        if (value->kind != QN_TENSOR || value->shape.dims[0].sym != QN_SYM_T) continue;
        m->sizes[i] = task_row_bytes(&call, m->node->in[i]) / 4;
        m->step[i] = qn_alloc((size_t)(3 * LENGTH * m->sizes[i]), sizeof(float));
        for (int s = 0; s < SLOTS; s++) {
            m->rows[s][i] = qn_alloc((size_t)(LENGTH * m->sizes[i]), sizeof(float));
            task_fill(m->rows[s][i], LENGTH * m->sizes[i], (uint32_t)(s * 10 + i + 1));
            for (int64_t k = 0; i == 3 && k < LENGTH * m->sizes[i]; k++) // g: decays
                m->rows[s][i][k] = -2 * fabsf(m->rows[s][i][k]);
        }
    }
    task_fill(m->weight, MAX_NUMBERS * 4, 5);
    m->slots = (qn_slots_view){.offset = 64,
                               .state_size = state_size,
                               .log_offset = 128 + state_size * 4,
                               .log_rows = LOG_ROWS,
                               .log_size = qn_log_size(&m->graph, m->node)};
    m->slots.slot_bytes = m->slots.log_offset + LOG_ROWS * m->slots.log_size * 4 + 64;
    m->bytes = (size_t)(SLOTS * m->slots.slot_bytes);
    m->slots.slots = qn_alloc(m->bytes, 1);
    memset(m->slots.slots, 0xff, m->bytes); // NaN: nothing may be read before it is written
}

static void memory_close(memory *m) {
    for (int i = 0; i < QN_MAX_IN; i++) {
        qn_free(m->step[i]);
        for (int s = 0; s < SLOTS; s++) qn_free(m->rows[s][i]);
    }
    qn_free(m->slots.slots);
    qn_graph_deinit(&m->graph);
}

static void gather_inputs(memory *m, const task_step *s, const void **data) {
    for (int i = 0; i < m->node->n_in; i++) {
        const int64_t n = m->sizes[i];
        data[i] = n ? m->step[i] : NULL;
        for (int64_t t = 0; n && t < s->step.n_rows; t++) {
            const int32_t b = s->row_seg[t];
            const int64_t at = b < 0 ? 0 : s->seg_past[b] + t - s->seg_row[b];
            memcpy(m->step[i] + t * n, m->rows[b < 0 ? 0 : s->seg_slot[b]][i] + at * n,
                   (size_t)n * sizeof(float));
        }
    }
    if (m->node->op == QN_OP_CONV) data[1] = m->weight;
}

static float *remember(memory *m, const task_step *s, const qn_cpu_level *backend, int order) {
    void *outs[QN_MAX_OUT];
    task_call call = {
        .graph = &m->graph, .node = m->node, .step = &s->step, .slots = &m->slots, .order = order};
    gather_inputs(m, s, call.data);
    task_run(outs, &call, backend);
    return outs[0];
}

// All rows of slot 0 at once by the reference.
static void check_recurrence(memory *m, const float *got, const char *what) {
    qn_err err;
    qn_ref *ref;
    static task_step s;
    const void *data[QN_MAX_IN] = {0};
    int64_t n;
    task_step_init(&s, &(task_seg){.rows = LENGTH, .commit = LENGTH}, 1, 0);
    gather_inputs(m, &s, data);
    const qn_ref_opts opts = {.graph = &m->graph, .n_pages = TASK_PAGES, .n_slots = SLOTS};
    ASSERT_OK(qn_ref_create(&ref, &opts, &err));
    ASSERT_OK(qn_ref_run_node(ref, m->graph.n_nodes - 1, &s.step, data, &err));
    const float *want = qn_ref_value(ref, m->node->out[0], &n);
    check_near(got, want, n, 1e-5, what);
    qn_ref_destroy(ref);
}

// A way through the rows: each step has up to `rows` rows, `commit` of them certain, and of the
// others `kept` stay.
typedef struct way {
    int32_t rows, commit, kept;
} way;

// Slot 0 goes its way, slot 2 runs beside it; each row that stays must have the bits of `whole`.
static void check_way(memory *m, const qn_cpu_level *backend, const way *by, const float *whole) {
    static task_step s;
    int32_t past = 0, accept = 0, company = 0;
    memset(m->slots.slots, 0xff, m->bytes);
    for (int step = 0; past < LENGTH; step++) {
        const int32_t rows = by->rows < LENGTH - past ? by->rows : LENGTH - past;
        const int32_t commit = by->commit < rows ? by->commit : rows;
        const task_seg segs[] = {
            {.past = company, .rows = company < LENGTH, .slot = 2, .commit = 1},
            {.past = past, .rows = rows, .accept = accept, .commit = commit}};
        task_step_init(&s, segs, 2, 2);
        float *got = remember(m, &s, backend, step % 3);
        const float *from = got + segs[0].rows * m->out_size;
        if (memcmp(from, whole + past * m->out_size, (size_t)(rows * m->out_size) * 4) != 0)
            fail_msg("level %s: rows %d ... of steps of %d differ", backend->name, past, by->rows);
        for (int64_t i = 0; i < 2 * m->out_size; i++) // padding
            assert_true(from[rows * m->out_size + i] == 0);
        qn_free(got);
        company += segs[0].rows;
        accept = rows - commit < by->kept ? rows - commit : by->kept;
        past += commit + accept;
    }
}

static void check_memory(const char *text) {
    static const way ways[] = {{1, 1, 0}, {7, 7, 0}, {1, 0, 1}, {4, 1, 3},
                               {4, 1, 1}, {6, 0, 5}, {8, 0, 8}, {6, 2, 0}};
    memory m;
    static task_step s;
    memory_open(&m, text);
    task_step_init(&s, &(task_seg){.rows = LENGTH, .commit = LENGTH}, 1, 0);
    float *whole = remember(&m, &s, level_at(0), 0);
    check_recurrence(&m, whole, text);
    float *kept = qn_alloc((size_t)m.slots.state_size, sizeof *kept);
    memcpy(kept, m.slots.slots + m.slots.offset, (size_t)m.slots.state_size * 4);
    for (size_t i = 0; level_at(i); i++) {
        for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
            check_way(&m, level_at(i), &ways[k], whole);
            if (ways[k].commit < ways[k].rows) continue; // the end is still in the log
            assert_memory_equal(m.slots.slots + m.slots.offset, kept,
                                (size_t)m.slots.state_size * 4);
        }
    }
    const unsigned char *between = m.slots.slots + m.slots.offset + m.slots.state_size * 4;
    for (int64_t i = 0; i < 64; i++) assert_int_equal(between[i], 0xff);
    qn_free(kept);
    qn_free(whole);
    memory_close(&m);
}

static void convolutions_keep_their_tail(void **state) {
    (void)state;
    static const int sizes[][2] = {{37, 4}, {1300, 4}, {16, 2}}; // C, N
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char text[512];
        const int c = sizes[i][0], n = sizes[i][1];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, %d) = input\n%%1 \"w\" f32 (%d, %d) = param\n"
                 "%%2 \"s\" state (%d, %d) = input\n%%3 \"table\" table () = input\n"
                 "%%4 f32 (T, %d), %%5 state (%d, %d) = conv(%%0, %%1, %%2, %%3)\n",
                 c, c, n, n - 1, c, c, n - 1, c);
        check_memory(text);
    }
}

static void delta_rules_keep_their_state(void **state) {
    (void)state;
    static const struct {
        int g, h, e, f; // key heads, value heads, their sizes
        const char *heads;
    } cases[] = {{2, 4, 8, 16, "grouped"},
                 {2, 6, 5, 7, "tiled"},
                 {1, 1, 33, 3, "grouped"},
                 {2, 4, 12, 72, "tiled"}}; // strips of columns, the last one narrow
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        const int g = cases[i].g, h = cases[i].h, e = cases[i].e, f = cases[i].f;
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"q\" f32 (T, %d, %d) = input\n"
                 "%%1 \"k\" f32 (T, %d, %d) = input\n%%2 \"v\" f32 (T, %d, %d) = input\n"
                 "%%3 \"g\" f32 (T, %d) = input\n%%4 \"beta\" f32 (T, %d) = input\n"
                 "%%5 \"s\" state (%d, %d, %d) = input\n%%6 \"table\" table () = input\n"
                 "%%7 f32 (T, %d, %d), %%8 state (%d, %d, %d) = "
                 "delta(%%0, %%1, %%2, %%3, %%4, %%5, %%6) {scale=0.25, heads=%s}\n",
                 g, e, g, e, h, f, h, h, h, e, f, h, f, h, e, f, cases[i].heads);
        check_memory(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_reference),
        cmocka_unit_test(chunks_meet),
        cmocka_unit_test(runs_of_chunks_change_no_bit),
        cmocka_unit_test(one_sequence_has_enough_pieces),
        cmocka_unit_test(rotation_is_by_definition),
        cmocka_unit_test(attention_keeps_the_contract),
        cmocka_unit_test(only_own_rows_are_written),
        cmocka_unit_test(fusing_changes_no_bit),
        cmocka_unit_test(convolutions_keep_their_tail),
        cmocka_unit_test(delta_rules_keep_their_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
