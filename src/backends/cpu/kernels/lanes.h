// Lanes, one per output of a tile: vectors of the size that the level's registers have, and the few
// operations that the compilers have no word for. A tile of 16 outputs is QN_TILE / QN_LANES
// vectors wide. All levels give the same bits: integer operations are exact, and a fused
// multiply-add rounds once everywhere.
#ifndef QN_BACKENDS_CPU_KERNELS_LANES_H
#define QN_BACKENDS_CPU_KERNELS_LANES_H

#include "quant/half.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
enum { QN_LANES = 16 };
#elif defined(__AVX2__)
#include <immintrin.h>
enum { QN_LANES = 8 };
#elif defined(QN_NEON)
#include <arm_neon.h>
enum { QN_LANES = 4 };
#else
enum { QN_LANES = 4 };
#endif

// Levels whose registers hold the sums of many rows.
#if defined(__AVX2__) || defined(QN_NEON)
#define QN_HAS_VECTORS
#endif

// Codes of 8 bits are weights plus this: levels multiply unsigned bytes with signed ones, or signed
// ones with each other.
#if defined(QN_NEON)
enum { QN_BYTE_ZERO = 0 };
#else
enum { QN_BYTE_ZERO = 128 };
#endif

// Products of bytes are so much faster that integers of 12 bits are taken as two.
#if defined(__ARM_FEATURE_DOTPROD)
enum { QN_SPLITS_WORDS = 1 };
#else
enum { QN_SPLITS_WORDS = 0 };
#endif

// Many rows are multiplied by the matrix unit (amx_products.c).
#if defined(__AMX_INT8__)
enum { QN_HAS_TILES = 1 };
#else
enum { QN_HAS_TILES = 0 };
#endif

#define QN_INLINE static inline __attribute__((always_inline))

typedef float f32v __attribute__((vector_size(4 * QN_LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * QN_LANES)));
typedef int16_t i16v __attribute__((vector_size(4 * QN_LANES))); // lanes 2 o and 2 o + 1: output o
typedef uint16_t u16v __attribute__((vector_size(4 * QN_LANES)));

QN_INLINE f32v load_f32(const float *from) {
    f32v x;
    memcpy(&x, from, sizeof x);
    return x;
}

QN_INLINE void store_f32(float *to, f32v x) { memcpy(to, &x, sizeof x); }

QN_INLINE u16v load_u16(const void *from) {
    u16v x;
    memcpy(&x, from, sizeof x);
    return x;
}

QN_INLINE void store_u16(void *to, u16v x) { memcpy(to, &x, sizeof x); }

QN_INLINE i16v load_i16(const int16_t *from) {
    i16v x;
    memcpy(&x, from, sizeof x);
    return x;
}

QN_INLINE void store_i16(int16_t *to, i16v x) { memcpy(to, &x, sizeof x); }

QN_INLINE i32v load_i32v(const int32_t *from) {
    i32v x;
    memcpy(&x, from, sizeof x);
    return x;
}

QN_INLINE void store_i32(int32_t *to, i32v x) { memcpy(to, &x, sizeof x); }

QN_INLINE int32_t load_i32(const void *from) {
    int32_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

QN_INLINE f32v to_float(i32v x) { return __builtin_convertvector(x, f32v); }
QN_INLINE f32v all_f32(float x) { return x - (f32v){0}; }
QN_INLINE i32v all_i32(int32_t x) { return x - (i32v){0}; }
// a in lane 2 o, b in lane 2 o + 1; numbers fit 16 bits.
QN_INLINE i16v pair_up(i32v a, i32v b) { return (i16v)((a & 0xffff) | b << 16); }
QN_INLINE i16v twice(i32v x) { return pair_up(x, x); }

// Per level: a * b + c rounded once; sum + two products with the two numbers of 16 bits at `pair`
// (exact); sum + four products of codes with the signed bytes at `four` (exact; narrow: codes are
// at most 128); the same with those numbers in every lane, where several products share them;
// levels[index] for indices below 16 in each byte; bytes, 16 bits and halves made wider; one half in
// all lanes.
#if defined(__AVX512VNNI__)
QN_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
    return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

// Written out, as gcc moves the sums of many rows to the stack and back around its own functions.
typedef int32_t __attribute__((may_alias, aligned(1))) any_i32;

QN_INLINE i32v madd(i32v sum, i16v w, const void *pair) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const any_i32 *)pair));
    return sum;
}

