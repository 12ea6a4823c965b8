// Inside a session: a token history and a sequence in a runner, which forks share.
//
//   session.c         creating, history, single steps
//   session_state.c   truncating, forking, snapshots
//   session_step.c    qn_session_run: every step of sessions and generations; the logits it leaves
//   session_save.c, session_load.c  a session as bytes
//   session_look.c    keys, values, recurrent state and hidden rows
//   session_prefill.c prompts of sessions; how prompts are cut, also those of generations
#ifndef QN_SESSION_SESSION_INT_H
#define QN_SESSION_SESSION_INT_H

#include "gen/top_logits.h"
#include "gen/draft.h"
#include "gen/chooser.h"
#include "runtime/runner.h"
#include "session/prompt_share.h"

#include <stdatomic.h>

typedef struct qn_generation qn_generation;

// A row whose drafts come from the prediction head (generate_head.c).
typedef struct qn_head_want {
    struct qn_drafter *drafter;
    qn_session *session;     // there is room for the drafts after its tokens
    const uint32_t *allowed; // tokens that may come next, without the grammar; NULL: all
    int64_t n_excluded;      // tokens that are not allowed
} qn_head_want;

// A step of generations, in the lane of the runner that has its number. While it is being built it
// has the rows that may be in it: first those that decode, then those that prefill.
typedef struct qn_flight {
    // (max_seqs) each
    qn_segment *segments;
    qn_session **sessions;
    qn_generation **gens;
    int64_t n, n_decoding, n_rows;
    int64_t began; // nanoseconds
    bool is_under_way;
} qn_flight;

// A runner and the sessions, snapshots and batches that use it.
typedef struct qn_shared {
    qn_runner *runner;
    _Atomic int64_t users;           // rows of a batch are prepared by any thread
    int64_t max_seqs;                // sessions and snapshots
    int64_t outs;                    // max rows of a step with logits
    qn_flight flights[QN_MAX_LANES]; // those of the runner's lanes
    int n_flights;
    int64_t ended;    // when a step ended last, in nanoseconds
    bool has_company; // rows that are in no step now wait for their next token
    // The rows of the step that is being built, (max_seqs) each.
    qn_head_want *heads;
    qn_predict *predicts;
    qn_chooser *chooser; // whose scratch all choosers of the family use
    // Of decode steps, and of drafts by source (session/generate_draft.h).
    qn_step_costs costs;
    qn_prompt_share share;
    qn_draft_record records[QN_DRAFT_SOURCES];
} qn_shared;

_Static_assert((int)QN_MAX_TOP_LOGITS == (int)QN_HEAD_TOP,
               "a head has as many top logits as a choice may need");

// The top logits after a token, where a choice needs no more.
typedef struct qn_session_top {
    int64_t n;                         // 0: none
    size_t after;                      // how many tokens
    qn_top_logit entries[QN_HEAD_TOP]; // (n) in order
} qn_session_top;

// What choices of tokens depend on besides the logits and the history. Part of a session's state:
// snapshots and forks have it, a new prompt begins with {.n_prompt = n}.
typedef struct qn_session_memory {
    size_t n_prompt; // first tokens of the history that are the prompt; those after it are answer
    int64_t shifted; // tokens of prompt and answer that were dropped from the history
    qn_chooser_memory chooser;
} qn_session_memory;

struct qn_session {
    const qn_engine *engine; // borrowed
    qn_shared *shared;       // NULL in a reference engine
    qn_seq *seq;             // NULL: it has no place in the runner
    int64_t context, chunk;
    int32_t adapter; // set of adapters; -1: none
    bool keeps;      // computed state goes to the prefix cache
    int32_t *tokens; // (cap)
    uint64_t *keys;  // (cap) of the radix tree
    size_t n_tokens, cap;
    qn_media media; // images of the history
    qn_session_memory memory;
    size_t mark;        // state after this many tokens goes to the prefix cache; 0: none
    size_t prefill_end; // a prompt up to this token is being prefilled; 0: none
    float *logits;      // (V) after the last cached token, if has_logits; NULL: never needed so far
    bool has_logits;
    bool wants_logits;         // all logits of a row, never only the top ones
    qn_session_top top_logits; // beside `logits`, or in their place
    // (width) the model's row of the last cached token, for the prediction head; NULL: no head
    float *last;
    size_t last_after;   // cached tokens when it was taken; 0: not yet
    qn_chooser *chooser; // of single steps; NULL: not needed so far
    int64_t reused;
    bool keeps_hidden; // steps leave the residual stream of their rows
    // Of its last step: its number in the runner, the first position and row, and how many.
    int64_t step, step_first, step_row, step_rows;
    qn_progress_fn *progress; // NULL: none
    void *progress_arg;
    const qn_stop_flag *stop; // NULL: none
};

struct qn_snapshot {
    qn_shared *shared;
    qn_checkpoint *checkpoint;
    int32_t *tokens; // (n_tokens)
    size_t n_tokens;
    qn_media media;
    qn_session_memory memory;
    int32_t adapter;
    float *logits; // (V); NULL: none
    qn_session_top top_logits;
    float *last; // (width); NULL: none
    size_t last_after;
};

// --- life ---

// Opens what sessions share, for checked options; NULL in engines without plans. `like` gets the
// settings that the sessions have in common.
QN_MUST_CHECK qn_status qn_shared_open(qn_shared **out, qn_session *like,
                                       const qn_runner_opts *opts, qn_err *err);
// One user fewer; the last one destroys the runner.
void qn_shared_leave(qn_shared *shared);
enum { QN_MAX_SESSIONS = 1 << 16 };

