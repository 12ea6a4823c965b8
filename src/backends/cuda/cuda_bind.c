// Calls of a plan as tasks: what their operands are. Where buffers, constants and given rows lie is
// known later (cuda_prepare.c).
#include "backends/cuda/cuda_program.h"

#include "core/mem.h"
#include "ir/memplan.h"

#include <string.h>

// Bytes of n rows of floats; false if they overflow.
static bool float_bytes(int64_t *out, int64_t rows, int64_t parts, int64_t width) {
    return qn_i64_mul(out, rows, parts) && qn_i64_mul(out, *out, width) &&
           qn_i64_mul(out, *out, (int64_t)sizeof(float));
}

// An input that comes with each step: a field of the message, or floats that are given.
static qn_status bind_input(qn_cuda_program *x, qn_cuda_plan *p, qn_cuda_operand *to,
                            const qn_plan_leaf *leaf, qn_err *err) {
    const qn_step_field field = qn_step_find_field(leaf->name);
    const bool has_rows = leaf->shape.n_dims > 0 && leaf->shape.dims[0].sym != QN_SYM_ONE;
    to->stride = has_rows ? to->parts * to->width * (int64_t)sizeof(float) : 0;
    to->field = (int32_t)field;
    if (field != QN_STEP_FIELDS) return QN_OK;
    if (leaf->type != QN_TYPE_F32)
        return QN_FAIL(err, UNSUPPORTED, "input %s of type %s cannot be given", leaf->name,
                       qn_type_get(leaf->type)->name);
    for (size_t i = 0; i < p->n_given; i++) {
        if (p->given[i].leaf == leaf) return QN_OK;
    }
    qn_cuda_given *g = &p->given[p->n_given++];
    *g = (qn_cuda_given){.leaf = leaf, .offset = x->fixed_bytes};
    const qn_dim first = has_rows ? leaf->shape.dims[0] : (qn_dim){1, QN_SYM_ONE};
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    int64_t bytes;
    g->rows = first;
    g->row_bytes = to->parts * to->width * (int64_t)sizeof(float);
    if (!float_bytes(&bytes, first.n * symbols[first.sym], to->parts, to->width) ||
        !qn_i64_add(&x->fixed_bytes, x->fixed_bytes, bytes + QN_BUFFER_ALIGN))
        return QN_FAIL(err, LIMIT, "input %s overflows", leaf->name);
    x->fixed_bytes -= x->fixed_bytes % QN_BUFFER_ALIGN;
    return QN_OK;
}

static qn_status bind_weight(qn_cuda_operand *to, const qn_program_plan *from, size_t call,
                             int input, qn_err *err) {
    const qn_plan_call *c = &from->plan->calls[call];
    const int32_t index = c->in[input].index;
    const qn_plan_leaf *leaf = &from->plan->leaves[QN_PLACE_PARAM][index];
    const qn_word want = qn_cuda_backends[0].layout(c->op, input);
    if (leaf->layout != want)
        return QN_FAIL(err, FORMAT, "call %zu: weight %s lies in %s, %s reads %s", call, leaf->name,
                       qn_word_get(leaf->layout)->name, c->kernel, qn_word_get(want)->name);
    to->type = (int32_t)(want == QN_WORD_typed ? leaf->type : QN_TYPE_F32);
    to->is_weight = want == QN_WORD_typed;
    to->is_tiled = to->is_weight && qn_cuda_is_tiled(to->type, to->parts, to->width);
    if (from->weights) to->data = (unsigned char *)(uintptr_t)from->weights[index];
    return QN_OK;
}

// Constants get a place beside the arena (cuda_prepare.c).
static qn_status bind_const(qn_cuda_program *x, qn_cuda_plan *p, int32_t index, qn_err *err) {
    const qn_plan_leaf *leaf = &p->plan->leaves[QN_PLACE_CONST][index];
    int64_t bytes = (int64_t)sizeof(float);
    if (p->consts[index].bytes) return QN_OK;
    bool fits = true;
    for (int i = 0; i < leaf->shape.n_dims; i++)
        fits = fits && qn_i64_mul(&bytes, bytes, leaf->shape.dims[i].n);
    p->consts[index] = (qn_cuda_const){.offset = x->fixed_bytes, .bytes = bytes};
    fits = fits && qn_i64_add(&x->fixed_bytes, x->fixed_bytes, bytes + QN_BUFFER_ALIGN);
    if (!fits) return QN_FAIL(err, LIMIT, "constant %s overflows", leaf->name);
    x->fixed_bytes -= x->fixed_bytes % QN_BUFFER_ALIGN;
    return QN_OK;
}

static qn_cuda_operand operand_of(const qn_plan_arg *arg) {
    return (qn_cuda_operand){.parts = arg->parts,
                             .width = arg->width,
                             .form = (int32_t)arg->form,
                             .field = QN_STEP_FIELDS};
}

static qn_status bind_in(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                         size_t call, int i, qn_err *err) {
    const qn_plan_arg *arg = &from->plan->calls[call].in[i];
    qn_cuda_task *task = &p->calls[call].task;
    qn_cuda_operand *to = &task->in[i];
    *to = operand_of(arg);
    if (arg->place == QN_PLACE_CACHE) task->cache = *from->caches[arg->index];
    if (arg->place == QN_PLACE_STATE) task->slots = *from->slots[arg->index];
    if (arg->place == QN_PLACE_CONST) return bind_const(x, p, arg->index, err);
    if (arg->place == QN_PLACE_PARAM) return bind_weight(to, from, call, i, err);
    if (arg->place == QN_PLACE_INPUT)
        return bind_input(x, p, to, &from->plan->leaves[QN_PLACE_INPUT][arg->index], err);
    return QN_OK;
}

static bool find_kernel(qn_cuda_kernel *out, const char *name) {
    for (int k = 0; k < QN_CUDA_KERNELS; k++) {
        if (strcmp(qn_cuda_backends[0].kernels[k], name) != 0) continue;
        *out = (qn_cuda_kernel)k;
        return true;
    }
    return false;
}

qn_status qn_cuda_bind_call(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                            size_t i, qn_err *err) {
    const qn_plan_call *call = &from->plan->calls[i];
    qn_cuda_call *to = &p->calls[i];
    if (!find_kernel(&to->kernel, call->kernel))
        return QN_FAIL(err, FORMAT, "call %zu: device cuda has no kernel %s", i, call->kernel);
    to->task.attrs = call->attrs;
    to->rows = call->rows;
    for (int k = 0; k < QN_MAX_IN; k++) to->task.in[k].field = QN_STEP_FIELDS;
    for (int k = 0; k < QN_MAX_OUT; k++) to->task.out[k].field = QN_STEP_FIELDS;
    for (int k = 0; k < call->n_in; k++) QN_TRY(bind_in(x, p, from, i, k, err));
    for (int k = 0; k < call->n_out; k++) to->task.out[k] = operand_of(&call->out[k]);
    for (int k = 0; k < call->n_temp; k++) to->task.temp[k] = operand_of(&call->temp[k]);
    return QN_OK;
}
