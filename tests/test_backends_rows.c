// Kernels that compute rows from rows: the same bits on every level, for one row or many and for
// any order of pieces, and close to the reference interpreter.
#include "testing.h"

#include "task.h"

#include "backends/kernel_math.h"
#include "core/mem.h"
#include "ir/ref.h"
#include "ir/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const task_seg segs[] = {{.past = 0, .rows = 5},
                                {.past = 61, .rows = 7, .slot = 1, .adapter = 2},
                                {.past = 3, .rows = 2, .slot = 1, .adapter = 1}};
enum { N_SEGS = sizeof segs / sizeof *segs };

typedef struct rig {
    qn_graph graph;
    task_step step;
    task_call call;         // of the graph's last node
    float *room[QN_MAX_IN]; // data of its inputs
} rig;

// Inputs of the last node get numbers in [-4, 4), ids what the step says.
static void rig_open(rig *r, const char *text) {
    qn_err err;
    memset(r, 0, sizeof *r);
    ASSERT_OK(qn_graph_parse(&r->graph, text, strlen(text), &err));
    task_step_init(&r->step, segs, N_SEGS, 1);
    r->call = (task_call){
        .graph = &r->graph, .node = &r->graph.nodes[r->graph.n_nodes - 1], .step = &r->step.step};
    for (int i = 0; i < r->call.node->n_in; i++) {
        const int32_t id = r->call.node->in[i];
        if (id < 0 || r->graph.values[id].kind != QN_TENSOR) continue;
        if (strcmp(r->graph.values[id].name, "row_out") == 0) {
            r->call.data[i] = r->step.row_out;
            continue;
        }
        const int64_t n = task_rows(&r->call, id) * task_row_bytes(&r->call, id) / 4;
        r->room[i] = qn_alloc((size_t)n, sizeof(float));
        task_fill(r->room[i], n, (uint32_t)i + 1);
        for (int64_t k = 0; k < n; k++) r->room[i][k] *= 4;
        r->call.data[i] = r->room[i];
    }
}

static void rig_close(rig *r) {
    for (int i = 0; i < QN_MAX_IN; i++) qn_free(r->room[i]);
    qn_graph_deinit(&r->graph);
}

static const qn_cpu_level *level_at(size_t i) {
    qn_err err;
    const qn_cpu_level *backend;
    if (!qn_cpu_level_name(i)) return NULL;
    ASSERT_OK(qn_cpu_level_find(&backend, qn_cpu_level_name(i), &err));
    return backend;
}

// Bytes of result o in the rig's step.
static size_t result_bytes(const task_call *call, int o) {
    const int32_t id = call->node->out[o];
    return (size_t)(task_rows(call, id) * task_row_bytes(call, id));
}

static void free_results(void **outs) {
    for (int o = 0; o < QN_MAX_OUT; o++) qn_free(outs[o]);
}

// Every level and order of pieces gives the bytes of `want`.
static void check_levels(const rig *r, void *const *want, const char *what) {
    for (size_t i = 0; level_at(i); i++) {
        for (int order = 0; order < 3; order++) {
            task_call call = r->call;
            void *got[QN_MAX_OUT];
            call.order = order;
            task_run(got, &call, level_at(i));
            for (int o = 0; o < call.node->n_out; o++) {
                if (memcmp(got[o], want[o], result_bytes(&call, o)) != 0)
                    fail_msg("%s: result %d differs at level %s, order %d", what, o,
                             level_at(i)->name, order);
            }
            free_results(got);
        }
    }
}

// Each row run alone gives the bytes of `want`.
static void check_alone(const rig *r, void *const *want, const char *what) {
    for (int64_t t = 0; t < r->step.step.n_rows; t++) {
        task_step one;
        const int32_t seg = r->step.row_seg[t];
        const int32_t adapter = seg < 0 ? 0 : segs[seg].adapter;
        task_step_init(&one, &(task_seg){.rows = 1, .adapter = adapter}, 1, 0);
        if (seg < 0) one.row_seg[0] = -1;
        memcpy(one.pos, r->step.pos + 4 * t, 4 * sizeof *one.pos);
        task_call call = r->call;
        call.step = &one.step;
        for (int i = 0; i < call.node->n_in; i++) {
            const int32_t id = call.node->in[i];
            if (!call.data[i] || r->graph.values[id].shape.dims[0].sym == QN_SYM_ONE) continue;
            call.data[i] = (const char *)call.data[i] + t * task_row_bytes(&call, id);
        }
        void *got[QN_MAX_OUT];
        task_run(got, &call, level_at(0));
        for (int o = 0; o < call.node->n_out; o++) {
            const size_t n = result_bytes(&call, o);
            if (memcmp(got[o], (const char *)want[o] + (size_t)t * n, n) != 0)
                fail_msg("%s: row %lld alone differs", what, (long long)t);
        }
        free_results(got);
    }
}

