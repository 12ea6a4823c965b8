// The sum of products of a row of activations and a row of a weight, by one warp.
//
// Blocks of 256: eight lanes have 32 products each, so that a warp does four blocks at a time.
// Integers are summed in any order; floats in the order of docs/numbers.md.
#pragma once

#include "weights.cuh"

static __device__ inline int sum_of_8(int x) {
    for (int half = 4; half > 0; half /= 2) x += __shfl_xor_sync(ALL, x, half);
    return x;
}

static __device__ inline int load4(const int8_t *p) { return *(const int *)p; }

// The products of half h of a group: w times four bytes at a time, which at(i) finds.
template <typename At> static __device__ inline int dot_half(const int *w, int h, At at) {
    int sum = 0;
    for (int i = 4 * h; i < 4 * h + 4; i++) sum = __dp4a(w[i], load4(at(i)), sum);
    return sum;
}

// Sums of w * q and of q in both halves of the 32 values of a lane.
struct Sums {
    int t[2], a[2];
};

static __device__ inline Sums sums_of(const Group &g, const unsigned char *x, int form, int j) {
    Sums s;
    for (int h = 0; h < 2; h++) {
        if (form == QN_WORD_i8_32) {
            const qn_cuda_i8 *b = (const qn_cuda_i8 *)x;
            s.t[h] = dot_half(g.w, h, [=](int i) { return b->q + 32 * j + 4 * i; });
            s.a[h] = b->sums[2 * j + h];
            continue;
        }
        if (form == QN_WORD_i12_256) {
            const qn_cuda_i12 *b = (const qn_cuda_i12 *)x;
            const auto at = [=](int i) { return qn_cuda_i12_at(32 * j + 4 * i); };
            s.t[h] = 256 * dot_half(g.w, h, [=](int i) { return b->hi + at(i); }) +
                     dot_half(g.w, h, [=](int i) { return b->lo + at(i); });
            s.a[h] = b->sums[2 * j + h];
            continue;
        }
        const qn_cuda_i16 *b = (const qn_cuda_i16 *)x;
        s.t[h] = 256 * dot_half(g.w, h, [=](int i) { return b->hi + 32 * j + 4 * i; }) +
                 dot_half(g.w, h, [=](int i) { return b->lo + 32 * j + 4 * i; });
        int ones = 0;
        for (int i = 4 * h; i < 4 * h + 4; i++) ones = __dp4a(g.w[i], 0x01010101, ones);
        s.t[h] += 128 * ones;
        s.a[h] = b->sums[2 * j + h];
    }
    return s;
}

static __device__ inline float scale_of_block(const unsigned char *x, int form) {
    return form == QN_WORD_i12_256 ? ((const qn_cuda_i12 *)x)->scale
                                   : ((const qn_cuda_i16 *)x)->scale;
}

// p of one block, in all eight lanes; lane j of them has group j.
static __device__ inline float block_scaled(const Group &g, const Sums &s, int type, float da) {
    const bool halved = is_halved(type);
    int t = halved ? g.scale[0] * s.t[0] + g.scale[1] * s.t[1] : g.scale[0] * (s.t[0] + s.t[1]);
    t = sum_of_8(t);
    float v = g.S * (float)t;
    if (has_offsets(type)) {
        int o =
            halved ? g.offset[0] * s.a[0] + g.offset[1] * s.a[1] : g.offset[0] * (s.a[0] + s.a[1]);
        o = sum_of_8(o);
        v = fmaf(-g.M, (float)o, v);
    }
    return da * v;
}

// One float for each group: a chain through the lanes. `form` is i16_256, i12_256 or i8_32.
static __device__ inline float block_grouped(const Group &g, const Sums &s, int type, int form,
                                             const unsigned char *x, int n_groups) {
    const int first = threadIdx.x % WARP / 8 * 8, j = threadIdx.x % 8;
    const bool halved = is_halved(type), offsets = has_offsets(type);
    const float da = form == QN_WORD_i8_32 ? ((const qn_cuda_i8 *)x)->scales[j] : 0;
    float v = 0;
    for (int from = 0; from < 8; from++) {
        for (int h = 0; h <= (int)halved; h++) {
            const int t = halved ? s.t[h] : s.t[0] + s.t[1], a = halved ? s.a[h] : s.a[0] + s.a[1];
            const float scale = g.S * (float)g.scale[h], offset = g.M * (float)g.offset[h];
            // What is rounded before the chain is rounded where it is.
            const bool is_i8 = form == QN_WORD_i8_32;
            const float mine = is_i8 ? scale * (float)t : scale;
            const float by = is_i8 ? da : (float)t;
            const float sum = is_i8 ? da * (float)a : (float)a;
            const float m = __shfl_sync(ALL, mine, first + from);
            const float b = __shfl_sync(ALL, by, first + from);
            const float n = __shfl_sync(ALL, offset, first + from);
            const float q = __shfl_sync(ALL, sum, first + from);
            if (from >= n_groups) continue;
            v = fmaf(m, b, v);
            if (offsets) v = fmaf(-n, q, v);
        }
    }
    return form == QN_WORD_i8_32 ? v : scale_of_block(x, form) * v;
}

