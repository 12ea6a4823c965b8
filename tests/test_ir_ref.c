// The reference interpreter against formulas written out again in double precision, and the
// promises of the step table: chunks, shared steps, page order and rolled-back rows change no bit.
#include "testing.h"

#include "core/mem.h"
#include "ir/ref.h"
#include "ir/text.h"

#include <math.h>
#include <stdio.h>

enum { MAX_ROWS = 160, MAX_SEGS = 4, MAX_PAGES = 8 };

// A graph with an interpreter and a step table that can be bent.
typedef struct rig {
    qn_graph graph;
    qn_ref *ref;
    const void **params;
    int32_t ids[MAX_ROWS], pos[MAX_ROWS * 4], row_seg[MAX_ROWS], row_out[MAX_ROWS];
    int32_t seg_row[MAX_SEGS + 1], seg_past[MAX_SEGS], seg_pages[MAX_SEGS * MAX_PAGES];
    int32_t seg_slot[MAX_SEGS], seg_accept[MAX_SEGS], seg_adapter[MAX_SEGS];
    qn_step step;
} rig;

// One segment of `rows` rows after `past`, pages in order.
static void one_segment(rig *r, int64_t rows, int32_t past, int32_t accept) {
    for (int32_t t = 0; t < MAX_ROWS; t++) {
        r->row_seg[t] = 0;
        r->row_out[t] = t;
        for (int k = 0; k < 4; k++) r->pos[t * 4 + k] = k < 3 ? past + t : 0;
    }
    r->seg_row[0] = 0;
    r->seg_row[1] = (int32_t)rows;
    r->seg_past[0] = past;
    r->seg_slot[0] = 0;
    r->seg_accept[0] = accept;
    r->seg_adapter[0] = -1;
    for (int32_t i = 0; i < MAX_PAGES; i++) r->seg_pages[i] = i;
    r->step = (qn_step){.n_rows = rows,
                        .n_segs = 1,
                        .n_out = rows,
                        .ids = r->ids,
                        .pos = r->pos,
                        .row_seg = r->row_seg,
                        .seg_row = r->seg_row,
                        .seg_past = r->seg_past,
                        .seg_pages = r->seg_pages,
                        .pages_per_seg = MAX_PAGES,
                        .seg_slot = r->seg_slot,
                        .seg_accept = r->seg_accept,
                        .seg_adapter = r->seg_adapter,
                        .row_out = r->row_out};
}

static void rig_open(rig *r, const char *text) {
    qn_err err;
    memset(r, 0, sizeof *r);
    ASSERT_OK(qn_graph_parse(&r->graph, text, strlen(text), &err));
    r->params = qn_alloc(r->graph.n_values, sizeof *r->params);
    const qn_ref_opts opts = {
        .graph = &r->graph, .params = r->params, .n_pages = 2 * MAX_PAGES, .n_slots = 4};
    ASSERT_OK(qn_ref_create(&r->ref, &opts, &err));
    one_segment(r, 4, 0, 0);
}

static void rig_close(rig *r) {
    qn_ref_destroy(r->ref);
    qn_free(r->params);
    qn_graph_deinit(&r->graph);
}

// Binds a leaf by name, input or parameter.
static void give(rig *r, const char *name, const void *data) {
    for (size_t i = 0; i < r->graph.n_values; i++) {
        if (strcmp(r->graph.values[i].name, name) != 0) continue;
        r->params[i] = data;
        qn_ref_set_input(r->ref, (int32_t)i, data);
        return;
    }
    fail_msg("no leaf %s", name);
}

static const float *run(rig *r) {
    qn_err err;
    int64_t n;
    ASSERT_OK(qn_ref_run(r->ref, &r->step, &err));
    return qn_ref_output(r->ref, "y", &n);
}

// Numbers in [-1, 1) that depend on their index and a salt only.
static void fill(float *to, int64_t n, uint32_t salt) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)i * 2654435761u + salt * 40503u + (salt ^ (uint32_t)i) * 97u;
        to[i] = (float)((u ^ u >> 15) % 20011) / 10005.5f - 1.0f;
    }
}

static void assert_near(double got, double want, const char *what) {
    if (fabs(got - want) > 1e-5 * (1 + fabs(want)))
        fail_msg("%s: %.9g, want %.9g", what, got, want);
}

// --- rows of numbers ---

