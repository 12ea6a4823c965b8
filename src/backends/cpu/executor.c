#include "backends/cpu/executor.h"

#include "core/mem.h"

#include <string.h>

enum { ALIGN = 64 };

// An operand that is a field of each step's message.
typedef struct task_input {
    qn_operand *to;
    qn_step_field field;
} task_input;

// A plan: its tasks point into the executor's own memory.
typedef struct program {
    const qn_plan *plan; // NULL: none
    qn_task *tasks;      // (n_calls)
    const qn_kernel **kernels;
    qn_bindings *bindings;
    task_input *inputs; // (n_inputs) operands that lie in the message
    size_t n_inputs;
    const qn_binding *bound; // that the tasks point to now; NULL: none
    uint64_t bound_made;     // which making of it: bindings are reused
} program;

// Memory that starts at a cache line.
typedef struct block {
    void *base;
    unsigned char *data;
} block;

struct qn_executor {
    qn_executor_opts opts;
    program programs[QN_EXECUTOR_PLANS];
    program *last; // of the last step
    qn_step step;
    qn_walk walk;
    block arena, scratch;
};

// --- operands ------------------------------------------------------------------------------------

// The fields of a message that a graph can name as inputs.
static const struct {
    const char *name;
    qn_step_field field;
} input_fields[] = {{"ids", QN_STEP_IDS}, {"row_out", QN_STEP_ROW_OUT}};

static qn_status bind_input(qn_operand *to, program *p, const qn_plan_leaf *leaf, qn_err *err) {
    for (size_t i = 0; i < sizeof input_fields / sizeof *input_fields; i++) {
        if (strcmp(leaf->name, input_fields[i].name) != 0) continue;
        to->stride = (int64_t)sizeof(int32_t);
        p->inputs[p->n_inputs++] = (task_input){to, input_fields[i].field};
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "input %s cannot be given yet", leaf->name);
}

// Everything of an argument but the address of a buffer, which depends on the binding.
static qn_status bind_fixed(qn_task *task, qn_operand *to, program *p, const qn_executor_plan *from,
                            const qn_plan_arg *arg, qn_err *err) {
    const qn_plan *plan = from->plan;
    *to = (qn_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
    if (arg->place == QN_PLACE_PARAM) {
        to->packed = from->weights[arg->index].packed;
        to->data = (void *)(uintptr_t)from->weights[arg->index].rows;
    }
    if (arg->place == QN_PLACE_CONST)
        to->data = (void *)(uintptr_t)plan->leaves[QN_PLACE_CONST][arg->index].data;
    if (arg->place == QN_PLACE_INPUT)
        return bind_input(to, p, &plan->leaves[QN_PLACE_INPUT][arg->index], err);
    if (arg->place == QN_PLACE_CACHE) task->cache = from->caches[arg->index];
    if (arg->place == QN_PLACE_STATE) task->slots = from->slots[arg->index];
    if (arg->place == QN_PLACE_BUFFER) {
        const qn_plan_buffer *buffer = &plan->buffers[arg->index];
        to->stride = buffer->rows.sym == QN_SYM_ONE ? 0 : buffer->row_bytes;
    }
    return QN_OK;
}

static qn_status bind_call(const qn_executor *x, program *p, const qn_executor_plan *from, size_t i,
                           qn_err *err) {
    const qn_plan_call *call = &from->plan->calls[i];
    const qn_recipe *recipe = &x->opts.backend->recipes[call->op];
    qn_task *task = &p->tasks[i];
    if (call->stage < 0 || call->stage >= recipe->n_stages)
        return QN_FAIL(err, FORMAT, "call %zu: stage %d of %s, which has %d", i, call->stage,
                       qn_op_get(call->op)->name, recipe->n_stages);
    p->kernels[i] = &x->opts.backend->kernels[recipe->stages[call->stage]];
    task->attrs = &call->attrs;
    task->step = &x->step;
    for (int k = 0; k < call->n_in; k++)
        QN_TRY(bind_fixed(task, &task->in[k], p, from, &call->in[k], err));
    for (int k = 0; k < call->n_out; k++)
        QN_TRY(bind_fixed(task, &task->out[k], p, from, &call->out[k], err));
    for (int k = 0; k < call->n_temp; k++)
        QN_TRY(bind_fixed(task, &task->temp[k], p, from, &call->temp[k], err));
    return QN_OK;
}

static void point(qn_operand *to, const qn_executor *x, const program *p, const qn_plan_arg *arg) {
    if (arg->place == QN_PLACE_BUFFER)
        to->data = x->arena.data + p->bound->offsets[arg->index] + arg->offset;
}

// The addresses of a binding.
static void point_all(qn_executor *x, program *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        qn_task *task = &p->tasks[i];
        for (int k = 0; k < call->n_in; k++) point(&task->in[k], x, p, &call->in[k]);
        for (int k = 0; k < call->n_out; k++) point(&task->out[k], x, p, &call->out[k]);
        for (int k = 0; k < call->n_temp; k++) point(&task->temp[k], x, p, &call->temp[k]);
    }
}

