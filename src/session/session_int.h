// Inside a session: a token history and a sequence in a runner, which forks share.
#ifndef QN_SESSION_SESSION_INT_H
#define QN_SESSION_SESSION_INT_H

#include "gen/best.h"
#include "gen/draft.h"
#include "gen/sampler.h"
#include "runtime/runner.h"

// A runner and the sessions and snapshots that use it.
typedef struct qn_shared {
    qn_runner *runner;
    int64_t users;
    int64_t most; // sessions and snapshots
    // Of a step of several sessions: room for all of them, and its number, which its sessions bear.
    qn_segment *segments;
    qn_session **rows;
    uint64_t step;
    // Of steps that generate, and of guesses ahead by source (session/generate_draft.h).
    qn_step_costs costs;
    qn_draft_record records[QN_GUESS_SOURCES];
} qn_shared;

_Static_assert((int)QN_BEST_MOST == (int)QN_HEAD_TOP, "what choices ask for is what a head has");

// The best scores after a token, where a choice needs no more.
typedef struct qn_session_best {
    int64_t n;                     // 0: none
    size_t after;                  // so many tokens
    qn_score entries[QN_HEAD_TOP]; // (n) by descending score, ties by lower id
} qn_session_best;

// What choices of tokens depend on besides the scores and the history. Part of a session's state:
// snapshots and forks have it, a new prompt begins with {.n_prompt = n}.
typedef struct qn_session_memory {
    size_t n_prompt; // first tokens of the history that are the prompt; those after it are answer
    int64_t shifted; // tokens of prompt and answer that were dropped from the history
    qn_sampler_memory sampler;
} qn_session_memory;

struct qn_session {
    const qn_engine *engine; // borrowed
    qn_shared *shared;       // NULL in a reference engine
    qn_seq *seq;
    int64_t context, chunk;
    bool keeps;      // what was computed is remembered for later prompts
    int32_t *tokens; // (context)
    uint64_t *keys;  // (context) of the radix tree
    size_t n_tokens;
    qn_session_memory memory;
    size_t mark;   // what belongs to the first so many tokens is kept; 0: nothing special
    float *logits; // (V) after the last computed token, if has_logits
    bool has_logits;
    bool scores;          // rows of scores are always whole
    qn_session_best best; // beside the row, or in its place
    qn_sampler *sampler;
    int64_t reused;
    uint64_t step;            // of several sessions, the last that it was in
    qn_progress_fn *progress; // NULL: none
    void *progress_arg;
};

struct qn_snapshot {
    qn_shared *shared;
    qn_checkpoint *checkpoint;
    int32_t *tokens; // (n_tokens)
    size_t n_tokens;
    qn_session_memory memory;
    float *logits; // (V); NULL: none
    qn_session_best best;
};

// A session without history in an existing runner.
QN_MUST_CHECK qn_status qn_session_attach(qn_session **out, const qn_session *like,
                                          qn_shared *shared, qn_err *err);
// One user fewer; the last one destroys the runner.
void qn_shared_leave(qn_shared *shared);
enum { QN_MOST_FAMILY = 32 }; // generations in a step; sessions that share a runner by default

// The history from `at` on becomes `ids`, which are answer unless `at` is 0; there are no scores
// afterwards.
void qn_session_set_tokens(qn_session *session, size_t at, const int32_t *ids, size_t n);
// The history is cut to its first n tokens, all of which it has; the cache is left alone. What was
// the end of a prompt is answered anew.
void qn_session_cut(qn_session *session, size_t n);
// No more is cached than the history has, and a last token without scores is not: it is computed
// once more.
QN_MUST_CHECK qn_status qn_session_settle(qn_session *session, qn_err *err);
// The history has tokens, and room for `n` more.
QN_MUST_CHECK qn_status qn_session_need_room(const qn_session *session, size_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_session_need_plans(const qn_session *session, qn_err *err);

// What is wanted of the scores after a token: nothing, the whole row, or (above 0) so many of the
// best, as qn_segment.top.
enum { QN_TOP_NONE = -1, QN_TOP_ALL = 0 };
// Sets how tokens are chosen (NULL: greedy); *top: the scores that a choice needs.
QN_MUST_CHECK qn_status qn_session_set_sampling(int64_t *top, qn_session *session,
                                                const qn_sample_opts *opts, qn_err *err);
// Computes tokens [cached, n) of the history, and takes over what is wanted of the last one's
// scores.
QN_MUST_CHECK qn_status qn_session_compute(qn_session *session, size_t n, int64_t top, qn_err *err);
// As settle, where these scores are enough.
QN_MUST_CHECK qn_status qn_session_settle_for(qn_session *session, int64_t top, qn_err *err);
// Takes over row `row` of the last step's scores, after checking them. All of the session's cached
// tokens are of its history.
QN_MUST_CHECK qn_status qn_session_take(qn_session *session, int64_t row, int64_t top, qn_err *err);
// Whether a row of the last step is sound, however much of it is there.
QN_MUST_CHECK qn_status qn_runner_check_row(const qn_runner *runner, int64_t row, int64_t n_vocab,
                                            qn_err *err);
// What a choice of the next token depends on, without its scores.
qn_sampler_in qn_session_sampler_in(qn_session *session);
// Chooses a token by these scores (NULL: by those that were taken over) and appends it.
QN_MUST_CHECK qn_status qn_session_choose(int32_t *token, qn_session *session, const float *logits,
                                          qn_err *err);

// The same for whole rows.
QN_MUST_CHECK static inline qn_status qn_session_take_logits(qn_session *session, int64_t row,
                                                             qn_err *err) {
    return qn_session_take(session, row, QN_TOP_ALL, err);
}
QN_MUST_CHECK static inline qn_status qn_session_advance(qn_session *session, size_t n,
                                                         bool wants_logits, qn_err *err) {
    return qn_session_compute(session, n, wants_logits ? QN_TOP_ALL : QN_TOP_NONE, err);
}

#endif
