// How calls are cut into pieces: by shape alone, so that the cut is the same in every step.
#include "backends/cpu/cpu.h"

enum { ROW_NUMBERS = 4096 }; // of a piece: some microseconds of simple work; not tuned

// Rows per piece, by the size of a row of the first input or result, whichever is larger.
static int64_t rows_per_piece(const qn_task *task) {
    const qn_operand *x = &task->in[0], *y = &task->out[0];
    const int64_t n_in = x->parts * x->width, n_out = y->parts * y->width;
    const int64_t numbers = n_in > n_out ? n_in : n_out;
    return numbers > 0 && numbers < ROW_NUMBERS ? ROW_NUMBERS / numbers : 1;
}

int64_t qn_cpu_pieces_rows(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return qn_ceil_div(rows, rows_per_piece(task));
}

qn_range qn_cpu_cut_rows(const qn_task *task, int64_t piece) {
    const int64_t per = rows_per_piece(task);
    const qn_range range = {piece * per, (piece + 1) * per};
    if (range.first >= task->rows) return (qn_range){0, 0};
    return (qn_range){range.first, range.end < task->rows ? range.end : task->rows};
}

int64_t qn_cpu_scratch_none(const qn_task *task, int64_t rows) {
    (void)task, (void)rows;
    return 0;
}

int qn_cpu_temps_none(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    (void)temp, (void)graph, (void)node;
    return 0;
}
