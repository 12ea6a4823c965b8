// Rows of the embedding table, or of one rank's share of it, or given ones.
#include "backends/cpu/kernels/level.h"

#include <string.h>

// ids (T), table (V, D), extra? (N, D), extra_row? (T)
void QN_FN(embed)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *extra = &task->in[2], *extra_row = &task->in[3];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        float *to = row_of(&task->out[0], r);
        const size_t bytes = (size_t)task->out[0].width * sizeof *to;
        const int64_t row = *(const int32_t *)row_of(&task->in[0], r) - task->attrs->start;
        const int32_t given =
            extra->data && extra_row->data ? *(const int32_t *)row_of(extra_row, r) : -1;
        if (task->step->row_seg[r] < 0)
            memset(to, 0, bytes);
        else if (given >= 0)
            memcpy(to, row_of(extra, given), bytes);
        else if (row >= 0 && row < task->in[1].packed->n_out)
            qn_packed_row(to, task->in[1].packed, row);
    }
}
