// Inside an engine: a model, its tokenizer and the threads that compute. Constant after opening.
#ifndef QN_RUNTIME_ENGINE_H
#define QN_RUNTIME_ENGINE_H

#include "core/debug.h"
#include "core/pool.h"
#include "ir/ref.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

struct qn_engine {
    qn_engine_opts opts;
    qn_switches switches;
    qn_source *source;
    qn_model *model;
    qn_tokenizer *tokenizer; // NULL: the model came without a usable one
    qn_pool *pool;
    const void **params, **params_hidden; // weights of model->graph and graph_hidden, by value
};

// Runs the ids through the reference interpreter, from nothing, and fills `out` (see quern.h).
// Nothing is checked here but what the graph checks itself.
QN_MUST_CHECK qn_status qn_engine_run(qn_logits *out, const qn_engine *engine, const int32_t *ids,
                                      int64_t n, const qn_logits_opts *opts, qn_err *err);

// Runs the ids from nothing, scores of every row included, and shows each matmul to `observe`.
QN_MUST_CHECK qn_status qn_engine_observe(const qn_engine *engine, const int32_t *ids, int64_t n,
                                          qn_ref_observe_fn *observe, void *arg, qn_err *err);

// Ids inside the vocabulary, at least one, no more than the limit; else an error with both values.
QN_MUST_CHECK qn_status qn_engine_check_ids(const qn_engine *engine, const int32_t *ids, size_t n,
                                            int64_t limit, qn_err *err);

#endif
