// Looking at what goes into the matmuls of a graph: how large each column is, summed over rows.
#ifndef QN_IR_MATMUL_INPUTS_H
#define QN_IR_MATMUL_INPUTS_H

#include "ir/graph.h"

// What one matmul with a weight reads. Names are the graph's.
typedef struct qn_matmul_input {
    const char *weight, *output;
    int64_t n_experts, width; // the output is (n_experts, width + 1), as SUM_SQUARES says
} qn_matmul_input;

// Caller storage; zeroed is empty.
typedef struct qn_matmul_inputs {
    qn_graph graph;
    const qn_matmul_input *items; // in the order of the matmuls; a weight read twice is there twice
    size_t n;
} qn_matmul_inputs;

// A graph of the same inputs, weights and state, whose outputs are sums of squares, and nothing
// else: what only other outputs needed is not computed. The sums are of floats, before they are
// rounded for a weight.
QN_MUST_CHECK qn_status qn_matmul_inputs_init(qn_matmul_inputs *out, const qn_graph *graph,
                                              qn_err *err);
void qn_matmul_inputs_deinit(qn_matmul_inputs *inputs);

#endif
