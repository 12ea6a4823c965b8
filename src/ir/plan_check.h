// The parts of qn_plan_verify, so that a reader can name the line of a fault. `n_calls` is the
// number of calls that the plan will have; leaves and buffers before the item are there already.
#ifndef QN_IR_PLAN_CHECK_H
#define QN_IR_PLAN_CHECK_H

#include "ir/plan.h"

QN_MUST_CHECK qn_status qn_plan_check_leaf(const qn_plan *plan, qn_place place, size_t i,
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_plan_check_buffer(const qn_plan *plan, size_t i, size_t n_calls,
                                             qn_err *err);
QN_MUST_CHECK qn_status qn_plan_check_call(const qn_plan *plan, size_t i, qn_err *err);
QN_MUST_CHECK qn_status qn_plan_check_output(const qn_plan *plan, size_t i, size_t n_calls,
                                             qn_err *err);

#endif
