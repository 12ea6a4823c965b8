// Every op that passes make against the plain ops that it stands for: the same bits, for odd sizes,
// several segments and inert rows. And what the interpreter offers to check kernels.
#include "testing.h"

#include "core/mem.h"
#include "ir/ref.h"
#include "ir/text.h"

#include <math.h>
#include <stdio.h>

enum { ROWS = 11, SEGS = 3, PAGES = 4 }; // rows 0-3, 4-8 and 9, row 10 is inert

typedef struct rig {
    qn_graph graph;
    qn_ref *ref;
    const void **params;
    float *data; // of all leaves, one after the other
    int32_t ids[ROWS], pos[ROWS * 4], row_seg[ROWS], row_out[ROWS];
    int32_t seg_row[SEGS + 1], seg_past[SEGS], seg_pages[SEGS * 2 * PAGES];
    int32_t seg_slot[SEGS], seg_accept[SEGS], seg_commit[SEGS], seg_adapter[SEGS];
    qn_step step;
} rig;

// Numbers in [-1, 1) that depend on their index and a salt only.
static void fill(float *to, int64_t n, uint32_t salt) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)i * 2654435761u + salt * 40503u + (salt ^ (uint32_t)i) * 97u;
        to[i] = (float)((u ^ u >> 15) % 20011) / 10005.5f - 1.0f;
    }
}

static void fill_step(rig *r) {
    static const int32_t seg_row[SEGS + 1] = {0, 4, 9, 10};
    for (int32_t b = 0; b < SEGS; b++) {
        r->seg_slot[b] = b;
        r->seg_adapter[b] = -1;
        for (int32_t i = 0; i < 2 * PAGES; i++) // two groups; the second is not looked at
            r->seg_pages[b * 2 * PAGES + i] = i < PAGES ? b * PAGES + PAGES - 1 - i : 999;
        for (int32_t t = seg_row[b]; t < seg_row[b + 1]; t++) r->row_seg[t] = b;
    }
    r->row_seg[ROWS - 1] = -1;
    memcpy(r->seg_row, seg_row, sizeof seg_row);
    for (int32_t t = 0; t < ROWS; t++) {
        for (int k = 0; k < 4; k++) r->pos[t * 4 + k] = 7 * t + 3 * k;
        r->row_out[t] = t;
    }
    r->step = (qn_step){.n_rows = ROWS,
                        .n_segs = SEGS,
                        .n_out = ROWS,
                        .ids = r->ids,
                        .pos = r->pos,
                        .row_seg = r->row_seg,
                        .seg_row = r->seg_row,
                        .seg_past = r->seg_past,
                        .seg_pages = r->seg_pages,
                        .pages_per_seg = PAGES,
                        .n_groups = 2,
                        .seg_slot = r->seg_slot,
                        .seg_accept = r->seg_accept,
                        .seg_commit = r->seg_commit,
                        .seg_adapter = r->seg_adapter,
                        .row_out = r->row_out};
}

static int64_t elements(const qn_shape *shape) {
    int64_t n = 1;
    for (int i = 0; i < shape->n_dims; i++)
        n *= shape->dims[i].n * (shape->dims[i].sym == QN_SYM_ONE ? 1 : ROWS);
    return n;
}

// Leaves get numbers by their place in the text; a norm's weights may be negative too.
static void rig_open(rig *r, const char *text) {
    qn_err err;
    memset(r, 0, sizeof *r);
    ASSERT_OK(qn_graph_parse(&r->graph, text, strlen(text), &err));
    r->params = qn_alloc(r->graph.n_values, sizeof *r->params);
    const qn_ref_opts opts = {
        .graph = &r->graph, .params = r->params, .n_pages = SEGS * PAGES, .n_slots = SEGS};
    ASSERT_OK(qn_ref_create(&r->ref, &opts, &err));
    int64_t total = 0;
    for (size_t i = 0; i < r->graph.n_values; i++) total += elements(&r->graph.values[i].shape);
    r->data = qn_alloc((size_t)total, sizeof *r->data);
    assert_non_null(r->data);
    float *at = r->data;
    for (size_t i = 0; i < r->graph.n_values; i++) {
        const int64_t n = elements(&r->graph.values[i].shape);
        fill(at, n, (uint32_t)i + 1);
        r->params[i] = at;
        qn_ref_set_input(r->ref, (int32_t)i, at);
        at += n;
    }
    fill_step(r);
}

