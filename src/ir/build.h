// Writing a graph. A builder appends nodes, infers every shape, and keeps the first error: family
// code is written straight down and looked at once, with qn_build_finish.
//
// After a failure every call does nothing and returns QN_NO_VALUE, which later calls accept.
#ifndef QN_IR_BUILD_H
#define QN_IR_BUILD_H

#include "ir/graph.h"

typedef struct qn_build {
    qn_graph *graph; // borrowed
    int32_t layer;   // of the nodes to come; -1: none
    qn_status status;
    qn_err err;
} qn_build;

void qn_build_init(qn_build *b, qn_graph *graph, const char *name);
// The status of all that was built, with its message.
QN_MUST_CHECK qn_status qn_build_finish(qn_build *b, qn_err *err);

// Leaves. Names are copied.
int32_t qn_build_input(qn_build *b, const char *name, qn_kind kind, qn_type type, qn_shape shape);
int32_t qn_build_param(qn_build *b, const char *name, qn_type type, qn_shape shape);
int32_t qn_build_const(qn_build *b, const char *name, const float *data, int64_t n);

// Any other op. `in` holds n_in ids (QN_NO_VALUE for an absent optional one); attrs may be NULL.
// Returns the first result; the others follow it (+1).
int32_t qn_build_op(qn_build *b, qn_op op, const int32_t *in, int n_in, const qn_attrs *attrs);

// The common arities, spelled short: qn_build1(b, QN_OP_SILU, x, NULL).
int32_t qn_build1(qn_build *b, qn_op op, int32_t x, const qn_attrs *attrs);
int32_t qn_build2(qn_build *b, qn_op op, int32_t x, int32_t y, const qn_attrs *attrs);
int32_t qn_build3(qn_build *b, qn_op op, int32_t x, int32_t y, int32_t z, const qn_attrs *attrs);

// A copy of a node of another graph. `to`, by value of that graph: the values here; those of the
// inputs are known, those of the results become so.
void qn_build_copy(qn_build *b, const qn_graph *from, const qn_node *node, int32_t *to);

void qn_build_output(qn_build *b, const char *name, int32_t value);
// Names a value for people and dumps.
void qn_build_name(qn_build *b, int32_t value, const char *name);

#endif
