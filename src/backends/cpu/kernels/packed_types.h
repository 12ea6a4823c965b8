// How the packed bytes of each type are read (pack.c has the rules for all types). Q4_K, a block of
// 256 values of 16 outputs, from the blocks of the file to a tile:
//
//   file: output o            bytes      tile of 16 outputs     bytes of output o
//   +------------------------+           +----------------------+
//   | d         f16          | 0-1       | d x 16               | 2 o, 2 o + 1
//   | dmin      f16          | 2-3       | dmin x 16            | 32 + 2 o, 33 + 2 o
//   | scales    12 bytes     | 4-15      | scales[0] x 16       | 64 + o
//   |                        |           | ... scales[11] x 16  | 64 + 16 j + o
//   | qs[0-31]   values 0-63 | 16-47     | run 0: values 0-31   | 256 + 64 u + 4 o + j
//   | qs[32-63]  .. 64-127   | 48-79     | run 1: values 32-63  | 512 + 64 u + 4 o + j
//   | ...                    | -143      | ... run 7            | 2048 + 64 u + 4 o + j, to 2303
//   +------------------------+           +----------------------+
//
// Byte 64 u + 4 o + j of run r (u, j = 0 ... 3) holds the values i = 4 u + j (low nibble) and
// i + 16 (high nibble) of the run. The file has them in qs[32 (r / 2) + i] and 16 bytes further, in
// the low nibbles for even r, in the high ones for odd r. So a row of 64 bytes, masked, is values
// 4 u ... 4 u + 3 of 16 outputs: a vector that is multiplied with the same 4 values of x.
//
// Everything here is done for QN_LANES outputs at a time, from output o on. In a header their
// halves begin at 2 o, their bytes at o; in a row of a plane, at 4 o. Functions take a source that
// the compiler knows, so that nothing of the tests on it remains.
#ifndef QN_BACKENDS_CPU_KERNELS_PACKED_TYPES_H
#define QN_BACKENDS_CPU_KERNELS_PACKED_TYPES_H

#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/level.h"
#include "backends/cpu/kernels/tile_block.h"
#include "quant/blocks.h"

enum { RUNS = QN_BLOCK / 32, RUN_ROWS = 8 }; // a run: 8 rows of 4 values of 16 outputs

// Planes of a run: codes of `low` bits, and of `high` bits above them. Levels are looked up.
typedef enum levels_kind { NO_LEVELS, IQ4_LEVELS, MXFP4_LEVELS } levels_kind;
typedef enum scales_kind {
    HALF_SCALE,  // one f16 (and one offset) per run
    POWER_SCALE, // MXFP4
    SIX_BITS,    // Q4_K, Q5_K
    SIGNED_BYTES,
    BYTE_PAIRS, // Q2_K
    Q3_SCALES,
    IQ4_SCALES
} scales_kind;

typedef struct source {
    int header, run_header; // bytes before the runs, and before the planes of each
    int low, high;          // bits
    int zero;               // codes are weights plus this
    int group;              // values that share a scale
    bool has_shift;
    levels_kind levels;
    scales_kind scales;
} source;

// TYPE(name, ...): types with integer scales in blocks of 256, then those with a float scale per
// 32.
#define QN_SCALED_TYPES(TYPE)                                                                      \
    TYPE(Q2_K, {320, 0, 2, 0, 0, 16, true, NO_LEVELS, BYTE_PAIRS})                                 \
    TYPE(Q3_K, {224, 0, 2, 1, 4, 16, false, NO_LEVELS, Q3_SCALES})                                 \
    TYPE(Q4_K, {256, 0, 4, 0, 0, 32, true, NO_LEVELS, SIX_BITS})                                   \
    TYPE(Q5_K, {256, 0, 4, 1, 0, 32, true, NO_LEVELS, SIX_BITS})                                   \
    TYPE(Q6_K, {288, 0, 4, 2, 32, 16, false, NO_LEVELS, SIGNED_BYTES})                             \
    TYPE(IQ4_XS, {128, 0, 4, 0, QN_BYTE_ZERO, 32, false, IQ4_LEVELS, IQ4_SCALES})