static void rig_close(rig *r) {
    qn_ref_destroy(r->ref);
    qn_free(r->params);
    qn_free(r->data);
    qn_graph_deinit(&r->graph);
}

// Runs it twice, the second time on top of what the first left in caches and states.
static void run_twice(rig *r) {
    qn_err err;
    for (int32_t b = 0; b < SEGS; b++) r->seg_past[b] = 0;
    ASSERT_OK(qn_ref_run(r->ref, &r->step, &err));
    for (int32_t b = 0; b < SEGS; b++) r->seg_past[b] = r->seg_row[b + 1] - r->seg_row[b];
    ASSERT_OK(qn_ref_run(r->ref, &r->step, &err));
}

#define HEADS                                                                                      \
    "%0 \"q\" f32 (T, 6, 5) = input\n%1 \"k\" f32 (T, 3, 5) = input\n"                             \
    "%2 \"v\" f32 (T, 3, 7) = input\n%3 \"table\" table () = input\n"                              \
    "%4 \"cache\" cache (3, 5, 7) = input\n%5 \"f\" f32 (2) = param\n"                             \
    "%6 \"qn\" f32 (5) = param\n%7 \"kn\" f32 (5) = param\n%8 \"sinks\" f32 (6) = param\n"
#define EXPERTS                                                                                    \
    "%0 \"x\" f32 (T, 33) = input\n%1 \"s\" f32 (T, 5) = input\n%2 \"g\" f32 (5, 41, 33) = "       \
    "param\n"                                                                                      \
    "%3 \"u\" f32 (5, 41, 33) = param\n%4 \"d\" f32 (5, 33, 41) = param\n"

