// Plans on the device `ref`: each buffer has memory of its own, so that operands never move, and
// calls run one after the other.
#include "backends/ref/ref_program.h"

#include "backends/ref/plain.h"
#include "core/floats.h"
#include "ir/memplan.h"

// An operand that comes with each step: a field of the message, or floats that are given.
typedef struct step_input {
    qn_plain_operand *to;
    const char *name;
    qn_step_field field; // QN_STEP_FIELDS: given
} step_input;

typedef struct call_times {
    int64_t begin, end;
} call_times;

typedef struct ready_plan {
    const qn_plan *plan;  // NULL: none
    qn_plain_task *tasks; // (n_calls)
    int64_t *offsets;     // (n_buffers) in the arena
    int64_t arena_bytes;
    step_input *inputs; // (n_inputs)
    size_t n_inputs;
    call_times *times; // (n_calls), or NULL
} ready_plan;

typedef struct ref_program {
    qn_program head;
    qn_sizes max;
    ready_plan plans[QN_PROGRAM_PLANS];
    ready_plan *now; // of the begun step
    qn_step step;
    unsigned char *arena; // shared by the plans
    size_t arena_bytes;
    float *room;
    int64_t room_floats;
    int64_t n_steps;
    bool (*go_on)(void *arg); // as in qn_program_opts
    void *go_on_arg;
    const qn_gather *gather;
} ref_program;

static ref_program *own(const qn_program *program) { return (ref_program *)(uintptr_t)program; }

// --- operands ------------------------------------------------------------------------------------

static qn_status bind_input(ready_plan *p, qn_plain_operand *to, const qn_plan_leaf *leaf,
                            qn_err *err) {
    const step_input input = {
        .to = to, .name = leaf->name, .field = qn_step_find_field(leaf->name)};
    if (input.field == QN_STEP_FIELDS && leaf->type != QN_TYPE_F32)
        return QN_FAIL(err, UNSUPPORTED, "input %s of type %s cannot be given", leaf->name,
                       qn_type_get(leaf->type)->name);
    const bool has_rows = leaf->shape.n_dims > 0 && leaf->shape.dims[0].sym != QN_SYM_ONE;
    to->stride = has_rows ? to->parts * to->width * (int64_t)sizeof(float) : 0;
    p->inputs[p->n_inputs++] = input;
    return QN_OK;
}

static qn_status bind_weight(qn_plain_operand *to, const qn_program_plan *from, size_t call,
                             int input, qn_err *err) {
    const qn_plan_call *c = &from->plan->calls[call];
    const int32_t index = c->in[input].index;
    const qn_plan_leaf *leaf = &from->plan->leaves[QN_PLACE_PARAM][index];
    const qn_word want = qn_plain_backend.layout(c->op, input);
    if (leaf->layout != want)
        return QN_FAIL(err, FORMAT, "call %zu: weight %s lies in %s, %s reads %s", call, leaf->name,
                       qn_word_get(leaf->layout)->name, c->kernel, qn_word_get(want)->name);
    to->is_typed = want == QN_WORD_typed;
    to->type = leaf->type;
    if (from->weights) to->data = (unsigned char *)(uintptr_t)from->weights[index];
    return QN_OK;
}

// A value in the arena.
static void bind_buffer(const ref_program *x, const ready_plan *p, qn_plain_operand *to,
                        const qn_plan_arg *arg) {
    const qn_plan_buffer *buffer = &p->plan->buffers[arg->index];
    to->stride = buffer->rows.sym == QN_SYM_ONE ? 0 : buffer->row_bytes;
    if (x->arena) to->data = x->arena + p->offsets[arg->index] + arg->offset;
}

static void bind_const(qn_plain_operand *to, const qn_plan *plan, int32_t index) {
    to->data = (unsigned char *)(uintptr_t)plan->leaves[QN_PLACE_CONST][index].data;
}

