// Attention spread over the card (attend_spread.cu): scores, softmax and values of a chunk.
#pragma once

#include "cluster.cuh"
#include "spread.cuh"

// --- scores --------------------------------------------------------------------------------------

template <typename S>
static __device__ inline void tell(Shared<S> &s, const Place &x, int h, int j, float score) {
    const unsigned first = x.is_together ? (unsigned)x.chunk * S::PARTS : 0;
    float *at = &s.p[h][x.part * S::OWN + j];
    if (S::PARTS == 1) *at = score;
#pragma unroll
    for (unsigned b = 0; S::PARTS > 1 && b < S::PARTS; b++) store_at_rank(at, first + b, score);
}

template <typename S>
static __device__ inline void score_exact(Shared<S> &s, const Task &t, const Place &x) {
    const int j = (int)threadIdx.x % S::OWN, h = (int)threadIdx.x / S::OWN * S::SCORES;
    if (h >= S::N || !sees(seen_of(x, x.part * S::OWN_BLOCKS + j / BLOCK), j % BLOCK)) return;
    float sum[S::SCORES] = {};
#pragma unroll 8
    for (int i = 0; i < S::SIZE / 8; i++) {
        Eight<QN_TYPE_F16> raw;
        float k[8];
        raw.load(s.keys + j * S::ROW, i, j & 7);
        raw.unpack(k);
#pragma unroll
        for (int n = 0; n < S::SCORES; n++) {
            const float4 a = *(const float4 *)&s.q[h + n][8 * i];
            const float4 b = *(const float4 *)&s.q[h + n][8 * i + 4];
            const float q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int e = 0; e < 8; e++) sum[n] = fmaf(q[e], k[e], sum[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < S::SCORES; n++) tell(s, x, h + n, j, finish_score(sum[n], t.attrs));
}

// A warp has 8 positions; of 16 rows of the product the first N are heads.
template <typename S>
static __device__ inline void score_tensor(Shared<S> &s, const Task &t, const Place &x) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, i = lane % 4;
    const __half *q = (const __half *)s.q[g < S::N ? g : 0];
#pragma unroll 1
    for (int j = (int)threadIdx.x / WARP * 8; j < S::OWN; j += WARPS * 8) {
        const unsigned char *key = s.keys + (j + g) * S::ROW;
        float c[4] = {};
#pragma unroll
        for (int k = 0; k < S::SIZE / 16; k++) {
            const unsigned b0 = *(const unsigned *)(key + ((2 * k) ^ g) * 16 + i * 4);
            const unsigned b1 = *(const unsigned *)(key + ((2 * k + 1) ^ g) * 16 + i * 4);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const unsigned *from = (const unsigned *)(q + part * S::SIZE + 16 * k) + i;
                const unsigned a[4] = {g < S::N ? from[0] : 0, 0, g < S::N ? from[4] : 0, 0};
                mma(c, a, b0, b1);
            }
        }
        if (g >= S::N) continue;
        tell(s, x, g, j + 2 * i, finish_log(c[0], t.attrs));
        tell(s, x, g, j + 2 * i + 1, finish_log(c[1], t.attrs));
    }
}

// --- the softmax of a chunk ----------------------------------------------------------------------

// Scores become p, 0 where a position is not seen; a warp has some heads and blocks of 64 positions
// side by side. By all threads.
template <typename S> static __device__ inline void soften_exact(Shared<S> &s, const Place &x) {
    constexpr int ITEMS = (S::N * BLOCKS + WARPS - 1) / WARPS;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int k = warp % BLOCKS; // of all items of a warp, as there are 8 warps
    const Seen seen = seen_of(x, k);
    float a[ITEMS], b[ITEMS], most[ITEMS], before[ITEMS], sum[ITEMS];
#pragma unroll
    for (int n = 0; n < ITEMS; n++) {
        const float *p = s.p[(warp + n * WARPS) / BLOCKS % S::N] + k * BLOCK;
        a[n] = sees(seen, lane) ? p[lane] : -INFINITY;
        b[n] = sees(seen, lane + 32) ? p[lane + 32] : -INFINITY;
        most[n] = larger(b[n], larger(a[n], -INFINITY));
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
#pragma unroll
        for (int n = 0; n < ITEMS; n++)
            most[n] = larger(__shfl_xor_sync(ALL, most[n], half), most[n]);
    }
#pragma unroll
    for (int n = 0; n < ITEMS; n++) {
        const int h = (warp + n * WARPS) / BLOCKS;
        if (lane == 0 && h < S::N) s.most[h][k] = most[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < ITEMS; n++) {
        const int h = (warp + n * WARPS) / BLOCKS;
        const float4 blocks = *(const float4 *)s.most[h % S::N];
        before[n] = -INFINITY;
        before[n] = k > 0 ? larger(blocks.x, before[n]) : before[n];
        before[n] = k > 1 ? larger(blocks.y, before[n]) : before[n];
        before[n] = k > 2 ? larger(blocks.z, before[n]) : before[n];
        const float m = larger(most[n], before[n]); // of what is not seen: as it was
        a[n] = sees(seen, lane) ? math_exp(a[n] - m) : 0;
        b[n] = sees(seen, lane + 32) ? math_exp(b[n] - m) : 0;
        const float decay = math_exp(before[n] - m);
        if (h >= S::N) continue;
        s.p[h][k * BLOCK + lane] = a[n];
        s.p[h][k * BLOCK + lane + 32] = b[n];
        if (lane == 0) s.decay[h][k] = decay;
    }
#pragma unroll
    for (int n = 0; n < ITEMS; n++) { // lane i of 16 has p of i, i + 16, i + 32, i + 48
        sum[n] = a[n] + __shfl_down_sync(ALL, a[n], 16);
        sum[n] += b[n];
        sum[n] += __shfl_down_sync(ALL, b[n], 16);
    }
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
#pragma unroll
        for (int n = 0; n < ITEMS; n++) sum[n] += __shfl_down_sync(ALL, sum[n], half, 16);
    }
#pragma unroll
    for (int n = 0; n < ITEMS; n++) {
        const int h = (warp + n * WARPS) / BLOCKS;
        if (lane == 0 && h < S::N) s.sums[h][k] = sum[n];
    }
    __syncthreads();
}

