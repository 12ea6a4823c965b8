// route, the experts' gated feed-forward, combine -> experts.
#include "passes/match.h"

typedef struct experts {
    int32_t route, down, quantize, mul; // nodes; quantize: -1 if there is none
    qn_gr_gate_match gate;
} experts;

// The nodes that lead to COMBINE node i; false if they are not there.
static bool match(experts *e, const qn_rewrite *rw, const qn_node *combine) {
    const qn_node *nodes = rw->graph->nodes;
    e->route = qn_rw_made_by(rw, combine->in[1], QN_OP_ROUTE);
    e->down = qn_rw_made_by(rw, combine->in[0], QN_OP_GROUPED_MATMUL);
    if (e->route < 0 || e->down < 0) return false;
    int32_t inner = nodes[e->down].in[0];
    e->quantize = qn_rw_made_by(rw, inner, QN_OP_QUANTIZE);
    if (e->quantize >= 0) inner = nodes[e->quantize].in[0];
    e->mul = qn_rw_made_by(rw, inner, QN_OP_MUL);
    return e->mul >= 0 && qn_match_gate(&e->gate, rw, e->mul, QN_OP_GROUPED_MATMUL);
}

static const char *find_problem(const experts *e, const qn_rewrite *rw, const qn_node *combine) {
    const qn_node *nodes = rw->graph->nodes, *route = &nodes[e->route];
    const char *problem = qn_gr_gate_problem(&e->gate, rw);
    if (problem) return problem;
    const int32_t ids = route->out[0], matmuls[] = {e->gate.gate, e->gate.up, e->down};
    for (int m = 0; m < 3; m++) {
        if (nodes[matmuls[m]].in[2] != ids) return "chosen by another route";
    }
    if (combine->in[1] != route->out[1]) return "weighted by something else";
    if (rw->graph->values[e->gate.x].shape.n_dims != 2) return "not one row for all experts";
    const bool is_alone = qn_rw_n_users(rw, ids) == 3 && !qn_rw_is_kept(rw, ids) &&
                          qn_rw_is_inner(rw, route->out[1]) &&
                          qn_rw_is_inner(rw, nodes[e->down].out[0]) &&
                          qn_rw_is_inner(rw, nodes[e->mul].out[0]) &&
                          (e->quantize < 0 || qn_rw_is_inner(rw, nodes[e->quantize].out[0]));
    return is_alone ? NULL : "a value inside is read elsewhere";
}

static void fuse(qn_rewrite *rw, int32_t i, const experts *e) {
    const qn_node *nodes = rw->graph->nodes;
    qn_attrs attrs = nodes[e->route].attrs;
    attrs.act = qn_act_word(nodes[e->gate.act].op);
    attrs.form = e->quantize < 0 ? QN_WORD_f32 : nodes[e->quantize].attrs.form;
    const int32_t in[] = {e->gate.x, nodes[e->route].in[0], nodes[e->gate.gate].in[1],
                          nodes[e->gate.up].in[1], nodes[e->down].in[1]};
    const int32_t inside[] = {e->route, e->gate.gate, e->gate.up, e->gate.act,
                              e->mul,   e->down,      e->quantize};
    for (int k = 0; k < 7; k++) {
        if (inside[k] >= 0) qn_rw_absorb(rw, inside[k]);
    }
    qn_rw_set(rw, i, QN_OP_EXPERTS, in, 5, NULL, &attrs);
    qn_rw_fired(rw);
}

void qn_pass_fuse_experts(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node combine = rw->graph->nodes[i];
        experts e;
        if (combine.op != QN_OP_COMBINE || !match(&e, rw, &combine)) continue;
        const char *problem = find_problem(&e, rw, &combine);
        if (problem)
            qn_rw_missed(rw, combine.layer, problem);
        else
            fuse(rw, (int32_t)i, &e);
    }
}