static qn_status bind_in(ready_plan *p, const qn_program_plan *from, size_t call, int i,
                         qn_err *err) {
    const qn_plan_arg *arg = &from->plan->calls[call].in[i];
    qn_plain_task *task = &p->tasks[call];
    qn_plain_operand *to = &task->in[i];
    *to = (qn_plain_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
    if (arg->place == QN_PLACE_CONST) bind_const(to, from->plan, arg->index);
    if (arg->place == QN_PLACE_CACHE) task->cache = from->caches[arg->index];
    if (arg->place == QN_PLACE_STATE) task->slots = from->slots[arg->index];
    if (arg->place == QN_PLACE_PARAM) return bind_weight(to, from, call, i, err);
    if (arg->place == QN_PLACE_INPUT)
        return bind_input(p, to, &from->plan->leaves[QN_PLACE_INPUT][arg->index], err);
    return QN_OK;
}

static qn_status bind_call(ref_program *x, ready_plan *p, const qn_program_plan *from, size_t i,
                           qn_err *err) {
    const qn_plan_call *call = &from->plan->calls[i];
    const qn_plain_op *op = qn_plain_op_get(call->op);
    qn_plain_task *task = &p->tasks[i];
    if (!op->run || call->stage != 0)
        return QN_FAIL(err, FORMAT, "call %zu: stage %d of %s, which has %d", i, call->stage,
                       qn_op_get(call->op)->name, op->run ? 1 : 0);
    task->attrs = &call->attrs;
    task->step = &x->step;
    for (int k = 0; k < call->n_in; k++) QN_TRY(bind_in(p, from, i, k, err));
    for (int k = 0; k < call->n_out; k++) {
        const qn_plan_arg *arg = &call->out[k];
        task->out[k] =
            (qn_plain_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
    }
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    task->rows = call->rows.n * symbols[call->rows.sym];
    if (qn_call_gathers(call)) task->gather = x->gather;
    x->room_floats = qn_max(x->room_floats, op->room(task));
    return QN_OK;
}

// --- preparation ---------------------------------------------------------------------------------

// Buffers one after the other, for the largest step.
static qn_status lay_out(ready_plan *p, const qn_sizes *max, qn_err *err) {
    const int64_t symbols[QN_SYM_COUNT] = {1, max->rows, max->segs, max->outs};
    for (size_t i = 0; i < p->plan->n_buffers; i++) {
        int64_t bytes;
        p->offsets[i] = p->arena_bytes;
        if (!qn_buffer_bytes(&bytes, &p->plan->buffers[i], symbols) ||
            !qn_i64_add(&p->arena_bytes, p->arena_bytes, bytes))
            return QN_FAIL(err, LIMIT, "a step of %lld rows, %lld of them wanted: sizes overflow",
                           (long long)max->rows, (long long)max->outs);
    }
    return QN_OK;
}

static qn_status init_plan(ref_program *x, ready_plan *p, const qn_program_plan *from,
                           bool is_timed, qn_err *err) {
    const qn_plan *plan = from->plan;
    p->plan = plan;
    p->tasks = qn_alloc(plan->n_calls, sizeof *p->tasks);
    p->offsets = qn_alloc(plan->n_buffers, sizeof *p->offsets);
    p->inputs = qn_alloc(qn_plan_inputs(plan), sizeof *p->inputs);
    if (is_timed) p->times = qn_alloc(plan->n_calls, sizeof *p->times);
    if (!p->tasks || !p->offsets || !p->inputs || (is_timed && !p->times))
        return QN_NOMEM(err, "plan");
    QN_TRY(lay_out(p, &x->max, err));
    for (size_t i = 0; i < plan->n_calls; i++) QN_TRY(bind_call(x, p, from, i, err));
    return QN_OK;
}

// Points the operands of a plan to their buffers.
static void place_buffers(const ref_program *x, ready_plan *p) {
    for (size_t i = 0; p->plan && i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        qn_plain_task *task = &p->tasks[i];
        task->room = x->room;
        for (int k = 0; k < call->n_in; k++) {
            if (call->in[k].place == QN_PLACE_BUFFER) bind_buffer(x, p, &task->in[k], &call->in[k]);
        }
        for (int k = 0; k < call->n_out; k++) {
            if (call->out[k].place == QN_PLACE_BUFFER)
                bind_buffer(x, p, &task->out[k], &call->out[k]);
        }
    }
}

static qn_status take_memory(ref_program *x, qn_err *err) {
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const size_t bytes = (size_t)x->plans[i].arena_bytes;
        if (bytes > x->arena_bytes) x->arena_bytes = bytes;
    }
    if (x->arena_bytes) x->arena = qn_reserve(x->arena_bytes);
    x->room = qn_alloc((size_t)x->room_floats, sizeof *x->room);
    if ((x->arena_bytes && !x->arena) || !x->room) return QN_NOMEM(err, "activations");
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) place_buffers(x, &x->plans[i]);
    return QN_OK;
}

qn_status qn_plain_prepare(qn_program **out, qn_device *device, const qn_program_opts *opts,
                           qn_err *err) {
    ref_program *x = qn_alloc(1, sizeof *x);
    if (!x) return QN_NOMEM(err, "plan");
    x->head.device = device;
    x->max = opts->max;
    x->go_on = opts->go_on;
    x->go_on_arg = opts->go_on_arg;
    x->gather = opts->gather;
    qn_status status = qn_program_check_gather(opts, err);
    for (int i = 0; i < QN_PROGRAM_PLANS && !status; i++) {
        if (opts->plans[i].plan)
            status = init_plan(x, &x->plans[i], &opts->plans[i], opts->is_timed, err);
    }
    if (!status && !opts->is_measured) status = take_memory(x, err);
    if (status)
        qn_plain_release(&x->head);
    else
        *out = &x->head;
    return status;
}

