// add, then rms_norm or norm_quantize of the sum -> add_norm. The sum may have other readers: it
// stays, as the first result.
#include "passes/rewrite.h"

// Why the norm at node i cannot take the add in; NULL if it can.
static const char *find_problem(const qn_rewrite *rw, const qn_node *add, const qn_node *norm) {
    const qn_value *values = rw->graph->values;
    if (!qn_shape_equal(&values[qn_rw_value(rw, add->in[0])].shape,
                        &values[qn_rw_value(rw, add->in[1])].shape))
        return "the sum is of different sizes";
    // A weight that depends on the sum would have to be there before it.
    return qn_rw_is_fixed(rw, norm->in[1]) ? NULL : "the norm's weight is computed";
}

void qn_pass_fuse_residual(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node norm = rw->graph->nodes[i];
        if (norm.op != QN_OP_RMS_NORM && norm.op != QN_OP_NORM_QUANTIZE) continue;
        const int32_t at = qn_rw_made_by(rw, norm.in[0], QN_OP_ADD);
        if (at < 0) continue; // also where another norm has taken it
        const qn_node add = rw->graph->nodes[at];
        const char *problem = find_problem(rw, &add, &norm);
        if (problem) {
            qn_rw_missed(rw, norm.layer, problem);
            continue;
        }
        const qn_word form = norm.op == QN_OP_RMS_NORM ? QN_WORD_f32 : norm.attrs.form;
        qn_rw_absorb(rw, at);
        qn_rw_set(rw, (int32_t)i, QN_OP_ADD_NORM, (int32_t[]){add.in[0], add.in[1], norm.in[1]}, 3,
                  (int32_t[]){add.out[0], norm.out[0]},
                  &(qn_attrs){.eps = norm.attrs.eps, .form = form});
        qn_rw_fired(rw);
    }
}
