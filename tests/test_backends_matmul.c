// Matmul kernels: every type, every packed form of activations, every CPU level of this machine.
// Results are compared bit by bit with a slow reading of docs/numbers.md, with each other, and
// closely with the reference interpreter.
#include "testing.h"

#include "backends/cpu/cpu.h"
#include "core/mem.h"
#include "ir/build.h"
#include "ir/ref.h"
#include "quant/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_LEVELS = 3, MOST_ROWS = 70 };

// --- random numbers ---

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// In [-1, 1).
static float next_float(uint64_t *state) {
    return (float)(int32_t)(next_random(state) << 1) * 0x1p-31f;
}

// --- types ---

// Where the scales of a block are, and how many values share one (integer scales inside).
typedef struct kind {
    qn_type type;
    int scale_at, shift_at; // of f16 numbers; -1: none
    int group;
    bool has_integer_scales;
    float sign; // of the offset
} kind;

static const kind kinds[] = {
    {QN_TYPE_Q4_0, 0, -1, 32, false, 0},  {QN_TYPE_Q4_1, 0, 2, 32, false, 1},
    {QN_TYPE_Q5_0, 0, -1, 32, false, 0},  {QN_TYPE_Q5_1, 0, 2, 32, false, 1},
    {QN_TYPE_Q8_0, 0, -1, 32, false, 0},  {QN_TYPE_IQ4_NL, 0, -1, 32, false, 0},
    {QN_TYPE_MXFP4, 0, -1, 32, false, 0}, {QN_TYPE_Q2_K, 80, 82, 16, true, -1},
    {QN_TYPE_Q3_K, 108, -1, 16, true, 0}, {QN_TYPE_Q4_K, 0, 2, 32, true, -1},
    {QN_TYPE_Q5_K, 0, 2, 32, true, -1},   {QN_TYPE_Q6_K, 208, -1, 16, true, 0},
    {QN_TYPE_IQ4_XS, 0, -1, 32, true, 0}, {QN_TYPE_F32, -1, -1, 0, false, 0},
    {QN_TYPE_F16, -1, -1, 0, false, 0},   {QN_TYPE_BF16, -1, -1, 0, false, 0},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static bool is_float(const kind *k) { return k->group == 0; }

typedef struct weight {
    const kind *kind;
    qn_packed packed;
    uint8_t *rows, *bytes; // as in a file; packed
    int64_t row_bytes;
} weight;

// Any bits for quants and integer scales, so that their extremes occur; reasonable float scales.
static void fill_block(uint8_t *block, const kind *k, uint64_t *seed) {
    const qn_type_info *info = qn_type_get(k->type);
    for (int i = 0; i < info->bytes; i++) block[i] = (uint8_t)next_random(seed);
    const float x = next_float(seed);
    if (k->type == QN_TYPE_MXFP4)
        block[0] = (uint8_t)(118 + next_random(seed) % 8);
    else if (is_float(k))
        info->pack(block, &x, 1, NULL);
    if (is_float(k) || k->type == QN_TYPE_MXFP4) return;
    qn_store_u16(block + k->scale_at, qn_half_encode(x * 0.01f));
    if (k->shift_at >= 0)
        qn_store_u16(block + k->shift_at, qn_half_encode(next_float(seed) * 0.01f));
}

static weight make_weight(const kind *k, int64_t n_matrices, int64_t n_out, int64_t n_in,
                          uint64_t seed) {
    const qn_type_info *info = qn_type_get(k->type);
    weight w = {.kind = k, .row_bytes = n_in / info->block * info->bytes};
    qn_err err;
    ASSERT_OK(qn_packed_init(&w.packed, k->type, n_matrices, n_out, n_in, &err));
    w.rows = qn_alloc((size_t)(n_matrices * n_out * w.row_bytes), 1);
    w.bytes = qn_alloc((size_t)qn_packed_bytes(&w.packed), 1);
    assert_true(w.rows && w.bytes);
    for (int64_t at = 0; at < n_matrices * n_out * w.row_bytes; at += info->bytes)
        fill_block(w.rows + at, k, &seed);
    for (int64_t t = 0; t < qn_packed_tiles(&w.packed); t++)
        qn_pack_tile(w.bytes, &w.packed, w.rows, t);
    w.packed.data = w.bytes;
    return w;
}

static void free_weight(weight *w) {
    qn_free(w->rows);
    qn_free(w->bytes);
}

// --- the contract, read slowly ---

// One block of 256 values (or fewer) of a weight row: integers, and what scales them.
typedef struct plain_block {
    int n;
    float values[QN_BLOCK];
    int w[QN_BLOCK];           // quants times integer scales
    int shift[QN_BLOCK];       // integer offset of the group of each value
    float scale[8], offset[8]; // of each block of the type: one of 256 or up to 8 of 32
} plain_block;

// Block b with the f16 numbers at scale_at and shift_at replaced, as integers.
static void read_ints(int *to, const weight *w, const uint8_t *from, uint16_t scale,
                      uint16_t shift) {
    const kind *k = w->kind;
    const qn_type_info *info = qn_type_get(k->type);
    uint8_t block[256];
    float values[QN_BLOCK];
    memcpy(block, from, (size_t)info->bytes);
    if (k->type == QN_TYPE_MXFP4)
        block[0] = 128; // the quants are doubled
    else
        qn_store_u16(block + k->scale_at, scale);
    if (k->shift_at >= 0) qn_store_u16(block + k->shift_at, shift);
    info->unpack(values, block, info->block);
    for (int i = 0; i < info->block; i++) to[i] = (int)values[i];
}

static void read_block(plain_block *to, const weight *w, int64_t row, int64_t b) {
    const kind *k = w->kind;
    const qn_type_info *info = qn_type_get(k->type);
    const uint16_t one = 0x3c00;
    const int64_t left = w->packed.n_in - b * QN_BLOCK;
    memset(to, 0, sizeof *to);
    to->n = (int)(left < QN_BLOCK ? left : QN_BLOCK);
    for (int at = 0, i = 0; at < to->n; at += info->block, i++) {
        const uint8_t *from =
            w->rows + row * w->row_bytes + (b * QN_BLOCK + at) / info->block * info->bytes;
        info->unpack(to->values + at, from, info->block);
        if (is_float(k)) continue;
        read_ints(to->w + at, w, from, one, 0);
        if (k->shift_at >= 0) read_ints(to->shift + at, w, from, 0, one);
        to->scale[i] =
            k->type == QN_TYPE_MXFP4 ? ldexpf(1, from[0] - 128) : qn_load_half(from + k->scale_at);
        if (k->shift_at >= 0) to->offset[i] = qn_load_half(from + k->shift_at);
    }
}

// A row of activations rounded as the form holds it.
typedef struct plain_row {
    int q[QN_BLOCK];
    float scale[8]; // i12_256: the first
} plain_row;

static void round_row(plain_row *to, const float *x, int n, qn_word form) {
    const int group = form == QN_WORD_i8_32 ? 32 : 256;
    const float most = form == QN_WORD_i8_32 ? 127 : 2047;
    memset(to, 0, sizeof *to);
    for (int first = 0; first < n; first += group) {
        float largest = 0;
        for (int i = first; i < n && i < first + group; i++) largest = fmaxf(largest, fabsf(x[i]));
        const float step = largest / most;
        to->scale[first / group] = step;
        for (int i = first; i < n && i < first + group && step > 0; i++)
            to->q[i] = (int)rintf(x[i] / step);
    }
}

static float float_block(const plain_block *w, const float *x) {
    float p = 0;
    for (int k = 0; k < w->n; k++) p = fmaf(w->values[k], x[k], p);
    return p;
}

static float i12_block(const plain_block *w, const kind *k, const plain_row *x) {
    float v = 0;
    if (k->has_integer_scales) {
        int64_t t = 0, o = 0;
        for (int i = 0; i < w->n; i++) t += w->w[i] * x->q[i], o -= w->shift[i] * x->q[i];
        assert_true(t >= INT32_MIN && t <= INT32_MAX);
        v = w->scale[0] * (float)t;
        return x->scale[0] * (k->shift_at < 0 ? v : fmaf(-w->offset[0], (float)o, v));
    }
    for (int j = 0; j < w->n / 32; j++) {
        int t = 0, sum = 0;
        for (int i = 32 * j; i < 32 * j + 32; i++) t += w->w[i] * x->q[i], sum += x->q[i];
        v = fmaf(w->scale[j], (float)t, v);
        if (k->shift_at >= 0) v = fmaf(w->offset[j], (float)sum, v);
    }
    return x->scale[0] * v;
}

static float i8_block(const plain_block *w, const kind *k, const plain_row *x) {
    float v = 0;
    for (int first = 0; first < w->n; first += k->group) {
        const int j = first / 32, s = k->has_integer_scales ? 0 : j;
        int t = 0, sum = 0;
        for (int i = first; i < first + k->group; i++) t += w->w[i] * x->q[i], sum += x->q[i];
        v = fmaf(w->scale[s] * (float)t, x->scale[j], v);
        const float shift = k->has_integer_scales ? (float)w->shift[first] : 1; // -m
        if (k->shift_at >= 0) v = fmaf(w->offset[s] * shift, x->scale[j] * (float)sum, v);
    }
    return v;
}

static float slow_dot(const weight *w, int64_t row, const float *x, qn_word form) {
    float sum = 0;
    for (int64_t b = 0; b * QN_BLOCK < w->packed.n_in; b++) {
        plain_block block;
        plain_row rounded;
        read_block(&block, w, row, b);
        const float *part = x + b * QN_BLOCK;
        round_row(&rounded, part, block.n, form);
        float values[QN_BLOCK];
        for (int i = 0; i < block.n; i++)
            values[i] = (float)rounded.q[i] * rounded.scale[form == QN_WORD_i8_32 ? i / 32 : 0];
        if (form == QN_WORD_f32)
            sum += float_block(&block, part);
        else if (is_float(w->kind))
            sum += float_block(&block, values);
        else
            sum += form == QN_WORD_i8_32 ? i8_block(&block, w->kind, &rounded)
                                         : i12_block(&block, w->kind, &rounded);
    }
    return sum;
}

// --- running an op ---

static const qn_backend *level(size_t i) {
    const qn_backend *backend = NULL;
    const char *name = qn_backend_cpu_level(i);
    qn_err err;
    if (name) ASSERT_OK(qn_backend_cpu(&backend, name, &err));
    return backend;
}

// Rows of (parts, width), as the plan lays them out, with a gap that nobody may touch.
static qn_operand make_rows(int64_t rows, int64_t parts, int64_t width, qn_word form) {
    const int64_t bytes = form == QN_WORD_f32 ? qn_cpu_row_bytes(form, parts * width)
                                              : parts * qn_cpu_row_bytes(form, width);
    qn_operand x = {.stride = bytes + 64, .parts = parts, .width = width, .form = form};
    x.data = aligned_alloc(64, (size_t)(rows * x.stride + 64));
    assert_non_null(x.data);
    memset(x.data, 0xee, (size_t)(rows * x.stride + 64));
    return x;
}

static void *at(const qn_operand *x, int64_t r) { return (uint8_t *)x->data + r * x->stride; }

static float *part_at(const qn_operand *x, int64_t r, int64_t p) {
    return (float *)at(x, r) + p * x->width;
}

static void fill_rows(const qn_operand *x, int64_t rows, uint64_t seed) {
    for (int64_t r = 0; r < rows; r++) {
        const float size = ldexpf(1, (int)(next_random(&seed) % 9) - 4);
        for (int64_t i = 0; i < x->parts * x->width; i++)
            ((float *)at(x, r))[i] = next_float(&seed) * next_float(&seed) * size;
    }
}

// Runs all stages; pieces forwards or backwards, as no order is promised. More pieces than the step
// has rows for are asked, as a plan for more rows would.
static void run_op(const qn_backend *backend, qn_op op, const qn_task *task, bool backwards) {
    const qn_recipe *recipe = &backend->recipes[op];
    assert_true(recipe->n_stages > 0);
    for (int s = 0; s < recipe->n_stages; s++) {
        const qn_kernel *kernel = &backend->kernels[recipe->stages[s]];
        const int64_t most = backwards ? task->rows + 67 : task->rows;
        const int64_t n = kernel->pieces(task, most, 0);
        const size_t bytes = (size_t)qn_round_up(kernel->scratch(task, most), 64) + 64;
        uint8_t *scratch = aligned_alloc(64, bytes);
        assert_non_null(scratch);
        for (int64_t i = 0; i < n; i++) {
            memset(scratch, (int)(0x7f + i), bytes);
            kernel->run(task, backwards ? n - 1 - i : i, scratch);
            for (size_t k = bytes - 64; k < bytes; k++)
                assert_int_equal(scratch[k], (0x7f + i) & 0xff);
        }
        free(scratch);
    }
}

static qn_operand packed_rows(const qn_backend *backend, const qn_operand *x, int64_t rows,
                              qn_word form) {
    qn_operand panels = make_rows(rows, x->parts, x->width, form);
    const qn_task task = {.in = {*x}, .out = {panels}, .rows = rows};
    if (form == QN_WORD_f32)
        for (int64_t r = 0; r < rows; r++)
            memcpy(at(&panels, r), at(x, r), (size_t)(x->parts * x->width) * sizeof(float));
    else
        run_op(backend, QN_OP_QUANTIZE, &task, false);
    return panels;
}

static void same_rows(const qn_operand *a, const qn_operand *b, int64_t rows, const char *what) {
    assert_int_equal(a->stride, b->stride);
    if (memcmp(a->data, b->data, (size_t)(rows * a->stride + 64))) {
        for (int64_t r = 0; r < rows; r++) {
            const float *x = at(a, r), *y = at(b, r);
            for (int64_t i = 0; i < a->parts * a->width; i++) {
                if (memcmp(&x[i], &y[i], sizeof *x))
                    fail_msg("%s: row %d, column %d: %.9g, want %.9g", what, (int)r, (int)i,
                             (double)y[i], (double)x[i]);
            }
        }
        fail_msg("%s: bytes between rows changed", what);
    }
}

static const char *describe(const kind *k, qn_word form, int64_t n_in, const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s %s x %s, inner size %d", name, qn_type_get(k->type)->name,
             qn_word_get(form)->name, (int)n_in);
    return text;
}

