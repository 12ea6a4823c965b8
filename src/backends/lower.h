// From a graph to a plan: every node becomes calls of the backend's kernels, every value a buffer
// or a view into one.
#ifndef QN_BACKENDS_LOWER_H
#define QN_BACKENDS_LOWER_H

#include "backends/backend.h"

// Splits, merges and slices of rows cost nothing: they become views. An op without a recipe is an
// error that names it.
QN_MUST_CHECK qn_status qn_lower(qn_plan *out, const qn_graph *graph, const qn_backend *backend,
                                 qn_err *err);
// Whether a node is such a view, and so has no calls. Calls of the other nodes are in their order.
bool qn_lower_is_view(const qn_graph *graph, const qn_node *node);

#endif