// --- creation ------------------------------------------------------------------------------------

static size_t count_inputs(const qn_plan *plan) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_calls; i++) {
        for (int k = 0; k < plan->calls[i].n_in; k++)
            n += plan->calls[i].in[k].place == QN_PLACE_INPUT;
    }
    return n;
}

static qn_status init_program(qn_executor *x, program *p, const qn_executor_plan *from,
                              qn_err *err) {
    const qn_plan *plan = from->plan;
    p->plan = plan;
    p->tasks = qn_alloc(plan->n_calls, sizeof *p->tasks);
    p->kernels = qn_alloc(plan->n_calls, sizeof *p->kernels);
    p->inputs = qn_alloc(count_inputs(plan), sizeof *p->inputs);
    if (!p->tasks || !p->kernels || !p->inputs) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < plan->n_calls; i++) QN_TRY(bind_call(x, p, from, i, err));
    const qn_bindings_opts opts = {.plan = plan,
                                   .backend = x->opts.backend,
                                   .tasks = p->tasks,
                                   .kernels = p->kernels,
                                   .policy = from->policy,
                                   .capacity = from->capacity,
                                   .most = x->opts.most};
    return qn_bindings_create(&p->bindings, &opts, err);
}

static void free_program(program *p) {
    qn_bindings_destroy(p->bindings);
    qn_free(p->tasks);
    qn_free(p->kernels);
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
static int64_t thread_scratch(const qn_executor *x) {
    int64_t scratch = 0;
    for (int i = 0; i < QN_EXECUTOR_PLANS; i++) {
        const program *p = &x->programs[i];
        if (p->plan) scratch = qn_max(scratch, qn_bindings_scratch(p->bindings));
    }
    return (scratch + ALIGN - 1) / ALIGN * ALIGN;
}

static qn_status init_memory(qn_executor *x, qn_err *err) {
    const int n_threads = qn_pool_threads(x->opts.pool);
    const int64_t scratch = thread_scratch(x);
    size_t n_calls = 0;
    for (int i = 0; i < QN_EXECUTOR_PLANS; i++) {
        const qn_plan *plan = x->programs[i].plan;
        if (plan && plan->n_calls > n_calls) n_calls = plan->n_calls;
    }
    x->walk = (qn_walk){.scratch_bytes = scratch, .n_shares = n_threads};
    x->walk.taken = qn_alloc(n_calls * (size_t)n_threads, sizeof *x->walk.taken);
    x->walk.done = qn_alloc(n_calls, sizeof *x->walk.done);
    if (x->opts.is_timed) x->walk.times = qn_alloc(n_calls, sizeof *x->walk.times);
    if (!x->walk.taken || !x->walk.done || (x->opts.is_timed && !x->walk.times) ||
        !block_init(&x->arena, qn_executor_measure(x).arena) ||
        !block_init(&x->scratch, scratch * n_threads))
        return QN_NOMEM(err, "activations");
    x->walk.scratch = x->scratch.data;
    return qn_gate_create(&x->walk.gate, err);
}

qn_status qn_executor_create(qn_executor **out, const qn_executor_opts *opts, qn_err *err) {
    qn_executor *x = qn_alloc(1, sizeof *x);
    if (!x) return QN_NOMEM(err, "plan");
    x->opts = *opts;
    qn_status status = QN_OK;
    for (int i = 0; i < QN_EXECUTOR_PLANS && !status; i++) {
        if (opts->plans[i].plan) status = init_program(x, &x->programs[i], &opts->plans[i], err);
    }
    if (!status && !opts->is_measured) status = init_memory(x, err);
    if (status)
        qn_executor_destroy(x);
    else
        *out = x;
    return status;
}

void qn_executor_destroy(qn_executor *x) {
    if (!x) return;
    for (int i = 0; i < QN_EXECUTOR_PLANS; i++) free_program(&x->programs[i]);
    qn_gate_destroy(x->walk.gate);
    qn_free(x->walk.taken);
    qn_free(x->walk.done);
    qn_free(x->walk.times);
    qn_free(x->arena.base);
    qn_free(x->scratch.base);
    qn_free(x);
}

qn_executor_size qn_executor_measure(const qn_executor *x) {
    qn_executor_size size = {.scratch = thread_scratch(x) * qn_pool_threads(x->opts.pool)};
    for (int i = 0; i < QN_EXECUTOR_PLANS; i++) {
        const program *p = &x->programs[i];
        if (!p->plan) continue;
        size.arena = qn_max(size.arena, qn_bindings_arena(p->bindings));
        size.tables += (int64_t)(p->plan->n_calls * (sizeof(qn_task) + sizeof(qn_kernel *)));
    }
    return size;
}

// --- steps ---------------------------------------------------------------------------------------

bool qn_executor_begin(qn_executor *x, int i, int32_t *message, const qn_sizes *sizes) {
    program *p = &x->programs[i];
    const qn_binding *bound = qn_bindings_get(p->bindings, sizes);
    if (!bound) return false;
    if (p->bound != bound || p->bound_made != bound->made) {
        p->bound = bound;
        p->bound_made = bound->made;
        point_all(x, p);
    }
    qn_step_view(&x->step, message);
    for (size_t k = 0; k < p->n_inputs; k++)
        p->inputs[k].to->data = qn_step_at(message, p->inputs[k].field);
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

void qn_executor_run(qn_executor *x) { qn_walk_run(&x->walk, x->opts.pool); }

void qn_executor_run_call(qn_executor *x, size_t call) {
    const program *p = x->last;
    for (int64_t piece = 0; piece < p->bound->pieces[call]; piece++)
        p->kernels[call]->run(&p->tasks[call], piece, x->walk.scratch);
}

const qn_plan *qn_executor_plan_of(const qn_executor *x) { return x->last ? x->last->plan : NULL; }

const qn_plan_output *qn_executor_find(const qn_executor *x, const char *output) {
    const qn_plan *plan = qn_executor_plan_of(x);
    for (size_t i = 0; plan && i < plan->n_outputs; i++) {
        if (strcmp(plan->outputs[i].name, output) == 0) return &plan->outputs[i];
    }
    return NULL;
}

const float *qn_executor_row(const qn_executor *x, const char *output, int64_t row) {
    const qn_plan_output *o = qn_executor_find(x, output);
    if (!o) return NULL;
    const unsigned char *data = x->arena.data + x->last->bound->offsets[o->arg.index];
    return (const float *)(const void *)(data + o->arg.offset +
                                         row * x->last->plan->buffers[o->arg.index].row_bytes);
}

const qn_task *qn_executor_task(const qn_executor *x, size_t call) { return &x->last->tasks[call]; }

const qn_kernel *qn_executor_kernel(const qn_executor *x, size_t call) {
    return x->last->kernels[call];
}

bool qn_executor_times(const qn_executor *x, size_t call, int64_t *begin, int64_t *end) {
    if (!x->walk.times || x->last->bound->pieces[call] == 0) return false;
    *begin = x->walk.times[call].begin;
    *end = x->walk.times[call].end;
    return true;
}

void qn_executor_counts(const qn_executor *x, int64_t *hits, int64_t *misses) {
    *hits = *misses = 0;
    for (int i = 0; i < QN_EXECUTOR_PLANS; i++) {
        int64_t found, made;
        if (!x->programs[i].plan) continue;
        qn_bindings_counts(x->programs[i].bindings, &found, &made);
        *hits += found;
        *misses += made;
    }
}