// Outputs of the same name hold the same bits.
static const struct {
    const char *leaves, *plain, *fused;
} cases[] = {
    {"%0 \"x\" f32 (T, 37) = input\n%1 \"a\" f32 (5, 37) = param\n%2 \"b\" f32 (1, 37) = param\n"
     "%3 \"c\" f32 (9, 37) = param\n",
     "%4 f32 (T, 5) = matmul(%0, %1)\n%5 f32 (T, 1) = matmul(%0, %2)\n"
     "%6 f32 (T, 9) = matmul(%0, %3)\noutput \"a\" %4\noutput \"b\" %5\noutput \"c\" %6\n",
     "%4 f32 (T, 15) = project(%0, %1, %2, %3)\n"
     "%5 f32 (T, 5) = narrow(%4) {axis=1, start=0, length=5}\n"
     "%6 f32 (T, 1) = narrow(%4) {axis=1, start=5, length=1}\n"
     "%7 f32 (T, 9) = narrow(%4) {axis=1, start=6, length=9}\n"
     "output \"a\" %5\noutput \"b\" %6\noutput \"c\" %7\n"},
    {"%0 \"x\" f32 (T, 37) = input\n%1 \"g\" f32 (19, 37) = param\n%2 \"u\" f32 (19, 37) = param\n",
     "%3 f32 (T, 19) = matmul(%0, %1)\n%4 f32 (T, 19) = matmul(%0, %2)\n%5 f32 (T, 19) = silu(%3)\n"
     "%6 f32 (T, 19) = mul(%5, %4)\n%7 f32 (T, 19) = gelu(%3)\n%8 f32 (T, 19) = mul(%7, %4)\n"
     "output \"silu\" %6\noutput \"gelu\" %8\n",
     "%3 f32 (T, 19) = gated(%0, %1, %2) {act=silu}\n%4 f32 (T, 19) = gated(%0, %1, %2) "
     "{act=gelu}\n"
     "output \"silu\" %3\noutput \"gelu\" %4\n"},
    {"%0 \"x\" f32 (T, 300) = input\n%1 \"w\" f32 (300) = param\n",
     "%2 f32 (T, 300) = rms_norm(%0, %1) {eps=0.01}\n%3 f32 (T, 300) = quantize(%2) {form=i8_32}\n"
     "%4 f32 (T, 300) = quantize(%2) {form=i12_256}\n%5 f32 (T, 300) = quantize(%2) {form=f32}\n"
     "output \"i8\" %3\noutput \"i12\" %4\noutput \"f32\" %2\noutput \"same\" %5\n",
     "%2 f32 (T, 300) = norm_quantize(%0, %1) {eps=0.01, form=i8_32}\n"
     "%3 f32 (T, 300) = norm_quantize(%0, %1) {eps=0.01, form=i12_256}\n"
     "%4 f32 (T, 300) = norm_quantize(%0, %1) {eps=0.01, form=f32}\n"
     "output \"i8\" %2\noutput \"i12\" %3\noutput \"f32\" %4\noutput \"same\" %4\n"},
    {"%0 \"a\" f32 (T, 45) = input\n%1 \"b\" f32 (T, 45) = input\n%2 \"w\" f32 (45) = param\n",
     "%3 f32 (T, 45) = add(%0, %1)\n%4 f32 (T, 45) = rms_norm(%3, %2) {eps=0.01}\n"
     "%5 f32 (T, 45) = quantize(%4) {form=i8_32}\noutput \"sum\" %3\noutput \"y\" %5\n",
     "%3 f32 (T, 45), %4 f32 (T, 45) = add_norm(%0, %1, %2) {eps=0.01, form=i8_32}\n"
     "output \"sum\" %3\noutput \"y\" %4\n"},
    {HEADS,
     "%9 f32 (T, 6, 5) = rope(%0, %5, %3) {scale=1, rotate=4, pairs=half, sections=[1, 1, 0, 0]}\n"
     "%10 f32 (T, 3, 5) = rms_norm(%1, %7) {eps=0.01}\n"
     "%11 f32 (T, 3, 5) = rope(%10, %5, %3) "
     "{scale=1, rotate=4, pairs=adjacent, sections=[0, 0, 0, 0]}\n"
     "output \"q\" %9\noutput \"k\" %11\n",
     "%9 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[1, 1, 0, 0]}\n"
     "%10 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[0, 0, 0, 0]}\n"
     "%11 f32 (T, 6, 5) = rotate(%0, %9) {eps=0, rotate=4, pairs=half}\n"
     "%12 f32 (T, 3, 5) = rotate(%1, %10, %7) {eps=0.01, rotate=4, pairs=adjacent}\n"
     "output \"q\" %11\noutput \"k\" %12\n"},
    {HEADS,
     "%9 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[0, 0, 0, 0]}\n"
     "%10 f32 (T, 3, 5) = rotate(%1, %9, %7) {eps=0.01, rotate=4, pairs=half}\n"
     "%11 cache (3, 5, 7) = kv_write(%4, %10, %2, %3)\n"
     "%12 f32 (T, 6, 7) = attend(%0, %11, %3) {scale=0.7, cap=0, window=0, rule=causal}\n"
     "output \"y\" %12\n",
     "%9 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[0, 0, 0, 0]}\n"
     "%10 cache (3, 5, 7) = rotate_write(%4, %1, %2, %3, %9, %7) "
     "{eps=0.01, rotate=4, pairs=half}\n"
     "%11 f32 (T, 6, 7) = attend(%0, %10, %3) {scale=0.7, cap=0, window=0, rule=causal}\n"
     "output \"y\" %11\n"},
    {HEADS,
     "%9 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[0, 0, 0, 0]}\n"
     "%10 f32 (T, 6, 5) = rotate(%0, %9, %6) {eps=0.01, rotate=4, pairs=half}\n"
     "%11 cache (3, 5, 7) = rotate_write(%4, %1, %2, %3, %9, %7) "
     "{eps=0.01, rotate=4, pairs=half}\n"
     "%12 f32 (T, 6, 7) = attend(%10, %11, %3, %8) {scale=0.7, cap=9, window=3, rule=causal}\n"
     "output \"y\" %12\n",
     "%9 f32 (T, 2, 2) = angles(%5, %3) {scale=1, sections=[0, 0, 0, 0]}\n"
     "%10 f32 (T, 6, 7), %11 cache (3, 5, 7) = attention(%0, %1, %2, %4, %9, %3, %6, %7, %8) "
     "{eps=0.01, scale=0.7, cap=9, window=3, rule=causal, rotate=4, pairs=half}\n"
     "output \"y\" %10\n"},
    {EXPERTS,
     "%5 i32 (T, 2), %6 f32 (T, 2) = route(%1) {top=2, normalize=1, scale=1.5}\n"
     "%7 f32 (T, 2, 41) = grouped_matmul(%0, %2, %5)\n"
     "%8 f32 (T, 2, 41) = grouped_matmul(%0, %3, %5)\n%9 f32 (T, 2, 41) = silu(%7)\n"
     "%10 f32 (T, 2, 41) = mul(%9, %8)\n%11 f32 (T, 2, 41) = quantize(%10) {form=i8_32}\n"
     "%12 f32 (T, 2, 33) = grouped_matmul(%11, %4, %5)\n%13 f32 (T, 33) = combine(%12, %6)\n"
     "output \"y\" %13\n",
     "%5 f32 (T, 33) = experts(%0, %1, %2, %3, %4) "
     "{top=2, normalize=1, scale=1.5, form=i8_32, act=silu}\noutput \"y\" %5\n"},
    {"%0 \"x\" f32 (T, 37) = input\n%1 \"w\" f32 (53, 37) = param\n",
     "%2 f32 (T, 53) = matmul(%0, %1)\n%3 f32 (T, 53) = softcap(%2) {cap=3}\n"
     "output \"plain\" %2\noutput \"capped\" %3\n",
     "%2 f32 (T, 53), %3 f32 (T, 8) = head(%0, %1) {start=0, cap=0, top=3}\n"
     "%4 f32 (T, 53), %5 f32 (T, 130) = head(%0, %1) {start=0, cap=3, top=64}\n"
     "output \"plain\" %2\noutput \"capped\" %4\n"},
};

