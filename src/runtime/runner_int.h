// Inside a runner: what its files share.
#ifndef QN_RUNTIME_RUNNER_INT_H
#define QN_RUNTIME_RUNNER_INT_H

#include "runtime/kv_memory.h"
#include "runtime/record.h"
#include "runtime/runner.h"

enum { QN_PREFILL = 0, QN_DECODE = 1, QN_PHASES = QN_PROGRAM_PLANS };

typedef struct qn_check qn_check;
typedef struct qn_runner_team qn_runner_team; // runner_team.h

// What a plan's leaves are for this runner: where its weights and its state lie.
typedef struct qn_leaves {
    const void **weights;         // (PARAM leaves); NULL: the engine has none
    const qn_cache_view **caches; // (CACHE leaves)
    const qn_slots_view **slots;  // (STATE leaves)
} qn_leaves;

// What a kernel took so far.
typedef struct qn_kernel_sums {
    int64_t calls, ns, bytes;
} qn_kernel_sums;

// A stage of the engine, ready to run.
typedef struct qn_runner_stage {
    const qn_stage *stage;
    qn_plan own;                     // of a runner of another graph than the model's
    const qn_plan *plans[QN_PHASES]; // NULL: none of its own
    qn_leaves leaves[QN_PHASES];
    qn_program *program;
    int phase;            // of the last step
    qn_kernel_sums *sums; // (kernels of the device); NULL: not wanted
} qn_runner_stage;

// Rows that one stage hands to later ones.
typedef struct qn_runner_cut {
    const char *name; // borrowed from the plan that makes them, or the team
    int64_t width;
    float *rows; // (rows of the largest step, width)
} qn_runner_cut;

// A step from its message to its end (qn_runner_begin).
typedef struct qn_runner_lane {
    int32_t *message; // with room for the largest step; NULL: of a rank that follows
    size_t message_words;
    bool has_given_room; // the message has room for given rows, too
    int32_t *parts;      // messages of the parts, where there are several; orders of rank 0
    size_t part_words;
    int n_parts;
    qn_step step;    // the whole one
    qn_seq **seqs;   // (opts.segs) that it is of
    int64_t n_seqs;  // 0: no step is under way
    bool is_stopped; // before its end: what it computes is unknown
} qn_runner_lane;

struct qn_runner {
    qn_runner_opts opts;
    const qn_engine *engine;
    qn_state *state;
    qn_runner_stage *stages; // (engine->n_stages)
    qn_runner_cut *cuts;     // (n_cuts)
    size_t n_cuts;
    bool has_decode; // the second phase has a plan of its own
    qn_runner_lane lanes[QN_MAX_LANES];
    int n_lanes;
    qn_runner_lane *lane; // of the step that is being computed, or ended last
    qn_step step;         // its arrays, or those of the part that is being computed
    int32_t *copying;     // a message without rows, with room for the most copies
    qn_record *record;    // gets every message; NULL: not wanted
    qn_err failed;        // an error that could not be returned: the next step fails with it
    qn_status failed_status;
    qn_session_counts counts;
    qn_runner_stage head; // the prediction head; without a program: none
    int32_t *head_message;
    bool head_given_room;
    qn_step head_step;
    int64_t head_rows;    // max of a run
    float *before;        // (head_rows, width) what it reads
    int64_t began;        // nanoseconds
    qn_check *check;      // NULL: kernels are not compared
    qn_runner_team *team; // what it shares with other ranks; NULL: it is alone
};

// The arrays of a message that is being written.
typedef struct qn_step_tables {
    int32_t *ids, *pos, *row_seg, *seg_row, *seg_adapter, *row_out, *out_full;
    int32_t *extra_row; // NULL: no row is given
    float *extra;
    qn_seg_tables segs;
    int64_t rows, outs, given; // written so far
} qn_step_tables;
// `sizes` are those of the message.
qn_step_tables qn_step_tables_open(int32_t *message, const qn_step_sizes *sizes);
// Rows of a sequence for segment b of a message.
typedef struct qn_step_rows {
    const int32_t *ids; // (rows)
    int64_t position;   // of the first, in the sequence
    int64_t rows;
    int64_t outs; // logits are wanted of the last `outs` rows
    bool is_full; // all of them
    int32_t adapter;
    const qn_media *media;
} qn_step_rows;
void qn_step_tables_add(qn_step_tables *tables, int64_t b, const qn_step_rows *rows);
// Room in a message for the given rows of steps up to these sizes, where some are given for the
// first time.
QN_MUST_CHECK qn_status qn_runner_make_room(int32_t **message, size_t *words, bool *has_room,
                                            const qn_runner *runner, const qn_step_sizes *max,
                                            qn_err *err);
// The sizes of the largest message, without given rows.
qn_step_sizes qn_runner_max_sizes(const qn_runner *runner);
qn_step_sizes qn_runner_max_head_sizes(const qn_runner *runner);

// Brings wanted rows of a step that runs, where they are not in this memory.
void qn_runner_bring_rows(const qn_runner_stage *stage, const qn_step *step);
// Tells the trace of a stage's last step.
void qn_runner_trace(const qn_runner *runner, const qn_runner_stage *stage, int64_t rows);

// The plan of the stage's last step.
const qn_plan *qn_runner_plan(const qn_runner_stage *stage);

// Makes a message the step of every stage; row `first` of what stages hand on is its first. False
// if it cannot be bound.
bool qn_runner_begin_stages(qn_runner *runner, int32_t *message, const qn_sizes *sizes,
                            int64_t first);
// Takes the rows that later stages read, from row `first` on.
void qn_runner_take_cuts(const qn_runner *runner, const qn_runner_stage *stage, int64_t first);

// A qn_copies_fn: does copies at once, as a step without rows.
void qn_runner_flush(void *runner, const qn_copy *copies, int64_t n);

#endif