static void matmul_sums_rows(void **state) {
    (void)state;
    rig r;
    float x[4 * 6], w[5 * 6];
    fill(x, 24, 1);
    fill(w, 30, 2);
    rig_open(&r, "graph \"t\"\n%0 \"x\" f32 (T, 6) = input\n%1 \"w\" f32 (5, 6) = param\n"
                 "%2 f32 (T, 5) = matmul(%0, %1)\noutput \"y\" %2\n");
    give(&r, "x", x);
    give(&r, "w", w);
    const float *y = run(&r);
    for (int t = 0; t < 4; t++) {
        for (int o = 0; o < 5; o++) {
            double sum = 0;
            for (int i = 0; i < 6; i++) sum += (double)x[t * 6 + i] * w[o * 6 + i];
            assert_near(y[t * 5 + o], sum, "matmul");
        }
    }
    rig_close(&r);
}

static double d_silu(double x) { return x / (1 + exp(-x)); }
static double d_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}
static double d_gelu_erf(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double d_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double d_softplus(double x) { return log1p(exp(x)); }

static void activations_follow_their_formulas(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double (*fn)(double);
    } cases[] = {{"silu", d_silu},
                 {"gelu", d_gelu},
                 {"gelu_erf", d_gelu_erf},
                 {"sigmoid", d_sigmoid},
                 {"softplus", d_softplus}};
    const float x[8] = {-30, -4, -1, -0.1f, 0, 0.5f, 3, 25};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[256];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, 2) = input\n%%1 f32 (T, 2) = %s(%%0)\n"
                 "output \"y\" %%1\n",
                 cases[c].name);
        rig r;
        rig_open(&r, text);
        give(&r, "x", x);
        const float *y = run(&r);
        for (int i = 0; i < 8; i++) assert_near(y[i], cases[c].fn(x[i]), cases[c].name);
        rig_close(&r);
    }
}

static void norms_and_caps_follow_their_formulas(void **state) {
    (void)state;
    rig r;
    float x[4 * 8], w[8], b[8];
    fill(x, 32, 3);
    fill(w, 8, 4);
    fill(b, 8, 5);
    rig_open(&r, "graph \"t\"\n%0 \"x\" f32 (T, 8) = input\n%1 \"w\" f32 (8) = param\n"
                 "%2 \"b\" f32 (8) = param\n%3 f32 (T, 8) = rms_norm(%0, %1) {eps=0.001}\n"
                 "%4 f32 (T, 8) = layer_norm(%0, %1, %2) {eps=0.001}\n"
                 "%5 f32 (T, 8) = l2_norm(%0) {eps=0.001}\n%6 f32 (T, 8) = softcap(%0) {cap=0.5}\n"
                 "output \"rms\" %3\noutput \"layer\" %4\noutput \"l2\" %5\noutput \"y\" %6\n");
    give(&r, "x", x);
    give(&r, "w", w);
    give(&r, "b", b);
    const float *cap = run(&r);
    int64_t n;
    const float *rms = qn_ref_output(r.ref, "rms", &n), *layer = qn_ref_output(r.ref, "layer", &n);
    const float *l2 = qn_ref_output(r.ref, "l2", &n);
    for (int t = 0; t < 4; t++) {
        double sum = 0, mean = 0, var = 0;
        for (int i = 0; i < 8; i++) sum += (double)x[t * 8 + i] * x[t * 8 + i];
        for (int i = 0; i < 8; i++) mean += x[t * 8 + i] / 8.0;
        for (int i = 0; i < 8; i++) var += pow(x[t * 8 + i] - mean, 2) / 8;
        for (int i = 0; i < 8; i++) {
            const double v = x[t * 8 + i];
            assert_near(rms[t * 8 + i], v / sqrt(sum / 8 + 0.001) * w[i], "rms_norm");
            assert_near(layer[t * 8 + i], (v - mean) / sqrt(var + 0.001) * w[i] + b[i],
                        "layer_norm");
            assert_near(l2[t * 8 + i], v / sqrt(sum + 0.001), "l2_norm");
            assert_near(cap[t * 8 + i], 0.5 * tanh(v / 0.5), "softcap");
        }
    }
    rig_close(&r);
}

