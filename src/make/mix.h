// Mixes: which numeric type each tensor of a model gets for a target such as Q4_K_M.
//
// The rules are those that people know from other GGUF tools, so that a file of ours has the types
// and the size that they expect. A mix has a base type and exceptions; mix.c holds both as tables.
#ifndef QN_MAKE_MIX_H
#define QN_MAKE_MIX_H

#include "formats/source.h"

typedef struct qn_mix {
    const char *name;
    uint32_t file_type; // GGUF's general.file_type
    qn_type base;
} qn_mix;

// The i-th mix; NULL past the last.
const qn_mix *qn_mix_get(size_t i);
// By name, letters of any case, the K types also without _M; an unknown name is an error that lists
// all of them.
QN_MUST_CHECK qn_status qn_mix_find(const qn_mix **out, const char *name, qn_err *err);

// What the rules ask about a model, and how far the count of its tensors has come.
typedef struct qn_mixer {
    const qn_mix *mix;
    bool is_pure;        // no exceptions but the fallbacks
    bool has_importance; // weights are packed by their importance
    bool has_output;     // else the embedding is the output too
    int64_t n_layers, n_experts;
    int64_t heads_per_kv;              // of the first layer; 0: unknown
    int64_t n_values, i_value, i_down; // tensors like attn_v in all, and how many of each came
} qn_mixer;

// Reads what the rules need from keys and tensors. Options are set by the caller afterwards.
void qn_mixer_init(qn_mixer *mixer, const qn_mix *mix, const qn_source *source);
// For a model that is in no file: the caller sets the numbers of layers, experts and sharing heads,
// and names every tensor.
void qn_mixer_add(qn_mixer *mixer, const qn_tensor *tensor);

// True for matrices that a mix converts; everything else keeps its type.
bool qn_mix_converts(const qn_tensor *tensor);

// The type of a tensor that qn_mix_converts: to be asked once for each, in the order of
// qn_mix_compare. *wanted is what it were if its rows fitted.
qn_type qn_mixer_choose(qn_mixer *mixer, const qn_tensor *tensor, qn_type *wanted);

// Customary order of tensors in a quantised file: what is outside the layers first, then layer by
// layer, each by name. Two `const qn_tensor *`.
int qn_mix_compare(const void *a, const void *b);

#endif
