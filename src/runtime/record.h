// Steps in a file: what a runner was made for, then its messages, one after the other, from an
// empty state on. Replaying them gives the same logits, on any level and after a restart.
//
// The file is little-endian words: "quern steps 1\n" filled up to 16 bytes with zeros, the sizes of
// qn_record_head as 64-bit numbers, then messages (ir/step.h), each of which counts its own words.
#ifndef QN_RUNTIME_RECORD_H
#define QN_RUNTIME_RECORD_H

#include "runtime/runner.h"

typedef struct qn_record_head {
    int64_t vocab, layers, width;                                     // of the model
    int64_t context, rows, outs, segs, n_seqs, positions, kept_bytes; // of the runner
} qn_record_head;

// --- writing -------------------------------------------------------------------------------------

typedef struct qn_record qn_record;

// A new file for this user alone. Where there is one of that name already: NAME.1, NAME.2, ...
QN_MUST_CHECK qn_status qn_record_create(qn_record **out, const char *path,
                                         const qn_record_head *head, qn_err *err);
const char *qn_record_path(const qn_record *record); // borrowed
QN_MUST_CHECK qn_status qn_record_add(qn_record *record, const int32_t *message, qn_err *err);
void qn_record_destroy(qn_record *record); // NULL is fine

// --- reading -------------------------------------------------------------------------------------

// Anything can be in the file: sizes of other models, or that no runner has, are errors.
QN_MUST_CHECK qn_status qn_replay_open(qn_replay **out, qn_record_head *head, const char *path,
                                       qn_err *err);
// The next message, of at most `max_words`, to `message`; *more is false past the last. What is
// in it is not checked.
QN_MUST_CHECK qn_status qn_replay_next(int32_t *message, bool *more, qn_replay *replay,
                                       size_t max_words, qn_err *err);
void qn_replay_close(qn_replay *replay);

// The pages and slots that the steps of a record have written so far. A few bytes of a file can
// name a page of megabytes: memory is counted before it is touched.
struct qn_touched {
    unsigned char *pages, *slots; // a bit each; pages of all groups, one after the other
    int64_t bytes, max_bytes;
};
QN_MUST_CHECK qn_status qn_touched_init(qn_touched *touched, const qn_state *state,
                                        int64_t max_bytes, qn_err *err);
void qn_touched_deinit(qn_touched *touched);
// Counts what a checked message writes; more than `max_bytes` is an error with both values.
QN_MUST_CHECK qn_status qn_touched_add(qn_touched *touched, const qn_state *state,
                                       const qn_step *step, qn_err *err);

#endif
