// A tile of weights times rows of activations: what every matmul kernel stands on.
//
// One tile is 16 outputs (pack.h). For each block of 256 inner values the weights are unpacked once
// into a form that the rows then share; which form depends on the type and on how the activations
// are packed, and fixes the formula of the block (docs/numbers.md).
#ifndef QN_BACKENDS_CPU_LEVEL_TILE_H
#define QN_BACKENDS_CPU_LEVEL_TILE_H

#include "backends/cpu/level/lanes.h"
#include "backends/cpu/level/level.h"
#include "backends/cpu/level/tile_block.h"

// External names of this level.
#define find_form    QN_FN(find_form)
#define unpack_block QN_FN(unpack_block)
#define tile_sums    QN_FN(tile_sums)

// How a block is wanted.
typedef enum block_form { BLOCK_FOLDED, BLOCK_GROUPED, BLOCK_PLAIN } block_form;

// The form that a type and packed activations call for.
block_form find_form(qn_type type, qn_word x_form);
// Unpacks n_values of a tile's block at `from`.
void unpack_block(tile_block *to, qn_type type, const uint8_t *from, int n_values, block_form form);

// sums[r] (n_rows, 16) = tile `tile` of w (counted over all matrices) times row r, given by the
// address of its panels or floats.
void tile_sums(float *sums, tile_block *block, const qn_packed *w, int64_t tile,
               const void *const *rows, int64_t n_rows, qn_word x_form);

#endif
