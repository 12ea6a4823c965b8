#include "ir/build.h"

#include "core/mem.h"

#include <assert.h>
#include <string.h>

void qn_build_init(qn_build *b, qn_graph *graph, const char *name) {
    *b = (qn_build){.graph = graph, .layer = -1};
    graph->name = qn_arena_strdup(&graph->arena, name, strlen(name));
    if (!graph->name) b->status = QN_NOMEM(&b->err, "graph");
}

qn_status qn_build_finish(qn_build *b, qn_err *err) {
    if (b->status && err) *err = b->err;
    return b->status;
}

static bool reserve(qn_build *b) {
    qn_graph *g = b->graph;
    void *values = g->values, *nodes = g->nodes;
    const bool ok = qn_grow(&values, &g->cap_values, g->n_values + QN_MAX_OUT, sizeof *g->values) &&
                    qn_grow(&nodes, &g->cap_nodes, g->n_nodes + 1, sizeof *g->nodes);
    g->values = values;
    g->nodes = nodes;
    if (!ok) b->status = QN_NOMEM(&b->err, "graph");
    return ok;
}

// Appends a node with its results; returns the first result.
static int32_t append(qn_build *b, const qn_node *node, const qn_value *results) {
    qn_graph *g = b->graph;
    const int32_t first = (int32_t)g->n_values;
    qn_node *at = &g->nodes[g->n_nodes];
    *at = *node;
    at->layer = b->layer;
    for (int i = 0; i < node->n_out; i++) {
        at->out[i] = first + i;
        g->values[g->n_values] = results[i];
        g->values[g->n_values].node = (int32_t)g->n_nodes;
        if (!results[i].name) g->values[g->n_values].name = "";
        g->n_values++;
    }
    g->n_nodes++;
    return first;
}

static int32_t append_leaf(qn_build *b, qn_op op, const char *name, qn_value value,
                           const float *data) {
    if (b->status || !reserve(b)) return QN_NO_VALUE;
    value.name = qn_arena_strdup(&b->graph->arena, name, strlen(name));
    if (!value.name) {
        b->status = QN_NOMEM(&b->err, "graph");
        return QN_NO_VALUE;
    }
    const qn_node node = {.op = op, .n_out = 1, .data = data};
    return append(b, &node, &value);
}

int32_t qn_build_input(qn_build *b, const char *name, qn_kind kind, qn_type type, qn_shape shape) {
    const qn_value value = {.kind = kind, .type = type, .shape = shape};
    return append_leaf(b, QN_OP_INPUT, name, value, NULL);
}

int32_t qn_build_param(qn_build *b, const char *name, qn_type type, qn_shape shape) {
    const qn_value value = {.kind = QN_TENSOR, .type = type, .shape = shape};
    return append_leaf(b, QN_OP_PARAM, name, value, NULL);
}

int32_t qn_build_const(qn_build *b, const char *name, const float *data, int64_t n) {
    if (b->status) return QN_NO_VALUE;
    float *copy = qn_arena_alloc(&b->graph->arena, (size_t)n, sizeof *copy);
    if (!copy) {
        b->status = QN_NOMEM(&b->err, name);
        return QN_NO_VALUE;
    }
    memcpy(copy, data, (size_t)n * sizeof *copy);
    const qn_value value = {
        .kind = QN_TENSOR, .type = QN_TYPE_F32, .shape = {1, {{n, QN_SYM_ONE}}}};
    return append_leaf(b, QN_OP_CONST, name, value, copy);
}

int32_t qn_build_op(qn_build *b, qn_op op, const int32_t *in, int n_in, const qn_attrs *attrs) {
    assert(n_in <= QN_MAX_IN);
    if (b->status || !reserve(b)) return QN_NO_VALUE;
    qn_node node = {.op = op, .n_in = n_in, .n_out = qn_op_get(op)->n_out};
    memcpy(node.in, in, (size_t)n_in * sizeof *in);
    if (attrs) node.attrs = *attrs;
    qn_value results[QN_MAX_OUT] = {{0}};
    b->status = qn_infer(results, b->graph, &node, &b->err);
    if (b->status) {
        qn_err_prefix(&b->err, b->status, "layer %d", b->layer);
        return QN_NO_VALUE;
    }
    for (int i = 0; i < node.n_out; i++) results[i].name = "";
    return append(b, &node, results);
}

int32_t qn_build1(qn_build *b, qn_op op, int32_t x, const qn_attrs *attrs) {
    return qn_build_op(b, op, (int32_t[]){x}, 1, attrs);
}

int32_t qn_build2(qn_build *b, qn_op op, int32_t x, int32_t y, const qn_attrs *attrs) {
    return qn_build_op(b, op, (int32_t[]){x, y}, 2, attrs);
}

int32_t qn_build3(qn_build *b, qn_op op, int32_t x, int32_t y, int32_t z, const qn_attrs *attrs) {
    return qn_build_op(b, op, (int32_t[]){x, y, z}, 3, attrs);
}

static int32_t copy_leaf(qn_build *b, const qn_node *node, const qn_value *value) {
    if (node->op == QN_OP_PARAM) return qn_build_param(b, value->name, value->type, value->shape);
    if (node->op == QN_OP_CONST)
        return qn_build_const(b, value->name, node->data, value->shape.dims[0].n);
    return qn_build_input(b, value->name, value->kind, value->type, value->shape);
}

void qn_build_copy(qn_build *b, const qn_graph *from, const qn_node *node, int32_t *to) {
    int32_t in[QN_MAX_IN];
    b->layer = node->layer;
    if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF) {
        to[node->out[0]] = copy_leaf(b, node, &from->values[node->out[0]]);
        return;
    }
    for (int k = 0; k < node->n_in; k++) in[k] = node->in[k] < 0 ? QN_NO_VALUE : to[node->in[k]];
    const int32_t out = qn_build_op(b, node->op, in, node->n_in, &node->attrs);
    for (int o = 0; o < node->n_out && out != QN_NO_VALUE; o++) {
        const qn_value *value = &from->values[node->out[o]];
        to[node->out[o]] = out + o;
        if (value->name[0]) qn_build_name(b, out + o, value->name);
    }
}

void qn_build_output(qn_build *b, const char *name, int32_t value) {
    if (b->status) return;
    qn_graph *g = b->graph;
    void *outputs = g->outputs;
    const bool grown = qn_grow(&outputs, &g->cap_outputs, g->n_outputs + 1, sizeof *g->outputs);
    g->outputs = outputs;
    const char *copy = grown ? qn_arena_strdup(&g->arena, name, strlen(name)) : NULL;
    if (!copy) {
        b->status = QN_NOMEM(&b->err, "graph");
        return;
    }
    g->outputs[g->n_outputs++] = (qn_output){.value = value, .name = copy};
}

void qn_build_name(qn_build *b, int32_t value, const char *name) {
    if (b->status) return;
    const char *copy = qn_arena_strdup(&b->graph->arena, name, strlen(name));
    if (copy)
        b->graph->values[value].name = copy;
    else
        b->status = QN_NOMEM(&b->err, "graph");
}
