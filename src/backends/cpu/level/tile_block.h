// A block of a tile, unpacked (see tile.h).
#ifndef QN_BACKENDS_CPU_LEVEL_TILE_BLOCK_H
#define QN_BACKENDS_CPU_LEVEL_TILE_BLOCK_H

#include "backends/pack.h"

enum { QN_GROUPS = QN_BLOCK / 16 };

// Row i of w holds two inner values of each of the 16 outputs: of the values 4 u ... 4 u + 3, row
// 2 u the first and third, row 2 u + 1 the second and fourth. A value is
//
//   folded    scale[0] * w + shift[0] * mins[g]      w has the group's integer scale in it
//   grouped   scale[g] * w + shift[g]
//   plain     f[k]
typedef struct tile_block {
    union {
        int16_t w[QN_BLOCK / 2][2 * QN_TILE];
        float f[QN_BLOCK][QN_TILE];
    };
    int16_t mins[QN_GROUPS / 2][2 * QN_TILE]; // of groups 2 i and 2 i + 1 of 16 values
    float scale[QN_GROUPS][QN_TILE];
    float shift[QN_GROUPS][QN_TILE];
    int n_values;   // 256, or less in the last block
    int group;      // values that share a scale: 16 or 32
    bool has_shift; // else shift and mins mean nothing
} tile_block;

#endif
