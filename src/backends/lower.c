#include "backends/lower.h"

#include "core/mem.h"
#include "ir/share.h"

#include <string.h>

typedef struct lowering {
    const qn_graph *graph;
    const qn_backend *backend;
    qn_plan plan;
    qn_plan_arg *args;       // (n_values) where each value lies
    qn_plan_buffer *buffers; // grows on the heap; the plan gets a copy
    size_t n_buffers, cap_buffers;
    qn_err *err;
} lowering;

// A shape as rows of (parts, width): the first dimension counts rows if it is a symbol, everything
// else is one row.
static qn_dim rows_of(const qn_shape *shape) {
    const bool has_rows = shape->n_dims > 0 && shape->dims[0].sym != QN_SYM_ONE;
    return has_rows ? shape->dims[0] : (qn_dim){1, QN_SYM_ONE};
}

static qn_status set_row(qn_plan_arg *arg, const qn_value *value, qn_err *err) {
    const qn_shape *shape = &value->shape;
    const int first = shape->n_dims > 0 && shape->dims[0].sym != QN_SYM_ONE ? 1 : 0;
    arg->parts = arg->width = 1;
    for (int i = first; i < shape->n_dims; i++) {
        if (shape->dims[i].sym != QN_SYM_ONE)
            return QN_FAIL(err, UNSUPPORTED, "%s: a symbol after the first dimension", value->name);
        if (i + 1 == shape->n_dims)
            arg->width = shape->dims[i].n;
        else if (!qn_i64_mul(&arg->parts, arg->parts, shape->dims[i].n))
            return QN_FAIL(err, LIMIT, "%s: size overflows", value->name);
    }
    return QN_OK;
}

static const char *copy_name(lowering *l, const char *name) {
    return qn_arena_strdup(&l->plan.arena, name, strlen(name));
}

static qn_place leaf_place(const qn_node *node, const qn_value *value) {
    static const qn_place by_kind[QN_KIND_COUNT] = {[QN_TENSOR] = QN_PLACE_INPUT,
                                                    [QN_TABLE] = QN_PLACE_TABLE,
                                                    [QN_CACHE] = QN_PLACE_CACHE,
                                                    [QN_STATE_VALUE] = QN_PLACE_STATE};
    if (node->op == QN_OP_PARAM) return QN_PLACE_PARAM;
    if (node->op == QN_OP_CONST) return QN_PLACE_CONST;
    return by_kind[value->kind];
}

static qn_status add_leaf(lowering *l, const qn_node *node) {
    const qn_value *value = &l->graph->values[node->out[0]];
    const qn_place place = leaf_place(node, value);
    qn_plan_arg *arg = &l->args[node->out[0]];
    *arg = (qn_plan_arg){.place = place, .form = QN_WORD_f32};
    QN_TRY(set_row(arg, value, l->err));
    if (place == QN_PLACE_TABLE) return QN_OK;
    qn_plan_leaf leaf = {
        .name = copy_name(l, value->name), .type = value->type, .shape = value->shape};
    if (place == QN_PLACE_PARAM) leaf.layout = node->attrs.layout;
    if (!leaf.name || !qn_share_dup(&leaf.share, &l->plan.arena, node->share))
        return QN_NOMEM(l->err, "plan");
    if (node->op == QN_OP_CONST) {
        const size_t n = (size_t)(arg->parts * arg->width);
        float *data = qn_arena_alloc(&l->plan.arena, n, sizeof *data);
        if (!data) return QN_NOMEM(l->err, "plan");
        memcpy(data, node->data, n * sizeof *data);
        leaf.data = data;
    }
    arg->index = (int32_t)l->plan.n_leaves[place];
    l->plan.leaves[place][l->plan.n_leaves[place]++] = leaf;
    return QN_OK;
}

// A slice that is dense inside each row needs no copy: the whole of inner dimensions, or a part of
// a row that has no parts.
bool qn_lower_is_view(const qn_graph *graph, const qn_node *node) {
    if (!qn_node_is_view(node)) return false;
    if (node->op != QN_OP_NARROW) return true;
    const qn_shape *shape = &graph->values[node->in[0]].shape;
    return shape->dims[0].sym != QN_SYM_ONE && node->attrs.axis == 1;
}

