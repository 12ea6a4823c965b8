#include "backends/cpu/executor.h"

#include "backends/cpu/walk.h"
#include "core/mem.h"

#include <string.h>

enum { ALIGN = 64 };

// An operand that comes with each step: a field of its message, or rows that are given.
typedef struct task_input {
    qn_operand *to;
    qn_step_field field; // QN_STEP_FIELDS: given
    const char *name;    // of the leaf
} task_input;

// The stages of EXPERTS (recipes.def) that read weights, and those between them: run once for every
// group of experts that is brought.
enum { FIRST_READING = 2, LAST_READING = 4 };

// An EXPERTS call whose experts are brought.
typedef struct paged_call {
    size_t first, end; // its calls that are run for each group
    int32_t layer;     // of the pager
} paged_call;

// A plan: its tasks point into the executor's own memory.
typedef struct bound_plan {
    const qn_plan *plan; // NULL: none
    qn_task *tasks;      // (n_calls)
    const qn_kernel **kernels;
    qn_packed *weights; // (PARAM leaves) those in tiles
    qn_bindings *bindings;
    const qn_pager *pager; // NULL: all weights are there
    paged_call *paged;     // (n_paged) in the order of the calls
    size_t n_paged;
    int32_t *wanted, *wanted_rows; // (max experts) of a paged call, and rows for each
    task_input *inputs;            // (n_inputs)
    size_t n_inputs;
    const qn_binding *bound; // that the tasks point to now; NULL: none
    uint64_t bound_made;     // which making of it: bindings are reused
} bound_plan;

// Memory that starts at a cache line.
typedef struct block {
    void *base;
    unsigned char *data;
} block;

typedef struct executor {
    qn_program head;
    const qn_cpu_level *level;
    qn_program_opts opts;
    bound_plan plans[QN_PROGRAM_PLANS];
    bound_plan *last; // of the last step
    qn_step step;
    qn_walk walk;
    block arena, scratch, shared;
} executor;

static executor *of(const qn_program *program) { return (executor *)(uintptr_t)program; }

// --- operands ------------------------------------------------------------------------------------

static void bind_input(qn_operand *to, bound_plan *p, const qn_plan_leaf *leaf) {
    to->stride = to->parts * to->width * (int64_t)sizeof(float); // as wide as int32_t
    p->inputs[p->n_inputs++] =
        (task_input){.to = to, .field = qn_step_find_field(leaf->name), .name = leaf->name};
}

