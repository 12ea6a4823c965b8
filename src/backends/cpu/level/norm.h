// Sums along a row, in the one order that every level has: 16 lanes, lane l sums elements l, l + 16,
// ... ascending; then lanes l and l + 8 are added, l and l + 4, l and l + 2, and the last two.
#ifndef QN_BACKENDS_CPU_LEVEL_NORM_H
#define QN_BACKENDS_CPU_LEVEL_NORM_H

#include "backends/cpu/level/level.h"

enum { LANES = 16 };

static inline float sum_lanes(float *lane) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

static inline float sum_row(const float *x, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += x[i + l];
    return sum_lanes(lane);
}

// Sum of (x - mean)^2.
static inline float sum_squares(const float *x, int64_t n, float mean) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            const float d = x[i + l] - mean;
            lane[l] = __builtin_fmaf(d, d, lane[l]);
        }
    }
    for (int l = 0; i + l < n; l++) {
        const float d = x[i + l] - mean;
        lane[l] = __builtin_fmaf(d, d, lane[l]);
    }
    return sum_lanes(lane);
}

// x may be out.
static inline void rms_norm_row(float *out, const float *x, const float *w, int64_t n, float eps) {
    const float mean = sum_squares(x, n, 0) / (float)n;
    const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * inverse * w[i];
}

#endif