static void fused_ops_equal_plain_ones(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[2][4096];
        rig rigs[2];
        const char *const parts[2] = {cases[c].plain, cases[c].fused};
        for (int i = 0; i < 2; i++) {
            snprintf(text[i], sizeof text[i], "graph \"t\"\n%s%s", cases[c].leaves, parts[i]);
            rig_open(&rigs[i], text[i]);
            run_twice(&rigs[i]);
        }
        assert_int_equal(rigs[0].graph.n_outputs, rigs[1].graph.n_outputs);
        for (size_t o = 0; o < rigs[0].graph.n_outputs; o++) {
            const char *name = rigs[0].graph.outputs[o].name;
            int64_t n_plain, n_fused;
            const float *plain = qn_ref_output(rigs[0].ref, name, &n_plain);
            const float *fused = qn_ref_output(rigs[1].ref, name, &n_fused);
            assert_non_null(fused);
            assert_int_equal(n_plain, n_fused);
            assert_memory_equal(plain, fused, (size_t)n_plain * sizeof(float));
            bool is_flat = true; // equal because nothing was computed?
            for (int64_t i = 0; i < n_plain; i++) is_flat = is_flat && plain[i] == plain[0];
            assert_false(is_flat);
        }
        rig_close(&rigs[0]);
        rig_close(&rigs[1]);
    }
}

