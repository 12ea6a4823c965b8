// Ranks: processes that compute one model together. Rank 0 leads, the others follow it.
//
// A launcher (mpirun, Slurm) starts them; this is what they say to each other. A `qn_ranks` is one
// process's place among them, and is used by one thread at a time. Every wait has a limit, ends
// when a rank is lost or the caller's stop flag is set, and gives its processor away when it takes
// longer. After the first failure every call fails at once with the same error: what ranks know of
// each other is unknown then. Memory that was given to calls which failed may be written until the
// ranks are left, and on some networks until the process ends. Whoever waited too long names the
// ranks that do not answer.
#ifndef QN_RANKS_RANKS_H
#define QN_RANKS_RANKS_H

#include "core/err.h"

typedef struct qn_ranks qn_ranks;
typedef struct qn_ranks_api qn_ranks_api; // ranks_api.h

typedef struct qn_ranks_opts {
    // The system that carries messages; NULL: that of the launcher which started this process, from
    // the plug-in libquern-mpi.so.
    const qn_ranks_api *api;
    void *api_arg;            // for api->open
    int64_t timeout_ms;       // of one wait inside a step, on rank 0; twice that on others.
                              // 0: 60,000
    int64_t join_ms;          // of joining; 0: as timeout_ms, but at least 60,000
    const qn_stop_flag *stop; // ends every wait that takes a quarter of a second; NULL: none
} qn_ranks_opts;

// Joins the others; all of them must. Their number, and this one's, are fixed from then on.
QN_MUST_CHECK qn_status qn_ranks_join(qn_ranks **out, const qn_ranks_opts *opts, qn_err *err);
// NULL is fine. After a failure, ranks that do not tell people of it (qn_ranks_tells) wait for the
// one that does to end, two seconds at most: a launcher ends the others as soon as some have ended.
void qn_ranks_leave(qn_ranks *ranks);

int qn_ranks_own(const qn_ranks *ranks); // 0 ... n - 1
int qn_ranks_count(const qn_ranks *ranks);
// How many ranks may run on cores of this one, itself among them.
int qn_ranks_sharing(const qn_ranks *ranks);
int64_t qn_ranks_timeout(const qn_ranks *ranks);    // in ms
const char *qn_ranks_system(const qn_ranks *ranks); // "mpi"

// --- all of them at once: every rank calls the same functions in the same order ------------------

QN_MUST_CHECK qn_status qn_ranks_broadcast(qn_ranks *ranks, void *data, size_t bytes, int root,
                                           qn_err *err);
// The same for those that wait for their next order: without a limit, and soon asleep.
QN_MUST_CHECK qn_status qn_ranks_await(qn_ranks *ranks, void *data, size_t bytes, int root,
                                       qn_err *err);
// The parts of all ranks, bytes[0 ... n - 1] long, one after the other at `to`; `from` is this
// rank's own, and may lie at its place in `to`.
QN_MUST_CHECK qn_status qn_ranks_all_gather(qn_ranks *ranks, void *to, const void *from,
                                            const size_t *bytes, qn_err *err);
QN_MUST_CHECK qn_status qn_ranks_barrier(qn_ranks *ranks, qn_err *err);
// Whether all ranks are well: each gives its status and, if it failed, its error. If any failed,
// all fail as the first of them did; its number is before the message of the others.
QN_MUST_CHECK qn_status qn_ranks_agree(qn_ranks *ranks, qn_status own, qn_err *err);
// The same after something that takes ranks very different times, such as reading a model: without
// a limit.
QN_MUST_CHECK qn_status qn_ranks_agree_late(qn_ranks *ranks, qn_status own, qn_err *err);

// --- two of them ---------------------------------------------------------------------------------

// Into how many a message is cut that is longer than the system takes (MPI: 1 GiB).
enum { QN_RANKS_PIECES = 4 };

// A message under way; the caller's storage.
typedef struct qn_ranks_request {
    void *handle[QN_RANKS_PIECES]; // of its pieces; NULL: done
    size_t bytes;
    int peer;
    bool is_send, is_all, is_open; // is_all: a broadcast
} qn_ranks_request;

// Begin to send or receive; `data` stays as it is until the request was waited for. Messages from
// one rank to another with the same tag (0 ... 32767) arrive in order.
QN_MUST_CHECK qn_status qn_ranks_send(qn_ranks_request *request, qn_ranks *ranks, const void *data,
                                      size_t bytes, int to, int tag, qn_err *err);
QN_MUST_CHECK qn_status qn_ranks_receive(qn_ranks_request *request, qn_ranks *ranks, void *data,
                                         size_t bytes, int from, int tag, qn_err *err);
// A request that is not open is done.
QN_MUST_CHECK qn_status qn_ranks_wait(qn_ranks *ranks, qn_ranks_request *request, qn_err *err);

// Begins a broadcast from this rank, in the order of operations of all ranks; others may be begun
// before it is done. `data` stays as it is until the request was waited for. Shared memory holds
// messages until they are taken: whoever waits for that waits for ranks that are at something else.
QN_MUST_CHECK qn_status qn_ranks_spread(qn_ranks_request *request, qn_ranks *ranks,
                                        const void *data, size_t bytes, qn_err *err);

// --- failure -------------------------------------------------------------------------------------

// The same after a look at whether the others are well; waits for nobody.
QN_MUST_CHECK qn_status qn_ranks_check(qn_ranks *ranks, qn_err *err);
// This rank cannot go on, for reasons of its own: every later call of it fails like that, and the
// waits of the others end with its message. Nothing happens if something failed already.
void qn_ranks_fail(qn_ranks *ranks, const qn_err *why);
// What failed first; QN_OK: nothing did.
QN_MUST_CHECK qn_status qn_ranks_failure(const qn_ranks *ranks, qn_err *err);
// Whether this rank is the one that tells people of a failure: rank 0, or if that is the one that
// was lost or has not come within the limit, rank 1.
bool qn_ranks_tells(const qn_ranks *ranks);

// What was sent and received so far: calls, and bytes that this rank gave away.
typedef struct qn_ranks_counts {
    int64_t messages, bytes;
} qn_ranks_counts;
qn_ranks_counts qn_ranks_get_counts(const qn_ranks *ranks);

#endif