// Everything of an argument but the address of a buffer, which depends on the binding.
static void bind_fixed(qn_task *task, qn_operand *to, bound_plan *p, const qn_program_plan *from,
                       const qn_plan_arg *arg) {
    const qn_plan *plan = from->plan;
    *to = (qn_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
    if (arg->place == QN_PLACE_PARAM) {
        const bool is_tiled = plan->leaves[QN_PLACE_PARAM][arg->index].layout == QN_WORD_tiles;
        if (is_tiled)
            to->packed = &p->weights[arg->index];
        else if (from->weights)
            to->data = (void *)(uintptr_t)from->weights[arg->index];
    }
    if (arg->place == QN_PLACE_CONST)
        to->data = (void *)(uintptr_t)plan->leaves[QN_PLACE_CONST][arg->index].data;
    if (arg->place == QN_PLACE_INPUT) bind_input(to, p, &plan->leaves[QN_PLACE_INPUT][arg->index]);
    if (arg->place == QN_PLACE_CACHE) task->cache = from->caches[arg->index];
    if (arg->place == QN_PLACE_STATE) task->slots = from->slots[arg->index];
    if (arg->place == QN_PLACE_BUFFER) {
        const qn_plan_buffer *buffer = &plan->buffers[arg->index];
        to->stride = buffer->rows.sym == QN_SYM_ONE ? 0 : buffer->row_bytes;
    }
}

static qn_status bind_call(const executor *x, bound_plan *p, const qn_program_plan *from, size_t i,
                           qn_err *err) {
    const qn_plan_call *call = &from->plan->calls[i];
    const qn_recipe *recipe = &x->level->backend.recipes[call->op];
    qn_task *task = &p->tasks[i];
    if (call->stage < 0 || call->stage >= recipe->n_stages)
        return QN_FAIL(err, FORMAT, "call %zu: stage %d of %s, which has %d", i, call->stage,
                       qn_op_get(call->op)->name, recipe->n_stages);
    p->kernels[i] = &x->level->kernels[recipe->stages[call->stage]];
    task->attrs = &call->attrs;
    task->step = &x->step;
    task->has_unit = x->level->has_unit;
    if (qn_call_gathers(call)) task->gather = x->opts.gather;
    for (int k = 0; k < call->n_in; k++) bind_fixed(task, &task->in[k], p, from, &call->in[k]);
    for (int k = 0; k < call->n_out; k++) bind_fixed(task, &task->out[k], p, from, &call->out[k]);
    for (int k = 0; k < call->n_temp; k++)
        bind_fixed(task, &task->temp[k], p, from, &call->temp[k]);
    return QN_OK;
}

// The weights in tiles, as kernels see them.
static qn_status bind_weights(bound_plan *p, const qn_program_plan *from, qn_err *err) {
    const qn_plan *plan = from->plan;
    const size_t n = plan->n_leaves[QN_PLACE_PARAM];
    p->weights = qn_alloc(n, sizeof *p->weights);
    if (!p->weights) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < n; i++) {
        const qn_plan_leaf *leaf = &plan->leaves[QN_PLACE_PARAM][i];
        if (leaf->layout != QN_WORD_tiles) continue;
        QN_TRY(qn_cpu_describe(&p->weights[i], leaf, err));
        if (from->weights) p->weights[i].data = from->weights[i];
        int32_t layer;
        if (from->pager)
            (void)from->pager->find(from->pager->arg, leaf->name, &layer, &p->weights[i].matrices);
    }
    return QN_OK;
}

// Whether an argument of a call is brought; then by which layer.
static bool find_paged(int32_t *layer, const bound_plan *p, const qn_plan_arg *arg) {
    const unsigned char *const *places;
    return arg->place == QN_PLACE_PARAM &&
           p->pager->find(p->pager->arg, p->plan->leaves[QN_PLACE_PARAM][arg->index].name, layer,
                          &places);
}

// Lists the calls whose experts are brought. Other ops have no way to wait for them.
static qn_status bind_pager(bound_plan *p, const qn_program_plan *from, qn_err *err) {
    int64_t most = 1;
    if (!from->pager) return QN_OK;
    p->pager = from->pager;
    p->paged = qn_alloc(p->plan->n_calls, sizeof *p->paged);
    if (!p->paged) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        int32_t layer = -1;
        bool is_paged = false;
        for (int k = 0; k < call->n_in; k++) is_paged |= find_paged(&layer, p, &call->in[k]);
        if (!is_paged) continue;
        if (call->op != QN_OP_EXPERTS)
            return QN_FAIL(err, UNSUPPORTED, "%s reads weights of which not all experts are loaded",
                           qn_op_get(call->op)->name);
        if (call->stage == FIRST_READING)
            p->paged[p->n_paged++] = (paged_call){i, i + 1 + LAST_READING - FIRST_READING, layer};
        most = qn_max(most, call->in[1].width);
    }
    p->wanted = qn_alloc((size_t)most, 2 * sizeof *p->wanted);
    if (!p->wanted) return QN_NOMEM(err, "plan");
    p->wanted_rows = p->wanted + most;
    return QN_OK;
}

static void point(qn_operand *to, const executor *x, const bound_plan *p, const qn_plan_arg *arg) {
    if (arg->place == QN_PLACE_BUFFER)
        to->data = x->arena.data + p->bound->offsets[arg->index] + arg->offset;
}

