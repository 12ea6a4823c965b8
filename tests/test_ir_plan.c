// The text of plans: what is printed reads back as the same plan, what makes no sense is refused.
#include "testing.h"

#include "ir/plan_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char sample[] =
    "plan \"tiny \\\"plan\\\"\" \"cpu\" 4 calls\n"
    "param 0 \"token_embd.weight\" q8_0 (512, 64)\n"
    "param 1 \"blk.0.attn_q.weight\" q4_k (256, 256) tiles share 0 of 1024 [0+128, 512+128]\n"
    "const 0 \"freqs\" f32 (2, 3) [1, 0.1, -0, inf, 0x7fc00001, 1e-45]\n"
    "const 1 \"one\" f32 () [1]\n"
    "input 0 \"ids\" i32 (T)\n"
    "input 1 \"hidden\" f32 (4*R, 64)\n"
    "cache 0 \"cache.0\" f16 (2, 16, 16)\n"
    "state 0 \"conv.0\" f32 (3, 64)\n"
    "buffer 0 T x 256 live 0 2\n"
    "buffer 1 4*T x 512 live 1 3\n"
    "buffer 2 4*T x 320 live 1 1\n"
    "\n"
    "call 0 embed (embed.0) T: b0 (1 x 64) f32 <- input0 (1 x 1), param0, _, _ {start=0}\n"
    "\n"
    "call 1 gemm_q4 (matmul.1) @0 4*T: b1+128 (1 x 64) f32 <- b0 (1 x 64) f32, param1, _ "
    "using b2 (1 x 256) i12_256, b2+16 i8_32\n"
    "call 2 \"Attend/\\n\" (attend.0) @0 T: _, cache0 <- b0 (4 x 16) f32, cache0 _, table i8_32, "
    "const0 "
    "{eps=-0, scale=0.25, cap=0, window=0, rule=causal, form=i8_32}\n"
    "\n"
    "call 3 nothing (conv.2) @7 R: <-\n"
    "\n"
    "output \"result\" 4*T b1 (4 x 32) f32\n"
    "output \"part\" 4*T b1 (1 x 32) f32 share 1 of 96 [32+32]\n"
    "output \"echo\" T input0\n";

static void print(qn_buf *to, const qn_plan *plan) {
    qn_buf_clear(to);
    qn_plan_print(to, plan);
    assert_false(to->failed);
}

static size_t count_of(const qn_shape *shape) {
    size_t n = 1;
    for (int i = 0; i < shape->n_dims; i++) n *= (size_t)shape->dims[i].n;
    return n;
}

static void assert_same_dim(const qn_dim *a, const qn_dim *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->sym, b->sym);
}

static void assert_same_arg(const qn_plan_arg *a, const qn_plan_arg *b) {
    assert_int_equal(a->place, b->place);
    assert_int_equal(a->index, b->index);
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->parts, b->parts);
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->form, b->form);
}

static void assert_same_attrs(const qn_attrs *a, const qn_attrs *b) {
#define SAME_INT(name)   assert_int_equal(a->name, b->name);
#define SAME_WORD(name)  assert_int_equal(a->name, b->name);
#define SAME_FLOAT(name) assert_memory_equal(&a->name, &b->name, sizeof(float));
#define SAME_LIST(name)  assert_memory_equal(&a->name, &b->name, sizeof(qn_list));
#define ATTR(kind, name) SAME_##kind(name)
#include "ir/attrs.def"
#undef ATTR
}

static void assert_same_call(const qn_plan_call *a, const qn_plan_call *b) {
    assert_string_equal(a->kernel, b->kernel);
    assert_int_equal(a->op, b->op);
    assert_int_equal(a->stage, b->stage);
    assert_int_equal(a->layer, b->layer);
    assert_same_dim(&a->rows, &b->rows);
    assert_same_attrs(&a->attrs, &b->attrs);
    assert_int_equal(a->n_in, b->n_in);
    assert_int_equal(a->n_out, b->n_out);
    assert_int_equal(a->n_temp, b->n_temp);
    for (int i = 0; i < QN_MAX_IN; i++) assert_same_arg(&a->in[i], &b->in[i]);
    for (int i = 0; i < QN_MAX_OUT; i++) assert_same_arg(&a->out[i], &b->out[i]);
    for (int i = 0; i < QN_PLAN_TEMPS; i++) assert_same_arg(&a->temp[i], &b->temp[i]);
}

