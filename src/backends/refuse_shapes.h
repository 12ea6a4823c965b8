// What no plan can hold, whatever the device.
#ifndef QN_BACKENDS_REFUSE_SHAPES_H
#define QN_BACKENDS_REFUSE_SHAPES_H

#include "ir/graph.h"

// A plan sees values as rows of (parts, width): why a node needs more than that; NULL: it does not.
const char *qn_refuse_shapes(const qn_graph *graph, const qn_node *node);
// Why input `input` of a node, a weight, cannot be loaded: it is computed, or its rows are not
// whole blocks; NULL: it can be.
const char *qn_refuse_weight(const qn_graph *graph, const qn_node *node, int input);

#endif
