// A block of a tile, unpacked (see tile_products.h).
#ifndef QN_BACKENDS_CPU_KERNELS_TILE_BLOCK_H
#define QN_BACKENDS_CPU_KERNELS_TILE_BLOCK_H

#include "backends/cpu/pack.h"

// Up to QN_PANEL_TILES tiles are multiplied side by side; the sums of a row are QN_PANEL floats.
// Cores take rows by eight, so there is room for rows past the last. 3 tiles times 8 rows are 24
// sums, which the 32 registers of AVX-512 hold next to the weights.
enum {
    QN_GROUPS = QN_BLOCK / 16,
    QN_PANEL_TILES = 3,
    QN_PANEL = QN_PANEL_TILES * QN_TILE,
    QN_SPARE_ROWS = 16
};

// Row i of w holds two inner values of each of the 16 outputs: of the values 4 u ... 4 u + 3, row
// 2 u the first and third, row 2 u + 1 the second and fourth. Row u of c holds the codes of all
// four. A value is
//
//   folded    scale[0] * w + shift[0] * mins[g]      w has the group's integer scale in it
//   grouped   scale[g] * w + shift[g]
//   coded     scale[g] * (c - zero) + shift[g]       zero is that of the type, or 0 where the
//                                                    level's codes are signed (QN_BYTE_ZERO)
//   split     scale[0] * (by[g] * c) + shift[0] * mins[g]
//   digits    scale[0] * (64 * digits[0] + digits[1] - base) + shift[0] * mins[g], for a matrix unit:
//             rows as those of c; digits[2] is the sum of both; base is that of the type
//   plain     f[k]
typedef struct tile_block {
    union {
        int16_t w[QN_BLOCK / 2][2 * QN_TILE];
        struct {
            uint8_t c[QN_BLOCK / 4][4 * QN_TILE];
            int32_t by[QN_GROUPS][QN_TILE];
        };
        uint8_t digits[3][QN_BLOCK / 4][4 * QN_TILE];
        float f[QN_BLOCK][QN_TILE];
    };
    int16_t mins[QN_GROUPS / 2][2 * QN_TILE]; // of groups 2 i and 2 i + 1 of 16 values
    float scale[QN_GROUPS][QN_TILE];
    float shift[QN_GROUPS][QN_TILE];
} tile_block;

// A matrix unit multiplies so fast that unpacked tiles must serve more rows, and rows that were taken
// apart more tiles: with 256 rows and 12 tiles each of the two costs an eighth of the products
// (docs/speed.md).
enum { QN_UNIT_ROWS = 256, QN_UNIT_PANELS = 4, QN_UNIT_SUMS = 8 };

// Its room: a block of each row as digits or bytes, and sums of products of 16 rows with two tiles,
// twice.
typedef struct unit_room {
    tile_block blocks[2];
    int32_t sums[2][QN_UNIT_SUMS][QN_TILE][QN_TILE];
    float values[QN_TILE][QN_TILE];
    int32_t below[QN_UNIT_ROWS]; // base times the sum of a row's block
    int8_t rows[QN_UNIT_ROWS / 16][3 * 16 * QN_BLOCK];
} unit_room;

// What many rows of any level need for what is unpacked.
typedef union panel_room {
    tile_block blocks[QN_PANEL_TILES];
    unit_room unit;
} panel_room;

_Static_assert(sizeof(tile_block) % 64 == 0, "tiles lie side by side");
_Static_assert(sizeof(panel_room) % 64 == 0, "rooms end at lines of the cache");

#endif
