// What a kernel on a GPU gets, and how activations lie there. C for the host, C++ for the kernels.
//
// Floats are dense. Packed activations are blocks of 256 values, each part of a row beginning with
// a new one; integers of more than 8 bits lie as two planes of bytes, so that products of bytes do.
// Weights are rows of blocks of their own type, some of them longer than in a file, so that words
// lie at whole addresses. Pages of a KV cache have, of each layer, keys (heads, 64, k_size) and
// then values (heads, 64, v_size) in the type of the cache, rows filled up to whole blocks.
#ifndef QN_BACKENDS_CUDA_TASK_H
#define QN_BACKENDS_CUDA_TASK_H

#ifdef __cplusplus
extern "C" {
#endif
#include "backends/backend.h"
#ifdef __cplusplus
}
#endif

enum { QN_CUDA_BLOCK = 256, QN_CUDA_GROUPS = 16 };
// Logits of a row that one block of threads looks at, and the best that it finds of them.
enum { QN_CUDA_LIST = 2048, QN_CUDA_BEST = QN_HEAD_TOP };
// Positions of a chunk of attention (docs/numbers.md).
enum { QN_CUDA_CHUNK = 256 };
// Chunks of attention that are computed side by side leave their parts in the room: o (F), then
// these. The room has place for so many rows at the longest context, up to so many floats.
enum { QN_CUDA_PART_EXTRA = 4, QN_CUDA_SPLIT_ROWS = 32, QN_CUDA_ROOM_MAX = 16 << 20 };

// q = 256 hi + lo.
typedef struct qn_cuda_i12 {
    int8_t hi[QN_CUDA_BLOCK], lo[QN_CUDA_BLOCK];
    int16_t sums[QN_CUDA_GROUPS]; // of 16 values each
    float scale;
    int32_t unused[3];
} qn_cuda_i12;

// q = 256 hi + lo + 128.
typedef struct qn_cuda_i16 {
    int8_t hi[QN_CUDA_BLOCK], lo[QN_CUDA_BLOCK];
    int32_t sums[QN_CUDA_GROUPS];
    float scale;
    int32_t unused[3];
} qn_cuda_i16;

typedef struct qn_cuda_i8 {
    int8_t q[QN_CUDA_BLOCK];
    int16_t sums[QN_CUDA_GROUPS];
    float scales[QN_CUDA_BLOCK / 32];
} qn_cuda_i8;

// Blocks of weights on the card: Q6_K is filled up; Q8_0 has two bytes between its scale and its
// integers.
enum { QN_CUDA_Q6_K_BYTES = 224, QN_CUDA_Q8_0_BYTES = 36, QN_CUDA_Q8_0_SHIFT = 2 };
#ifdef __cplusplus
static __host__ __device__ inline int qn_cuda_block_bytes(int type, int bytes) {
#else
static inline int qn_cuda_block_bytes(int type, int bytes) {
#endif
    return type == QN_TYPE_Q6_K   ? QN_CUDA_Q6_K_BYTES
           : type == QN_TYPE_Q8_0 ? QN_CUDA_Q8_0_BYTES
                                  : bytes;
}

// A value: rows of (parts, width) numbers.
typedef struct qn_cuda_operand {
    unsigned char *data; // of the first row, on the card; NULL: absent
    int64_t stride;      // bytes from one row to the next; 0: all rows are the same
    int64_t parts, width;
    int32_t form;      // qn_word, of activations
    int32_t type;      // qn_type, of weights
    int32_t field;     // qn_step_field: it comes with the step; QN_STEP_FIELDS: it does not
    int32_t is_weight; // `parts` rows of `width` numbers of this type
} qn_cuda_operand;

// A call of a plan in a step.
typedef struct qn_cuda_task {
    qn_attrs attrs;
    qn_cuda_operand in[QN_MAX_IN], out[QN_MAX_OUT], temp[QN_MAX_TEMPS];
    qn_cache_view cache;
    qn_slots_view slots;
    const qn_step *step;  // on the card, its arrays too
    int64_t rows;         // of the results in this step
    int64_t segs, cached; // of the step; positions of the longest sequence, rounded up
    float *room;          // of the program
    int64_t room_floats;
} qn_cuda_task;

#endif
