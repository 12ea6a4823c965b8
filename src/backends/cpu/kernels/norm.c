// Norms along the last dimension, alone and together with what comes before and after them.
#include "backends/cpu/kernels/norm.h"
#include "backends/cpu/kernels/panel.h"

void QN_FN(rms_norm)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0]; // (T, P, W)
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < x->parts; p++)
            rms_norm_row(part_of(&task->out[0], r, p), part_of(x, r, p), task->in[1].data, x->width,
                         task->attrs->eps);
    }
}

static void layer_norm_row(float *out, const float *x, const float *w, const float *b, int64_t n,
                           float eps) {
    const float mean = sum_row_64(x, n) / (float)n;
    const float variance = sum_squares_64(x, n, mean) / (float)n;
    const float inverse = 1.0f / __builtin_sqrtf(variance + eps);
    for (int64_t i = 0; i < n; i++) out[i] = __builtin_fmaf((x[i] - mean) * inverse, w[i], b[i]);
}

void QN_FN(layer_norm)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0]; // (T, P, W)
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < x->parts; p++)
            layer_norm_row(part_of(&task->out[0], r, p), part_of(x, r, p), task->in[1].data,
                           task->in[2].data, x->width, task->attrs->eps);
    }
}

void QN_FN(l2_norm)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0]; // (T, P, W)
    const int64_t n = x->width;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < x->parts; p++) {
            const float *from = part_of(x, r, p);
            float *to = part_of(&task->out[0], r, p);
            const float sum = sum_squares_64(from, n, 0);
            const float inverse = 1.0f / __builtin_sqrtf(sum + task->attrs->eps);
            for (int64_t i = 0; i < n; i++) to[i] = from[i] * inverse;
        }
    }
}

void QN_FN(norm_quantize)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *x = &task->in[0], *out = &task->out[0]; // (T, P, W)
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < x->parts; p++) {
            rms_norm_row(scratch, part_of(x, r, p), task->in[1].data, x->width, task->attrs->eps);
            quantize_row(out->form, part_of(out, r, p), scratch, x->width);
        }
    }
}

// out[0] = a + b, out[1] = its rms norm.
void QN_FN(add_norm)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *a = &task->in[0], *out = &task->out[1]; // (T, P, W)
    const int64_t n = a->width;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < a->parts; p++) {
            const float *x = part_of(a, r, p), *y = part_of(&task->in[1], r, p);
            float *sum = part_of(&task->out[0], r, p);
            for (int64_t i = 0; i < n; i++) sum[i] = x[i] + y[i];
            rms_norm_row(scratch, sum, task->in[2].data, n, task->attrs->eps);
            quantize_row(out->form, part_of(out, r, p), scratch, n);
        }
    }
}
