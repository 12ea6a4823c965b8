// The graph: what a model computes in one step, as SSA values and the nodes that make them.
//
// A model has one graph. Prefill, decode and mixed steps differ in data (the step table, step.h),
// not in shape. Values and nodes live in the graph's arena; node order is execution order. Built by
// one thread through build.h, then constant and shared freely.
//
// Dimensions are integers times a symbol:
//   T  rows of the step: tokens of all sequences laid end to end     B  segments, one per sequence
//   R  rows whose logits are wanted
// Legend for the letters in comments and in ops.def:
//   D model width   H heads   K kv heads   E head size   F ffn width (or value head size)
//   X experts   V vocabulary   L layers   I/O inner/outer size of a matmul   C channels   N taps or
//   choices
#ifndef QN_IR_GRAPH_H
#define QN_IR_GRAPH_H

#include "core/arena.h"
#include "core/err.h"
#include "quant/type.h"

enum { QN_GRAPH_DIMS = 4, QN_MAX_IN = 9, QN_MAX_OUT = 2, QN_NO_VALUE = -1 };
// Of HEAD: max best entries that can be asked for; max logits of a row, so that floats hold ids.
enum { QN_HEAD_TOP = 64, QN_HEAD_ENTRIES = 1 << 24 };

typedef enum qn_op {
#define OP(name, min_in, kinds, n_out, rule, class, attrs, facts) QN_OP_##name,
#include "ir/ops.def"
#undef OP
    QN_OP_COUNT
} qn_op;

typedef enum qn_op_class {
    QN_CLASS_LEAF,
    QN_CLASS_MAP,
    QN_CLASS_ROW,
    QN_CLASS_MOVE,
    QN_CLASS_GEMM,
    QN_CLASS_STATE
} qn_op_class;

typedef enum qn_attr {
#define ATTR(kind, name) QN_ATTR_##name,
#include "ir/attrs.def"
#undef ATTR
    QN_ATTR_COUNT
} qn_attr;

typedef enum qn_attr_kind { QN_ATTR_INT, QN_ATTR_FLOAT, QN_ATTR_LIST, QN_ATTR_WORD } qn_attr_kind;

typedef enum qn_word {
#define WORD(attr, word, meaning) QN_WORD_##word,
#include "ir/words.def"
#undef WORD
    QN_WORD_COUNT
} qn_word;

typedef struct qn_list {
    int64_t v[4];
} qn_list;

// All attributes of a node; only those that its op names (see qn_op_info.attrs) mean anything.
typedef struct qn_attrs {
#define QN_ATTR_C_INT    int64_t
#define QN_ATTR_C_FLOAT  float
#define QN_ATTR_C_LIST   qn_list
#define QN_ATTR_C_WORD   qn_word
#define ATTR(kind, name) QN_ATTR_C_##kind name;
#include "ir/attrs.def"
#undef ATTR
#undef QN_ATTR_C_INT
#undef QN_ATTR_C_FLOAT
#undef QN_ATTR_C_LIST
#undef QN_ATTR_C_WORD
} qn_attrs;

typedef enum qn_sym { QN_SYM_ONE, QN_SYM_T, QN_SYM_B, QN_SYM_R, QN_SYM_COUNT } qn_sym;

// n times the symbol's value.
typedef struct qn_dim {
    int64_t n;
    qn_sym sym;
} qn_dim;

// What a value is. TABLE, CACHE and STATE are opaque to every op but those that take them:
//   TABLE  the step table (step.h)
//   CACHE  keys and values of one layer; shape (K, E, F)
//   STATE  what a recurrent op keeps per sequence; shape (N - 1, C) for conv, (H, E, F) for delta
typedef enum qn_kind { QN_TENSOR, QN_TABLE, QN_CACHE, QN_STATE_VALUE, QN_KIND_COUNT } qn_kind;

typedef struct qn_shape {
    int n_dims;
    qn_dim dims[QN_GRAPH_DIMS]; // outermost first
} qn_shape;