#define QN_SIMPLE_TYPES(TYPE)                                                                      \
    TYPE(Q4_0, {0, 32, 4, 0, 8, 32, false, NO_LEVELS, HALF_SCALE})                                 \
    TYPE(Q4_1, {0, 64, 4, 0, 0, 32, true, NO_LEVELS, HALF_SCALE})                                  \
    TYPE(Q5_0, {0, 32, 4, 1, 16, 32, false, NO_LEVELS, HALF_SCALE})                                \
    TYPE(Q5_1, {0, 64, 4, 1, 0, 32, true, NO_LEVELS, HALF_SCALE})                                  \
    TYPE(Q8_0, {0, 32, 8, 0, QN_BYTE_ZERO, 32, false, NO_LEVELS, HALF_SCALE})                      \
    TYPE(IQ4_NL, {0, 32, 4, 0, QN_BYTE_ZERO, 32, false, IQ4_LEVELS, HALF_SCALE})                   \
    TYPE(MXFP4, {0, 16, 4, 0, QN_BYTE_ZERO, 32, false, MXFP4_LEVELS, POWER_SCALE})

#define QN_SOURCE(name, ...) static const source source_##name = __VA_ARGS__;
QN_SCALED_TYPES(QN_SOURCE)
QN_SIMPLE_TYPES(QN_SOURCE)
#undef QN_SOURCE

// The source of a type; NULL for floats.
#define find_source QN_FN(find_source)
const source *find_source(qn_type type);

QN_INLINE bool is_scaled(const source *s) { return s->header > 0; }

// Where run r begins.
QN_INLINE const uint8_t *run_at(const uint8_t *from, int r, const source *s) {
    return from + s->header + r * (s->run_header + 64 * (s->low + s->high));
}

// --- codes: 4 values of QN_LANES outputs, a byte each ---

#define LEVEL(x) (uint8_t)((x) + QN_BYTE_ZERO)
static const uint8_t iq4_levels[16] = {LEVEL(-127), LEVEL(-104), LEVEL(-83), LEVEL(-65),
                                       LEVEL(-49),  LEVEL(-35),  LEVEL(-22), LEVEL(-10),
                                       LEVEL(1),    LEVEL(13),   LEVEL(25),  LEVEL(38),
                                       LEVEL(53),   LEVEL(69),   LEVEL(89),  LEVEL(113)};
static const uint8_t mxfp4_levels[16] = {
    LEVEL(0), LEVEL(1),  LEVEL(2),  LEVEL(3),  LEVEL(4),  LEVEL(6),  LEVEL(8),  LEVEL(12),
    LEVEL(0), LEVEL(-1), LEVEL(-2), LEVEL(-3), LEVEL(-4), LEVEL(-6), LEVEL(-8), LEVEL(-12)};
#undef LEVEL

QN_INLINE u16v code_row(const uint8_t *from, int i, const source *s) {
    u16v q;
    if (s->low == 8)
        return load_u16(from + 64 * i) ^ (uint16_t)(QN_BYTE_ZERO * 0x0101); // signed bytes
    else if (s->low == 4)
        q = (i < 4 ? load_u16(from + 64 * i) : load_u16(from + 64 * (i - 4)) >> 4) & 0x0f0f;
    else
        q = load_u16(from + i / 4 * 64) >> i % 4 * 2 & 0x0303;
    const uint8_t *more = from + 64 * s->low;
    if (s->high == 2) {
        const int at = i % 4 * 2;
        const u16v bits = load_u16(more + i / 4 * 64);
        q |= (at < 4 ? bits << (4 - at) : bits >> (at - 4)) & 0x3030;
    }
    if (s->high == 1) {
        const u16v bits = load_u16(more);
        q |= (i < s->low ? bits << (s->low - i) : bits >> (i - s->low)) &
             (uint16_t)(0x0101 << s->low);
    }
    if (s->levels == IQ4_LEVELS) return look_up(iq4_levels, q);
    if (s->levels == MXFP4_LEVELS) return look_up(mxfp4_levels, q);
    return q;
}

