// Turning the pairs of a head by its position.
#pragma once

#include "common.cuh"

// Cosine and sine of pair i of a row: which of the positions t, h, w turns it goes by sections,
// which interleave as t h w t h w ..., the rest is t.
static __device__ inline turn angle_of(const Task &t, const float *frequencies, int64_t r,
                                       int64_t i) {
    const int64_t kind = i % 3;
    const int which = kind > 0 && i < 3 * t.attrs.sections.v[kind] ? (int)kind : 0;
    return math_turn((double)t.step->pos[4 * r + which] * (double)frequencies[i]);
}

static __device__ inline void turn_pair(float *to, const float *x, int64_t i, int64_t pairs,
                                        float cosine, float sine, const qn_attrs &attrs) {
    const int64_t first = attrs.pairs == QN_WORD_half ? i : 2 * i;
    const int64_t second = attrs.pairs == QN_WORD_half ? first + pairs : first + 1;
    const float a = x[first], b = x[second];
    to[first] = fmaf(a, cosine, -(b * sine));
    to[second] = fmaf(a, sine, b * cosine);
}

// A block of threads: RMS norm of a head where there is a weight, then its pairs turned; angles are
// (2, rotate / 2). `room` holds 64.
static __device__ inline void turn_head(float *to, const float *x, const float *angles,
                                        const float *norm, int64_t size, const qn_attrs &attrs,
                                        float *room) {
    const int64_t pairs = attrs.rotate / 2;
    if (norm) {
        const float mean = sum_squares(x, size, room) / (float)size;
        const float inverse = 1.0f / sqrtf(mean + attrs.eps);
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x) to[i] = (x[i] * inverse) * norm[i];
    } else {
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x) to[i] = x[i];
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < pairs; i += blockDim.x)
        turn_pair(to, to, i, pairs, angles[i], angles[pairs + i], attrs);
    __syncthreads();
}
