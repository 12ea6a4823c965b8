// Inside a runner: its phases and their tasks.
#ifndef QN_RUNTIME_RUNNER_INT_H
#define QN_RUNTIME_RUNNER_INT_H

#include "runtime/bind.h"
#include "runtime/record.h"
#include "runtime/runner.h"
#include "runtime/walk.h"

enum { QN_PREFILL = 0, QN_DECODE = 1, QN_PHASES = 2 };

typedef struct qn_check qn_check;

// An operand that is a field of each step's message.
typedef struct qn_task_input {
    qn_operand *to;
    qn_step_field field;
} qn_task_input;

// A compiled graph as this runner uses it: tasks point into the runner's own memory.
typedef struct qn_phase {
    const qn_plan *plan;
    qn_task *tasks;            // (n_calls)
    const qn_kernel **kernels; // (n_calls)
    qn_bindings *bindings;
    qn_task_input *inputs; // (n_inputs) operands that lie in the message
    size_t n_inputs;
    const qn_binding *bound; // that the tasks point to now; NULL: none
    uint64_t bound_made;     // which making of it: bindings are reused
} qn_phase;

// Memory that starts at a cache line.
typedef struct qn_block {
    void *base;
    unsigned char *data;
} qn_block;

// What a kernel took so far.
typedef struct qn_kernel_sums {
    int64_t calls, ns, bytes;
} qn_kernel_sums;

struct qn_runner {
    qn_runner_opts opts;
    const qn_engine *engine;
    qn_state *state;
    qn_phase phases[QN_PHASES]; // the second is empty where both are the same
    qn_phase *last;             // phase of the last step
    qn_walk walk;
    qn_block arena, scratch;
    int32_t *message; // of the step, with room for the largest
    size_t message_words;
    qn_step step;      // its arrays
    qn_record *record; // gets every message; NULL: not wanted
    qn_err failed;     // what went wrong where nobody could be told: the next step fails with it
    qn_status failed_status;
    qn_packed *described; // (PARAM leaves) shapes of weights that are not loaded
    qn_session_counts counts;
    int64_t began;        // nanoseconds
    qn_check *check;      // NULL: kernels are not compared
    qn_kernel_sums *sums; // (kernels of the backend); NULL: not wanted
};

// A qn_copies_fn: does copies at once, as a step without rows.
void qn_runner_flush(void *runner, const qn_copy *copies, int64_t n);
// The tasks of a plan, with everything that does not depend on a binding.
QN_MUST_CHECK qn_status qn_runner_init_tasks(qn_runner *r, qn_phase *p, qn_err *err);
// Points the tasks of a phase to the addresses of its binding.
void qn_runner_point(qn_runner *r, qn_phase *p);
// Points them to the fields of the message.
void qn_runner_point_inputs(qn_runner *r, qn_phase *p);

#endif