// The weights of even and of odd bytes, less `zero`.
QN_INLINE i16v even_bytes(u16v q, int zero) {
    return (QN_BYTE_ZERO ? (i16v)(q & 0xff) : (i16v)(q << 8) >> 8) - (int16_t)zero;
}
QN_INLINE i16v odd_bytes(u16v q, int zero) {
    return (QN_BYTE_ZERO ? (i16v)(q >> 8) : (i16v)q >> 8) - (int16_t)zero;
}

// Codes less `zero`, as signed bytes. Codes below 128: none borrows from its neighbour.
QN_INLINE u16v take_from_bytes(u16v q, int zero) {
    if (zero == 128) return q ^ 0x8080;
    return ((q | 0x8080) - (uint16_t)(zero * 0x0101)) ^ 0x8080;
}

// --- scales ---

// Q4_K and Q5_K: see qn_scale_min_get.
QN_INLINE void six_bits(i32v *scales, i32v *mins, const uint8_t *from, int o) {
    for (int j = 0; j < 4; j++) {
        const i32v a = widen_u8(from + 16 * j + o), b = widen_u8(from + 16 * (j + 4) + o);
        const i32v c = widen_u8(from + 16 * (j + 8) + o);
        scales[j] = a & 63;
        mins[j] = b & 63;
        scales[j + 4] = (c & 15) | a >> 6 << 4;
        mins[j + 4] = c >> 4 | b >> 6 << 4;
    }
}

// The integer scales (and offsets) of the groups of a block.
QN_INLINE void read_scales(i32v *scales, i32v *mins, const uint8_t *from, int o, const source *s) {
    if (s->scales == SIX_BITS) {
        six_bits(scales, mins, from + 64, o);
    } else if (s->scales == SIGNED_BYTES) {
        for (int g = 0; g < 16; g++) scales[g] = widen_i8(from + 32 + 16 * g + o);
    } else if (s->scales == BYTE_PAIRS) {
        for (int g = 0; g < 16; g++) {
            const i32v both = widen_u8(from + 64 + 16 * g + o);
            scales[g] = both & 15;
            mins[g] = both >> 4;
        }
    } else if (s->scales == Q3_SCALES) {
        for (int g = 0; g < 16; g++) {
            const i32v low = widen_u8(from + 32 + 16 * (g % 8) + o);
            const i32v high = widen_u8(from + 32 + 16 * (8 + g % 4) + o);
            scales[g] = ((low >> g / 8 * 4 & 15) | (high >> g / 4 * 2 & 3) << 4) - 32;
        }
    } else {
        const i32v high = widen_u16(from + 32 + 2 * o);
        for (int g = 0; g < 8; g++) {
            const i32v low = widen_u8(from + 64 + g / 2 * 16 + o) >> g % 2 * 4 & 15;
            scales[g] = (low | (high >> 2 * g & 3) << 4) - 32;
        }
    }
}

// The float scale of a block of a scaled type, or of a run of a simple one. Levels of MXFP4 are
// doubled, so the scale is 2^(e - 128): subnormal for e < 2.
QN_INLINE f32v float_scale(const uint8_t *from, int o, const source *s) {
    if (s->scales != POWER_SCALE) return widen_half(from + 2 * o);
    const i32v e = widen_u8(from + o);
    const i32v tiny = e < 2, small = (0x00200000 & (e == 0)) | (0x00400000 & (e == 1));
    return (f32v)((small & tiny) | ((e - 1) << 23 & ~tiny));
}

QN_INLINE f32v float_shift(const uint8_t *from, int o) { return widen_half(from + 32 + 2 * o); }

#endif