// |got - want| <= bound * (1 + |want|); a bound of 0 wants equal bits.
static void check_near(const float *got, const float *want, int64_t n, double bound,
                       const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - (double)want[i]) > bound * (1 + fabs((double)want[i])))
            fail_msg("%s: element %lld is %.9g, want %.9g", what, (long long)i, (double)got[i],
                     (double)want[i]);
    }
}

static void check_reference(const rig *r, void *const *got, double bound, const char *what) {
    qn_err err;
    qn_ref *ref;
    const qn_ref_opts opts = {.graph = &r->graph, .n_pages = 2 * TASK_PAGES, .n_slots = 2};
    ASSERT_OK(qn_ref_create(&ref, &opts, &err));
    ASSERT_OK(qn_ref_run_node(ref, r->graph.n_nodes - 1, r->call.step, r->call.data, &err));
    for (int o = 0; o < r->call.node->n_out; o++) {
        int64_t n;
        const int32_t id = r->call.node->out[o];
        const void *want = qn_ref_value(ref, id, &n);
        if (r->graph.values[id].type == QN_TYPE_I32)
            assert_memory_equal(got[o], want, (size_t)n * sizeof(int32_t));
        else
            check_near(got[o], want, n, bound, what);
    }
    qn_ref_destroy(ref);
}

typedef struct op_case {
    const char *text; // of the graph after "graph"; its last node is tested
    double bound;     // against the reference
} op_case;

static void check_case(const op_case *c) {
    rig r;
    char text[1024];
    void *want[QN_MAX_OUT];
    snprintf(text, sizeof text, "graph \"t\"\n%s\n", c->text);
    rig_open(&r, text);
    task_run(want, &r.call, level_at(0));
    check_levels(&r, want, c->text);
    if (r.call.node->op != QN_OP_GATHER_ROWS) check_alone(&r, want, c->text);
    check_reference(&r, want, c->bound, c->text);
    free_results(want);
    rig_close(&r);
}

#define X(shape) "%0 \"x\" f32 " shape " = input\n"
#define TABLE    "%1 \"table\" table () = input\n"
#define CHECK_CASES(cases)                                                                         \
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases)[0]; i++) check_case(&(cases)[i])

static void maps_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {X("(T, 3, 37)") "%1 f32 (T, 3, 37) = scale(%0) {scale=0.3}", 0},
        {X("(T, 37)") "%1 f32 (T, 37) = silu(%0)", 1e-6},
        {X("(T, 300)") "%1 f32 (T, 300) = gelu(%0)", 1e-6},
        {X("(T, 37)") "%1 f32 (T, 37) = gelu_erf(%0)", 1e-6},
        {X("(T, 64)") "%1 f32 (T, 64) = sigmoid(%0)", 1e-6},
        {X("(T, 1)") "%1 f32 (T, 1) = softplus(%0)", 1e-6},
        {X("(T, 5000)") "%1 f32 (T, 5000) = softcap(%0) {cap=3}", 1e-6},
    };
    CHECK_CASES(cases);
}

static void operands_spread(void **state) {
    (void)state;
    static const char *const shapes[][2] = {
        {"(T, 37)", "(T, 37)"},
        {"(T, 37)", "(37)"},
        {"(T, 37)", "(T, 1)"},
        {"(T, 37)", "(1)"},
        {"(T, 37)", "(1, 37)"},
        {"(T, 3, 5)", "(T, 3, 5)"},
        {"(T, 3, 5)", "(3, 5)"},
        {"(T, 3, 5)", "(5)"},
        {"(T, 3, 5)", "(T, 1, 5)"},
        {"(T, 3, 5)", "(T, 3, 1)"},
        {"(T, 3, 5)", "(T, 1, 1)"},
        {"(T, 3, 5)", "(3, 1)"},
        {"(T, 2, 3, 5)", "(3, 5)"},
        {"(T, 2, 3, 5)", "(3, 1)"},
        {"(T, 2, 3, 5)", "(T, 1, 3, 5)"},
        {"(T, 2, 3, 5)", "(2, 3, 1)"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int op = 0; op < 2; op++) {
            char text[512];
            snprintf(
                text, sizeof text,
                "%%0 \"a\" f32 %s = input\n%%1 \"b\" f32 %s = input\n%%2 f32 %s = %s(%%0, %%1)",
                shapes[i][0], shapes[i][1], shapes[i][0], op ? "mul" : "add");
            check_case(&(op_case){text, 0});
        }
    }
}

