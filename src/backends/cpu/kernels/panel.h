// Rounding rows of floats into panels (cpu.h).
//
//   s = max |x| / max, by division         q = x / s rounded to nearest even, at most `max`
//
// over 256 values with max = 2047 (i12_256) or 32767 (i16_256), or over 32 with max = 127 (i8_32).
// s = 0 makes q = 0.
// Only where s is too small for a normal float can x / s exceed `max`.
#ifndef QN_BACKENDS_CPU_KERNELS_PANEL_H
#define QN_BACKENDS_CPU_KERNELS_PANEL_H

#include "backends/cpu/kernels/lanes16.h"
#include "backends/cpu/kernels/level.h"

#include <string.h>

// n is a multiple of 16. Bits of |x| order as |x| does, NaN above everything.
QN_INLINE float panel_scale(const float *x, const int n, float max) {
    i32v top[QN_PARTS] = {{0}};
    for (int i = 0; i < n; i += QN_LANES) {
        const i32v bits = (i32v)load_f32(x + i) & INT32_MAX;
        top[i / QN_LANES % QN_PARTS] = max_i32(bits, top[i / QN_LANES % QN_PARTS]);
    }
    const int32_t largest = max_16_i32(top);
    if (largest >= 0x7f800000) return qn_float_from_bits(0x7fc00000);
    return qn_float_from_bits((uint32_t)largest) / max;
}

// 16 values as integers. `step` is a scale, neither 0 nor NaN. Adding the magic number rounds to a
// whole number, ties to even, and leaves it in the lower bits.
QN_INLINE void panel_round(i32v *q, const float *x, float step, float max) {
    const f32v magic = all_f32(0x1.8p23f), top = all_f32(max), by = all_f32(step);
    for (int i = 0; i < QN_PARTS; i++) {
        const f32v y = load_f32(x + i * QN_LANES) / by;
        const f32v inside = max_f32(-max_f32(-y, -top), -top); // no NaN comes here
        q[i] = (i32v)(inside + magic) - 0x4b400000;
    }
}

static inline void panel_i12_block(qn_i12_block *to, const float *x) {
    i32v q[QN_PARTS];
    memset(to->fill, 0, sizeof to->fill);
    to->scale = panel_scale(x, QN_BLOCK, QN_I12_MAX);
    if (!(to->scale > 0)) {
        memset(to->q, 0, sizeof to->q);
        memset(to->sums, 0, sizeof to->sums);
        return;
    }
    const float scale = to->scale;
    for (int g = 0; g < QN_BLOCK / QN_SUM; g++) {
        panel_round(q, x + 16 * g, scale, QN_I12_MAX);
        store_crossed(to->q + 16 * g, q); // qn_i12_index
        to->sums[g] = (int16_t)sum_16_i32(q);
    }
}

static inline void panel_i16_block(qn_i16_block *to, const float *x) {
    i32v q[QN_PARTS];
    const float scale = panel_scale(x, QN_BLOCK, QN_I16_MAX);
    if (!(scale > 0)) {
        memset(to, 0, sizeof *to);
        to->scale = scale;
        return;
    }
    memset(to->fill, 0, sizeof to->fill);
    to->scale = scale;
    for (int g = 0; g < QN_BLOCK / QN_SUM; g++) {
        panel_round(q, x + 16 * g, scale, QN_I16_MAX);
        store_crossed(to->q + 16 * g, q); // qn_i12_index
        to->sums[g] = sum_16_i32(q);
    }
    for (int j = 0; j < QN_BLOCK / 32; j++)
        to->run_sums[j] = (float)(to->sums[2 * j] + to->sums[2 * j + 1]);
}

static inline void panel_i8_block(qn_i8_block *to, const float *x) {
    i32v q[QN_PARTS];
    memset(to->fill, 0, sizeof to->fill);
    for (int j = 0; j < QN_BLOCK / 32; j++) {
        const float scale = panel_scale(x + 32 * j, 32, QN_I8_MAX);
        to->scales[j] = scale;
        for (int g = 2 * j; g < 2 * j + 2; g++) {
            if (scale > 0)
                panel_round(q, x + 16 * g, scale, QN_I8_MAX);
            else
                memset(q, 0, sizeof q);
            store_bytes(to->q + 16 * g, q);
            to->sums[g] = (int16_t)sum_16_i32(q);
        }
        to->offsets[j] = scale * (float)(to->sums[2 * j] + to->sums[2 * j + 1]);
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
        float room[QN_BLOCK];
        const float *x = from + at;
        if (n < QN_BLOCK) {
            memset(room, 0, sizeof room);
            x = memcpy(room, x, (size_t)n * sizeof *x);
        }
        if (form == QN_WORD_i12_256)
            panel_i12_block((qn_i12_block *)to + at / QN_BLOCK, x);
        else if (form == QN_WORD_i16_256)
            panel_i16_block((qn_i16_block *)to + at / QN_BLOCK, x);
        else
            panel_i8_block((qn_i8_block *)to + at / QN_BLOCK, x);
    }
}

#endif
