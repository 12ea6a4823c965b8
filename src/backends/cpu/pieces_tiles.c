// How matmuls are cut, by shape alone. Few rows: runs of tiles, so that a piece reads some tens of
// kilobytes of weights. More rows: panels of tiles times groups of rows, which share each unpacked
// panel; the weights of a piece are small then, and its rows stay in the second-level cache.
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/tile_block.h"

// A piece must take long enough that handing it out (an atomic and a look at its call, well below a
// microsecond) costs little, and be short enough that threads end together. The sizes were chosen
// by that; others were not measured.
enum {
    PIECE_BYTES = 128 << 10, // of weights: about 10 microseconds for one row
    SMALL_BYTES = 32 << 10,  // a piece of a small weight, so that many threads find one
    SMALL_PIECES = 64,       // of a small weight, if they are not smaller: 4 for each of 16 threads
    HEAD_RUNS = 128,         // max runs of a head: each leaves a list to merge
    PANEL_VALUES = 1 << 10,  // inner values of a panel: with 128 rows 15 to 30 microseconds
    UNIT_PIECES = 16,        // at least, of a group of rows and of a weight, for a matrix unit
    MAX_EXPERT_ROWS = 256,   // their sums, 384 bytes a row, stay in the second-level cache
    ROWS_PER_EXPERT = 16     // share an unpacked block: two rounds of cores of eight rows
};

// A call as a grid: runs of per_piece tiles across, groups of rows down.
typedef struct grid {
    int64_t n_tiles, per_piece, across, row_group;
} grid;

static int64_t tiles_of(const qn_packed *w) { return w->matrix_bytes / w->tile_bytes; }

// What a call is made of: `tile_bytes` are read for each of n_tiles. Floats go by whole panels,
// also where rows are few.
typedef struct shape {
    int64_t n_tiles, tile_bytes, n_in, row_group;
    bool is_float, has_unit;
} shape;

static bool is_float(const qn_packed *w) { return qn_type_get(w->type)->block == 1; }

// Tiles of a piece of few rows.
static int64_t few_tiles(shape s) {
    int64_t bytes = s.n_tiles * s.tile_bytes / SMALL_PIECES;
    if (bytes < SMALL_BYTES) bytes = SMALL_BYTES;
    if (bytes > PIECE_BYTES) bytes = PIECE_BYTES;
    const int64_t n = bytes > s.tile_bytes ? bytes / s.tile_bytes : 1;
    return s.is_float ? qn_round_up(n, QN_PANEL_TILES) : n;
}

// Of more rows: whole panels. Of a matrix unit as many as it has at once, but fewer of small weights
// and of one group of rows, so that 16 threads have about 32 pieces.
static int64_t many_tiles(shape s, int64_t rows) {
    if (!s.has_unit) return QN_PANEL_TILES * (s.n_in < PANEL_VALUES ? PANEL_VALUES / s.n_in : 1);
    int64_t panels = rows > s.row_group ? QN_UNIT_PANELS : QN_UNIT_PANELS / 2;
    while (panels > 1 && s.n_tiles < UNIT_PIECES * panels * QN_PANEL_TILES) panels /= 2;
    return panels * QN_PANEL_TILES;
}

static grid make_grid(shape s, int64_t rows) {
    const int64_t per = rows <= QN_FEW_ROWS ? few_tiles(s) : many_tiles(s, rows);
    const int64_t across = qn_ceil_div(s.n_tiles, per);
    return (grid){.n_tiles = s.n_tiles,
                  .per_piece = per,
                  .across = across > 0 ? across : 1,
                  .row_group = s.row_group};
}

static int64_t pieces_of(grid g, int64_t rows) { return qn_ceil_div(rows, g.row_group) * g.across; }

// Enough for every step of at most that many rows.
static int64_t count(shape s, int64_t rows) {
    const int64_t few_rows = rows < QN_FEW_ROWS ? rows : QN_FEW_ROWS;
    const int64_t few = pieces_of(make_grid(s, few_rows), few_rows);
    const int64_t many = rows > QN_FEW_ROWS ? pieces_of(make_grid(s, rows), rows) : 0;
    return few > many ? few : many;
}

static qn_range clip(int64_t first, int64_t n, int64_t end) {
    const int64_t to = first + n < end ? first + n : end;
    return first < end ? (qn_range){first, to} : (qn_range){0, 0};
}

// Runs of tiles come first, so that pieces of rows that are not there lie at the end.
static qn_tile_cut cut(shape s, int64_t rows, int64_t piece) {
    const grid g = make_grid(s, rows);
    return (qn_tile_cut){
        .rows = clip(piece / g.across * g.row_group, g.row_group, rows),
        .tiles = clip(piece % g.across * g.per_piece, g.per_piece, g.n_tiles),
    };
}

// --- dense ---

int64_t qn_cpu_row_group(const qn_task *task) {
    return task->has_unit ? QN_UNIT_ROWS : QN_ROW_GROUP;
}

int64_t qn_cpu_panels(const qn_task *task) { return task->has_unit ? QN_UNIT_PANELS : 1; }

static shape tiles_shape(const qn_task *task) {
    shape s = {.tile_bytes = 1,
               .n_in = 1,
               .row_group = qn_cpu_row_group(task),
               .has_unit = task->has_unit};
    for (int i = 1; i < QN_MAX_IN && task->in[i].packed; i++) {
        const qn_packed *w = task->in[i].packed;
        s.n_tiles += tiles_of(w);
        s.n_in = w->n_in;
        s.is_float |= is_float(w);
        if (w->tile_bytes > s.tile_bytes) s.tile_bytes = w->tile_bytes;
    }
    return s;
}

