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

// External names of this level.
#define find_form    QN_FN(find_form)
#define unpack_block QN_FN(unpack_block)
#define few_sums     QN_FN(few_sums)
#define panel_sums   QN_FN(panel_sums)

// How a block is wanted.
typedef enum block_form {
    BLOCK_FOLDED,
    BLOCK_GROUPED,
    BLOCK_CODED,
    BLOCK_SPLIT,
    BLOCK_PLAIN
} block_form;

// The form that a type and packed activations call for.
block_form find_form(qn_type type, qn_word x_form);
void unpack_block(tile_block *to, qn_type type, const uint8_t *from, int n_values, block_form form);

// A product: rows are given by the addresses of their panels or floats; tiles are counted over all
// matrices of w. The sums of row r begin at sums[r]; after the last row, QN_SPARE_ROWS rows of
// sums and of addresses may be overwritten.
typedef struct product {
    float (*sums)[QN_PANEL];
    const qn_packed *w;
    int64_t tile, n_tiles; // at most QN_PANEL_TILES
    const void **rows;
    int64_t n_rows;
    qn_word form;
} product;

// blocks: room for QN_PANEL_TILES.
void panel_sums(const product *p, tile_block *blocks);
// The same for few rows and integers; false: they are not few.
bool few_sums(const product *p);

#endif
