// How many experts of each layer are kept in memory.
#ifndef QN_RUNTIME_EXPERT_BUDGET_H
#define QN_RUNTIME_EXPERT_BUDGET_H

#include "runtime/engine.h"

// Decides by the engine's options and by free memory, before weights are loaded, and makes
// engine->residency if not all are kept. A budget that is too small or cannot be kept is an error
// with both values.
QN_MUST_CHECK qn_status qn_expert_budget_apply(qn_engine *engine, qn_err *err);

#endif
