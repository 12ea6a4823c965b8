// Choosing experts.
#ifndef QN_BACKENDS_CPU_KERNELS_ROUTE_H
#define QN_BACKENDS_CPU_KERNELS_ROUTE_H

#include "backends/kernel_math.h"
#include "backends/cpu/kernels/norm.h"

// Softmax over n scores, then the best attrs->top in descending order, ties to the lower id. `p` is
// room for n numbers.
static inline void route_row(int32_t *ids, float *weights, const float *scores, int64_t n,
                             const qn_attrs *attrs, float *p) {
    float largest = scores[0], chosen = 0;
    for (int64_t i = 1; i < n; i++) largest = scores[i] > largest ? scores[i] : largest;
    for (int64_t i = 0; i < n; i++) p[i] = math_exp(scores[i] - largest);
    const float sum = sum_row_16(p, n);
    for (int64_t k = 0; k < attrs->top; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) {
            if (p[i] > p[best]) best = i;
        }
        ids[k] = (int32_t)best;
        weights[k] = p[best] / sum;
        chosen += weights[k];
        p[best] = -1.0f; // taken
    }
    const float below = attrs->normalize ? chosen : 1.0f;
    for (int64_t k = 0; k < attrs->top; k++) weights[k] = weights[k] / below * attrs->scale;
}

// The sum of what the experts of row r say, y (T, N, D): from 0, one fma per expert in routing
// order.
static inline void combine_row(float *to, const qn_operand *y, int64_t r, const float *weights) {
    const int64_t n = y->width;
    for (int64_t i = 0; i < n; i++) to[i] = 0;
    for (int64_t k = 0; k < y->parts; k++) {
        const float *from = part_of(y, r, k), weight = weights[k];
        for (int64_t i = 0; i < n; i++) to[i] = __builtin_fmaf(weight, from[i], to[i]);
    }
}

#endif
