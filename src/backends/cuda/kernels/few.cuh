// Products of a few rows of 12-bit activations and four rows of a weight, by a block of threads of
// four warps: for decoding, where the time is that of reading weights.
//
// A warp does four blocks of 256 at a time, eight lanes each; a lane has 32 products of every
// output and row. Sums over the lanes of a block are transposed, so that lane i of the eight ends
// with output i % 4: the integers of its products (i < 4) or of its offsets. Partials go to shared
// memory, and are added in order at the end.
#pragma once

#include "weights.cuh"

constexpr int FEW_WARPS = 4, FEW_OUTS = 4, FEW_BLOCKS = 64; // blocks of a row at a time

static __host__ __device__ inline bool few_reads(int type) {
    return type == QN_TYPE_Q4_K || type == QN_TYPE_Q6_K || type == QN_TYPE_Q8_0;
}

// 32 weights of a lane: bytes w, and what they are multiplied by.
struct Lane {
    int w[8];
    int scale[2], offset; // Q4_K: one scale, and the offset; Q6_K: two scales
    float S, M;           // of the block; Q8_0: of the 32 values
};

static __device__ inline float half_of(uint32_t bits) { return qn_half_decode((uint16_t)bits); }

template <int TYPE> static __device__ inline void load_lane(Lane &l, const unsigned char *b, int j);