static void norms_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {X("(T, 1)") "%1 \"w\" f32 (1) = param\n%2 f32 (T, 1) = rms_norm(%0, %1) {eps=1e-6}", 1e-5},
        {X("(T, 37)") "%1 \"w\" f32 (37) = param\n%2 f32 (T, 37) = rms_norm(%0, %1) {eps=1e-6}",
         1e-5},
        {X("(T, 1024)") "%1 \"w\" f32 (1024) = param\n%2 f32 (T, 1024) = rms_norm(%0, %1) "
                        "{eps=0.5}",
         1e-5},
        {X("(T, 3, 15)") "%1 \"w\" f32 (15) = param\n%2 f32 (T, 3, 15) = rms_norm(%0, %1) {eps=0}",
         1e-5},
        {X("(T, 53)") "%1 \"w\" f32 (53) = param\n%2 \"b\" f32 (53) = param\n"
                      "%3 f32 (T, 53) = layer_norm(%0, %1, %2) {eps=1e-5}",
         1e-5},
        {X("(T, 2, 31)") "%1 f32 (T, 2, 31) = l2_norm(%0) {eps=1e-6}", 1e-5},
        {X("(T, 300)") "%1 \"w\" f32 (300) = param\n"
                       "%2 f32 (T, 300) = norm_quantize(%0, %1) {eps=1e-6, form=f32}",
         1e-5},
        {X("(T, 300)") "%1 \"b\" f32 (T, 300) = input\n%2 \"w\" f32 (300) = param\n"
                       "%3 f32 (T, 300), %4 f32 (T, 300) = add_norm(%0, %1, %2) "
                       "{eps=1e-6, form=f32}",
         1e-5},
    };
    CHECK_CASES(cases);
}

// --- the written formulas of docs/numbers.md, one number at a time ---

// Lane l of n_lanes sums elements l, l + n_lanes, ...; then the halves of the lanes are added.
static float sum_in_lanes(const float *x, int64_t n, float mean, int n_lanes, bool is_squared) {
    float lane[64] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *to = &lane[i % n_lanes];
        const float d = x[i] - mean;
        *to = is_squared ? fmaf(d, d, *to) : *to + d;
    }
    for (int half = n_lanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

// Row `t` of the rig's norm.
static void plain_norm(const rig *r, float *to, int64_t t, int64_t n) {
    const qn_op op = r->call.node->op;
    const float eps = r->call.node->attrs.eps, *x = r->room[0] + t * n;
    const float *w = op == QN_OP_ROTATE ? r->room[2] : r->room[1], *b = r->room[2];
    const float mean = op == QN_OP_LAYER_NORM ? sum_in_lanes(x, n, 0, 64, false) / (float)n : 0;
    const float sum = sum_in_lanes(x, n, mean, 64, true);
    const float inverse = 1.0f / sqrtf((op == QN_OP_L2_NORM ? sum : sum / (float)n) + eps);
    for (int64_t i = 0; i < n; i++) {
        to[i] = (x[i] - mean) * inverse;
        if (op == QN_OP_LAYER_NORM)
            to[i] = fmaf(to[i], w[i], b[i]);
        else if (op != QN_OP_L2_NORM)
            to[i] *= w[i];
    }
    if (op == QN_OP_ROTATE) { // the first two elements turn
        const float *angles = r->room[1] + 2 * t, from = to[0];
        to[0] = fmaf(from, angles[0], -(to[1] * angles[1]));
        to[1] = fmaf(from, angles[1], to[1] * angles[0]);
    }
}

static void norms_keep_the_contract(void **state) {
    (void)state;
    static const int sizes[] = {2,  15, 16,  17,  31,  32,  48,  63,   64,
                                65, 80, 127, 128, 129, 200, 255, 1024, 1103};
    static const char *const ops[] = {
        "%%1 \"w\" f32 (%d) = param\n%%2 f32 (T, 1, %d) = rms_norm(%%0, %%1) {eps=1e-6}\n",
        "%%1 \"w\" f32 (%d) = param\n%%2 \"b\" f32 (%d) = param\n"
        "%%3 f32 (T, 1, %d) = layer_norm(%%0, %%1, %%2) {eps=1e-5}\n",
        "%%1 f32 (T, 1, %d) = l2_norm(%%0) {eps=1e-6}\n",
        "%%1 \"a\" f32 (T, 2, 1) = input\n%%2 \"w\" f32 (%d) = param\n"
        "%%3 f32 (T, 1, %d) = rotate(%%0, %%1, %%2) {eps=1e-6, rotate=2, pairs=half}\n",
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] * 4; i++) {
        rig r;
        char text[512], op[256];
        void *want[QN_MAX_OUT] = {0};
        const int n = sizes[i / 4];
        snprintf(op, sizeof op, ops[i % 4], n, n, n);
        snprintf(text, sizeof text, "graph \"t\"\n%%0 \"x\" f32 (T, 1, %d) = input\n%s", n, op);
        rig_open(&r, text);
        const int64_t rows = r.step.step.n_rows;
        float *y = qn_alloc((size_t)(rows * n), sizeof *y);
        for (int64_t t = 0; t < rows; t++) plain_norm(&r, y + t * n, t, n);
        want[0] = y;
        check_levels(&r, want, text);
        qn_free(y);
        rig_close(&r);
    }
}

