// A unit of a tile (cuda_tiles.h: 16 outputs, 256 values) times some rows of 12-bit activations, by
// matrix instructions on bytes. Their sums are integers, so that their order is free.
//
// An instruction multiplies 16 outputs by 8 columns; lane 4 g + t of a warp gives the weights of
// outputs g and g + 8 and the numbers of column g, and gets the sums of these outputs and columns
// 2 t and 2 t + 1. The high bytes of a row are one column, the low bytes the next.
#pragma once

#include "common.cuh"

#include <cuda_fp16.h>

struct Sums4 {
    int hi0, lo0, hi1, lo1; // of output g, then of output g + 8
};

// c += a b, 32 products each. The weights are unsigned, or signed.
template <bool IS_SIGNED>
static __device__ inline void mma_32(Sums4 &c, uint4 a, uint32_t b0, uint32_t b1) {
    if (IS_SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c.hi0), "+r"(c.lo0), "+r"(c.hi1), "+r"(c.lo1)
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c.hi0), "+r"(c.lo0), "+r"(c.hi1), "+r"(c.lo1)
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The same of 16 products, unsigned weights.
static __device__ inline void mma_16(Sums4 &c, uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(c.hi0), "+r"(c.lo0), "+r"(c.hi1), "+r"(c.lo1)
        : "r"(a0), "r"(a1), "r"(b));
}

static __device__ inline uint4 and4(uint4 a, uint32_t mask) {
    return make_uint4(a.x & mask, a.y & mask, a.z & mask, a.w & mask);
}

constexpr uint32_t LOW = 0x0f0f0f0fu, HIGH = 0xf0f0f0f0u;

static __device__ inline float half_of(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}
static __device__ inline uint4 load_16(const unsigned char *p) { return *(const uint4 *)p; }
static __device__ inline uint32_t load_4(const void *p) { return *(const uint32_t *)p; }

// Byte i of a word, signed.
static __device__ inline int signed_byte(uint32_t word, int i) { return (int8_t)(word >> 8 * i); }

// Scales and offsets of the eight groups of Q4_K, a byte each; d and dmin.
struct Scales4 {
    uint32_t scale[2], offset[2];
    float S, M;
};

static __device__ inline Scales4 read_scales4(const unsigned char *head) {
    const uint4 h = load_16(head);
    return {{h.y & 0x3f3f3f3fu, (h.w & LOW) | (h.y >> 2 & 0x30303030u)},
            {h.z & 0x3f3f3f3fu, (h.w >> 4 & LOW) | (h.z >> 2 & 0x30303030u)},
            half_of(h.x),
            half_of(h.x >> 16)};
}

// The 6-bit integers of 32 values of Q6_K: part p of the four of 128.
static __device__ inline uint32_t join_bits(uint32_t low, uint32_t high, int p) {
    const int shift = 2 * p - 4; // of the bits, to 4 and 5
    return (p < 2 ? low & LOW : low >> 4 & LOW) |
           ((shift < 0 ? high << -shift : high >> shift) & 0x30303030u);
}
static __device__ inline uint4 join_bits(uint4 low, uint4 high, int p) {
    return make_uint4(join_bits(low.x, high.x, p), join_bits(low.y, high.y, p),
                      join_bits(low.z, high.z, p), join_bits(low.w, high.w, p));
}

// --- one row -------------------------------------------------------------------------------------
// The four pairs of columns are four groups of the same row: the sums of group t end in lane t,
// which multiplies them by its scale, once.

// What a lane reads of a block of a row: its column's words, and what belongs to its sums.
template <int TYPE> struct OneRow;

template <> struct OneRow<QN_TYPE_Q4_K> {
    uint32_t b[2][2]; // of column g: group g / 2 of both halves of the block
    int sums[2];      // of group t of both
    float scale;
    __device__ void load(const qn_cuda_i12 *x) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const int8_t *plane = (g & 1 ? x->lo : x->hi) + g / 4 * 64 + 16 * t + g / 2 % 2 * 8;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint2 words = *(const uint2 *)(plane + 128 * h);
            b[h][0] = words.x, b[h][1] = words.y;
            const uint32_t two = load_4(&x->sums[8 * h + 2 * t]);
            sums[h] = (int16_t)(two & 0xffffu) + (int16_t)(two >> 16);
        }
        scale = x->scale;
    }
};