static qn_operand weight_operand(const weight *w) { return (qn_operand){.packed = &w->packed}; }

// --- matmul ---

typedef struct size {
    int64_t n_out, blocks_of_32;
    int64_t rows, parts;
} size;

static const qn_word forms[] = {QN_WORD_i12_256, QN_WORD_i8_32, QN_WORD_f32};

static int64_t inner_size(const kind *k, const size *s) {
    if (is_float(k)) return 32 * s->blocks_of_32 - 3;
    const int block = qn_type_get(k->type)->block;
    return (32 * s->blocks_of_32 + block - 1) / block * block;
}

static void matmul_is_the_contract(void **state) {
    (void)state;
    static const size sizes[] = {{5, 1, 2, 1}, {37, 11, 6, 1}, {16, 8, 1, 1}, {33, 25, 3, 2}};
    for (int i = 0; i < N_KINDS * 3 * 4; i++) {
        const kind *k = &kinds[i / 12];
        const qn_word form = forms[i / 4 % 3];
        const size *s = &sizes[i % 4];
        const int64_t n_in = inner_size(k, s);
        weight w = make_weight(k, 1, s->n_out, n_in, (uint64_t)i);
        qn_operand x = make_rows(s->rows, s->parts, n_in, QN_WORD_f32);
        qn_operand want = make_rows(s->rows, s->parts, s->n_out, QN_WORD_f32);
        fill_rows(&x, s->rows, (uint64_t)i + 77);
        for (int64_t r = 0; r < s->rows * s->parts; r++) {
            for (int64_t o = 0; o < s->n_out; o++)
                part_at(&want, r / s->parts, r % s->parts)[o] =
                    slow_dot(&w, o, part_at(&x, r / s->parts, r % s->parts), form);
        }
        for (size_t l = 0; level(l); l++) {
            qn_operand panels = packed_rows(level(l), &x, s->rows, form);
            qn_operand out = make_rows(s->rows, s->parts, s->n_out, QN_WORD_f32);
            const qn_task task = {
                .in = {panels, weight_operand(&w)}, .out = {out}, .rows = s->rows};
            run_op(level(l), QN_OP_MATMUL, &task, l % 2);
            same_rows(&want, &out, s->rows, describe(k, form, n_in, level(l)->level));
            free(panels.data);
            free(out.data);
        }
        free(x.data);
        free(want.data);
        free_weight(&w);
    }
}

