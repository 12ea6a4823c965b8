// Attention on tensor cores: `tensor` numerics. A float is two halves, hi + lo; sums are those of
// mma m16n8k16, hi before lo, 16 numbers or positions after the other; powers are of 2. What a row
// gets is the same whichever kernel computes it, and whatever other rows are beside it.
#pragma once

#include "attention.cuh"

constexpr float LOG2_E = 0x1.715476p+0f;

// c += a b. Lane 4 g + t has of a (16, 16): rows g and g + 8, columns 2 t, 2 t + 1 and 8 more; of
// b (16, 8): column g, rows 2 t, 2 t + 1 and 8 more; of c (16, 8): as of a.
static __device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 halves, whose rows lie at the addresses of lanes 0 ... 7, 8 ... 15, ...
static __device__ inline void load_matrices(unsigned (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}
static __device__ inline void load_transposed(unsigned (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

// Two floats as halves, the first in the lower bits, and what they leave.
struct Halves {
    unsigned hi, lo;
};

static __device__ inline Halves split(float a, float b) {
    const __half2 hi = __floats2half2_rn(a, b);
    const float2 back = __half22float2(hi);
    const __half2 lo = __floats2half2_rn(a - back.x, b - back.y);
    return {*(const unsigned *)&hi, *(const unsigned *)&lo};
}

static __device__ inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Scores are logarithms of base 2.
static __device__ inline float finish_log(float sum, const qn_attrs &attrs) {
    return attrs.cap > 0 ? cap_score(sum * attrs.scale, attrs.cap) * LOG2_E
                         : sum * (attrs.scale * LOG2_E);
}

// What scores are taken from: m, but 0 where nothing was seen.
static __device__ inline float base_of(float m) { return m == -INFINITY ? 0.0f : m; }
