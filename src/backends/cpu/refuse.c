// What the CPU cannot run, and why.
#include "backends/cpu/cpu.h"
#include "backends/refuse_shapes.h"

const char *qn_cpu_refuse(const qn_graph *graph, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    for (int i = 0; i < node->n_in; i++) {
        if (info->kinds[i] != 'w' || node->in[i] == QN_NO_VALUE) continue;
        const char *why = qn_refuse_weight(graph, node, i);
        if (why) return why;
        if (!qn_pack_supports(graph->values[node->in[i]].type))
            return "the weight's type has no packed layout";
    }
    return qn_refuse_shapes(graph, node);
}
