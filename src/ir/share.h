// Shares: how several ranks divide an axis, the one rule for weights, activations and states.
//
// An axis is one or more equal pieces, a piece is units that stay together. Of every piece, rank r
// of n has units [u r / n, u (r + 1) / n), u of them: as even as whole units can be, ascending with
// the ranks, and nothing at all on some ranks where there are fewer units than ranks.
#ifndef QN_IR_SHARE_H
#define QN_IR_SHARE_H

#include "ir/graph.h"

enum {
    QN_RANKS_MAX = 1 << 15,
    QN_GATHER_BLOCK = 256 // values of a block of packed activations, which stays on one rank
};
// Values of an axis that can be gathered: units times ranks stay in range.
#define QN_GATHER_MAX (INT64_C(1) << 40)

// The first unit of a rank; of rank n_ranks: their number.
static inline int64_t qn_share_first(int64_t units, int rank, int n_ranks) {
    return units * rank / n_ranks;
}

// Whether whole units make the pieces, and whole pieces the axis, of a node that gathers.
QN_MUST_CHECK qn_status qn_gather_check(const qn_attrs *attrs, qn_err *err);
// Of such a node: the first value of a rank in each piece of its axis, and the rank whose
// value a row of ids names; ids outside belong to the nearest one.
int64_t qn_gather_first(const qn_attrs *attrs, int rank, int n_ranks);
int qn_gather_owner(const qn_attrs *attrs, int64_t id, int n_ranks);

// Whether a share is one of a value of this shape: ranges that ascend inside the axis and have as
// many indices as the shape. NULL is all of a value.
QN_MUST_CHECK qn_status qn_share_check(const qn_share *share, const qn_shape *shape, qn_err *err);
// The same for a weight, whose rows are never divided: they may be blocks.
QN_MUST_CHECK qn_status qn_share_check_weight(const qn_share *share, const qn_shape *shape,
                                              qn_err *err);
// A copy; false when memory is short. NULL is copied as NULL.
QN_MUST_CHECK bool qn_share_dup(const qn_share **out, qn_arena *arena, const qn_share *share);
// Where element i of a share of this shape is in the whole, and how many of those after it follow
// there, itself included.
int64_t qn_share_find(int64_t *n, const qn_share *share, const qn_shape *shape, int64_t i);

#endif
