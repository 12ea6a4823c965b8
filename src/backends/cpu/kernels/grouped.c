// A matmul by chosen experts. The choices of a group of rows are sorted by expert, so that all of
// them share a tile once it is unpacked.
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/tile_products.h"

// What a thread lends (grouped_scratch in pieces_tiles.c), for n = rows * choices entries. Entry i
// is choice i % choices of row i / choices of the group.
typedef struct work {
    panel_room *room;
    float (*sums)[QN_PANEL], (*more)[QN_PANEL]; // (n + QN_SPARE_ROWS), sorted by expert
    const void **rows;                          // (n + QN_SPARE_ROWS) addresses, sorted by expert
    const void **some;                          // (n + QN_SPARE_ROWS) those of one expert
    int32_t *order;                             // (n) entries, sorted by expert
    int32_t *first;                             // (experts + 1) where an expert's entries begin
} work;

static work lay_out(void *scratch, int64_t n_experts, int64_t choices) {
    const int64_t n = qn_cpu_expert_rows(n_experts, choices) * choices;
    work w = {.room = scratch};
    w.sums = (float(*)[QN_PANEL])(w.room + 1);
    w.more = w.sums + n + QN_SPARE_ROWS;
    w.rows = (const void **)(w.more + n + QN_SPARE_ROWS);
    w.some = w.rows + n + QN_SPARE_ROWS;
    w.order = (int32_t *)(w.some + n + QN_SPARE_ROWS);
    w.first = w.order + n;
    return w;
}

// The rows of x that meet experts, and which.
typedef struct choices {
    const qn_operand *x;   // (T, I) or (T, N, I)
    const qn_operand *ids; // (T, N)
    qn_range rows;
    int64_t n_experts, n; // choices of a row
} choices;

static int32_t expert_of(const choices *c, int64_t entry) {
    return ((const int32_t *)row_of(c->ids, c->rows.first + entry / c->n))[entry % c->n];
}

// Counting sort; entries of one expert stay in their order.
static void sort_entries(const work *w, const choices *c) {
    const int64_t n = (c->rows.end - c->rows.first) * c->n;
    memset(w->first, 0, (size_t)(c->n_experts + 1) * sizeof *w->first);
    for (int64_t i = 0; i < n; i++) w->first[expert_of(c, i) + 1]++;
    for (int64_t e = 0; e < c->n_experts; e++) w->first[e + 1] += w->first[e];
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = w->first[expert_of(c, i)]++;
        const int64_t part = c->x->parts > 1 ? i % c->n : 0;
        w->order[at] = (int32_t)i;
        w->rows[at] = part_of(c->x, c->rows.first + i / c->n, part);
    }
    for (int64_t e = c->n_experts; e > 0; e--) w->first[e] = w->first[e - 1];
    w->first[0] = 0;
}

// A run of tiles of an expert's outputs, at most QN_PANEL_TILES.
typedef struct run {
    int64_t tile, n_tiles;
} run;

static run next_run(qn_range tiles, int64_t tile) {
    const int64_t left = tiles.end - tile;
    return (run){tile, left < QN_PANEL_TILES ? left : QN_PANEL_TILES};
}

// How many of the run's outputs there are.
static int64_t outputs_of(run t, int64_t n_out) {
    const int64_t left = n_out - t.tile * QN_TILE;
    return left < t.n_tiles * QN_TILE ? left : t.n_tiles * QN_TILE;
}

// sums = the run of tiles of each entry's expert times the entry's row. The sums after an expert's
// last are those of the next, and written after them.
static void expert_sums(float (*sums)[QN_PANEL], const work *w, const choices *c,
                        const qn_packed *weight, run t) {
    const int64_t per_matrix = weight->matrix_bytes / weight->tile_bytes;
    for (int64_t e = 0; e < c->n_experts; e++) {
        const int64_t first = w->first[e];
        const product p = {.sums = sums + first,
                           .w = weight,
                           .tile = e * per_matrix + t.tile,
                           .n_tiles = t.n_tiles,
                           .rows = w->some,
                           .n_rows = w->first[e + 1] - first,
                           .form = c->x->form};
        if (!p.n_rows) continue;
        memcpy(w->some, w->rows + first, (size_t)p.n_rows * sizeof *w->some);
        panel_sums(&p, w->room);
    }
}

// Stores the sums of a run of tiles as (T, N, O).
static void put_entries(const qn_operand *out, const work *w, const choices *c, run t) {
    const int64_t n = (c->rows.end - c->rows.first) * c->n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t entry = w->order[i];
        float *to = part_of(out, c->rows.first + entry / c->n, entry % c->n);
        memcpy(to + t.tile * QN_TILE, w->sums[i], (size_t)outputs_of(t, out->width) * sizeof *to);
    }
}

// x (T, I) or (T, N, I), w (X, O, I), ids (T, N) -> (T, N, O)
void QN_FN(grouped)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_packed *weight = task->in[1].packed;
    const qn_tile_cut cut = qn_cpu_cut_grouped(task, piece);
    const choices c = {.x = &task->in[0],
                       .ids = &task->in[2],
                       .rows = cut.rows,
                       .n_experts = weight->n_matrices,
                       .n = task->in[2].width};
    const work w = lay_out(scratch, c.n_experts, c.n);
    if (cut.rows.first == cut.rows.end) return;
    sort_entries(&w, &c);
    for (int64_t at = cut.tiles.first; at < cut.tiles.end; at += QN_PANEL_TILES) {
        const run t = next_run(cut.tiles, at);
        expert_sums(w.sums, &w, &c, weight, t);
        put_entries(&task->out[0], &w, &c, t);
    }
}
