// Inside a runner: what its files share.
#ifndef QN_RUNTIME_RUNNER_INT_H
#define QN_RUNTIME_RUNNER_INT_H

#include "backends/cpu/executor.h"
#include "runtime/kv_memory.h"
#include "runtime/record.h"
#include "runtime/runner.h"

enum { QN_PREFILL = 0, QN_DECODE = 1, QN_PHASES = 2 };

typedef struct qn_check qn_check;

// What a plan's leaves are for this runner: where its weights and its state lie.
typedef struct qn_leaves {
    qn_executor_weight *weights; // (PARAM leaves)
    qn_packed *described; // (PARAM leaves) shapes of weights that are not loaded; NULL: all are
    const qn_cache_view **caches; // (CACHE leaves)
    const qn_slots_view **slots;  // (STATE leaves)
} qn_leaves;

// What a kernel took so far.
typedef struct qn_kernel_sums {
    int64_t calls, ns, bytes;
} qn_kernel_sums;

struct qn_runner {
    qn_runner_opts opts;
    const qn_engine *engine;
    qn_state *state;
    qn_leaves leaves[QN_PHASES];
    bool has_decode; // the second phase has a plan of its own
    qn_executor *executor;
    int32_t *message; // of the step, with room for the largest
    size_t message_words;
    qn_step step;      // its arrays
    qn_record *record; // gets every message; NULL: not wanted
    qn_err failed;     // what went wrong where nobody could be told: the next step fails with it
    qn_status failed_status;
    qn_session_counts counts;
    int64_t began;        // nanoseconds
    qn_check *check;      // NULL: kernels are not compared
    qn_kernel_sums *sums; // (kernels of the backend); NULL: not wanted
};

// A qn_copies_fn: does copies at once, as a step without rows.
void qn_runner_flush(void *runner, const qn_copy *copies, int64_t n);

#endif