// y[r] += the products of w and x[r], n of them. For integer weights and packed activations.
template <int ROWS>
static __device__ inline void dot_ints(float y[ROWS], const unsigned char *const x[ROWS], int form,
                                       const WeightRow &w, int64_t n) {
    const int lane = threadIdx.x % WARP, j = lane % 8, type = w.type;
    const int64_t x_bytes = block_bytes(form);
    const int64_t blocks = ceil_div(n, (int64_t)QN_CUDA_BLOCK);
    const bool scaled = is_scaled(type) && form == QN_WORD_i12_256;
    for (int64_t b0 = 0; b0 < blocks; b0 += 4) {
        const int64_t b = b0 + lane / 8;
        const bool is_there = b < blocks && b * QN_CUDA_BLOCK + 32 * j < n;
        Group g = {};
        if (is_there) group_at(g, w, b, j);
        const int64_t at = b < blocks ? b : blocks - 1;
        const int n_groups =
            (int)ceil_div(n - at * QN_CUDA_BLOCK < QN_CUDA_BLOCK ? n - at * QN_CUDA_BLOCK
                                                                 : (int64_t)QN_CUDA_BLOCK,
                          (int64_t)32);
        for (int r = 0; r < ROWS; r++) {
            const unsigned char *block = x[r] + at * x_bytes;
            Sums s = {};
            if (is_there) s = sums_of(g, block, form, j);
            const float p = scaled ? block_scaled(g, s, type, scale_of_block(block, form))
                                   : block_grouped(g, s, type, form, block, n_groups);
            for (int k = 0; k < 4; k++) {
                const float part = __shfl_sync(ALL, p, 8 * k);
                if (b0 + k < blocks) y[r] += part;
            }
        }
    }
}

// Number i of a row of activations.
static __device__ inline float activation_at(const unsigned char *x, int form, int64_t i) {
    if (form == QN_WORD_f32) return ((const float *)x)[i];
    const unsigned char *b = x + i / QN_CUDA_BLOCK * block_bytes(form);
    const int k = (int)(i % QN_CUDA_BLOCK);
    if (form == QN_WORD_i8_32) {
        const qn_cuda_i8 *p = (const qn_cuda_i8 *)b;
        return (float)p->q[k] * p->scales[k / 32];
    }
    const bool is_i12 = form == QN_WORD_i12_256;
    const int8_t *hi = (const int8_t *)b, *lo = hi + QN_CUDA_BLOCK;
    const int at = is_i12 ? qn_cuda_i12_at(k) : k;
    const int q = 256 * hi[at] + lo[at] + (is_i12 ? 0 : 128);
    return (float)q * scale_of_block(b, form);
}

// The same for float weights, and for floats: a lane has a block, 256 products in a chain.
static __device__ inline float dot_floats(const unsigned char *x, int form, const WeightRow &w,
                                          int64_t n) {
    const int lane = threadIdx.x % WARP;
    const int64_t blocks = ceil_div(n, (int64_t)QN_CUDA_BLOCK);
    float y = 0;
    for (int64_t b0 = 0; b0 < blocks; b0 += WARP) {
        const int64_t first = (b0 + lane) * QN_CUDA_BLOCK;
        const int64_t end = first + QN_CUDA_BLOCK < n ? first + QN_CUDA_BLOCK : n;
        float p = 0;
        for (int64_t k = first; k < end; k++)
            p = fmaf(weight_at(w, k), activation_at(x, form, k), p);
        for (int k = 0; k < WARP; k++) {
            const float part = __shfl_sync(ALL, p, k);
            if (b0 + k < blocks) y += part;
        }
    }
    return y;
}

// y[r] = the sum of products, by a warp; all lanes get it.
template <int ROWS>
static __device__ inline void dot_rows(float y[ROWS], const unsigned char *const x[ROWS], int form,
                                       const WeightRow &w, int64_t n) {
    for (int r = 0; r < ROWS; r++) y[r] = 0;
    if (form != QN_WORD_f32 && !is_float_type(w.type))
        dot_ints<ROWS>(y, x, form, w, n);
    else
        for (int r = 0; r < ROWS; r++) y[r] = dot_floats(x[r], form, w, n);
}
