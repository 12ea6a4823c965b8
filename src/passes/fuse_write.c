// rotate of the keys, then kv_write -> rotate_write.
#include "passes/rewrite.h"

void qn_pass_fuse_write(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node write = rw->graph->nodes[i];
        if (write.op != QN_OP_KV_WRITE) continue;
        const int32_t at = qn_rw_made_by(rw, write.in[1], QN_OP_ROTATE);
        if (at < 0) continue;
        const qn_node rotate = rw->graph->nodes[at];
        if (!qn_rw_is_inner(rw, rotate.out[0])) {
            qn_rw_missed(rw, write.layer, "the rotated keys are read by others too");
            continue;
        }
        const int32_t in[] = {write.in[0], rotate.in[0], write.in[2],
                              write.in[3], rotate.in[1], rotate.in[2]};
        qn_rw_absorb(rw, at);
        qn_rw_set(rw, (int32_t)i, QN_OP_ROTATE_WRITE, in, rotate.n_in > 2 ? 6 : 5, NULL,
                  &rotate.attrs);
        qn_rw_fired(rw);
    }
}
