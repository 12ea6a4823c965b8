// Rounds rows into panels.
#include "backends/cpu/kernels/panel.h"

void QN_FN(quantize)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *x = &task->in[0], *out = &task->out[0]; // (T, P, W)
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < x->parts; p++)
            quantize_row(out->form, part_of(out, r, p), part_of(x, r, p), x->width);
    }
}
