// Tiles times rows: what all matmuls are made of.
//
// Few rows: the weights are unpacked in registers, one tile after the other (matvec.c). Many rows:
// up to three tiles at a time are unpacked block by block into a form that all rows share
// (unpack.c, core.h). Which form depends on the type and on how the activations are packed; the
// formula of the block (docs/numbers.md) and so the result is the same.
#ifndef QN_BACKENDS_CPU_KERNELS_TILE_PRODUCTS_H
#define QN_BACKENDS_CPU_KERNELS_TILE_PRODUCTS_H

#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/level.h"
#include "backends/cpu/kernels/tile_block.h"
#include "core/mem.h"

// External names of this level.
#define find_form    QN_FN(find_form)
#define unpack_block QN_FN(unpack_block)
#define few_sums     QN_FN(few_sums)
#define panel_sums   QN_FN(panel_sums)
#define unit_sums    QN_FN(unit_sums)

// How a block is wanted.
typedef enum block_form {
    BLOCK_FOLDED,
    BLOCK_GROUPED,
    BLOCK_CODED,
    BLOCK_SPLIT,
    BLOCK_DIGITS,
    BLOCK_PLAIN
} block_form;

// The form that a type and packed activations call for.
block_form find_form(qn_type type, qn_word x_form);
void unpack_block(tile_block *to, qn_type type, const uint8_t *from, int n_values, block_form form);

// A product: rows are given by the addresses of their panels or floats; tiles are counted over all
// matrices of w. The sums of row r begin at sums[r]; after the last row, QN_SPARE_ROWS rows of
// sums and of addresses may be overwritten. Those of the next panel begin panel_rows further.
typedef struct product {
    float (*sums)[QN_PANEL];
    const qn_packed *w;
    int64_t tile, n_tiles; // at most tiles_at_once
    const void **rows;
    int64_t n_rows;
    qn_word form;
    int64_t panel_rows;
} product;

QN_INLINE int64_t tiles_at_once(const product *p) {
    const bool is_wide = QN_HAS_TILES && p->panel_rows && p->n_rows > QN_FEW_ROWS &&
                         find_form(p->w->type, p->form) != BLOCK_PLAIN;
    return is_wide ? QN_UNIT_PANELS * QN_PANEL_TILES : QN_PANEL_TILES;
}

// The sums of the panel that begins at tile t, counted from the first.
QN_INLINE float (*panel_of(const product *p, int64_t t))[QN_PANEL] {
    return p->sums + t / QN_PANEL_TILES * p->panel_rows;
}

// And how many outputs of the weight it has.
QN_INLINE int64_t outputs_of_panel(const product *p, int64_t t) {
    return qn_min(p->w->n_out - (p->tile + t) * QN_TILE,
                  qn_min(p->n_tiles - t, QN_PANEL_TILES) * QN_TILE);
}

void panel_sums(const product *p, panel_room *room);
// The same for few rows and integers; false: they are not few.
bool few_sums(const product *p);
// The same for many rows and integers on a matrix unit (amx_products.c).
void unit_sums(const product *p, unit_room *room, block_form form);

#endif