static void packed_activations_stay_within_half_a_step(void **state) {
    (void)state;
    static const struct {
        const char *form;
        int block;
        double max;
    } cases[] = {{"i8_32", 32, 127}, {"i12_256", 256, 2047}, {"i16_256", 256, 32767}};
    float x[4 * 300];
    fill(x, 1200, 6);
    for (int i = 0; i < 32; i++) x[i] = 0; // a block of zeros
    for (int c = 0; c < 3; c++) {
        char text[256];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, 300) = input\n"
                 "%%1 f32 (T, 300) = quantize(%%0) {form=%s}\noutput \"y\" %%1\n",
                 cases[c].form);
        rig r;
        rig_open(&r, text);
        give(&r, "x", x);
        const float *y = run(&r);
        for (int t = 0; t < 4; t++) {
            for (int i = 0; i < 300; i++) {
                double largest = 0;
                for (int k = i / cases[c].block * cases[c].block; k < 300; k++) {
                    if (k >= (i / cases[c].block + 1) * cases[c].block) break;
                    largest = fmax(largest, fabs((double)x[t * 300 + k]));
                }
                assert_true(fabs((double)y[t * 300 + i] - x[t * 300 + i]) <=
                            largest / cases[c].max * 0.5001);
            }
        }
        rig_close(&r);
    }
}

static void moves_put_values_where_they_belong(void **state) {
    (void)state;
    rig r;
    float a[4 * 6], b[4 * 4];
    fill(a, 24, 7);
    fill(b, 16, 8);
    rig_open(&r, "graph \"t\"\n%0 \"a\" f32 (T, 6) = input\n%1 \"b\" f32 (T, 4) = input\n"
                 "%2 \"row_out\" i32 (R) = input\n%3 f32 (T, 3, 2) = split(%0) {parts=3}\n"
                 "%4 f32 (T, 2, 2) = narrow(%3) {axis=1, start=1, length=2}\n"
                 "%5 f32 (T, 4) = merge(%4)\n%6 f32 (T, 8) = concat(%5, %1) {axis=1}\n"
                 "%7 f32 (R, 8) = gather_rows(%6, %2)\n%8 f32 (R, 8) = all_gather(%7) {length=0, "
                 "unit=0, parts=0, alike=0, form=f32}\n"
                 "output \"y\" %8\n");
    give(&r, "a", a);
    give(&r, "b", b);
    const int32_t wanted[] = {3, 0};
    r.step.row_out = wanted;
    r.step.n_out = 2;
    const float *y = run(&r);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 8; k++) {
            const int t = wanted[i];
            assert_true(y[i * 8 + k] == (k < 4 ? a[t * 6 + 2 + k] : b[t * 4 + k - 4]));
        }
    }
    r.step.n_out = 0; // no logits wanted
    run(&r);
    rig_close(&r);
}

static void experts_are_routed_and_added_in_order(void **state) {
    (void)state;
    rig r;
    // Row 0: a tie between experts 1 and 2 goes to the lower id first.
    const float scores[4 * 4] = {0, 2, 2, 1, 5, 1, 1, 4, 0, 0, 0, 0, -1, -2, 3, -4};
    const int32_t want[4][2] = {{1, 2}, {0, 3}, {0, 1}, {2, 0}};
    float x[4 * 3], w[4 * 2 * 3];
    fill(x, 12, 9);
    fill(w, 24, 10);
    rig_open(&r, "graph \"t\"\n%0 \"x\" f32 (T, 3) = input\n%1 \"s\" f32 (T, 4) = input\n"
                 "%2 \"w\" f32 (4, 2, 3) = param\n"
                 "%3 i32 (T, 2), %4 f32 (T, 2) = route(%1) {scale=2, top=2, normalize=1}\n"
                 "%5 f32 (T, 2, 2) = grouped_matmul(%0, %2, %3)\n%6 f32 (T, 2) = combine(%5, %4)\n"
                 "output \"y\" %6\noutput \"ids\" %3\noutput \"weights\" %4\n");
    give(&r, "x", x);
    give(&r, "s", scores);
    give(&r, "w", w);
    const float *y = run(&r);
    int64_t n;
    const int32_t *ids = qn_ref_output(r.ref, "ids", &n);
    const float *weights = qn_ref_output(r.ref, "weights", &n);
    for (int t = 0; t < 4; t++) {
        const double a = exp(scores[t * 4 + want[t][0]]), b = exp(scores[t * 4 + want[t][1]]);
        const double share[2] = {2 * a / (a + b), 2 * b / (a + b)};
        for (int o = 0; o < 2; o++) {
            double sum = 0;
            assert_int_equal(ids[t * 2 + o], want[t][o]);
            assert_near(weights[t * 2 + o], share[o], "routing weight");
            for (int k = 0; k < 2; k++) {
                for (int i = 0; i < 3; i++)
                    sum += share[k] * (double)w[(want[t][k] * 2 + o) * 3 + i] * x[t * 3 + i];
            }
            assert_near(y[t * 2 + o], sum, "experts");
        }
    }
    rig_close(&r);
}