static void assert_same_share(const qn_share *a, const qn_share *b) {
    assert_true(!a == !b);
    if (!a) return;
    assert_int_equal(a->axis, b->axis);
    assert_int_equal(a->whole, b->whole);
    assert_int_equal(a->n_ranges, b->n_ranges);
    assert_memory_equal(a->ranges, b->ranges, (size_t)a->n_ranges * sizeof *a->ranges);
}

static void assert_same_leaf(const qn_plan_leaf *a, const qn_plan_leaf *b) {
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->type, b->type);
    assert_true(qn_shape_equal(&a->shape, &b->shape));
    assert_same_share(a->share, b->share);
    assert_true(!a->data == !b->data);
    if (a->data) assert_memory_equal(a->data, b->data, count_of(&a->shape) * sizeof(float));
}

static void assert_same(const qn_plan *a, const qn_plan *b) {
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->backend, b->backend);
    for (int p = 0; p < QN_PLACE_COUNT; p++) {
        assert_int_equal(a->n_leaves[p], b->n_leaves[p]);
        for (size_t i = 0; i < a->n_leaves[p]; i++)
            assert_same_leaf(&a->leaves[p][i], &b->leaves[p][i]);
    }
    assert_int_equal(a->n_buffers, b->n_buffers);
    for (size_t i = 0; i < a->n_buffers; i++) {
        assert_same_dim(&a->buffers[i].rows, &b->buffers[i].rows);
        assert_int_equal(a->buffers[i].row_bytes, b->buffers[i].row_bytes);
        assert_int_equal(a->buffers[i].first, b->buffers[i].first);
        assert_int_equal(a->buffers[i].last, b->buffers[i].last);
    }
    assert_int_equal(a->n_calls, b->n_calls);
    for (size_t i = 0; i < a->n_calls; i++) assert_same_call(&a->calls[i], &b->calls[i]);
    assert_int_equal(a->n_outputs, b->n_outputs);
    for (size_t i = 0; i < a->n_outputs; i++) {
        assert_string_equal(a->outputs[i].name, b->outputs[i].name);
        assert_same_dim(&a->outputs[i].rows, &b->outputs[i].rows);
        assert_same_arg(&a->outputs[i].arg, &b->outputs[i].arg);
        assert_same_share(a->outputs[i].share, b->outputs[i].share);
    }
}

static void the_fields_are_those_of_the_text(void **state) {
    (void)state;
    qn_err err = {0};
    qn_plan plan = {0};
    qn_buf text = {0};
    ASSERT_OK(qn_plan_parse(&plan, sample, strlen(sample), &err));
    ASSERT_OK(qn_plan_verify(&plan, &err));
    assert_string_equal(plan.name, "tiny \"plan\"");
    assert_int_equal(plan.n_calls, 4);
    const float *data = plan.leaves[QN_PLACE_CONST][0].data;
    assert_true(data[0] == 1 && signbit(data[2]) && isinf(data[3]) && isnan(data[4]));
    const qn_plan_call *c = &plan.calls[1];
    assert_string_equal(c->kernel, "gemm_q4");
    assert_int_equal(c->op, QN_OP_MATMUL);
    assert_int_equal(c->stage, 1);
    assert_int_equal(c->layer, 0);
    assert_same_dim(&c->rows, &(qn_dim){4, QN_SYM_T});
    assert_same_arg(&c->out[0], &(qn_plan_arg){QN_PLACE_BUFFER, 1, 128, 1, 64, QN_WORD_f32});
    assert_int_equal(c->n_in, 3);
    assert_int_equal(c->in[2].place, QN_PLACE_NONE);
    assert_same_arg(&c->temp[1], &(qn_plan_arg){QN_PLACE_BUFFER, 2, 16, 0, 0, QN_WORD_i8_32});
    // Leaves: the form that is not told, the one that is, and none.
    assert_int_equal(plan.calls[0].in[0].form, QN_WORD_f32);
    assert_int_equal(plan.calls[0].in[1].form, QN_WORD_f32);
    assert_int_equal(plan.calls[2].in[1].form, 0);
    assert_int_equal(plan.calls[2].in[2].form, QN_WORD_i8_32);
    assert_string_equal(plan.calls[2].kernel, "Attend/\n");
    assert_int_equal(plan.calls[2].attrs.form, QN_WORD_i8_32);
    assert_int_equal(plan.calls[3].layer, 7);
    print(&text, &plan);
    assert_string_equal(text.data, sample);
    qn_buf_deinit(&text);
    qn_plan_deinit(&plan);
}

