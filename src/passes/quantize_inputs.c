// Activations are rounded before weights of integer types: the form that a kernel packs them in is
// a node of its own. This is the one pass that changes results.
#include "passes/match.h"

#include "core/mem.h"

// Whether the result of matmul i ends in a gate: act(x g') * (x u'), biases between allowed.
static bool is_gate_or_up(const qn_rewrite *rw, int32_t i) {
    const qn_graph *g = rw->graph;
    int32_t value = g->nodes[i].out[0];
    for (int hops = 0; hops < 3 && qn_rw_n_users(rw, value) == 1; hops++) {
        const int32_t user = qn_rw_user(rw, value, 0);
        if (g->nodes[user].op == QN_OP_MUL) {
            qn_gate_match gate;
            return qn_match_gate(&gate, rw, user, g->nodes[i].op) && gate.has_same_x &&
                   (gate.gate == i || gate.up == i);
        }
        if (!qn_is_act(g->nodes[user].op) && g->nodes[user].op != QN_OP_ADD) return false;
        value = g->nodes[user].out[0];
    }
    return false;
}

static qn_word form_of(const qn_rewrite *rw, int32_t i) {
    if (rw->opts->numerics == QN_NUMERICS_FAST) return QN_WORD_i8_32;
    if (rw->opts->numerics == QN_NUMERICS_EXACT) return QN_WORD_i12_256;
    return is_gate_or_up(rw, i) ? QN_WORD_i8_32 : QN_WORD_i12_256;
}

// Whether node i multiplies with integers what is not yet rounded.
static bool is_wanted(const qn_rewrite *rw, size_t i) {
    const qn_node *node = &rw->graph->nodes[i];
    if (node->op != QN_OP_MATMUL && node->op != QN_OP_GROUPED_MATMUL) return false;
    return qn_type_get(rw->graph->values[node->in[1]].type)->block > 1 &&
           qn_rw_made_by(rw, node->in[0], QN_OP_QUANTIZE) < 0;
}

void qn_pass_quantize(qn_rewrite *rw) {
    qn_word *forms = qn_alloc(rw->n_nodes, sizeof *forms); // before anything is changed
    if (!forms) {
        rw->b.status = QN_NOMEM(&rw->b.err, "forms of activations");
        return;
    }
    for (size_t i = 0; i < rw->n_nodes; i++) {
        if (is_wanted(rw, i)) forms[i] = form_of(rw, (int32_t)i);
    }
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node node = rw->graph->nodes[i];
        if (!is_wanted(rw, i)) continue;
        const int32_t x =
            qn_rw_add(rw, node.layer, QN_OP_QUANTIZE, node.in, 1, &(qn_attrs){.form = forms[i]});
        qn_rw_set(rw, (int32_t)i, node.op, (int32_t[]){x, node.in[1], node.in[2]}, node.n_in, NULL,
                  NULL);
        qn_rw_fired(rw);
    }
    qn_free(forms);
}
