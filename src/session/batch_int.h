// Inside a batch: rows that come and go, and who may touch what.
//
//   batch.c       creating, adding, removing, waiting: any thread
//   batch_run.c   a step: which rows begin, are preempted, have ended: the thread that steps
//   generate_calls.c  qn_generate and qn_generate_batch
#ifndef QN_SESSION_BATCH_INT_H
#define QN_SESSION_BATCH_INT_H

#include "session/generate_int.h"

#include <pthread.h>

typedef struct qn_batch_row qn_batch_row;

// A prompt of several rows: one of them prefills it, the others start from that state. Used by the
// thread that steps.
typedef struct qn_batch_prompt {
    int64_t n_rows;          // that are left
    int64_t n_waiting;       // of them, those that have never begun
    qn_batch_row *prefiller; // prefills for the others; NULL: none
    qn_session *prefilled;   // has the prompt cached, and nothing else; NULL: none
} qn_batch_prompt;

struct qn_batch_row {
    qn_batch *batch;
    uint64_t id;
    qn_generation *generation;
    qn_session *session;
    bool is_borrowed;        // the session is its caller's
    qn_session *draft;       // its own; NULL: none, or its caller's
    qn_batch_prompt *prompt; // NULL: nobody else has it
    qn_event_fn *fn;         // NULL: no callback
    void *arg;
    qn_logits_fn *logits_fn; // of its options; NULL: none
    void *logits_arg;
    qn_draft_fn *draft_fn; // the same
    void *draft_arg;
    qn_progress_fn *progress; // the same
    void *progress_arg;
    int64_t deadline;   // on the batch's clock; 0: none
    bool has_begun;     // it has had a place in the runner
    qn_result *result;  // where the result goes when it ends; NULL: nowhere
    qn_err *err;        // the same for its error
    qn_batch_row *next; // in the list of incoming, queued or active rows
    atomic_bool is_removed;
    qn_batch_row *before, *after; // in the list of all; guarded by the lock
};

struct qn_batch {
    qn_session like;   // what the rows' sessions have in common
    qn_shared *shared; // NULL: of a reference engine
    int64_t max_rows;  // active at a time
    int64_t prompt_rows;
    int64_t (*clock)(void); // nanoseconds
    // Of the thread that steps. Both lists are in the order of ids.
    qn_batch_row *queue, *active;
    int64_t n_active;
    qn_generation **gens;               // (max_rows)
    qn_flight *under_way[QN_MAX_LANES]; // (n_under_way) the oldest first
    int n_under_way;
    uint64_t last_begun; // the last row of the step that began last
    int64_t n_reused, n_ended, n_failed, n_preemptions;
    // Guarded by the lock.
    pthread_mutex_t lock;
    pthread_cond_t changed, callback_ended; // changed: rows came, or a wake
    qn_batch_row *all, *incoming, **incoming_end;
    size_t n_rows;
    uint64_t last_id;
    uint64_t in_callback; // the row whose callback runs; 0: none
    bool is_stepping, is_woken;
    pthread_t stepper; // if is_stepping
    qn_batch_counts counts;
};

// A batch in the runner of `like`, of at most `max_rows` active rows.
QN_MUST_CHECK qn_status qn_batch_open(qn_batch **out, const qn_session *like, int64_t max_rows,
                                      qn_err *err);

// A row to be created: in a session of its own for the ids, or in the caller's (`session` not
// NULL), which has the history already.
typedef struct qn_row_want {
    const int32_t *ids; // (n)
    size_t n;
    qn_session *session;
    const qn_row_opts *opts; // already read with QN_OPTS_READ
    const qn_media *media;   // of the prompt; set by qn_batch_rows_create
    uint32_t completion;     // added to that of the options
    size_t row;              // for events
    int64_t deadline;        // on the batch's clock; 0: none
    qn_event_fn *fn;
    void *arg;
} qn_row_want;
QN_MUST_CHECK qn_status qn_batch_row_create(qn_batch_row **out, qn_batch *batch,
                                            const qn_row_want *want, qn_err *err);
void qn_batch_row_destroy(qn_batch_row *row);
// opts->completions rows for one prompt, linked by `next`.
QN_MUST_CHECK qn_status qn_batch_rows_create(qn_batch_row **out, qn_batch *batch,
                                             const qn_row_want *want, qn_err *err);
// Hands rows over; returns the id of the first.
uint64_t qn_batch_push(qn_batch *batch, qn_batch_row *rows);

// --- for the thread that steps ---

// A step of rows that were handed over.
QN_MUST_CHECK qn_status qn_batch_run(qn_batch *batch, qn_err *err);
// Ends the steps that are under way, with nothing chosen.
void qn_batch_drop_steps(qn_batch *batch);

#endif