QN_INLINE i32v dot4(i32v sum, u16v codes, const void *four, const bool is_narrow) {
    (void)is_narrow;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const any_i32 *)four));
    return sum;
}

// In a register of its own, as the same number in every load of the products would keep both load
// units busy.
QN_INLINE i32v spread(const void *four) {
    i32v x;
    __asm__("vpbroadcastd %1, %0" : "=v"(x) : "m"(*(const any_i32 *)four));
    return x;
}

QN_INLINE i32v madd_spread(i32v sum, i16v w, i32v pair) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(pair));
    return sum;
}

QN_INLINE i32v dot4_spread(i32v sum, u16v codes, i32v four, const bool is_narrow) {
    (void)is_narrow;
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(four));
    return sum;
}

QN_INLINE u16v look_up(const uint8_t *levels, u16v index) {
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)levels));
    return (u16v)_mm512_shuffle_epi8(table, (__m512i)index);
}

QN_INLINE i32v widen_u8(const uint8_t *from) {
    return (i32v)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
}

QN_INLINE i32v widen_i8(const uint8_t *from) {
    return (i32v)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
}

QN_INLINE i32v widen_u16(const uint8_t *from) {
    return (i32v)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}

QN_INLINE f32v widen_half(const uint8_t *from) {
    return (f32v)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

QN_INLINE f32v all_half(const uint8_t *from) {
    return (f32v)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)qn_load_u16(from)));
}
#elif defined(__AVX2__)
QN_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
    return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

#if defined(__AVXVNNI__)
QN_INLINE i32v madd_spread(i32v sum, i16v w, i32v pair) {
    return (i32v)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)pair);
}

QN_INLINE i32v dot4_spread(i32v sum, u16v codes, i32v four, const bool is_narrow) {
    (void)is_narrow;
    return (i32v)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)four);
}
#else
QN_INLINE i32v madd_spread(i32v sum, i16v w, i32v pair) {
    return sum + (i32v)_mm256_madd_epi16((__m256i)w, (__m256i)pair);
}

QN_INLINE i32v dot4_spread(i32v sum, u16v codes, i32v four, const bool is_narrow) {
    const __m256i x = (__m256i)four;
    if (is_narrow) // 2 * 128 * 127 fits 16 bits
        return sum + (i32v)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)codes, x),
                                             _mm256_set1_epi16(1));
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
    return sum + (i32v)_mm256_madd_epi16((__m256i)(codes & 0xff), even) +
           (i32v)_mm256_madd_epi16((__m256i)(codes >> 8), _mm256_srai_epi16(x, 8));
}
#endif

QN_INLINE u16v look_up(const uint8_t *levels, u16v index) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)levels));
    return (u16v)_mm256_shuffle_epi8(table, (__m256i)index);
}

QN_INLINE i32v widen_u8(const uint8_t *from) {
    return (i32v)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
}

QN_INLINE i32v widen_i8(const uint8_t *from) {
    return (i32v)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
}

QN_INLINE i32v widen_u16(const uint8_t *from) {
    return (i32v)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}

