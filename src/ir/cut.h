// Cutting a graph into stages of layers that run one after the other, on different devices.
#ifndef QN_IR_CUT_H
#define QN_IR_CUT_H

#include "ir/graph.h"

// Values that leave a stage have this name and a number: an output of the stage that makes them, an
// input of every later one that reads them.
#define QN_CUT_NAME "cut."

// The part of a graph that computes layers [first, end), and what comes before the first or after
// the last of all `n_layers` layers. Leaves are copied into every stage that reads them. Every
// result of a stage is bit for bit what the whole graph has.
QN_MUST_CHECK qn_status qn_graph_cut(qn_graph *out, const qn_graph *graph, int64_t first,
                                     int64_t end, int64_t n_layers, qn_err *err);

#endif
