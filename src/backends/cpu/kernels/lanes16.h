// 16 numbers side by side, as one vector or several: what sums along a row are made of;
// and a vector that stays in its register.
#ifndef QN_BACKENDS_CPU_KERNELS_LANES16_H
#define QN_BACKENDS_CPU_KERNELS_LANES16_H

#include "backends/cpu/kernels/lanes.h"

// In a register from here on: compilers like to read memory again for each use.
QN_INLINE f32v held(f32v x) {
#if defined(__AVX2__)
    __asm__("" : "+v"(x));
#elif defined(QN_NEON)
    __asm__("" : "+w"(x));
#endif
    return x;
}

enum { QN_PARTS = 16 / QN_LANES };

// Per level: a > b ? a : b in each lane; the sum of 16 lanes, adding l and l + 8, then l and l + 4,
// l and l + 2, and the last two; their maximum.
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
#if defined(QN_NEON) // whose own maximum has other rules for NaN
QN_INLINE f32v max_f32(f32v a, f32v b) {
    const float32x4_t x = (float32x4_t)a, y = (float32x4_t)b;
    return (f32v)vbslq_f32(vcgtq_f32(x, y), x, y);
}
#else
QN_INLINE f32v max_f32(f32v a, f32v b) {
    for (int l = 0; l < QN_LANES; l++) b[l] = a[l] > b[l] ? a[l] : b[l];
    return b;
}
#endif

QN_INLINE float sum_16(const f32v *v) {
    const f32v x = (v[0] + v[2]) + (v[1] + v[3]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

QN_INLINE float max_16(const f32v *v) {
    const f32v x = max_f32(max_f32(v[0], v[2]), max_f32(v[1], v[3]));
    float max = x[0];
    for (int l = 1; l < QN_LANES; l++) max = x[l] > max ? x[l] : max;
    return max;
}
#endif

// --- integers ---

// Per level: the larger one in each lane; the sum and the maximum of 16 lanes; 16 lanes as bytes,
// and as 16 bits with the second and third of each four changed over; a float as a half, ties to
// even.
#if defined(__AVX512VNNI__)
QN_INLINE i32v max_i32(i32v a, i32v b) { return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b); }
QN_INLINE int32_t sum_16_i32(const i32v *v) { return _mm512_reduce_add_epi32((__m512i)v[0]); }
QN_INLINE int32_t max_16_i32(const i32v *v) { return _mm512_reduce_max_epi32((__m512i)v[0]); }

QN_INLINE void store_bytes(int8_t *to, const i32v *v) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)v[0]));
}

QN_INLINE void store_crossed(int16_t *to, const i32v *v) {
    const __m256i x = _mm512_cvtepi32_epi16((__m512i)v[0]);
    _mm256_storeu_si256((__m256i *)to,
                        _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xd8), 0xd8));
}

QN_INLINE void store_half(uint8_t *to, f32v x) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__AVX2__)
QN_INLINE i32v max_i32(i32v a, i32v b) { return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b); }

QN_INLINE int32_t sum_16_i32(const i32v *v) {
    const __m256i y = (__m256i)(v[0] + v[1]);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

QN_INLINE int32_t max_16_i32(const i32v *v) {
    const __m256i y = (__m256i)max_i32(v[0], v[1]);
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

// 16 lanes that fit 16 bits.
QN_INLINE __m256i join_i16(const i32v *v) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), 0xd8);
}

QN_INLINE void store_bytes(int8_t *to, const i32v *v) {
    const __m256i x = join_i16(v);
    _mm_storeu_si128((__m128i *)to,
                     _mm_packs_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

QN_INLINE void store_crossed(int16_t *to, const i32v *v) {
    const __m256i x = _mm256_shufflelo_epi16(join_i16(v), 0xd8);
    _mm256_storeu_si256((__m256i *)to, _mm256_shufflehi_epi16(x, 0xd8));
}

QN_INLINE void store_half(uint8_t *to, f32v x) {
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(QN_NEON)
QN_INLINE i32v max_i32(i32v a, i32v b) { return (i32v)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }

QN_INLINE int32_t sum_16_i32(const i32v *v) {
    return vaddvq_s32((int32x4_t)(v[0] + v[1] + v[2] + v[3]));
}

QN_INLINE int32_t max_16_i32(const i32v *v) {
    return vmaxvq_s32((int32x4_t)max_i32(max_i32(v[0], v[1]), max_i32(v[2], v[3])));
}

// 8 lanes that fit 16 bits.
QN_INLINE int16x8_t join_i16(const i32v *v) { return vuzp1q_s16((int16x8_t)v[0], (int16x8_t)v[1]); }

QN_INLINE void store_bytes(int8_t *to, const i32v *v) {
    vst1q_s8(to, vuzp1q_s8((int8x16_t)join_i16(v), (int8x16_t)join_i16(v + 2)));
}

QN_INLINE void store_crossed(int16_t *to, const i32v *v) {
    static const uint8_t order[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    for (int i = 0; i < 2; i++) {
        const int8x16_t x = vqtbl1q_s8((int8x16_t)join_i16(v + 2 * i), vld1q_u8(order));
        vst1q_s16(to + 8 * i, (int16x8_t)x);
    }
}

QN_INLINE void store_half(uint8_t *to, f32v x) {
    vst1_u8(to, vreinterpret_u8_f16(vcvt_f16_f32((float32x4_t)x)));
}
#else
QN_INLINE i32v max_i32(i32v a, i32v b) {
    for (int l = 0; l < QN_LANES; l++) b[l] = a[l] > b[l] ? a[l] : b[l];
    return b;
}

QN_INLINE int32_t sum_16_i32(const i32v *v) {
    const i32v x = v[0] + v[1] + v[2] + v[3];
    return x[0] + x[1] + x[2] + x[3];
}

QN_INLINE int32_t max_16_i32(const i32v *v) {
    const i32v x = max_i32(max_i32(v[0], v[1]), max_i32(v[2], v[3]));
    int32_t max = x[0];
    for (int l = 1; l < QN_LANES; l++) max = x[l] > max ? x[l] : max;
    return max;
}

QN_INLINE void store_bytes(int8_t *to, const i32v *v) {
    for (int l = 0; l < 16; l++) to[l] = (int8_t)v[l / QN_LANES][l % QN_LANES];
}

QN_INLINE void store_crossed(int16_t *to, const i32v *v) {
    for (int i = 0; i < QN_PARTS; i++) {
        const int32_t order[] = {v[i][0], v[i][2], v[i][1], v[i][3]};
        for (int l = 0; l < QN_LANES; l++) to[i * QN_LANES + l] = (int16_t)order[l];
    }
}

QN_INLINE void store_half(uint8_t *to, f32v x) {
    for (int l = 0; l < QN_LANES; l++) qn_store_u16(to + 2 * l, qn_half_encode(x[l]));
}
#endif

#endif
