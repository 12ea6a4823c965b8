// How matmuls are cut: runs of tiles, so that a piece reads some tens of kilobytes of weights, times
// groups of rows, which share each unpacked tile.
#include "backends/cpu/cpu.h"
#include "backends/cpu/level/tile_block.h"

enum {
    PIECE_BYTES = 128 << 10, // of weights: about 10 microseconds for one row
    FEWEST_PIECES = 32,      // that a call is cut into for one row, where it has so many tiles
    MOST_EXPERT_ROWS = 256,  // their sums stay in the cache
    ROWS_PER_EXPERT = 16     // make unpacking cheap
};

// A call as a grid: runs of per_piece tiles across, groups of rows down.
typedef struct grid {
    int64_t n_tiles, per_piece, across, row_group;
} grid;

static int64_t tiles_of(const qn_packed *w) { return w->matrix_bytes / w->tile_bytes; }

static grid make_grid(int64_t n_tiles, int64_t tile_bytes, int64_t row_group) {
    int64_t per = tile_bytes < PIECE_BYTES ? PIECE_BYTES / tile_bytes : 1;
    const int64_t most = qn_ceil_div(n_tiles, FEWEST_PIECES);
    if (per > most) per = most > 0 ? most : 1;
    const int64_t across = qn_ceil_div(n_tiles, per);
    return (grid){.n_tiles = n_tiles,
                  .per_piece = per,
                  .across = across > 0 ? across : 1,
                  .row_group = row_group};
}

static int64_t count(grid g, int64_t rows) { return qn_ceil_div(rows, g.row_group) * g.across; }

static qn_range clip(int64_t first, int64_t n, int64_t end) {
    const int64_t to = first + n < end ? first + n : end;
    return first < end ? (qn_range){first, to} : (qn_range){0, 0};
}

// Runs of tiles come first, so that pieces of rows that are not there lie at the end.
static qn_tile_cut cut(grid g, int64_t rows, int64_t piece) {
    return (qn_tile_cut){
        .rows = clip(piece / g.across * g.row_group, g.row_group, rows),
        .tiles = clip(piece % g.across * g.per_piece, g.per_piece, g.n_tiles),
    };
}

// --- dense ---

static grid tiles_grid(const qn_task *task) {
    int64_t n_tiles = 0, largest = 1;
    for (int i = 1; i < QN_MAX_IN && task->in[i].packed; i++) {
        const qn_packed *w = task->in[i].packed;
        n_tiles += tiles_of(w);
        if (w->tile_bytes > largest) largest = w->tile_bytes;
    }
    return make_grid(n_tiles, largest, QN_ROW_GROUP);
}

static grid gated_grid(const qn_task *task) {
    const qn_packed *gate = task->in[1].packed, *up = task->in[2].packed;
    return make_grid(tiles_of(gate), gate->tile_bytes + up->tile_bytes, QN_ROW_GROUP);
}

int64_t qn_cpu_pieces_tiles(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(tiles_grid(task), rows * task->in[0].parts);
}

qn_tile_cut qn_cpu_cut_tiles(const qn_task *task, int64_t piece) {
    return cut(tiles_grid(task), task->rows * task->in[0].parts, piece);
}

int64_t qn_cpu_pieces_gated(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(gated_grid(task), rows * task->in[0].parts);
}

qn_tile_cut qn_cpu_cut_gated(const qn_task *task, int64_t piece) {
    return cut(gated_grid(task), task->rows * task->in[0].parts, piece);
}

// The block, and of each row its address and two sums.
static int64_t scratch_bytes(int64_t n_rows) {
    const int64_t per_row = (int64_t)sizeof(void *) + 2 * QN_TILE * (int64_t)sizeof(float);
    return qn_round_up((int64_t)sizeof(tile_block), 64) + qn_round_up(n_rows * per_row, 64);
}

int64_t qn_cpu_scratch_tiles(const qn_task *task, int64_t rows) {
    (void)task, (void)rows;
    return scratch_bytes(QN_ROW_GROUP);
}

// --- experts ---

int64_t qn_cpu_expert_rows(int64_t n_experts, int64_t choices) {
    const int64_t rows = qn_ceil_div(ROWS_PER_EXPERT * n_experts, choices);
    return rows < QN_ROW_GROUP ? QN_ROW_GROUP : rows > MOST_EXPERT_ROWS ? MOST_EXPERT_ROWS : rows;
}

static grid expert_grid(const qn_packed *w, int64_t tile_bytes, int64_t choices) {
    return make_grid(tiles_of(w), tile_bytes * choices, qn_cpu_expert_rows(w->n_matrices, choices));
}

static grid grouped_grid(const qn_task *task) {
    const qn_packed *w = task->in[1].packed;
    return expert_grid(w, w->tile_bytes, task->in[2].width);
}

static grid up_grid(const qn_task *task) {
    const qn_packed *gate = task->in[2].packed, *up = task->in[3].packed;
    return expert_grid(gate, gate->tile_bytes + up->tile_bytes, task->attrs->top);
}

static grid down_grid(const qn_task *task) {
    const qn_packed *down = task->in[4].packed;
    return expert_grid(down, down->tile_bytes, task->attrs->top);
}

int64_t qn_cpu_pieces_grouped(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(grouped_grid(task), rows);
}

qn_tile_cut qn_cpu_cut_grouped(const qn_task *task, int64_t piece) {
    return cut(grouped_grid(task), task->rows, piece);
}

int64_t qn_cpu_pieces_experts_up(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(up_grid(task), rows);
}

qn_tile_cut qn_cpu_cut_experts_up(const qn_task *task, int64_t piece) {
    return cut(up_grid(task), task->rows, piece);
}

int64_t qn_cpu_pieces_experts_down(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(down_grid(task), rows);
}

qn_tile_cut qn_cpu_cut_experts_down(const qn_task *task, int64_t piece) {
    return cut(down_grid(task), task->rows, piece);
}

// As for dense rows, for every choice of every row; and what sorts them by expert.
static int64_t expert_scratch(int64_t n_experts, int64_t choices) {
    const int64_t n = qn_cpu_expert_rows(n_experts, choices) * choices;
    return scratch_bytes(n) + qn_round_up((n_experts + 1 + n) * (int64_t)sizeof(int32_t), 64);
}

int64_t qn_cpu_scratch_grouped(const qn_task *task, int64_t rows) {
    (void)rows;
    return expert_scratch(task->in[1].packed->n_matrices, task->in[2].width);
}

int64_t qn_cpu_scratch_experts(const qn_task *task, int64_t rows) {
    (void)rows;
    return expert_scratch(task->in[2].packed->n_matrices, task->attrs->top);
}

int64_t qn_cpu_scratch_scores(const qn_task *task, int64_t rows) {
    (void)rows;
    return qn_round_up(task->in[1].width * (int64_t)sizeof(float), 64);
}

int qn_cpu_temps_experts(qn_operand *temp, const qn_graph *graph, const qn_node *node) {
    const int64_t top = node->attrs.top, width = graph->values[node->in[2]].shape.dims[1].n;
    temp[0] = (qn_operand){.parts = 1, .width = top, .form = QN_WORD_f32}; // ids, as int32
    temp[1] = (qn_operand){.parts = 1, .width = top, .form = QN_WORD_f32};
    temp[2] = (qn_operand){.parts = top, .width = width, .form = QN_WORD_f32};
    temp[3] = (qn_operand){.parts = top, .width = width, .form = node->attrs.form};
    return 4;
}
