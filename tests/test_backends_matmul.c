// Matmul kernels: every type, every packed form of activations, every CPU level of this machine.
// Results are compared bit by bit with a slow reading of docs/numbers.md, with each other, and
// closely with the reference interpreter.
#include "amx_trap.h"
#include "matmul_rig.h"

#include "ir/build.h"
#include "ir/ref.h"

// --- the contract, read slowly ---

// One block of 256 values (or fewer) of a weight row: integers, and what scales them.
typedef struct plain_block {
    int n;
    float values[QN_BLOCK];
    int w[QN_BLOCK];           // quants times integer scales
    int group_scale[QN_BLOCK]; // the integer scale in w[i]; 1 where the type has none
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

// The integer scale of each value: what the block holds when all its quants are the same.
static void read_group_scales(int *to, const weight *w, const uint8_t *from) {
    static const struct {
        qn_type type;
        int first, end; // bytes of the integer scales
        int code;       // a quant all of whose bits are set
    } types[] = {{QN_TYPE_Q2_K, 0, 16, 3},     {QN_TYPE_Q3_K, 96, 108, 3},
                 {QN_TYPE_Q4_K, 4, 16, 15},    {QN_TYPE_Q5_K, 4, 16, 31},
                 {QN_TYPE_Q6_K, 192, 208, 31}, {QN_TYPE_IQ4_XS, 2, 8, 113}};
    const qn_type_info *info = qn_type_get(w->kind->type);
    for (int i = 0; i < info->block; i++) to[i] = 1;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        uint8_t block[256];
        if (types[t].type != w->kind->type) continue;
        memset(block, 0xff, sizeof block);
        memcpy(block + types[t].first, from + types[t].first,
               (size_t)(types[t].end - types[t].first));
        read_ints(to, w, block, 0x3c00, 0);
        for (int i = 0; i < info->block; i++) {
            assert_int_equal(to[i] % types[t].code, 0);
            to[i] /= types[t].code;
        }
    }
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
        read_group_scales(to->group_scale + at, w, from);
        if (k->shift_at >= 0) read_ints(to->shift + at, w, from, 0, one);
        to->scale[i] =
            k->type == QN_TYPE_MXFP4 ? ldexpf(1, from[0] - 128) : qn_load_half(from + k->scale_at);
        if (k->shift_at >= 0) to->offset[i] = qn_load_half(from + k->shift_at);
    }
}

// A row of activations rounded as the form holds it.
typedef struct plain_row {
    int q[QN_BLOCK];
    float scale[8]; // one scale per 256: the first
} plain_row;

