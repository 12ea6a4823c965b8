// What the files of this folder know of a rank.
#ifndef QN_RANKS_RANKS_INT_H
#define QN_RANKS_RANKS_INT_H

#include "ranks/ranks.h"
#include "ranks/ranks_api.h"

// How a rank is, as it tells others.
typedef struct qn_ranks_report {
    int32_t status; // qn_status
    int32_t lost;   // the rank that was lost; -1: none
    char message[sizeof((qn_err *)0)->message];
} qn_ranks_report;

struct qn_ranks {
    const qn_ranks_api *api;
    qn_ranks_group *group;
    qn_ranks_place place;
    int64_t limit_ms; // of one wait
    const qn_stop_flag *stop;
    qn_ranks_counts counts;

    qn_err failure; // the first; status QN_OK: none
    int lost;       // the rank that is to blame, if it is lost; -1: none
    // A message from each of the others is waited for all the time, and comes when that one fails.
    void **listening;         // (n) NULL: not listening
    qn_ranks_report *notices; // (n) what comes
    qn_ranks_report own;      // what this rank tells

    size_t *sizes;            // (n) scratch, as is
    qn_ranks_report *reports; // (n) those of all ranks
};

// An operation, as errors name it: "broadcast of 16 bytes from rank 0".
typedef struct qn_ranks_op {
    const char *what;
    size_t bytes;
    const char *side; // "from", "to"; NULL: of all alike
    int peer;
    bool is_idle; // may take any time
} qn_ranks_op;

// Waits until the operation that `error` and `handle` are of is done. *handle is NULL then.
QN_MUST_CHECK qn_status qn_ranks_finish(qn_ranks *ranks, int error, void **handle,
                                        const qn_ranks_op *op, qn_err *err);

// Begins to listen to the failures of others.
QN_MUST_CHECK qn_status qn_ranks_listen(qn_ranks *ranks, qn_err *err);
// Whether another rank failed or was lost: then that is the failure of this one, too.
bool qn_ranks_look(qn_ranks *ranks);
// Fails by what this rank has found out, and tells the others. `lost`: the rank that is to blame;
// -1: none. Returns the failure; if there was one already, that one.
qn_status qn_ranks_break(qn_ranks *ranks, const qn_err *why, int lost, qn_err *err);
// After a wait of rank 0 that took too long: puts the ranks that do not answer to the notice of it
// before the message.
void qn_ranks_name_silent(qn_ranks *ranks);
// After a failure, a rank that does not tell people of it waits for the one that does to end, two
// seconds at most: when ranks end, launchers end the others, and the more the sooner.
void qn_ranks_linger(const qn_ranks *ranks);

#endif