// The addresses of a binding.
static void point_all(executor *x, bound_plan *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        qn_task *task = &p->tasks[i];
        for (int k = 0; k < call->n_in; k++) point(&task->in[k], x, p, &call->in[k]);
        for (int k = 0; k < call->n_out; k++) point(&task->out[k], x, p, &call->out[k]);
        for (int k = 0; k < call->n_temp; k++) point(&task->temp[k], x, p, &call->temp[k]);
    }
}

// --- creation ------------------------------------------------------------------------------------

static qn_status init_plan(executor *x, bound_plan *p, const qn_program_plan *from, qn_err *err) {
    const qn_plan *plan = from->plan;
    p->plan = plan;
    p->tasks = qn_alloc(plan->n_calls, sizeof *p->tasks);
    p->kernels = qn_alloc(plan->n_calls, sizeof *p->kernels);
    p->inputs = qn_alloc(qn_plan_inputs(plan), sizeof *p->inputs);
    if (!p->tasks || !p->kernels || !p->inputs) return QN_NOMEM(err, "plan");
    QN_TRY(bind_weights(p, from, err));
    QN_TRY(bind_pager(p, from, err));
    for (size_t i = 0; i < plan->n_calls; i++) QN_TRY(bind_call(x, p, from, i, err));
    const qn_bindings_opts opts = {.plan = plan,
                                   .tasks = p->tasks,
                                   .kernels = p->kernels,
                                   .policy = from->policy,
                                   .capacity = from->capacity,
                                   .max = x->opts.max};
    return qn_bindings_create(&p->bindings, &opts, err);
}

static void free_plan(bound_plan *p) {
    qn_bindings_destroy(p->bindings);
    qn_free(p->tasks);
    qn_free(p->kernels);
    qn_free(p->weights);
    qn_free(p->paged);
    qn_free(p->wanted);
    qn_free(p->inputs);
}

static bool block_init(block *to, int64_t bytes) {
    size_t size;
    if (!qn_size_add(&size, (size_t)bytes, ALIGN)) return false;
    to->base = qn_alloc(size, 1);
    if (!to->base) return false;
    to->data = (unsigned char *)(((uintptr_t)to->base + ALIGN - 1) / ALIGN * ALIGN);
    return true;
}

// Bytes of scratch that one thread needs.
static int64_t thread_scratch(const executor *x) {
    int64_t scratch = 0;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const bound_plan *p = &x->plans[i];
        if (p->plan) scratch = qn_max(scratch, qn_bindings_scratch(p->bindings));
    }
    return (scratch + ALIGN - 1) / ALIGN * ALIGN;
}

// Bytes that the pieces of a call share, one call after the other.
static int64_t shared_bytes(const executor *x) {
    int64_t shared = 0;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const bound_plan *p = &x->plans[i];
        if (p->plan) shared = qn_max(shared, qn_bindings_shared(p->bindings));
    }
    return shared;
}

qn_program_size qn_cpu_program_measure(const qn_program *program) {
    const executor *x = of(program);
    const int64_t n_threads = qn_pool_threads(x->head.device->pool);
    qn_program_size size = {.scratch = thread_scratch(x) * n_threads + shared_bytes(x)};
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const bound_plan *p = &x->plans[i];
        if (!p->plan) continue;
        size.arena = qn_max(size.arena, qn_bindings_arena(p->bindings));
        size.tables += (int64_t)(p->plan->n_calls * (sizeof(qn_task) + sizeof(qn_kernel *)));
    }
    return size;
}

