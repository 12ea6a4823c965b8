// Ops that are better done in parts: rope becomes angles, which are computed once a step for all
// layers, and a rotation; gathering from all devices is nothing on one device.
#include "passes/rewrite.h"

static void split_rope(qn_rewrite *rw, int32_t i) {
    const qn_node rope = rw->graph->nodes[i];
    const int32_t angles =
        qn_rw_add_early(rw, -1, QN_OP_ANGLES, rope.in + 1, 2,
                        &(qn_attrs){.scale = rope.attrs.scale, .sections = rope.attrs.sections});
    qn_rw_set(rw, i, QN_OP_ROTATE, (int32_t[]){rope.in[0], angles}, 2, NULL,
              &(qn_attrs){.rotate = rope.attrs.rotate, .pairs = rope.attrs.pairs});
    qn_rw_fired(rw);
}

void qn_pass_decompose(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node *node = &rw->graph->nodes[i];
        // Angles are made for all rows of the step.
        const qn_dim rows = rw->graph->values[node->out[0]].shape.dims[0];
        if (node->op == QN_OP_ROPE) {
            if (rows.sym == QN_SYM_T && rows.n == 1)
                split_rope(rw, (int32_t)i);
            else
                qn_rw_missed(rw, node->layer, "not the rows of the step");
        } else if (node->op == QN_OP_ALL_GATHER && !qn_node_gathers(node) &&
                   qn_rw_redirect(rw, node->out[0], node->in[0])) {
            qn_rw_absorb(rw, (int32_t)i);
            qn_rw_fired(rw);
        }
    }
}
