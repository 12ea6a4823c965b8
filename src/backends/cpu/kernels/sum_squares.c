// How large the columns of a matmul's input are: their squares, summed over rows.
#include "backends/cpu/kernels/level.h"

#include <string.h>

// The rows that are summed: each with its choices, or else its parts.
typedef struct entries {
    const qn_operand *x;   // (T, I) or (T, N, I)
    const qn_operand *ids; // (T, N); .data NULL: all belong to expert 0
    int64_t rows, choices;
} entries;

static int64_t expert_of(const entries *e, int64_t row, int64_t choice) {
    return e->ids->data ? ((const int32_t *)row_of(e->ids, row))[choice] : 0;
}

// Squares of floats are exact in double.
static inline void add_squares(double *restrict sums, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sums[i] += (double)x[i] * (double)x[i];
}

static void count_rows(const qn_operand *out, const entries *e) {
    float *counts = (float *)out->data + out->width - 1;
    for (int64_t i = 0; i < out->parts; i++) counts[i * out->width] = 0;
    for (int64_t r = 0; r < e->rows; r++) {
        for (int64_t k = 0; k < e->choices; k++) counts[expert_of(e, r, k) * out->width]++;
    }
}

// Rows are added in order, each with its choices in theirs; the result is rounded once.
void QN_FN(sum_squares)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *x = &task->in[0], *ids = &task->in[1], *out = &task->out[0];
    const entries e = {x, ids, task->rows, ids->data ? ids->width : x->parts};
    const qn_range columns = qn_cpu_cut_columns(task, piece);
    const int64_t n = columns.end - columns.first;
    double *sums = scratch; // (experts, n)
    memset(sums, 0, (size_t)(out->parts * n) * sizeof *sums);
    for (int64_t r = 0; r < e.rows; r++) {
        for (int64_t k = 0; k < e.choices; k++) {
            const float *row = part_of(x, r, x->parts > 1 ? k : 0);
            add_squares(sums + expert_of(&e, r, k) * n, row + columns.first, n);
        }
    }
    for (int64_t i = 0; i < out->parts; i++) {
        float *to = (float *)out->data + i * out->width + columns.first;
        for (int64_t c = 0; c < n; c++) to[c] = (float)sums[i * n + c];
    }
    if (piece == 0) count_rows(out, &e);
}
