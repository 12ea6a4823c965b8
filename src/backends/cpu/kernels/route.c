// Experts of each row, and the sum of what they say.
#include "backends/cpu/kernels/route.h"

// scores (T, X) -> ids (T, N), weights (T, N)
void QN_FN(route)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        route_row(row_of(&task->out[0], r), row_of(&task->out[1], r), row_of(&task->in[0], r),
                  task->in[0].width, task->attrs, scratch);
}

// y (T, N, D), weights (T, N)
void QN_FN(combine)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        combine_row(row_of(&task->out[0], r), &task->in[0], r, row_of(&task->in[1], r));
}
