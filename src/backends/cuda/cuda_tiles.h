// Tiles of weights, in which the threads of a warp find the operands of matrix instructions side by
// side. A unit has 16 rows of 256 values:
//
//     Q4_K   16 x (d, dmin, 12 bytes of scales) | 4 lines: the nibbles of 64 values
//     Q6_K   16 x 16 scales | 16 x d | twice: 2 lines of low nibbles and a line of high bits
//     Q8_0   16 x 8 scales | 8 lines: 32 values
//
// A line has 32 bytes of each row. Words 0 to 3 of row i are t = 0 to 3, words 4 to 7 again: lane
// 4 (i % 8) + t has 16 bytes, which are word t of row i % 8, of row i % 8 + 8, then word 4 + t.
#ifndef QN_BACKENDS_CUDA_TILES_H
#define QN_BACKENDS_CUDA_TILES_H

#include "backends/cuda/cuda_task.h"

// 256 values of 16 rows to a unit; `from` is the first row's, the next is `stride` bytes further.
void qn_cuda_tile_pack(unsigned char *unit, const unsigned char *from, int64_t stride, int type);
// Back again: row i of a unit, as it lies in a file.
void qn_cuda_tile_row(unsigned char *to, const unsigned char *unit, int i, int type);

#endif
