// What a kernel gets, and what a kernel is. A plan is a list of calls; a call is a kernel and its
// operands; a call is cut into pieces, which any thread may run in any order.
//
// A kernel reads its operands and writes its results and nothing else. What it computes for one row
// depends on nothing but that row, the weights and the row's own sequence: not on the other rows,
// the number of rows, the pieces or the CPU level (docs/numbers.md).
#ifndef QN_BACKENDS_KERNEL_H
#define QN_BACKENDS_KERNEL_H

#include "backends/pack.h"
#include "ir/graph.h"
#include "ir/step.h"

enum { QN_MAX_TEMPS = 4, QN_MAX_STAGES = 4 };

// A value in memory: rows of (parts, width) numbers. Inside a row numbers are dense; rows may lie
// apart (a view into wider rows). The rows of a value are its first dimension where that is a symbol
// (T, R); a value without a symbol (a weight, a constant) is one row with stride 0. Width is the
// last dimension, parts the product of those between. `allow` of attend, (T, T), is read as dense
// rows of step->n_rows numbers, whatever its stride.
typedef struct qn_operand {
    void *data;              // of the first row; NULL: absent
    int64_t stride;          // bytes from one row to the next
    int64_t parts, width;    // parts is 1 where a row is just numbers
    qn_word form;            // QN_WORD_f32: plain numbers; else packed activations (panel.h)
    const qn_packed *packed; // a weight for matmul or embed; data is NULL then
} qn_operand;

// Keys and values of one layer. In a page, from `offset` on: keys (heads, 4, k_size, 16), with 16
// positions side by side, then values (heads, 64, v_size). A row of F32 or F16 is so many numbers; a
// row of Q8_0 is a whole number of blocks of 32, the last filled with zeros, and of a block of the
// keys of 16 positions there are first the 16 scales, then 32 rows of 16 bytes. Only the backend
// looks inside.
typedef struct qn_cache_view {
    unsigned char *pages;
    int64_t page_bytes; // page p begins at pages + p * page_bytes
    int64_t offset;
    int64_t layer_bytes; // of this layer in a page
    int64_t group;       // whose page numbers in the step table count
    qn_type type;        // F32, F16 or Q8_0
    int64_t heads, k_size, v_size;
} qn_cache_view;

// Recurrent state of one layer: in slot s, `state_size` floats from `offset` on, and log_rows rows
// of log_size floats from `log_offset` on.
typedef struct qn_slots_view {
    unsigned char *slots;
    int64_t slot_bytes;
    int64_t offset, state_size;
    int64_t log_offset, log_rows, log_size;
} qn_slots_view;

// One call, ready to run. `rows` and what `step` points to change from step to step.
typedef struct qn_task {
    const qn_attrs *attrs;
    qn_operand in[QN_MAX_IN], out[QN_MAX_OUT], temp[QN_MAX_TEMPS];
    const qn_cache_view *cache; // of the op's cache, or NULL
    const qn_slots_view *slots; // of the op's recurrent state, or NULL
    const qn_step *step;
    int64_t rows; // of the call's results in this step
} qn_task;

typedef struct qn_kernel {
    const char *name;
    // Number of pieces for a call of at most `rows` rows and `cached` positions per sequence, by
    // shape alone. A piece that lies behind the rows of the step does nothing.
    int64_t (*pieces)(const qn_task *task, int64_t rows, int64_t cached);
    // Bytes that each thread must lend, for at most `rows` rows.
    int64_t (*scratch)(const qn_task *task, int64_t rows);
    // `scratch` is aligned to 64 bytes.
    void (*run)(const qn_task *task, int64_t piece, void *scratch);
} qn_kernel;

// How a backend does an op: one kernel after the other, each with the op's operands and the op's
// temporary values.
typedef struct qn_recipe {
    int n_stages;
    // Bit per input: the weights and caches that each stage reads; 0: all of them, in the only stage.
    uint32_t reads[QN_MAX_STAGES];
    int stages[QN_MAX_STAGES]; // indices of kernels
    // The temporary values that the stages share: fills temp[i].parts, width, form (data and stride
    // are set later) and returns how many. They have as many rows as the result. NULL: none.
    int (*temps)(qn_operand *temp, const qn_graph *graph, const qn_node *node);
} qn_recipe;

// Floats that CONV and DELTA log for a row: the row (C) of a convolution; k | v | g | beta
// (G * E + H * F + 2 * H) of a delta rule. 0 for every other op.
int64_t qn_log_size(const qn_graph *graph, const qn_node *node);

// A kind of device. Tables are constant.
typedef struct qn_backend {
    const char *name;  // "cpu"
    const char *level; // "portable", "avx2", "avxvnni", "avx512"
    const qn_kernel *kernels;
    int n_kernels;
    const qn_recipe *recipes; // by op; n_stages 0: not supported
    // Why a node cannot run here; NULL: it can.
    const char *(*refuse)(const qn_graph *graph, const qn_node *node);
    // Bytes of one row of `width` values in a form, aligned to 64.
    int64_t (*row_bytes)(qn_word form, int64_t width);
    // A row of `parts` times `width` values in a form, as floats (or as the 32-bit integers it is).
    void (*read_row)(float *to, const void *row, qn_word form, int64_t parts, int64_t width);
    // Keys (heads, k_size) and values (heads, v_size) of row `row` of a page, as floats.
    void (*read_kv)(float *keys, float *values, const qn_cache_view *cache, int32_t page,
                    int64_t row);
    // Bytes of one layer in a page of a cache.
    int64_t (*cache_bytes)(qn_type type, int64_t heads, int64_t k_size, int64_t v_size);
} qn_backend;

#endif
