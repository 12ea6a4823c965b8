#include "ir/cut.h"

#include "core/mem.h"
#include "ir/build.h"

#include <stdio.h>
#include <string.h>

typedef struct cutting {
    const qn_graph *graph;
    int64_t first, end; // layers of the stage
    int64_t *layer_of;  // (n_nodes) of what it computes; leaves: -1
    int32_t *to;        // (n_values) the value in the stage; QN_NO_VALUE: not made yet
    bool *leaves_stage; // (n_values) made here, read by a later stage
    qn_build b;
} cutting;

static bool is_leaf(const qn_node *node) { return qn_op_get(node->op)->class_of == QN_CLASS_LEAF; }

// A node outside the layers belongs to the last layer that it depends on: before them all, to the
// first; what shows the result of the last layer, to that.
static void find_layers(cutting *c, int64_t n_layers) {
    for (size_t i = 0; i < c->graph->n_nodes; i++) {
        const qn_node *node = &c->graph->nodes[i];
        int64_t layer = node->layer;
        for (int k = 0; k < node->n_in && node->layer < 0; k++) {
            if (node->in[k] < 0) continue;
            const int64_t before = c->layer_of[c->graph->values[node->in[k]].node];
            if (before > layer) layer = before;
        }
        if (!is_leaf(node) && layer < 0) layer = 0;
        if (layer >= n_layers) layer = n_layers - 1;
        c->layer_of[i] = is_leaf(node) ? -1 : layer;
    }
}

static bool is_here(const cutting *c, int64_t layer) { return layer >= c->first && layer < c->end; }

static void find_leaving(cutting *c) {
    for (size_t i = 0; i < c->graph->n_nodes; i++) {
        const qn_node *node = &c->graph->nodes[i];
        if (c->layer_of[i] < c->end) continue;
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] < 0) continue;
            const int32_t maker = c->graph->values[node->in[k]].node;
            if (is_here(c, c->layer_of[maker])) c->leaves_stage[node->in[k]] = true;
        }
    }
}

// A value that this stage reads is there: made here, a leaf, or handed over by an earlier stage.
static void bring(cutting *c, int32_t id) {
    if (id < 0 || c->to[id] != QN_NO_VALUE) return;
    const qn_value *value = &c->graph->values[id];
    const qn_node *maker = &c->graph->nodes[value->node];
    char name[32];
    if (is_leaf(maker)) {
        qn_build_copy(&c->b, c->graph, maker, c->to);
        return;
    }
    snprintf(name, sizeof name, QN_CUT_NAME "%d", id);
    c->to[id] = qn_build_input(&c->b, name, value->kind, value->type, value->shape);
}

static void add_node(cutting *c, const qn_node *node) {
    for (int k = 0; k < node->n_in; k++) bring(c, node->in[k]);
    qn_build_copy(&c->b, c->graph, node, c->to);
}

static void add_outputs(cutting *c) {
    for (size_t i = 0; i < c->graph->n_values; i++) {
        char name[32];
        if (!c->leaves_stage[i]) continue;
        snprintf(name, sizeof name, QN_CUT_NAME "%zu", i);
        qn_build_output(&c->b, name, c->to[i]);
    }
    for (size_t i = 0; i < c->graph->n_outputs; i++) {
        const qn_output *output = &c->graph->outputs[i];
        if (is_here(c, c->layer_of[c->graph->values[output->value].node]))
            qn_build_output(&c->b, output->name, c->to[output->value]);
    }
}

static void cut(cutting *c, int64_t n_layers) {
    find_layers(c, n_layers);
    find_leaving(c);
    for (size_t i = 0; i < c->graph->n_values; i++) c->to[i] = QN_NO_VALUE;
    for (size_t i = 0; i < c->graph->n_nodes; i++) {
        if (is_here(c, c->layer_of[i])) add_node(c, &c->graph->nodes[i]);
    }
    add_outputs(c);
}

// Only rows of floats can be handed over.
static qn_status check_leaving(const cutting *c, qn_err *err) {
    for (size_t i = 0; i < c->graph->n_values; i++) {
        const qn_value *value = &c->graph->values[i];
        const bool is_rows = value->kind == QN_TENSOR && value->type == QN_TYPE_F32 &&
                             value->shape.n_dims == 2 && value->shape.dims[0].sym == QN_SYM_T &&
                             value->shape.dims[0].n == 1;
        if (c->leaves_stage[i] && !is_rows)
            return QN_FAIL(err, UNSUPPORTED, "value %zu (%s) cannot be handed to another device", i,
                           value->name);
    }
    return QN_OK;
}

qn_status qn_graph_cut(qn_graph *out, const qn_graph *graph, int64_t first, int64_t end,
                       int64_t n_layers, qn_err *err) {
    qn_graph stage = {0};
    cutting c = {.graph = graph,
                 .first = first,
                 .end = end,
                 .layer_of = qn_alloc(graph->n_nodes, sizeof *c.layer_of),
                 .to = qn_alloc(graph->n_values, sizeof *c.to),
                 .leaves_stage = qn_alloc(graph->n_values, sizeof *c.leaves_stage)};
    qn_status status = QN_OK;
    if (!c.layer_of || !c.to || !c.leaves_stage) {
        status = QN_NOMEM(err, "stages");
    } else {
        qn_build_init(&c.b, &stage, graph->name);
        cut(&c, n_layers);
        status = qn_build_finish(&c.b, err);
        if (!status) status = check_leaving(&c, err);
    }
    if (status)
        qn_graph_deinit(&stage);
    else
        *out = stage;
    qn_free(c.layer_of);
    qn_free(c.to);
    qn_free(c.leaves_stage);
    return status;
}
