// act(x gate') * (x up') -> gated.
#include "passes/match.h"

void qn_pass_fuse_gate(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node *nodes = rw->graph->nodes;
        qn_gr_gate_match gate;
        if (nodes[i].op != QN_OP_MUL || !qn_match_gate(&gate, rw, (int32_t)i, QN_OP_MATMUL))
            continue;
        const char *problem = qn_gr_gate_problem(&gate, rw);
        if (problem) {
            qn_rw_missed(rw, nodes[i].layer, problem);
            continue;
        }
        const int32_t in[] = {gate.x, nodes[gate.gate].in[1], nodes[gate.up].in[1]};
        const qn_attrs attrs = {.act = qn_act_word(nodes[gate.act].op)};
        qn_rw_absorb(rw, gate.gate);
        qn_rw_absorb(rw, gate.up);
        qn_rw_absorb(rw, gate.act);
        qn_rw_set(rw, (int32_t)i, QN_OP_GATED, in, 3, NULL, &attrs);
        qn_rw_fired(rw);
    }
}