static qn_status init_memory(executor *x, qn_err *err) {
    const int n_threads = qn_pool_threads(x->head.device->pool);
    const int64_t scratch = thread_scratch(x);
    size_t n_calls = 0;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const qn_plan *plan = x->plans[i].plan;
        if (plan && plan->n_calls > n_calls) n_calls = plan->n_calls;
    }
    x->walk = (qn_walk){.scratch_bytes = scratch,
                        .n_shares = qn_pool_awake(x->head.device->pool),
                        .go_on = x->opts.go_on,
                        .go_on_arg = x->opts.go_on_arg};
    x->walk.taken = qn_alloc(n_calls * (size_t)x->walk.n_shares, sizeof *x->walk.taken);
    x->walk.done = qn_alloc(n_calls, sizeof *x->walk.done);
    if (x->opts.is_timed) x->walk.times = qn_alloc(n_calls, sizeof *x->walk.times);
    if (!x->walk.taken || !x->walk.done || (x->opts.is_timed && !x->walk.times) ||
        !block_init(&x->arena, qn_cpu_program_measure(&x->head).arena) ||
        !block_init(&x->scratch, scratch * n_threads) || !block_init(&x->shared, shared_bytes(x)))
        return QN_NOMEM(err, "activations");
    x->walk.scratch = x->scratch.data;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        for (size_t c = 0; x->plans[i].plan && c < x->plans[i].plan->n_calls; c++)
            x->plans[i].tasks[c].shared = x->shared.data;
    }
    return qn_gate_create(&x->walk.gate, err);
}

void qn_cpu_program_release(qn_program *program) {
    executor *x = of(program);
    if (!x) return;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) free_plan(&x->plans[i]);
    qn_gate_destroy(x->walk.gate);
    qn_free(x->walk.taken);
    qn_free(x->walk.done);
    qn_free(x->walk.times);
    qn_free(x->arena.base);
    qn_free(x->scratch.base);
    qn_free(x->shared.base);
    qn_free(x);
}

qn_status qn_cpu_program_prepare(qn_program **out, qn_device *device, const qn_program_opts *opts,
                                 qn_err *err) {
    executor *x = qn_alloc(1, sizeof *x);
    if (!x) return QN_NOMEM(err, "plan");
    x->head.device = device;
    x->level = ((const qn_cpu_device *)device)->level;
    x->opts = *opts;
    qn_status status = qn_program_check_gather(opts, err);
    for (int i = 0; i < QN_PROGRAM_PLANS && !status; i++) {
        if (opts->plans[i].plan) status = init_plan(x, &x->plans[i], &opts->plans[i], err);
    }
    if (!status && !opts->is_measured) status = init_memory(x, err);
    if (status)
        qn_cpu_program_release(&x->head);
    else
        *out = &x->head;
    return status;
}

// --- steps ---------------------------------------------------------------------------------------

bool qn_cpu_program_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes) {
    executor *x = of(program);
    bound_plan *p = &x->plans[i];
    const qn_binding *bound = qn_bindings_get(p->bindings, sizes);
    if (!bound) return false;
    if (p->bound != bound || p->bound_made != bound->made) {
        p->bound = bound;
        p->bound_made = bound->made;
        point_all(x, p);
    }
    qn_step_view(&x->step, message);
    for (size_t k = 0; k < p->n_inputs; k++) {
        const task_input *input = &p->inputs[k];
        if (input->field < QN_STEP_FIELDS) input->to->data = qn_step_input(message, input->field);
    }
    const int64_t symbols[QN_SYM_COUNT] = {1, x->step.n_rows, x->step.n_segs, x->step.n_out};
    for (size_t c = 0; c < p->plan->n_calls; c++) {
        const qn_dim rows = p->plan->calls[c].rows;
        p->tasks[c].rows = rows.n * symbols[rows.sym];
    }
    x->walk.kernels = p->kernels;
    x->walk.tasks = p->tasks;
    x->walk.binding = bound;
    x->walk.n_calls = p->plan->n_calls;
    x->last = p;
    return true;
}