// A row's results are its own, whatever the other rows are and however many.
static void rows_do_not_depend_on_company(void **state) {
    (void)state;
    const int64_t n_out = 50;
    for (int i = 0; i < N_KINDS * 2; i++) {
        const kind *k = &kinds[i / 2];
        const qn_word form = is_float(k) && i % 2 ? QN_WORD_f32 : forms[i % 2];
        const int64_t n_in = inner_size(k, &(size){.blocks_of_32 = 13});
        weight w = make_weight(k, 1, n_out, n_in, (uint64_t)i);
        qn_operand x = make_rows(MOST_ROWS, 1, n_in, QN_WORD_f32);
        fill_rows(&x, MOST_ROWS, (uint64_t)i);
        qn_operand first = {0};
        for (size_t l = 0; level(l); l++) {
            qn_operand panels = packed_rows(level(l), &x, MOST_ROWS, form);
            qn_operand all = make_rows(MOST_ROWS, 1, n_out, QN_WORD_f32);
            qn_task task = {.in = {panels, weight_operand(&w)}, .out = {all}, .rows = MOST_ROWS};
            run_op(level(l), QN_OP_MATMUL, &task, true);
            if (l == 0) first = all;
            same_rows(&first, &all, MOST_ROWS, describe(k, form, n_in, level(l)->level));
            for (int64_t n = 1; n <= 33; n += l == 0 ? 8 : 1) {
                const int64_t from = n * 5 % (MOST_ROWS - n);
                qn_operand some = make_rows(n, 1, n_out, QN_WORD_f32), part = first;
                task.in[0].data = at(&panels, from);
                task.out[0] = some;
                task.rows = n;
                run_op(level(l), QN_OP_MATMUL, &task, n % 2);
                part.data = at(&first, from);
                same_rows(&part, &some, n - 1, describe(k, form, n_in, "some rows"));
                assert_memory_equal(at(&some, n - 1), at(&part, n - 1),
                                    (size_t)n_out * sizeof(float));
                free(some.data);
            }
            free(panels.data);
            if (l) free(all.data);
        }
        free(first.data);
        free(x.data);
        free_weight(&w);
    }
}