template <> struct OneRow<QN_TYPE_Q6_K> {
    uint32_t b[4]; // of column g: group g / 2 of 16 values, of each 64
    int sums[4];   // of group t
    float scale;
    __device__ void load(const qn_cuda_i12 *x) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const int8_t *plane = (g & 1 ? x->lo : x->hi) + 16 * t + g / 2 * 4;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            b[s] = load_4(plane + 64 * s);
            sums[s] = x->sums[4 * s + t];
        }
        scale = x->scale;
    }
};

// Sums of outputs g (a) and g + 8 (b) over the four lanes of g: lanes 0 and 2 get a's, 1 and 3 b's.
static __device__ inline int sum_quad(int a, int b) {
    const bool is_odd = threadIdx.x & 1;
    const int sum = (is_odd ? b : a) + __shfl_xor_sync(ALL, is_odd ? a : b, 1);
    return sum + __shfl_xor_sync(ALL, sum, 2);
}

// p of output g + 8 t, in lanes t < 2.
template <int TYPE>
static __device__ inline float unit_one(const unsigned char *unit, const OneRow<TYPE> &x);

// Scales and offsets of groups t and 4 + t of an output of Q4_K.
struct Pair4 {
    int scale[2], offset[2];
    float S, M;
};

static __device__ inline Pair4 read_pair4(const unsigned char *head, int t) {
    const uint4 h = load_16(head);
    const uint32_t low = __byte_perm(h.y, h.z, t | (t + 4) << 4), high = h.w >> 8 * t;
    return {{(int)(low & 63), (int)((high & 15) | (low >> 2 & 48))},
            {(int)(low >> 8 & 63), (int)((high >> 4 & 15) | (low >> 10 & 48))},
            half_of(h.x),
            half_of(h.x >> 16)};
}

template <>
__device__ inline float unit_one<QN_TYPE_Q4_K>(const unsigned char *unit,
                                               const OneRow<QN_TYPE_Q4_K> &x) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, j = g / 2;
    const Pair4 s0 = read_pair4(unit + 16 * g, t), s1 = read_pair4(unit + 16 * (g + 8), t);
    int t0 = 0, t1 = 0, o0 = 0, o1 = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 p = load_16(unit + 256 + h * 1024 + lane * 16),
                    q = load_16(unit + 768 + h * 1024 + lane * 16);
        Sums4 c = {};
        mma_32<false>(c, and4(p, LOW), j == 0 ? x.b[h][0] : 0, j == 0 ? x.b[h][1] : 0);
        mma_32<false>(c, and4(p, HIGH), j == 1 ? x.b[h][0] : 0, j == 1 ? x.b[h][1] : 0);
        mma_32<false>(c, and4(q, LOW), j == 2 ? x.b[h][0] : 0, j == 2 ? x.b[h][1] : 0);
        mma_32<false>(c, and4(q, HIGH), j == 3 ? x.b[h][0] : 0, j == 3 ? x.b[h][1] : 0);
        // High nibbles were not shifted: 16 times too large, below 2^31 yet.
        t0 += s0.scale[h] * (256 * c.hi0 + c.lo0);
        t1 += s1.scale[h] * (256 * c.hi1 + c.lo1);
        o0 += s0.offset[h] * x.sums[h];
        o1 += s1.offset[h] * x.sums[h];
    }
    const int shift = t & 1 ? 4 : 0;
    const int sum = sum_quad(t0 >> shift, t1 >> shift), offsets = sum_quad(o0, o1);
    const float S = t & 1 ? s1.S : s0.S, M = t & 1 ? s1.M : s0.M;
    return x.scale * fmaf(-M, (float)offsets, S * (float)sum);
}

