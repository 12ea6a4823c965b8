// Weights that only matmuls and embeddings read are kept in tiles; norms, biases and what other ops
// read stay in rows.
#include "passes/rewrite.h"

// Whether all that read a value read it as a weight for tiles.
static bool is_tiled(const qn_rewrite *rw, int32_t value) {
    const int32_t n = qn_rw_n_users(rw, value);
    for (int32_t u = 0; u < n; u++) {
        const qn_node *user = &rw->graph->nodes[qn_rw_user(rw, value, u)];
        for (int k = 0; k < user->n_in; k++) {
            if (user->in[k] == value && qn_op_get(user->op)->kinds[k] != 'w') return false;
        }
    }
    return n > 0 && !qn_rw_is_kept(rw, value);
}

void qn_pass_layout(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes; i++) {
        qn_node *node = &rw->graph->nodes[i];
        if (node->op != QN_OP_PARAM || !is_tiled(rw, node->out[0])) continue;
        node->attrs.layout = QN_WORD_tiles;
        qn_rw_fired(rw);
    }
}
