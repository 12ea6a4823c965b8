// The reference interpreter: runs any graph with plain loops in float32. It is the oracle for every
// kernel and every pass, and stays slow and obvious.
//
// One interpreter, one thread at a time; the pool it is given only splits loops whose pieces are
// independent, so the number of threads changes no result. It allocates while it runs.
//
// Sequence state lives here, as the step table addresses it: pages of 64 positions for keys and
// values, slots for recurrent state. A slot holds the state at the last accepted row and a log of
// the rows since; a step first applies `seg_accept` logged rows, then runs its own rows and logs
// those that `seg_commit` does not count as accepted. A segment with seg_past 0 starts from
// nothing. There is one group of pages, the first of the table.
#ifndef QN_IR_REF_H
#define QN_IR_REF_H

#include "core/pool.h"
#include "ir/graph.h"
#include "ir/step.h"

typedef struct qn_ref qn_ref;

// Brings together what several ranks computed, floats here, in the order of the nodes that gather:
// counts[0 ... n - 1] of them at `to`, one rank's after the other's, of which this rank gives its
// own. A failure ends the run.
typedef qn_status qn_ref_gather_fn(void *arg, float *to, const float *from, const int64_t *counts,
                                   qn_err *err);

typedef struct qn_ref_opts {
    const qn_graph *graph;     // borrowed, verified
    const void *const *params; // (n_values) bytes of each PARAM value, borrowed
    qn_pool *pool;             // borrowed; NULL: one thread
    int64_t n_pages;           // pages per cache
    int64_t n_slots;           // slots of recurrent state
    // Called between nodes and inside large ones, at least once for a second of work, with nodes
    // done and nodes of the graph; false stops the run (QN_STOPPED). NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    // Of a rank's share of a graph.
    int rank, n_ranks;
    qn_ref_gather_fn *gather; // NULL: there are no other ranks
    void *gather_arg;
} qn_ref_opts;

QN_MUST_CHECK qn_status qn_ref_create(qn_ref **out, const qn_ref_opts *opts, qn_err *err);
void qn_ref_destroy(qn_ref *ref);

// Data for an INPUT tensor other than "ids" and "row_out", which come from the step. Borrowed until
// replaced; must hold what the shape says at run time.
void qn_ref_set_input(qn_ref *ref, int32_t value, const void *data);

// Runs the graph once. Rows, segments, pages and slots outside their ranges are errors.
QN_MUST_CHECK qn_status qn_ref_run(qn_ref *ref, const qn_step *step, qn_err *err);

// Elements of an output of the last run (float32 or int32), and how many; NULL if there is no such
// output. Borrowed until the next run.
const void *qn_ref_output(const qn_ref *ref, const char *name, int64_t *n);

// Runs one node alone, to compare a kernel with. `inputs` has one pointer per input: float32 or
// int32 elements as the shape says, or NULL for what the interpreter knows itself (leaves, the
// table, caches and states, which the node changes as in a whole run).
QN_MUST_CHECK qn_status qn_ref_run_node(qn_ref *ref, size_t node, const qn_step *step,
                                        const void *const *inputs, qn_err *err);
// Elements of a value that is still there after the last run, and how many: results of the node
// that ran alone, outputs of the graph. NULL otherwise. Borrowed until the next run.
const void *qn_ref_value(const qn_ref *ref, int32_t value, int64_t *n);

// State from elsewhere, before a node runs alone. `value` is the INPUT of a cache or state; page,
// row and slot are inside their ranges.
// Keys (K, E) and values (K, F) of one position:
void qn_ref_set_cache_row(qn_ref *ref, int32_t value, int64_t page, int64_t row, const float *keys,
                          const float *values);
// A slot at its last certain row, and n_log rows of log_size numbers since:
QN_MUST_CHECK qn_status qn_ref_set_slot(qn_ref *ref, int32_t value, int64_t slot,
                                        const float *state, const float *log, int64_t n_log,
                                        int64_t log_size, qn_err *err);

#endif
