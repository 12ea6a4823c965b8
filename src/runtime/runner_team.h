// A runner on several ranks: what rank 0 has of the others, and what they send it.
#ifndef QN_RUNTIME_RUNNER_TEAM_H
#define QN_RUNTIME_RUNNER_TEAM_H

#include "runtime/runner_int.h"
#include "runtime/team.h"

enum { QN_STEP_PARTS = 16 }; // at most, of a step

// An output of a rank's plan, as it tells rank 0.
typedef struct qn_far_output {
    char name[32];
    int64_t width;
    int32_t sym;      // its rows: QN_SYM_T or QN_SYM_R
    int32_t has_best; // logits: only rows that are wanted whole are sent
} qn_far_output;

// The outputs of a plan on all ranks, those of rank r being [first[r], first[r + 1]).
typedef struct qn_far_outputs {
    qn_far_output *items;
    size_t *first; // (n_ranks + 1)
} qn_far_outputs;

// An output that rank 0 puts together from what the others send; of the others, their own, which
// they keep until rank 0 has it, while they compute the next part or step.
typedef struct qn_whole_output {
    const char *name; // borrowed from qn_far_outputs
    qn_sym sym;
    int64_t width, n_rows; // n_rows: max of a step
    float *rows;           // (lanes, n_rows, width)
} qn_whole_output;

// One plan of a runner, the model's or that of the prediction head.
typedef struct qn_shared_plan {
    qn_far_outputs far;
    qn_whole_output *whole; // (n_whole)
    size_t n_whole;
    float *best; // (max wanted rows, width) one rank's best logits, of rank 0
    int lane;    // of rank 0: whose outputs were taken last
    // Of the others: messages of each lane that may still be under way, (lanes, max_sends).
    qn_ranks_request *sends;
    size_t max_sends, *n_sends; // n_sends: (lanes)
    int n_lanes;
} qn_shared_plan;

struct qn_runner_team {
    qn_team *team; // borrowed
    int32_t number;
    bool is_met; // all ranks have it
    qn_shared_plan model, head;
    qn_team_letter orders[QN_MAX_LANES]; // of rank 0: of each lane's step
    qn_ranks_request *receives, *sends;  // (cuts, parts), (cuts, ranks)
};

// Tells the other ranks of a runner, or (of them) answers: all have it, or none has.
QN_MUST_CHECK qn_status qn_runner_team_open(qn_runner *runner, qn_status own, qn_err *err);
void qn_runner_team_close(qn_runner *runner);
// The others: the number that rank 0 has given it.
void qn_runner_team_number(qn_runner *runner, int32_t number);
// Room for the parts of the longest message that the lane has room for.
QN_MUST_CHECK qn_status qn_runner_team_reserve(qn_runner *runner, qn_err *err);

// Rank 0: the step whose message is written in the runner's lane, on all ranks; and what they send
// of it.
QN_MUST_CHECK qn_status qn_runner_team_begin(qn_runner *runner, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_team_end(qn_runner *runner, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_team_copy(qn_runner *runner, const int32_t *message, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_team_predict(qn_runner *runner, const qn_sizes *sizes,
                                               qn_err *err);
// A row of an output that was put together; NULL: this rank has it itself, or nobody.
const float *qn_runner_team_row(int64_t *width, const qn_shared_plan *plan, const char *output,
                                int64_t row);

// The others: where the body of an order goes, and what it asks for.
QN_MUST_CHECK qn_status qn_runner_team_room(int32_t **body, int32_t **more, qn_runner *runner,
                                            const qn_team_order *order, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_team_follow(qn_runner *runner, const qn_team_order *order,
                                              qn_err *err);

// --- outputs (runner_outputs.c) ------------------------------------------------------------------

// The largest step, and how many of them may be under way.
typedef struct qn_outputs_max {
    int64_t rows, outs;
    int lanes;
} qn_outputs_max;

// Where the rows of a part of a step belong, and the tag of what is sent of it.
typedef struct qn_output_place {
    int lane, tag;
    int64_t row, out; // the first row, and wanted row
} qn_output_place;

// Exchanges what the plans of a stage give; every rank gets room for what it has of the steps that
// are under way.
QN_MUST_CHECK qn_status qn_outputs_exchange(qn_shared_plan *plan, qn_runner *runner,
                                            const qn_runner_stage *stage, const qn_outputs_max *max,
                                            qn_err *err);
void qn_outputs_free(qn_shared_plan *plan);
// Bytes of that room, for the outputs of the model on rank 0.
int64_t qn_outputs_bytes(const qn_engine *engine, const qn_outputs_max *max);
// Begins to send rank 0 what it wants of a part of a step that has run, from where it is kept until
// the lane is used again: first qn_outputs_reuse, once for all parts of a step.
QN_MUST_CHECK qn_status qn_outputs_send(qn_shared_plan *plan, const qn_runner *runner,
                                        const qn_runner_stage *stage, const qn_step *step,
                                        const qn_output_place *at, qn_err *err);
QN_MUST_CHECK qn_status qn_outputs_reuse(qn_shared_plan *plan, const qn_team *team, int lane,
                                         qn_err *err);
// Waits until nothing that was sent is under way any more, or ranks have failed.
void qn_outputs_sent(qn_shared_plan *plan, const qn_team *team);
// Takes that from all ranks. `stage`: this rank's own, whose share belongs to it with a split of
// tensors.
QN_MUST_CHECK qn_status qn_outputs_take(qn_shared_plan *plan, const qn_runner *runner,
                                        const qn_runner_stage *stage, const qn_step *step,
                                        const qn_output_place *at, qn_err *err);

#endif
