// Elementary functions of the kernels: our own polynomials, the same operations on every device, so
// the same bits. Nothing here branches: loops over these functions become vectors.
//
// Fused multiply-adds are written out and are float only; what is computed in double is computed
// with separate products and sums. No function traps or overflows an integer, whatever it is given.
// Errors, and what happens at the ends of the range: docs/numbers.md.
#ifndef QN_BACKENDS_KERNEL_MATH_H
#define QN_BACKENDS_KERNEL_MATH_H

#include "quant/half.h"

#include <stdint.h>
#include <string.h>

// exp(x) = (p * s1) * s2: p in [0.7, 1.42], s1 and s2 powers of two. Only the last product rounds
// when the result is not a normal float.
typedef struct exp_parts {
    float p, s1, s2;
} exp_parts;

// (exp(r) - 1 - r) / r^2, highest power first; and log(2) in two parts, the first of few bits.
#define EXP_TERMS(TERM)                                                                            \
    TERM(0x1.6d4324p-10f)                                                                          \
    TERM(0x1.1110ep-7f) TERM(0x1.5554eap-5f) TERM(0x1.555556p-3f) TERM(0x1p-1f)
#define EXP_FIRST 0x1.a124f2p-13f
#define LOG2_HIGH 0x1.62e4p-1f
#define LOG2_LOW  0x1.7f7d1cp-20f

// `shifted` is the power of two plus 1.5 * 2^23, so that its lower bits are the power as an
// integer; r is what is left, |r| <= log(2) / 2.
QN_ANYWHERE exp_parts exp_rest(float shifted, float r) {
    float q = EXP_FIRST;
#define TERM(c) q = __builtin_fmaf(q, r, c);
    EXP_TERMS(TERM)
#undef TERM
    const float sum = 1.0f + r, lost = r - (sum - 1.0f);
    const uint32_t power = qn_float_to_bits(shifted) - 0x4b400000u + 256u;
    const uint32_t first = power >> 1, second = power - first;
    return (exp_parts){.p = sum + __builtin_fmaf(r * r, q, lost),
                       .s1 = qn_float_from_bits((first - 1u) << 23),
                       .s2 = qn_float_from_bits((second - 1u) << 23)};
}

// x is held inside [-126, 89], where the results are 0 and infinity already; a NaN stays one.
QN_ANYWHERE exp_parts exp_split(float x) {
    x = x < -126.0f ? -126.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 0x1.715476p+0f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    const float r = __builtin_fmaf(n, -LOG2_HIGH, x); // exact
    return exp_rest(shifted, __builtin_fmaf(n, -LOG2_LOW, r));
}

// exp of an argument that is known to more digits than a float has; x in [-126, 89] or NaN.
QN_ANYWHERE double exp_wide(double x) {
    const float shifted = (float)x * 0x1.715476p+0f + 0x1.8p23f;
    const double n = (double)(shifted - 0x1.8p23f);
    const exp_parts e = exp_rest(shifted, (float)(x - n * 0x1.62e42fefa39efp-1));
    return (double)e.p * (double)e.s1 * (double)e.s2;
}

QN_ANYWHERE float math_exp(float x) {
    const exp_parts e = exp_split(x);
    return e.p * e.s1 * e.s2;
}

QN_ANYWHERE float math_abs(float x) { return qn_float_from_bits(qn_float_to_bits(x) & INT32_MAX); }

// `magnitude` with the sign of x.
QN_ANYWHERE float math_signed(float magnitude, float x) {
    return qn_float_from_bits(qn_float_to_bits(magnitude) | (qn_float_to_bits(x) & 0x80000000u));
}

// Near 0 a polynomial, else 1 - 2 / (exp(2 |x|) + 1).
QN_ANYWHERE float math_tanh(float x) {
    const float a = math_abs(x), u = x * x;
    float q = -0x1.9ada6p-8f; // (tanh(x) / x - 1) / x^2
    q = __builtin_fmaf(q, u, 0x1.59e1c8p-6f);
    q = __builtin_fmaf(q, u, -0x1.b955dcp-5f);
    q = __builtin_fmaf(q, u, 0x1.110eep-3f);
    q = __builtin_fmaf(q, u, -0x1.555554p-2f);
    const float near = __builtin_fmaf(q * u, a, a);
    const float far = 1.0f - 2.0f / (math_exp(a + a) + 1.0f);
    return math_signed(a < 0.6f ? near : far, x);
}

// e / (1 + e) below 0 and 1 / (1 + e) above, e = exp(-|x|): no part overflows.
QN_ANYWHERE float math_sigmoid(float x) {
    const exp_parts e = exp_split(x > 0 ? -x : x);
    const float high = (x > 0 ? 1.0f : e.p) / (1.0f + e.p * e.s1 * e.s2);
    const float low = high * e.s1 * e.s2;
    return x > 0 ? high : low;
}

