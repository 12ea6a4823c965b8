// Experts: route, gated feed-forward of each chosen expert, and their sum.
//
// An entry is choice k of row r: number r * N + k. Entries are sorted by expert; a piece then has
// all rows of one expert and some of its tiles, so that each used expert is read once in a step.
#include "backends/cpu/kernels/act.h"
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/route.h"
#include "backends/cpu/kernels/tile_products.h"

// x (T, D), scores (T, X), gate, up (X, F, D), down (X, D, F)
enum { X_ROWS, SCORES, GATE, UP, DOWN };

// What a thread lends (qn_cpu_scratch_experts), for some rows of one expert.
typedef struct work {
    panel_room *room;
    float (*sums)[QN_PANEL], (*more)[QN_PANEL]; // (QN_EXPERT_ROWS + QN_SPARE_ROWS)
    const void **rows;                          // (QN_EXPERT_ROWS + QN_SPARE_ROWS) addresses
} work;

static work lay_out(void *scratch) {
    const int64_t n = QN_EXPERT_ROWS + QN_SPARE_ROWS;
    work w = {.room = scratch};
    w.sums = (float(*)[QN_PANEL])(w.room + 1);
    w.more = w.sums + n;
    w.rows = (const void **)(w.more + n);
    return w;
}

static int64_t choices_of(const qn_task *task) { return task->attrs->top; }

void QN_FN(experts_route)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *scores = &task->in[SCORES];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        route_row(row_of(&task->temp[QN_EXPERTS_IDS], r),
                  row_of(&task->temp[QN_EXPERTS_WEIGHTS], r), row_of(scores, r), scores->width,
                  task->attrs, scratch);
}

// Counting sort; entries of one expert stay in their order.
void QN_FN(experts_sort)(const qn_task *task, int64_t piece, void *scratch) {
    (void)piece, (void)scratch;
    const int64_t n_experts = task->in[SCORES].width, n = choices_of(task);
    const qn_operand *ids = &task->temp[QN_EXPERTS_IDS];
    if (task->rows == 0) return;
    const qn_expert_lists lists = qn_cpu_expert_lists(task);
    memset(lists.first, 0, (size_t)(n_experts + 1) * sizeof *lists.first);
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t k = 0; k < n; k++) lists.first[((int32_t *)row_of(ids, r))[k] + 1]++;
    }
    for (int64_t e = 0; e < n_experts; e++) lists.first[e + 1] += lists.first[e];
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t k = 0; k < n; k++) {
            const int32_t at = lists.first[((int32_t *)row_of(ids, r))[k]]++;
            *qn_cpu_expert_entry(task, at) = (int32_t)(r * n + k);
        }
    }
    for (int64_t e = n_experts; e > 0; e--) lists.first[e] = lists.first[e - 1];
    lists.first[0] = 0;
    int32_t n_used = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        if (lists.first[e + 1] > lists.first[e]) lists.used[n_used++] = (int32_t)e;
    }
    *lists.n_used = n_used;
}

// Some tiles of an expert, for some of its entries.
typedef struct part {
    const qn_task *task;
    int64_t first, n;      // in the sorted list
    int64_t tile, n_tiles; // at most QN_PANEL_TILES
    int32_t expert;
} part;

static void expert_sums(float (*sums)[QN_PANEL], const work *w, const part *p,
                        const qn_operand *weight, qn_word form) {
    qn_packed one = *weight->packed;
    one.data = qn_packed_matrix(weight->packed, p->expert);
    const product all = {.sums = sums,
                         .w = &one,
                         .tile = p->tile,
                         .n_tiles = p->n_tiles,
                         .rows = w->rows,
                         .n_rows = p->n,
                         .form = form};
    panel_sums(&all, w->room);
}

