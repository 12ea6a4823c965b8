// The memory plan of a run, before anything is loaded.
#ifndef QN_RUNTIME_MEMORY_H
#define QN_RUNTIME_MEMORY_H

#include "models/model.h"

// Bytes for a run that computes `context` rows at once (the naive path).
QN_MUST_CHECK qn_status qn_memory_plan(qn_memory *out, const qn_model *model, int64_t context,
                                       qn_err *err);

#endif
