// Dense matmuls: each piece is a run of tiles for a group of rows.
#include "backends/cpu/kernels/act.h"
#include "backends/cpu/kernels/dense.h"

// Stores the sums of a panel, whose first output is `column` of the result.
static void put_panel(const qn_operand *out, qn_range rows, int64_t column, int64_t n,
                      float (*sums)[QN_PANEL]) {
    for (int64_t r = rows.first; r < rows.end; r++) {
        float *to = part_of(out, r / out->parts, r % out->parts);
        memcpy(to + column, sums[r - rows.first], (size_t)n * sizeof *to);
    }
}

// x (T, P, I), weights in[1 ...] (O, I) -> (T, P, O + ...)
static void multiply(const qn_task *task, int64_t piece, void *scratch) {
    const qn_tile_cut cut = qn_cpu_cut_tiles(task, piece);
    const work room = lay_out(scratch);
    product p = {.sums = room.sums,
                 .rows = room.rows,
                 .n_rows = cut.rows.end - cut.rows.first,
                 .form = task->in[0].form};
    find_rows(room.rows, &task->in[0], cut.rows);
    int64_t first = 0, column = 0; // of the weight
    for (int i = 1; i < QN_MAX_IN && task->in[i].packed && p.n_rows; i++) {
        const qn_packed *w = task->in[i].packed;
        const int64_t n_tiles = w->matrix_bytes / w->tile_bytes;
        const int64_t from = cut.tiles.first > first ? cut.tiles.first - first : 0;
        const int64_t end = qn_min(cut.tiles.end - first, n_tiles);
        p.w = w;
        for (p.tile = from; p.tile < end; p.tile += p.n_tiles) {
            const int64_t at = p.tile * QN_TILE;
            p.n_tiles = qn_min(end - p.tile, QN_PANEL_TILES);
            panel_sums(&p, room.blocks);
            put_panel(&task->out[0], cut.rows, column + at,
                      qn_min(w->n_out - at, p.n_tiles * QN_TILE), room.sums);
        }
        first += n_tiles;
        column += w->n_out;
    }
}

void QN_FN(matmul)(const qn_task *task, int64_t piece, void *scratch) {
    multiply(task, piece, scratch);
}

void QN_FN(project)(const qn_task *task, int64_t piece, void *scratch) {
    multiply(task, piece, scratch);
}

// x (T, P, I), gate (F, I), up (F, I) -> act(x gate') * (x up')
void QN_FN(gated)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_tile_cut cut = qn_cpu_cut_gated(task, piece);
    const work room = lay_out(scratch);
    product gate = {.sums = room.sums,
                    .w = task->in[1].packed,
                    .rows = room.rows,
                    .n_rows = cut.rows.end - cut.rows.first,
                    .form = task->in[0].form};
    find_rows(room.rows, &task->in[0], cut.rows);
    if (!gate.n_rows) return;
    for (int64_t t = cut.tiles.first; t < cut.tiles.end; t += QN_PANEL_TILES) {
        gate.tile = t;
        gate.n_tiles = qn_min(cut.tiles.end - t, QN_PANEL_TILES);
        product up = gate;
        up.sums = room.more;
        up.w = task->in[2].packed;
        panel_sums(&gate, room.blocks);
        panel_sums(&up, room.blocks);
        gate_rows(room.sums, room.more, gate.n_rows, gate.n_tiles * QN_TILE, task->attrs->act);
        put_panel(&task->out[0], cut.rows, t * QN_TILE,
                  qn_min(gate.w->n_out - t * QN_TILE, gate.n_tiles * QN_TILE), room.sums);
    }
}