// In float the small squares would be lost beside the large one.
static void squares_are_summed_by_column_and_expert(void **state) {
    (void)state;
    static const float x[4 * 2] = {4096, 1, 0.5, -2, 1, 0, -1, 2};
    static const float scores[4 * 3] = {0, 1, 2, 0, 2, 1, 1, 0, 5, 0, 3, 4}; // best: 2, 1, 2, 2
    static const float all[3] = {16777218, 9, 4};
    static const float want[3 * 3] = {0, 0, 0, 0.25F, 4, 1, 16777218, 5, 3};
    rig r;
    int64_t n;
    rig_open(&r,
             "graph \"t\"\n%0 \"x\" f32 (T, 2) = input\n%1 \"s\" f32 (T, 3) = input\n"
             "%2 i32 (T, 1), %3 f32 (T, 1) = route(%1) {scale=1, top=1, normalize=0}\n"
             "%4 f32 (T, 1, 2) = split(%0) {parts=1}\n%5 f32 (1, 3) = sum_squares(%0) {length=1}\n"
             "%6 f32 (3, 3) = sum_squares(%0, %2) {length=3}\n"
             "%7 f32 (3, 3) = sum_squares(%4, %2) {length=3}\n"
             "output \"all\" %5\noutput \"rows\" %6\noutput \"parts\" %7\n");
    give(&r, "x", x);
    give(&r, "s", scores);
    (void)run(&r);
    assert_memory_equal(qn_ref_output(r.ref, "all", &n), all, sizeof all);
    assert_int_equal(n, 3);
    assert_memory_equal(qn_ref_output(r.ref, "rows", &n), want, sizeof want);
    assert_memory_equal(qn_ref_output(r.ref, "parts", &n), want, sizeof want);
    rig_close(&r);
}

static void embedding_takes_extra_rows(void **state) {
    (void)state;
    rig r;
    float table[5 * 2], extra[4 * 2];
    fill(table, 10, 11);
    fill(extra, 8, 12);
    const int32_t extra_row[4] = {-1, 2, -1, 0};
    rig_open(&r, "graph \"t\"\n%0 \"ids\" i32 (T) = input\n%1 \"table\" f32 (5, 2) = param\n"
                 "%2 \"extra\" f32 (T, 2) = input\n%3 \"extra_row\" i32 (T) = input\n"
                 "%4 f32 (T, 2) = embed(%0, %1, %2, %3) {start=0}\noutput \"y\" %4\n");
    give(&r, "table", table);
    give(&r, "extra", extra);
    give(&r, "extra_row", extra_row);
    for (int t = 0; t < 4; t++) r.ids[t] = t + 1;
    r.row_seg[2] = -1; // inert
    const float *y = run(&r);
    assert_memory_equal(y, table + 2, 8);
    assert_memory_equal(y + 2, extra + 4, 8);
    assert_true(y[4] == 0 && y[5] == 0);
    assert_memory_equal(y + 6, extra, 8);
    qn_err err;
    r.ids[0] = 5;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "id 5, the vocabulary has 5");
    rig_close(&r);
}

static void adapters_add_to_their_own_segment(void **state) {
    (void)state;
    rig r;
    float y0[4 * 3], x[4 * 2], a[2 * 1 * 2], b[2 * 3 * 1];
    fill(y0, 12, 13);
    fill(x, 8, 14);
    fill(a, 4, 15);
    fill(b, 6, 16);
    rig_open(&r, "graph \"t\"\n%0 \"y0\" f32 (T, 3) = input\n%1 \"x\" f32 (T, 2) = input\n"
                 "%2 \"a\" f32 (2, 1, 2) = param\n%3 \"b\" f32 (2, 3, 1) = param\n"
                 "%4 \"table\" table () = input\n"
                 "%5 f32 (T, 3) = lora(%0, %1, %2, %3, %4) {scale=0.5}\noutput \"y\" %5\n");
    give(&r, "y0", y0);
    give(&r, "x", x);
    give(&r, "a", a);
    give(&r, "b", b);
    const float *y = run(&r); // no adapter
    assert_memory_equal(y, y0, sizeof y0);
    r.seg_adapter[0] = 1;
    y = run(&r);
    for (int t = 0; t < 4; t++) {
        const double inner = (double)a[2] * x[t * 2] + (double)a[3] * x[t * 2 + 1];
        for (int o = 0; o < 3; o++)
            assert_near(y[t * 3 + o], y0[t * 3 + o] + 0.5 * b[3 + o] * inner, "lora");
    }
    rig_close(&r);
}