// A session without history and without a place in the runner: any thread may make one. `cap`: the
// tokens that there is room for at first.
QN_MUST_CHECK qn_status qn_session_prepare(qn_session **out, const qn_session *like,
                                           qn_shared *shared, size_t cap, qn_err *err);
// Takes a place in the runner (LIMIT: there is none); gives it back with everything cached.
QN_MUST_CHECK qn_status qn_session_enter(qn_session *session, qn_err *err);
void qn_session_leave(qn_session *session);
// Both for a whole context.
QN_MUST_CHECK qn_status qn_session_attach(qn_session **out, const qn_session *like,
                                          qn_shared *shared, qn_err *err);
// Room for a history of n tokens, at most the context.
QN_MUST_CHECK qn_status qn_session_reserve(qn_session *session, size_t n, qn_err *err);
// `to` has the same history and no place: it gets the state and the logits of `from`, as a fork or
// (`moves`) in place of `from`.
QN_MUST_CHECK qn_status qn_session_take_state(qn_session *to, qn_session *from, bool moves,
                                              qn_err *err);

// Its set of adapters, as an option asks for it.
int64_t qn_session_adapter(const qn_session *session);
// Another set (-1: none); nothing is cached, or what is cached was computed with it.
void qn_session_choose_adapter(qn_session *session, int32_t adapter);

// --- the history ---

// Forgets the logits after the last token.
void qn_session_drop_logits(qn_session *session);
// The history from `at` on becomes `ids`, which are answer unless `at` is 0, and no images. There
// must be room; the logits are dropped.
void qn_session_set_tokens(qn_session *session, size_t at, const int32_t *ids, size_t n);
// Images of the history, whose tokens have been set, in place of those that it has; their list is
// the session's afterwards.
void qn_session_set_media(qn_session *session, qn_media *media);
// Keys of the prefix cache, after another set of adapters or other images.
void qn_session_set_keys(qn_session *session);
// The history as the model reads it.
qn_run_input qn_session_input(const qn_session *session);
// Cuts the history to its first n tokens, n <= n_tokens; the KV cache is left alone. What remains
// of a prompt is still the prompt.
void qn_session_cut(qn_session *session, size_t n);
// Adds the cached state to the prefix cache, if the session uses it.
void qn_session_remember(qn_session *session);
// Fails if more is cached than the history has. A cached last token without logits is rolled back,
// to be computed again. `top`: how many logits are enough.
QN_MUST_CHECK qn_status qn_session_settle(qn_session *session, int64_t top, qn_err *err);
QN_MUST_CHECK qn_status qn_session_need_plans(const qn_session *session, qn_err *err);

// --- steps ---

// Which logits after a token are wanted: none, all, or (above 0) that many of the largest, as
// qn_segment.top.
enum { QN_TOP_NONE = -1, QN_TOP_ALL = 0 };

// One step of the model for segments of these sessions, whose logits are dropped.
QN_MUST_CHECK qn_status qn_session_run(qn_shared *shared, qn_session *const *sessions,
                                       const qn_segment *segments, int64_t n, qn_err *err);
// The same in two calls, for a flight's segments; others may be under way between them. Until the
// second one the sessions are left alone.
QN_MUST_CHECK qn_status qn_session_begin(qn_shared *shared, qn_flight *flight, qn_err *err);
QN_MUST_CHECK qn_status qn_session_end(qn_shared *shared, qn_flight *flight, qn_err *err);
// Copies row `row` of the last step's logits to the session, after checking them. All of the
// session's cached tokens are of its history.
QN_MUST_CHECK qn_status qn_session_take(qn_session *session, int64_t row, int64_t top, qn_err *err);

// Copies the model's row `row` of the last step, of the last token that stays cached (`after` of
// them), for the prediction head, where the engine has one.
void qn_session_keep_last(qn_session *session, int64_t row, size_t after);

// A row of the last step's logits: all of them, or the top ones where those are enough.
typedef struct qn_row_logits {
    const float *all;              // (V); NULL: only the top ones are there
    qn_top_logit top[QN_HEAD_TOP]; // (n_top) in order
    int64_t n_top;
} qn_row_logits;
// `top` is that of the row's segment. Rows that are not whole are checked here.
QN_MUST_CHECK qn_status qn_row_logits_find(qn_row_logits *out, const qn_session *session,
                                           int64_t row, int64_t top, qn_err *err);

// --- prefill ---

// Tokens of the history up to `end` are to be computed. A session with nothing cached starts from
// the prefix cache, with at most `max` tokens: those whose logits are wanted must be computed.
void qn_session_begin_prefill(qn_session *session, size_t end, size_t max);
// How many rows to compute next, at most `max`.
int64_t qn_session_next_rows(const qn_session *session, size_t end, int64_t max);
// `rows` rows were computed: adds to the prefix cache what may be reused, and reports progress.
QN_MUST_CHECK qn_status qn_session_prefilled(qn_session *session, int64_t rows, qn_err *err);
// Computes tokens [cached, n) of the history, and copies the logits after the last one that `top`
// asks for.
QN_MUST_CHECK qn_status qn_session_compute(qn_session *session, size_t n, int64_t top, qn_err *err);

// qn_session_set_prompt_images, which one more flag (NULL: none) ends.
QN_MUST_CHECK qn_status qn_session_set_images(qn_session *session, const int32_t *ids, size_t n,
                                              const qn_image *const *images, size_t n_images,
                                              const qn_stop_flag *also, qn_err *err);
// A chooser for choices of this session, greedy at first. Any thread may make one.
QN_MUST_CHECK qn_status qn_session_create_chooser(qn_chooser **out, const qn_session *session,
                                                  qn_err *err);
// What the choice of the next token depends on, except the logits.
qn_chooser_in qn_session_chooser_in(qn_session *session);

#endif
