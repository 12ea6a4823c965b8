// Binding a plan: addresses and pieces for given sizes, and the caches of such bindings.
//
// A binding serves every step whose rows, segments, wanted rows and cached positions are at most
// its own; what a step computes does not depend on which binding runs it. Nothing here allocates
// after creation.
#ifndef QN_BACKENDS_CPU_BIND_H
#define QN_BACKENDS_CPU_BIND_H

#include "backends/cpu/kernel.h"
#include "backends/device.h"

// Addresses, pieces and order of a plan for given sizes.
typedef struct qn_binding {
    qn_sizes sizes;
    int64_t *offsets; // (n_buffers) bytes into the arena
    int64_t *pieces;  // (n_calls)
    int32_t *after; // (n_calls) all calls up to this one are done before the call starts; -1: none
    int64_t arena_bytes; // that it needs
    uint64_t made, used; // times of making and of the last use; used 0: free
} qn_binding;

// The bindings of one plan under one policy.
typedef struct qn_bindings qn_bindings;

typedef struct qn_bindings_opts {
    const qn_plan *plan;             // borrowed
    const qn_task *tasks;            // (n_calls) with the shapes of their operands; borrowed
    const qn_kernel *const *kernels; // (n_calls); borrowed
    qn_plan_policy policy;           // not AUTO
    int capacity;                    // bindings kept
    qn_sizes max;                    // no step is larger
} qn_bindings_opts;

QN_MUST_CHECK qn_status qn_bindings_create(qn_bindings **out, const qn_bindings_opts *opts,
                                           qn_err *err);
void qn_bindings_destroy(qn_bindings *bindings);

// The binding for a step of these sizes, made if there is none. Borrowed until the next call.
const qn_binding *qn_bindings_get(qn_bindings *bindings, const qn_sizes *sizes);
// Counts: found, made.
void qn_bindings_counts(const qn_bindings *bindings, int64_t *hits, int64_t *misses);

// The sizes that a step of `sizes` is bound for under a policy: itself, or the upper end of its
// range on the ladder 1, 2, 3-4, 5-8, 9-16, ..., but no more than `max`.
qn_sizes qn_sizes_bound(qn_plan_policy policy, const qn_sizes *sizes, const qn_sizes *max);

// Bytes of the arena, of scratch per thread, and of what the pieces of a call share, that no step
// within `max` exceeds.
int64_t qn_bindings_arena(const qn_bindings *bindings);
int64_t qn_bindings_scratch(const qn_bindings *bindings);
int64_t qn_bindings_shared(const qn_bindings *bindings);

#endif
