// Matmuls by chosen experts. The choices of a group of rows are sorted by expert, so that all of
// them share a tile once it is unpacked.
#include "backends/cpu/level/act.h"
#include "backends/cpu/level/panel.h"
#include "backends/cpu/level/route.h"
#include "backends/cpu/level/tile.h"

// What a thread lends (expert_scratch in pieces_tiles.c), for n = rows * choices entries. Entry i
// is choice i % choices of row i / choices of the group.
typedef struct work {
    tile_block *block;
    float (*sums)[QN_TILE], (*more)[QN_TILE]; // (n, 16), sorted by expert
    const void **rows;                        // (n) addresses, sorted by expert
    int32_t *order;                           // (n) entries, sorted by expert
    int32_t *first;                           // (experts + 1) where an expert's entries begin
} work;

static work lay_out(void *scratch, int64_t n_experts, int64_t choices) {
    const int64_t n = qn_cpu_expert_rows(n_experts, choices) * choices;
    unsigned char *at = (unsigned char *)scratch + qn_round_up((int64_t)sizeof(tile_block), 64);
    work w = {.block = scratch, .sums = (float(*)[QN_TILE])at};
    w.more = w.sums + n;
    w.rows = (const void **)(w.more + n);
    w.order = (int32_t *)(w.rows + n);
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

// sums = tile `tile` of each entry's expert times the entry's row.
static void expert_sums(float (*sums)[QN_TILE], const work *w, const choices *c,
                        const qn_packed *weight, int64_t tile) {
    const int64_t per_matrix = weight->matrix_bytes / weight->tile_bytes;
    for (int64_t e = 0; e < c->n_experts; e++) {
        const int64_t first = w->first[e], n = w->first[e + 1] - first;
        if (n)
            tile_sums(sums[first], w->block, weight, e * per_matrix + tile, w->rows + first, n,
                      c->x->form);
    }
}

// Stores the sums of a tile as (T, N, O).
static void put_entries(const qn_operand *out, const work *w, const choices *c, int64_t tile) {
    const int64_t n = (c->rows.end - c->rows.first) * c->n, left = out->width - tile * QN_TILE;
    for (int64_t i = 0; i < n; i++) {
        const int64_t entry = w->order[i];
        float *to = part_of(out, c->rows.first + entry / c->n, entry % c->n);
        memcpy(to + tile * QN_TILE, w->sums[i],
               (size_t)(left < QN_TILE ? left : QN_TILE) * sizeof *to);
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
    for (int64_t t = cut.tiles.first; t < cut.tiles.end; t++) {
        expert_sums(w.sums, &w, &c, weight, t);
        put_entries(&task->out[0], &w, &c, t);
    }
}

// --- experts: x (T, D), scores (T, X), gate, up (X, F, D), down (X, D, F) ---

enum { IDS, WEIGHTS, GATED, PACKED }; // its temporary values

void QN_FN(experts_route)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *scores = &task->in[1];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        route_row(row_of(&task->temp[IDS], r), row_of(&task->temp[WEIGHTS], r), row_of(scores, r),
                  scores->width, task->attrs, scratch);
}

void QN_FN(experts_up)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_packed *gate = task->in[2].packed, *up = task->in[3].packed;
    const qn_tile_cut cut = qn_cpu_cut_experts_up(task, piece);
    const choices c = {.x = &task->in[0],
                       .ids = &task->temp[IDS],
                       .rows = cut.rows,
                       .n_experts = gate->n_matrices,
                       .n = task->attrs->top};
    const work w = lay_out(scratch, c.n_experts, c.n);
    if (cut.rows.first == cut.rows.end) return;
    sort_entries(&w, &c);
    for (int64_t t = cut.tiles.first; t < cut.tiles.end; t++) {
        expert_sums(w.sums, &w, &c, gate, t);
        expert_sums(w.more, &w, &c, up, t);
        gate_rows(w.sums[0], w.more[0], (cut.rows.end - cut.rows.first) * c.n, task->attrs->act);
        put_entries(&task->temp[GATED], &w, &c, t);
    }
}

void QN_FN(experts_quantize)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *from = &task->temp[GATED], *to = &task->temp[PACKED];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < from->parts; p++)
            quantize_row(to->form, part_of(to, r, p), part_of(from, r, p), from->width);
    }
}

// As COMBINE: from 0, one fma per expert in routing order. w->more gets the sums by entry.
static void combine_rows(const qn_task *task, const work *w, const choices *c, int64_t tile) {
    const int64_t n_rows = c->rows.end - c->rows.first, left = task->out[0].width - tile * QN_TILE;
    for (int64_t i = 0; i < n_rows * c->n; i++)
        memcpy(w->more[w->order[i]], w->sums[i], sizeof w->sums[i]);
    for (int64_t r = 0; r < n_rows; r++) {
        const float *weights = row_of(&task->temp[WEIGHTS], c->rows.first + r);
        float sum[QN_TILE] = {0};
        for (int64_t k = 0; k < c->n; k++) {
            for (int o = 0; o < QN_TILE; o++)
                sum[o] = __builtin_fmaf(weights[k], w->more[r * c->n + k][o], sum[o]);
        }
        float *to = row_of(&task->out[0], c->rows.first + r);
        memcpy(to + tile * QN_TILE, sum, (size_t)(left < QN_TILE ? left : QN_TILE) * sizeof *to);
    }
}

void QN_FN(experts_down)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_packed *down = task->in[4].packed;
    const qn_tile_cut cut = qn_cpu_cut_experts_down(task, piece);
    const choices c = {.x = &task->temp[PACKED],
                       .ids = &task->temp[IDS],
                       .rows = cut.rows,
                       .n_experts = down->n_matrices,
                       .n = task->attrs->top};
    const work w = lay_out(scratch, c.n_experts, c.n);
    if (cut.rows.first == cut.rows.end) return;
    sort_entries(&w, &c);
    for (int64_t t = cut.tiles.first; t < cut.tiles.end; t++) {
        expert_sums(w.sums, &w, &c, down, t);
        combine_rows(task, &w, &c, t);
    }
}
