// Weights times integer scales as digits of a matrix unit.
//
// A product of 12 bits with up to 13 is three of bytes. With x = 64 h + l and w + base = 64 u + v,
//
//   x (w + base) = 4096 h u + 64 ((h + l) (u + v) - h u - l v) + l v
//
// h, l and h + l are signed bytes (-32 ... 31, 0 ... 63, -32 ... 94); u, v and u + v unsigned ones
// (0 ... 128, 0 ... 63, 0 ... 191). Each of the three sums over 256 values stays far below 32 bits.
// What the base adds is base * (sum of x), which is known. Where w + base fits a byte, two products
// do: 64 h (w + base) + l (w + base).
#ifndef QN_BACKENDS_CPU_KERNELS_AMX_DIGITS_H
#define QN_BACKENDS_CPU_KERNELS_AMX_DIGITS_H

#include "backends/cpu/kernels/packed_types.h"

enum { DIGIT_BITS = 6 };

// Q2_K and Q3_K: -124 ... 128 (see put_numbers in unpack.c for these numbers).
QN_INLINE bool is_one_digit(const source *s) { return s->low == 2; }

// Added to the weights, so that none is below 0: 31 * 4 for Q3_K, 4096 for Q6_K and IQ4_XS.
QN_INLINE int32_t digit_base(const source *s) {
    return is_one_digit(s) ? 31 * s->zero : s->zero ? 4096 : 0;
}

#if defined(__AMX_INT8__)
// Run r as digits. About 11 operations for 64 weights, 700 for a block of a tile: as many cycles on
// two units as products with 32 rows take.
QN_INLINE void put_digits(tile_block *to, const uint8_t *run, int r, const i32v *scales,
                          const source *s) {
    const int n_groups = 32 / s->group, per_group = RUN_ROWS / n_groups;
    for (int g = 0; g < n_groups; g++) {
        const i32v scale = scales[n_groups * r + g];
        const u16v by = (u16v)twice(scale & 0xff);
        const u16v base = (u16v)twice(digit_base(s) - s->zero * scale);
        for (int i = per_group * g; i < per_group * (g + 1); i++) {
            const __m512i q = (__m512i)code_row(run + s->run_header, i, s);
            const u16v even = (u16v)_mm512_maddubs_epi16(q, (__m512i)by) + base;
            const u16v odd = (u16v)_mm512_maddubs_epi16(q, (__m512i)(by << 8)) + base;
            const int row = RUN_ROWS * r + i;
            if (is_one_digit(s)) {
                store_u16(to->digits[0][row], even | odd << 8);
                continue;
            }
            const u16v high = even >> DIGIT_BITS | (odd << (8 - DIGIT_BITS) & 0xff00);
            const u16v low = (even & 0x003f) | (odd << 8 & 0x3f00);
            store_u16(to->digits[0][row], high);
            store_u16(to->digits[1][row], low);
            store_u16(to->digits[2][row], high + low); // no byte overflows
        }
    }
}
#endif

#endif
