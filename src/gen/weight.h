// Probabilities before they are divided by their sum, in whole units: the best logit weighs
// QN_WEIGHT_ONE. Sums of whole numbers are exact, so they are the same in every order, and what is
// chosen does not depend on how much of a row was sorted, nor on the machine's exp.
#ifndef QN_GEN_WEIGHT_H
#define QN_GEN_WEIGHT_H

#include <stdint.h>
#include <string.h>

// 2^21 entries of full weight are below 2^64; what rounds to nothing is below one in 2^43, and the
// random draws are multiples of one in 2^24.
#define QN_WEIGHT_ONE 0x1p42
enum { QN_WEIGHT_MAX_ENTRIES = 1 << 21 };

// exp(x) for x <= 0, to about one unit in the last place; below -80 as for -80. No branches, no
// fused operations: the same bits in vectors, alone, and everywhere.
static inline float qn_exp_negative(float x) {
    x = x > -80.0f ? x : -80.0f;
    const float shifted = x * 1.44269504f + 0x1.8p23f; // the integer is in the low bits
    const float n = shifted - 0x1.8p23f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; // x - n ln 2, |r| <= 0.35
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t bits, exponent;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&exponent, &shifted, sizeof exponent);
    bits += (int32_t)((uint32_t)exponent << 23); // times 2^n
    memcpy(&p, &bits, sizeof p);
    return p;
}

// `e` from qn_exp_negative, rounded to whole units.
static inline uint64_t qn_weight_round(float e) {
    const double units = (double)e * QN_WEIGHT_ONE + 0x1p52; // the integer is in the low bits
    uint64_t bits;
    memcpy(&bits, &units, sizeof bits);
    return bits & 0xFFFFFFFFFFFFF;
}

// Of a logit that is at most `best`; -inf weighs nothing.
static inline uint64_t qn_weight(float logit, float best, float temperature) {
    return qn_weight_round(qn_exp_negative((logit - best) / temperature));
}

#endif
