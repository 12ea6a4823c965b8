// Inside the reference interpreter: what an op function gets.
#ifndef QN_IR_REF_INT_H
#define QN_IR_REF_INT_H

#include "ir/ref.h"

// A value at run time, with its symbols replaced by numbers. Row-major.
typedef struct ref_tensor {
    const qn_value *value;
    int n_dims;
    int64_t dims[QN_GRAPH_DIMS];
    int64_t n; // elements
    union {
        void *data;
        float *f;
        int32_t *i;
        const unsigned char *packed; // rows of a weight in its own type
    };
} ref_tensor;

// Recurrent state of one sequence: at the last accepted row, and the rows since.
typedef struct ref_slot {
    float *state;
    float *log; // (n_log, row_size)
    int64_t n_log;
    size_t cap_log; // floats
} ref_slot;

// The storage of a CACHE or STATE value; its successors share it.
typedef struct ref_state {
    float *pages; // (n_pages, 64, K * (E + F)): k of all heads, then v of all heads
    int64_t row_size;
    ref_slot *slots;
    int64_t state_size; // floats per slot
} ref_state;

typedef struct ref_call {
    const qn_node *node;
    const qn_step *step;
    qn_pool *pool;
    const ref_tensor *in[QN_MAX_IN]; // NULL where absent
    ref_tensor *out[QN_MAX_OUT];
    ref_state *state; // of the node's CACHE or STATE input
    const qn_ref_opts *opts;
    int64_t index; // of the node
    qn_err *err;
} ref_call;

// Asks the caller whether to go on; QN_STOPPED: no.
QN_MUST_CHECK qn_status qn_ref_poll(const ref_call *call);

typedef qn_status ref_op(const ref_call *call);

// One function per op that computes; leaves have none. Declared from the op table.
#define OP(name, min_in, kinds, n_out, rule, class, attrs, facts) ref_op qn_ref_##name;
#include "ir/ops.def"
#undef OP

// Row r of a weight (rows of its last dimension) as floats.
static inline void ref_unpack_row(float *to, const ref_tensor *w, int64_t r) {
    const qn_type_info *type = qn_type_get(w->value->type);
    const int64_t width = w->dims[w->n_dims - 1];
    type->unpack(to, w->packed + r * (width / type->block * type->bytes), width);
}

// Page i of a segment. Every layer of the interpreter keeps the positions of the first group.
static inline int32_t ref_page(const qn_step *step, int64_t seg, int64_t i) {
    const int64_t groups = step->n_groups ? step->n_groups : 1;
    return step->seg_pages[seg * groups * step->pages_per_seg + i];
}

// Position of a row in its sequence, counted from 0.
static inline int64_t ref_row_position(const qn_step *step, int64_t row) {
    const int32_t seg = step->row_seg[row];
    return step->seg_past[seg] + (row - step->seg_row[seg]);
}

#endif