template <>
__device__ inline float unit_one<QN_TYPE_Q6_K>(const unsigned char *unit,
                                               const OneRow<QN_TYPE_Q6_K> &x) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, j = g / 2;
    const uint4 k0 = load_16(unit + 16 * g), k1 = load_16(unit + 16 * (g + 8));
    const uint32_t scale0[4] = {k0.x, k0.y, k0.z, k0.w}, scale1[4] = {k1.x, k1.y, k1.z, k1.w};
    int t0 = 0, t1 = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const unsigned char *lines = unit + 288 + n * 1536 + lane * 16;
        const uint4 l0 = load_16(lines), l1 = load_16(lines + 512), h = load_16(lines + 1024);
#pragma unroll
        for (int c2 = 0; c2 < 2; c2++) { // 64 values: groups 4 s to 4 s + 3
            const int s = 2 * n + c2;
            const uint4 a = join_bits(l0, h, 2 * c2), b = join_bits(l1, h, 2 * c2 + 1);
            Sums4 c = {};
            mma_16(c, a.x, a.y, j == 0 ? x.b[s] : 0);
            mma_16(c, a.z, a.w, j == 1 ? x.b[s] : 0);
            mma_16(c, b.x, b.y, j == 2 ? x.b[s] : 0);
            mma_16(c, b.z, b.w, j == 3 ? x.b[s] : 0);
            const int excess = 32 * x.sums[s]; // the integers are 32 too large
            t0 += signed_byte(scale0[s], t) * (256 * c.hi0 + c.lo0 - excess);
            t1 += signed_byte(scale1[s], t) * (256 * c.hi1 + c.lo1 - excess);
        }
    }
    const int sum = sum_quad(t0, t1);
    const float S = half_of(*(const uint16_t *)(unit + 256 + 2 * (g + 8 * (t & 1))));
    return x.scale * (S * (float)sum);
}

// --- up to four rows -----------------------------------------------------------------------------
// Columns 2 r and 2 r + 1 are row r: its sums end in lanes t = r. `columns` is the block of row
// g / 2, `row` that of row t; p gets outputs g and g + 8 of row t.

static __device__ inline const int8_t *plane_of(const qn_cuda_i12 *columns) {
    const int lane = threadIdx.x % WARP;
    return (lane & 4 ? columns->lo : columns->hi) + lane % 4 * 16;
}

// The words of 64 values: both halves of the first 32, both of the others.
static __device__ inline uint4 columns_of(const int8_t *plane, int c) {
    return *(const uint4 *)(plane + 64 * c);
}

template <int TYPE>
static __device__ inline void unit_rows(float p[2], const unsigned char *unit,
                                        const qn_cuda_i12 *columns, const qn_cuda_i12 *row);

template <>
__device__ inline void unit_rows<QN_TYPE_Q4_K>(float p[2], const unsigned char *unit,
                                               const qn_cuda_i12 *columns, const qn_cuda_i12 *row) {
    const int lane = threadIdx.x % WARP, g = lane / 4;
    const Scales4 s0 = read_scales4(unit + 16 * g), s1 = read_scales4(unit + 16 * (g + 8));
    const int8_t *b = plane_of(columns);
    int low0 = 0, low1 = 0, high0 = 0, high1 = 0, o0 = 0, o1 = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) { // 64 values: groups 2 c and 2 c + 1
        const uint4 q = load_16(unit + 256 + c * 512 + lane * 16);
        const int at = 2 * c % 4 * 8;
        Sums4 low = {}, high = {};
        const uint4 x = columns_of(b, c);
        mma_32<false>(low, and4(q, LOW), x.x, x.y);
        mma_32<false>(high, and4(q, HIGH), x.z, x.w);
        low0 += (int)(s0.scale[c / 2] >> at & 63) * (256 * low.hi0 + low.lo0);
        low1 += (int)(s1.scale[c / 2] >> at & 63) * (256 * low.hi1 + low.lo1);
        high0 += (int)(s0.scale[c / 2] >> (at + 8) & 63) * ((256 * high.hi0 + high.lo0) >> 4);
        high1 += (int)(s1.scale[c / 2] >> (at + 8) & 63) * ((256 * high.hi1 + high.lo1) >> 4);
        const uint2 sums = *(const uint2 *)&row->sums[4 * c];
        const int even = (int16_t)(sums.x & 0xffffu) + (int16_t)(sums.x >> 16),
                  odd = (int16_t)(sums.y & 0xffffu) + (int16_t)(sums.y >> 16);
        o0 += (int)(s0.offset[c / 2] >> at & 63) * even;
        o0 += (int)(s0.offset[c / 2] >> (at + 8) & 63) * odd;
        o1 += (int)(s1.offset[c / 2] >> at & 63) * even;
        o1 += (int)(s1.offset[c / 2] >> (at + 8) & 63) * odd;
    }
    p[0] = row->scale * fmaf(-s0.M, (float)o0, s0.S * (float)(low0 + high0));
    p[1] = row->scale * fmaf(-s1.M, (float)o1, s1.S * (float)(low1 + high1));
}