QN_ANYWHERE float math_silu(float x) {
    const exp_parts e = exp_split(x > 0 ? -x : x);
    const float held = x < -126.0f ? -126.0f : x; // the product is 0 there already
    const float high = (x > 0 ? x : held * e.p) / (1.0f + e.p * e.s1 * e.s2);
    const float low = high * e.s1 * e.s2;
    return x > 0 ? high : low;
}

// log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|), by 2 atanh(e / (2 + e)).
QN_ANYWHERE float math_softplus(float x) {
    const float e = math_exp(x > 0 ? -x : x);
    const float s = e / (2.0f + e), u = s * s;
    float q = 0x1.a9bafcp-4f; // (atanh(s) / s - 1) / s^2
    q = __builtin_fmaf(q, u, 0x1.65ad56p-4f);
    q = __builtin_fmaf(q, u, 0x1.c7fb36p-4f);
    q = __builtin_fmaf(q, u, 0x1.248f58p-3f);
    q = __builtin_fmaf(q, u, 0x1.9999ap-3f);
    q = __builtin_fmaf(q, u, 0x1.555556p-2f);
    const float twice = s + s, low = __builtin_fmaf(twice * u, q, twice);
    const float near = (x > 0 ? x : 0.0f) + low;
    return x > 20.0f ? x : near;
}

// The tanh form: a / (1 + exp(-z)), z = 2 sqrt(2 / pi) (a + 0.044715 a^3).
QN_ANYWHERE float math_gelu(float x) {
    const double a = x;
    const double z = 0x1.9884533d43651p+0 * (a + 0.044715 * a * a * a);
    const double size = z > 0 ? -z : z;
    const double e = exp_wide(size < -126.0 ? -126.0 : size);
    const double held = a < -126.0 ? -126.0 : a;
    return (float)((z > 0 ? a : held * e) / (1.0 + e));
}

// x Phi(x), where Phi(-a) = exp(-a^2 / 2) t P(t), t = 1 / (1 + a / 4), for a in [0, 15].
QN_ANYWHERE float math_gelu_erf(float x) {
    double a = math_abs(x);
    a = a > 15.0 ? 15.0 : a;
    const double t = 1.0 / (1.0 + 0.25 * a);
    double p = -0x1.ef45c28fab579p-8;
    p = p * t + 0x1.32abfc68c007dp-5;
    p = p * t + -0x1.c4f70fe8bcb5ep-5;
    p = p * t + -0x1.d1025bc5e6d50p-8;
    p = p * t + 0x1.1791a55171e32p-4;
    p = p * t + -0x1.7ddc735cf21dap-5;
    p = p * t + 0x1.630d81c2d396dp-4;
    p = p * t + 0x1.7cc676d78cc57p-5;
    p = p * t + 0x1.5daaaaf785068p-4;
    p = p * t + 0x1.7c21ebfc942fep-4;
    p = p * t + 0x1.98c7b09f4f91dp-4;
    p = p * t + 0x1.98819b3c37dadp-4;
    const double below = exp_wide(-0.5 * a * a) * t * p; // Phi(-a)
    const double held = x < -15.0f ? -15.0 : (double)x;
    return (float)(x > 0 ? (double)x * (1.0 - below) : held * below);
}

// Cosine and sine of position * frequency. Right to the last bits of a float for |angle| < 2^31;
// beyond that some number in [-1.1, 1.1] or a NaN.
typedef struct turn {
    float cosine, sine;
} turn;

QN_ANYWHERE turn math_turn(double angle) {
    // Adding 1.5 * 2^52 rounds to a whole number and leaves its lower bits as an integer. The first
    // two parts of pi / 2 have 22 bits each, so that their products with it are exact.
    const double shifted = angle * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    const double r = ((angle - n * 0x1.921fbp+0) - n * 0x1.5110bp-22) - n * 0x1.18469898cc517p-44;
    const double u = r * r;
    double s = -0x1.aa262ee715b00p-26; // (sin(r) / r - 1) / r^2
    s = s * u + 0x1.71d9a549ac8fbp-19;
    s = s * u + -0x1.a019fd95094bep-13;
    s = s * u + 0x1.1111110fd1496p-7;
    s = s * u + -0x1.5555555555161p-3;
    double c = 0x1.1c808728603bbp-29; // (cos(r) - 1 + r^2 / 2) / r^4
    c = c * u + -0x1.27e25ca05d2bep-22;
    c = c * u + 0x1.a019ff501e5c1p-16;
    c = c * u + -0x1.6c16c16b5fdb7p-10;
    c = c * u + 0x1.5555555555434p-5;
    const double sine = s * u * r + r, cosine = c * u * u + (1.0 - 0.5 * u);
    const uint64_t odd = bits & 1;
    const double c_size = odd ? sine : cosine, s_size = odd ? cosine : sine;
    return (turn){.cosine = (float)((bits + 1) & 2 ? -c_size : c_size),
                  .sine = (float)(bits & 2 ? -s_size : s_size)};
}

#endif