// --- against the reference interpreter ---

static void matmul_is_close_to_the_reference(void **state) {
    (void)state;
    const int64_t n_out = 40, rows = 5;
    for (int i = 0; i < N_KINDS * 2; i++) {
        const kind *k = &kinds[i / 2];
        const qn_word form = is_float(k) && i % 2 ? QN_WORD_f32 : forms[i % 2];
        const int64_t n_in = inner_size(k, &(size){.blocks_of_32 = 64});
        weight w = make_weight(k, 1, n_out, n_in, (uint64_t)i);
        qn_operand x = make_rows(rows, 1, n_in, QN_WORD_f32);
        fill_rows(&x, rows, (uint64_t)i);
        float *dense = qn_alloc((size_t)(rows * n_in), sizeof *dense);
        for (int64_t r = 0; r < rows; r++)
            memcpy(dense + r * n_in, at(&x, r), (size_t)n_in * sizeof *dense);

        qn_graph graph = {0};
        qn_build b;
        qn_err err;
        qn_build_init(&b, &graph, "matmul");
        const qn_shape x_shape = {2, {{1, QN_SYM_T}, {n_in, QN_SYM_ONE}}};
        const qn_shape w_shape = {2, {{n_out, QN_SYM_ONE}, {n_in, QN_SYM_ONE}}};
        const int32_t in = qn_build_input(&b, "x", QN_TENSOR, QN_TYPE_F32, x_shape);
        const int32_t param = qn_build_param(&b, "w", k->type, w_shape);
        const qn_attrs attrs = {.form = form};
        const int32_t rounded =
            form == QN_WORD_f32 ? in : qn_build1(&b, QN_OP_QUANTIZE, in, &attrs);
        qn_build_output(&b, "y", qn_build2(&b, QN_OP_MATMUL, rounded, param, NULL));
        ASSERT_OK(qn_build_finish(&b, &err));
        const void *params[8] = {0};
        params[param] = w.rows;
        qn_ref *ref;
        const qn_ref_opts opts = {.graph = &graph, .params = params, .n_pages = 1, .n_slots = 1};
        ASSERT_OK(qn_ref_create(&ref, &opts, &err));
        qn_ref_set_input(ref, in, dense);
        const int32_t zero[8] = {0}, ends[2] = {0, (int32_t)rows};
        const qn_step step = {.n_rows = rows,
                              .n_segs = 1,
                              .ids = zero,
                              .pos = (const int32_t[32]){0},
                              .row_seg = zero,
                              .seg_row = ends,
                              .seg_past = zero,
                              .seg_pages = zero,
                              .pages_per_seg = 1,
                              .seg_slot = zero,
                              .seg_accept = zero,
                              .seg_adapter = (const int32_t[]){-1}};
        ASSERT_OK(qn_ref_run(ref, &step, &err));
        int64_t n;
        const float *want = qn_ref_output(ref, "y", &n);
        assert_int_equal(n, rows * n_out);

        qn_operand panels = packed_rows(level(0), &x, rows, form);
        qn_operand out = make_rows(rows, 1, n_out, QN_WORD_f32);
        const qn_task task = {.in = {panels, weight_operand(&w)}, .out = {out}, .rows = rows};
        run_op(level(0), QN_OP_MATMUL, &task, false);
        float *values = qn_alloc((size_t)n_in, sizeof *values);
        for (int64_t o = 0; o < n_out; o++) {
            qn_packed_row(values, &w.packed, o);
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t c = 0; c < n_in; c++)
                    sum += fabs((double)values[c] * (double)dense[r * n_in + c]);
                const double off =
                    fabs((double)part_at(&out, r, 0)[o] - (double)want[r * n_out + o]);
                if (!(off <= (is_float(k) ? 1e-5 : 2e-6) * sum))
                    fail_msg("%s: %g of %g", describe(k, form, n_in, "reference"), off, sum);
            }
        }
        qn_free(values);
        qn_free(dense);
        free(panels.data);
        free(out.data);
        free(x.data);
        qn_ref_destroy(ref);
        qn_graph_deinit(&graph);
        free_weight(&w);
    }
}

