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
