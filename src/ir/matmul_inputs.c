#include "ir/matmul_inputs.h"

#include "core/mem.h"
#include "ir/build.h"

#include <stdio.h>

// A value whose sums are there.
typedef struct summed {
    int32_t ids, sums; // QN_NO_VALUE: no ids; no sums yet
} summed;

typedef struct adding {
    const qn_graph *graph;
    int32_t *to;    // (n_values) the value in the copy
    summed *summed; // (n_values)
    qn_build b;
    qn_matmul_input *items; // (n_nodes), of the copy's arena
    size_t n;
} adding;

// Matrices that read the same share the sums.
static int32_t sums_of(adding *a, const qn_node *node, int64_t n_experts) {
    const int32_t x = node->in[0];
    const int32_t ids = node->op == QN_OP_GROUPED_MATMUL ? node->in[2] : QN_NO_VALUE;
    if (a->summed[x].sums == QN_NO_VALUE || a->summed[x].ids != ids) {
        const int32_t in[] = {a->to[x], ids < 0 ? QN_NO_VALUE : a->to[ids]};
        const int32_t sums = qn_build_op(&a->b, QN_OP_SUM_SQUARES, in, ids < 0 ? 1 : 2,
                                         &(qn_attrs){.length = n_experts});
        a->summed[x] = (summed){ids, sums};
    }
    return a->summed[x].sums;
}

static void add_sums(adding *a, const qn_node *node) {
    const qn_shape *shape = &a->graph->values[node->in[1]].shape;
    const int64_t n_experts = shape->n_dims == 3 ? shape->dims[0].n : 1;
    const qn_graph *copy = a->b.graph;
    char name[32];
    snprintf(name, sizeof name, "squares.%zu", a->n);
    qn_build_output(&a->b, name, sums_of(a, node, n_experts));
    if (a->b.status) return;
    a->items[a->n++] = (qn_matmul_input){.weight = copy->values[a->to[node->in[1]]].name,
                                         .output = copy->outputs[copy->n_outputs - 1].name,
                                         .n_experts = n_experts,
                                         .width = shape->dims[shape->n_dims - 1].n};
}

static bool has_weight(const qn_graph *graph, const qn_node *node) {
    if (node->op != QN_OP_MATMUL && node->op != QN_OP_GROUPED_MATMUL) return false;
    const qn_value *w = &graph->values[node->in[1]];
    return graph->nodes[w->node].op == QN_OP_PARAM && w->name[0];
}

static qn_status copy_graph(adding *a, qn_graph *out, qn_err *err) {
    const qn_graph *graph = a->graph;
    a->to = qn_alloc(graph->n_values, sizeof *a->to);
    a->summed = qn_alloc(graph->n_values, sizeof *a->summed);
    a->items = qn_arena_alloc(&out->arena, graph->n_nodes, sizeof *a->items);
    if (!a->to || !a->summed || !a->items) return QN_NOMEM(err, "inputs of matmuls");
    for (size_t i = 0; i < graph->n_values; i++) a->summed[i] = (summed){QN_NO_VALUE, QN_NO_VALUE};
    qn_build_init(&a->b, out, graph->name);
    for (size_t i = 0; i < graph->n_nodes; i++) {
        qn_build_copy(&a->b, graph, &graph->nodes[i], a->to);
        if (has_weight(graph, &graph->nodes[i])) add_sums(a, &graph->nodes[i]);
    }
    return qn_build_finish(&a->b, err);
}

qn_status qn_matmul_inputs_init(qn_matmul_inputs *out, const qn_graph *graph, qn_err *err) {
    qn_matmul_inputs inputs = {0};
    adding a = {.graph = graph};
    const qn_status status = copy_graph(&a, &inputs.graph, err);
    qn_free(a.to);
    qn_free(a.summed);
    inputs.items = a.items;
    inputs.n = a.n;
    if (status)
        qn_matmul_inputs_deinit(&inputs);
    else
        *out = inputs;
    return status;
}

void qn_matmul_inputs_deinit(qn_matmul_inputs *inputs) {
    qn_graph_deinit(&inputs->graph);
    *inputs = (qn_matmul_inputs){0};
}
