// How much of a row a recurrent op must log so that the row can be applied later.
#include "backends/backend.h"

static int64_t row_size(const qn_graph *graph, const qn_node *node, int input) {
    const qn_shape *shape = &graph->values[node->in[input]].shape; // (T, ...)
    int64_t n = 1;
    for (int i = 1; i < shape->n_dims; i++) n *= shape->dims[i].n;
    return n;
}

int64_t qn_log_size(const qn_graph *graph, const qn_node *node) {
    const uint32_t logs = qn_op_get(node->op)->logs;
    int64_t n = 0;
    for (int i = 0; i < node->n_in; i++) {
        if (logs >> i & 1) n += row_size(graph, node, i);
    }
    return n;
}

static int64_t dim(const qn_graph *graph, int32_t value, int i) {
    return graph->values[value].shape.dims[i].n;
}

qn_log_rule qn_log_rule_of(const qn_graph *graph, const qn_node *node) {
    const int32_t *in = node->in;
    qn_log_rule rule = {.op = node->op, .log_size = qn_log_size(graph, node)};
    if (node->op == QN_OP_CONV) { // x (T, C), w (C, N)
        rule.channels = dim(graph, in[1], 0);
        rule.kept = dim(graph, in[1], 1) - 1;
    } else { // q, k (T, G, E), v (T, H, F)
        rule.key_heads = dim(graph, in[1], 1);
        rule.k_size = dim(graph, in[1], 2);
        rule.heads = dim(graph, in[2], 1);
        rule.v_size = dim(graph, in[2], 2);
        rule.is_tiled = node->attrs.heads == QN_WORD_tiled;
    }
    return rule;
}