// Stores sums as (T, N, W).
static void put_entries(const qn_operand *to, const work *w, const part *p) {
    const int64_t choices = choices_of(p->task), left = to->width - p->tile * QN_TILE;
    const int64_t n = left < p->n_tiles * QN_TILE ? left : p->n_tiles * QN_TILE;
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t entry = *qn_cpu_expert_entry(p->task, p->first + i);
        float *row = part_of(to, entry / choices, entry % choices);
        memcpy(row + p->tile * QN_TILE, w->sums[i], (size_t)n * sizeof *row);
    }
}

// The rows of x that the entries read: one for all choices, or one for each.
static void find_rows(const work *w, const part *p, const qn_operand *x) {
    const int64_t choices = choices_of(p->task);
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t entry = *qn_cpu_expert_entry(p->task, p->first + i);
        w->rows[i] = part_of(x, entry / choices, x->parts > 1 ? entry % choices : 0);
    }
}

static void run_up(const work *w, const part *p) {
    const qn_task *task = p->task;
    const qn_word form = task->in[X_ROWS].form;
    expert_sums(w->sums, w, p, &task->in[GATE], form);
    expert_sums(w->more, w, p, &task->in[UP], form);
    gate_rows(w->sums, w->more, p->n, p->n_tiles * QN_TILE, task->attrs->act);
    put_entries(&task->temp[QN_EXPERTS_GATED], w, p);
}

static void run_down(const work *w, const part *p) {
    const qn_operand *x = &p->task->temp[QN_EXPERTS_PACKED];
    expert_sums(w->sums, w, p, &p->task->in[DOWN], x->form);
    put_entries(&p->task->temp[QN_EXPERTS_EACH], w, p);
}

// Runs a piece: all entries of its expert, at most QN_EXPERT_ROWS at a time.
static void run_parts(const qn_task *task, qn_expert_cut cut, const qn_operand *x, void *scratch,
                      void (*run)(const work *w, const part *p)) {
    if (cut.expert < 0) return;
    const work w = lay_out(scratch);
    const qn_expert_lists lists = qn_cpu_expert_lists(task);
    const int64_t end = lists.first[cut.expert + 1];
    for (int64_t at = lists.first[cut.expert]; at < end; at += QN_EXPERT_ROWS) {
        part p = {.task = task, .first = at, .n = end - at, .expert = cut.expert};
        if (p.n > QN_EXPERT_ROWS) p.n = QN_EXPERT_ROWS;
        find_rows(&w, &p, x);
        for (p.tile = cut.tiles.first; p.tile < cut.tiles.end; p.tile += QN_PANEL_TILES) {
            const int64_t left = cut.tiles.end - p.tile;
            p.n_tiles = left < QN_PANEL_TILES ? left : QN_PANEL_TILES;
            run(&w, &p);
        }
    }
}

void QN_FN(experts_up)(const qn_task *task, int64_t piece, void *scratch) {
    run_parts(task, qn_cpu_cut_experts_up(task, piece), &task->in[X_ROWS], scratch, run_up);
}

void QN_FN(experts_quantize)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *from = &task->temp[QN_EXPERTS_GATED], *to = &task->temp[QN_EXPERTS_PACKED];
    const qn_range entries = qn_cpu_cut_experts_entries(task, piece);
    const int64_t n = choices_of(task);
    for (int64_t i = entries.first; i < entries.end; i++) {
        const int64_t entry = *qn_cpu_expert_entry(task, i);
        quantize_row(to->form, part_of(to, entry / n, entry % n),
                     part_of(from, entry / n, entry % n), from->width);
    }
}

void QN_FN(experts_down)(const qn_task *task, int64_t piece, void *scratch) {
    run_parts(task, qn_cpu_cut_experts_down(task, piece), &task->temp[QN_EXPERTS_PACKED], scratch,
              run_down);
}

// As COMBINE: from 0, one fma per expert in routing order.
void QN_FN(experts_combine)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *each = &task->temp[QN_EXPERTS_EACH];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        combine_row(row_of(&task->out[0], r), each, r, row_of(&task->temp[QN_EXPERTS_WEIGHTS], r));
}