// --- positions and attention ---

static void rope_turns_the_right_pairs(void **state) {
    (void)state;
    static const struct {
        const char *pairs;
        int a[2], b[2]; // the two pairs of the first four values
    } cases[] = {{"half", {0, 1}, {2, 3}}, {"adjacent", {0, 2}, {1, 3}}};
    float x[4 * 2 * 6];
    const float f[2] = {1.0f, 0.25f};
    fill(x, 48, 17);
    for (int c = 0; c < 2; c++) {
        char text[512];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, 2, 6) = input\n%%1 \"f\" f32 (2) = input\n"
                 "%%2 \"table\" table () = input\n%%3 f32 (T, 2, 6) = rope(%%0, %%1, %%2) "
                 "{scale=1, rotate=4, pairs=%s, sections=[1, 1, 0, 0]}\noutput \"y\" %%3\n",
                 cases[c].pairs);
        rig r;
        rig_open(&r, text);
        give(&r, "x", x);
        give(&r, "f", f);
        for (int t = 0; t < 4; t++) r.pos[t * 4] = 10 + t, r.pos[t * 4 + 1] = 100 * t;
        const float *y = run(&r);
        for (int row = 0; row < 8; row++) { // row and head
            const float *from = x + row * 6, *to = y + row * 6;
            for (int p = 0; p < 2; p++) { // pair 0 turns by t, pair 1 by h
                const double angle = (double)r.pos[row / 2 * 4 + p] * f[p];
                const double a = from[cases[c].a[p]], b = from[cases[c].b[p]];
                assert_near(to[cases[c].a[p]], a * cos(angle) - b * sin(angle), "rope");
                assert_near(to[cases[c].b[p]], a * sin(angle) + b * cos(angle), "rope");
            }
            assert_true(to[4] == from[4] && to[5] == from[5]); // beyond `rotate`
        }
        rig_close(&r);
    }
}

enum { AH = 4, AK = 2, AE = 3, AF = 2, AT = 12 }; // heads, kv heads, key and value size, rows

static void attend_by_hand(double *to, const float *q, const float *k, const float *v, int t, int h,
                           const int *visible, double cap, const float *sink) {
    const int kv = h / (AH / AK);
    double p[AT], total = sink ? exp(sink[h]) : 0;
    for (int j = 0; j < AT; j++) {
        double s = 0;
        for (int i = 0; i < AE; i++)
            s += (double)q[(t * AH + h) * AE + i] * k[(j * AK + kv) * AE + i];
        s *= 0.7;
        if (cap > 0) s = cap * tanh(s / cap);
        p[j] = visible[j] ? exp(s) : 0;
        total += p[j];
    }
    for (int i = 0; i < AF; i++) {
        to[i] = 0;
        for (int j = 0; j < AT && total > 0; j++) to[i] += p[j] / total * v[(j * AK + kv) * AF + i];
    }
}

typedef struct attend_case {
    const char *attrs, *extra; // attributes, further inputs
    int window, is_full;
    double cap;
    bool has_sinks, has_allow, is_spans;
} attend_case;

