// A table before another one that delays, completes in another order, fails, or ends its rank: one
// for each rank, over threads (threads_ranks.h) or MPI.
#ifndef QN_TESTS_FAULTY_RANKS_H
#define QN_TESTS_FAULTY_RANKS_H

#include "ranks/ranks.h"
#include "ranks/ranks_api.h"

enum { FAULTY_HELD = 256 }; // operations that are open at a time, at most

typedef struct faulty_operation {
    bool is_used, is_begun, is_done;
    bool is_all, is_send; // of all ranks at once
    int peer, tag;
    int64_t number; // they were begun in this order
    void *data, *inner;
    size_t bytes;
} faulty_operation;

// The fields up to `die` are given. Calls that begin or complete an operation are counted from 1.
typedef struct faulty_ranks {
    const qn_ranks_api *inner;
    void *inner_arg;
    uint64_t seed;        // of delays and order; 0: none of either
    int64_t max_delay_us; // of one
    int64_t fail_at;      // the call that fails; 0: none
    int64_t end_at;       // the call at which the rank ends; 0: none
    void (*die)(qn_ranks_group *inner);

    int64_t calls, n_begun;
    uint64_t state;
    qn_ranks_api api;
    qn_ranks_group *group;
    faulty_operation held[FAULTY_HELD];
} faulty_ranks;

// For qn_ranks_opts: the table; its api_arg is `faulty`, which outlives the ranks.
const qn_ranks_api *faulty_ranks_api(faulty_ranks *faulty);

#endif