QN_INLINE f32v widen_half(const uint8_t *from) {
    return (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

QN_INLINE f32v all_half(const uint8_t *from) {
    return (f32v)_mm256_cvtph_ps(_mm_set1_epi16((int16_t)qn_load_u16(from)));
}
#elif defined(QN_NEON)
QN_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
    return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

// Taking the pairs apart is done once for all rows that share w.
QN_INLINE i32v madd_spread(i32v sum, i16v w, i32v pair) {
    const int16x8_t v = (int16x8_t)w;
    const int16x4_t x = vget_low_s16((int16x8_t)pair);
    const int32x4_t even = vmlal_lane_s16((int32x4_t)sum, vget_low_s16(vuzp1q_s16(v, v)), x, 0);
    return (i32v)vmlal_lane_s16(even, vget_low_s16(vuzp2q_s16(v, v)), x, 1);
}

QN_INLINE i32v dot4_spread(i32v sum, u16v codes, i32v four, const bool is_narrow) {
    (void)is_narrow;
    const int8x16_t w = (int8x16_t)codes, x = (int8x16_t)four;
#if defined(__ARM_FEATURE_DOTPROD)
    return (i32v)vdotq_s32((int32x4_t)sum, w, x);
#else // 2 * 128 * 127 fits 16 bits
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return (i32v)vpadalq_s16((int32x4_t)sum, vpaddq_s16(low, high));
#endif
}

QN_INLINE u16v look_up(const uint8_t *levels, u16v index) {
    return (u16v)vqtbl1q_u8(vld1q_u8(levels), (uint8x16_t)index);
}

QN_INLINE i32v widen_u8(const uint8_t *from) {
    const uint16x8_t x = vmovl_u8(vcreate_u8((uint32_t)load_i32(from)));
    return (i32v)vmovl_u16(vget_low_u16(x));
}

QN_INLINE i32v widen_i8(const uint8_t *from) {
    const int16x8_t x = vmovl_s8(vcreate_s8((uint32_t)load_i32(from)));
    return (i32v)vmovl_s16(vget_low_s16(x));
}

QN_INLINE i32v widen_u16(const uint8_t *from) {
    return (i32v)vmovl_u16(vreinterpret_u16_u8(vld1_u8(from)));
}

QN_INLINE f32v widen_half(const uint8_t *from) {
    return (f32v)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}

QN_INLINE f32v all_half(const uint8_t *from) {
    return (f32v)vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(qn_load_u16(from))));
}
#else
QN_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
    for (int l = 0; l < QN_LANES; l++) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return c;
}

QN_INLINE i32v madd_spread(i32v sum, i16v w, i32v pair) {
    const i32v wide = (i32v)w;
    const int32_t x = pair[0];
    return sum + (wide << 16 >> 16) * (int16_t)(x & 0xffff) + (wide >> 16) * (x >> 16);
}

QN_INLINE i32v dot4_spread(i32v sum, u16v codes, i32v four, const bool is_narrow) {
    (void)is_narrow;
    const i32v c = (i32v)codes;
    const int32_t x = four[0];
    return sum + (c & 255) * (int8_t)(x & 255) + (c >> 8 & 255) * (int8_t)(x >> 8 & 255) +
           (c >> 16 & 255) * (int8_t)(x >> 16 & 255) + (c >> 24 & 255) * (x >> 24);
}

QN_INLINE u16v look_up(const uint8_t *levels, u16v index) {
    uint8_t bytes[4 * QN_LANES];
    memcpy(bytes, &index, sizeof bytes);
    for (int l = 0; l < 4 * QN_LANES; l++) bytes[l] = levels[bytes[l] & 15];
    return load_u16(bytes);
}

QN_INLINE i32v widen_u8(const uint8_t *from) {
    i32v x = {0};
    for (int l = 0; l < QN_LANES; l++) x[l] = from[l];
    return x;
}

QN_INLINE i32v widen_i8(const uint8_t *from) {
    i32v x = {0};
    for (int l = 0; l < QN_LANES; l++) x[l] = from[l] - 2 * (from[l] & 128); // a signed byte
    return x;
}

QN_INLINE i32v widen_u16(const uint8_t *from) {
    i32v x = {0};
    for (int l = 0; l < QN_LANES; l++) x[l] = qn_load_u16(from + 2 * l);
    return x;
}

QN_INLINE f32v widen_half(const uint8_t *from) {
    f32v x = {0};
    for (int l = 0; l < QN_LANES; l++) x[l] = qn_load_half(from + 2 * l);
    return x;
}

QN_INLINE f32v all_half(const uint8_t *from) { return all_f32(qn_load_half(from)); }
#endif

#if !defined(__AVX512VNNI__)
QN_INLINE i32v spread(const void *four) { return all_i32(load_i32(four)); }

QN_INLINE i32v madd(i32v sum, i16v w, const void *pair) {
    return madd_spread(sum, w, spread(pair));
}

QN_INLINE i32v dot4(i32v sum, u16v codes, const void *four, const bool is_narrow) {
    return dot4_spread(sum, codes, spread(four), is_narrow);
}
#endif

#endif