template <> __device__ inline void load_lane<QN_TYPE_Q4_K>(Lane &l, const unsigned char *b, int j) {
    const uint4 h = *(const uint4 *)b;
    const uint4 *q = (const uint4 *)(b + 16 + j / 2 * 32);
    const uint4 q0 = q[0], q1 = q[1];
    const int shift = j % 2 * 4, at = j % 4 * 8;
    const bool is_low = j < 4;
    l.S = half_of(h.x);
    l.M = half_of(h.x >> 16);
    l.scale[0] = is_low ? h.y >> at & 63 : (h.w >> at & 15) | (h.y >> (at + 6) & 3) << 4;
    l.offset = is_low ? h.z >> at & 63 : (h.w >> (at + 4) & 15) | (h.z >> (at + 6) & 3) << 4;
    const uint32_t words[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
#pragma unroll
    for (int i = 0; i < 8; i++) l.w[i] = (int)(words[i] >> shift & 0x0f0f0f0fu);
}

// The integers are 32 too large: see sums_of_lane.
template <> __device__ inline void load_lane<QN_TYPE_Q6_K>(Lane &l, const unsigned char *b, int j) {
    const uint4 *low = (const uint4 *)(b + j / 4 * 64 + j % 2 * 32);
    const uint4 *high = (const uint4 *)(b + 128 + j / 4 * 32);
    const uint4 l0 = low[0], l1 = low[1], h0 = high[0], h1 = high[1];
    const uint32_t scales = *(const uint16_t *)(b + 192 + 2 * j);
    const int shift = j % 4 / 2 * 4, bits = j % 4 * 2;
    l.S = half_of(*(const uint16_t *)(b + 208));
    l.scale[0] = (int8_t)(scales & 255);
    l.scale[1] = (int8_t)(scales >> 8);
    const uint32_t lows[8] = {l0.x, l0.y, l0.z, l0.w, l1.x, l1.y, l1.z, l1.w};
    const uint32_t highs[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        l.w[i] = (int)((lows[i] >> shift & 0x0f0f0f0fu) | (highs[i] >> bits & 0x03030303u) << 4);
}

template <> __device__ inline void load_lane<QN_TYPE_Q8_0>(Lane &l, const unsigned char *b, int j) {
    b += j * QN_CUDA_Q8_0_BYTES;
    l.S = half_of(*(const uint16_t *)b);
#pragma unroll
    for (int i = 0; i < 8; i++) l.w[i] = ((const int *)(b + 2 + QN_CUDA_Q8_0_SHIFT))[i];
}

// 32 activations of a lane.
struct Inputs {
    int hi[8], lo[8];
    int sums[2]; // of 16
};

static __device__ inline void load_inputs(Inputs &x, const qn_cuda_i12 *b, int j) {
    const int4 *hi = (const int4 *)(b->hi + 32 * j), *lo = (const int4 *)(b->lo + 32 * j);
    *(int4 *)&x.hi[0] = hi[0];
    *(int4 *)&x.hi[4] = hi[1];
    *(int4 *)&x.lo[0] = lo[0];
    *(int4 *)&x.lo[4] = lo[1];
    const short2 sums = *(const short2 *)(b->sums + 2 * j);
    x.sums[0] = sums.x;
    x.sums[1] = sums.y;
}

// t: the lane's share of the block's products; o: of its offsets.
template <int TYPE>
static __device__ inline void sums_of_lane(int &t, int &o, const Lane &l, const Inputs &x) {
    int hi[2] = {0, 0}, lo[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        hi[i / 4] = __dp4a(l.w[i], x.hi[i], hi[i / 4]);
        lo[i / 4] = __dp4a(l.w[i], x.lo[i], lo[i / 4]);
    }
    o = 0;
    if (TYPE == QN_TYPE_Q6_K) {
        t = l.scale[0] * (256 * hi[0] + lo[0] - 32 * x.sums[0]) +
            l.scale[1] * (256 * hi[1] + lo[1] - 32 * x.sums[1]);
        return;
    }
    t = 256 * (hi[0] + hi[1]) + lo[0] + lo[1];
    if (TYPE != QN_TYPE_Q4_K) return;
    t *= l.scale[0];
    o = l.offset * (x.sums[0] + x.sums[1]);
}

// v[i] of eight lanes, i < 8, summed: lane i ends with the sum of the v[i].
static __device__ inline int transposed_sum(const int v[8]) {
    const int lane = threadIdx.x % 8;
    int a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++) { // half of the values go to the lane 4 away
        const bool is_high = lane & 4;
        const int send = is_high ? v[i] : v[i + 4], keep = is_high ? v[i + 4] : v[i];
        a[i] = keep + __shfl_xor_sync(ALL, send, 4);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool is_high = lane & 2;
        const int send = is_high ? a[i] : a[i + 2], keep = is_high ? a[i + 2] : a[i];
        b[i] = keep + __shfl_xor_sync(ALL, send, 2);
    }
    const bool is_high = lane & 1;
    const int send = is_high ? b[0] : b[1], keep = is_high ? b[1] : b[0];
    return keep + __shfl_xor_sync(ALL, send, 1);
}

// Value i of four, by a lane.
template <typename T> static __device__ inline T pick(const T v[4], int i) {
    const T a = i & 1 ? v[1] : v[0], b = i & 1 ? v[3] : v[2];
    return i & 2 ? b : a;
}

// p of a block for output lane % 4, in lanes 0 to 3 of the eight.
template <int TYPE>
static __device__ inline float partial(const Lane l[FEW_OUTS], const Inputs &x, float da) {
    int v[8];
#pragma unroll
    for (int o = 0; o < FEW_OUTS; o++) sums_of_lane<TYPE>(v[o], v[o + 4], l[o], x);
    if (TYPE == QN_TYPE_Q8_0) { // a chain of floats through the eight groups
        const int base = threadIdx.x % WARP & ~7, i = threadIdx.x % 4;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float mine[FEW_OUTS];
            int t[FEW_OUTS];
#pragma unroll
            for (int o = 0; o < FEW_OUTS; o++) {
                mine[o] = __shfl_sync(ALL, l[o].S, base + j);
                t[o] = __shfl_sync(ALL, v[o], base + j);
            }
            sum = fmaf(pick(mine, i), (float)pick(t, i), sum);
        }
        return da * sum;
    }
    const int sum = transposed_sum(v), i = threadIdx.x % 4;
    const float S[FEW_OUTS] = {l[0].S, l[1].S, l[2].S, l[3].S};
    float value = pick(S, i) * (float)sum;
    if (TYPE == QN_TYPE_Q4_K) {
        const float M[FEW_OUTS] = {l[0].M, l[1].M, l[2].M, l[3].M};
        const int offsets = __shfl_down_sync(ALL, sum, 4, 8);
        value = fmaf(-pick(M, i), (float)offsets, value);
    }
    return da * value;
}

