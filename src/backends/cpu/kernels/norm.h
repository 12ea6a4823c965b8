// Sums along a row, in the one order that every level has: of n lanes, lane l sums elements l, l +
// n, l + 2 n ... ascending; then lanes l and l + n / 2 are added, l and l + n / 4, ..., and the
// last two. Norms have 64 lanes, so that a device with many threads gets short chains; sums of
// probabilities (softmax, routing) have 16.
#ifndef QN_BACKENDS_CPU_KERNELS_NORM_H
#define QN_BACKENDS_CPU_KERNELS_NORM_H

#include "backends/cpu/kernels/lanes16.h"
#include "backends/cpu/kernels/level.h"

enum { MAX_LANES = 64 };

// n_lanes elements join the sums of n_lanes lanes: d = x - mean, or its squares.
QN_INLINE void join_lanes(f32v *sum, const float *x, float mean, int n_lanes, bool is_squared) {
    for (int i = 0; i < n_lanes / QN_LANES; i++) {
        const f32v d = load_f32(x + i * QN_LANES) - all_f32(mean);
        sum[i] = is_squared ? fma_f32(d, d, sum[i]) : sum[i] + d;
    }
}

// n_lanes (16 or 64) and is_squared are constants; with the loops unrolled the sums stay in
// registers. A last run that does not fill the lanes gets d = 0 after its end, which changes no sum
// (or NaN where the mean is not finite: then the whole row is NaN).
QN_INLINE float sum_in_lanes(const float *x, int64_t n, float mean, int n_lanes, bool is_squared) {
    f32v sum[MAX_LANES / QN_LANES];
    float last[MAX_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < n_lanes / QN_LANES; i++) sum[i] = all_f32(0);
    for (int64_t at = 0; at < n; at += n_lanes) {
        const float *from = x + at;
        if (__builtin_expect(n - at < n_lanes, 0)) {
            for (int i = 0; i < n_lanes; i++) last[i] = at + i < n ? from[i] : mean;
            from = last;
        }
        join_lanes(sum, from, mean, n_lanes, is_squared);
    }
#pragma GCC unroll 2
    for (int half = n_lanes / 2; half >= 16; half /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < half / QN_LANES; i++) sum[i] += sum[i + half / QN_LANES];
    }
    return sum_16(sum);
}

static inline float sum_row_16(const float *x, int64_t n) {
    return sum_in_lanes(x, n, 0, 16, false);
}

static inline float sum_row_64(const float *x, int64_t n) {
    return sum_in_lanes(x, n, 0, 64, false);
}

static inline float sum_squares_64(const float *x, int64_t n, float mean) {
    return sum_in_lanes(x, n, mean, 64, true);
}

// x may be out.
static inline void rms_norm_row(float *out, const float *x, const float *w, int64_t n, float eps) {
    const float mean = sum_squares_64(x, n, 0) / (float)n;
    const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * inverse * w[i];
}

#endif