static void attention_sees_what_its_rule_says(void **state) {
    (void)state;
    static const attend_case cases[] = {
        {"scale=0.7, cap=0, window=0, rule=causal", "", 0, 0, 0, false, false, false},
        {"scale=0.7, cap=0, window=5, rule=causal", "", 5, 0, 0, false, false, false},
        {"scale=0.7, cap=0.3, window=0, rule=full", "", 0, 1, 0.3, false, false, false},
        {"scale=0.7, cap=0, window=0, rule=causal", ", %6", 0, 0, 0, true, false, false},
        {"scale=0.7, cap=0, window=0, rule=causal", ", _, %7", 0, 0, 0, false, true, false},
        {"scale=0.7, cap=0, window=0, rule=spans", ", %6, %7", 0, 0, 0, true, true, true},
    };
    float q[AT * AH * AE], k[AT * AK * AE], v[AT * AK * AF], sinks[AH];
    int32_t allow[AT * AT];
    fill(q, AT * AH * AE, 18);
    fill(k, AT * AK * AE, 19);
    fill(v, AT * AK * AF, 20);
    fill(sinks, AH, 21);
    for (int i = 0; i < AT * AT; i++) allow[i] = (i * 7 / 3) % 3 != 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"q\" f32 (T, 4, 3) = input\n%%1 \"k\" f32 (T, 2, 3) = input\n"
                 "%%2 \"v\" f32 (T, 2, 2) = input\n%%3 \"table\" table () = input\n"
                 "%%4 \"cache\" cache (2, 3, 2) = input\n"
                 "%%5 cache (2, 3, 2) = kv_write(%%4, %%1, %%2, %%3)\n"
                 "%%6 \"sinks\" f32 (4) = param\n%%7 \"allow\" i32 (T, T) = input\n"
                 "%%8 f32 (T, 4, 2) = attend(%%0, %%5, %%3%s) {%s}\noutput \"y\" %%8\n",
                 cases[c].extra, cases[c].attrs);
        rig r;
        rig_open(&r, text);
        give(&r, "q", q);
        give(&r, "k", k);
        give(&r, "v", v);
        give(&r, "sinks", sinks);
        give(&r, "allow", allow);
        one_segment(&r, AT, 0, 0);
        r.seg_pages[0] = 5; // pages need not be in order
        const float *y = run(&r);
        for (int t = 0; t < AT; t++) {
            int visible[AT];
            for (int j = 0; j < AT; j++) {
                visible[j] = cases[c].is_full || j <= t;
                if (cases[c].window && t - j >= cases[c].window) visible[j] = 0;
                if (cases[c].is_spans)
                    visible[j] |= allow[t * AT + j];
                else if (cases[c].has_allow)
                    visible[j] &= allow[t * AT + j];
            }
            for (int h = 0; h < AH; h++) {
                double want[AF];
                attend_by_hand(want, q, k, v, t, h, visible, cases[c].cap,
                               cases[c].has_sinks ? sinks : NULL);
                for (int i = 0; i < AF; i++)
                    assert_near(y[(t * AH + h) * AF + i], want[i], cases[c].attrs);
            }
        }
        rig_close(&r);
    }
}

// --- recurrent layers ---

enum { RG = 2, RH = 4, RE = 3, RF = 2, RC = 5, RN = 3 }; // delta heads and sizes, channels, taps

static const char recurrent_text[] =
    "graph \"t\"\n%0 \"q\" f32 (T, 2, 3) = input\n%1 \"k\" f32 (T, 2, 3) = input\n"
    "%2 \"v\" f32 (T, 4, 2) = input\n%3 \"g\" f32 (T, 4) = input\n%4 \"beta\" f32 (T, 4) = input\n"
    "%5 \"table\" table () = input\n%6 \"delta\" state (4, 3, 2) = input\n"
    "%7 f32 (T, 4, 2), %8 state (4, 3, 2) = delta(%0, %1, %2, %3, %4, %6, %5) "
    "{scale=0.5, heads=HEADS}\n"
    "%9 \"x\" f32 (T, 5) = input\n%10 \"w\" f32 (5, 3) = param\n"
    "%11 \"conv\" state (2, 5) = input\n"
    "%12 f32 (T, 5), %13 state (2, 5) = conv(%9, %10, %11, %5)\n"
    "output \"y\" %7\noutput \"conv\" %12\n";

typedef struct recurrent_data {
    float q[MAX_ROWS * RG * RE], k[MAX_ROWS * RG * RE], v[MAX_ROWS * RH * RF];
    float g[MAX_ROWS * RH], beta[MAX_ROWS * RH], x[MAX_ROWS * RC], w[RC * RN];
} recurrent_data;

static void fill_recurrent(recurrent_data *d, uint32_t salt) {
    fill(d->q, MAX_ROWS * RG * RE, salt);
    fill(d->k, MAX_ROWS * RG * RE, salt + 1);
    fill(d->v, MAX_ROWS * RH * RF, salt + 2);
    fill(d->g, MAX_ROWS * RH, salt + 3);
    fill(d->beta, MAX_ROWS * RH, salt + 4);
    fill(d->x, MAX_ROWS * RC, salt + 5);
    fill(d->w, RC * RN, 99);
    for (int i = 0; i < MAX_ROWS * RH; i++) d->g[i] = -fabsf(d->g[i]);
}

static void open_recurrent(rig *r, const char *heads) {
    char text[sizeof recurrent_text + 16];
    const char *mark = strstr(recurrent_text, "HEADS");
    snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - recurrent_text), recurrent_text, heads,
             mark + 5);
    rig_open(r, text);
}