// --- fused ops are their parts, bit by bit ---

static const kind *kind_of(qn_type type) {
    for (int i = 0; i < N_KINDS; i++) {
        if (kinds[i].type == type) return &kinds[i];
    }
    fail();
    return NULL;
}

static qn_operand matmul(const qn_backend *backend, const qn_operand *x, const weight *w,
                         int64_t rows) {
    qn_operand out = make_rows(rows, x->parts, w->packed.n_out, QN_WORD_f32);
    const qn_task task = {.in = {*x, weight_operand(w)}, .out = {out}, .rows = rows};
    run_op(backend, QN_OP_MATMUL, &task, false);
    return out;
}

static void project_is_matmuls(void **state) {
    (void)state;
    const int64_t n_in = 512, rows = 9, n_out[] = {40, 16, 7, 300};
    const qn_type types[] = {QN_TYPE_Q4_K, QN_TYPE_Q6_K, QN_TYPE_F16, QN_TYPE_Q8_0};
    weight w[4];
    for (int i = 0; i < 4; i++)
        w[i] = make_weight(kind_of(types[i]), 1, n_out[i], n_in, (uint64_t)i);
    qn_operand x = make_rows(rows, 1, n_in, QN_WORD_f32);
    fill_rows(&x, rows, 1);
    for (size_t l = 0; level(l); l++) {
        qn_operand panels = packed_rows(level(l), &x, rows, QN_WORD_i12_256);
        qn_operand out = make_rows(rows, 1, 363, QN_WORD_f32);
        const qn_task task = {.in = {panels, weight_operand(&w[0]), weight_operand(&w[1]),
                                     weight_operand(&w[2]), weight_operand(&w[3])},
                              .out = {out},
                              .rows = rows};
        run_op(level(l), QN_OP_PROJECT, &task, true);
        for (int64_t i = 0, column = 0; i < 4; column += n_out[i++]) {
            qn_operand part = matmul(level(l), &panels, &w[i], rows);
            for (int64_t r = 0; r < rows; r++)
                assert_memory_equal((float *)at(&out, r) + column, at(&part, r),
                                    (size_t)n_out[i] * sizeof(float));
            free(part.data);
        }
        free(panels.data);
        free(out.data);
    }
    free(x.data);
    for (int i = 0; i < 4; i++) free_weight(&w[i]);
}

