// Dead code: nodes that no output and no state needs. Inputs stay, since others bind them by name,
// and what ranks gather, since other ranks may need it.
#include "passes/rewrite.h"

#include "core/mem.h"

// A node is live in itself if it is given with each step, gives to other ranks or changes what a
// sequence keeps.
static bool is_root(const qn_graph *g, const qn_node *node) {
    if (node->op == QN_OP_INPUT || qn_node_gathers(node)) return true;
    for (int o = 0; o < node->n_out; o++) {
        if (g->values[node->out[o]].kind != QN_TENSOR) return true;
    }
    return false;
}

void qn_rw_find_needed(bool *is_needed, const qn_graph *g) {
    for (size_t o = 0; o < g->n_outputs; o++) is_needed[g->values[g->outputs[o].value].node] = true;
    for (size_t i = g->n_nodes; i-- > 0;) {
        const qn_node *node = &g->nodes[i];
        is_needed[i] = is_needed[i] || is_root(g, node);
        for (int k = 0; k < node->n_in && is_needed[i]; k++) {
            if (node->in[k] >= 0) is_needed[g->values[node->in[k]].node] = true;
        }
    }
}

void qn_pass_dce(qn_rewrite *rw) {
    const qn_graph *g = rw->graph;
    bool *is_needed = qn_alloc(g->n_nodes, sizeof *is_needed);
    if (!is_needed) {
        rw->b.status = QN_NOMEM(&rw->b.err, "dead code");
        return;
    }
    qn_rw_find_needed(is_needed, g);
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (is_needed[i]) continue;
        qn_rw_remove(rw, (int32_t)i);
        qn_rw_fired(rw);
    }
    qn_free(is_needed);
}