// Gives the rows from `first` on.
static void give_rows(rig *r, const recurrent_data *d, int64_t first) {
    give(r, "q", d->q + first * RG * RE);
    give(r, "k", d->k + first * RG * RE);
    give(r, "v", d->v + first * RH * RF);
    give(r, "g", d->g + first * RH);
    give(r, "beta", d->beta + first * RH);
    give(r, "x", d->x + first * RC);
    give(r, "w", d->w);
}

static void the_delta_rule_follows_its_recurrence(void **state) {
    (void)state;
    static recurrent_data d;
    fill_recurrent(&d, 30);
    for (int is_tiled = 0; is_tiled < 2; is_tiled++) {
        rig r;
        open_recurrent(&r, is_tiled ? "tiled" : "grouped");
        give_rows(&r, &d, 0);
        one_segment(&r, 20, 0, 0);
        const float *o = run(&r);
        double s[RH][RE][RF] = {{{0}}};
        for (int t = 0; t < 20; t++) {
            for (int h = 0; h < RH; h++) {
                const int kh = is_tiled ? h % RG : h / (RH / RG);
                const float *k = d.k + (t * RG + kh) * RE, *q = d.q + (t * RG + kh) * RE;
                for (int j = 0; j < RF; j++) {
                    double known = 0, out = 0;
                    for (int i = 0; i < RE; i++) {
                        s[h][i][j] *= exp(d.g[t * RH + h]);
                        known += s[h][i][j] * k[i];
                    }
                    const double change = (d.v[(t * RH + h) * RF + j] - known) * d.beta[t * RH + h];
                    for (int i = 0; i < RE; i++) s[h][i][j] += k[i] * change;
                    for (int i = 0; i < RE; i++) out += s[h][i][j] * q[i] * 0.5;
                    assert_near(o[(t * RH + h) * RF + j], out, "delta");
                }
            }
        }
        int64_t n;
        const float *y = qn_ref_output(r.ref, "conv", &n);
        for (int t = 0; t < 20; t++) {
            for (int c = 0; c < RC; c++) {
                double sum = 0;
                for (int j = 0; j < RN; j++) {
                    const int from = t - (RN - 1) + j;
                    sum += from < 0 ? 0 : (double)d.w[c * RN + j] * d.x[from * RC + c];
                }
                assert_near(y[t * RC + c], sum, "conv");
            }
        }
        rig_close(&r);
    }
}

// Drafted rows that are not accepted leave no trace: after rolling back, the state is that of a
// sequence that never saw them, bit for bit.
static void rejected_rows_leave_no_trace(void **state) {
    (void)state;
    static recurrent_data d, draft;
    fill_recurrent(&d, 40);
    fill_recurrent(&draft, 50);
    rig plain, drafted;
    open_recurrent(&plain, "tiled");
    open_recurrent(&drafted, "tiled");
    give_rows(&plain, &d, 0);
    one_segment(&plain, 30, 0, 0);
    const float *want = run(&plain);

    give_rows(&drafted, &d, 0);
    one_segment(&drafted, 10, 0, 0);
    run(&drafted);
    // Rows 10-12 as they will be, then two wrong ones; the first three are accepted.
    memcpy(draft.q, d.q + 10 * RG * RE, 3 * RG * RE * sizeof(float));
    memcpy(draft.k, d.k + 10 * RG * RE, 3 * RG * RE * sizeof(float));
    memcpy(draft.v, d.v + 10 * RH * RF, 3 * RH * RF * sizeof(float));
    memcpy(draft.g, d.g + 10 * RH, 3 * RH * sizeof(float));
    memcpy(draft.beta, d.beta + 10 * RH, 3 * RH * sizeof(float));
    memcpy(draft.x, d.x + 10 * RC, 3 * RC * sizeof(float));
    give_rows(&drafted, &draft, 0);
    one_segment(&drafted, 5, 10, 10);
    run(&drafted);
    give_rows(&drafted, &d, 13);
    one_segment(&drafted, 17, 13, 3);
    const float *got = run(&drafted);
    assert_memory_equal(got, want + 13 * RH * RF, 17 * RH * RF * sizeof(float));
    int64_t n;
    const float *conv_got = qn_ref_output(drafted.ref, "conv", &n);
    const float *conv_want = qn_ref_output(plain.ref, "conv", &n);
    assert_memory_equal(conv_got, conv_want + 13 * RC, 17 * RC * sizeof(float));
    qn_err err;
    one_segment(&drafted, 1, 30, 18); // only 17 rows are logged
    ASSERT_FAILS(qn_ref_run(drafted.ref, &drafted.step, &err), QN_ARGUMENT, "accepts 18");
    rig_close(&plain);
    rig_close(&drafted);
}

