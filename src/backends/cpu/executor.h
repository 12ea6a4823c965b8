// Plans on the CPU: operands get addresses, calls are cut into pieces, and the threads of a pool take
// them (walk.h).
//
// An executor has one or more plans that take turns in the same memory. It is used by one thread at a
// time; everything is allocated at creation.
#ifndef QN_BACKENDS_CPU_EXECUTOR_H
#define QN_BACKENDS_CPU_EXECUTOR_H

#include "backends/cpu/walk.h"

enum { QN_EXECUTOR_PLANS = 2 };

// A weight as its kernels read it: in tiles, or as plain rows; with neither, only its shape counts.
typedef struct qn_executor_weight {
    const qn_packed *packed;
    const float *rows;
} qn_executor_weight;

typedef struct qn_executor_plan {
    const qn_plan *plan;                // borrowed, as all of this
    const qn_executor_weight *weights;  // (PARAM leaves)
    const qn_cache_view *const *caches; // (CACHE leaves)
    const qn_slots_view *const *slots;  // (STATE leaves)
    qn_plan_policy policy;              // of its bindings; not AUTO
    int capacity;                       // bindings kept
} qn_executor_plan;

typedef struct qn_executor_opts {
    const qn_backend *backend;
    qn_pool *pool;
    qn_executor_plan plans[QN_EXECUTOR_PLANS]; // the second may be empty
    qn_sizes most;                             // no step is larger
    bool is_timed;
    bool is_measured; // not to run: no memory is taken for activations
} qn_executor_opts;

typedef struct qn_executor qn_executor;

QN_MUST_CHECK qn_status qn_executor_create(qn_executor **out, const qn_executor_opts *opts,
                                           qn_err *err);
void qn_executor_destroy(qn_executor *executor);

typedef struct qn_executor_size {
    int64_t arena, scratch, tables; // bytes: activations; scratch of all threads; calls
} qn_executor_size;
qn_executor_size qn_executor_measure(const qn_executor *executor);

// Makes a message the step of plan `i`. False if it cannot be bound, which a step within the sizes of
// creation always can. The message must stay until the next one.
QN_MUST_CHECK bool qn_executor_begin(qn_executor *executor, int i, int32_t *message,
                                     const qn_sizes *sizes);
// Runs all calls of the step. Allocates nothing.
void qn_executor_run(qn_executor *executor);

// --- looking at the step -------------------------------------------------------------------------

// Row `row` of an output of the last step; NULL if there is no such output. Borrowed until the next.
const float *qn_executor_row(const qn_executor *executor, const char *output, int64_t row);
// The plan of the last step; NULL before the first.
const qn_plan *qn_executor_plan_of(const qn_executor *executor);
const qn_plan_output *qn_executor_find(const qn_executor *executor, const char *output);

// Call `call` of the step, piece after piece, on this thread.
void qn_executor_run_call(qn_executor *executor, size_t call);
const qn_task *qn_executor_task(const qn_executor *executor, size_t call);
const qn_kernel *qn_executor_kernel(const qn_executor *executor, size_t call);
// When it ran; false if it had nothing to do, or times are not taken.
bool qn_executor_times(const qn_executor *executor, size_t call, int64_t *begin, int64_t *end);

// Bindings that were found, and made.
void qn_executor_counts(const qn_executor *executor, int64_t *hits, int64_t *misses);

#endif