void qn_plain_release(qn_program *program) {
    ref_program *x = own(program);
    if (!x) return;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        qn_free(x->plans[i].tasks);
        qn_free(x->plans[i].offsets);
        qn_free(x->plans[i].inputs);
        qn_free(x->plans[i].times);
    }
    if (x->arena) qn_unreserve(x->arena, x->arena_bytes);
    qn_free(x->room);
    qn_free(x);
}

qn_program_size qn_plain_measure(const qn_program *program) {
    const ref_program *x = own(program);
    qn_program_size size = {.scratch = x->room_floats * (int64_t)sizeof(float)};
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const ready_plan *p = &x->plans[i];
        size.arena = qn_max(size.arena, p->arena_bytes);
        if (p->plan) size.tables += (int64_t)(p->plan->n_calls * sizeof *p->tasks);
    }
    return size;
}

// --- steps ---------------------------------------------------------------------------------------

bool qn_plain_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes) {
    ref_program *x = own(program);
    ready_plan *p = &x->plans[i];
    qn_step step;
    qn_step_view(&step, message);
    if (!p->plan || step.n_rows > x->max.rows || step.n_segs > x->max.segs ||
        step.n_out > x->max.outs || sizes->cached > x->max.cached)
        return false;
    x->step = step;
    x->now = p;
    x->n_steps++;
    const int64_t symbols[QN_SYM_COUNT] = {1, step.n_rows, step.n_segs, step.n_out};
    for (size_t c = 0; c < p->plan->n_calls; c++) {
        const qn_dim rows = p->plan->calls[c].rows;
        p->tasks[c].rows = rows.n * symbols[rows.sym];
    }
    for (size_t k = 0; k < p->n_inputs; k++) {
        const step_input *input = &p->inputs[k];
        const bool is_given = input->field == QN_STEP_FIELDS;
        input->to->data = is_given ? NULL : qn_step_input(message, input->field);
    }
    return true;
}

bool qn_plain_give(qn_program *program, const char *input, const float *rows) {
    const ready_plan *p = own(program)->now;
    bool is_found = false;
    for (size_t k = 0; p && k < p->n_inputs; k++) {
        if (p->inputs[k].field < QN_STEP_FIELDS || strcmp(p->inputs[k].name, input) != 0) continue;
        p->inputs[k].to->data = (unsigned char *)(uintptr_t)rows;
        is_found = true;
    }
    return is_found;
}

void qn_plain_run_call(qn_program *program, size_t call) {
    const ready_plan *p = own(program)->now;
    const qn_floats floats = qn_floats_enter();
    if (p->times) p->times[call].begin = qn_clock();
    qn_plain_op_get(p->plan->calls[call].op)->run(&p->tasks[call]);
    if (p->times) p->times[call].end = qn_clock();
    qn_floats_leave(&floats);
}

void qn_plain_run(qn_program *program) {
    const ref_program *x = own(program);
    bool is_stopped = false;
    for (size_t i = 0; i < x->now->plan->n_calls; i++) {
        is_stopped = is_stopped || (x->go_on && !x->go_on(x->go_on_arg));
        // Other ranks wait, whatever becomes of the step.
        if (!is_stopped || x->now->tasks[i].gather) qn_plain_run_call(program, i);
    }
}

void qn_plain_wait(qn_program *program) { (void)program; }

const float *qn_plain_output_row(const qn_program *program, const qn_plan_output *output,
                                 int64_t row) {
    const ref_program *x = own(program);
    const ready_plan *p = x->now;
    const unsigned char *at = x->arena + p->offsets[output->arg.index] + output->arg.offset +
                              row * p->plan->buffers[output->arg.index].row_bytes;
    return (const float *)(const void *)at;
}

// Nothing is bound to sizes.
void qn_plain_counts(const qn_program *program, int64_t *hits, int64_t *misses) {
    *hits = own(program)->n_steps;
    *misses = 0;
}

bool qn_plain_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end) {
    const ready_plan *p = own(program)->now;
    if (!p->times || p->tasks[call].rows == 0) return false;
    *begin = p->times[call].begin;
    *end = p->times[call].end;
    return true;
}

void qn_plain_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                       int index, int64_t row) {
    const qn_plain_task *task = &own(program)->now->tasks[call];
    const qn_plain_operand *x = kind == QN_ARG_IN ? &task->in[index] : &task->out[index];
    for (int64_t p = 0; x->data && p < x->parts; p++, to += x->width) {
        if (x->is_typed)
            qn_type_get(x->type)->unpack(to, qn_plain_weight(x, p), x->width);
        else
            qn_plain_read(to, qn_plain_part(x, row, p), x->width, x->form);
    }
}
