// Logits of the vocabulary, and the top logits of each row. Each run of panels finds its own while
// the sums are in the cache; a second stage merges them. Rows whose logits nobody wants are never
// stored.
#include "backends/cpu/kernels/dense.h"
#include "backends/kernel_math.h"

#include <math.h>

// Of some logits of a row, in ascending order of ids (see ref_fused.c): the min, or the first that
// is not finite; its id, or -1; the top logits, and their ids.
typedef struct list {
    float *min, *broken;
    float *logits, *ids; // (top)
    int64_t top;
} list;

static list list_at(float *room, int64_t top, int64_t max) {
    return (list){room, room + 1, room + 2, room + 2 + max, top};
}

// Top logits wanted of a row.
static int64_t wanted_top(const qn_task *task) {
    const int64_t max = task->attrs->top;
    return task->step->top > 0 && task->step->top < max ? task->step->top : max;
}

// The first n ids of all ranks, as ids of this one, none if they end before it; n 0: all of them.
static int64_t first_ids(const qn_task *task, int64_t n) {
    return n > 0 ? qn_max(n - task->attrs->start, 0) : INT64_MAX;
}

static bool is_full(const qn_task *task, int64_t row) {
    return !task->step->out_full || task->step->out_full[row];
}

static void clear(const list *l, int64_t max) {
    *l->min = INFINITY;
    *l->broken = -1;
    for (int64_t k = 0; k < max; k++) {
        l->logits[k] = -INFINITY;
        l->ids[k] = -1;
    }
}

// For a logit that is above the last of the list. Ids ascend: among equals it is the last.
static void insert(const list *l, float logit, float id) {
    int64_t at = l->top - 1;
    for (; at > 0 && logit > l->logits[at - 1]; at--) {
        l->logits[at] = l->logits[at - 1];
        l->ids[at] = l->ids[at - 1];
    }
    l->logits[at] = logit;
    l->ids[at] = id;
}

static void add_to_range(const list *l, float logit, int64_t id) {
    if (*l->broken < 0) {
        const bool is_finite = logit - logit == 0;
        if (!is_finite) {
            *l->min = logit != logit ? NAN : logit; // of no sign
            *l->broken = (float)id;
        } else if (logit < *l->min) {
            *l->min = logit;
        }
    }
}

static void add_logit(const list *l, float logit, int64_t id) {
    add_to_range(l, logit, id);
    if (logit > l->logits[l->top - 1]) insert(l, logit, (float)id);
}

// Adds n logits of ids first, first + 1, ... There is room for up to 15 more after them. Most
// panels change nothing, which a few comparisons of vectors show.
static void add_logits(const list *l, float *logits, int64_t n, int64_t first) {
    const f32v worst = all_f32(l->logits[l->top - 1]), min = all_f32(*l->min);
    i32v news = {0};
    for (int64_t i = n; i % QN_TILE; i++) logits[i] = logits[0];
    for (int64_t i = 0; i < n; i += QN_LANES) {
        const f32v x = load_f32(logits + i);
        news |= (x > worst) | (x < min) | (x * 0 != 0); // the last: not finite
    }
    int32_t any = 0;
    for (int j = 0; j < QN_LANES; j++) any |= news[j];
    if (!any) return;
    for (int64_t i = 0; i < n; i++) add_logit(l, logits[i], first + i);
}

// The same where only ids below `max` can be top logits: few panels, at the end of a row.
static void add_some(const list *l, const float *logits, int64_t n, int64_t first, int64_t max) {
    for (int64_t i = 0; i < n; i++)
        (first + i < max ? add_logit : add_to_range)(l, logits[i], first + i);
}

// The lists of a run lie one after the other in a row of the temporary.
static list run_list(const qn_task *task, int64_t row, int64_t run) {
    const int64_t top = wanted_top(task);
    return list_at((float *)row_of(&task->temp[0], row) + run * (2 + 2 * top), top, top);
}

static void cap_logits(float *logits, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i++) logits[i] = cap * math_tanh(logits[i] / cap);
}

// The n logits from id `at` on of all rows: into the lists, and to the rows that are wanted.
static void take_logits(const qn_task *task, const qn_head_cut *cut, float (*sums)[QN_PANEL],
                        int64_t at, int64_t n, int64_t max) {
    for (int64_t r = cut->rows.first; r < cut->rows.end; r++) {
        float *logits = sums[r - cut->rows.first];
        const list l = run_list(task, r, cut->run);
        if (task->attrs->cap > 0) cap_logits(logits, n, task->attrs->cap);
        if (at + n <= max)
            add_logits(&l, logits, n, at);
        else
            add_some(&l, logits, n, at, max);
        if (is_full(task, r))
            memcpy((float *)row_of(&task->out[0], r) + at, logits, (size_t)n * sizeof *logits);
    }
}

// x (R, I), w (O, I) -> out[0] (R, O) where it is wanted, and what the run found.
void QN_FN(head_logits)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_head_cut cut = qn_cpu_cut_head(task, piece);
    const work room = lay_out(scratch, task);
    product p = {.sums = room.sums,
                 .panel_rows = room.panel_rows,
                 .w = task->in[1].packed,
                 .rows = room.rows,
                 .n_rows = cut.rows.end - cut.rows.first,
                 .form = task->in[0].form};
    // Only ids below `max` can be top logits; the others are still checked for faults.
    const int64_t max = first_ids(task, task->step->entries);
    const int64_t computed = first_ids(task, task->step->computed);
    if (!p.n_rows) return;
    find_rows(room.rows, &task->in[0], cut.rows);
    for (int64_t r = cut.rows.first; r < cut.rows.end; r++) {
        const list l = run_list(task, r, cut.run);
        clear(&l, l.top);
    }
    for (p.tile = cut.tiles.first; p.tile < cut.tiles.end; p.tile += p.n_tiles) {
        if (p.tile * QN_TILE >= computed) break;
        p.n_tiles = qn_min(cut.tiles.end - p.tile, tiles_at_once(&p));
        panel_sums(&p, room.room);
        for (int64_t t = 0; t < p.n_tiles; t += QN_PANEL_TILES) {
            const int64_t at = (p.tile + t) * QN_TILE;
            const int64_t n = qn_min(outputs_of_panel(&p, t), computed - at);
            if (n > 0) take_logits(task, &cut, panel_of(&p, t), at, n, max);
        }
    }
}

// Runs ascend, so that equal logits stay in the order of their ids.
static void merge(const list *to, const list *from) {
    if (*to->broken < 0 && (*from->broken >= 0 || *from->min < *to->min)) {
        *to->min = *from->min;
        *to->broken = *from->broken;
    }
    for (int64_t k = 0; k < from->top && from->logits[k] > to->logits[to->top - 1]; k++)
        insert(to, from->logits[k], from->ids[k]);
}

// What the runs found -> out[1] (R, 2 + 2 top)
void QN_FN(head_merge)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const int64_t runs = qn_cpu_head_runs(task), max = task->attrs->top;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        const list to = list_at(row_of(&task->out[1], r), wanted_top(task), max);
        clear(&to, max);
        for (int64_t i = 0; i < runs; i++) {
            const list from = run_list(task, r, i);
            merge(&to, &from);
        }
    }
}
