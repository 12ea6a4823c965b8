// Memory of a piece of a dense matmul, and the rows that it multiplies.
#ifndef QN_BACKENDS_CPU_KERNELS_DENSE_H
#define QN_BACKENDS_CPU_KERNELS_DENSE_H

#include "backends/cpu/kernels/tile_products.h"
#include "core/mem.h"

// What a thread lends (qn_cpu_scratch_tiles).
typedef struct work {
    panel_room *room;
    float (*sums)[QN_PANEL], (*more)[QN_PANEL]; // (panels, panel_rows)
    const void **rows;                          // (panel_rows) addresses
    int64_t panel_rows;                         // rows of a group, and QN_SPARE_ROWS
} work;

static inline work lay_out(void *scratch, const qn_task *task) {
    work w = {.room = scratch, .panel_rows = qn_cpu_row_group(task) + QN_SPARE_ROWS};
    w.sums = (float(*)[QN_PANEL])(w.room + 1);
    w.more = w.sums + qn_cpu_panels(task) * w.panel_rows;
    w.rows = (const void **)(w.more + qn_cpu_panels(task) * w.panel_rows);
    return w;
}

static inline void find_rows(const void **rows, const qn_operand *x, qn_range range) {
    for (int64_t r = range.first; r < range.end; r++)
        rows[r - range.first] = part_of(x, r / x->parts, r % x->parts);
}

#endif
