// How calls are cut into pieces: by shape alone, so that the cut is the same in every step.
#include "backends/cpu/cpu.h"
#include "backends/device.h"

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

// --- adapters ---

// Rows share what they read of an adapter; a piece of one row is some thousand products. Not
// measured.
enum { LORA_ROWS = 8, LORA_RANKS = 8, LORA_OUTPUTS = 512 };

static int64_t lora_pieces(int64_t rows, int64_t n, int64_t per) {
    return qn_ceil_div(rows, LORA_ROWS) * qn_ceil_div(n, per);
}

static qn_range clip(int64_t first, int64_t n, int64_t end) {
    return (qn_range){first < end ? first : end, first + n < end ? first + n : end};
}

static qn_lora_cut lora_cut(const qn_task *task, int64_t piece, int64_t n, int64_t per) {
    const int64_t across = qn_ceil_div(n, per);
    return (qn_lora_cut){.rows = clip(piece / across * LORA_ROWS, LORA_ROWS, task->rows),
                         .outs = clip(piece % across * per, per, n)};
}

int64_t qn_cpu_pieces_lora_down(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return lora_pieces(rows, task->temp[0].width, LORA_RANKS);
}

int64_t qn_cpu_pieces_lora_up(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return lora_pieces(rows, task->in[0].width, LORA_OUTPUTS);
}

qn_lora_cut qn_cpu_cut_lora_down(const qn_task *task, int64_t piece) {
    return lora_cut(task, piece, task->temp[0].width, LORA_RANKS);
}

qn_lora_cut qn_cpu_cut_lora_up(const qn_task *task, int64_t piece) {
    return lora_cut(task, piece, task->in[0].width, LORA_OUTPUTS);
}

int qn_cpu_temps_lora(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const int64_t rank = graph->values[node->in[2]].shape.dims[1].n;
    temp[0] = (qn_plan_arg){.parts = 1, .width = rank, .form = QN_WORD_f32};
    return 1;
}

// --- sums over rows ---

// Columns of a piece. Not tuned: of 2048 columns of 512 rows the sums take a thousandth of the time
// that a matmul with them takes.
enum { PIECE_COLUMNS = 128 };

int64_t qn_cpu_pieces_columns(const qn_task *task, int64_t rows, int64_t cached) {
    (void)rows, (void)cached;
    return qn_ceil_div(task->in[0].width, PIECE_COLUMNS);
}

qn_range qn_cpu_cut_columns(const qn_task *task, int64_t piece) {
    return clip(piece * PIECE_COLUMNS, PIECE_COLUMNS, task->in[0].width);
}

int64_t qn_cpu_scratch_columns(const qn_task *task, int64_t rows) {
    (void)rows;
    return task->attrs->length * PIECE_COLUMNS * (int64_t)sizeof(double);
}

// --- ranks ---

// A value of the graph as rows of (parts, width), as in lower.c.
static qn_plan_arg temp_like(const qn_shape *shape, qn_word form) {
    qn_plan_arg temp = {.parts = 1, .width = shape->dims[shape->n_dims - 1].n, .form = form};
    for (int d = 1; d + 1 < shape->n_dims; d++) temp.parts *= shape->dims[d].n;
    return temp;
}

int qn_cpu_temps_all_gather(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    temp[0] = temp_like(&graph->values[node->out[0]].shape, node->attrs.form);
    return 1;
}

int64_t qn_cpu_scratch_all_gather(const qn_task *task, int64_t rows) {
    (void)rows;
    const int64_t n = task->gather ? task->gather->n_ranks : 0;
    return qn_round_up(2 * n * (int64_t)sizeof(size_t), 64);
}

// --- no rule ---

int64_t qn_cpu_pieces_one(const qn_task *task, int64_t rows, int64_t cached) {
    (void)task, (void)rows, (void)cached;
    return 1;
}

int64_t qn_cpu_scratch_none(const qn_task *task, int64_t rows) {
    (void)task, (void)rows;
    return 0;
}

int64_t qn_cpu_shared_none(const qn_task *task, int64_t rows, int64_t cached) {
    (void)task, (void)rows, (void)cached;
    return 0;
}

int qn_cpu_temps_none(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    (void)temp, (void)graph, (void)node;
    return 0;
}
