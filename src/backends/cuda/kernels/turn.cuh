// Turning the pairs of a head by its position.
#pragma once

#include "common.cuh"

// Cosine and sine of pair i of a row, times the scale: which of the positions t, h, w turns it goes
// by sections, which interleave as t h w t h w ..., the rest is t.
static __device__ inline turn angle_of(const Task &t, const float *frequencies, int64_t r,
                                       int64_t i) {
    const int64_t kind = i % 3;
    const int which = kind > 0 && i < 3 * t.attrs.sections.v[kind] ? (int)kind : 0;
    const turn a = math_turn((double)t.step->pos[4 * r + which] * (double)frequencies[i]);
    return turn{a.cosine * t.attrs.scale, a.sine * t.attrs.scale};
}

static __device__ inline void turn_pair(float *to, const float *x, int64_t i, int64_t pairs,
                                        float cosine, float sine, const qn_attrs &attrs) {
    const int64_t first = attrs.pairs == QN_WORD_half ? i : 2 * i;
    const int64_t second = attrs.pairs == QN_WORD_half ? first + pairs : first + 1;
    const float a = x[first], b = x[second];
    to[first] = fmaf(a, cosine, -(b * sine));
    to[second] = fmaf(a, sine, b * cosine);
}

// A head that a warp turns: RMS norm where there is a weight, then its pairs by angles (2, rotate /
// 2). It needs no place: every lane can have any of its numbers. Lanes are those of threadIdx.x.
struct Turned {
    const float *x, *angles, *norm;
    int64_t pairs;
    float inverse;
    bool is_half;

    __device__ Turned(const float *from, const float *angles_of, const float *norm_of, int64_t size,
                      const qn_attrs &attrs)
        : x(from), angles(angles_of), norm(norm_of), pairs(attrs.rotate / 2), inverse(1),
          is_half(attrs.pairs == QN_WORD_half) {
        if (!norm) return;
        float low = 0, high = 0; // lanes l and l + 32 of 64
        for (int64_t i = threadIdx.x; i < size; i += 64) low = fmaf(x[i], x[i], low);
        for (int64_t i = threadIdx.x + 32; i < size; i += 64) high = fmaf(x[i], x[i], high);
        float sum = low + high;
        for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half);
        const float mean = __shfl_sync(ALL, sum, 0) / (float)size;
        inverse = 1.0f / sqrtf(mean + attrs.eps);
    }

    __device__ float normed(int64_t i) const { return norm ? (x[i] * inverse) * norm[i] : x[i]; }

    __device__ float at(int64_t i) const {
        if (i >= 2 * pairs) return normed(i);
        const bool is_first = is_half ? i < pairs : i % 2 == 0;
        const int64_t pair = !is_half ? i / 2 : is_first ? i : i - pairs;
        const float a = normed(is_half ? pair : 2 * pair);
        const float b = normed(is_half ? pair + pairs : 2 * pair + 1);
        const float cosine = angles[pair], sine = angles[pairs + pair];
        return is_first ? fmaf(a, cosine, -(b * sine)) : fmaf(a, sine, b * cosine);
    }
};

// The same where the size is known: lane l has numbers l, l + 32, ... All that is read is asked for
// at once. `room` (SIZE) is the warp's own, in shared memory; norm may be NULL, pairs 0.
template <int SIZE>
static __device__ inline void turn_head(float (&x)[SIZE / WARP], const float *from,
                                        const float *angles, const float *norm, int pairs,
                                        float *room, const qn_attrs &attrs) {
    constexpr int N = SIZE / WARP;
    const int lane = (int)threadIdx.x % WARP;
    const bool is_half = attrs.pairs == QN_WORD_half;
    float weight[N], cosine[N], sine[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int e = lane + WARP * i, pair = !is_half ? e / 2 : e < pairs ? e : e - pairs;
        x[i] = from[e];
        weight[i] = norm ? norm[e] : 1.0f;
        cosine[i] = e < 2 * pairs ? angles[pair] : 1.0f;
        sine[i] = e < 2 * pairs ? angles[pairs + pair] : 0.0f;
    }
    if (norm) {
        float low = 0, high = 0; // lanes l and l + 32 of 64
#pragma unroll
        for (int i = 0; i < N; i += 2) low = fmaf(x[i], x[i], low);
#pragma unroll
        for (int i = 1; i < N; i += 2) high = fmaf(x[i], x[i], high);
        float sum = low + high;
#pragma unroll
        for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half);
        const float mean = __shfl_sync(ALL, sum, 0) / (float)SIZE;
        const float inverse = 1.0f / sqrtf(mean + attrs.eps);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = (x[i] * inverse) * weight[i];
    }
    if (pairs == 0) return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++) room[lane + WARP * i] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int e = lane + WARP * i;
        const bool is_turned = e < 2 * pairs, is_first = is_half ? e < pairs : e % 2 == 0;
        const float other = room[!is_turned ? e
                                 : !is_half ? e ^ 1
                                 : is_first ? e + pairs
                                            : e - pairs];
        const float y = is_first ? fmaf(x[i], cosine[i], -(other * sine[i]))
                                 : fmaf(other, sine[i], x[i] * cosine[i]);
        x[i] = is_turned ? y : x[i];
    }
}
