// What a budget of bytes holds of sequence state.
#ifndef QN_SESSION_BUDGET_H
#define QN_SESSION_BUDGET_H

#include "runtime/runner.h"

// Bytes of the pages and slots that a runner of these options reserves.
QN_MUST_CHECK qn_status qn_budget_measure(int64_t *out, const qn_runner_opts *opts, qn_err *err);
// Sets opts->positions to the most positions of all sequences together whose memory is in the
// budget, and at least to those of one sequence.
QN_MUST_CHECK qn_status qn_budget_fit(qn_runner_opts *opts, int64_t budget, qn_err *err);

#endif