// act(gate) * up over dense rows.
static qn_operand gate(const qn_backend *backend, const qn_operand *a, const qn_operand *b,
                       int64_t rows, qn_word act) {
    qn_operand acted = make_rows(rows, a->parts, a->width, QN_WORD_f32);
    qn_operand out = make_rows(rows, a->parts, a->width, QN_WORD_f32);
    const qn_task first = {.in = {*a}, .out = {acted}, .rows = rows};
    run_op(backend, act == QN_WORD_gelu ? QN_OP_GELU : QN_OP_SILU, &first, false);
    const qn_task second = {.in = {acted, *b}, .out = {out}, .rows = rows};
    run_op(backend, QN_OP_MUL, &second, false);
    free(acted.data);
    return out;
}

static void gated_is_its_parts(void **state) {
    (void)state;
    const int64_t n_in = 256, n_out = 75;
    weight w[2] = {make_weight(kind_of(QN_TYPE_Q4_K), 1, n_out, n_in, 1),
                   make_weight(kind_of(QN_TYPE_Q6_K), 1, n_out, n_in, 2)};
    for (int64_t rows = 1; rows <= MOST_ROWS; rows += 23) {
        qn_operand x = make_rows(rows, 1, n_in, QN_WORD_f32);
        fill_rows(&x, rows, 1);
        for (size_t i = 0; level(i / 2); i++) {
            const qn_backend *backend = level(i / 2);
            const qn_attrs attrs = {.act = i % 2 ? QN_WORD_gelu : QN_WORD_silu};
            qn_operand panels = packed_rows(backend, &x, rows, QN_WORD_i8_32);
            qn_operand out = make_rows(rows, 1, n_out, QN_WORD_f32);
            const qn_task task = {.attrs = &attrs,
                                  .in = {panels, weight_operand(&w[0]), weight_operand(&w[1])},
                                  .out = {out},
                                  .rows = rows};
            run_op(backend, QN_OP_GATED, &task, true);
            qn_operand a = matmul(backend, &panels, &w[0], rows);
            qn_operand b = matmul(backend, &panels, &w[1], rows);
            qn_operand want = gate(backend, &a, &b, rows, attrs.act);
            same_rows(&want, &out, rows, backend->level);
            free(panels.data);
            free(out.data);
            free(a.data);
            free(b.data);
            free(want.data);
        }
        free(x.data);
    }
    free_weight(&w[0]);
    free_weight(&w[1]);
}

// Grouped matmul by plain ones: expert e alone, as a weight of its own.
static qn_operand slow_grouped(const qn_backend *backend, const qn_operand *x, const weight *w,
                               const qn_operand *ids, int64_t rows) {
    qn_operand out = make_rows(rows, ids->width, w->packed.n_out, QN_WORD_f32);
    const int64_t part_bytes = x->form == QN_WORD_f32 ? x->width * (int64_t)sizeof(float)
                                                      : qn_cpu_row_bytes(x->form, x->width);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < ids->width; k++) {
            weight one = *w;
            qn_operand row = *x;
            one.packed.n_matrices = 1;
            one.packed.data += ((int32_t *)at(ids, r))[k] * one.packed.matrix_bytes;
            row.data = (uint8_t *)at(x, r) + (x->parts > 1 ? k * part_bytes : 0);
            row.parts = 1;
            qn_operand y = matmul(backend, &row, &one, 1);
            memcpy(part_at(&out, r, k), y.data, (size_t)out.width * sizeof(float));
            free(y.data);
        }
    }
    return out;
}

