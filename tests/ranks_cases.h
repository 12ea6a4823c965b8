// What ranks must do, whatever carries their messages: run by threads (test_ranks.c) and by
// processes under mpirun (mpi_ranks.c).
#ifndef QN_TESTS_RANKS_CASES_H
#define QN_TESTS_RANKS_CASES_H

#include "ranks/ranks.h"

typedef struct ranks_case {
    const char *name;
    // Called by all ranks, with the same seed.
    qn_status (*run)(qn_ranks *ranks, uint64_t seed, qn_err *err);
} ranks_case;

extern const ranks_case ranks_cases[];
extern const int n_ranks_cases;

// Ends a function of a rank with an error where cmocka's checks would jump out of its thread.
#define RANKS_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return QN_FAIL(err, STATE, "rank %d of %d: %s:%d: %s", qn_ranks_own(ranks),            \
                           qn_ranks_count(ranks), __FILE__, __LINE__, #condition);                 \
    } while (0)

#endif
