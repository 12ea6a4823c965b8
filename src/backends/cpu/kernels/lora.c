// Low-rank adapters: y + scale * b (a x) with the adapter of the row's segment. Rows without one
// keep y, bit for bit.
#include "backends/cpu/kernels/norm.h"

// Sum of a[i] * x[i] in n_lanes lanes (16 or 64), in the order of sums along a row. What a last run
// lacks counts as 0 * 0, which changes no sum.
QN_INLINE float dot_in_lanes(const float *a, const float *x, int64_t n, const int n_lanes) {
    f32v sum[MAX_LANES / QN_LANES];
    float last_a[MAX_LANES], last_x[MAX_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < n_lanes / QN_LANES; i++) sum[i] = all_f32(0);
    for (int64_t at = 0; at < n; at += n_lanes) {
        const float *from_a = a + at, *from_x = x + at;
        if (__builtin_expect(n - at < n_lanes, 0)) {
            for (int i = 0; i < n_lanes; i++) {
                last_a[i] = at + i < n ? from_a[i] : 0;
                last_x[i] = at + i < n ? from_x[i] : 0;
            }
            from_a = last_a;
            from_x = last_x;
        }
#pragma GCC unroll 16
        for (int i = 0; i < n_lanes / QN_LANES; i++)
            sum[i] =
                fma_f32(load_f32(from_a + i * QN_LANES), load_f32(from_x + i * QN_LANES), sum[i]);
    }
#pragma GCC unroll 2
    for (int half = n_lanes / 2; half >= 16; half /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < half / QN_LANES; i++) sum[i] += sum[i + half / QN_LANES];
    }
    return sum_16(sum);
}

// The adapter of a row; -1: none.
static inline int64_t adapter_of(const qn_step *step, int64_t row) {
    const int32_t seg = step->row_seg[row];
    return seg < 0 ? -1 : step->seg_adapter[seg];
}

// x (T, I) in in[1], a (N, r, I) in in[2] -> temp[0] (T, r)
void QN_FN(lora_down)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[1], *a = &task->in[2];
    const int64_t rank = task->temp[0].width, n = x->width;
    const qn_lora_cut cut = qn_cpu_cut_lora_down(task, piece);
    for (int64_t j = cut.outs.first; j < cut.outs.end; j++) {
        for (int64_t r = cut.rows.first; r < cut.rows.end; r++) {
            const int64_t adapter = adapter_of(task->step, r);
            if (adapter < 0) continue;
            float *to = row_of(&task->temp[0], r);
            to[j] = dot_in_lanes((const float *)a->data + (adapter * rank + j) * n, row_of(x, r), n,
                                 64);
        }
    }
}

// y (T, O) in in[0], b (N, O, r) in in[3], temp[0] (T, r) -> out[0] (T, O)
void QN_FN(lora_up)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *y = &task->in[0], *b = &task->in[3];
    const int64_t rank = b->width, n_out = y->width;
    const qn_lora_cut cut = qn_cpu_cut_lora_up(task, piece);
    for (int64_t r = cut.rows.first; r < cut.rows.end; r++) {
        const int64_t adapter = adapter_of(task->step, r);
        const float *from = row_of(y, r), *inner = row_of(&task->temp[0], r);
        const float *matrix = (const float *)b->data + (adapter < 0 ? 0 : adapter) * n_out * rank;
        float *to = row_of(&task->out[0], r);
        for (int64_t o = cut.outs.first; o < cut.outs.end && adapter < 0; o++) to[o] = from[o];
        for (int64_t o = cut.outs.first; o < cut.outs.end && adapter >= 0; o++)
            to[o] = __builtin_fmaf(task->attrs->scale,
                                   dot_in_lanes(matrix + o * rank, inner, rank, 16), from[o]);
    }
}
