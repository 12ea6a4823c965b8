// Weights in tiles as fragments of halfs for tensor cores, and the sums of a block as floats.
//
// Q4_K: scale * w <= 63 * 15 = 945 is exact in a half. With digits (digits.cuh) sums over 256
// values stay below 945 * 32 * 256 < 2^23, so that floats hold exact integers in any order, and t =
// 64 A + B is rounded once by fma. Offsets: |sum of 32| <= 65504 = 256 a + b, |a| <= 256, |b| <=
// 128; the sums of 8 products are below 63 * 256 * 8 < 2^18.
//
// Q6_K: scale * (q - 32) reaches 4096 and needs 12 bits where it is odd, one more than a half has.
// So scale = 2 s + p with -64 <= s <= 63 and p 0 or 1, and
//     t = 2 (64 A + B) + C,  A = sum of s (q - 32) a,  B = sum of s (q - 32) b,
//                            C = sum of p (q - 32) x,  x = 64 a + b, |x| <= 2047
// |s (q - 32)| <= 2048 and |q - 32| <= 32 are exact in halfs. |A|, |B| <= 2048 * 32 * 256 = 2^24
// and |C| < 32 * 2048 * 256 = 2^24: exact in floats. t < 2^31 is put together as integers.
//
// One product (not exact): q or x whole; scale * (q - 32) of Q6_K is rounded to a half.
#pragma once

#include "wgmma.cuh"

#include <cuda_fp16.h>

static __device__ inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
static __device__ inline uint32_t h2_mul(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
static __device__ inline uint32_t h2_sub(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Pairs of halfs. A half of 1024 + n has n in its last bits.
constexpr uint32_t H_1024 = 0x64006400u, H_1056 = 0x64206420u, H_1088 = 0x64406440u,
                   H_1152 = 0x64806480u, H_256 = 0x5c005c00u, H_SIXTEENTH = 0x2c002c00u,
                   H_MINUS_64 = 0xd400d400u, H_MINUS_1024 = 0xe400e400u, BYTES_64 = 0x64646464u;

// 1024 + the masked bits of q.
static __device__ inline uint32_t h2_bits(uint32_t q, uint32_t mask) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(q), "r"(mask), "r"(H_1024));
    return d;
}
// 1024 + byte i of v, twice.
static __device__ inline uint32_t h2_byte(uint32_t v, int i) {
    return __byte_perm(v, BYTES_64, 0x4040 + 0x0101 * i);
}
static __device__ inline float low_float(uint32_t h) { return __half2float(__ushort_as_half(h)); }

// The unit of a warp: 16 outputs of which a lane has two, g and g + 8 (g = lane / 4), and 256
// values. `frag` gets 4 steps of 16 values: a of rows g, g + 8, g, g + 8, of even values and then
// odd ones.
template <int TYPE> struct Unit;

template <> struct Unit<QN_TYPE_Q4_K> {
    static constexpr int BYTES = 2304;
    uint32_t at;
    uint4 head[2]; // d, dmin, 12 bytes of scales

    __device__ inline Unit(uint32_t unit) : at(unit) {
        const int g = threadIdx.x % WARP / 4;
        head[0] = load_16(unit + 16 * g);
        head[1] = load_16(unit + 16 * (g + 8));
    }
    // Scales (or offsets) of groups 0 ... 3, or 4 ... 7.
    static __device__ inline uint32_t scales(const uint4 &h, bool is_high) {
        return is_high ? (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u) : h.y & 0x3f3f3f3fu;
    }
    static __device__ inline uint32_t offsets(const uint4 &h, bool is_high) {
        return is_high ? (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u) : h.z & 0x3f3f3f3fu;
    }
    // 64 values of chunk c.
    __device__ inline void chunk(uint32_t (&frag)[16], int c) const {
        const uint4 q = load_16(at + 256 + c * 512 + threadIdx.x % WARP * 16);
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const uint32_t s = scales(head[o], c >= 2);
            const uint32_t low = h2_sub(h2_byte(s, 2 * (c % 2)), H_1024),
                           next = h2_sub(h2_byte(s, 2 * (c % 2) + 1), H_1024);
            const uint32_t low_from = h2_mul(low, H_MINUS_1024), // of 1024 + w
                high = h2_mul(next, H_SIXTEENTH), high_from = h2_mul(next, H_MINUS_64);
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const uint32_t w = z ? o ? q.w : q.z : o ? q.y : q.x, odd = w >> 8;
                frag[4 * z + o] = h2_fma(h2_bits(w, 0x000f000fu), low, low_from);
                frag[4 * z + o + 2] = h2_fma(h2_bits(odd, 0x000f000fu), low, low_from);
                frag[8 + 4 * z + o] = h2_fma(h2_bits(w, 0x00f000f0u), high, high_from);
                frag[8 + 4 * z + o + 2] = h2_fma(h2_bits(odd, 0x00f000f0u), high, high_from);
            }
        }
    }
    // Offsets of groups 2 t and 2 t + 1; where the image has 256s and ones, 256 times that before.
    __device__ inline void offset_frag(uint32_t (&frag)[4], bool is_exact) const {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const uint32_t m = h2_sub(
                __byte_perm(offsets(head[o], t >= 2), BYTES_64, t & 1 ? 0x4342 : 0x4140), H_1024);
            frag[o] = is_exact ? m : h2_mul(m, H_256);
            frag[o + 2] = is_exact ? 0 : m;
        }
    }
    __device__ inline float scale(int o) const { return low_float(head[o].x & 0xffff); }
    __device__ inline float offset_scale(int o) const { return low_float(head[o].x >> 16); }
};