// --- made-up plans ---

typedef struct dice {
    uint64_t x;
} dice;

static int64_t roll(dice *d, int64_t below) {
    d->x = d->x * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((d->x >> 33) % (uint64_t)below);
}

enum { N_LEAVES = 5, N_BUFFERS = 6, N_CALLS = 20, ROW_BYTES = 1 << 12 };

static qn_dim roll_dim(dice *d) {
    return (qn_dim){1 + roll(d, 3) * roll(d, 1000000007), (qn_sym)roll(d, QN_SYM_COUNT)};
}

static float roll_float(dice *d) {
    const uint32_t bits = (uint32_t)roll(d, 1 << 16) << 16 ^ (uint32_t)roll(d, 1 << 16);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// A share with n indices, in up to three ranges.
static const qn_share *roll_share(dice *d, qn_arena *arena, int axis, int64_t n) {
    qn_share *share = qn_arena_alloc(arena, 1, sizeof *share);
    qn_share_range *ranges = qn_arena_alloc(arena, 3, sizeof *ranges);
    *share = (qn_share){.axis = axis, .ranges = ranges};
    while (n > 0) {
        const int64_t some = share->n_ranges == 2 ? n : 1 + roll(d, n);
        const int64_t first = share->whole + roll(d, 5) + (share->n_ranges > 0);
        ranges[share->n_ranges++] = (qn_share_range){first, some};
        share->whole = first + some;
        n -= some;
    }
    share->whole += roll(d, 3);
    return share;
}

// Now and then a share of a weight: of any axis but the last, which may be the only one.
static const qn_share *roll_leaf_share(dice *d, qn_arena *arena, const qn_shape *shape) {
    if (shape->n_dims == 0 || roll(d, 2)) return NULL;
    const int axis = (int)roll(d, shape->n_dims > 1 ? shape->n_dims - 1 : 1);
    const bool is_sized = shape->dims[axis].sym == QN_SYM_ONE;
    return is_sized ? roll_share(d, arena, axis, shape->dims[axis].n) : NULL;
}

static qn_plan_leaf roll_leaf(dice *d, qn_place place, qn_arena *arena) {
    static const char *const names[] = {"", "blk.3.ffn", "a \"b\"\n", "\xff\x01", "\xc3\xa9"};
    qn_plan_leaf leaf = {.name = names[roll(d, 5)], .type = (qn_type)roll(d, QN_TYPE_COUNT)};
    leaf.shape.n_dims = (int)roll(d, QN_GRAPH_DIMS + 1);
    for (int i = 0; i < leaf.shape.n_dims; i++) leaf.shape.dims[i] = roll_dim(d);
    if (place == QN_PLACE_PARAM) leaf.share = roll_leaf_share(d, arena, &leaf.shape);
    if (place != QN_PLACE_CONST) return leaf;
    leaf.type = QN_TYPE_F32;
    for (int i = 0; i < leaf.shape.n_dims; i++)
        leaf.shape.dims[i] = (qn_dim){1 + roll(d, 4), QN_SYM_ONE};
    const size_t n = count_of(&leaf.shape);
    float *data = qn_arena_alloc(arena, n, sizeof *data);
    for (size_t i = 0; i < n; i++) data[i] = roll_float(d);
    leaf.data = data;
    return leaf;
}

static qn_plan_arg roll_arg(dice *d, bool is_written) {
    static const qn_place written[] = {QN_PLACE_BUFFER, QN_PLACE_BUFFER, QN_PLACE_CACHE,
                                       QN_PLACE_STATE, QN_PLACE_NONE};
    static const qn_word forms[] = {QN_WORD_f32, QN_WORD_i8_32, QN_WORD_i12_256, QN_WORD_i16_256};
    qn_plan_arg arg = {.place =
                           is_written ? written[roll(d, 5)] : (qn_place)roll(d, QN_PLACE_COUNT)};
    if (arg.place == QN_PLACE_NONE) return arg;
    if (arg.place != QN_PLACE_TABLE)
        arg.index = (int32_t)roll(d, arg.place == QN_PLACE_BUFFER ? N_BUFFERS : N_LEAVES);
    arg.offset = roll(d, 2) * roll(d, ROW_BYTES / 2);
    arg.parts = roll(d, 3);
    arg.width = roll(d, 2) * roll(d, ROW_BYTES / 16);
    if (arg.place == QN_PLACE_BUFFER || roll(d, 2)) arg.form = forms[roll(d, 4)];
    return arg;
}

static void roll_attrs(dice *d, qn_attrs *attrs, qn_op op) {
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        const qn_attr_info *info = qn_attr_get((qn_attr)a);
        void *at = (char *)attrs + info->offset;
        if (!(qn_op_get(op)->attrs >> a & 1u) && roll(d, 4)) continue;
        if (info->kind == QN_ATTR_INT) *(int64_t *)at = roll(d, 1 << 30) - (1 << 29);
        if (info->kind == QN_ATTR_FLOAT) *(float *)at = roll_float(d);
        for (int i = 0; info->kind == QN_ATTR_LIST && i < 4; i++)
            ((qn_list *)at)->v[i] = roll(d, 100) - 50;
        if (info->kind != QN_ATTR_WORD) continue;
        do {
            *(qn_word *)at = (qn_word)roll(d, QN_WORD_COUNT);
        } while (qn_word_get(*(qn_word *)at)->attr != (qn_attr)a);
    }
}

