// Inside a session: a token history and a sequence in a runner, which forks share.
//
//   session.c       life, history, single steps
//   session_state.c going back, forking, putting back what was
//   session_step.c  the one caller of a step of the model, and the scores that it leaves
//   session_read.c  the one reader of prompts
#ifndef QN_SESSION_SESSION_INT_H
#define QN_SESSION_SESSION_INT_H

#include "gen/best.h"
#include "gen/draft.h"
#include "gen/sampler.h"
#include "runtime/runner.h"

#include <stdatomic.h>

typedef struct qn_generation qn_generation;

// A runner and the sessions, snapshots and batches that use it.
typedef struct qn_shared {
    qn_runner *runner;
    _Atomic int64_t users; // rows of a batch are prepared by any thread
    int64_t most;          // sequences: sessions and snapshots
    int64_t outs;          // rows of a step whose scores can be wanted
    // The rows of the step that is being put together, (most) each.
    qn_segment *segments;
    qn_session **sessions;
    qn_generation **gens;
    qn_sampler *sampler; // whose scratch all samplers of the family use
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
    qn_seq *seq;             // NULL: it has no place in the runner now
    int64_t context, chunk;
    int32_t adapter; // set of adapters; -1: none
    bool keeps;      // what was computed is remembered for later prompts
    int32_t *tokens; // (cap)
    uint64_t *keys;  // (cap) of the radix tree
    size_t n_tokens, cap;
    qn_session_memory memory;
    size_t mark;     // what belongs to the first so many tokens is kept; 0: nothing special
    size_t reads_to; // a prompt of so many tokens is being read; 0: none
    float *logits;   // (V) after the last computed token, if has_logits; NULL: none were needed yet
    bool has_logits;
    bool scores;          // rows of scores are always whole
    qn_session_best best; // beside the row, or in its place
    qn_sampler *sampler;  // of single steps; NULL: there was none yet
    int64_t reused;
    qn_progress_fn *progress; // NULL: none
    void *progress_arg;
    const qn_stop_flag *stop; // NULL: none
};

struct qn_snapshot {
    qn_shared *shared;
    qn_checkpoint *checkpoint;
    int32_t *tokens; // (n_tokens)
    size_t n_tokens;
    qn_session_memory memory;
    int32_t adapter;
    float *logits; // (V); NULL: none
    qn_session_best best;
};

// --- life ---

// Opens what sessions share, for checked options; NULL in engines without plans. `like` gets what
// the sessions have in common.
QN_MUST_CHECK qn_status qn_shared_open(qn_shared **out, qn_session *like,
                                       const qn_runner_opts *opts, qn_err *err);
// One user fewer; the last one destroys the runner.
void qn_shared_leave(qn_shared *shared);
enum { QN_DEFAULT_SESSIONS = 32, QN_MOST_SESSIONS = 1 << 16 };

// A session without history and without a place in the runner: any thread may make one. `cap`: the
// first tokens that there is room for.
QN_MUST_CHECK qn_status qn_session_prepare(qn_session **out, const qn_session *like,
                                           qn_shared *shared, size_t cap, qn_err *err);
// Takes a place in the runner (LIMIT: there is none), and gives it back with all that is cached.
QN_MUST_CHECK qn_status qn_session_enter(qn_session *session, qn_err *err);
void qn_session_leave(qn_session *session);
// Both for a whole context.
QN_MUST_CHECK qn_status qn_session_attach(qn_session **out, const qn_session *like,
                                          qn_shared *shared, qn_err *err);
// Room for a history of n tokens, at most the context.
QN_MUST_CHECK qn_status qn_session_reserve(qn_session *session, size_t n, qn_err *err);
// `to` has the same history and no place: it gets the state and the scores of `from`, by sharing or
// (`moves`) by taking them away.
QN_MUST_CHECK qn_status qn_session_take_state(qn_session *to, qn_session *from, bool moves,
                                              qn_err *err);

// Its set of adapters, as an option asks for it.
int64_t qn_session_adapter(const qn_session *session);
// Another set (-1: none); nothing is cached, or what is cached was computed with it.
void qn_session_choose_adapter(qn_session *session, int32_t adapter);

// --- the history ---

// The session has no scores of its last token.
void qn_session_drop_scores(qn_session *session);
// The history from `at` on becomes `ids`, which are answer unless `at` is 0; there is room for
// them, and there are no scores afterwards.
void qn_session_set_tokens(qn_session *session, size_t at, const int32_t *ids, size_t n);
// The history is cut to its first n tokens, all of which it has; the cache is left alone. What was
// the end of a prompt is answered anew.
void qn_session_cut(qn_session *session, size_t n);
// What is cached is kept for later prompts, as far as the runner keeps anything.
void qn_session_remember(qn_session *session);
// No more is cached than the history has, and a last token without scores is not: it is computed
// once more. `top`: the scores that are enough.
QN_MUST_CHECK qn_status qn_session_settle(qn_session *session, int64_t top, qn_err *err);
QN_MUST_CHECK qn_status qn_session_need_plans(const qn_session *session, qn_err *err);

// --- steps ---

// What is wanted of the scores after a token: nothing, the whole row, or (above 0) so many of the
// best, as qn_segment.top.
enum { QN_TOP_NONE = -1, QN_TOP_ALL = 0 };

// One step of the model, of segments of these sessions, whose scores are dropped.
QN_MUST_CHECK qn_status qn_session_run(qn_shared *shared, qn_session *const *sessions,
                                       const qn_segment *segments, int64_t n, qn_err *err);
// Takes over row `row` of the last step's scores, after checking them. All of the session's cached
// tokens are of its history.
QN_MUST_CHECK qn_status qn_session_take(qn_session *session, int64_t row, int64_t top, qn_err *err);

// A row of the last step's scores: all of them, or the best where those are enough.
typedef struct qn_scores {
    const float *all; // NULL: only the best are there
    qn_score best[QN_HEAD_TOP];
    int64_t n_best;
} qn_scores;
// `top` is that of the row's segment. Rows that are not whole are checked here.
QN_MUST_CHECK qn_status qn_scores_find(qn_scores *out, const qn_session *session, int64_t row,
                                       int64_t top, qn_err *err);

// --- reading ---

// Tokens of the history up to `end` are to be computed: an empty session begins with what was kept
// of earlier prompts, `most` tokens of it at most, for those whose scores are wanted are computed.
void qn_session_begin_reading(qn_session *session, size_t end, size_t most);
// Rows to be computed next, at most `most`.
int64_t qn_session_next_rows(const qn_session *session, size_t end, int64_t most);
// So many rows were computed: keeps what may be wanted again, and tells how far a prompt is.
QN_MUST_CHECK qn_status qn_session_has_read(qn_session *session, int64_t rows, qn_err *err);
// Computes tokens [cached, n) of the history, and takes over what is wanted of the last one's
// scores.
QN_MUST_CHECK qn_status qn_session_compute(qn_session *session, size_t n, int64_t top, qn_err *err);

// A sampler for choices of this session, greedy at first. Any thread may make one.
QN_MUST_CHECK qn_status qn_session_create_sampler(qn_sampler **out, const qn_session *session,
                                                  qn_err *err);
// What a choice of the next token depends on, without its scores.
qn_sampler_in qn_session_sampler_in(qn_session *session);

#endif
