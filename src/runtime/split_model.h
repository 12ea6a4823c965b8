// What a model needs of several ranks, read from its graph.
#ifndef QN_RUNTIME_SPLIT_MODEL_H
#define QN_RUNTIME_SPLIT_MODEL_H

#include "backends/backend.h"
#include "runtime/split_cost.h"

// How an engine holds the model.
typedef struct qn_split_basis {
    const qn_backend *backend; // of the device
    int64_t n_layers;
    qn_cache_type cache_type; // not AUTO
    qn_numerics numerics;
} qn_split_basis;

// `graph` is the model's own, before any pass. What is gathered where follows the rules of the pass
// `shard`: outputs of matmuls are cut, and whoever needs all of a row gathers it.
// Release *out with qn_split_model_deinit.
QN_MUST_CHECK qn_status qn_split_model_read(qn_split_model *out, const qn_graph *graph,
                                            const qn_split_basis *basis, qn_err *err);

#endif