enum { EXPERTS = 6, TOP = 3 };

static qn_operand choose(int64_t rows) {
    qn_operand ids = make_rows(rows, 1, TOP, QN_WORD_f32);
    for (int64_t r = 0; r < rows; r++) {
        for (int k = 0; k < TOP; k++)
            ((int32_t *)at(&ids, r))[k] = (int32_t)(r * r + 5 * k) % EXPERTS;
    }
    return ids;
}

static void grouped_is_matmuls(void **state) {
    (void)state;
    weight w = make_weight(kind_of(QN_TYPE_Q5_0), EXPERTS, 35, 96, 1);
    for (int64_t rows = 1; rows <= MOST_ROWS; rows += 69) {
        qn_operand ids = choose(rows);
        for (size_t i = 0; level(i / 2); i++) {
            const qn_backend *backend = level(i / 2);
            qn_operand x = make_rows(rows, i % 2 ? TOP : 1, 96, QN_WORD_f32);
            fill_rows(&x, rows, 3);
            qn_operand panels = packed_rows(backend, &x, rows, QN_WORD_i12_256);
            qn_operand out = make_rows(rows, TOP, 35, QN_WORD_f32);
            const qn_task task = {
                .in = {panels, weight_operand(&w), ids}, .out = {out}, .rows = rows};
            run_op(backend, QN_OP_GROUPED_MATMUL, &task, true);
            qn_operand want = slow_grouped(backend, &panels, &w, &ids, rows);
            same_rows(&want, &out, rows, backend->level);
            free(x.data);
            free(panels.data);
            free(out.data);
            free(want.data);
        }
        free(ids.data);
    }
    free_weight(&w);
}

static void experts_are_their_parts(void **state) {
    (void)state;
    enum { D = 64, F = 96, ROWS = 68 };
    const qn_attrs attrs = {
        .top = TOP, .normalize = 1, .scale = 2.5f, .act = QN_WORD_silu, .form = QN_WORD_i12_256};
    weight gate_w = make_weight(kind_of(QN_TYPE_Q4_0), EXPERTS, F, D, 1);
    weight up_w = make_weight(kind_of(QN_TYPE_Q8_0), EXPERTS, F, D, 2);
    weight down_w = make_weight(kind_of(QN_TYPE_MXFP4), EXPERTS, D, F, 3);
    qn_operand x = make_rows(ROWS, 1, D, QN_WORD_f32),
               scores = make_rows(ROWS, 1, EXPERTS, QN_WORD_f32);
    fill_rows(&x, ROWS, 1);
    fill_rows(&scores, ROWS, 2);
    qn_operand first = {0};
    for (size_t l = 0; level(l); l++) {
        const qn_backend *b = level(l);
        qn_operand panels = packed_rows(b, &x, ROWS, QN_WORD_i8_32);
        qn_operand out = make_rows(ROWS, 1, D, QN_WORD_f32),
                   want = make_rows(ROWS, 1, D, QN_WORD_f32);
        qn_operand ids = make_rows(ROWS, 1, TOP, QN_WORD_f32),
                   weights = make_rows(ROWS, 1, TOP, QN_WORD_f32);
        qn_task task = {.attrs = &attrs,
                        .in = {panels, scores, weight_operand(&gate_w), weight_operand(&up_w),
                               weight_operand(&down_w)},
                        .out = {out},
                        .temp = {make_rows(ROWS, 1, TOP, QN_WORD_f32),
                                 make_rows(ROWS, 1, TOP, QN_WORD_f32),
                                 make_rows(ROWS, TOP, F, QN_WORD_f32),
                                 make_rows(ROWS, TOP, F, QN_WORD_i12_256)},
                        .rows = ROWS};
        run_op(b, QN_OP_EXPERTS, &task, true);
        run_op(b, QN_OP_ROUTE,
               &(qn_task){.attrs = &attrs, .in = {scores}, .out = {ids, weights}, .rows = ROWS},
               false);
        qn_operand a = slow_grouped(b, &panels, &gate_w, &ids, ROWS);
        qn_operand u = slow_grouped(b, &panels, &up_w, &ids, ROWS);
        qn_operand g = gate(b, &a, &u, ROWS, attrs.act);
        qn_operand packed = packed_rows(b, &g, ROWS, attrs.form);
        qn_operand y = slow_grouped(b, &packed, &down_w, &ids, ROWS);
        run_op(b, QN_OP_COMBINE, &(qn_task){.in = {y, weights}, .out = {want}, .rows = ROWS},
               false);
        same_rows(&want, &out, ROWS, b->level);
        if (l == 0) first = out;
        same_rows(&first, &out, ROWS, "levels");
        void *const all[] = {panels.data,
                             want.data,
                             ids.data,
                             weights.data,
                             a.data,
                             u.data,
                             g.data,
                             packed.data,
                             y.data,
                             task.temp[0].data,
                             task.temp[1].data,
                             task.temp[2].data,
                             task.temp[3].data};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        if (l) free(out.data);
    }
    free(first.data);
    free(x.data);
    free(scores.data);
    free_weight(&gate_w);
    free_weight(&up_w);
    free_weight(&down_w);
}

