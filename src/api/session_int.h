// Inside a session: a token history and a sequence in a runner, which forks share.
#ifndef QN_API_SESSION_INT_H
#define QN_API_SESSION_INT_H

#include "gen/draft.h"
#include "gen/sampler.h"
#include "runtime/runner.h"

// A runner and the sessions and snapshots that use it.
typedef struct qn_shared {
    qn_runner *runner;
    int64_t users;
    // Of steps that generate, and of guesses ahead by source (api/generate_draft.h).
    qn_step_costs costs;
    qn_draft_record records[QN_GUESS_SOURCES];
} qn_shared;

struct qn_session {
    const qn_engine *engine; // borrowed
    qn_shared *shared;       // NULL in a reference engine
    qn_seq *seq;
    int64_t context, chunk;
    bool keeps;      // what was computed is remembered for later prompts
    int32_t *tokens; // (context)
    uint64_t *keys;  // (context) of the radix tree
    size_t n_tokens;
    size_t n_prompt; // those that are no answer; may be more than n_tokens
    size_t mark;   // what belongs to the first so many tokens is kept; 0: nothing special
    float *logits; // (V) after the last computed token, if has_logits
    bool has_logits;
    qn_sampler *sampler;
    int64_t reused;
    qn_progress_fn *progress; // NULL: none
    void *progress_arg;
};

struct qn_snapshot {
    qn_shared *shared;
    qn_checkpoint *checkpoint;
    int32_t *tokens; // (n_tokens)
    size_t n_tokens;
    float *logits; // (V); NULL: none
};

// A session without history in an existing runner.
QN_MUST_CHECK qn_status qn_session_attach(qn_session **out, const qn_session *like,
                                          qn_shared *shared, qn_err *err);
// One user fewer; the last one destroys the runner.
void qn_shared_leave(qn_shared *shared);
enum { QN_MOST_FAMILY = 32 }; // sessions and snapshots that share a runner

// The history from `at` on becomes `ids`; there are no scores afterwards.
void qn_session_set_tokens(qn_session *session, size_t at, const int32_t *ids, size_t n);
// No more is cached than the history has, and a last token without scores is not: it is computed
// once more.
QN_MUST_CHECK qn_status qn_session_settle(qn_session *session, qn_err *err);
// The history has tokens, and room for `n` more.
QN_MUST_CHECK qn_status qn_session_need_room(const qn_session *session, size_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_session_need_plans(const qn_session *session, qn_err *err);
// Takes over row `row` of the last step's scores, and checks them.
QN_MUST_CHECK qn_status qn_session_take_logits(qn_session *session, int64_t row, qn_err *err);
// Chooses a token by the scores and appends it.
QN_MUST_CHECK qn_status qn_session_choose(int32_t *token, qn_session *session, const float *logits,
                                          const qn_sample_opts *opts, qn_err *err);
// Computes tokens [cached, n) of the history; `wants_logits`: of the last of them.
QN_MUST_CHECK qn_status qn_session_advance(qn_session *session, size_t n, bool wants_logits,
                                           qn_err *err);

#endif