static qn_plan_call roll_call(dice *d) {
    static const char *const kernels[] = {"gemm", "rms_norm_2", "9lives", "using", "B", "", "a b"};
    qn_plan_call c = {.kernel = kernels[roll(d, 7)],
                      .op = (qn_op)roll(d, QN_OP_COUNT),
                      .stage = (int32_t)roll(d, 4),
                      .layer = (int32_t)roll(d, 4) - 1,
                      .rows = {1 + roll(d, 2), QN_SYM_T}};
    if (qn_op_get(c.op)->folds) c.op = QN_OP_ADD; // its result would want a buffer of one row
    roll_attrs(d, &c.attrs, c.op);
    c.n_in = (int)roll(d, QN_MAX_IN + 1);
    c.n_out = (int)roll(d, QN_MAX_OUT + 1);
    c.n_temp = (int)roll(d, QN_PLAN_TEMPS + 1);
    for (int i = 0; i < c.n_in; i++) c.in[i] = roll_arg(d, false);
    for (int i = 0; i < c.n_out; i++) c.out[i] = roll_arg(d, true);
    for (int i = 0; i < c.n_temp; i++) c.temp[i] = roll_arg(d, true);
    return c;
}

static qn_plan roll_plan(dice *d) {
    qn_plan plan = {.name = "made up", .backend = "cpu"};
    static const qn_place places[] = {QN_PLACE_PARAM, QN_PLACE_CONST, QN_PLACE_INPUT,
                                      QN_PLACE_CACHE, QN_PLACE_STATE};
    for (int p = 0; p < 5; p++) {
        qn_plan_leaf *leaves = qn_arena_alloc(&plan.arena, N_LEAVES, sizeof *leaves);
        for (int i = 0; i < N_LEAVES; i++) leaves[i] = roll_leaf(d, places[p], &plan.arena);
        plan.leaves[places[p]] = leaves;
        plan.n_leaves[places[p]] = N_LEAVES;
    }
    plan.n_buffers = N_BUFFERS;
    plan.buffers = qn_arena_alloc(&plan.arena, N_BUFFERS, sizeof *plan.buffers);
    for (int i = 0; i < N_BUFFERS; i++)
        plan.buffers[i] = (qn_plan_buffer){{2, QN_SYM_T}, ROW_BYTES + 4 * i, 0, N_CALLS - 1};
    plan.n_calls = N_CALLS;
    plan.calls = qn_arena_alloc(&plan.arena, N_CALLS, sizeof *plan.calls);
    for (int i = 0; i < N_CALLS; i++) plan.calls[i] = roll_call(d);
    plan.n_outputs = 1;
    plan.outputs = qn_arena_alloc(&plan.arena, 1, sizeof *plan.outputs);
    plan.outputs[0] =
        (qn_plan_output){.name = "logits", .rows = {1, QN_SYM_T}, .arg = roll_arg(d, false)};
    if (plan.outputs[0].arg.parts == 1 && plan.outputs[0].arg.width > 0)
        plan.outputs[0].share = roll_share(d, &plan.arena, 1, plan.outputs[0].arg.width);
    return plan;
}

