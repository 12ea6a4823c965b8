// What a kernel on a GPU gets, and how activations lie there. C for the host, C++ for the kernels.
//
// Floats are dense. Packed activations are blocks of 256 values, each part of a row beginning with
// a new one; integers of more than 8 bits lie as two planes of bytes, so that products of bytes do.
// Weights are rows of blocks as in a file, or tiles (cuda_tiles.h). Pages of a KV cache have, of
// each layer, keys (heads, 64, k_size) and then values (heads, 64, v_size) in the type of the
// cache, rows filled up to whole blocks.
#ifndef QN_BACKENDS_CUDA_TASK_H
#define QN_BACKENDS_CUDA_TASK_H

#ifdef __cplusplus
extern "C" {
#endif
#include "backends/backend.h"
#include "core/inline.h"
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
// Words in which blocks of threads count those that are done; the last one clears its word.
enum { QN_CUDA_COUNTERS = 4096 };
// Matmuls of many rows leave an image of them in the room (kernels/digits.cuh): bytes of a row and
// a block, rows of its largest tile, floats of the largest; more rows are done in pieces.
enum { QN_CUDA_IMAGE_ROW = 1540, QN_CUDA_IMAGE_TILE = 128, QN_CUDA_IMAGE_MAX = 48 << 20 };

// q = 256 hi + lo. Of each 64 values, the words that a lane of a matrix instruction reads lie side
// by side: see qn_cuda_i12_at.
typedef struct qn_cuda_i12 {
    int8_t hi[QN_CUDA_BLOCK], lo[QN_CUDA_BLOCK];
    int16_t sums[QN_CUDA_GROUPS]; // of 16 values each
    float scale;
    int32_t unused[3];
} qn_cuda_i12;

// Where value k of a block lies in its planes: word t of both halves of 32 values, of both 32s.
QN_ANYWHERE int qn_cuda_i12_at(int k) {
    return k / 64 * 64 + k % 16 / 4 * 16 + k % 64 / 32 * 8 + k % 32 / 16 * 4 + k % 4;
}

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

// Tiles of a weight: units of 16 rows by 256 values, drawn in cuda_tiles.h. Four tiles that are
// neighbours lie block by block: [64 rows][block of 256][16 rows].
enum { QN_CUDA_TILE = 16, QN_CUDA_TILES = 4 };

enum { QN_CUDA_Q4_K_UNIT = 2304, QN_CUDA_Q6_K_UNIT = 3360, QN_CUDA_Q8_0_UNIT = 4352 }; // bytes

QN_ANYWHERE int qn_cuda_unit_bytes(int type) { // 0: it has no tiles
    return type == QN_TYPE_Q4_K   ? QN_CUDA_Q4_K_UNIT
           : type == QN_TYPE_Q6_K ? QN_CUDA_Q6_K_UNIT
           : type == QN_TYPE_Q8_0 ? QN_CUDA_Q8_0_UNIT
                                  : 0;
}

// Whether `rows` rows of `width` values lie in tiles.
QN_ANYWHERE bool qn_cuda_is_tiled(int type, int64_t rows, int64_t width) {
    return qn_cuda_unit_bytes(type) && rows % QN_CUDA_TILE == 0 && width % QN_CUDA_BLOCK == 0;
}

// Where the unit of a tile and a block lies, and how far the same tile's next block is; in units.
typedef struct qn_cuda_unit {
    int64_t at, step;
} qn_cuda_unit;

QN_ANYWHERE qn_cuda_unit qn_cuda_unit_of(int64_t tile, int64_t block, int64_t tiles,
                                         int64_t blocks) {
    const int64_t first = tile - tile % QN_CUDA_TILES, left = tiles - first;
    qn_cuda_unit unit;
    unit.step = left < QN_CUDA_TILES ? left : QN_CUDA_TILES;
    unit.at = first * blocks + block * unit.step + tile % QN_CUDA_TILES;
    return unit;
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
    int32_t is_tiled;  // they lie in tiles
    int32_t unused;
    // Of experts that are brought (cuda_experts.c): where each one's matrix of `parts` rows lies,
    // on the card; NULL where it is not to be computed now. NULL: all lie one after the other.
    const unsigned char *const *places;
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
    uint32_t *counters; // (QN_CUDA_COUNTERS) of the program, 0 between launches
    bool is_tensor;     // numerics `tensor`, where there are kernels for it
} qn_cuda_task;

#endif
