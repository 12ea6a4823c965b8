// Ranks that are threads of one process: the table of ranks_api.h over shared memory, and a helper
// that runs a function on all of them.
#ifndef QN_TESTS_THREADS_RANKS_H
#define QN_TESTS_THREADS_RANKS_H

#include "ranks/ranks.h"
#include "ranks/ranks_api.h"

// What the ranks of a world share. Ends after all of them have left.
typedef struct threads_world threads_world;

typedef struct threads_world_opts {
    int n;
    size_t max_bytes; // of one operation; 0: no limit
    // A send is done when it was received, a broadcast when all have come: where callers rely on
    // room between ranks, they wait for each other forever.
    bool is_synchronous;
} threads_world_opts;

threads_world *threads_world_create(const threads_world_opts *opts);
void threads_world_destroy(threads_world *world);
// For qn_ranks_opts: the table, and what it opens this rank with.
const qn_ranks_api *threads_world_api(const threads_world *world);
void *threads_world_seat(threads_world *world, int rank);
// The rank ends here and now: its calls fail, and the others find it lost.
void threads_rank_end(qn_ranks_group *group);

// What became of a rank.
typedef struct threads_end {
    qn_status status;
    qn_err err;
    bool tells;
} threads_end;

typedef qn_status threads_fn(qn_ranks *ranks, void *arg, qn_err *err);

// Joins n ranks, each in a thread of its own with its options, calls fn, and leaves.
void threads_run(threads_end *ends, int n, const qn_ranks_opts *opts, threads_fn *fn, void *arg);
// The same in a world of its own.
void threads_run_plain(threads_end *ends, const threads_world_opts *world, threads_fn *fn,
                       void *arg);

#endif
