// Rows of 12-bit activations as halfs, in the order in which tensor cores read them: an image.
//
// Exact: q = 64 a + b with |a|, |b| <= 32. Digits are columns of their own, first a of all rows of
// a tile, then b; Q6_K wants q itself, too (unpack.cuh). Otherwise q is one column.
//
// An image of a tile of ROWS rows and a block of 256 values:
//   16 steps of 16 values: [even values, odd values][COLUMNS / 8][8 columns][8 values]
//   Q4_K: one step more, with digits of the 8 sums of 32 values. Exact: columns of 256s, columns of
//     ones, and then zeros; else the 256s where even values are, ones where odd ones are.
//   ROWS scales (float)
// Tiles of rows lie one after the other, each with all its blocks.
#pragma once

#include "common.cuh"

template <int TYPE_, int PRODUCTS_, int ROWS_> struct Image {
    static constexpr int TYPE = TYPE_, PRODUCTS = PRODUCTS_, ROWS = ROWS_;
    static constexpr bool IS_EXACT = PRODUCTS == 2, HAS_SUMS = TYPE == QN_TYPE_Q4_K;
    static constexpr int N = IS_EXACT ? 2 * ROWS : ROWS; // columns of digits
    static constexpr bool HAS_WHOLE = IS_EXACT && !HAS_SUMS;
    static constexpr int COLUMNS = HAS_WHOLE ? 3 * ROWS : N;
    static constexpr int STEP = 32 * COLUMNS, CHUNK = 4 * STEP; // bytes of 16 values, of 64
    static constexpr int SUMS = HAS_SUMS ? 32 * N : 0, TAIL = SUMS + 4 * ROWS;
    static constexpr int BLOCK = 4 * CHUNK + TAIL;
};

// Rows that lie at equal distances; parts of rows count as rows.
struct Flat {
    unsigned char *data;
    int64_t stride;
};