static qn_status add_view(lowering *l, const qn_node *node) {
    const qn_value *value = &l->graph->values[node->in[0]];
    qn_plan_arg arg = l->args[node->in[0]];
    if (node->op == QN_OP_NARROW) {
        int64_t unit = (int64_t)sizeof(float); // bytes of one step along the axis
        for (int i = (int)node->attrs.axis + 1; i < value->shape.n_dims; i++)
            unit *= value->shape.dims[i].n;
        arg.offset += node->attrs.start * unit;
    }
    QN_TRY(set_row(&arg, &l->graph->values[node->out[0]], l->err));
    l->args[node->out[0]] = arg;
    return QN_OK;
}

static qn_status add_buffer(lowering *l, qn_plan_arg *arg, qn_dim rows) {
    void *buffers = l->buffers;
    if (!qn_grow(&buffers, &l->cap_buffers, l->n_buffers + 1, sizeof *l->buffers))
        return QN_NOMEM(l->err, "plan");
    l->buffers = buffers;
    // Plain rows are dense over their parts; packed rows are packed part by part.
    int64_t bytes = arg->form == QN_WORD_f32 ? arg->parts * arg->width : arg->width;
    bytes = l->backend->row_bytes(arg->form, bytes);
    if (arg->form != QN_WORD_f32 && !qn_i64_mul(&bytes, bytes, arg->parts))
        return QN_FAIL(l->err, LIMIT, "a row of %lld parts overflows", (long long)arg->parts);
    arg->place = QN_PLACE_BUFFER;
    arg->index = (int32_t)l->n_buffers;
    const int32_t call = (int32_t)l->plan.n_calls;
    l->buffers[l->n_buffers++] =
        (qn_plan_buffer){.rows = rows, .row_bytes = bytes, .first = call, .last = call};
    return QN_OK;
}

// The form in which a node leaves a result.
static qn_word result_form(const qn_node *node, int o) {
    return qn_op_get(node->op)->packs >> o & 1 ? node->attrs.form : QN_WORD_f32;
}

static qn_status add_result(lowering *l, const qn_node *node, int o) {
    const qn_value *value = &l->graph->values[node->out[o]];
    qn_plan_arg *arg = &l->args[node->out[o]];
    if (value->kind != QN_TENSOR) { // state stays where it is
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0 && l->graph->values[node->in[k]].kind == value->kind)
                *arg = l->args[node->in[k]];
        }
        return QN_OK;
    }
    *arg = (qn_plan_arg){.form = result_form(node, o)};
    QN_TRY(set_row(arg, value, l->err));
    return add_buffer(l, arg, rows_of(&value->shape));
}

static void keep_until(lowering *l, const qn_plan_arg *arg, int32_t call) {
    if (arg->place == QN_PLACE_BUFFER) l->buffers[arg->index].last = call;
}

// The rows that a node works on: of its result; where that has none, of what it puts into a cache or
// makes one row of.
static qn_dim node_rows(const lowering *l, const qn_node *node) {
    const qn_value *values = l->graph->values, *result = &values[node->out[0]];
    if (result->kind == QN_TENSOR && rows_of(&result->shape).sym != QN_SYM_ONE)
        return rows_of(&result->shape);
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0 && values[node->in[k]].kind == QN_TENSOR)
            return rows_of(&values[node->in[k]].shape);
    }
    return (qn_dim){1, QN_SYM_ONE};
}

// A weight lies in one layout: all ops that read it must want that one.
static qn_status check_layout(const lowering *l, qn_op op, int input, const qn_plan_arg *arg) {
    if (arg->place != QN_PLACE_PARAM) return QN_OK;
    const qn_plan_leaf *leaf = &l->plan.leaves[QN_PLACE_PARAM][arg->index];
    const qn_word wanted = l->backend->layout(op, input);
    if (leaf->layout == wanted) return QN_OK;
    return QN_FAIL(l->err, UNSUPPORTED, "weight %s lies in %s, %s reads it in %s", leaf->name,
                   qn_word_get(leaf->layout)->name, qn_op_get(op)->name, qn_word_get(wanted)->name);
}

