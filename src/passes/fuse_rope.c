// rms_norm of each head, then rotate -> rotate with a norm.
#include "passes/rewrite.h"

void qn_pass_fuse_rope(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node rotate = rw->graph->nodes[i];
        if (rotate.op != QN_OP_ROTATE || (rotate.n_in > 2 && rotate.in[2] >= 0)) continue;
        const int32_t at = qn_rw_made_by(rw, rotate.in[0], QN_OP_RMS_NORM);
        if (at < 0) continue;
        const qn_node norm = rw->graph->nodes[at];
        if (!qn_rw_is_inner(rw, norm.out[0])) {
            qn_rw_missed(rw, rotate.layer, "the norm is read by others too");
            continue;
        }
        qn_attrs attrs = rotate.attrs;
        attrs.eps = norm.attrs.eps;
        qn_rw_absorb(rw, at);
        qn_rw_set(rw, (int32_t)i, QN_OP_ROTATE, (int32_t[]){norm.in[0], rotate.in[1], norm.in[1]},
                  3, NULL, &attrs);
        qn_rw_fired(rw);
    }
}
