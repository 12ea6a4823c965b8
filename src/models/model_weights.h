// Binding weights: a family names each tensor once, with both spellings, and gets a PARAM value.
//
// A weight is a recipe: parts of source tensors laid end to end, and a fix that turns the
// checkpoint's numbers into the graph's. Weights are held in their own type; vectors (norms,
// biases, small recurrent tensors) are held as float32.
#ifndef QN_MODELS_MODEL_WEIGHTS_H
#define QN_MODELS_MODEL_WEIGHTS_H

#include "core/map.h"
#include "formats/source.h"
#include "ir/build.h"

// How a row is bound.
enum {
    QN_VECTOR = 1,   // held as float32
    QN_OPTIONAL = 2, // absent: *to = QN_NO_VALUE
    // What a Hugging Face checkpoint's numbers need; GGUF files have it done already.
    QN_PLUS_ONE = 4, // norms that multiply by 1 + w
    QN_NEG_EXP = 8,  // A_log: -exp(w)
    // What GGUF files have otherwise than checkpoints. Loading takes either as it is (the graph
    // knows the difference); these are for writing GGUF from a checkpoint.
    QN_KEEP_F32 = 16,       // float32, whatever type the other matrices have
    QN_ROPE_ROWS = 32,      // rows of heads: the pairs that rope turns side by side
    QN_VALUE_ROWS = 64,     // rows of value heads: tiled, not grouped by key head
    QN_VALUE_TAIL = 128,    // the same, for the value heads after queries and keys
    QN_VALUE_COLUMNS = 256, // the same, for columns
    QN_FLAT = 512,          // of qn_bind_taps
};

// The order of rows (or columns) in a GGUF file: from `first` on, in groups of `group` rows, a
// checkpoint's (outer, inner) blocks of `block` rows become (inner, outer). outer 0: no change.
typedef struct qn_order {
    bool is_columns;
    int64_t first, group, outer, inner, block;
} qn_order;

// Where row i of the GGUF file lies in the checkpoint.
int64_t qn_order_source(const qn_order *order, int64_t i);

typedef struct qn_weight_part {
    const qn_tensor *tensor; // borrowed from the source
    int64_t offset, bytes;
} qn_weight_part;

typedef struct qn_weight {
    const char *name; // GGUF spelling; the name of its PARAM values
    qn_type type;     // as held
    qn_shape shape;
    int64_t n, bytes; // elements and bytes as held
    unsigned fix;     // QN_PLUS_ONE, QN_NEG_EXP or 0
    bool keeps_f32;   // float32 in GGUF files, whatever type the matrices have
    qn_order order;   // of a checkpoint's weight in a GGUF file
    qn_order across;  // the same, whatever the source is: for what comes from another file
    const char *hf;   // its name in a checkpoint, a pattern for `layer`; NULL: none of its own
    int64_t layer;
    bool is_predict; // of a head that predicts further tokens: loaded only when asked for
    qn_weight_part *parts;
    size_t n_parts; // 0: no source has it (qn_bind_own)
    void *data;     // NULL until loaded, and after qn_weights_drop_own
} qn_weight;

// All weights of a model. Built once, then constant but for loading.
typedef struct qn_weights {
    qn_arena arena;
    qn_weight *items;
    size_t n, cap;
    qn_map by_name;
    bool *is_used; // (n_tensors of the source)
} qn_weights;

// The tensors of one place in a model. `gguf` and `hf` hold one %d for the layer, or none; the hf
// name begins with "model." where checkpoints may have another prefix. Dims end at the first 0.
typedef struct qn_bind_row {
    int32_t *to;
    const char *gguf, *hf;
    int64_t dims[3];
    unsigned flags;
} qn_bind_row;

// The sizes that the orders above depend on.
typedef struct qn_head_sizes {
    int64_t head, rotate;                      // values of a head, and how many of them rope turns
    int64_t key_heads, value_heads, value_dim; // of the delta rule
} qn_head_sizes;

// What a checkpoint's names may have in place of "model.".
enum { QN_N_PREFIXES = 4 };
extern const char *const qn_prefixes[QN_N_PREFIXES];

typedef struct qn_binder {
    const qn_source *source;
    qn_weights *weights;
    qn_build *b;
    const char *prefix; // of a checkpoint's names, in place of "model."
    // Layers from here on predict further tokens; checkpoints call them "mtp.layers.0" and so on.
    // 0: none are bound.
    int64_t predict_from;
    qn_head_sizes heads; // set by families that name orders
} qn_binder;

// Sets up `weights` (zeroed) for a source and finds the checkpoint's prefix.
QN_MUST_CHECK qn_status qn_binder_init(qn_binder *binder, qn_weights *weights,
                                       const qn_source *source, qn_build *b, qn_err *err);
void qn_weights_deinit(qn_weights *weights);

// Binds every row; errors go to the builder. Shape checks ignore dimensions of 1.
void qn_bind(qn_binder *binder, const qn_bind_row *rows, size_t n, int64_t layer);

// The three stacks of a layer's experts, each (X, out, in): from stacked or fused GGUF tensors,
// from a checkpoint's tensors per expert or its fused ones.
typedef struct qn_expert_stacks {
    int32_t gate, up, down;
} qn_expert_stacks;
typedef struct qn_expert_sizes {
    int64_t experts, ffn, width;
} qn_expert_sizes;
void qn_bind_experts(qn_binder *binder, qn_expert_stacks *to, const qn_expert_sizes *sizes,
                     int64_t layer);

// A float32 weight of three dimensions that no source has: *data (zeros) is to be filled, and
// belongs to the weights. NULL where an earlier graph has bound it.
QN_MUST_CHECK qn_status qn_bind_own(int32_t *to, float **data, qn_binder *binder, const char *name,
                                    const int64_t *dims, qn_err *err);
// Frees the numbers of these weights: a device has them.
void qn_weights_drop_own(qn_weights *weights);

// A convolution over frames, (O, C, taps, P, P) in a checkpoint, as one weight (O, C, P, P) for
// each tap: row->gguf, then with ".1", ".2" and so on after it, which is how GGUF files have it.
// With QN_FLAT each is a matrix (O, C * P * P). to[taps] in row->to; dims are {O, C, P}.
void qn_bind_taps(qn_binder *binder, const qn_bind_row *row, int64_t taps);

// The tensor of a name in the spelling of the source (layer in place of %d); NULL if absent.
const qn_tensor *qn_binder_find(const qn_binder *binder, const char *gguf, const char *hf,
                                int64_t layer);

// Elements first ... first + n - 1 of a weight (whole blocks of its type, stored and held), as it
// is held or, from any type, as floats. Takes no memory; threads may read at the same time.
QN_MUST_CHECK qn_status qn_weight_read(void *to, const qn_weight *w, const qn_source *source,
                                       int64_t first, int64_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_weight_read_f32(float *to, const qn_weight *w, const qn_source *source,
                                           int64_t first, int64_t n, qn_err *err);

// How weights are loaded; progress as in quern.h, may be NULL.
typedef struct qn_load_opts {
    bool with_predict; // the prediction heads too
    qn_progress_fn *progress;
    void *progress_arg;
} qn_load_opts;

QN_MUST_CHECK qn_status qn_weights_load(qn_weights *weights, const qn_source *source,
                                        const qn_load_opts *opts, qn_err *err);

// Pointers to the weights of a graph, by value (release with qn_free); weights must be loaded.
QN_MUST_CHECK qn_status qn_weights_params(const void ***out, const qn_weights *weights,
                                          const qn_graph *graph, qn_err *err);

#endif
