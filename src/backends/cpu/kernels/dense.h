// Memory of a piece of a dense matmul, and the rows that it multiplies.
#ifndef QN_BACKENDS_CPU_KERNELS_DENSE_H
#define QN_BACKENDS_CPU_KERNELS_DENSE_H

#include "backends/cpu/kernels/tile_products.h"
#include "core/mem.h"

// What a thread lends (qn_cpu_scratch_tiles).
typedef struct work {
    tile_block *blocks;                         // (QN_PANEL_TILES)
    float (*sums)[QN_PANEL], (*more)[QN_PANEL]; // (QN_ROW_GROUP + QN_SPARE_ROWS)
    const void **rows;                          // addresses, as many
} work;

static inline work lay_out(void *scratch) {
    work w = {.blocks = scratch};
    w.sums = (float(*)[QN_PANEL])(w.blocks + QN_PANEL_TILES);
    w.more = w.sums + QN_ROW_GROUP + QN_SPARE_ROWS;
    w.rows = (const void **)(w.more + QN_ROW_GROUP + QN_SPARE_ROWS);
    return w;
}

static inline void find_rows(const void **rows, const qn_operand *x, qn_range range) {
    for (int64_t r = range.first; r < range.end; r++)
        rows[r - range.first] = part_of(x, r / x->parts, r % x->parts);
}

#endif
