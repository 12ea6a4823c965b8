#include "passes/match.h"

static const struct {
    qn_op op;
    qn_word word;
} acts[] = {{QN_OP_SILU, QN_WORD_silu}, {QN_OP_GELU, QN_WORD_gelu}};
enum { N_ACTS = sizeof acts / sizeof acts[0] };

bool qn_is_act(qn_op op) {
    for (int i = 0; i < N_ACTS; i++) {
        if (acts[i].op == op) return true;
    }
    return false;
}

qn_word qn_act_word(qn_op op) {
    for (int i = 0; i < N_ACTS; i++) {
        if (acts[i].op == op) return acts[i].word;
    }
    return QN_WORD_silu;
}

qn_op qn_act_op(qn_word word) {
    for (int i = 0; i < N_ACTS; i++) {
        if (acts[i].word == word) return acts[i].op;
    }
    return QN_OP_SILU;
}

// The node of op `matmul` that makes a value, maybe with a bias or what an adapter adds.
static int32_t find_matmul(const qn_rewrite *rw, int32_t value, qn_op matmul, bool *has_bias) {
    for (int hops = 0; hops < 3; hops++) {
        const int32_t node = qn_rw_made_by(rw, value, matmul);
        if (node >= 0) {
            *has_bias = *has_bias || hops > 0;
            return node;
        }
        int32_t add = qn_rw_made_by(rw, value, QN_OP_ADD);
        if (add < 0) add = qn_rw_made_by(rw, value, QN_OP_LORA);
        if (add < 0) return -1;
        value = rw->graph->nodes[add].in[0];
    }
    return -1;
}

static int32_t find_act(const qn_rewrite *rw, int32_t value) {
    for (int i = 0; i < N_ACTS; i++) {
        const int32_t act = qn_rw_made_by(rw, value, acts[i].op);
        if (act >= 0) return act;
    }
    return -1;
}

bool qn_match_gate(qn_gr_gate_match *out, const qn_rewrite *rw, int32_t mul, qn_op matmul) {
    const qn_node *nodes = rw->graph->nodes;
    for (int side = 0; side < 2; side++) { // the gate may be on either side
        *out = (qn_gr_gate_match){.act = find_act(rw, nodes[mul].in[side])};
        if (out->act < 0) continue;
        out->gate = find_matmul(rw, nodes[out->act].in[0], matmul, &out->has_bias);
        out->up = find_matmul(rw, nodes[mul].in[1 - side], matmul, &out->has_bias);
        if (out->gate < 0 || out->up < 0 || out->gate == out->up) continue;
        out->x = qn_rw_value(rw, nodes[out->gate].in[0]);
        out->has_same_x = qn_rw_value(rw, nodes[out->up].in[0]) == out->x;
        out->inner[0] = nodes[out->gate].out[0];
        out->inner[1] = nodes[out->up].out[0];
        out->inner[2] = nodes[out->act].out[0];
        return true;
    }
    return false;
}

const char *qn_gr_gate_problem(const qn_gr_gate_match *gate, const qn_rewrite *rw) {
    if (gate->has_bias) return "bias between";
    if (!gate->has_same_x) return "gate and up read different values";
    const qn_node *nodes = rw->graph->nodes;
    const qn_value *values = rw->graph->values;
    if (!qn_shape_equal(&values[nodes[gate->gate].in[1]].shape,
                        &values[nodes[gate->up].in[1]].shape))
        return "gate and up have different sizes";
    for (int i = 0; i < 3; i++) {
        if (!qn_rw_is_inner(rw, gate->inner[i])) return "a value inside is read elsewhere";
    }
    return NULL;
}