// Scores 0.5 2 -1 2 0.5 2 of one row: the best three, more than there are, and what is broken.
static void heads_find_the_best(void **state) {
    (void)state;
    static const char text[] =
        "graph \"t\"\n%0 \"x\" f32 (T, 1) = input\n"
        "%1 \"w\" f32 (6, 1) = param\n"
        "%2 f32 (T, 6), %3 f32 (T, 8) = head(%0, %1) {start=0, cap=0, top=3}\n"
        "%4 f32 (T, 6), %5 f32 (T, 18) = head(%0, %1) {start=0, cap=0, top=8}\n"
        "output \"three\" %3\noutput \"eight\" %5\n";
    static const float three[] = {-1, -1, 2, 2, 2, 1, 3, 5};
    static const float eight[] = {-1,        -1, 2, 2, 2, 0.5f, 0.5f, -1, -INFINITY,
                                  -INFINITY, 1,  3, 5, 0, 4,    2,    -1, -1};
    static const float odd_three[] = {-INFINITY, 0, 2, 2, 0.5f, 3, 5, 4};
    float x[ROWS], w[6] = {0.5f, 2, -1, 2, 0.5f, 2};
    rig r;
    qn_err err;
    int64_t n;
    rig_open(&r, text);
    for (int t = 0; t < ROWS; t++) x[t] = 1;
    qn_ref_set_input(r.ref, 0, x);
    r.params[1] = w;
    ASSERT_OK(qn_ref_run(r.ref, &r.step, &err));
    assert_memory_equal(qn_ref_output(r.ref, "three", &n), three, sizeof three);
    assert_int_equal(n, ROWS * 8);
    assert_memory_equal(qn_ref_output(r.ref, "eight", &n), eight, sizeof eight);
    assert_int_equal(n, ROWS * 18);
    w[0] = -INFINITY;
    w[1] = NAN;
    ASSERT_OK(qn_ref_run(r.ref, &r.step, &err));
    assert_memory_equal(qn_ref_output(r.ref, "three", &n), odd_three, sizeof odd_three);
    rig_close(&r);
}

static const char recurrent_text[] =
    "graph \"t\"\n%0 \"q\" f32 (T, 2, 3) = input\n%1 \"k\" f32 (T, 2, 3) = input\n"
    "%2 \"v\" f32 (T, 4, 2) = input\n%3 \"g\" f32 (T, 4) = input\n%4 \"beta\" f32 (T, 4) = input\n"
    "%5 \"table\" table () = input\n%6 \"delta\" state (4, 3, 2) = input\n"
    "%7 f32 (T, 4, 2), %8 state (4, 3, 2) = delta(%0, %1, %2, %3, %4, %6, %5) "
    "{scale=0.5, heads=tiled}\n%9 \"x\" f32 (T, 5) = input\n%10 \"w\" f32 (5, 3) = param\n"
    "%11 \"conv\" state (2, 5) = input\n%12 f32 (T, 5), %13 state (2, 5) = conv(%9, %10, %11, %5)\n"
    "output \"delta\" %7\noutput \"conv\" %12\n";

// Rows accepted in the step itself or by the next one: neither step shows a difference.
static void commits_change_no_bit(void **state) {
    (void)state;
    static const int32_t commit[SEGS] = {4, 2, 0};
    rig logged, committed;
    qn_err err;
    rig_open(&logged, recurrent_text);
    rig_open(&committed, recurrent_text);
    logged.step.seg_commit = NULL;
    memcpy(committed.seg_commit, commit, sizeof commit);
    for (int round = 0; round < 3; round++) {
        ASSERT_OK(qn_ref_run(logged.ref, &logged.step, &err));
        ASSERT_OK(qn_ref_run(committed.ref, &committed.step, &err));
        for (size_t o = 0; o < 2; o++) {
            int64_t n;
            const char *name = logged.graph.outputs[o].name;
            const float *a = qn_ref_output(logged.ref, name, &n);
            assert_memory_equal(a, qn_ref_output(committed.ref, name, &n), (size_t)n * sizeof *a);
        }
        for (int b = 0; b < SEGS; b++) { // all rows but one of segment 1 are kept
            const int32_t kept = logged.seg_row[b + 1] - logged.seg_row[b] - (b == 1);
            logged.seg_accept[b] = kept;
            committed.seg_accept[b] = kept - commit[b];
            logged.seg_past[b] = committed.seg_past[b] = logged.seg_past[b] + kept;
        }
    }
    committed.seg_accept[1] = 4; // only three are logged
    ASSERT_FAILS(qn_ref_run(committed.ref, &committed.step, &err), QN_ARGUMENT,
                 "accepts 4 rows, 3 are logged");
    committed.seg_commit[2] = 2;
    ASSERT_FAILS(qn_ref_run(committed.ref, &committed.step, &err), QN_ARGUMENT,
                 "segment 2: 2 of 1 rows are accepted");
    rig_close(&logged);
    rig_close(&committed);
}

