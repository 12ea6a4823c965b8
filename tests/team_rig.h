// An engine on several ranks, which are threads of this process: rank 0 is the caller's, the others
// follow it. Messages between them are late and out of order where that is allowed.
#ifndef QN_TESTS_TEAM_RIG_H
#define QN_TESTS_TEAM_RIG_H

#include "quern.h"

#include <stdint.h>

typedef struct team_opts {
    qn_split split;
    int n_ranks;
    uint64_t seed;       // of delays; 0: none
    const char *shares;  // of layers; NULL: equal ones
    bool is_measured;    // layers by speed
    bool is_synchronous; // see threads_world_opts
    int64_t fail_at;     // of rank fail_rank: the call that fails; 0: none
    int64_t end_at;      // of rank fail_rank: the call at which it ends; 0: none
    int fail_rank;
    // The last rank has these instead; NULL: as the others.
    const qn_engine_opts *odd_opts;
    const char *odd_path;
} team_opts;

// As qn_engine_open, on several ranks. Closing the engine ends the others.
qn_status team_open(qn_engine **out, const char *path, const qn_engine_opts *opts,
                    const team_opts *team, qn_err *err);
// Waits until the ranks of all engines that were opened have ended; how many failed. Their engines
// are closed by then.
int team_wait(void);

// TEST_SPLIT: "layers:3", "tensors:2", for whole tests that are run on several ranks.
team_opts team_from_environment(void);

#endif