// Where four outputs lie: two rows of a weight from `row` on, and two of the same or another one.
struct Outputs {
    const unsigned char *first, *second;
    int64_t row, second_row;
};

// y of FEW_OUTS outputs and ROWS rows: thread (row * FEW_OUTS + output) of the block of threads
// gets its sum. `room` holds FEW_BLOCKS * ROWS * FEW_OUTS floats.
template <int TYPE, int ROWS>
static __device__ inline float few_dots(const Outputs &out, const unsigned char *const x[ROWS],
                                        int64_t n, float *room) {
    constexpr int BYTES = TYPE == QN_TYPE_Q4_K   ? 144
                          : TYPE == QN_TYPE_Q6_K ? QN_CUDA_Q6_K_BYTES
                                                 : 8 * QN_CUDA_Q8_0_BYTES; // of 256 values
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, j = lane % 8;
    const int blocks = (int)(n / QN_CUDA_BLOCK);
    const int64_t stride = (int64_t)blocks * BYTES;
    const unsigned char *a = out.first + out.row * stride,
                        *b0 = out.second + out.second_row * stride;
    const unsigned char *const w[FEW_OUTS] = {a, a + stride, b0, b0 + stride};
    float y = 0;
    for (int first = 0; first < blocks; first += FEW_BLOCKS) {
        const int end = first + FEW_BLOCKS < blocks ? first + FEW_BLOCKS : blocks;
        for (int at = first + 4 * warp; at < end; at += 4 * FEW_WARPS) {
            const bool is_there = at + lane / 8 < end;
            const int b = is_there ? at + lane / 8 : end - 1;
            Lane l[FEW_OUTS];
#pragma unroll
            for (int o = 0; o < FEW_OUTS; o++) load_lane<TYPE>(l[o], w[o] + b * BYTES, j);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const qn_cuda_i12 *block = (const qn_cuda_i12 *)x[r] + b;
                Inputs in;
                load_inputs(in, block, j);
                const float p = partial<TYPE>(l, in, block->scale);
                if (j < FEW_OUTS && is_there) room[((b - first) * ROWS + r) * FEW_OUTS + j] = p;
            }
        }
        __syncthreads();
        if (threadIdx.x < ROWS * FEW_OUTS)
            for (int b = 0; b < end - first; b++) y += room[b * ROWS * FEW_OUTS + threadIdx.x];
        __syncthreads();
    }
    return y;
}

// The same for a type that is known at run time.
template <int ROWS>
static __device__ inline float few_dots_as(int type, const Outputs &out,
                                           const unsigned char *const x[ROWS], int64_t n,
                                           float *room) {
    if (type == QN_TYPE_Q4_K) return few_dots<QN_TYPE_Q4_K, ROWS>(out, x, n, room);
    if (type == QN_TYPE_Q6_K) return few_dots<QN_TYPE_Q6_K, ROWS>(out, x, n, room);
    return few_dots<QN_TYPE_Q8_0, ROWS>(out, x, n, room);
}

// Outputs row ... row + 3 of a weight.
template <int ROWS>
static __device__ inline float few_dots_of(const Operand &w, int64_t row,
                                           const unsigned char *const x[ROWS], float *room) {
    return few_dots_as<ROWS>(w.type, Outputs{w.data, w.data, row, row + 2}, x, w.width, room);
}

// Outputs row and row + 1 of a gate, then of what it gates: both are read at the same time. They
// have one type. A thread of the first two outputs of a row gets its gate's sum, and the other's in
// `up`.
template <int ROWS>
static __device__ inline float few_pairs_of(float &up, const Operand &a, const Operand &b,
                                            int64_t row, const unsigned char *const x[ROWS],
                                            float *room) {
    const float y = few_dots_as<ROWS>(a.type, Outputs{a.data, b.data, row, row}, x, a.width, room);
    up = __shfl_down_sync(ALL, y, 2, 4);
    return y;
}

// Whether the outputs of a weight can be done so.
static inline bool few_takes(const Operand &w, int64_t outputs) {
    return few_reads(w.type) && w.width % QN_CUDA_BLOCK == 0 && outputs % FEW_OUTS == 0;
}