// Pages that lie behind every window may be gone; others may not.
static void windows_do_not_read_what_is_behind_them(void **state) {
    (void)state;
    static const char text[] =
        "graph \"t\"\n" HEADS "%9 cache (3, 5, 7) = kv_write(%4, %1, %2, %3)\n"
        "%10 f32 (T, 6, 7) = attend(%0, %9, %3) {scale=1, cap=0, window=20, rule=causal}\n"
        "output \"y\" %10\n";
    rig r;
    qn_err err;
    rig_open(&r, text);
    for (int b = 0; b < SEGS; b++) r.seg_past[b] = 84; // the first row sees from 65 on
    r.seg_pages[2 * PAGES] = -1;
    ASSERT_OK(qn_ref_run(r.ref, &r.step, &err));
    r.seg_past[1] = 82;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "segment 1: page 0 is gone");
    r.seg_past[1] = 84;
    r.seg_pages[2 * PAGES + 1] = -1; // its own rows belong here
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "segment 1: page -1 of 12");
    rig_close(&r);
}

// A node that runs alone, on what it had in the whole run, gives what it gave there.
static void a_node_runs_alone(void **state) {
    (void)state;
    char text[4096];
    snprintf(text, sizeof text, "graph \"t\"\n%s%s", cases[6].leaves, cases[6].plain);
    rig whole, alone;
    qn_err err;
    rig_open(&whole, text);
    rig_open(&alone, text);
    ASSERT_OK(qn_ref_run(whole.ref, &whole.step, &err));
    const void *inputs[QN_MAX_IN] = {NULL};
    int64_t n;
    assert_null(qn_ref_value(whole.ref, 10, &n)); // released after its last use
    float *angles = NULL, *turned = NULL;
    for (size_t i = 9; i < alone.graph.n_nodes; i++) {
        const qn_node *node = &alone.graph.nodes[i];
        for (int k = 0; k < node->n_in; k++)
            inputs[k] = node->in[k] == 9 ? angles : node->in[k] == 10 ? turned : NULL;
        ASSERT_OK(qn_ref_run_node(alone.ref, i, &alone.step, inputs, &err));
        const float *result = qn_ref_value(alone.ref, node->out[0], &n);
        float **keep = i == 9 ? &angles : i == 10 ? &turned : NULL;
        if (!keep) continue;
        *keep = qn_alloc((size_t)n, sizeof **keep);
        memcpy(*keep, result, (size_t)n * sizeof **keep);
    }
    const float *got = qn_ref_value(alone.ref, 12, &n);
    assert_memory_equal(got, qn_ref_output(whole.ref, "y", &n), (size_t)n * sizeof *got);
    inputs[0] = NULL;
    ASSERT_FAILS(qn_ref_run_node(alone.ref, 12, &alone.step, inputs, &err), QN_ARGUMENT,
                 "value 10: no data was given");
    ASSERT_FAILS(qn_ref_run_node(alone.ref, 13, &alone.step, inputs, &err), QN_ARGUMENT,
                 "node 13 of 13");
    qn_free(angles);
    qn_free(turned);
    rig_close(&whole);
    rig_close(&alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_ops_equal_plain_ones),
        cmocka_unit_test(heads_find_the_best),
        cmocka_unit_test(commits_change_no_bit),
        cmocka_unit_test(windows_do_not_read_what_is_behind_them),
        cmocka_unit_test(a_node_runs_alone),
    };
    return cmocka_run_group_tests_name("ir fused", tests, NULL, NULL);
}