static void routing_keeps_the_contract(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "graph \"t\"\n%0 \"x\" f32 (T, 150) = input\n"
                 "%1 i32 (T, 9), %2 f32 (T, 9) = route(%0) {top=9, normalize=0, scale=1}\n");
    for (size_t i = 0; level_at(i); i++) {
        void *outs[QN_MAX_OUT];
        task_run(outs, &r.call, level_at(i));
        for (int64_t t = 0; t < r.step.step.n_rows; t++) {
            const float *x = r.room[0] + t * 150;
            float p[150], max = x[0];
            for (int k = 1; k < 150; k++) max = x[k] > max ? x[k] : max;
            for (int k = 0; k < 150; k++) p[k] = math_exp(x[k] - max);
            const float sum = sum_in_lanes(p, 150, 0, 16, false);
            for (int64_t k = t * 9; k < t * 9 + 9; k++) {
                const float want = p[((const int32_t *)outs[0])[k]] / sum;
                assert_memory_equal((const float *)outs[1] + k, &want, sizeof want);
            }
        }
        free_results(outs);
    }
    rig_close(&r);
}

static void moves_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {X("(T, 37)") "%1 f32 (T, 5) = narrow(%0) {axis=1, start=7, length=5}", 0},
        {X("(T, 37)") "%1 f32 (T, 37) = narrow(%0) {axis=1, start=0, length=37}", 0},
        {X("(T, 6, 5)") "%1 f32 (T, 2, 5) = narrow(%0) {axis=1, start=3, length=2}", 0},
        {X("(T, 6, 5)") "%1 f32 (T, 6, 2) = narrow(%0) {axis=2, start=3, length=2}", 0},
        {X("(T, 6, 2, 5)") "%1 f32 (T, 3, 2, 5) = narrow(%0) {axis=1, start=1, length=3}", 0},
        {X("(T, 6, 2, 5)") "%1 f32 (T, 6, 2, 1) = narrow(%0) {axis=3, start=4, length=1}", 0},
        {X("(T, 7)") "%1 \"b\" f32 (T, 4) = input\n%2 f32 (T, 11) = concat(%0, %1) {axis=1}", 0},
        {X("(T, 2, 7)") "%1 \"b\" f32 (T, 3, 7) = input\n"
                        "%2 f32 (T, 5, 7) = concat(%0, %1) {axis=1}",
         0},
        {X("(T, 3, 7)") "%1 \"b\" f32 (T, 3, 4) = input\n"
                        "%2 f32 (T, 3, 11) = concat(%0, %1) {axis=2}",
         0},
        {X("(T, 12)") "%1 f32 (T, 3, 4) = split(%0) {parts=3}", 0},
        {X("(T, 3, 4)") "%1 f32 (T, 12) = merge(%0)", 0},
        {X("(T, 12)") "%1 \"row_out\" i32 (R) = input\n%2 f32 (R, 12) = gather_rows(%0, %1)", 0},
    };
    CHECK_CASES(cases);
}

