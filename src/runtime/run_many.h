// Several whole sequences from nothing, through the plans, computed together.
#ifndef QN_RUNTIME_RUN_MANY_H
#define QN_RUNTIME_RUN_MANY_H

#include "runtime/runner.h"

typedef struct qn_many_input {
    qn_run_input run;
    int32_t adapter;
} qn_many_input;

// Rows of one input in the step that has just run.
typedef struct qn_many_rows {
    size_t input;
    int64_t first, rows; // of the input
    int64_t outs;        // logits of the last `outs` of them are there
    int64_t row, out;    // the first of the rows, and of the wanted ones, in the step
} qn_many_rows;

// Copies what the step has of them to their places in `out`.
void qn_logits_collect(qn_logits *out, const qn_runner *runner, const qn_many_rows *rows);

typedef struct qn_many_opts {
    bool hidden;   // the residual stream is an output too
    int64_t outs;  // logits wanted: 0 of none, 1 of the last row of each input, -1 of all
    int64_t chunk; // as in qn_logits_opts
    // Looks at the rows of each input after each step, in order.
    void (*take)(void *arg, const qn_runner *runner, const qn_many_rows *rows);
    void *arg;
    qn_progress_fn *progress; // between steps, with the rows of all inputs; NULL: none
    void *progress_arg;
    const qn_stop_flag *stop; // NULL: none
} qn_many_opts;

// The engine has plans and weights, and the inputs are checked, n > 0 of them.
QN_MUST_CHECK qn_status qn_engine_run_many(const qn_engine *engine, const qn_many_input *inputs,
                                           size_t n, const qn_many_opts *opts, qn_err *err);

#endif
