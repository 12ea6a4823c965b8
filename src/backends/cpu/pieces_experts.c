// How experts are cut: by expert, and each expert into runs of tiles. Which experts are used is
// known only in the step, so there are pieces for as many as its rows can choose.
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/tile_block.h"

// As for dense matmuls (pieces_tiles.c); not measured apart.
enum {
    PIECE_BYTES = 128 << 10,
    SMALL_BYTES = 32 << 10,
    SMALL_PIECES = 64, // of the experts of one row
    ENTRIES = 16       // rows to quantize: some ten microseconds
};

// --- lists ---

static int64_t n_experts(const qn_task *task) { return task->in[1].width; }

qn_expert_lists qn_cpu_expert_lists(const qn_task *task) {
    int32_t *at = task->temp[QN_EXPERTS_LISTS].data;
    return (qn_expert_lists){.n_used = at, .used = at + 1, .first = at + 1 + n_experts(task)};
}

int32_t *qn_cpu_expert_entry(const qn_task *task, int64_t i) {
    const qn_operand *lists = &task->temp[QN_EXPERTS_LISTS];
    const int64_t n = task->attrs->top;
    int32_t *row = (int32_t *)(void *)((unsigned char *)lists->data + i / n * lists->stride);
    return row + 2 + 2 * n_experts(task) + i % n;
}

int qn_cpu_temps_experts(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const qn_dim *gate = graph->values[node->in[2]].shape.dims; // X, F, D
    const int64_t top = node->attrs.top, lists = 2 + 2 * gate[0].n + top;
    temp[QN_EXPERTS_IDS] = // as int32
        (qn_plan_arg){.parts = 1, .width = top, .form = QN_WORD_f32};
    temp[QN_EXPERTS_WEIGHTS] = (qn_plan_arg){.parts = 1, .width = top, .form = QN_WORD_f32};
    temp[QN_EXPERTS_GATED] = (qn_plan_arg){.parts = top, .width = gate[1].n, .form = QN_WORD_f32};
    temp[QN_EXPERTS_PACKED] =
        (qn_plan_arg){.parts = top, .width = gate[1].n, .form = node->attrs.form};
    temp[QN_EXPERTS_EACH] = (qn_plan_arg){.parts = top, .width = gate[2].n, .form = QN_WORD_f32};
    temp[QN_EXPERTS_LISTS] = (qn_plan_arg){.parts = 1, .width = lists, .form = QN_WORD_f32};
    return QN_EXPERTS_LISTS + 1;
}

// --- pieces ---

// Tiles of a piece: whole panels for floats and where rows share what is unpacked.
static int64_t tiles_per_piece(const qn_packed *w, int64_t tile_bytes, int64_t top, bool is_few) {
    const int64_t n_tiles = w->matrix_bytes / w->tile_bytes;
    int64_t bytes = n_tiles * tile_bytes * top / SMALL_PIECES;
    if (bytes < SMALL_BYTES) bytes = SMALL_BYTES;
    if (bytes > PIECE_BYTES) bytes = PIECE_BYTES;
    const int64_t n = bytes > tile_bytes ? bytes / tile_bytes : 1;
    return is_few && qn_type_get(w->type)->block > 1 ? n : qn_round_up(n, QN_PANEL_TILES);
}

static int64_t count_runs(const qn_packed *w, int64_t per) {
    return qn_ceil_div(w->matrix_bytes / w->tile_bytes, per);
}

static int64_t max_used(const qn_task *task, int64_t rows) {
    const int64_t entries = rows * task->attrs->top;
    return entries < n_experts(task) ? entries : n_experts(task);
}

static int64_t count(const qn_task *task, const qn_packed *w, int64_t tile_bytes, int64_t rows) {
    const int64_t top = task->attrs->top;
    const int64_t few = count_runs(w, tiles_per_piece(w, tile_bytes, top, true));
    const int64_t many = count_runs(w, tiles_per_piece(w, tile_bytes, top, false));
    return max_used(task, rows) * (few > many ? few : many);
}

static qn_expert_cut cut(const qn_task *task, const qn_packed *w, int64_t tile_bytes,
                         int64_t piece) {
    const qn_expert_cut none = {.expert = -1};
    if (task->rows == 0) return none;
    const bool is_few = task->rows <= QN_FEW_ROWS;
    const int64_t per = tiles_per_piece(w, tile_bytes, task->attrs->top, is_few);
    const int64_t runs = count_runs(w, per), n_tiles = w->matrix_bytes / w->tile_bytes;
    const qn_expert_lists lists = qn_cpu_expert_lists(task);
    if (piece / runs >= *lists.n_used) return none;
    const int64_t first = piece % runs * per;
    return (qn_expert_cut){.expert = lists.used[piece / runs],
                           .tiles = {first, first + per < n_tiles ? first + per : n_tiles}};
}

static int64_t up_bytes(const qn_task *task) {
    return task->in[2].packed->tile_bytes + task->in[3].packed->tile_bytes;
}

int64_t qn_cpu_pieces_experts_up(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(task, task->in[2].packed, up_bytes(task), rows);
}

qn_expert_cut qn_cpu_cut_experts_up(const qn_task *task, int64_t piece) {
    return cut(task, task->in[2].packed, up_bytes(task), piece);
}

int64_t qn_cpu_pieces_experts_down(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(task, task->in[4].packed, task->in[4].packed->tile_bytes, rows);
}

qn_expert_cut qn_cpu_cut_experts_down(const qn_task *task, int64_t piece) {
    return cut(task, task->in[4].packed, task->in[4].packed->tile_bytes, piece);
}

// Every expert may leave a run that is not full.
int64_t qn_cpu_pieces_experts_entries(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return max_used(task, rows) + rows * task->attrs->top / ENTRIES;
}

qn_range qn_cpu_cut_experts_entries(const qn_task *task, int64_t piece) {
    if (task->rows == 0) return (qn_range){0, 0};
    const qn_expert_lists lists = qn_cpu_expert_lists(task);
    for (int32_t i = 0; i < *lists.n_used; i++) {
        const int32_t first = lists.first[lists.used[i]], end = lists.first[lists.used[i] + 1];
        const int64_t runs = qn_ceil_div(end - first, ENTRIES);
        if (piece < runs) {
            const int64_t at = first + piece * ENTRIES;
            return (qn_range){at, at + ENTRIES < end ? at + ENTRIES : end};
        }
        piece -= runs;
    }
    return (qn_range){0, 0};
}

// --- scratch ---

// The blocks, and of each row an address and two sums.
int64_t qn_cpu_scratch_experts(const qn_task *task, int64_t rows) {
    (void)task, (void)rows;
    const int64_t per_row = 2 * QN_PANEL * (int64_t)sizeof(float) + (int64_t)sizeof(void *);
    return (int64_t)sizeof(panel_room) +
           qn_round_up((QN_EXPERT_ROWS + QN_SPARE_ROWS) * per_row, 64);
}

int64_t qn_cpu_scratch_scores(const qn_task *task, int64_t rows) {
    (void)rows;
    return qn_round_up(task->in[1].width * (int64_t)sizeof(float), 64);
}
