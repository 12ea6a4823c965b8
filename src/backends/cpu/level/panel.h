// Rounding rows of floats into panels (cpu.h).
//
//   s = max |x| / most, by division        q = x / s rounded to nearest even, at most `most`
//
// over 256 values with most = 2047 (i12_256) or over 32 with most = 127 (i8_32). s = 0 makes q = 0.
// Only where s is too small for a normal float can x / s exceed `most`.
#ifndef QN_BACKENDS_CPU_LEVEL_PANEL_H
#define QN_BACKENDS_CPU_LEVEL_PANEL_H

#include "backends/cpu/level/level.h"
#include "quant/half.h"

#include <string.h>

// n is a multiple of 16. Bits of |x| order as |x| does, NaN above everything.
static inline float panel_scale(const float *x, int n, float most) {
    int32_t top[16] = {0};
    for (int i = 0; i < n; i += 16) {
        int32_t bits[16];
        memcpy(bits, x + i, sizeof bits);
        for (int l = 0; l < 16; l++) {
            const int32_t b = bits[l] & INT32_MAX;
            top[l] = b > top[l] ? b : top[l];
        }
    }
    int32_t largest = 0;
    for (int l = 0; l < 16; l++) largest = top[l] > largest ? top[l] : largest;
    if (largest >= 0x7f800000) return qn_float_from_bits(0x7fc00000);
    return qn_float_from_bits((uint32_t)largest) / most;
}

// 16 values: q, and their sum. `step` is a scale, neither 0 nor NaN.
static inline int16_t panel_round16(int16_t *q, const float *x, float step, float most) {
    const float magic = 0x1.8p23f; // adding it rounds to a whole number, ties to even
    int32_t sum = 0;
    for (int l = 0; l < 16; l++) {
        float y = x[l] / step;
        y = y > most ? most : y;
        y = y < -most ? -most : y;
        const int32_t whole = (int32_t)((y + magic) - magic);
        q[l] = (int16_t)whole;
        sum += whole;
    }
    return (int16_t)sum;
}

static inline void panel_i12_block(qn_i12_block *to, const float *x) {
    const float most = QN_I12_MOST;
    memset(to, 0, sizeof *to);
    to->scale = panel_scale(x, QN_BLOCK, most);
    if (!(to->scale > 0)) return;
    for (int g = 0; g < QN_BLOCK / QN_SUM; g++) {
        int16_t q[16];
        to->sums[g] = panel_round16(q, x + 16 * g, to->scale, most);
        for (int l = 0; l < 16; l++) to->q[16 * g + qn_i12_index(l)] = q[l];
    }
}

static inline void panel_i8_block(qn_i8_block *to, const float *x) {
    const float most = QN_I8_MOST;
    memset(to, 0, sizeof *to);
    for (int j = 0; j < QN_BLOCK / 32; j++) {
        to->scales[j] = panel_scale(x + 32 * j, 32, most);
        if (!(to->scales[j] > 0)) continue;
        for (int g = 2 * j; g < 2 * j + 2; g++) {
            int16_t q[16];
            to->sums[g] = panel_round16(q, x + 16 * g, to->scales[j], most);
            for (int l = 0; l < 16; l++) to->q[16 * g + l] = (int8_t)q[l];
        }
    }
}

// One part of a row: `width` floats into panels of `form`, or as they are for QN_WORD_f32.
static inline void quantize_row(qn_word form, void *to, const float *from, int64_t width) {
    if (form == QN_WORD_f32) {
        memcpy(to, from, (size_t)width * sizeof *from);
        return;
    }
    for (int64_t at = 0; at < width; at += QN_BLOCK) {
        const int64_t n = width - at < QN_BLOCK ? width - at : QN_BLOCK;
        float x[QN_BLOCK] = {0};
        memcpy(x, from + at, (size_t)n * sizeof *x);
        if (form == QN_WORD_i12_256)
            panel_i12_block((qn_i12_block *)to + at / QN_BLOCK, x);
        else
            panel_i8_block((qn_i8_block *)to + at / QN_BLOCK, x);
    }
}

#endif
