// Inside the pass `shard`: how values are cut among ranks, what is decided, what is built of it.
//
// A value is whole, the same on all ranks, or cut along one axis: of each of some runs of the axis
// every rank has its share (ir/share.h). What is decided is the same on every rank; only building
// knows which rank this is.
#ifndef QN_PASSES_SHARD_INT_H
#define QN_PASSES_SHARD_INT_H

#include "ir/share.h"
#include "passes/rewrite.h"

// From `start` on `repeats` pieces side by side, each of `units` units of `unit` indices.
typedef struct shard_run {
    int64_t start, repeats, units, unit;
} shard_run;

enum { SHARD_RUNS = 4 };

// Runs ascend.
typedef struct shard_cut {
    int axis, n;
    shard_run runs[SHARD_RUNS];
} shard_cut;

typedef struct sharding {
    qn_rewrite *rw;
    const qn_graph *graph; // all of it
    int rank, n_ranks;
    qn_arena arena; // of cuts
    bool *is_live;  // (n_nodes) an output or a state needs it
    // (n_values) The cut that its readers or its maker ask for; NULL: they do not care. Hard: by
    // heads, which cannot be cut otherwise.
    const shard_cut **target;
    bool *is_hard;
    // Decided: (n_values) how a value is cut, NULL: whole; whether that of a weight is fixed;
    // (n_nodes, QN_MAX_IN) how a node wants each input.
    const shard_cut **have;
    bool *is_fixed;
    const shard_cut **need;
    bool *is_sure; // (n_nodes) needed on every rank
    // Built: (n_values) this rank's part, or the whole value; what was gathered of a part.
    int32_t *own, *whole;
    qn_graph out;
    qn_build b;
} sharding;

// --- cuts (shard_cut.c) --------------------------------------------------------------------------

bool qn_shard_equal(const shard_cut *a, const shard_cut *b); // NULL is equal to NULL
// One run of a whole axis.
shard_cut qn_shard_even(int axis, int64_t repeats, int64_t units, int64_t unit);
// The same runs along another axis, each index being `times` there.
shard_cut qn_shard_moved(const shard_cut *cut, int axis, int64_t times);
// Whether the runs are all of an axis of `length`.
bool qn_shard_covers(const shard_cut *cut, int64_t length);
// Adds runs along the same axis that touch none; false if that cannot be.
bool qn_shard_join(shard_cut *cut, const shard_cut *more);
// Indices of a rank: of all runs, and of those before run i.
int64_t qn_shard_own(const shard_cut *cut, const sharding *s, int rank);
int64_t qn_shard_before(const shard_cut *cut, const sharding *s, int rank, int i);
// Whether some rank has nothing.
bool qn_shard_has_gaps(const shard_cut *cut, const sharding *s);
// Whether a value can be cut so, and be put together again.
bool qn_shard_fits(const shard_cut *cut, const sharding *s, int32_t value);

// How the cut of an input and that of the first result belong together, where the op keeps what it
// computes of different indices apart. False: it does not. `axis` -1 of an input: it is read whole.
bool qn_shard_forth(shard_cut *out, const sharding *s, const qn_node *node, int input,
                    const shard_cut *cut);
bool qn_shard_back(shard_cut *in, const sharding *s, const qn_node *node, int input,
                   const shard_cut *cut);
// Inputs that are cut along with the result: the first ones.
int qn_shard_inputs(const qn_node *node);

// --- deciding (shard_target.c, shard_decide.c) ---------------------------------------------------

// A copy that stays; NULL when memory is short, which is noted.
const shard_cut *qn_shard_keep(sharding *s, const shard_cut *cut);
// How many rows of a matrix stay on one rank, as a cut of an axis; false: all of them. `inner`: the
// next matmul reads them as its inner dimension.
bool qn_shard_units(shard_cut *out, const sharding *s, int axis, int64_t length, bool is_inner);
// Whether an attention over the cache that a value is (a version of) is cut by heads, and how many
// heads of keys and values it has.
bool qn_shard_cache(int64_t *heads, const sharding *s, int32_t value);
// The cuts of a delta rule: of queries and keys, of values and all that goes with them.
typedef struct shard_delta {
    shard_cut keys, values; // along axis 1
} shard_delta;
bool qn_shard_delta(shard_delta *out, const sharding *s, const qn_node *node);
// The input of a cache or state, where one node reads it; -1: it is something else.
int32_t qn_shard_state(const sharding *s, int32_t value);
// Whether a value is (T, ...).
bool qn_shard_has_rows(const sharding *s, int32_t value);
// Whether a value is a weight that only nodes with the same wish read.
bool qn_shard_is_weight(const sharding *s, int32_t value, int n_dims);

void qn_shard_find_targets(sharding *s);
void qn_shard_decide(sharding *s);

// --- readers (shard_readers.c) -------------------------------------------------------------------

// Which nodes are on every rank, and needed there.
void qn_shard_find_sure(sharding *s);
// Whether what reads all of a value that is cut is on every rank.
bool qn_shard_is_alike(const sharding *s, int32_t value);

// --- building (shard_build.c) --------------------------------------------------------------------

void qn_shard_build(sharding *s);

#endif
