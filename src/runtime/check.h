// Looking for the wrong kernel: every node of a step on the reference interpreter too (QN_REF), and
// figures of every layer's output (QN_LAYERS).
#ifndef QN_RUNTIME_CHECK_H
#define QN_RUNTIME_CHECK_H

#include "runtime/runner_int.h"

// For the plan of a graph, as the runner compiles it; the engine must hold its weights as the
// reference path does, too.
QN_MUST_CHECK qn_status qn_check_create(qn_check **out, const qn_engine *engine,
                                        const qn_graph *graph, qn_err *err);
void qn_check_destroy(qn_check *check);

// Runs the calls of the step node by node on one thread. Each node's inputs, as the kernels left
// them, go through the interpreter too; the first result that differs by more than rounding ends
// the step with an error that names the node.
QN_MUST_CHECK qn_status qn_check_run(qn_check *check, qn_runner *runner, qn_err *err);

// Logs statistics of the last step's hidden outputs and logits through the engine's log.
void qn_check_layers(const qn_runner *runner);

#endif
