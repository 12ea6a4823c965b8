// Every call that reaches another rank, as one table. The plug-in libquern-mpi.so has the one that
// speaks MPI; tests have one over shared memory and threads, and put delays before it.
//
// Operations are begun, and tested until they are done; waiting, limits and failures are above
// (ranks.c). Functions that return int give 0, or a number that `explain` knows.
#ifndef QN_RANKS_RANKS_API_H
#define QN_RANKS_RANKS_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_RANKS_API_VERSION = 2, QN_RANKS_MAX_TAG = 32767 };

typedef struct qn_ranks_group qn_ranks_group; // this rank's place; the system's own

typedef struct qn_ranks_place {
    int rank, n_ranks;
    int n_sharing; // ranks that may run on cores of this one, itself among them; 0: unknown
} qn_ranks_place;

typedef struct qn_ranks_opening {
    void *arg;        // the caller's
    int64_t limit_ms; // max wait for the others
} qn_ranks_opening;

enum { QN_RANKS_LATE = -1 }; // of `open`: they have not come within the limit

struct qn_ranks_api {
    int version;
    const char *name; // "mpi"
    // Of one operation; of all parts of all_gather together. Longer ones are cut by the caller.
    size_t max_bytes;
    const char *(*explain)(int error);

    int (*open)(qn_ranks_group **out, qn_ranks_place *place, const qn_ranks_opening *opening);
    // Receives that are open are given up. `is_failed`: the others cannot be waited for.
    void (*close)(qn_ranks_group *group, bool is_failed);

    // Begin an operation, which `handle` (never NULL) stands for until `test` fails or says that it
    // is done. Operations of all ranks at once are begun in the same order by all ranks; the root of
    // a broadcast may begin others before it is done. Where they disagree on sizes, no more is written than there is room for. Messages from
    // one rank to another with the same tag (0 ... QN_RANKS_MAX_TAG + 1) arrive in order.
    int (*broadcast)(void **handle, qn_ranks_group *group, void *data, size_t bytes, int root);
    int (*all_gather)(void **handle, qn_ranks_group *group, void *to, const void *from,
                      const size_t *bytes);
    int (*send)(void **handle, qn_ranks_group *group, const void *data, size_t bytes, int to,
                int tag);
    int (*receive)(void **handle, qn_ranks_group *group, void *data, size_t bytes, int from,
                   int tag);
    int (*test)(bool *is_done, void **handle, qn_ranks_group *group);

    // Whether another rank is known to have ended.
    bool (*has_ended)(qn_ranks_group *group, int rank);
};
typedef struct qn_ranks_api qn_ranks_api;

// What the plug-in exports under this name.
#define QN_RANKS_SYMBOL "qn_ranks_api_get"
typedef const qn_ranks_api *qn_ranks_api_fn(void);

#endif
