// The search that packs a row: which scales make the error of a block small.
//
// The error of a block is the sum of w[i] * (x[i] - value[i])^2, with w = 1 where the caller gives
// no weights. Given the levels q of all values, the best scale (and offset) is a least squares
// problem with a closed answer; given the scale, each value takes its nearest level. A search
// starts from several scales side by side, alternates the two steps, and keeps the best. Where the
// scales are themselves small integers under one float, that float is searched the same way.
//
// All sums run in a fixed order in float, so a block packs to the same bytes on every machine.
// Nothing allocates or fails. Input that no block can hold does not get here: see qn_fit_load.
#ifndef QN_QUANT_FIT_H
#define QN_QUANT_FIT_H

#include "quant/blocks.h"

enum { QN_FIT_GROUPS = 16 };

// The values of one block as the search sees them. Scaling by powers of two keeps every sum in the
// range of a float, and is exact.
typedef struct qn_fit_input {
    float x[QN_VALUES_MAX]; // input * 2^-e, in [-1, 1]
    float w[QN_VALUES_MAX]; // weights, the largest in [0.5, 1]; never 0
    float unit, per_unit;   // 2^e, 2^-e
    bool is_weighted;       // the caller gave weights
} qn_fit_input;

// A NaN counts as 0, and a number beyond 2^30 (more than any block can hold) as 2^30 of its sign. A
// weight that is negative or not finite counts as 0; a group without any weight is packed as if all
// were equal. False: nothing in the block is as large as half of the smallest f16, so that it is
// all zeros; `to` is then not set.
bool qn_fit_load(qn_fit_input *to, const float *from, const float *weights, int n);

// The f16 nearest to a scale found by the search, within the finite ones and not 0 unless the scale
// is; *scale becomes its value.
uint16_t qn_fit_half(float *scale, const qn_fit_input *input);
// The value of the next f16 that is not smaller, or of the largest. Where f16 has few numbers, a
// scale of scales that was rounded down would reach too low.
float qn_fit_half_above(float scale, const qn_fit_input *input);

// value = scale * level, levels evenly spaced (low, low + 1, ..., high) or those of IQ4. `groups`
// of `size` values; scale = d * factor, factors from factor_low to factor_high; one group has no
// factor.
typedef struct qn_fit_scale_form {
    int groups, size;
    int low, high;
    int factor_low, factor_high;
    bool is_iq4;
} qn_fit_scale_form;

// What qn_fit_scale found. q counts from 0: level - low, or the index of the IQ4 level.
typedef struct qn_fit_scale_result {
    uint16_t d;
    int8_t factor[QN_FIT_GROUPS];
    uint8_t q[QN_VALUES_MAX];
} qn_fit_scale_result;

void qn_fit_scale(qn_fit_scale_result *to, const qn_fit_input *input,
                  const qn_fit_scale_form *form);

// value = scale * q - min, q from 0 to `high`. In groups: scale = d * factor, min = dmin * shift,
// both integers from 0 to `factor_high`. One group has neither: scale = d, min = dmin of any sign.
typedef struct qn_fit_affine_form {
    int groups, size;
    int high;
    int factor_high;
} qn_fit_affine_form;

typedef struct qn_fit_affine_result {
    uint16_t d, dmin;
    uint8_t factor[QN_FIT_GROUPS], shift[QN_FIT_GROUPS];
    uint8_t q[QN_VALUES_MAX];
} qn_fit_affine_result;

void qn_fit_affine(qn_fit_affine_result *to, const qn_fit_input *input,
                   const qn_fit_affine_form *form);

// To the nearest whole number, ties to even, for |x| < 2^22. In plain arithmetic, so that loops of
// it become vectors.
static inline float qn_fit_round(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// NaN becomes `low`.
static inline float qn_fit_clamp(float x, float low, float high) {
    const float at_least = x > low ? x : low;
    return at_least < high ? at_least : high;
}

// Ties away from zero, as Q8_0 is customarily packed.
static inline float qn_fit_round_away(float x) {
    const float even = qn_fit_round(x), left = x - even;
    return even + (left == 0.5f && x > 0 ? 1.0f : left == -0.5f && x < 0 ? -1.0f : 0.0f);
}

// A NaN as 0, and at most 2^30 of either sign.
static inline float qn_fit_finite(float x) {
    return x == x ? qn_fit_clamp(x, -0x1p30f, 0x1p30f) : 0;
}

#endif
