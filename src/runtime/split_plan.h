// How a model is shared by several ranks: both ways as the cost model sees them, and the choice.
#ifndef QN_RUNTIME_SPLIT_PLAN_H
#define QN_RUNTIME_SPLIT_PLAN_H

#include "runtime/split_cost.h"

enum { QN_SPLIT_TEXT = 256 };

// One way to share it.
typedef struct qn_split_way {
    qn_split split;               // QN_SPLIT_TENSORS or QN_SPLIT_LAYERS
    const qn_split_share *shares; // (n) of the ranks
    qn_split_cost decode;         // of one token
    qn_split_cost prefill;        // of QN_SPLIT_PREFILL tokens
    char problem[QN_SPLIT_TEXT];  // why it cannot be done; "": it can
} qn_split_way;

// Constant once made. Of one rank, both ways are the same.
typedef struct qn_split_plan {
    qn_split split; // the choice
    qn_split_way tensors, layers;
    qn_split_system system; // a copy
    int64_t context;
    char system_name[32];
    char why[QN_SPLIT_TEXT]; // one sentence, without a full stop
    qn_split_rank *ranks;    // (n) owned, as are the shares:
    qn_split_share *shares;  // (2 n) of tensors, then of layers
} qn_split_plan;

typedef struct qn_split_plan_opts {
    qn_split split;          // QN_SPLIT_AUTO: the better one
    const char *shares;      // as in qn_engine_opts; NULL: by speed
    int64_t context;         // positions of one sequence that must fit
    const char *system_name; // what carries messages: "mpi"
} qn_split_plan_opts;

// Equal input gives an equal plan; still, where machines differ, one rank makes it and tells the
// others. A way that does not fit loses; if none is left, the error names a rank and what it lacks.
QN_MUST_CHECK qn_status qn_split_plan_create(qn_split_plan **out, const qn_split_model *model,
                                             const qn_split_system *system,
                                             const qn_split_plan_opts *opts, qn_err *err);
// NULL is fine.
void qn_split_plan_destroy(qn_split_plan *plan);

// The way that was chosen, and the other one.
const qn_split_way *qn_split_plan_chosen(const qn_split_plan *plan);
const qn_split_way *qn_split_plan_other(const qn_split_plan *plan);

// What qn_engine_split says (owned: qn_free).
QN_MUST_CHECK qn_status qn_split_plan_json(char **out, const qn_split_plan *plan, qn_err *err);

#endif
