// Activations are rounded before weights of integer types: the form that a kernel packs them in is
// a node of its own. This is the one pass that changes results.
#include "passes/match.h"

#include "core/mem.h"

// Whether the result of matmul i ends in a gate: act(x g') * (x u'), biases and adapters between
// allowed: a row without an adapter must not be rounded otherwise where others have one.
static bool is_gate_or_up(const qn_rewrite *rw, int32_t i) {
    const qn_graph *g = rw->graph;
    int32_t value = g->nodes[i].out[0];
    for (int hops = 0; hops < 4 && qn_rw_n_users(rw, value) == 1; hops++) {
        const int32_t user = qn_rw_user(rw, value, 0);
        if (g->nodes[user].op == QN_OP_MUL) {
            qn_gr_gate_match gate;
            return qn_match_gate(&gate, rw, user, g->nodes[i].op) && gate.has_same_x &&
                   (gate.gate == i || gate.up == i);
        }
        const qn_op op = g->nodes[user].op;
        if (!qn_is_act(op) && op != QN_OP_ADD && op != QN_OP_LORA) return false;
        value = g->nodes[user].out[0];
    }
    return false;
}

// A delta rule amplifies what was rounded before it, in its own layer or an earlier one; least what
// only decides how open a gate is (docs/numbers.md).
int64_t qn_passes_fine_layers(const qn_graph *graph) {
    int64_t n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        if (node->op == QN_OP_DELTA && node->layer >= n) n = node->layer + 1;
    }
    return n;
}

static qn_word form_of(const qn_rewrite *rw, int32_t i) {
    const int32_t layer = rw->graph->nodes[i].layer;
    if (rw->opts->numerics == QN_NUMERICS_FAST) return QN_WORD_i8_32;
    if (rw->opts->numerics == QN_NUMERICS_BALANCED)
        return is_gate_or_up(rw, i) ? QN_WORD_i8_32 : QN_WORD_i12_256;
    const bool is_fine = layer >= 0 && layer < rw->opts->fine_layers && !is_gate_or_up(rw, i);
    return is_fine ? QN_WORD_i16_256 : QN_WORD_i12_256;
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
