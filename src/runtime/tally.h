// Where the time of a runner went, kernel by kernel (QN_DEBUG=2).
#ifndef QN_RUNTIME_TALLY_H
#define QN_RUNTIME_TALLY_H

#include "runtime/runner_int.h"

// Adds the times of the step that just ran.
void qn_tally_add(const qn_runner *runner, qn_runner_stage *stage);
// Logs the sums through the engine's log, the slowest kernel first.
void qn_tally_tell(const qn_runner *runner, qn_runner_stage *stage);

// Bytes of weights and state that a call of the last step reads at least, each once.
int64_t qn_call_bytes(const qn_runner *runner, const qn_runner_stage *stage,
                      const qn_plan_call *call);

#endif
