// The step loop: sequences of one engine, their state, and the memory that steps compute in.
//
// A runner is used by one thread at a time; runners of one engine are independent. Everything is
// allocated at creation, and room for given rows by the first step that has some; other steps
// allocate nothing.
#ifndef QN_RUNTIME_RUNNER_H
#define QN_RUNTIME_RUNNER_H

#include "runtime/compile.h"
#include "runtime/engine.h"
#include "runtime/media.h"
#include "runtime/state.h"

enum { QN_DEFAULT_SESSIONS = 32 }; // sequences of a runner, where nobody asks for a number

typedef struct qn_runner qn_runner;
typedef struct qn_replay qn_replay;   // record.h
typedef struct qn_touched qn_touched; // record.h

typedef struct qn_runner_opts {
    const qn_engine *engine; // borrowed
    bool hidden;             // the residual stream is an output too
    // What to run in place of the model's graph: one of the same inputs, weights and state, and no
    // head. Borrowed during creation; not with `hidden`. NULL: the model's.
    const qn_graph *graph;
    int64_t context;    // max positions of one sequence
    int64_t rows;       // max rows of a step
    int64_t outs;       // max wanted rows of a step
    int64_t segs;       // max segments of a step
    int64_t n_seqs;     // max sequences and checkpoints
    int64_t positions;  // max positions of all of them; 0: n_seqs * context
    int64_t kept_bytes; // for qn_state_opts
    bool is_replay;     // its steps come from a record and are not recorded again
    qn_trace_fn *trace;
    void *trace_arg;
    // Asked while a step runs, by any thread (qn_program_opts); where it is false at the end of one,
    // the step fails with QN_STOPPED. NULL: nobody asks
    bool (*go_on)(void *arg);
    void *go_on_arg;
    const qn_device *where; // qn_runner_measure: what is in the memory of this device; NULL: all
    // Of a rank that follows: pages of each group, (groups), and slots, as rank 0 has counted them.
    // It has no sequences, and its steps come as orders (team.h). NULL: not so.
    const int64_t *n_pages;
    int64_t n_slots;
    int lanes; // as rank 0 has chosen them
} qn_runner_opts;

typedef struct qn_runner_size {
    int64_t arena, scratch, tables; // activations; per-thread scratch; step tables and bindings
    int64_t lanes;                  // messages of steps, and what other ranks send of them
    qn_state_size state;
} qn_runner_size;

QN_MUST_CHECK qn_status qn_runner_create(qn_runner **out, const qn_runner_opts *opts, qn_err *err);
void qn_runner_destroy(qn_runner *runner);
// The memory that qn_runner_create would take.
QN_MUST_CHECK qn_status qn_runner_measure(qn_runner_size *out, const qn_runner_opts *opts,
                                          qn_err *err);
qn_state *qn_runner_state(qn_runner *runner);

// The rows of one sequence in a step.
typedef struct qn_segment {
    qn_seq *seq;
    const int32_t *ids; // (rows) inside the vocabulary
    int64_t rows;
    int64_t uncertain; // the last rows may be rolled back (qn_seq_truncate)
    int64_t outs;      // logits are wanted of the last `outs` rows
    int64_t top;       // 0: all logits of these rows; else this many top ones, at most QN_HEAD_TOP
    const qn_media *media; // of the sequence; NULL: it has no images
} qn_segment;

// Runs one step. Its rows are in the sequences' state afterwards. A step that cannot run for want
// of room leaves all sequences as they were.
QN_MUST_CHECK qn_status qn_runner_step(qn_runner *runner, const qn_segment *segments, int64_t n,
                                       qn_err *err);

// The same in two calls. Where ranks have a model by layers, as many steps as there are lanes may
// be under way between them, of different sequences: the first rank computes one while others
// compute the one before. Lanes are numbered from 0; one of them has one step at a time. They end
// in the order in which they began, and other steps of the runner may run in a free lane meanwhile.
// A sequence is left alone until its step has ended.
enum { QN_MAX_LANES = 16 };
int qn_runner_lanes(const qn_runner *runner);
QN_MUST_CHECK qn_status qn_runner_begin(qn_runner *runner, int lane, const qn_segment *segments,
                                        int64_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_runner_end(qn_runner *runner, int lane, qn_err *err);

// Runs a message from a record (record.h) as it is; its indices are checked first. All logits
// of wanted rows are there then. *n_out: how many are wanted. The runner must have run no step of
// its own.
QN_MUST_CHECK qn_status qn_runner_replay(int64_t *n_out, qn_runner *runner, qn_replay *replay,
                                         qn_touched *touched, bool *more, qn_err *err);

// Row `row` of an output of the step that ended last ("logits": the wanted rows in order, of which those of
// segments with `top` are undefined where qn_runner_find_top succeeds); NULL if there is no such
// output. Borrowed until the next step.
const float *qn_runner_row(const qn_runner *runner, const char *output, int64_t row);

// The top logits (gen/top_logits.h) of a wanted row of the last step, of those that belong to
// tokens; borrowed until the next.
typedef struct qn_runner_top {
    int64_t n;           // those asked for, at least 1; fewer only if the row has fewer
    const float *logits; // (n) in order
    const float *ids;    // (n) of them
    float min;           // of the row; where a logit is not finite, the first such
    int64_t broken;      // its entry; -1: all are finite
} qn_runner_top;
// False if the plan has no top logits: then qn_runner_row has them all.
bool qn_runner_find_top(qn_runner_top *out, const qn_runner *runner, int64_t row);

// Does the copies that wait for the next step now: before pages and slots are looked at, or
// written (state_bytes.h).
void qn_runner_flush_copies(qn_runner *runner);
// Whether steps are recorded (QN_STEPS): what is written to pages otherwise is not in the record.
bool qn_runner_is_recorded(const qn_runner *runner);

// --- the prediction head, of an engine that was opened with it ---

// Rows of a sequence for the head: tokens that the sequence has, or will have (drafts; a step with
// room for them is prepared), each with the model's row of the token before it.
typedef struct qn_predict {
    qn_seq *seq;
    int64_t position;    // of the first row, 1 or more
    const int32_t *ids;  // (rows) inside the vocabulary
    const float *before; // (rows, width) QN_ROWS_BEFORE of the model's step, or QN_ROWS_LAST of the
                         // token before, of the model or of the head itself
    int64_t rows;
    int64_t outs; // logits are wanted of the last `outs` rows
    int64_t top;  // as in a segment
    const qn_media *media;
} qn_predict;

// Runs the head; the outputs of the model's last step stay. `entries`: only the logits of ids below
// it are computed (0: all).
QN_MUST_CHECK qn_status qn_runner_predict(qn_runner *runner, const qn_predict *predicts, int64_t n,
                                          int64_t entries, qn_err *err);
// Of the head's last run, as qn_runner_row and qn_runner_find_top.
const float *qn_runner_head_row(const qn_runner *runner, const char *output, int64_t row);
bool qn_runner_head_top(qn_runner_top *out, const qn_runner *runner, int64_t row);

// Steps that have run.
int64_t qn_runner_steps(const qn_runner *runner);
qn_session_counts qn_runner_counts(const qn_runner *runner);
// Whether a device has failed; asked after hidden states were looked at, which come when they are.
QN_MUST_CHECK qn_status qn_runner_failure(const qn_runner *runner, qn_err *err);

#endif
