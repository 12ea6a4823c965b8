// Dense matmuls: each piece is a run of tiles for a group of rows.
#include "backends/cpu/level/act.h"
#include "backends/cpu/level/tile.h"

// What a thread lends (qn_cpu_scratch_tiles).
typedef struct work {
    tile_block *block;
    const void **rows;                        // addresses
    float (*sums)[QN_TILE], (*more)[QN_TILE]; // (QN_ROW_GROUP, 16)
} work;

static work lay_out(void *scratch) {
    unsigned char *at = (unsigned char *)scratch + qn_round_up((int64_t)sizeof(tile_block), 64);
    work w = {.block = scratch, .sums = (float(*)[QN_TILE])at};
    w.more = w.sums + QN_ROW_GROUP;
    w.rows = (const void **)(w.more + QN_ROW_GROUP);
    return w;
}

static void find_rows(const void **rows, const qn_operand *x, qn_range range) {
    for (int64_t r = range.first; r < range.end; r++)
        rows[r - range.first] = part_of(x, r / x->parts, r % x->parts);
}

// Stores the sums of a tile, whose first output is `column` of the result.
static void put_tile(const qn_operand *out, qn_range rows, int64_t column, int64_t n,
                     float (*sums)[QN_TILE]) {
    for (int64_t r = rows.first; r < rows.end; r++) {
        float *to = part_of(out, r / out->parts, r % out->parts);
        memcpy(to + column, sums[r - rows.first], (size_t)n * sizeof *to);
    }
}

// x (T, P, I), weights in[1 ...] (O, I) -> (T, P, O + ...)
static void multiply(const qn_task *task, int64_t piece, void *scratch) {
    const qn_tile_cut cut = qn_cpu_cut_tiles(task, piece);
    const int64_t n_rows = cut.rows.end - cut.rows.first;
    const work room = lay_out(scratch);
    find_rows(room.rows, &task->in[0], cut.rows);
    int64_t first = 0, column = 0; // of the weight
    for (int i = 1; i < QN_MAX_IN && task->in[i].packed && n_rows; i++) {
        const qn_packed *w = task->in[i].packed;
        const int64_t n_tiles = w->matrix_bytes / w->tile_bytes;
        const int64_t from = cut.tiles.first > first ? cut.tiles.first - first : 0;
        const int64_t end = cut.tiles.end - first < n_tiles ? cut.tiles.end - first : n_tiles;
        for (int64_t t = from; t < end; t++) {
            const int64_t left = w->n_out - t * QN_TILE;
            tile_sums(room.sums[0], room.block, w, t, room.rows, n_rows, task->in[0].form);
            put_tile(&task->out[0], cut.rows, column + t * QN_TILE, left < QN_TILE ? left : QN_TILE,
                     room.sums);
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
    const qn_packed *gate = task->in[1].packed, *up = task->in[2].packed;
    const qn_word form = task->in[0].form;
    const qn_tile_cut cut = qn_cpu_cut_gated(task, piece);
    const int64_t n_rows = cut.rows.end - cut.rows.first;
    const work room = lay_out(scratch);
    find_rows(room.rows, &task->in[0], cut.rows);
    for (int64_t t = cut.tiles.first; t < cut.tiles.end && n_rows; t++) {
        const int64_t left = gate->n_out - t * QN_TILE;
        tile_sums(room.sums[0], room.block, gate, t, room.rows, n_rows, form);
        tile_sums(room.more[0], room.block, up, t, room.rows, n_rows, form);
        gate_rows(room.sums[0], room.more[0], n_rows, task->attrs->act);
        put_tile(&task->out[0], cut.rows, t * QN_TILE, left < QN_TILE ? left : QN_TILE, room.sums);
    }
}
