// Low-rank adapters (LoRA): for some matrices of a model, two small ones a (r, I) and b (O, r)
// whose product, times a scale, is added to them. They come as GGUF files (general.type "adapter")
// or as the folders that PEFT writes; either kind fits models of either kind.
//
// Adapters are applied in sets, numbered from 0: a row of a step uses one set or none. The adapters
// of a set are laid side by side, so that a set is one adapter of their ranks together; a matrix
// has one stack of a (N, R, I) and one of b (N, O, R) over all N sets, in float32, with the scales
// in b and zeros where a set has a smaller rank, or nothing.
#ifndef QN_MODELS_ADAPTER_H
#define QN_MODELS_ADAPTER_H

#include "models/model_weights.h"

enum { QN_ADAPTER_RANK = 4096, QN_ADAPTER_SETS = 1024 }; // the most

typedef struct qn_adapters qn_adapters;

// Opens the files and checks what they say of themselves; their numbers are read when a model binds
// them. The list is of quern.h.
QN_MUST_CHECK qn_status qn_adapters_open(qn_adapters **out, const qn_adapter *list, size_t n,
                                         qn_err *err);
void qn_adapters_close(qn_adapters *adapters);
int64_t qn_adapters_sets(const qn_adapters *adapters);
// The i-th file, borrowed; NULL after the last.
const struct qn_adapter_file *qn_adapters_file(const qn_adapters *adapters, size_t i);

// Fails if a file is for another architecture, as far as files say.
QN_MUST_CHECK qn_status qn_adapters_check_arch(const qn_adapters *adapters, const char *arch,
                                               qn_err *err);

// The stacks for a bound matrix.
typedef struct qn_adapted {
    int32_t a, b; // PARAM values; QN_NO_VALUE: no adapter changes the matrix
} qn_adapted;
QN_MUST_CHECK qn_status qn_adapters_bind(qn_adapted *out, qn_adapters *adapters, qn_binder *binder,
                                         const char *weight, qn_err *err);

// After all graphs are built: a tensor that changed no matrix would be left out in silence.
QN_MUST_CHECK qn_status qn_adapters_check_used(const qn_adapters *adapters, const char *arch,
                                               qn_err *err);

// --- the files (adapter_file.c) ------------------------------------------------------------------

typedef struct qn_adapter_file {
    char *path; // as it was given
    qn_source *source;
    bool is_gguf;
    double alpha;      // 0: the scale is 1
    bool is_rank_root; // the scale is alpha / sqrt(r), not alpha / r
    int64_t rank;      // that every pair must have; 0: any
    char **targets;    // (n_targets) ends of the names of changed modules; NULL: not said
    size_t n_targets;
    double scale; // as the caller wants it
    int64_t set;
    bool *is_used; // (tensors of the source)
} qn_adapter_file;

QN_MUST_CHECK qn_status qn_adapter_file_open(qn_adapter_file *file, const qn_adapter *from,
                                             qn_err *err);
void qn_adapter_file_deinit(qn_adapter_file *file);

// The two tensors for a weight; both NULL: the file has none. One without the other is an error.
typedef struct qn_adapter_pair {
    const qn_tensor *a, *b;
    int64_t rank;
} qn_adapter_pair;
// O outputs and I inputs are those of the weight, whose shapes the tensors must have.
QN_MUST_CHECK qn_status qn_adapter_file_find(qn_adapter_pair *out, const qn_adapter_file *file,
                                             const qn_weight *weight, qn_err *err);
// What the numbers of b are multiplied by.
double qn_adapter_scale(const qn_adapter_file *file, int64_t rank);

#endif
