// What tests of matmul kernels share: weights of every type, rows of activations, running an op.
#ifndef QN_TESTS_MATMUL_RIG_H
#define QN_TESTS_MATMUL_RIG_H

#include "random_blocks.h"

#include "backends/cpu/cpu.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LEVELS = 5, MAX_ROWS = QN_ROW_GROUP + 6 };

typedef struct weight {
    const kind *kind;
    qn_packed packed;
    uint8_t *rows, *bytes; // as in a file; packed
    int64_t row_bytes;
} weight;

static inline weight make_weight(const kind *k, int64_t n_matrices, int64_t n_out, int64_t n_in,
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

static inline void free_weight(weight *w) {
    qn_free(w->rows);
    qn_free(w->bytes);
}

// --- running an op ---

static inline const qn_cpu_level *level(size_t i) {
    const qn_cpu_level *backend = NULL;
    const char *name = qn_cpu_level_name(i);
    qn_err err;
    if (name) ASSERT_OK(qn_cpu_level_find(&backend, name, &err));
    return backend;
}

// Rows of (parts, width), as the plan lays them out, with a gap that nobody may touch.
static inline qn_operand make_rows(int64_t rows, int64_t parts, int64_t width, qn_word form) {
    const int64_t bytes = form == QN_WORD_f32 ? qn_cpu_row_bytes(form, parts * width)
                                              : parts * qn_cpu_row_bytes(form, width);
    qn_operand x = {.stride = bytes + 64, .parts = parts, .width = width, .form = form};
    x.data = aligned_alloc(64, (size_t)(rows * x.stride + 64));
    assert_non_null(x.data);
    memset(x.data, 0xee, (size_t)(rows * x.stride + 64));
    return x;
}

static inline void *at(const qn_operand *x, int64_t r) {
    return (uint8_t *)x->data + r * x->stride;
}

static inline float *part_at(const qn_operand *x, int64_t r, int64_t p) {
    return (float *)at(x, r) + p * x->width;
}

static inline void fill_rows(const qn_operand *x, int64_t rows, uint64_t seed) {
    for (int64_t r = 0; r < rows; r++) {
        const float size = ldexpf(1, (int)(next_random(&seed) % 9) - 4);
        for (int64_t i = 0; i < x->parts * x->width; i++)
            ((float *)at(x, r))[i] = next_float(&seed) * next_float(&seed) * size;
    }
}

// Runs all stages; pieces forwards or backwards, as no order is promised. More pieces than the step
// has rows for are asked, as a plan for more rows would.
static inline void run_op(const qn_cpu_level *backend, qn_op op, const qn_task *task,
                          bool backwards) {
    const qn_recipe *recipe = &backend->backend.recipes[op];
    qn_task own = *task;
    own.has_unit = backend->has_unit;
    task = &own;
    assert_true(recipe->n_stages > 0);
    for (int s = 0; s < recipe->n_stages; s++) {
        const qn_kernel *kernel = &backend->kernels[recipe->stages[s]];
        const int64_t max = backwards ? task->rows + 67 : task->rows;
        const int64_t n = kernel->pieces(task, max, 0);
        const size_t bytes = (size_t)qn_round_up(kernel->scratch(task, max), 64) + 64;
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

static inline qn_operand packed_rows(const qn_cpu_level *backend, const qn_operand *x, int64_t rows,
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

static inline void same_rows(const qn_operand *a, const qn_operand *b, int64_t rows,
                             const char *what) {
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

static inline const char *describe(const kind *k, qn_word form, int64_t n_in, const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s %s x %s, inner size %d", name, qn_type_get(k->type)->name,
             qn_word_get(form)->name, (int)n_in);
    return text;
}

static inline qn_operand weight_operand(const weight *w) {
    return (qn_operand){.packed = &w->packed};
}

static inline qn_operand matmul(const qn_cpu_level *backend, const qn_operand *x, const weight *w,
                                int64_t rows) {
    qn_operand out = make_rows(rows, x->parts, w->packed.n_out, QN_WORD_f32);
    const qn_task task = {.in = {*x, weight_operand(w)}, .out = {out}, .rows = rows};
    run_op(backend, QN_OP_MATMUL, &task, false);
    return out;
}

#endif