// --- the rest ---

static void embed_reads_rows(void **state) {
    (void)state;
    enum { ROWS = 7 };
    weight w = make_weight(kind_of(QN_TYPE_Q6_K), 1, 21, 256, 1);
    int32_t ids[ROWS] = {0, 20, 3, 3, 16, 15, 2}, extra_row[ROWS] = {-1, -1, 1, -1, 0, -1, -1};
    const int32_t row_seg[ROWS] = {0, 0, 0, 0, 0, -1, 0};
    const qn_step step = {.n_rows = ROWS, .row_seg = row_seg};
    qn_operand extra = make_rows(2, 1, 256, QN_WORD_f32);
    fill_rows(&extra, 2, 9);
    for (size_t i = 0; level(i / 2); i++) {
        qn_operand out = make_rows(ROWS, 1, 256, QN_WORD_f32);
        qn_task task = {
            .in = {{.data = ids, .stride = 4, .parts = 1, .width = 1}, weight_operand(&w)},
            .out = {out},
            .step = &step,
            .rows = ROWS};
        if (i % 2) {
            task.in[2] = extra;
            task.in[3] = (qn_operand){.data = extra_row, .stride = 4, .parts = 1, .width = 1};
        }
        run_op(level(i / 2), QN_OP_EMBED, &task, true);
        for (int r = 0; r < ROWS; r++) {
            float want[256] = {0};
            if (row_seg[r] < 0)
                ;
            else if (i % 2 && extra_row[r] >= 0)
                memcpy(want, at(&extra, extra_row[r]), sizeof want);
            else
                qn_packed_row(want, &w.packed, ids[r]);
            assert_memory_equal(want, at(&out, r), sizeof want);
        }
        free(out.data);
    }
    free(extra.data);
    free_weight(&w);
}

// Zeros, tiny numbers and numbers that are none.
static void rounding_survives_anything(void **state) {
    (void)state;
    enum { W = 300 };
    static const float odd[] = {0, -0.0f, 1e-45f, -3e-42f, 1e-38f, 3e30f, INFINITY, NAN};
    weight w = make_weight(kind_of(QN_TYPE_Q8_0), 1, 16, 288, 1);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        for (int form = 0; form < 2; form++) {
            qn_operand x = make_rows(1, 1, W, QN_WORD_f32), first = {0};
            for (int k = 0; k < W; k++) ((float *)x.data)[k] = k % 3 == 1 ? odd[i] : 0;
            for (size_t l = 0; level(l); l++) {
                qn_operand panels = packed_rows(level(l), &x, 1, forms[form]);
                if (l == 0) first = panels;
                same_rows(&first, &panels, 1, level(l)->level);
                panels.width = 288;
                qn_operand y = matmul(level(l), &panels, &w, 1);
                for (int o = 0; o < 16; o++)
                    assert_int_equal(isnan(((float *)y.data)[o]), !isfinite(odd[i]));
                free(y.data);
                if (l) free(panels.data);
            }
            free(first.data);
            free(x.data);
        }
    }
    free_weight(&w);
}

static void levels_are_named(void **state) {
    (void)state;
    const qn_backend *backend = NULL;
    qn_err err;
    size_t n = 0;
    for (; qn_backend_cpu_level(n); n++) {
        ASSERT_OK(qn_backend_cpu(&backend, qn_backend_cpu_level(n), &err));
        assert_string_equal(backend->level, qn_backend_cpu_level(n));
        assert_string_equal(backend->name, "cpu");
    }
    assert_in_range(n, 1, MOST_LEVELS);
    assert_string_equal(qn_backend_cpu_level(0), "portable");
    const qn_backend *best;
    ASSERT_OK(qn_backend_cpu(&best, NULL, &err));
    assert_ptr_equal(best, backend);
    ASSERT_OK(qn_backend_cpu(&best, "", &err));
    assert_ptr_equal(best, backend);
    ASSERT_FAILS(qn_backend_cpu(&best, "avx1024", &err), QN_ARGUMENT, "portable");
    assert_ptr_equal(best, backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_named),
        cmocka_unit_test(matmul_is_the_contract),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(matmul_is_close_to_the_reference),
        cmocka_unit_test(project_is_matmuls),
        cmocka_unit_test(gated_is_its_parts),
        cmocka_unit_test(grouped_is_matmuls),
        cmocka_unit_test(experts_are_their_parts),
        cmocka_unit_test(embed_reads_rows),
        cmocka_unit_test(rounding_survives_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