static qn_status add_calls(lowering *l, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    const qn_recipe *recipe = &l->backend->recipes[node->op];
    if (recipe->n_stages == 0)
        return QN_FAIL(l->err, UNSUPPORTED, "op %s has no kernel on %s", info->name,
                       l->backend->name);
    qn_plan_call call = {.op = node->op,
                         .layer = node->layer,
                         .attrs = node->attrs,
                         .n_in = node->n_in,
                         .n_out = node->n_out};
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0) call.in[k] = l->args[node->in[k]];
        QN_TRY(check_layout(l, node->op, k, &call.in[k]));
    }
    call.rows = node_rows(l, node);
    for (int o = 0; o < node->n_out; o++) {
        QN_TRY(add_result(l, node, o));
        call.out[o] = l->args[node->out[o]];
    }
    call.n_temp = recipe->temps ? recipe->temps(call.temp, l->graph, node) : 0;
    for (int i = 0; i < call.n_temp; i++) QN_TRY(add_buffer(l, &call.temp[i], call.rows));
    const int32_t last = (int32_t)l->plan.n_calls + recipe->n_stages - 1;
    for (int k = 0; k < call.n_in; k++) keep_until(l, &call.in[k], last);
    for (int o = 0; o < call.n_out; o++) keep_until(l, &call.out[o], last);
    for (int i = 0; i < call.n_temp; i++) keep_until(l, &call.temp[i], last);
    for (int s = 0; s < recipe->n_stages; s++) {
        call.kernel = l->backend->kernels[recipe->stages[s]]; // traces keep it after the plan
        call.stage = s;
        l->plan.calls[l->plan.n_calls++] = call;
    }
    return QN_OK;
}

static qn_status add_outputs(lowering *l) {
    qn_plan *plan = &l->plan;
    for (size_t i = 0; i < l->graph->n_outputs; i++) {
        const qn_output *output = &l->graph->outputs[i];
        qn_plan_output *to = &plan->outputs[plan->n_outputs++];
        *to = (qn_plan_output){.name = copy_name(l, output->name),
                               .rows = rows_of(&l->graph->values[output->value].shape),
                               .arg = l->args[output->value]};
        if (!to->name || !qn_share_dup(&to->share, &plan->arena, output->share))
            return QN_NOMEM(l->err, "plan");
        if (to->arg.place != QN_PLACE_BUFFER || to->arg.form != QN_WORD_f32)
            return QN_FAIL(l->err, UNSUPPORTED, "output %s is not a computed value", output->name);
        keep_until(l, &to->arg, (int32_t)plan->n_calls - 1);
    }
    return QN_OK;
}

static qn_status reserve(lowering *l) {
    qn_plan *plan = &l->plan;
    size_t n_calls = 0;
    for (size_t i = 0; i < l->graph->n_nodes; i++)
        n_calls += (size_t)l->backend->recipes[l->graph->nodes[i].op].n_stages;
    plan->name = copy_name(l, l->graph->name);
    plan->backend = copy_name(l, l->backend->name);
    plan->calls = qn_arena_alloc(&plan->arena, n_calls, sizeof *plan->calls);
    plan->outputs = qn_arena_alloc(&plan->arena, l->graph->n_outputs, sizeof *plan->outputs);
    bool ok = plan->name && plan->backend && plan->calls && plan->outputs;
    for (int p = 0; p < QN_PLACE_COUNT; p++) {
        plan->leaves[p] = qn_arena_alloc(&plan->arena, l->graph->n_nodes, sizeof *plan->leaves[p]);
        ok = ok && plan->leaves[p];
    }
    return ok ? QN_OK : QN_NOMEM(l->err, "plan");
}

static qn_status add_nodes(lowering *l) {
    QN_TRY(reserve(l));
    for (size_t i = 0; i < l->graph->n_nodes; i++) {
        const qn_node *node = &l->graph->nodes[i];
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF)
            QN_TRY(add_leaf(l, node));
        else if (qn_lower_is_view(l->graph, node))
            QN_TRY(add_view(l, node));
        else
            QN_TRY(add_calls(l, node));
    }
    QN_TRY(add_outputs(l));
    l->plan.buffers = qn_arena_alloc(&l->plan.arena, l->n_buffers, sizeof *l->buffers);
    if (!l->plan.buffers) return QN_NOMEM(l->err, "plan");
    if (l->n_buffers) memcpy(l->plan.buffers, l->buffers, l->n_buffers * sizeof *l->buffers);
    l->plan.n_buffers = l->n_buffers;
    return QN_OK;
}

qn_status qn_lower(qn_plan *out, const qn_graph *graph, const qn_backend *backend, qn_err *err) {
    lowering l = {.graph = graph, .backend = backend, .err = err};
    l.args = qn_alloc(graph->n_values, sizeof *l.args);
    if (!l.args) return QN_NOMEM(err, "plan");
    const qn_status status = add_nodes(&l);
    qn_free(l.args);
    qn_free(l.buffers);
    if (status)
        qn_plan_deinit(&l.plan);
    else
        *out = l.plan;
    return status;
}
