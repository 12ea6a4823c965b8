// rms_norm that only a quantize reads -> norm_quantize.
#include "passes/rewrite.h"

void qn_pass_fuse_norm(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node quantize = rw->graph->nodes[i];
        if (quantize.op != QN_OP_QUANTIZE) continue;
        const int32_t at = qn_rw_made_by(rw, quantize.in[0], QN_OP_RMS_NORM);
        if (at < 0) continue;
        const qn_node norm = rw->graph->nodes[at];
        if (!qn_rw_is_inner(rw, norm.out[0])) {
            qn_rw_missed(rw, quantize.layer, "the norm is read by others too");
            continue;
        }
        qn_rw_absorb(rw, at);
        qn_rw_set(rw, (int32_t)i, QN_OP_NORM_QUANTIZE, norm.in, 2, NULL,
                  &(qn_attrs){.eps = norm.attrs.eps, .form = quantize.attrs.form});
        qn_rw_fired(rw);
    }
}
