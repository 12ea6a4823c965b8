// How much sequence state fits in a budget of bytes.
#ifndef QN_SESSION_BUDGET_H
#define QN_SESSION_BUDGET_H

#include "runtime/runner.h"

// Bytes of the pages and slots that a runner of these options reserves.
QN_MUST_CHECK qn_status qn_budget_measure(int64_t *out, const qn_runner_opts *opts, qn_err *err);
// Sets opts->positions to the max positions of all sequences together that fit in the budget, at
// least to those of one sequence.
QN_MUST_CHECK qn_status qn_budget_fit(qn_runner_opts *opts, int64_t budget, qn_err *err);

#endif
