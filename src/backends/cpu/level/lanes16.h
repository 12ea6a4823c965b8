// 16 numbers side by side, as one vector or several: what sums along a row are made of;
// and a vector that stays in its register.
#ifndef QN_BACKENDS_CPU_LEVEL_LANES16_H
#define QN_BACKENDS_CPU_LEVEL_LANES16_H

#include "backends/cpu/level/lanes.h"

// In a register from here on: compilers like to read memory again for each use.
QN_INLINE f32v held(f32v x) {
#if defined(__AVX2__)
    __asm__("" : "+v"(x));
#endif
    return x;
}

enum { QN_PARTS = 16 / QN_LANES };

// Per level: a > b ? a : b in each lane; the sum of 16 lanes, adding l and l + 8, then l and l + 4, l
// and l + 2, and the last two; their maximum.
#if defined(__AVX2__)
QN_INLINE float fold_sum(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

QN_INLINE float fold_max(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
#endif
#if defined(__AVX512VNNI__)
QN_INLINE f32v max_f32(f32v a, f32v b) { return (f32v)_mm512_max_ps((__m512)a, (__m512)b); }

QN_INLINE float sum_16(const f32v *v) {
    const __m512 x = (__m512)v[0];
    return fold_sum(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

QN_INLINE float max_16(const f32v *v) {
    const __m512 x = (__m512)v[0];
    return fold_max(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
#elif defined(__AVX2__)
QN_INLINE f32v max_f32(f32v a, f32v b) { return (f32v)_mm256_max_ps((__m256)a, (__m256)b); }
QN_INLINE float sum_16(const f32v *v) { return fold_sum((__m256)(v[0] + v[1])); }
QN_INLINE float max_16(const f32v *v) { return fold_max((__m256)max_f32(v[0], v[1])); }
#else
QN_INLINE f32v max_f32(f32v a, f32v b) {
    for (int l = 0; l < QN_LANES; l++) b[l] = a[l] > b[l] ? a[l] : b[l];
    return b;
}

QN_INLINE float sum_16(const f32v *v) {
    const f32v x = (v[0] + v[2]) + (v[1] + v[3]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

QN_INLINE float max_16(const f32v *v) {
    const f32v x = max_f32(max_f32(v[0], v[2]), max_f32(v[1], v[3]));
    float most = x[0];
    for (int l = 1; l < QN_LANES; l++) most = x[l] > most ? x[l] : most;
    return most;
}
#endif

#endif
