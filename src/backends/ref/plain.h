// Inside the device `ref`: what an op gets, and how numbers lie in memory. (Names begin with
// qn_plain, as qn_ref is the interpreter of ir/ref.h.)
//
// Floats are dense. Activations of a packed form are groups of 32 integers and their scale; each
// part of a row begins with a new group. Weights of matmuls and embeddings are rows in their own
// type, all other weights are floats. A page of a KV cache has, of each layer, keys (heads, 64,
// k_size) and then values (heads, 64, v_size) in the type of the cache; a row is filled up to whole
// blocks.
#ifndef QN_BACKENDS_REF_PLAIN_H
#define QN_BACKENDS_REF_PLAIN_H

#include "backends/backend.h"
#include "backends/kernel_math.h"
#include "core/mem.h"
#include "quant/half.h"

#include <string.h>

enum { QN_PLAIN_GROUP = 32, QN_PLAIN_BLOCK = 256 };

// 32 values of a row: x ~ scale * q. In the forms i12_256 and i16_256 the 8 groups of a block of
// 256 have one scale.
typedef struct qn_plain_group {
    float scale;
    int16_t q[QN_PLAIN_GROUP];
} qn_plain_group;

// A value: rows of (parts, width) numbers, dense inside a row.
typedef struct qn_plain_operand {
    unsigned char *data; // of the first row; NULL: absent
    int64_t stride;      // bytes from one row to the next; 0: all rows are the same
    int64_t parts, width;
    qn_word form;  // of activations
    bool is_typed; // a weight: `parts` rows of `width` values of this type
    qn_type type;
} qn_plain_operand;

// A call of a plan in a step.
typedef struct qn_plain_task {
    const qn_attrs *attrs;
    qn_plain_operand in[QN_MAX_IN], out[QN_MAX_OUT];
    const qn_cache_view *cache; // of the op's cache, or NULL
    const qn_slots_view *slots; // of the op's recurrent state, or NULL
    const qn_step *step;
    const struct qn_gather *gather; // of ALL_GATHER: how ranks are reached (device.h), or NULL
    int64_t rows; // of the results in this step; of the largest, for what the op asks for
    float *room;  // as much as the op asks for
} qn_plain_task;

// An op: what it does, and how many floats of room it needs (NULL: none).
typedef struct qn_plain_op {
    void (*run)(const qn_plain_task *task);
    int64_t (*room)(const qn_plain_task *task);
} qn_plain_op;

#define PLAIN(op, run, room) void qn_plain_##run(const qn_plain_task *task);
#include "backends/ref/plain_ops.def"
#undef PLAIN

int64_t qn_plain_room_none(const qn_plain_task *task);
int64_t qn_plain_room_width(const qn_plain_task *task); // a row of in[0]
int64_t qn_plain_room_rope(const qn_plain_task *task);
int64_t qn_plain_room_experts(const qn_plain_task *task);
int64_t qn_plain_room_lora(const qn_plain_task *task);
int64_t qn_plain_room_all_gather(const qn_plain_task *task);
int64_t qn_plain_room_head(const qn_plain_task *task);
int64_t qn_plain_room_kv_write(const qn_plain_task *task);
int64_t qn_plain_room_attend(const qn_plain_task *task);
int64_t qn_plain_room_conv(const qn_plain_task *task);
int64_t qn_plain_room_delta(const qn_plain_task *task);

// --- rows ----------------------------------------------------------------------------------------

static inline int64_t qn_plain_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t qn_plain_part_bytes(qn_word form, int64_t width) {
    if (form == QN_WORD_f32) return width * (int64_t)sizeof(float);
    return qn_plain_ceil(width, QN_PLAIN_GROUP) * (int64_t)sizeof(qn_plain_group);
}

// Row r of an operand; part p of it.
static inline void *qn_plain_row(const qn_plain_operand *x, int64_t r) {
    return x->data + r * x->stride;
}

static inline void *qn_plain_part(const qn_plain_operand *x, int64_t r, int64_t p) {
    return x->data + r * x->stride + p * qn_plain_part_bytes(x->form, x->width);
}

// Row i of a weight in its own type.
static inline const unsigned char *qn_plain_weight(const qn_plain_operand *w, int64_t i) {
    const qn_type_info *info = qn_type_get(w->type);
    return w->data + i * (w->width / info->block * info->bytes);
}

// --- what several ops do (plain_rows.c, plain_ints.c) --------------------------------------------

// Sums in lanes, as docs/numbers.md orders them: of x - mean, or of its squares.
typedef enum qn_plain_sum { QN_PLAIN_PLAIN, QN_PLAIN_SQUARES } qn_plain_sum;
float qn_plain_sum_lanes(const float *x, int64_t n, float mean, int lanes, qn_plain_sum kind);

// The same of products a[i] * x[i].
float qn_plain_dot_lanes(const float *a, const float *x, int64_t n, int lanes);

// RMS norm of a head where there is a weight, then its pairs turned; angles are (2, rotate / 2).
void qn_plain_turn_head(float *to, const float *x, const float *angles, const float *norm,
                        int64_t size, const qn_attrs *attrs);
// ids and weights (top) of a row of n scores; p is room for n numbers.
void qn_plain_choose(int32_t *ids, float *weights, const float *scores, int64_t n,
                     const qn_attrs *attrs, float *p);

// `n` floats in a form, and back.
void qn_plain_round(void *to, const float *from, int64_t n, qn_word form);
void qn_plain_read(float *to, const void *from, int64_t n, qn_word form);

// Whether matmuls read weights of the type.
bool qn_plain_reads(qn_type type);
// The sum over n products of a row of activations and a row of a weight.
float qn_plain_dot(const void *x, qn_word form, const unsigned char *w, qn_type type, int64_t n);

// --- pages (plain_attention.c) -------------------------------------------------------------------

int64_t qn_plain_kv_bytes(qn_type type, int64_t size);
// Key or value of a head in row `slot` of a page, where this layer's part begins.
unsigned char *qn_plain_key(const qn_cache_view *cache, unsigned char *page, int64_t head,
                            int64_t slot);
unsigned char *qn_plain_value(const qn_cache_view *cache, unsigned char *page, int64_t head,
                              int64_t slot);

// --- tables (ref_table.c) ------------------------------------------------------------------------

extern const qn_backend qn_plain_backend;
// The functions of an op; run is NULL where there is none.
const qn_plain_op *qn_plain_op_get(qn_op op);

#endif
