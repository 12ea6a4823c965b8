// What a kernel of the CPU gets, and what it is. A plan is a list of calls; a call is a kernel and
// its operands; a call is cut into pieces, which any thread may run in any order.
//
// In a page of a KV cache a layer has keys (heads, 4, k_size, 16), with 16 positions side by side,
// then values (heads, 64, v_size). A row of F32 or F16 is that many numbers; a row of Q8_0 or
// Q4_0 is a whole number of blocks of 32, the last filled with zeros, and of a block of the keys of
// 16 positions there are first the 16 scales, then 32 (16) rows of 16 bytes.
//
// A kernel reads its operands and writes its results and nothing else. What it computes for one row
// depends on nothing but that row, the weights and the row's own sequence: not on the other rows,
// the number of rows, the pieces or the CPU level (docs/numbers.md).
#ifndef QN_BACKENDS_CPU_KERNEL_H
#define QN_BACKENDS_CPU_KERNEL_H

#include "backends/backend.h"
#include "backends/cpu/pack.h"

// A value in memory: rows of (parts, width) numbers. Inside a row numbers are dense; rows may lie
// apart (a view into wider rows). The rows of a value are its first dimension where that is a
// symbol (T, R); a value without a symbol (a weight, a constant) is one row with stride 0. Width is
// the last dimension, parts the product of those between. `allow` of attend, (T, T), is read as
// dense rows of step->n_rows numbers, whatever its stride.
typedef struct qn_operand {
    void *data;              // of the first row; NULL: absent
    int64_t stride;          // bytes from one row to the next
    int64_t parts, width;    // parts is 1 where a row is just numbers
    qn_word form;            // QN_WORD_f32: plain numbers; else packed activations (panel.h)
    const qn_packed *packed; // a weight for matmul or embed; data is NULL then
} qn_operand;

// One call, ready to run. `rows` and what `step` points to change from step to step.
typedef struct qn_task {
    const qn_attrs *attrs;
    qn_operand in[QN_MAX_IN], out[QN_MAX_OUT], temp[QN_MAX_TEMPS];
    const qn_cache_view *cache; // of the op's cache, or NULL
    const qn_slots_view *slots; // of the op's recurrent state, or NULL
    const qn_step *step;
    const struct qn_gather *gather; // of ALL_GATHER: how ranks are reached (device.h), or NULL
    int64_t rows;                   // of the call's results in this step
    bool has_unit;                  // pieces of matmuls are those of a matrix unit
    void *shared;                   // by all pieces of the call and of its op's next stages
} qn_task;

typedef struct qn_kernel {
    const char *name;
    // Number of pieces for a call of at most `rows` rows and `cached` positions per sequence, by
    // shape alone. A piece past the rows of the step does nothing.
    int64_t (*pieces)(const qn_task *task, int64_t rows, int64_t cached);
    // Bytes that each thread must lend, for at most `rows` rows.
    int64_t (*scratch)(const qn_task *task, int64_t rows);
    // Bytes that all pieces share, for at most `rows` rows and `cached` positions per sequence; what
    // was there before is lost.
    int64_t (*shared)(const qn_task *task, int64_t rows, int64_t cached);
    // `scratch` is aligned to 64 bytes, as task->shared.
    void (*run)(const qn_task *task, int64_t piece, void *scratch);
} qn_kernel;

#endif
