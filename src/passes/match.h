// Patterns that more than one pass looks for.
#ifndef QN_PASSES_MATCH_H
#define QN_PASSES_MATCH_H

#include "passes/rewrite.h"

// A gated feed-forward: act(x gate') * (x up').
typedef struct qn_gr_gate_match {
    int32_t x;             // value
    int32_t gate, up, act; // nodes
    int32_t inner[3];      // values that fusing would take away: of gate, up and act
    bool has_bias;         // a bias or an adapter adds something after gate or up
    bool has_same_x;       // both read x; else x is what the gate reads
} qn_gr_gate_match;

bool qn_is_act(qn_op op);      // silu or gelu
qn_word qn_act_word(qn_op op); // its word
qn_op qn_act_op(qn_word word); // and back

// Whether MUL node `mul` is a gate over two nodes of op `matmul`.
bool qn_match_gate(qn_gr_gate_match *out, const qn_rewrite *rw, int32_t mul, qn_op matmul);
// Why a gate cannot become one node; NULL if it can.
const char *qn_gr_gate_problem(const qn_gr_gate_match *gate, const qn_rewrite *rw);

#endif
