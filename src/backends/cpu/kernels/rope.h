// Turning the pairs of a head by angles.
#ifndef QN_BACKENDS_CPU_KERNELS_ROPE_H
#define QN_BACKENDS_CPU_KERNELS_ROPE_H

#include "backends/kernel_math.h"
#include "backends/cpu/kernels/norm.h"

// a' = a cos - b sin, b' = a sin + b cos; the second product is rounded, then added by fma.
static inline void turn_pair(float *a, float *b, float cosine, float sine) {
    const float from_a = *a, from_b = *b;
    *a = __builtin_fmaf(from_a, cosine, -(from_b * sine));
    *b = __builtin_fmaf(from_a, sine, from_b * cosine);
}

// head (E) in place; cosines and sines (rotate / 2).
static inline void turn_head(float *head, const float *cosines, const float *sines,
                             const qn_attrs *attrs) {
    const int64_t half = attrs->rotate / 2;
    if (attrs->pairs == QN_WORD_half) {
        for (int64_t i = 0; i < half; i++)
            turn_pair(head + i, head + half + i, cosines[i], sines[i]);
    } else {
        for (int64_t i = 0; i < half; i++)
            turn_pair(head + 2 * i, head + 2 * i + 1, cosines[i], sines[i]);
    }
}

// One head: rms norm where there is a weight, then the turn. `angles` are (2, rotate / 2). x may be
// to.
static inline void rotate_head(float *to, const float *x, const float *angles, const float *norm,
                               int64_t size, const qn_attrs *attrs) {
    if (norm)
        rms_norm_row(to, x, norm, size, attrs->eps);
    else
        for (int64_t i = 0; i < size; i++) to[i] = x[i];
    turn_head(to, angles, angles + attrs->rotate / 2, attrs);
}

#endif
