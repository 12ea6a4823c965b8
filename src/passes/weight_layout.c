// How each weight lies in memory: as the device wants it for the ops that read it.
#include "passes/rewrite.h"

// Without a device: what multiplies is read in tiles.
static qn_word wanted(const qn_rewrite *rw, qn_op op, int input) {
    if (rw->opts->layout) return rw->opts->layout(rw->opts->layout_arg, op, input);
    return qn_op_get(op)->kinds[input] == 'w' ? QN_WORD_tiles : QN_WORD_rows;
}

// What all readers of a value want; rows where they disagree.
static qn_word layout_of(const qn_rewrite *rw, int32_t value) {
    qn_word layout = QN_WORD_rows;
    bool is_first = true;
    for (int32_t u = 0; u < qn_rw_n_users(rw, value) && !qn_rw_is_kept(rw, value); u++) {
        const qn_node *user = &rw->graph->nodes[qn_rw_user(rw, value, u)];
        for (int k = 0; k < user->n_in; k++) {
            if (user->in[k] != value) continue;
            const qn_word next = wanted(rw, user->op, k);
            layout = is_first || layout == next ? next : QN_WORD_rows;
            is_first = false;
        }
    }
    return layout;
}

void qn_pass_layout(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes; i++) {
        qn_node *node = &rw->graph->nodes[i];
        if (node->op != QN_OP_PARAM) continue;
        node->attrs.layout = layout_of(rw, node->out[0]);
        if (node->attrs.layout != QN_WORD_rows) qn_rw_fired(rw);
    }
}