static void made_up_plans_round_trip(void **state) {
    (void)state;
    dice d = {1};
    for (int round = 0; round < 200; round++) {
        qn_err err = {0};
        qn_plan plan = roll_plan(&d), back = {0};
        qn_buf text = {0}, again = {0};
        ASSERT_OK(qn_plan_verify(&plan, &err));
        print(&text, &plan);
        ASSERT_OK(qn_plan_parse(&back, text.data, text.size, &err));
        assert_same(&plan, &back);
        print(&again, &back);
        assert_string_equal(text.data, again.data);
        qn_buf_deinit(&text);
        qn_buf_deinit(&again);
        qn_plan_deinit(&plan);
        qn_plan_deinit(&back);
    }
}

// --- faults ---

#define HEAD                                                                                       \
    "plan \"p\" \"cpu\" 2 calls\nparam 0 \"w\" f32 (4)\nbuffer 0 T x 64 live 0 1\n"                \
    "buffer 1 R x 64 live 1 1\n"

static void faults_are_named_with_line_and_values(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } faults[] = {
        {"", "plan \"name\""},
        {"graph \"x\"", "line 1, column 1: expected plan \"name\", found 'graph'"},
        {"plan \"p\" \"cpu\" -1 calls", "the number of calls: -1, want 0 to 2147483647"},
        {"plan \"p\" \"cpu\" 1 calls\n", "line 2: 0 calls, but the first line says 1"},
        {HEAD "buffer 3 T x 64 live 0 0", "line 5, column 8: buffer 3, want buffer 2"},
        {HEAD "buffer 2 T x 0 live 0 0", "line 5: buffer 2: rows of 0 bytes"},
        {HEAD "buffer 2 T x -4 live 0 0", "line 5, column 14: bytes of a row: -4"},
        {HEAD "buffer 2 T x 64 live 0 2", "line 5: buffer 2: live from call 0 to 2 of 2"},
        {HEAD "buffer 2 T x 64 live 1 0", "line 5: buffer 2: live from call 1 to 0 of 2"},
        {HEAD "buffer 2 0 x 64 live 0 0", "dimension 0, want 1 or more"},
        {HEAD "param 1 \"w\" f33 (4)", "line 5, column 13: expected a type, found 'f33'"},
        {HEAD "param 1 \"w\" f32 (1, 2, 3, 4, 5)", "more than 4 dimensions"},
        {HEAD "param 1 \"w\" f32 (4, 2) share 2 of 8 [0+4]", "param 1 (w): a share of axis 2 of"},
        {HEAD "param 1 \"w\" f32 (4, 2) share 9 of 8 [0+4]",
         "line 5, column 30: axis 9 of at most 4"},
        {HEAD "param 1 \"w\" f32 (4, 2) share 1 of 8 [0+2]", "a share of the rows of (4, 2)"},
        {HEAD "param 1 \"w\" f32 (T, 2) share 0 of 8 [0+2]", "a share of axis 0 of (T, 2)"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [0+3]", "a share of 3 indices, the shape has 4"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [0+2, 2+2]",
         "range 1 of a share: 2 from 2 on, of 8"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [4+2, 0+2]",
         "range 1 of a share: 2 from 0 on, of 8"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [5+4]", "range 0 of a share: 4 from 5 on, of 8"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [-1+4]",
         "range 0 of a share: 4 from -1 on, of 8"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 [0+4, 6+0]",
         "range 1 of a share: 0 from 6 on, of 8"},
        {HEAD "param 1 \"w\" f32 (4) share 0 [0+4]", "expected of, found '['"},
        {HEAD "param 1 \"w\" f32 (4) share 0 of 8 []", "the first index of a range"},
        {HEAD "input 0 \"w\" f32 (4) share 0 of 8 [0+4]", "expected the end of the line"},
        {HEAD "const 0 \"w\" f32 (4) [1, 2]", "F32 (4) with 2 numbers"},
        {HEAD "const 0 \"w\" f32 (T) [1]", "F32 (T) with 1 numbers"},
        {HEAD "table 0 \"w\" f32 (T)", "expected a leaf, a buffer, a call or an output"},
        {HEAD "call 1 k (add.0) T: <-", "line 5, column 6: call 1, want call 0"},
        {HEAD "call 0 k (bad.0) T: <-", "expected an op, found 'bad'"},
        {HEAD "call 0 k (add.99999999999) T: <-", "a stage: 99999999999"},
        {HEAD "call 0 k (add.0) @-2 T: <-", "layer -2"},
        {HEAD "call 0 k (add.0) T: b2 f32 <-", "line 5: call 0 (k): result 0: buffer 2 of 2"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- param1", "call 0 (k): argument 0: param 1 of 1"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- const0", "argument 0: const 0 of 0"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- cache0", "argument 0: cache 0 of 0"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- table1", "expected an argument, found 'table1'"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- b0", "argument 0: buffer 0: form 0 is not a form"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- b0 causal", "expected a word of 'form'"},
        {HEAD "call 0 k (add.0) T: b0+4 (1 x 16) f32 <-",
         "result 0: 1 x 16 f32 at byte 4 of buffer 0, whose rows have 64 bytes"},
        {HEAD "call 0 k (add.0) T: b0 (4611686018427387904 x 2) f32 <-", "whose rows have 64"},
        {HEAD "call 0 k (add.0) T: b0+64 i8_32 <-", "at byte 64 of buffer 0"},
        {HEAD "call 0 k (add.0) T: b0+-1 f32 <-", "an offset: -1, want 0 or more"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- b1 f32",
         "argument 0: buffer 1 lives from call 1 to 1"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- using b1 f32", "temporary 0: 1T rows, but buffer 1"},
        {HEAD "call 0 k (add.0) R: b0 f32 <-", "result 0: 1R rows, but buffer 0 has 1T"},
        {HEAD "call 0 k (add.0) 2*T: b0 f32 <-", "result 0: 2T rows, but buffer 0 has 1T"},
        {HEAD "call 0 k (add.0) T: param0 <-", "result 0: param 0 is written"},
        {HEAD "call 0 k (add.0) T: _, _, _ <-", "more than 2 results"},
        {HEAD "call 0 k (add.0) T: <- _, _, _, _, _, _, _, _, _, _", "more than 9 arguments"},
        {HEAD "call 0 k (add.0) T: <- using _, _, _, _, _, _, _", "more than 6 temporary values"},
        {HEAD "call 0 k (rms_norm.0) T: <-", "expected '{'"},
        {HEAD "call 0 k (rms_norm.0) T: <- {cap=1}", "without attribute 'eps'"},
        {HEAD "call 0 k (rms_norm.0) T: <- {eps=1, eps=1}", "attribute 'eps' twice"},
        {HEAD "call 0 k (attend.0) T: <- {scale=1, cap=0, window=0, rule=half}",
         "expected a word of 'rule', found 'half'"},
        {HEAD "call 0 k (add.0) T: b0 f32 <- b99999999999 f32", "buffer: 99999999999"},
        {HEAD "output \"o\" T b0 (1 x 17) f32", "output o: 1 x 17 f32 at byte 0"},
        {HEAD "output \"o\" R b0 (1 x 16) f32", "output o: 1R rows, but buffer 0 has 1T"},
        {HEAD "output \"o\" T b0 (1 x 16) f32 share 0 of 64 [0+16]",
         "output o: a share of axis 0 of 1"},
        {HEAD "output \"o\" T b0 (2 x 8) f32 share 1 of 64 [0+8]", "a share of axis 1 of 2 parts"},
        {HEAD "output \"o\" T b0 (1 x 16) f32 share 1 of 64 [0+8]",
         "a share of 8 indices, the shape"},
        {HEAD "buffer 2 T x 8 live 0 0\noutput \"o\" T b2 f32",
         "line 6: output o: buffer 2 lives to call 0 of 2"},
        {HEAD "call 0 k (add.0) T: <- extra", "expected an argument"},
        {HEAD "call 0 k (add.0) T: <- _ _", "found '_'"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        qn_err err = {0};
        qn_plan plan = {0};
        ASSERT_FAILS(qn_plan_parse(&plan, faults[i].text, strlen(faults[i].text), &err), QN_FORMAT,
                     faults[i].part);
        assert_null(plan.name);
    }
}

// What only a program could build is refused as well.
static void the_verifier_sees_what_text_cannot_say(void **state) {
    (void)state;
    qn_err err = {0};
    qn_plan plan = {0};
    ASSERT_OK(qn_plan_parse(&plan, sample, strlen(sample), &err));
    qn_plan_call *c = &plan.calls[1];
    const qn_plan_call good = *c;
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        ASSERT_FAILS(qn_plan_verify(&plan, &err), QN_FORMAT, part);                                \
        *c = good;                                                                                 \
    } while (0)
    REFUSED(c->n_in = QN_MAX_IN + 1, "10 arguments");
    REFUSED(c->n_temp = -1, "-1 temporary");
    REFUSED(c->op = QN_OP_COUNT, "op ");
    REFUSED(c->op = QN_OP_SUM_SQUARES, "1 rows, but buffer");
    REFUSED(c->layer = -2, "layer -2");
    REFUSED(c->kernel = NULL, "call 1 has no kernel");
    REFUSED(c->in[0].place = QN_PLACE_COUNT, "place 8 of 8");
    REFUSED(c->in[0].index = -1, "buffer -1 of 3");
    REFUSED(c->in[0].form = QN_WORD_COUNT, "is not a form");
    REFUSED(c->in[2].width = 3, "absent, but");
    REFUSED(c->rows.sym = QN_SYM_COUNT, "symbol 4 of 4");
    REFUSED(c->attrs.pairs = QN_WORD_i8_32, "pairs holds word");
    plan.n_leaves[QN_PLACE_TABLE] = 1;
    ASSERT_FAILS(qn_plan_verify(&plan, &err), QN_FORMAT, "1 leaves of table, want 0");
    plan.n_leaves[QN_PLACE_TABLE] = 0;
    ASSERT_OK(qn_plan_verify(&plan, &err));
    qn_plan_deinit(&plan);
}