static void positions_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {"%0 \"f\" f32 (9) = param\n" TABLE
         "%2 f32 (T, 2, 9) = angles(%0, %1) {scale=1, sections=[0, 0, 0, 0]}",
         1e-6},
        {"%0 \"f\" f32 (20) = param\n" TABLE
         "%2 f32 (T, 2, 20) = angles(%0, %1) {scale=1, sections=[8, 6, 6, 0]}",
         1e-6},
        {X("(T, 3, 18)") TABLE "%2 \"f\" f32 (9) = param\n%3 f32 (T, 3, 18) = rope(%0, %2, %1) "
                               "{scale=1, rotate=18, pairs=half, sections=[0, 0, 0, 0]}",
         1e-5},
        {X("(T, 3, 23)") TABLE "%2 \"f\" f32 (9) = param\n%3 f32 (T, 3, 23) = rope(%0, %2, %1) "
                               "{scale=1, rotate=18, pairs=adjacent, sections=[3, 3, 3, 0]}",
         1e-5},
        {X("(T, 3, 18)") "%1 \"a\" f32 (T, 2, 8) = input\n%2 \"w\" f32 (18) = param\n"
                         "%3 f32 (T, 3, 18) = rotate(%0, %1, %2) {eps=1e-6, rotate=16, pairs=half}",
         1e-5},
        {X("(T, 3, 18)") "%1 \"a\" f32 (T, 2, 8) = input\n"
                         "%2 f32 (T, 3, 18) = rotate(%0, %1) {eps=0, rotate=16, pairs=adjacent}",
         1e-5},
    };
    CHECK_CASES(cases);
}

static void experts_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {X("(T, 8)") "%1 i32 (T, 3), %2 f32 (T, 3) = route(%0) {top=3, normalize=1, scale=2.5}",
         1e-6},
        {X("(T, 130)") "%1 i32 (T, 8), %2 f32 (T, 8) = route(%0) {top=8, normalize=0, scale=1}",
         1e-6},
        {X("(T, 1)") "%1 i32 (T, 1), %2 f32 (T, 1) = route(%0) {top=1, normalize=1, scale=1}",
         1e-6},
        {X("(T, 3, 37)") "%1 \"w\" f32 (T, 3) = input\n%2 f32 (T, 37) = combine(%0, %1)", 1e-5},
    };
    CHECK_CASES(cases);
}

// Result `o` of the graph's node number `node` on the given inputs, at a level.
static void *run_node(const rig *r, size_t node, const void *const *data,
                      const qn_cpu_level *backend, int o) {
    task_call call = r->call;
    void *outs[QN_MAX_OUT];
    call.node = &r->graph.nodes[node];
    memcpy(call.data, data, sizeof call.data);
    task_run(outs, &call, backend);
    void *result = outs[o];
    outs[o] = NULL;
    free_results(outs);
    return result;
}

// norm_quantize is rms_norm, then quantize; add_norm is add before them. Bytes of panels.
#define LORA(ranks, in, out)                                                                       \
    "%0 \"y\" f32 (T, " #out ") = input\n%1 \"x\" f32 (T, " #in                                    \
    ") = input\n%2 \"a\" f32 (2, " #ranks ", " #in ") = param\n%3 \"b\" f32 (2, " #out ", " #ranks \
    ") = param\n%4 \"table\" table () = "                                                          \
    "input\n%5 f32 (T, " #out ") = lora(%0, %1, %2, %3, %4) {scale=0.5}"

// The products are of numbers up to 4, so that their sums, of some hundreds, cancel: bounds are
// some units in the last place of those.
static void adapters_are_the_reference(void **state) {
    (void)state;
    static const op_case cases[] = {
        {LORA(1, 3, 2), 1e-5},     {LORA(4, 64, 16), 1e-4},   {LORA(8, 301, 37), 1e-3},
        {LORA(16, 64, 600), 1e-3}, {LORA(37, 130, 20), 1e-3},
    };
    CHECK_CASES(cases);
}

