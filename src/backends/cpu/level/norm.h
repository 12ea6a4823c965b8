// Sums along a row, in the one order that every level has: 16 lanes, lane l sums elements l, l + 16,
// ... ascending; then lanes l and l + 8 are added, l and l + 4, l and l + 2, and the last two.
#ifndef QN_BACKENDS_CPU_LEVEL_NORM_H
#define QN_BACKENDS_CPU_LEVEL_NORM_H

#include "backends/cpu/level/lanes16.h"
#include "backends/cpu/level/level.h"

enum { LANES = 16 };

// The lanes of a row, and of its end that fills no 16 lanes: d = x - mean, or 0 behind the end, which
// changes no sum.
typedef struct lanes16 {
    f32v v[QN_PARTS];
} lanes16;

QN_INLINE lanes16 load_lanes(const float *x, float mean) {
    lanes16 d;
    for (int i = 0; i < QN_PARTS; i++) d.v[i] = load_f32(x + i * QN_LANES) - all_f32(mean);
    return d;
}

static inline lanes16 load_last(const float *x, int64_t n, float mean) {
    float d[LANES] = {0};
    for (int64_t i = 0; i < n; i++) d[i] = x[i] - mean;
    return load_lanes(d, 0);
}

static inline float sum_row(const float *x, int64_t n) {
    lanes16 sum = {{{0}}};
    int64_t at = 0;
    for (; at + LANES <= n; at += LANES) {
        const lanes16 d = load_lanes(x + at, 0);
        for (int i = 0; i < QN_PARTS; i++) sum.v[i] += d.v[i];
    }
    if (at < n) {
        const lanes16 d = load_last(x + at, n - at, 0);
        for (int i = 0; i < QN_PARTS; i++) sum.v[i] += d.v[i];
    }
    return sum_16(sum.v);
}

// Sum of (x - mean)^2.
static inline float sum_squares(const float *x, int64_t n, float mean) {
    lanes16 sum = {{{0}}};
    int64_t at = 0;
    for (; at + LANES <= n; at += LANES) {
        const lanes16 d = load_lanes(x + at, mean);
        for (int i = 0; i < QN_PARTS; i++) sum.v[i] = fma_f32(d.v[i], d.v[i], sum.v[i]);
    }
    if (at < n) {
        const lanes16 d = load_last(x + at, n - at, mean);
        for (int i = 0; i < QN_PARTS; i++) sum.v[i] = fma_f32(d.v[i], d.v[i], sum.v[i]);
    }
    return sum_16(sum.v);
}

// x may be out.
static inline void rms_norm_row(float *out, const float *x, const float *w, int64_t n, float eps) {
    const float mean = sum_squares(x, n, 0) / (float)n;
    const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * inverse * w[i];
}

#endif