static void round_row(plain_row *to, const float *x, int n, qn_word form) {
    const int group = form == QN_WORD_i8_32 ? 32 : 256;
    const float max = form == QN_WORD_i8_32 ? 127 : form == QN_WORD_i12_256 ? 2047 : 32767;
    memset(to, 0, sizeof *to);
    for (int first = 0; first < n; first += group) {
        float largest = 0;
        for (int i = first; i < n && i < first + group; i++) largest = fmaxf(largest, fabsf(x[i]));
        const float step = largest / max;
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

static float i16_block(const plain_block *w, const kind *k, const plain_row *x) {
    float v = 0;
    for (int first = 0; first < w->n; first += k->group) {
        const int s = k->has_integer_scales ? 0 : first / 32, sc = w->group_scale[first];
        int64_t t = 0, sum = 0;
        for (int i = first; i < first + k->group; i++) {
            t += sc ? w->w[i] / sc * x->q[i] : 0;
            sum += x->q[i];
        }
        assert_true(t >= INT32_MIN && t <= INT32_MAX);
        v = fmaf(w->scale[s] * (float)sc, (float)t, v);
        const float shift = k->has_integer_scales ? (float)w->shift[first] : 1; // -m
        if (k->shift_at >= 0) v = fmaf(w->offset[s] * shift, (float)sum, v);
    }
    return x->scale[0] * v;
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
            sum += form == QN_WORD_i8_32     ? i8_block(&block, w->kind, &rounded)
                   : form == QN_WORD_i16_256 ? i16_block(&block, w->kind, &rounded)
                                             : i12_block(&block, w->kind, &rounded);
    }
    return sum;
}

// --- matmul ---

typedef struct size {
    int64_t n_out, blocks_of_32;
    int64_t rows, parts;
} size;

static const qn_word forms[] = {QN_WORD_i12_256, QN_WORD_i16_256, QN_WORD_i8_32, QN_WORD_f32};
enum { N_FORMS = sizeof forms / sizeof *forms, N_PACKED = N_FORMS - 1 }; // all but f32

static int64_t inner_size(const kind *k, const size *s) {
    if (is_float(k)) return 32 * s->blocks_of_32 - 3;
    const int block = qn_type_get(k->type)->block;
    return (32 * s->blocks_of_32 + block - 1) / block * block;
}

static void matmul_is_the_contract(void **state) {
    (void)state;
    static const size sizes[] = {{5, 1, 2, 1}, {37, 11, 6, 1}, {16, 8, 1, 1}, {33, 25, 3, 2}};
    for (int i = 0; i < N_KINDS * N_FORMS * 4; i++) {
        const kind *k = &kinds[i / (N_FORMS * 4)];
        const qn_word form = forms[i / 4 % N_FORMS];
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
            same_rows(&want, &out, s->rows, describe(k, form, n_in, level(l)->name));
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
    for (int i = 0; i < N_KINDS * N_PACKED; i++) {
        const kind *k = &kinds[i / N_PACKED];
        const qn_word form = is_float(k) && i % N_PACKED ? QN_WORD_f32 : forms[i % N_PACKED];
        const int64_t n_in = inner_size(k, &(size){.blocks_of_32 = 13});
        weight w = make_weight(k, 1, n_out, n_in, (uint64_t)i);
        qn_operand x = make_rows(MAX_ROWS, 1, n_in, QN_WORD_f32);
        fill_rows(&x, MAX_ROWS, (uint64_t)i);
        qn_operand first = {0};
        for (size_t l = 0; level(l); l++) {
            qn_operand panels = packed_rows(level(l), &x, MAX_ROWS, form);
            qn_operand all = make_rows(MAX_ROWS, 1, n_out, QN_WORD_f32);
            qn_task task = {.in = {panels, weight_operand(&w)}, .out = {all}, .rows = MAX_ROWS};
            run_op(level(l), QN_OP_MATMUL, &task, true);
            if (l == 0) first = all;
            same_rows(&first, &all, MAX_ROWS, describe(k, form, n_in, level(l)->name));
            for (int64_t n = 1; n <= 40; n += l == 0 ? 8 : 1) {
                const int64_t from = n * 5 % (MAX_ROWS - n);
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

// Rows and tiles enough for several groups and panels, and for those that are not full.
static void wide_pieces_change_nothing(void **state) {
    (void)state;
    static const struct {
        qn_type type;
        qn_word form;
        int rows, n_out;
    } cases[] = {
        {QN_TYPE_Q4_K, QN_WORD_i12_256, 9, 1700},   {QN_TYPE_Q4_K, QN_WORD_i12_256, 300, 3300},
        {QN_TYPE_Q6_K, QN_WORD_i12_256, 257, 1700}, {QN_TYPE_Q3_K, QN_WORD_i12_256, 40, 1700},
        {QN_TYPE_Q8_0, QN_WORD_i12_256, 40, 1700},  {QN_TYPE_Q8_0, QN_WORD_i8_32, 270, 1700},
        {QN_TYPE_Q6_K, QN_WORD_i16_256, 33, 1700},  {QN_TYPE_F16, QN_WORD_f32, 40, 1700}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int rows = cases[i].rows;
        weight w = make_weight(kind_of(cases[i].type), 1, cases[i].n_out, QN_BLOCK, i);
        qn_operand x = make_rows(rows, 1, QN_BLOCK, QN_WORD_f32), first = {0};
        fill_rows(&x, rows, i);
        for (size_t l = 1; level(l); l++) {
            qn_operand panels = packed_rows(level(l), &x, rows, cases[i].form);
            qn_operand out = matmul(level(l), &panels, &w, rows);
            if (l == 1) first = out;
            same_rows(&first, &out, rows, level(l)->name);
            free(panels.data);
            if (l > 1) free(out.data);
        }
        free(first.data);
        free(x.data);
        free_weight(&w);
    }
}

// Row o of the weight gets blocks whose quants are all bytes quants[o] and whose integer scales are
// all bytes `scales`; float scales stay.
static void fill_evenly(weight *w, const uint8_t *quants, uint8_t scales) {
    static const struct {
        int first, end; // bytes of integer scales
    } parts[QN_TYPE_COUNT] = {
        [QN_TYPE_Q2_K] = {0, 16}, [QN_TYPE_Q3_K] = {96, 108},  [QN_TYPE_Q4_K] = {4, 16},
        [QN_TYPE_Q5_K] = {4, 16}, [QN_TYPE_Q6_K] = {192, 208}, [QN_TYPE_IQ4_XS] = {2, 8},
    };
    const kind *k = w->kind;
    const int bytes = qn_type_get(k->type)->bytes, scale_bytes = k->type == QN_TYPE_MXFP4 ? 1 : 2;
    for (int64_t at = 0; at < w->packed.n_out * w->row_bytes; at++) {
        const int b = (int)(at % bytes);
        if (b >= k->scale_at && b < k->scale_at + scale_bytes) continue;
        if (k->shift_at >= 0 && b >= k->shift_at && b < k->shift_at + 2) continue;
        const bool is_scale = b >= parts[k->type].first && b < parts[k->type].end;
        w->rows[at] = is_scale ? scales : quants[at / w->row_bytes];
    }
    for (int64_t t = 0; t < qn_packed_tiles(&w->packed); t++)
        qn_pack_tile(w->bytes, &w->packed, w->rows, t);
}

// Quants and integer scales at their ends, with rows at theirs: sums come as near to the ends of 32
// bits as they can, 2146435072 with Q6_K. Rows differ in sign, and are enough for every core.
static void sums_fit_at_their_largest(void **state) {
    (void)state;
    enum { OUT = 5, ROWS = 17, IN = 512 };
    static const uint8_t ends[OUT] = {0x00, 0xff, 0x80, 0x7f, 0x0f};
    static const int counts[] = {1, 2, 3, 6, 8, ROWS};
    for (int i = 0; i < N_KINDS * N_PACKED * OUT; i++) {
        const kind *k = &kinds[i / (N_PACKED * OUT)];
        const qn_word form = forms[i / OUT % N_PACKED];
        if (is_float(k)) continue;
        weight w = make_weight(k, 1, OUT, IN, 9);
        fill_evenly(&w, ends, ends[i % OUT]);
        qn_operand x = make_rows(ROWS, 1, IN, QN_WORD_f32);
        float want[ROWS][OUT];
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t c = 0; c < IN; c++) part_at(&x, r, 0)[c] = r % 2 ? 1.5f : -1.5f;
            for (int64_t o = 0; o < OUT; o++) want[r][o] = slow_dot(&w, o, part_at(&x, r, 0), form);
        }
        for (size_t l = 0; level(l); l++) {
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                qn_operand panels = packed_rows(level(l), &x, counts[n], form);
                qn_operand out = matmul(level(l), &panels, &w, counts[n]);
                for (int64_t r = 0; r < counts[n]; r++)
                    assert_memory_equal(at(&out, r), want[r], sizeof want[r]);
                free(panels.data);
                free(out.data);
            }
        }
        free(x.data);
        free_weight(&w);
    }
}

// --- against the reference interpreter ---

// The op on the reference interpreter: rows (n_rows, n_in) -> out (n_rows, n_out).
static void reference(float *out, const weight *w, const float *rows, int64_t n_rows,
                      qn_word form) {
    const int64_t n_in = w->packed.n_in, n_out = w->packed.n_out;
    qn_graph graph = {0};
    qn_build b;
    qn_err err;
    qn_build_init(&b, &graph, "matmul");
    const qn_shape x_shape = {2, {{1, QN_SYM_T}, {n_in, QN_SYM_ONE}}};
    const qn_shape w_shape = {2, {{n_out, QN_SYM_ONE}, {n_in, QN_SYM_ONE}}};
    const int32_t in = qn_build_input(&b, "x", QN_TENSOR, QN_TYPE_F32, x_shape);
    const int32_t param = qn_build_param(&b, "w", w->packed.type, w_shape);
    const qn_attrs attrs = {.form = form};
    const int32_t rounded = form == QN_WORD_f32 ? in : qn_build1(&b, QN_OP_QUANTIZE, in, &attrs);
    qn_build_output(&b, "y", qn_build2(&b, QN_OP_MATMUL, rounded, param, NULL));
    ASSERT_OK(qn_build_finish(&b, &err));
    const void *params[8] = {0};
    params[param] = w->rows;
    qn_ref *ref;
    const qn_ref_opts opts = {.graph = &graph, .params = params, .n_pages = 1, .n_slots = 1};
    ASSERT_OK(qn_ref_create(&ref, &opts, &err));
    qn_ref_set_input(ref, in, rows);
    const int32_t zero[32] = {0}, ends[2] = {0, (int32_t)n_rows}, none[1] = {-1};
    const qn_step step = {.n_rows = n_rows,
                          .n_segs = 1,
                          .ids = zero,
                          .pos = zero,
                          .row_seg = zero,
                          .seg_row = ends,
                          .seg_past = zero,
                          .seg_pages = zero,
                          .pages_per_seg = 1,
                          .seg_slot = zero,
                          .seg_accept = zero,
                          .seg_adapter = none};
    ASSERT_OK(qn_ref_run(ref, &step, &err));
    int64_t n;
    const float *y = qn_ref_output(ref, "y", &n);
    assert_int_equal(n, n_rows * n_out);
    memcpy(out, y, (size_t)n * sizeof *y);
    qn_ref_destroy(ref);
    qn_graph_deinit(&graph);
}

// Errors are measured against the sum of the products' sizes.
static void matmul_is_close_to_the_reference(void **state) {
    (void)state;
    enum { OUT = 40, ROWS = 5 };
    for (int i = 0; i < N_KINDS * N_PACKED; i++) {
        const kind *k = &kinds[i / N_PACKED];
        const qn_word form = is_float(k) && i % N_PACKED ? QN_WORD_f32 : forms[i % N_PACKED];
        const int64_t n_in = inner_size(k, &(size){.blocks_of_32 = 64});
        weight w = make_weight(k, 1, OUT, n_in, (uint64_t)i);
        qn_operand x = make_rows(ROWS, 1, n_in, QN_WORD_f32);
        fill_rows(&x, ROWS, (uint64_t)i);
        float *dense = qn_alloc((size_t)(ROWS * n_in), sizeof *dense), want[ROWS * OUT];
        float *values = qn_alloc((size_t)n_in, sizeof *values);
        for (int64_t r = 0; r < ROWS; r++)
            memcpy(dense + r * n_in, at(&x, r), (size_t)n_in * sizeof *dense);
        reference(want, &w, dense, ROWS, form);
        qn_operand panels = packed_rows(level(0), &x, ROWS, form);
        qn_operand out = matmul(level(0), &panels, &w, ROWS);
        for (int64_t o = 0; o < OUT; o++) {
            qn_packed_row(values, &w.packed, o);
            for (int64_t r = 0; r < ROWS; r++) {
                double sum = 0;
                for (int64_t c = 0; c < n_in; c++)
                    sum += fabs((double)values[c] * (double)dense[r * n_in + c]);
                const double off = fabs((double)part_at(&out, r, 0)[o] - (double)want[r * OUT + o]);
                if (!(off <= (is_float(k) ? 1e-5 : 2e-6) * sum))
                    fail_msg("%s: %g of %g", describe(k, form, n_in, "reference"), off, sum);
            }
        }
        qn_free(values);
        qn_free(dense);
        free(panels.data);
        free(out.data);
        free(x.data);
        free_weight(&w);
    }
}

// --- the rest ---

// Zeros, tiny numbers and numbers that are none.
static void rounding_survives_anything(void **state) {
    (void)state;
    enum { W = 300 };
    static const float odd[] = {0, -0.0f, 1e-45f, -3e-42f, 1e-38f, 3e30f, INFINITY, NAN};
    weight w = make_weight(kind_of(QN_TYPE_Q8_0), 1, 16, 288, 1);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        for (int form = 0; form < N_PACKED; form++) {
            qn_operand x = make_rows(1, 1, W, QN_WORD_f32), first = {0};
            for (int k = 0; k < W; k++) ((float *)x.data)[k] = k % 3 == 1 ? odd[i] : 0;
            for (size_t l = 0; level(l); l++) {
                qn_operand panels = packed_rows(level(l), &x, 1, forms[form]);
                if (l == 0) first = panels;
                same_rows(&first, &panels, 1, level(l)->name);
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
    const qn_cpu_level *backend = NULL;
    qn_err err;
    size_t n = 0;
    for (; qn_cpu_level_name(n); n++) {
        ASSERT_OK(qn_cpu_level_find(&backend, qn_cpu_level_name(n), &err));
        assert_string_equal(backend->name, qn_cpu_level_name(n));
        assert_memory_equal(backend->backend.name, "cpu:", 4);
    }
    assert_in_range(n, 1, MAX_LEVELS);
    if (amx_trap_runs()) assert_string_equal(qn_cpu_level_name(n - 1), "amx");
    assert_string_equal(qn_cpu_level_name(0), "portable");
    const qn_cpu_level *best;
    ASSERT_OK(qn_cpu_level_find(&best, NULL, &err));
    assert_ptr_equal(best, backend);
    ASSERT_OK(qn_cpu_level_find(&best, "", &err));
    assert_ptr_equal(best, backend);
    ASSERT_FAILS(qn_cpu_level_find(&best, "avx1024", &err), QN_ARGUMENT, "portable");
    assert_ptr_equal(best, backend);
}

static void weights_without_tiles_are_refused(void **state) {
    (void)state;
    const qn_shape x_shape = {2, {{1, QN_SYM_T}, {256, QN_SYM_ONE}}};
    const qn_shape w_shape = {2, {{16, QN_SYM_ONE}, {256, QN_SYM_ONE}}};
    qn_graph graph = {0};
    qn_build b;
    qn_err err;
    qn_build_init(&b, &graph, "refused");
    const int32_t x = qn_build_input(&b, "x", QN_TENSOR, QN_TYPE_F32, x_shape);
    const int32_t good = qn_build_param(&b, "good", QN_TYPE_Q4_K, w_shape);
    const int32_t odd = qn_build_param(&b, "odd", QN_TYPE_Q8_K, w_shape);
    const int32_t given = qn_build_input(&b, "given", QN_TENSOR, QN_TYPE_F32, w_shape);
    const int32_t out[] = {qn_build2(&b, QN_OP_MATMUL, x, good, NULL),
                           qn_build2(&b, QN_OP_MATMUL, x, odd, NULL),
                           qn_build2(&b, QN_OP_MATMUL, x, given, NULL)};
    ASSERT_OK(qn_build_finish(&b, &err));
    const char *why[3];
    for (int i = 0; i < 3; i++)
        why[i] = level(0)->backend.refuse(&graph, &graph.nodes[graph.values[out[i]].node]);
    assert_null(why[0]);
    assert_non_null(strstr(why[1], "layout"));
    assert_non_null(strstr(why[2], "parameter"));
    qn_graph_deinit(&graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_named),
        cmocka_unit_test(matmul_is_the_contract),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(wide_pieces_change_nothing),
        cmocka_unit_test(sums_fit_at_their_largest),
        cmocka_unit_test(matmul_is_close_to_the_reference),
        cmocka_unit_test(rounding_survives_anything),
        cmocka_unit_test(weights_without_tiles_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