// Rows without an adapter are y itself, whatever it holds.
static void rows_without_an_adapter_keep_their_bits(void **state) {
    (void)state;
    rig r;
    void *got[QN_MAX_OUT];
    rig_open(&r, "graph \"t\"\n" LORA(4, 8, 9) "\n");
    r.room[0][0] = -0.0f;
    r.room[0][1] = NAN;
    r.room[0][2] = INFINITY;
    task_run(got, &r.call, level_at(0));
    assert_memory_equal(got[0], r.room[0], 5 * 9 * sizeof(float)); // the first segment
    const size_t last = (size_t)(r.step.step.n_rows - 1) * 9;      // padding
    assert_memory_equal((float *)got[0] + last, r.room[0] + last, 9 * sizeof(float));
    assert_memory_not_equal((float *)got[0] + 45, r.room[0] + 45, 9 * sizeof(float));
    free_results(got);
    rig_close(&r);
}

static void fused_norms_change_no_bit(void **state) {
    (void)state;
    static const char *const forms[] = {"i12_256", "i16_256", "i8_32"};
    for (int f = 0; f < 3; f++) {
        rig r;
        char text[1024];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"a\" f32 (T, 2, 333) = input\n"
                 "%%1 \"b\" f32 (T, 2, 333) = input\n%%2 \"w\" f32 (333) = param\n"
                 "%%3 f32 (T, 2, 333) = add(%%0, %%1)\n"
                 "%%4 f32 (T, 2, 333) = rms_norm(%%3, %%2) {eps=1e-6}\n"
                 "%%5 f32 (T, 2, 333) = quantize(%%4) {form=%s}\n"
                 "%%6 f32 (T, 2, 333) = norm_quantize(%%3, %%2) {eps=1e-6, form=%s}\n"
                 "%%7 f32 (T, 2, 333), %%8 f32 (T, 2, 333) = add_norm(%%0, %%1, %%2) "
                 "{eps=1e-6, form=%s}\n",
                 forms[f], forms[f], forms[f]);
        rig_open(&r, text);
        const void *a = r.call.data[0], *b = r.call.data[1], *w = r.call.data[2];
        const qn_cpu_level *low = level_at(0);
        float *sum = run_node(&r, 3, (const void *[QN_MAX_IN]){a, b}, low, 0);
        float *norm = run_node(&r, 4, (const void *[QN_MAX_IN]){sum, w}, low, 0);
        void *packed = run_node(&r, 5, (const void *[QN_MAX_IN]){norm}, low, 0);
        const size_t bytes = result_bytes(&r.call, 1), sum_bytes = result_bytes(&r.call, 0);
        for (size_t i = 0; level_at(i); i++) {
            void *all[] = {
                run_node(&r, 6, (const void *[QN_MAX_IN]){sum, w}, level_at(i), 0),
                run_node(&r, 7, (const void *[QN_MAX_IN]){a, b, w}, level_at(i), 1),
                run_node(&r, 7, (const void *[QN_MAX_IN]){a, b, w}, level_at(i), 0),
            };
            assert_memory_equal(all[0], packed, bytes);
            assert_memory_equal(all[1], packed, bytes);
            assert_memory_equal(all[2], sum, sum_bytes);
            for (int k = 0; k < 3; k++) qn_free(all[k]);
        }
        qn_free(sum);
        qn_free(norm);
        qn_free(packed);
        rig_close(&r);
    }
}

static void rope_is_angles_and_rotate(void **state) {
    (void)state;
    static const char *const pairs[] = {"half", "adjacent"};
    for (int p = 0; p < 2; p++) {
        rig r;
        char text[1024];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, 3, 40) = input\n%%1 \"f\" f32 (17) = param\n"
                 "%%2 \"table\" table () = input\n"
                 "%%3 f32 (T, 2, 17) = angles(%%1, %%2) {scale=1, sections=[6, 6, 5, 0]}\n"
                 "%%4 f32 (T, 3, 40) = rotate(%%0, %%3) {eps=0, rotate=34, pairs=%s}\n"
                 "%%5 f32 (T, 3, 40) = rope(%%0, %%1, %%2) "
                 "{scale=1, rotate=34, pairs=%s, sections=[6, 6, 5, 0]}\n",
                 pairs[p], pairs[p]);
        rig_open(&r, text);
        const void *x = r.call.data[0], *f = r.call.data[1];
        void *angles = run_node(&r, 3, (const void *[QN_MAX_IN]){f}, level_at(0), 0);
        void *want = run_node(&r, 4, (const void *[QN_MAX_IN]){x, angles}, level_at(0), 0);
        for (size_t i = 0; level_at(i); i++) {
            void *got = run_node(&r, 5, (const void *[QN_MAX_IN]){x, f}, level_at(i), 0);
            assert_memory_equal(got, want, result_bytes(&r.call, 0));
            qn_free(got);
        }
        qn_free(angles);
        qn_free(want);
        rig_close(&r);
    }
}

