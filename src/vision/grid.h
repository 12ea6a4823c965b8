// What a tower must know of where a patch is in its image. Patches come as patches.h has them:
// merged patches row by row, and inside one its patches row by row.
#ifndef QN_VISION_GRID_H
#define QN_VISION_GRID_H

#include "core/err.h"

typedef struct qn_grid {
    int64_t rows, columns, merge; // in patches; both are multiples of merge
} qn_grid;

// 2-D rope: for each patch cosines (head / 2), then sines. The first half of the pairs turns by the
// row, the second by the column, each with frequencies theta^(-4 i / head).
void qn_grid_angles(float *to, const qn_grid *grid, int64_t head, double theta);

// The learned positions, `table` (side, side, width), resized to the grid: corner on corner, linear
// in between.                                                            -> (rows * columns, width)
void qn_grid_positions(float *to, const qn_grid *grid, const float *table, int64_t side,
                       int64_t width);

#endif
