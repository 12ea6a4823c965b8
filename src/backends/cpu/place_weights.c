// Where the pages of weights lie, on machines with several nodes of memory.
//
// A call of one row is cut into pieces, these into shares of the threads (walk.h), and threads are
// divided among nodes: so the threads of a node read one stretch of every weight, and its pages are
// placed there. Which experts a step reads is known only then: theirs are spread over all nodes.
// Pages are moved where they are: packed in memory, or the page cache's own of a mapped file, which
// later opens find there.
#include "backends/cpu/executor.h"

#include "core/mem.h"

#include <stdint.h>

enum { PAGE = 4096 };

// Tiles of weight `i` that pieces first ... end - 1 read.
typedef qn_range tiles_fn(const qn_task *task, int i, int64_t first, int64_t end);

static qn_range side_by_side(const qn_task *task, int i, int64_t first, int64_t end) {
    const int64_t from = qn_cpu_cut_tiles(task, first).tiles.first;
    const int64_t to = qn_cpu_cut_tiles(task, end - 1).tiles.end;
    int64_t begin = 0;
    for (int k = 1; k < i; k++) begin += qn_packed_tiles(task->in[k].packed);
    const int64_t n = qn_packed_tiles(task->in[i].packed);
    return (qn_range){qn_min(qn_max(from - begin, 0), n), qn_min(qn_max(to - begin, 0), n)};
}

static qn_range tile_by_tile(const qn_task *task, int i, int64_t first, int64_t end) {
    (void)i;
    return (qn_range){qn_cpu_cut_gated(task, first).tiles.first,
                      qn_cpu_cut_gated(task, end - 1).tiles.end};
}

static qn_range runs_of_head(const qn_task *task, int i, int64_t first, int64_t end) {
    (void)i;
    return (qn_range){qn_cpu_cut_head(task, first).tiles.first,
                      qn_cpu_cut_head(task, end - 1).tiles.end};
}

// Calls that read all of their weights, in the order of their pieces; `tiles` NULL: those that read
// what a step chooses.
static const struct {
    int64_t (*pieces)(const qn_task *task, int64_t rows, int64_t cached);
    tiles_fn *tiles;
} rules[] = {
    {qn_cpu_pieces_tiles, side_by_side}, {qn_cpu_pieces_gated, tile_by_tile},
    {qn_cpu_pieces_head, runs_of_head},  {qn_cpu_pieces_grouped, NULL},
    {qn_cpu_pieces_experts_up, NULL},    {qn_cpu_pieces_experts_down, NULL},
};

typedef struct placing {
    const qn_pool *pool;
    const qn_numa *numa;
    bool has_failed;
} placing;

static void place(placing *p, uintptr_t from, uintptr_t to, uint64_t nodes) {
    if (to <= from || p->has_failed) return;
    p->has_failed =
        !p->numa->calls.place(p->numa->calls.arg, (void *)from, to - from, nodes); // NOLINT
}

static uintptr_t down(uintptr_t at) { return at / PAGE * PAGE; }
static uintptr_t up(uintptr_t at) { return (at + PAGE - 1) / PAGE * PAGE; }

// Whole pages: one that two nodes read is the first one's.
static void place_tiles(placing *p, const qn_packed *w, qn_range tiles, int memory) {
    const uintptr_t base = (uintptr_t)w->data;
    const uintptr_t from = base + (uintptr_t)(tiles.first * w->tile_bytes);
    const uintptr_t to = base + (uintptr_t)(tiles.end * w->tile_bytes);
    place(p, tiles.first ? up(from) : down(from), up(to), (uint64_t)1 << memory);
}

// All weights of a call, over all nodes that have threads.
static void spread(placing *p, const qn_task *task) {
    uint64_t nodes = 0;
    for (int k = 0; k < p->numa->n_nodes; k++) nodes |= (uint64_t)1 << p->numa->nodes[k].memory;
    for (int i = 1; i < QN_MAX_IN; i++) {
        const qn_packed *w = task->in[i].packed;
        if (!w || w->matrices || !w->data) continue;
        const uintptr_t from = (uintptr_t)w->data;
        place(p, down(from), up(from + (uintptr_t)qn_packed_bytes(w)), nodes);
    }
}

static void divide(placing *p, const qn_task *task, tiles_fn *tiles, int64_t n) {
    const int64_t n_shares = qn_pool_awake(p->pool);
    for (int k = 0; k < p->numa->n_nodes; k++) {
        const qn_pool_span threads = qn_pool_node(p->pool, k);
        const int64_t first = n * threads.first / n_shares, end = n * threads.end / n_shares;
        for (int i = 1; first < end && i < QN_MAX_IN && task->in[i].packed; i++) {
            if (task->in[i].packed->data)
                place_tiles(p, task->in[i].packed, tiles(task, i, first, end),
                            p->numa->nodes[k].memory);
        }
    }
}

void qn_cpu_place_call(bool *has_failed, const qn_pool *pool, const qn_kernel *kernel,
                       const qn_task *task) {
    placing p = {.pool = pool, .numa = qn_pool_numa(pool), .has_failed = *has_failed};
    if (!p.numa) return;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (kernel->pieces != rules[i].pieces) continue;
        if (!rules[i].tiles)
            spread(&p, task);
        else if (task->in[0].parts <= QN_FEW_ROWS) // else pieces are rows, too
            divide(&p, task, rules[i].tiles, kernel->pieces(task, 1, 1));
    }
    *has_failed = p.has_failed;
}

static qn_status describe(qn_packed *weights, const qn_plan *plan, const void *const *data,
                          qn_err *err) {
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_PARAM]; i++) {
        const qn_plan_leaf *leaf = &plan->leaves[QN_PLACE_PARAM][i];
        if (leaf->layout != QN_WORD_tiles) continue;
        QN_TRY(qn_cpu_describe(&weights[i], leaf, err));
        weights[i].data = data[i];
    }
    return QN_OK;
}

// What the rules above ask of a call of one row.
static qn_task task_of(const qn_plan_call *call, const qn_plan *plan, const qn_packed *weights) {
    qn_task task = {.attrs = &call->attrs, .rows = 1};
    for (int k = 0; k < call->n_in; k++) {
        const qn_plan_arg *arg = &call->in[k];
        task.in[k] = (qn_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
        if (arg->place == QN_PLACE_PARAM &&
            plan->leaves[QN_PLACE_PARAM][arg->index].layout == QN_WORD_tiles)
            task.in[k].packed = &weights[arg->index];
    }
    return task;
}

qn_status qn_cpu_place(bool *is_placed, qn_device *device, const qn_plan *plan,
                       const void *const *data, qn_err *err) {
    const qn_cpu_level *level = ((const qn_cpu_device *)device)->level;
    bool has_failed = false;
    *is_placed = true;
    if (!qn_pool_numa(device->pool)) return QN_OK;
    qn_packed *weights = qn_alloc(plan->n_leaves[QN_PLACE_PARAM], sizeof *weights);
    if (!weights) return QN_NOMEM(err, "weights");
    const qn_status status = describe(weights, plan, data, err);
    for (size_t i = 0; i < plan->n_calls && !status; i++) {
        const qn_plan_call *call = &plan->calls[i];
        const qn_recipe *recipe = &level->backend.recipes[call->op];
        if (call->stage < 0 || call->stage >= recipe->n_stages) continue;
        const qn_task task = task_of(call, plan, weights);
        qn_cpu_place_call(&has_failed, device->pool, &level->kernels[recipe->stages[call->stage]],
                          &task);
    }
    qn_free(weights);
    *is_placed = !has_failed;
    return status;
}