// The same; four lanes have a block, as four lanes have a row of a product. p becomes halves: all
// hi, then all lo.
template <typename S>
static __device__ inline void soften_tensor(Shared<S> &s, const Place &x, int h) {
    const int lane = (int)threadIdx.x % WARP, k = lane / 4 % BLOCKS, i = lane % 4;
    const Seen seen = seen_of(x, k);
    float2 p[BLOCK / 8];
    float most = -INFINITY, sum = 0, m = -INFINITY, before = -INFINITY;
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++) {
        p[n] = *(const float2 *)&s.p[h][k * BLOCK + 8 * n + 2 * i];
        most = sees(seen, 8 * n + 2 * i) ? larger(p[n].x, most) : most;
        most = sees(seen, 8 * n + 2 * i + 1) ? larger(p[n].y, most) : most;
    }
    most = larger(__shfl_xor_sync(ALL, most, 1), most);
    most = larger(__shfl_xor_sync(ALL, most, 2), most);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) { // up to this lane's block
        const float of = __shfl_sync(ALL, most, 4 * b);
        before = b <= k ? m : before;
        m = b <= k ? larger(of, m) : m;
    }
    const float base = base_of(m), decay = power_of_2(before - base);
    unsigned *to = (unsigned *)s.p[h];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++) {
        p[n].x = sees(seen, 8 * n + 2 * i) ? power_of_2(p[n].x - base) : 0;
        p[n].y = sees(seen, 8 * n + 2 * i + 1) ? power_of_2(p[n].y - base) : 0;
        sum += p[n].x;
        sum += p[n].y;
        const Halves halves = split(p[n].x, p[n].y);
        if (lane < 16) {
            to[(k * BLOCK + 8 * n) / 2 + i] = halves.hi;
            to[(CHUNK + k * BLOCK + 8 * n) / 2 + i] = halves.lo;
        }
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    if (i == 0 && lane < 4 * BLOCKS) {
        s.most[h][k] = most;
        s.decay[h][k] = decay;
        s.sums[h][k] = sum;
    }
}

// --- values --------------------------------------------------------------------------------------

template <typename S>
static __device__ inline void add_exact(float (&o)[S::OUTS], const Shared<S> &s, const Place &x,
                                        const Own<S> &own) {
#pragma unroll 1
    for (int k = 0; k < BLOCKS; k++) {
        if (!seen_of(x, k).end) continue;
        const uint16_t *v = (const uint16_t *)(s.values + k * BLOCK * S::V_ROW) + own.f;
#pragma unroll
        for (int n = 0; n < S::OUTS; n++) o[n] *= s.decay[own.h + n][k];
#pragma unroll(S::OUTS > 2 ? 2 : 8)
        for (int j = 0; j < BLOCK; j += 8) {
            float w[8];
#pragma unroll
            for (int i = 0; i < 8; i++) w[i] = __half2float(__ushort_as_half(v[(j + i) * S::COLS]));
#pragma unroll
            for (int n = 0; n < S::OUTS; n++) {
                const float *p = &s.p[own.h + n][k * BLOCK + j];
                const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
                const float all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (int i = 0; i < 8; i++) o[n] = fmaf(all[i], w[i], o[n]);
            }
        }
    }
}

// A warp has 8 values.
template <typename S>
static __device__ inline void add_tensor(float (&o)[S::OUTS], const Shared<S> &s, const Place &x,
                                         const Own<S> &own) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, i = lane % 4;
    const bool is_head = own.h < S::N;
    const unsigned *p = (const unsigned *)s.p[is_head ? own.h : 0];
    float c[4] = {};
#pragma unroll 1
    for (int k = 0; k < BLOCKS; k++) {
        if (!seen_of(x, k).end) continue;
        const float decay = s.decay[is_head ? own.h : 0][k];
        c[0] *= decay;
        c[1] *= decay;
#pragma unroll
        for (int j = 0; j < BLOCK; j += 32) {
            unsigned v[4];
            load_transposed(v, s.values + place_of<S>(k * BLOCK + j + lane, warp));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = (k * BLOCK + j + 16 * half) / 2 + i;
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const unsigned *from = p + part * CHUNK / 2 + at;
                    const unsigned a[4] = {is_head ? from[0] : 0, 0, is_head ? from[4] : 0, 0};
                    mma(c, a, v[2 * half], v[2 * half + 1]);
                }
            }
        }
    }
    o[0] = c[0];
    o[1] = c[1];
}
