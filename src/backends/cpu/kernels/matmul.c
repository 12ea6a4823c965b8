// Dense matmuls: each piece is a run of tiles for a group of rows.
#include "backends/cpu/kernels/act.h"
#include "backends/cpu/kernels/dense.h"

// Stores the sums of some panels; the first output of their weight is `column` of the result.
static void put_panels(const qn_operand *out, qn_range rows, int64_t column, const product *p) {
    for (int64_t t = 0; t < p->n_tiles; t += QN_PANEL_TILES) {
        float(*sums)[QN_PANEL] = panel_of(p, t);
        const int64_t at = column + (p->tile + t) * QN_TILE, n = outputs_of_panel(p, t);
        for (int64_t r = rows.first; r < rows.end; r++) {
            float *to = part_of(out, r / out->parts, r % out->parts);
            memcpy(to + at, sums[r - rows.first], (size_t)n * sizeof *to);
        }
    }
}

// x (T, P, I), weights in[1 ...] (O, I) -> (T, P, O + ...)
static void multiply(const qn_task *task, int64_t piece, void *scratch) {
    const qn_tile_cut cut = qn_cpu_cut_tiles(task, piece);
    const work room = lay_out(scratch, task);
    product p = {.sums = room.sums,
                 .panel_rows = room.panel_rows,
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
            p.n_tiles = qn_min(end - p.tile, tiles_at_once(&p));
            panel_sums(&p, room.room);
            put_panels(&task->out[0], cut.rows, column, &p);
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
    const work room = lay_out(scratch, task);
    product gate = {.sums = room.sums,
                    .panel_rows = room.panel_rows,
                    .w = task->in[1].packed,
                    .rows = room.rows,
                    .n_rows = cut.rows.end - cut.rows.first,
                    .form = task->in[0].form};
    find_rows(room.rows, &task->in[0], cut.rows);
    if (!gate.n_rows) return;
    for (gate.tile = cut.tiles.first; gate.tile < cut.tiles.end; gate.tile += gate.n_tiles) {
        product up = gate;
        up.sums = room.more;
        up.w = task->in[2].packed;
        gate.n_tiles = qn_min(tiles_at_once(&gate), tiles_at_once(&up)); // one may be of floats
        gate.n_tiles = up.n_tiles = qn_min(cut.tiles.end - gate.tile, gate.n_tiles);
        panel_sums(&gate, room.room);
        panel_sums(&up, room.room);
        for (int64_t t = 0; t < gate.n_tiles; t += QN_PANEL_TILES)
            gate_rows(panel_of(&gate, t), panel_of(&up, t), gate.n_rows,
                      qn_min(gate.n_tiles - t, QN_PANEL_TILES) * QN_TILE, task->attrs->act);
        put_panels(&task->out[0], cut.rows, 0, &gate);
    }
}
