// Compiling a graph: passes, then lowering to a plan.
#ifndef QN_RUNTIME_COMPILE_H
#define QN_RUNTIME_COMPILE_H

#include "backends/backend.h"
#include "core/debug.h"
#include "ir/plan.h"
#include "passes/passes.h"
#include "runtime/cache_folder.h"

typedef struct qn_compile_opts {
    const qn_backend *backend;
    qn_numerics numerics;
    int64_t fine_layers; // of the whole model, see passes/passes.h
    int rank, n_ranks;   // see passes/passes.h
    uint64_t skip;       // bit per pass, see passes/passes.h
    const qn_disk *disk; // gets the text of the plan if it is to be filled; NULL: none
    const qn_switches *switches;
    qn_log_fn *log;
    void *log_arg;
} qn_compile_opts;

// The graph after the passes; `report` may be NULL.
QN_MUST_CHECK qn_status qn_compile_mid(qn_graph *out, const qn_graph *graph,
                                       const qn_compile_opts *opts, qn_pass_report *report,
                                       qn_err *err);
QN_MUST_CHECK qn_status qn_compile(qn_plan *out, const qn_graph *graph, const qn_compile_opts *opts,
                                   qn_err *err);

#endif
