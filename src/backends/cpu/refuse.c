// What the CPU cannot run, and why.
#include "backends/cpu/cpu.h"

static const char *refuse_weight(const qn_graph *graph, int32_t value) {
    const qn_value *w = &graph->values[value];
    if (graph->nodes[w->node].op != QN_OP_PARAM) return "the weight is no parameter";
    if (!qn_pack_supports(w->type)) return "the weight's type has no packed layout";
    const qn_dim inner = w->shape.dims[w->shape.n_dims - 1];
    if (inner.n % qn_type_get(w->type)->block) return "a row of the weight is no whole blocks";
    return NULL;
}

const char *qn_cpu_refuse(const qn_graph *graph, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    for (int i = 0; i < node->n_in; i++) {
        if (info->kinds[i] != 'w' || node->in[i] == QN_NO_VALUE) continue;
        const char *why = refuse_weight(graph, node->in[i]);
        if (why) return why;
    }
    return qn_cpu_refuse_seq(graph, node);
}