// Two sequences and an inert row in one step give what each gives alone.
static void a_shared_step_changes_no_bit(void **state) {
    (void)state;
    static recurrent_data a, b, both;
    fill_recurrent(&a, 60);
    fill_recurrent(&b, 70);
    rig alone[2], shared;
    const recurrent_data *data[2] = {&a, &b};
    const int rows[2] = {3, 4};
    float want[2][4 * RH * RF];
    for (int i = 0; i < 2; i++) {
        open_recurrent(&alone[i], "grouped");
        give_rows(&alone[i], data[i], 0);
        one_segment(&alone[i], rows[i], 0, 0);
        memcpy(want[i], run(&alone[i]), (size_t)rows[i] * RH * RF * sizeof(float));
        rig_close(&alone[i]);
    }
    memcpy(&both, &a, sizeof both); // rows 0-2 of a, 3-6 of b, row 7 inert
#define TAKE(field, width) memcpy(both.field + 3 * (width), b.field, 4 * (width) * sizeof(float))
    TAKE(q, RG * RE);
    TAKE(k, RG * RE);
    TAKE(v, RH * RF);
    TAKE(g, RH);
    TAKE(beta, RH);
    TAKE(x, RC);
#undef TAKE
    open_recurrent(&shared, "grouped");
    give_rows(&shared, &both, 0);
    one_segment(&shared, 8, 0, 0);
    shared.step.n_segs = 2;
    shared.seg_row[1] = 3, shared.seg_row[2] = 7;
    shared.seg_slot[1] = 3;
    for (int t = 3; t < 7; t++) shared.row_seg[t] = 1;
    shared.row_seg[7] = -1;
    const float *got = run(&shared);
    assert_memory_equal(got, want[0], 3 * RH * RF * sizeof(float));
    assert_memory_equal(got + 3 * RH * RF, want[1], 4 * RH * RF * sizeof(float));
    rig_close(&shared);
}

static void a_broken_step_table_is_refused(void **state) {
    (void)state;
    qn_err err;
    static recurrent_data d;
    rig r;
    open_recurrent(&r, "tiled");
    give_rows(&r, &d, 0);
    one_segment(&r, 4, 0, 0);
    r.seg_slot[0] = 4;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "slot 4 of 4");
    one_segment(&r, 4, 0, 0);
    r.seg_row[1] = 5;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "rows 0 to 5 of 4");
    one_segment(&r, 4, 0, 0);
    r.row_seg[2] = 1;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "row 2: segment 1 of 1");
    one_segment(&r, 4, 0, 0);
    r.seg_pages[0] = 2 * MAX_PAGES;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "page 16 of 16");
    one_segment(&r, 4, MAX_PAGES * QN_PAGE_ROWS - 3, 0);
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "needs 9 pages, has 8");
    one_segment(&r, 4, 0, 0);
    r.row_out[1] = 4;
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_ARGUMENT, "wanted row 4 of 4");
    one_segment(&r, 4, 0, 0);
    give(&r, "x", NULL);
    ASSERT_FAILS(qn_ref_run(r.ref, &r.step, &err), QN_STATE, "x: no data");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_sums_rows),
        cmocka_unit_test(activations_follow_their_formulas),
        cmocka_unit_test(norms_and_caps_follow_their_formulas),
        cmocka_unit_test(packed_activations_stay_within_half_a_step),
        cmocka_unit_test(moves_put_values_where_they_belong),
        cmocka_unit_test(experts_are_routed_and_added_in_order),
        cmocka_unit_test(squares_are_summed_by_column_and_expert),
        cmocka_unit_test(embedding_takes_extra_rows),
        cmocka_unit_test(adapters_add_to_their_own_segment),
        cmocka_unit_test(rope_turns_the_right_pairs),
        cmocka_unit_test(attention_sees_what_its_rule_says),
        cmocka_unit_test(the_delta_rule_follows_its_recurrence),
        cmocka_unit_test(rejected_rows_leave_no_trace),
        cmocka_unit_test(a_shared_step_changes_no_bit),
        cmocka_unit_test(a_broken_step_table_is_refused),
    };
    return cmocka_run_group_tests_name("ir reference", tests, NULL, NULL);
}
