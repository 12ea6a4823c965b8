// The ranks of an engine: rank 0 decides and gives orders, the others follow them (follow.c).
//
// An order is a broadcast: what to do, with which runner, and the message of the step. Sequences,
// the tree and sampling are on rank 0 alone; what a follower has of a runner is memory for pages
// and slots, and a program. With a split of tensors every rank runs every step on its share, and
// parts are gathered inside (qn_gather). With one of layers a rank runs its layers and hands rows
// on; a long step goes in parts, and several steps are under way at a time (qn_runner_begin), so
// that all ranks have work.
//
// An order, and what rank 0 does itself of it, hold the lock of the team; so does taking what comes
// back of a step. Between these, steps are under way on other ranks, which follow orders one after
// the other: whatever an order does to pages and slots comes after the steps before it and before
// those after it, on every rank. What a rank sends back waits at nobody, and is told apart by a tag
// of its runner and lane.
#ifndef QN_RUNTIME_TEAM_H
#define QN_RUNTIME_TEAM_H

#include "backends/device.h"
#include "ranks/ranks.h"

#include <pthread.h>

typedef struct qn_runner qn_runner;

enum { QN_TEAM_RUNNERS = 64 }; // at a time

// Rows that one rank hands to others: of a split of layers.
typedef struct qn_team_cut {
    char name[32]; // QN_CUT_NAME and a number
    int64_t width;
    int maker;
    bool *reads; // (n_ranks)
} qn_team_cut;

// Of one graph: cutting another one gives other names.
typedef struct qn_team_cuts {
    qn_team_cut *items; // (n)
    size_t n;
} qn_team_cuts;

typedef struct qn_team {
    qn_ranks *ranks;
    int rank, n_ranks;
    qn_split split;                 // TENSORS or LAYERS
    int64_t *first_layer;           // (n_ranks + 1) of a split of layers
    qn_team_cuts cuts, hidden_cuts; // of the model's graph, and of that with hidden states
    qn_gather gather;
    pthread_mutex_t lock;
    qn_runner *runners[QN_TEAM_RUNNERS]; // by number; NULL: free
    uint64_t n_meetings;                 // runners that ranks have tried to have together
    char *plan;                          // JSON, of qn_engine_split
    bool has_opened;                     // all ranks have the model
    bool has_ended;                      // rank 0 has closed its engine
} qn_team;

// Joins the ranks. `ranks` may be NULL: those of the launcher.
QN_MUST_CHECK qn_status qn_team_join(qn_team **out, const qn_engine_opts *opts,
                                     const qn_ranks_opts *ranks, qn_err *err);
// Rank 0 tells the others that it is over. NULL is fine.
void qn_team_leave(qn_team *team);

// How many threads this rank takes by default: cores that several ranks may use are divided.
int qn_team_threads(const qn_team *team);
// As many bytes of every rank, at `all`; one of them is at `own`.
QN_MUST_CHECK qn_status qn_team_gather_equal(qn_team *team, void *all, const void *own,
                                             size_t bytes, qn_err *err);
// Whether ranks fit together (team_compare.c): first their versions; then, after the model is there
// or failed to open, whether all have the same and want the same.
QN_MUST_CHECK qn_status qn_team_compare_versions(qn_team *team, qn_err *err);
QN_MUST_CHECK qn_status qn_team_compare(qn_team *team, const qn_engine *engine, qn_status own,
                                        qn_err *err);
// Decides how the model is split; all ranks decide the same.
QN_MUST_CHECK qn_status qn_team_choose(qn_team *team, const qn_engine *engine, qn_err *err);
// After the plans are there: what pages and slots cost is that of the rank where they cost most.
QN_MUST_CHECK qn_status qn_team_level(qn_team *team, qn_engine *engine, qn_err *err);
// Whether all ranks are well, as far as is known without waiting for any.
QN_MUST_CHECK qn_status qn_team_check(qn_team *team, qn_err *err);
// An error for people: what an engine on several ranks cannot do. QN_OK where it is on one.
QN_MUST_CHECK qn_status qn_team_refuse(const qn_team *team, const char *what, qn_err *err);

// Whether a rank computes the last layers, the head and the prediction head (all do with a split of
// tensors).
static inline bool qn_team_has_head(const qn_team *team) {
    return !team || team->split != QN_SPLIT_LAYERS || team->rank == team->n_ranks - 1;
}
static inline bool qn_team_leads(const qn_team *team) { return !team || team->rank == 0; }

// --- orders (team_order.c) -----------------------------------------------------------------------

typedef enum qn_team_order_kind {
    QN_ORDER_END,     // rank 0 has closed its engine
    QN_ORDER_OPEN,    // a runner: qn_team_want
    QN_ORDER_CLOSE,   // and away with it
    QN_ORDER_STEP,    // messages of the parts of a step, one after the other
    QN_ORDER_COPY,    // a message without rows
    QN_ORDER_PREDICT, // a message of the prediction head, and the rows before its own
    QN_ORDER_KINDS
} qn_team_order_kind;

typedef struct qn_team_order {
    int32_t kind;        // qn_team_order_kind
    int32_t runner;      // number
    int32_t lane, parts; // of a step
    int64_t words;       // of the body, without `more`
    int64_t rest;        // words of `more`
} qn_team_order;

// The body of QN_ORDER_OPEN; page counts of each group come after it, as 64-bit numbers.
typedef struct qn_team_want {
    int64_t hidden, context, rows, outs, segs, n_seqs, positions, kept_bytes;
    int64_t n_groups, n_slots, n_lanes;
} qn_team_want;

// An order under way: in a block of a fixed size that holds most orders whole; the rest of its body;
// and `more`.
enum { QN_ORDER_WORDS = 960, QN_ORDER_PARTS = 3 };
typedef struct qn_team_letter {
    int32_t block[QN_ORDER_WORDS];
    qn_ranks_request sent[QN_ORDER_PARTS];
} qn_team_letter;
// Of rank 0, with the lock held. `more` is a second block of words after the body; NULL: none. The
// letter, body and `more` stay as they are until the order has arrived.
QN_MUST_CHECK qn_status qn_team_post(qn_team_letter *letter, qn_team *team,
                                     const qn_team_order *order, const int32_t *body,
                                     const int32_t *more, qn_err *err);
QN_MUST_CHECK qn_status qn_team_arrive(qn_team_letter *letter, qn_team *team, qn_err *err);
// Both: waits until the others have come to take it.
QN_MUST_CHECK qn_status qn_team_give(qn_team *team, const qn_team_order *order, const int32_t *body,
                                     const int32_t *more, qn_err *err);
// The same for an order without a body, where it does not matter whether it arrives.
void qn_team_tell(qn_team *team, const qn_team_order *order);

// Where a follower takes the body of an order, and what comes after it, to: called once the order
// is known.
typedef qn_status qn_team_room_fn(int32_t **body, int32_t **more, void *arg,
                                  const qn_team_order *order, qn_err *err);
QN_MUST_CHECK qn_status qn_team_await(qn_team_order *order, qn_team *team, qn_team_room_fn *room,
                                      void *arg, qn_err *err);

// --- following (follow.c) ------------------------------------------------------------------------

// Does what rank 0 asks for until that is over.
QN_MUST_CHECK qn_status qn_team_follow(const qn_engine *engine, qn_err *err);

#endif