bool qn_cpu_program_give(qn_program *program, const char *input, const float *rows) {
    const bound_plan *p = of(program)->last;
    bool is_found = false;
    for (size_t k = 0; k < p->n_inputs; k++) {
        if (p->inputs[k].field < QN_STEP_FIELDS || strcmp(p->inputs[k].name, input) != 0) continue;
        p->inputs[k].to->data = (void *)(uintptr_t)rows;
        is_found = true;
    }
    return is_found;
}

// Runs the calls of a paged one for one group of experts after the other, as they come: rows of
// experts that are there are computed while others are brought. False: one could not be brought.
static bool run_paged(executor *x, const paged_call *call) {
    const bound_plan *p = x->last;
    const qn_task *task = &p->tasks[call->first];
    if (task->rows == 0) return true;
    const qn_expert_lists lists = qn_cpu_expert_lists(task);
    int32_t n = *lists.n_used;
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = lists.used[i];
        p->wanted[i] = e;
        p->wanted_rows[i] = lists.first[e + 1] - lists.first[e];
    }
    p->pager->begin(p->pager->arg, call->layer, p->wanted, p->wanted_rows, n);
    while ((n = p->pager->next(p->pager->arg, lists.used)) > 0) {
        *lists.n_used = n;
        qn_walk_run(&x->walk, x->head.device->pool, call->first, call->end);
    }
    return n == 0;
}

// Whether all calls so far ran whole: what was left out leaves no experts to bring.
static bool is_stopped(const qn_walk *walk) { return walk->go_on && !walk->go_on(walk->go_on_arg); }

void qn_cpu_program_run(qn_program *program) {
    executor *x = of(program);
    const bound_plan *p = x->last;
    size_t at = 0;
    qn_walk_reset(&x->walk);
    for (size_t i = 0; i < p->n_paged; i++) {
        qn_walk_run(&x->walk, x->head.device->pool, at, p->paged[i].first);
        if (is_stopped(&x->walk) || !run_paged(x, &p->paged[i])) return;
        at = p->paged[i].end;
    }
    qn_walk_run(&x->walk, x->head.device->pool, at, x->walk.n_calls);
}

void qn_cpu_program_wait(qn_program *program) { (void)program; } // `run` is done when it returns

const float *qn_cpu_program_row(const qn_program *program, const qn_plan_output *output,
                                int64_t row) {
    const executor *x = of(program);
    const qn_plan_arg *arg = &output->arg;
    const unsigned char *data = x->arena.data + x->last->bound->offsets[arg->index] + arg->offset;
    return (const float *)(const void *)(data + row * x->last->plan->buffers[arg->index].row_bytes);
}

void qn_cpu_program_counts(const qn_program *program, int64_t *hits, int64_t *misses) {
    const executor *x = of(program);
    *hits = *misses = 0;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        int64_t found, made;
        if (!x->plans[i].plan) continue;
        qn_bindings_counts(x->plans[i].bindings, &found, &made);
        *hits += found;
        *misses += made;
    }
}

// --- looking at a step ---------------------------------------------------------------------------

bool qn_cpu_program_times(const qn_program *program, size_t call, int64_t *begin_ns,
                          int64_t *end_ns) {
    const executor *x = of(program);
    if (!x->walk.times || x->last->bound->pieces[call] == 0) return false;
    *begin_ns = x->walk.times[call].begin;
    *end_ns = x->walk.times[call].end;
    return true;
}

void qn_cpu_program_run_call(qn_program *program, size_t call) {
    const executor *x = of(program);
    const bound_plan *p = x->last;
    for (int64_t piece = 0; piece < p->bound->pieces[call]; piece++)
        p->kernels[call]->run(&p->tasks[call], piece, x->walk.scratch);
}

void qn_cpu_program_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                             int index, int64_t row_index) {
    const qn_task *task = &of(program)->last->tasks[call];
    const qn_operand *x = kind == QN_ARG_IN ? &task->in[index] : &task->out[index];
    const unsigned char *from = (const unsigned char *)x->data + row_index * x->stride;
    qn_cpu_read_row(to, from, x->form, x->parts, x->width);
}
