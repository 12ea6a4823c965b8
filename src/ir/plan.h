// The low stage: a plan. Kernel calls in order, with the buffers they read and write.
//
// A plan is symbolic in the rows of a step: a buffer is a number of rows (a count times a symbol)
// of a fixed size, and has no address. Binding (backends/cpu/bind.h) gives it one for given T, B
// and R. Everything lives in the plan's arena; constant once built.
#ifndef QN_IR_PLAN_H
#define QN_IR_PLAN_H

#include "ir/graph.h"

enum { QN_PLAN_TEMPS = 6 };

// Where an argument of a call lies.
typedef enum qn_place {
    QN_PLACE_NONE,   // absent
    QN_PLACE_BUFFER, // in the arena of the run
    QN_PLACE_PARAM,  // a weight
    QN_PLACE_CONST,  // numbers in the plan
    QN_PLACE_INPUT,  // given with each step
    QN_PLACE_TABLE,  // the step table
    QN_PLACE_CACHE,  // keys and values of a layer
    QN_PLACE_STATE,  // recurrent state of a layer
    QN_PLACE_COUNT
} qn_place;

// A value as a call sees it: rows of (parts, width) numbers, which may be a part of wider rows.
typedef struct qn_plan_arg {
    qn_place place;
    int32_t index;        // into the plan's list of that place
    int64_t offset;       // bytes from the beginning of the buffer's row
    int64_t parts, width; // of the part that is meant
    qn_word form;         // QN_WORD_f32, or how activations are packed
} qn_plan_arg;

// Memory of the arena: rows.n times the symbol's value rows, row_bytes each, needed from call
// `first` to call `last`.
typedef struct qn_plan_buffer {
    qn_dim rows;
    int64_t row_bytes;
    int32_t first, last;
} qn_plan_buffer;

typedef struct qn_plan_call {
    const char *kernel;
    qn_op op;      // that it is a stage of
    int32_t stage; // 0 ...
    int32_t layer; // -1: outside the layers
    qn_dim rows;   // of its results
    qn_attrs attrs;
    int n_in, n_out, n_temp;
    qn_plan_arg in[QN_MAX_IN], out[QN_MAX_OUT], temp[QN_PLAN_TEMPS];
} qn_plan_call;

// A leaf of the graph: its name, type and shape; how a weight lies in memory; data of a constant.
typedef struct qn_plan_leaf {
    const char *name;
    qn_type type;
    qn_word layout; // of a weight
    qn_shape shape;
    const float *data;
    const qn_share *share; // of a weight; NULL: all of it
} qn_plan_leaf;

typedef struct qn_plan_output {
    const char *name;
    qn_dim rows;
    qn_plan_arg arg;
    const qn_share *share; // NULL: all of it
} qn_plan_output;

typedef struct qn_plan {
    qn_arena arena;
    const char *name;                     // of the graph
    const char *backend;                  // the device: "cpu:avx2"
    qn_plan_leaf *leaves[QN_PLACE_COUNT]; // of PARAM, CONST, INPUT, CACHE, STATE
    size_t n_leaves[QN_PLACE_COUNT];
    qn_plan_buffer *buffers;
    size_t n_buffers;
    qn_plan_call *calls;
    size_t n_calls;
    qn_plan_output *outputs;
    size_t n_outputs;
} qn_plan;

// Caller storage; zeroed is empty.
void qn_plan_deinit(qn_plan *plan);

// As qn_node_gathers.
bool qn_call_gathers(const qn_plan_call *call);

// "buffer", "param" and so on.
const char *qn_place_name(qn_place place);

// The output of a name; NULL if there is none.
const qn_plan_output *qn_plan_find_output(const qn_plan *plan, const char *name);

// The verifier: every index lies in its list, every float argument inside its buffer's row, every
// use of a buffer inside its lifetime and every lifetime inside the calls; results have the rows of
// their call; counts and words are in range. The first fault is named with both values.
QN_MUST_CHECK qn_status qn_plan_verify(const qn_plan *plan, qn_err *err);

#endif
