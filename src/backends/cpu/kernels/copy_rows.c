// Copies. Most moves are views that a plan resolves; these are for the others.
#include "backends/cpu/kernels/level.h"

#include <string.h>

static void copy_floats(float *to, const float *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

// A slice of the last dimension, or of the one after the rows.
void QN_FN(narrow)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0], *out = &task->out[0];
    const qn_attrs *attrs = task->attrs;
    const int64_t n = out->parts * out->width; // of a row
    const bool is_whole = n == x->parts * x->width, is_last = x->width != out->width;
    const int64_t runs = is_last ? out->parts : 1, length = n / runs;
    const int64_t start = is_whole  ? 0
                          : is_last ? attrs->start
                                    : attrs->start * (n / attrs->length);
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t i = 0; i < runs; i++)
            copy_floats((float *)row_of(out, r) + i * length,
                        (const float *)part_of(x, r, i) + start, length);
    }
}

// Along the last dimension part by part, else all of a and then all of b.
void QN_FN(concat)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *a = &task->in[0], *b = &task->in[1], *out = &task->out[0];
    const bool is_last = a->width != out->width;
    const int64_t runs = is_last ? out->parts : 1;
    const int64_t n_a = a->parts * a->width / runs, n_b = b->parts * b->width / runs;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t i = 0; i < runs; i++) {
            float *to = (float *)row_of(out, r) + i * (n_a + n_b);
            copy_floats(to, (const float *)row_of(a, r) + i * n_a, n_a);
            copy_floats(to + n_a, (const float *)row_of(b, r) + i * n_b, n_b);
        }
    }
}

// split, merge, all_gather: the same numbers under another shape.
void QN_FN(copy)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        copy_floats(row_of(&task->out[0], r), row_of(x, r), x->parts * x->width);
}

// in[1] (R) are rows of in[0].
void QN_FN(gather_rows)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        const int32_t *from = row_of(&task->in[1], r);
        copy_floats(row_of(&task->out[0], r), row_of(x, *from), x->parts * x->width);
    }
}