// Any byte changed, any length cut: refused, or a plan that the verifier accepts.
static void mutated_text_is_refused_or_right(void **state) {
    (void)state;
    static const char bytes[] = "0129-b_ (){}:,.\n\"\\x\xff";
    const size_t size = strlen(sample);
    size_t n_read = 0;
    for (size_t at = 0; at < size; at++) {
        for (size_t k = 0; k < sizeof bytes; k++) { // the last one cuts
            qn_err err = {0};
            qn_plan plan = {0};
            const size_t n = bytes[k] ? size : at;
            char *text = malloc(n ? n : 1);
            assert_non_null(text);
            memcpy(text, sample, n);
            if (bytes[k]) text[at] = bytes[k];
            if (qn_plan_parse(&plan, text, n, &err) == QN_OK) {
                ASSERT_OK(qn_plan_verify(&plan, &err));
                n_read++;
            } else {
                assert_int_not_equal(err.message[0], 0);
            }
            qn_plan_deinit(&plan);
            free(text);
        }
    }
    assert_in_range(n_read, 1, size * sizeof bytes / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fields_are_those_of_the_text),
        cmocka_unit_test(made_up_plans_round_trip),
        cmocka_unit_test(faults_are_named_with_line_and_values),
        cmocka_unit_test(the_verifier_sees_what_text_cannot_say),
        cmocka_unit_test(mutated_text_is_refused_or_right),
    };
    return cmocka_run_group_tests_name("plans", tests, NULL, NULL);
}
