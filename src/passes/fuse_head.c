// The matmul that makes the output "logits", and its soft cap -> head, which finds the best entries
// of each row on the way: the new output "best".
#include "passes/rewrite.h"

// Why the logits cannot come from a head; NULL if they can. `matmul` makes them, `cap` (-1: none)
// follows it.
static const char *find_problem(const qn_rewrite *rw, int32_t matmul, int32_t cap) {
    const qn_graph *g = rw->graph;
    const qn_node *node = &g->nodes[matmul];
    const qn_shape *x = &g->values[node->in[0]].shape, *w = &g->values[node->in[1]].shape;
    if (qn_graph_find_output(g, "best") >= 0) return "there is an output best already";
    if (cap >= 0 && !qn_rw_is_inner(rw, node->out[0])) return "logits are read without their cap";
    if (cap >= 0 && !(g->nodes[cap].attrs.cap > 0)) return "a cap of nothing";
    if (x->n_dims != 2 || w->n_dims != 2) return "logits are not rows";
    if (w->dims[0].n > QN_HEAD_ENTRIES) return "more entries than floats can count";
    return NULL;
}

void qn_pass_fuse_head(qn_rewrite *rw) {
    const qn_graph *g = rw->graph;
    const int32_t logits = qn_graph_find_output(g, "logits");
    if (logits < 0) return;
    const int32_t cap = qn_rw_made_by(rw, logits, QN_OP_SOFTCAP);
    const int32_t matmul = qn_rw_made_by(rw, cap < 0 ? logits : g->nodes[cap].in[0], QN_OP_MATMUL);
    const int32_t layer = g->nodes[g->values[logits].node].layer;
    const char *problem = matmul < 0 ? "no matmul makes the logits" : find_problem(rw, matmul, cap);
    if (problem) {
        qn_rw_missed(rw, layer, problem);
        return;
    }
    const int32_t w = qn_rw_made_by(rw, g->nodes[matmul].in[1], QN_OP_PARAM);
    const qn_share *share = w < 0 ? NULL : g->nodes[w].share;
    const qn_attrs attrs = {.start = share ? share->ranges[0].first : 0,
                            .top = QN_HEAD_TOP,
                            .cap = cap < 0 ? 0 : g->nodes[cap].attrs.cap};
    const int32_t head = qn_rw_add(rw, layer, QN_OP_HEAD, g->nodes[matmul].in, 2, &attrs);
    if (!qn_rw_redirect(rw, logits, head)) return;
    qn_rw_absorb(rw, matmul);
    if (cap >= 0) qn_rw_absorb(rw, cap);
    qn_build_output(&rw->b, "best", head + 1);
    qn_rw_fired(rw);
}