// What one of several ranks has of a weight or of an output: of an axis of `whole` indices those in
// the ranges, which ascend and do not touch each other's. Indices of the share count from 0.
typedef struct qn_share_range {
    int64_t first, n;
} qn_share_range;
typedef struct qn_share {
    int axis;
    int64_t whole;
    int n_ranges;
    const qn_share_range *ranges;
} qn_share;

typedef struct qn_value {
    qn_kind kind;
    qn_type type; // of a tensor
    qn_shape shape;
    const char *name; // "" if it has none
    int32_t node;     // that makes it
} qn_value;

typedef struct qn_node {
    qn_op op;
    int n_in, n_out;
    int32_t in[QN_MAX_IN]; // QN_NO_VALUE: an optional input that is absent
    int32_t out[QN_MAX_OUT];
    int32_t layer; // -1: outside the layers
    qn_attrs attrs;
    const float *data;     // of a CONST
    const qn_share *share; // of a PARAM; NULL: all of the weight
} qn_node;

typedef struct qn_output {
    int32_t value;
    const char *name;
    const qn_share *share; // NULL: all of it
} qn_output;

typedef struct qn_graph {
    qn_arena arena;
    const char *name;
    qn_value *values;
    qn_node *nodes;
    qn_output *outputs;
    size_t n_values, n_nodes, n_outputs;
    size_t cap_values, cap_nodes, cap_outputs;
} qn_graph;

typedef struct qn_op_info {
    const char *name; // upper case; the text form has it in lower case
    int min_in;
    const char *kinds; // one letter per input, see ops.def
    int n_out;
    qn_op_class class_of;
    uint32_t attrs; // bit per qn_attr
    uint32_t packs; // bit per result: activations packed as the attribute `form` says
    uint32_t logs;  // bit per input: what is logged of a row that may be rolled back
    bool is_view;   // the result can lie inside the first input; see qn_node_is_view
    bool folds;     // all rows become one
} qn_op_info;

typedef struct qn_attr_info {
    const char *name;
    qn_attr_kind kind;
    size_t offset; // in qn_attrs
} qn_attr_info;

typedef struct qn_word_info {
    const char *name, *meaning;
    qn_attr attr; // that may hold it
} qn_word_info;

const qn_op_info *qn_op_get(qn_op op);
const qn_attr_info *qn_attr_get(qn_attr attr);
const qn_word_info *qn_word_get(qn_word word);
// Whether a node brings together what several ranks computed: then something else may come of the
// same inputs on another rank, and all ranks must have such nodes in the same order.
bool qn_node_gathers(const qn_node *node);
// Whether a node's result can lie inside its first input.
bool qn_node_is_view(const qn_node *node);
const char *qn_kind_name(qn_kind kind);
const char *qn_sym_name(qn_sym sym); // "" for QN_SYM_ONE

// Caller storage; zeroed is empty.
void qn_graph_deinit(qn_graph *graph);
// The value that an output of this name shows; QN_NO_VALUE if there is none.
int32_t qn_graph_find_output(const qn_graph *graph, const char *name);
// The INPUT value of this name; QN_NO_VALUE if there is none.
int32_t qn_graph_find_input(const qn_graph *graph, const char *name);

// Writes "(T, 4, 16)" into `to` (always terminated); returns `to`.
const char *qn_shape_text(char *to, size_t size, const qn_shape *shape);
bool qn_shape_equal(const qn_shape *a, const qn_shape *b);

// The shapes and kinds of a node's results, from its inputs and attributes: results[0 .. n_out-1]
// get kind, type and shape. Fails, naming op and both shapes, when the inputs do not fit together.
QN_MUST_CHECK qn_status qn_infer(qn_value *results, const qn_graph *graph, const qn_node *node,
                                 qn_err *err);

// The verifier: every input precedes its user, counts match the op table, attributes are in range,
// and every result has the shape that qn_infer gives. The first fault is named with node and
// values.
QN_MUST_CHECK qn_status qn_graph_verify(const qn_graph *graph, qn_err *err);

#endif