// Equal scores go to the lower id; scores that are no numbers still give ids in range.
static void routing_is_stable(void **state) {
    (void)state;
    rig r;
    rig_open(&r, "graph \"t\"\n%0 \"x\" f32 (T, 20) = input\n"
                 "%1 i32 (T, 4), %2 f32 (T, 4) = route(%0) {top=4, normalize=1, scale=1}\n");
    for (int i = 0; i < 20; i++) {
        r.room[0][i] = i == 7 || i == 13 || i == 19 || i == 2 ? 1.0f : 0.5f;
        r.room[0][20 + i] = NAN;
    }
    for (size_t i = 0; level_at(i); i++) {
        void *outs[QN_MAX_OUT];
        task_run(outs, &r.call, level_at(i));
        assert_memory_equal(outs[0], ((const int32_t[]){2, 7, 13, 19}), 4 * sizeof(int32_t));
        for (int k = 0; k < 4; k++) {
            assert_true(((const float *)outs[1])[k] == 0.25f);
            assert_in_range(((const int32_t *)outs[0])[4 + k], 0, 19);
        }
        free_results(outs);
    }
    rig_close(&r);
}

static void torn_shapes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *why; // why NULL: it can run
    } cases[] = {
        {X("(T, 2, 3, 5)") "%1 \"b\" f32 (T, 2, 1, 5) = input\n%2 f32 (T, 2, 3, 5) = add(%0, %1)",
         "inner dimension"},
        {X("(T, 2, 3, 5)") "%1 \"b\" f32 (2, 1, 5) = input\n%2 f32 (T, 2, 3, 5) = mul(%0, %1)",
         "inner dimension"},
        {X("(T, 2, 3, 5)") "%1 \"b\" f32 (T, 1, 3, 1) = input\n%2 f32 (T, 2, 3, 5) = mul(%0, %1)",
         NULL},
        {X("(T, 2, 3, 5)") "%1 f32 (T, 2, 2, 5) = narrow(%0) {axis=2, start=0, length=2}",
         "inner dimension"},
        {X("(8, 5)") "%1 f32 (2, 5) = narrow(%0) {axis=0, start=0, length=2}", "rows"},
        {X("(T, 5)") "%1 f32 (2*T, 5) = concat(%0, %0) {axis=0}", "rows"},
        {X("(T, 5)") "%1 f32 (T, 10) = concat(%0, %0) {axis=1}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_err err;
        qn_graph graph = {0};
        char text[512];
        snprintf(text, sizeof text, "graph \"t\"\n%s\n", cases[i].text);
        ASSERT_OK(qn_graph_parse(&graph, text, strlen(text), &err));
        const char *why = level_at(0)->backend.refuse(&graph, &graph.nodes[graph.n_nodes - 1]);
        if (!why != !cases[i].why || (why && !strstr(why, cases[i].why)))
            fail_msg("%s: refused for '%s'", cases[i].text, why ? why : "nothing");
        qn_graph_deinit(&graph);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_the_reference),
        cmocka_unit_test(operands_spread),
        cmocka_unit_test(norms_are_the_reference),
        cmocka_unit_test(moves_are_the_reference),
        cmocka_unit_test(positions_are_the_reference),
        cmocka_unit_test(experts_are_the_reference),
        cmocka_unit_test(adapters_are_the_reference),
        cmocka_unit_test(rows_without_an_adapter_keep_their_bits),
        cmocka_unit_test(fused_norms_change_no_bit),
        cmocka_unit_test(rope_is_angles_and_rotate),
        cmocka_unit_test(routing_is_stable),
        cmocka_unit_test(torn_shapes_are_refused),
        cmocka_unit_test(norms_keep_the_contract),
        cmocka_unit_test(routing_keeps_the_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
