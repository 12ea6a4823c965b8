// What the compiler must know about a kind of device: which ops it runs and in how many stages, how
// its weights, activations and pages lie in memory. Tables are constant.
#ifndef QN_BACKENDS_BACKEND_H
#define QN_BACKENDS_BACKEND_H

#include "ir/plan.h"
#include "ir/step.h"

enum { QN_MAX_TEMPS = QN_PLAN_TEMPS, QN_MAX_STAGES = 6 };

// Keys and values of one layer: `layer_bytes` of every page of its group, from `offset` on. Only
// the device knows what is inside, and only it follows the address.
typedef struct qn_cache_view {
    unsigned char *pages;
    int64_t page_bytes; // page p begins at pages + p * page_bytes
    int64_t offset;
    int64_t layer_bytes; // of this layer in a page
    int64_t group;       // whose page numbers in the step table count
    qn_type type;        // F32, F16, Q8_0 or Q4_0
    bool is_rotated;     // of the numbers of a head: see qn_kv_rotate
    int64_t heads, k_size, v_size;
} qn_cache_view;

// Recurrent state of one layer: in slot s, `state_size` floats from `offset` on, and log_rows rows
// of log_size floats from `log_offset` on. Floats are plain on every device; the address is its
// own.
typedef struct qn_slots_view {
    unsigned char *slots;
    int64_t slot_bytes;
    int64_t offset, state_size;
    int64_t log_offset, log_rows, log_size;
} qn_slots_view;

// How a device runs an op: one kernel after the other, each with the op's operands and the op's
// temporary values.
typedef struct qn_recipe {
    int n_stages; // 0: the op is not supported
    // Bit per input: the weights and caches that each stage reads; 0: all of them, in the only
    // stage.
    uint32_t reads[QN_MAX_STAGES];
    int stages[QN_MAX_STAGES]; // indices of kernels
    // The temporary values that the stages share: fills temp[i].parts, width and form, and returns
    // how many. They have the rows of the result. NULL: none.
    int (*temps)(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);
} qn_recipe;

typedef struct qn_backend {
    const char *name;           // of the device that the plans are for: "cpu:avx2"
    const char *const *kernels; // (n_kernels) names, constant as long as the program runs
    int n_kernels;
    const qn_recipe *recipes; // (QN_OP_COUNT)
    uint32_t forms;           // bit per qn_word: the forms of activations that its kernels read
    uint32_t caches;          // bit per qn_cache_type: the KV caches that they write and read
    // Why a node cannot run here; NULL: it can. No function: everything with a recipe can.
    const char *(*refuse)(const qn_graph *graph, const qn_node *node);
    // How input `input` of an op wants its weight.
    qn_word (*layout)(qn_op op, int input);
    // Bytes of a row of `width` values in a form.
    int64_t (*row_bytes)(qn_word form, int64_t width);
    // Bytes of one layer in a page of a cache.
    int64_t (*cache_bytes)(qn_type type, int64_t heads, int64_t k_size, int64_t v_size);
} qn_backend;

// The types of KV caches, by qn_cache_type: how a row is kept, and whether it is rotated first.
typedef struct qn_kv_type {
    const char *name; // "q8_0r"
    qn_type type;
    bool is_rotated;
} qn_kv_type;

enum { QN_KV_TYPES = QN_CACHE_Q4_0R + 1, QN_KV_ALL = (1 << QN_KV_TYPES) - 2 };

// Not of AUTO.
const qn_kv_type *qn_kv_type_get(qn_cache_type type);

// Numbers of a head that are rotated together: the largest power of two that divides its size.
static inline int64_t qn_kv_rotated(int64_t size) { return size & -size; }
// What they are multiplied with in the end: 1 / sqrt(n), for n a power of two.
static inline float qn_kv_rotation_scale(int64_t n) {
    float scale = 1;
    for (; n > 1; n /= 4) scale *= n == 2 ? 0x1.6a09e6p-1f : 0.5f;
    return scale;
}
// Rotates the numbers of a head by the normalised Walsh-Hadamard transform of each such part; what
// was rotated is rotated back. Every device computes the same bits (docs/numbers.md).
void qn_kv_rotate(float *x, int64_t size);

// A row of a KV cache outside its device: keys (heads, k_size), then values (heads, v_size), in the
// type of the cache, each head rotated where it is, and filled up to whole blocks. Its bytes; and
// its keys or values of one head as floats, rotated back.
int64_t qn_kv_row_bytes(const qn_cache_view *cache);
void qn_kv_row_keys(float *to, const unsigned char *row, const qn_cache_view *cache, int64_t head);
void qn_kv_row_values(float *to, const unsigned char *row, const qn_cache_view *cache,
                      int64_t head);
// n numbers of a key or value as they are kept; of a last block that is not full, the rest is left
// out.
void qn_kv_unpack(float *to, qn_type type, const unsigned char *from, int64_t n);
// The same of all of a head, rotated back.
void qn_kv_read(float *to, const qn_cache_view *cache, const unsigned char *from, int64_t size);

// Floats that CONV and DELTA log for a row: the row (C) of a convolution; k | v | g | beta
// (G * E + H * F + 2 * H) of a delta rule. 0 for every other op.
int64_t qn_log_size(const qn_graph *graph, const qn_node *node);

// How CONV and DELTA apply a logged row to their state.
typedef struct qn_log_rule {
    qn_op op;
    int64_t log_size;                         // floats of a row
    int64_t channels, kept;                   // of CONV: state (kept, channels)
    int64_t key_heads, heads, k_size, v_size; // of DELTA: state (heads, k_size, v_size)
    bool is_tiled;                            // of DELTA: value head h has key head h % key_heads
} qn_log_rule;
qn_log_rule qn_log_rule_of(const qn_graph *graph, const qn_node *node);
// Applies n logged rows, bit for bit as every device does before a step (ref/plain_recurrent.c).
void qn_log_apply(float *state, const qn_log_rule *rule, const float *log, int64_t n);

#endif
