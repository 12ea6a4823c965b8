// Inside an engine: a model, its tokenizer, its compiled plans and the threads that compute.
// Constant after opening.
#ifndef QN_RUNTIME_ENGINE_H
#define QN_RUNTIME_ENGINE_H

#include "core/debug.h"
#include "core/pool.h"
#include "ir/ref.h"
#include "models/model.h"
#include "runtime/profile.h"
#include "runtime/stage.h"
#include "runtime/state.h"
#include "runtime/team.h"
#include "tokenizer/tokenizer.h"

// Rows of a prefill step: enough to read weights rarely, few enough to keep activations small, and
// 4 groups of QN_ROW_GROUP. Not tuned.
enum { QN_DEFAULT_CHUNK = 512 };

struct qn_engine {
    qn_engine_opts opts;
    qn_switches switches;
    qn_source *source;
    qn_model *model;
    qn_tokenizer *tokenizer;        // NULL: the model came without a usable one
    int64_t n_tokens;               // all token ids are below this; embeddings may have more rows
    qn_sample_opts sample_defaults; // borrows from `source`
    qn_pool *pool;
    // The fast path; empty in a reference engine.
    const qn_graph *graph; // of the model, that the stages run: the plain one or graph_mtp
    qn_stage *stages;      // (n_stages) the layers, device by device
    size_t n_stages;
    qn_stage head; // the prediction head, on the device of the last stage; empty: not asked for
    char *devices; // owned: their names, with commas
    qn_profile profile;
    qn_cache_type cache_type; // not AUTO
    qn_disk disk;  // the cache folder, while opening; none: it was not named, or must not be used
    uint64_t skip; // passes left out
    bool decode_differs; // the profile gives decode another plan, or keeps its bindings otherwise
    qn_state_layout *layout;      // NULL: there are no plans
    bool is_loaded;               // the stages have their weights
    _Atomic uint64_t *model_hash; // identity.h; 0: nobody has asked (state_key.h)
    uint64_t rope_hash;           // of the scaling that was asked for; 0: none was
    uint64_t *adapter_hashes;     // (model->n_sets) what tells one set of adapters from another
    qn_residency *residency;      // of the only stage; NULL: all experts are in memory
    bool may_hold_all;            // ... but they would fit, and nobody asked for a part of them
    struct qn_images *images;     // images.h; NULL: the engine was opened without weights
    qn_team *team;                // the ranks that share the model; NULL: this process alone
    // The reference path; NULL otherwise.
    // Weights of model->graph, graph_hidden and graph_predict, by value.
    const void **params, **params_hidden, **params_predict;
};

// As qn_engine_open, with ranks that the caller names, not those of the launcher.
QN_MUST_CHECK qn_status qn_engine_open_ranked(qn_engine **out, const char *path,
                                              const qn_engine_opts *opts,
                                              const qn_ranks_opts *ranks, qn_err *err);

// The index of a set of adapters that an option asks for (see qn_adapter in quern.h); -1: none.
// `usual` is what 0 stands for; qn_engine_adapter_usual: the first set, if there is any.
QN_MUST_CHECK qn_status qn_engine_adapter(int32_t *out, const qn_engine *engine, int64_t asked,
                                          int32_t usual, qn_err *err);
int32_t qn_engine_adapter_usual(const qn_engine *engine);
// How bindings of a phase are kept: policy (not AUTO) and how many.
qn_plan_policy qn_engine_policy(const qn_engine *engine, bool is_decode);
int64_t qn_engine_plan_capacity(const qn_engine *engine, bool is_decode);
// Whether the options of both fit together.
QN_MUST_CHECK qn_status qn_engine_check_plans(const qn_engine *engine, qn_err *err);
// Rows of a prefill step: as asked, as the profile says, or the default.
int64_t qn_engine_chunk(const qn_engine *engine, int64_t asked);
// Plans and the layout of state for the stages as they are; and away with them.
QN_MUST_CHECK qn_status qn_engine_plan_stages(qn_engine *engine, qn_err *err);
void qn_engine_drop_plans(qn_engine *engine);
// How the engine compiles the graph of prefill for a stage.
qn_compile_opts qn_engine_compile_opts(const qn_engine *engine, const qn_stage *stage);
// Min of the free bytes of all devices; false: unknown.
bool qn_engine_free_memory(const qn_engine *engine, int64_t *available);
// Whether the model keeps recurrent state.
bool qn_engine_is_recurrent(const qn_engine *engine);

// A whole sequence.
typedef struct qn_run_input {
    const int32_t *ids; // (n)
    int64_t n;
    const struct qn_media *media; // media.h; NULL: it has no images
} qn_run_input;
// After how many tokens logits are wanted: the last ones.
static inline int64_t qn_logits_rows(const qn_logits_opts *opts, int64_t n) {
    return opts->all_rows ? n : opts->last_rows ? opts->last_rows : 1;
}
// Runs a sequence from nothing, and fills `out` (see quern.h): by the plans, or by the reference
// interpreter in a reference engine. Nothing is checked here but what the graph checks itself;
// images of the options are not looked at.
QN_MUST_CHECK qn_status qn_engine_run(qn_logits *out, const qn_engine *engine,
                                      const qn_run_input *input, const qn_logits_opts *opts,
                                      qn_err *err);
// The same by the interpreter; the engine must be a reference engine.
QN_MUST_CHECK qn_status qn_engine_run_ref(qn_logits *out, const qn_engine *engine,
                                          const qn_run_input *input, const qn_logits_opts *opts,
                                          qn_err *err);

// Runs the steps of a record (record.h); fills n_rows, n_vocab and logits: the wanted rows, or the
// last of them.
QN_MUST_CHECK qn_status qn_engine_run_record(qn_logits *out, const qn_engine *engine,
                                             const char *path, const qn_logits_opts *opts,
                                             qn_err *err);

// Takes memory for the rows and columns that `out` names.
QN_MUST_CHECK qn_status qn_logits_init(qn_logits *out, qn_err *err);

// Ids inside the vocabulary, at least one, no more than the limit; else an error with both values.
QN_MUST_CHECK qn_status qn_engine_check_ids(const qn_engine *engine, const int32_t *ids, size_t n,
                                            int64_t limit, qn_err *err);

#endif
