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
// they keep while a step goes in parts.
typedef struct qn_whole_output {
    const char *name; // borrowed from qn_far_outputs
    qn_sym sym;
    int64_t width;
    float *rows; // (max rows of a step, width)
} qn_whole_output;

// One plan of a runner, the model's or that of the prediction head.
typedef struct qn_shared_plan {
    qn_far_outputs far;
    qn_whole_output *whole; // (n_whole) of rank 0
    size_t n_whole;
    float *best; // (max wanted rows, width) one rank's best logits, of rank 0
} qn_shared_plan;

struct qn_runner_team {
    qn_team *team; // borrowed
    int32_t number;
    bool is_met;    // all ranks have it
    int32_t *parts; // messages of the parts of a step, where there are several
    size_t part_words;
    qn_shared_plan model, head;
    qn_ranks_request *receives, *sends; // (cuts, parts), (cuts, ranks)
    qn_step whole;                      // of rank 0: the step before it was cut
};

// Tells the other ranks of a runner, or (of them) answers: all have it, or none has.
QN_MUST_CHECK qn_status qn_runner_team_open(qn_runner *runner, qn_status own, qn_err *err);
void qn_runner_team_close(qn_runner *runner);
// Room for the parts of the longest message that the runner has room for.
QN_MUST_CHECK qn_status qn_runner_team_reserve(qn_runner *runner, qn_err *err);

// Rank 0: the step whose message is written, on all ranks.
QN_MUST_CHECK qn_status qn_runner_team_step(qn_runner *runner, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_team_copy(qn_runner *runner, qn_err *err);
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

// Exchanges what the plans of a stage give; rank 0 gets room for what it puts together.
QN_MUST_CHECK qn_status qn_outputs_exchange(qn_shared_plan *plan, qn_runner *runner,
                                            const qn_runner_stage *stage, int64_t max_rows,
                                            int64_t max_outs, qn_err *err);
void qn_outputs_free(qn_shared_plan *plan);
// Sends rank 0 what it wants of a step that has run.
QN_MUST_CHECK qn_status qn_outputs_send(const qn_runner *runner, const qn_runner_stage *stage,
                                        const qn_step *step, qn_err *err);
// The same later: what is kept of a part of a step whose rows and wanted rows begin there.
void qn_outputs_keep(const qn_runner *runner, const qn_runner_stage *stage, const qn_step *step,
                     int64_t first_row, int64_t first_out);
QN_MUST_CHECK qn_status qn_outputs_send_kept(const qn_runner *runner, const qn_runner_stage *stage,
                                             const qn_step *step, int64_t first_row,
                                             int64_t first_out, qn_err *err);
// Takes that from all ranks, for rows first_row ... and wanted rows first_out ... of the step.
// `stage`: this rank's own, whose share belongs to it with a split of tensors.
QN_MUST_CHECK qn_status qn_outputs_take(qn_shared_plan *plan, const qn_runner *runner,
                                        const qn_runner_stage *stage, const qn_step *step,
                                        int64_t first_row, int64_t first_out, qn_err *err);

#endif