template <> struct Unit<QN_TYPE_Q6_K> {
    static constexpr int BYTES = 3360;
    uint32_t at;
    uint4 scales_of[2];

    __device__ inline Unit(uint32_t unit) : at(unit) {
        const int g = threadIdx.x % WARP / 4;
        scales_of[0] = load_16(unit + 16 * g);
        scales_of[1] = load_16(unit + 16 * (g + 8));
    }
    // q - 32 of four values in a word, even ones and then odd ones.
    static __device__ inline void values(uint32_t (&v)[2], uint32_t low, uint32_t high) {
        const uint32_t q = low | high << 4;
        v[0] = h2_sub(__byte_perm(q, BYTES_64, 0x4240), H_1056);
        v[1] = h2_sub(__byte_perm(q, BYTES_64, 0x4341), H_1056);
    }
    // 64 values of chunk c; exact: s (q - 32), and p (q - 32) in `odd`. Else scale (q - 32).
    template <bool IS_EXACT>
    __device__ inline void chunk(uint32_t (&frag)[16], uint32_t (&odd)[16], int c) const {
        const uint32_t half = at + 288 + c / 2 * 1536 + threadIdx.x % WARP * 16;
        const uint4 low[2] = {load_16(half), load_16(half + 512)}, high = load_16(half + 1024);
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const uint4 &s = scales_of[o];
            const uint32_t bytes = (c == 0 ? s.x : c == 1 ? s.y : c == 2 ? s.z : s.w) ^ 0x80808080u;
            const uint32_t halved = bytes >> 1 & 0x7f7f7f7fu;
#pragma unroll
            for (int step = 0; step < 4; step++) {
                const uint4 &l = low[step / 2];
                const bool z = step % 2;
                const uint32_t ql = z ? o ? l.w : l.z : o ? l.y : l.x;
                const uint32_t qh = z ? o ? high.w : high.z : o ? high.y : high.x;
                uint32_t v[2];
                values(v, ql >> 4 * (c % 2) & 0x0f0f0f0fu,
                       qh >> 2 * (2 * (c % 2) + step / 2) & 0x03030303u);
                const uint32_t by = IS_EXACT ? h2_sub(h2_byte(halved, step), H_1088)
                                             : h2_sub(h2_byte(bytes, step), H_1152);
                frag[4 * step + o] = h2_mul(v[0], by);
                frag[4 * step + o + 2] = h2_mul(v[1], by);
                if (!IS_EXACT) continue;
                const uint32_t is_odd = 0u - (bytes >> 8 * step & 1u);
                odd[4 * step + o] = v[0] & is_odd;
                odd[4 * step + o + 2] = v[1] & is_odd;
            }
        }
    }
    __device__ inline float scale(int o) const {
        return low_float(load_2(at + 256 + 2 * (threadIdx.x % WARP / 4 + 8 * o)));
    }
};

// t of Q6_K.
static __device__ inline float whole_sum(float a, float b, float c) {
    return (float)(int)((uint32_t)__float2int_rz(a) * 128u + (uint32_t)__float2int_rz(b) * 2u +
                        (uint32_t)__float2int_rz(c));
}
