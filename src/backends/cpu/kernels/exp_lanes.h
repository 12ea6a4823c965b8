// exp of many numbers at a time, for softmax: the bits of math_exp in fewer instructions, as nothing
// is above 0.
#ifndef QN_BACKENDS_CPU_KERNELS_EXP_LANES_H
#define QN_BACKENDS_CPU_KERNELS_EXP_LANES_H

#include "backends/cpu/kernels/lanes16.h"
#include "backends/kernel_math.h"

// p 2^n, rounded once; `shifted` has n as an integer in its lower bits (kernel_math.h).
#if defined(__AVX512VNNI__)
QN_INLINE f32v scale_by_power(f32v p, f32v n, f32v shifted) {
    (void)shifted;
    return (f32v)_mm512_scalef_ps((__m512)p, (__m512)n);
}
#else
QN_INLINE f32v scale_by_power(f32v p, f32v n, f32v shifted) {
    (void)n;
    const i32v power = (i32v)shifted - (0x4b400000 - 256), first = power >> 1;
    return p * (f32v)((first - 1) << 23) * (f32v)((power - first - 1) << 23);
}
#endif

// x <= 0 or NaN.
QN_INLINE f32v exp_lanes(f32v x) {
    x = max_f32(all_f32(-126.0f), x);
    const f32v shifted = x * 0x1.715476p+0f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    const f32v r = fma_f32(n, all_f32(-LOG2_LOW), fma_f32(n, all_f32(-LOG2_HIGH), x));
    f32v q = all_f32(EXP_FIRST);
#define TERM(c) q = fma_f32(q, r, all_f32(c));
    EXP_TERMS(TERM)
#undef TERM
    const f32v sum = 1.0f + r, lost = r - (sum - 1.0f);
    return scale_by_power(sum + fma_f32(r * r, q, lost), n, shifted);
}

#endif