template <>
__device__ inline void unit_rows<QN_TYPE_Q6_K>(float p[2], const unsigned char *unit,
                                               const qn_cuda_i12 *columns, const qn_cuda_i12 *row) {
    const int lane = threadIdx.x % WARP, g = lane / 4;
    const uint4 k0 = load_16(unit + 16 * g), k1 = load_16(unit + 16 * (g + 8));
    const uint32_t scale0[4] = {k0.x, k0.y, k0.z, k0.w}, scale1[4] = {k1.x, k1.y, k1.z, k1.w};
    const int8_t *b = plane_of(columns);
    int t0 = 0, t1 = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const unsigned char *lines = unit + 288 + n * 1536 + lane * 16;
        const uint4 l0 = load_16(lines), l1 = load_16(lines + 512), h = load_16(lines + 1024);
#pragma unroll
        for (int part = 0; part < 4; part++) { // 32 values: groups `group` and `group` + 1
            const int at = 128 * n + 32 * part, group = at / 16;
            const uint4 a = join_bits(part & 1 ? l1 : l0, h, part);
            const uint32_t sums = load_4(&row->sums[group]);
            const uint4 x = columns_of(b, at / 64);
            Sums4 c = {}, d = {};
            mma_16(c, a.x, a.y, part & 1 ? x.z : x.x);
            mma_16(d, a.z, a.w, part & 1 ? x.w : x.y);
            const int first = 32 * (int16_t)(sums & 0xffffu), second = 32 * (int16_t)(sums >> 16);
            t0 += signed_byte(scale0[group / 4], group % 4) * (256 * c.hi0 + c.lo0 - first);
            t0 += signed_byte(scale0[group / 4], group % 4 + 1) * (256 * d.hi0 + d.lo0 - second);
            t1 += signed_byte(scale1[group / 4], group % 4) * (256 * c.hi1 + c.lo1 - first);
            t1 += signed_byte(scale1[group / 4], group % 4 + 1) * (256 * d.hi1 + d.lo1 - second);
        }
    }
    p[0] = row->scale * (half_of(*(const uint16_t *)(unit + 256 + 2 * g)) * (float)t0);
    p[1] = row->scale * (half_of(*(const uint16_t *)(unit + 256 + 2 * (g + 8))) * (float)t1);
}

template <>
__device__ inline void unit_rows<QN_TYPE_Q8_0>(float p[2], const unsigned char *unit,
                                               const qn_cuda_i12 *columns, const qn_cuda_i12 *row) {
    const int lane = threadIdx.x % WARP, g = lane / 4;
    const uint4 k0 = load_16(unit + 16 * g), k1 = load_16(unit + 16 * (g + 8));
    const uint32_t scale0[4] = {k0.x, k0.y, k0.z, k0.w}, scale1[4] = {k1.x, k1.y, k1.z, k1.w};
    const int8_t *b = plane_of(columns);
    float v0 = 0, v1 = 0; // a chain of floats through the groups
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint4 q = load_16(unit + 256 + j * 512 + lane * 16);
        Sums4 c = {};
        const uint4 x = columns_of(b, j / 2);
        mma_32<true>(c, q, j % 2 ? x.z : x.x, j % 2 ? x.w : x.y);
        v0 = fmaf(half_of(scale0[j / 2] >> j % 2 * 16), (float)(256 * c.hi0 + c.lo0), v0);
        v1 = fmaf(half_of(scale1[j / 2] >> j % 2 * 16), (float)(256 * c.hi1 + c.lo1), v1);
    }
    p[0] = row->scale * v0;
    p[1] = row->scale * v1;
}