static shape gated_shape(const qn_task *task) {
    const qn_packed *gate = task->in[1].packed, *up = task->in[2].packed;
    return (shape){.n_tiles = tiles_of(gate),
                   .tile_bytes = gate->tile_bytes + up->tile_bytes,
                   .n_in = gate->n_in,
                   .row_group = qn_cpu_row_group(task),
                   .is_float = is_float(gate),
                   .has_unit = task->has_unit};
}

int64_t qn_cpu_pieces_tiles(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(tiles_shape(task), rows * task->in[0].parts);
}

qn_tile_cut qn_cpu_cut_tiles(const qn_task *task, int64_t piece) {
    return cut(tiles_shape(task), task->rows * task->in[0].parts, piece);
}

int64_t qn_cpu_pieces_gated(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(gated_shape(task), rows * task->in[0].parts);
}

qn_tile_cut qn_cpu_cut_gated(const qn_task *task, int64_t piece) {
    return cut(gated_shape(task), task->rows * task->in[0].parts, piece);
}

// The room, and of each row some addresses and two sums of each panel.
static int64_t scratch_bytes(int64_t n_rows, int64_t n_panels, int64_t n_addresses) {
    const int64_t sums = 2 * n_panels * QN_PANEL * (int64_t)sizeof(float);
    const int64_t per_row = sums + n_addresses * (int64_t)sizeof(void *);
    return (int64_t)sizeof(panel_room) + qn_round_up((n_rows + QN_SPARE_ROWS) * per_row, 64);
}

int64_t qn_cpu_scratch_tiles(const qn_task *task, int64_t rows) {
    (void)rows;
    return scratch_bytes(qn_cpu_row_group(task), qn_cpu_panels(task), 1);
}

// --- head ---

// Tiles of a run, in whole panels: at least SMALL_BYTES, and at most HEAD_RUNS runs.
static int64_t run_tiles(int64_t n_tiles, int64_t tile_bytes) {
    const int64_t panels = qn_ceil_div(n_tiles, QN_PANEL_TILES);
    const int64_t by_runs = qn_ceil_div(panels, HEAD_RUNS);
    const int64_t by_bytes = qn_ceil_div(SMALL_BYTES, QN_PANEL_TILES * tile_bytes);
    return QN_PANEL_TILES * (by_runs > by_bytes ? by_runs : by_bytes);
}

int64_t qn_cpu_head_runs(const qn_task *task) {
    const qn_packed *w = task->in[1].packed;
    return qn_ceil_div(tiles_of(w), run_tiles(tiles_of(w), w->tile_bytes));
}

int64_t qn_cpu_pieces_head(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return qn_ceil_div(rows, qn_cpu_row_group(task)) * qn_cpu_head_runs(task);
}

qn_head_cut qn_cpu_cut_head(const qn_task *task, int64_t piece) {
    const qn_packed *w = task->in[1].packed;
    const int64_t runs = qn_cpu_head_runs(task), per = run_tiles(tiles_of(w), w->tile_bytes);
    const int64_t group = qn_cpu_row_group(task);
    return (qn_head_cut){.rows = clip(piece / runs * group, group, task->rows),
                         .tiles = clip(piece % runs * per, per, tiles_of(w)),
                         .run = piece % runs};
}

int qn_cpu_temps_head(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const qn_value *w = &graph->values[node->in[1]];
    const qn_type_info *type = qn_type_get(w->type);
    const int64_t n_tiles = qn_ceil_div(w->shape.dims[0].n, QN_TILE);
    const int64_t tile_bytes = QN_TILE * (w->shape.dims[1].n / type->block * type->bytes);
    const int64_t runs = qn_ceil_div(n_tiles, run_tiles(n_tiles, tile_bytes));
    temp[0] =
        (qn_plan_arg){.parts = 1, .width = runs * (2 + 2 * node->attrs.top), .form = QN_WORD_f32};
    return 1;
}

// --- grouped ---

int64_t qn_cpu_expert_rows(int64_t n_experts, int64_t choices) {
    const int64_t rows = qn_ceil_div(ROWS_PER_EXPERT * n_experts, choices);
    return rows < QN_ROW_GROUP ? QN_ROW_GROUP : rows > MAX_EXPERT_ROWS ? MAX_EXPERT_ROWS : rows;
}

static shape grouped_shape(const qn_task *task) {
    const qn_packed *w = task->in[1].packed;
    const int64_t choices = task->in[2].width;
    return (shape){tiles_of(w), w->tile_bytes * choices,
                   w->n_in,     qn_cpu_expert_rows(w->n_matrices, choices),
                   is_float(w), false};
}

int64_t qn_cpu_pieces_grouped(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return count(grouped_shape(task), rows);
}

qn_tile_cut qn_cpu_cut_grouped(const qn_task *task, int64_t piece) {
    return cut(grouped_shape(task), task->rows, piece);
}

// As for dense rows, for every choice of every row; and what sorts them by expert.
static int64_t grouped_scratch(int64_t n_experts, int64_t choices) {
    const int64_t n = qn_cpu_expert_rows(n_experts, choices) * choices;
    return scratch_bytes(n, 1, 2) + qn_round_up((n_experts + 1 + n) * (int64_t)sizeof(int32_t), 64);
}

int64_t qn_cpu_scratch_grouped(const qn_task *task, int64_t rows) {
    (void)rows;
    return grouped_scratch(task->in[1].packed->n_matrices, task->in[2].width);
}
