// The operands of calls: from the arguments of a plan to addresses.
#include "runtime/runner_int.h"

#include "core/mem.h"
#include "runtime/kv_memory.h"

#include <string.h>

// Position of a leaf of this kind and name among those of the model's own graph.
static int32_t state_index(const qn_graph *graph, qn_kind kind, const char *name) {
    int32_t n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_value *value = &graph->values[graph->nodes[i].out[0]];
        if (graph->nodes[i].op != QN_OP_INPUT || value->kind != kind) continue;
        if (strcmp(value->name, name) == 0) return n;
        n++;
    }
    return -1;
}

// The fields of a message that a graph can name as inputs, and the bytes of a row.
static const struct {
    const char *name;
    qn_step_field field;
} input_fields[] = {{"ids", QN_STEP_IDS}, {"row_out", QN_STEP_ROW_OUT}};

static qn_status bind_input(qn_operand *to, qn_phase *p, const qn_plan_leaf *leaf, qn_err *err) {
    for (size_t i = 0; i < sizeof input_fields / sizeof *input_fields; i++) {
        if (strcmp(leaf->name, input_fields[i].name) != 0) continue;
        to->stride = (int64_t)sizeof(int32_t);
        p->inputs[p->n_inputs++] = (qn_task_input){to, input_fields[i].field};
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "input %s cannot be given yet", leaf->name);
}

// A weight as its kernels see it; without its numbers in an engine that loaded none.
static qn_status bind_param(qn_operand *to, const qn_runner *r, const qn_plan_leaf *leaf,
                            int32_t index, qn_err *err) {
    const qn_packs *packs = r->engine->packs;
    if (!packs) {
        bool is_tiled;
        QN_TRY(qn_packs_describe(&r->described[index], &is_tiled, leaf, err));
        if (is_tiled) to->packed = &r->described[index];
        return QN_OK;
    }
    to->packed = qn_packs_packed(packs, leaf->name);
    to->data = to->packed ? NULL : (void *)(uintptr_t)qn_packs_rows(packs, leaf->name);
    if (to->packed || to->data) return QN_OK;
    return QN_FAIL(err, STATE, "weight %s is not loaded", leaf->name);
}

// Everything of an argument but the address of a buffer, which depends on the binding.
static qn_status bind_fixed(qn_task *task, qn_operand *to, const qn_runner *r, qn_phase *p,
                            const qn_plan_arg *arg, qn_err *err) {
    *to = (qn_operand){.parts = arg->parts, .width = arg->width, .form = arg->form};
    const qn_plan_leaf *leaf =
        arg->place == QN_PLACE_BUFFER || arg->place == QN_PLACE_TABLE || !arg->place
            ? NULL
            : &p->plan->leaves[arg->place][arg->index];
    const qn_graph *model = &r->engine->model->graph;
    const qn_kv_memory *memory = qn_state_memory(r->state);
    if (arg->place == QN_PLACE_PARAM) return bind_param(to, r, leaf, arg->index, err);
    if (arg->place == QN_PLACE_CONST) to->data = (void *)(uintptr_t)leaf->data;
    if (arg->place == QN_PLACE_INPUT) return bind_input(to, p, leaf, err);
    if (arg->place == QN_PLACE_CACHE)
        task->cache = qn_kv_cache(memory, (size_t)state_index(model, QN_CACHE, leaf->name));
    if (arg->place == QN_PLACE_STATE)
        task->slots = qn_kv_slots(memory, (size_t)state_index(model, QN_STATE_VALUE, leaf->name));
    if (arg->place == QN_PLACE_BUFFER) {
        const qn_plan_buffer *buffer = &p->plan->buffers[arg->index];
        to->stride = buffer->rows.sym == QN_SYM_ONE ? 0 : buffer->row_bytes;
    }
    return QN_OK;
}

static size_t count_inputs(const qn_plan *plan) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_calls; i++) {
        for (int k = 0; k < plan->calls[i].n_in; k++)
            n += plan->calls[i].in[k].place == QN_PLACE_INPUT;
    }
    return n;
}

qn_status qn_runner_init_tasks(qn_runner *r, qn_phase *p, qn_err *err) {
    const qn_backend *backend = r->engine->backend;
    const qn_plan *plan = p->plan;
    p->tasks = qn_alloc(plan->n_calls, sizeof *p->tasks);
    p->kernels = qn_alloc(plan->n_calls, sizeof *p->kernels);
    p->inputs = qn_alloc(count_inputs(plan), sizeof *p->inputs);
    if (!p->tasks || !p->kernels || !p->inputs) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        qn_task *task = &p->tasks[i];
        const qn_recipe *recipe = &backend->recipes[call->op];
        if (call->stage < 0 || call->stage >= recipe->n_stages)
            return QN_FAIL(err, FORMAT, "call %zu: stage %d of %s, which has %d", i, call->stage,
                           qn_op_get(call->op)->name, recipe->n_stages);
        p->kernels[i] = &backend->kernels[recipe->stages[call->stage]];
        task->attrs = &call->attrs;
        task->step = &r->step;
        for (int k = 0; k < call->n_in; k++)
            QN_TRY(bind_fixed(task, &task->in[k], r, p, &call->in[k], err));
        for (int k = 0; k < call->n_out; k++)
            QN_TRY(bind_fixed(task, &task->out[k], r, p, &call->out[k], err));
        for (int k = 0; k < call->n_temp; k++)
            QN_TRY(bind_fixed(task, &task->temp[k], r, p, &call->temp[k], err));
    }
    return QN_OK;
}

static void point(qn_operand *to, const qn_runner *r, const qn_phase *p, const qn_plan_arg *arg) {
    if (arg->place == QN_PLACE_BUFFER)
        to->data = r->arena.data + p->bound->offsets[arg->index] + arg->offset;
}

// The addresses of a binding.
void qn_runner_point(qn_runner *r, qn_phase *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        qn_task *task = &p->tasks[i];
        for (int k = 0; k < call->n_in; k++) point(&task->in[k], r, p, &call->in[k]);
        for (int k = 0; k < call->n_out; k++) point(&task->out[k], r, p, &call->out[k]);
        for (int k = 0; k < call->n_temp; k++) point(&task->temp[k], r, p, &call->temp[k]);
    }
}

void qn_runner_point_inputs(qn_runner *r, qn_phase *p) {
    for (size_t i = 0; i < p->n_inputs; i++)
        p->inputs[i].to->data = qn_step_at(r->message, p->inputs[i].field);
}
