// What all kernels share: rows of operands, sums in lanes, rounding into packed forms.
//
// Compiled without contraction: a fused multiply-add is written as fmaf, everything else is one
// operation, rounded. So the bits are those of docs/numbers.md.
#pragma once

#include "backends/cuda/cuda_task.h"
#include "backends/kernel_math.h"

#include <cuda_runtime.h>

typedef qn_cuda_task Task;
typedef qn_cuda_operand Operand;
constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;

// A launch of a kernel in a stream; the error comes from cudaGetLastError.
#define LAUNCHER(name) void qn_launch_##name(const Task *task, cudaStream_t stream)

template <typename T> static __host__ __device__ inline T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

// Blocks of threads of a grid with this much to do; a grid has at least one.
static inline unsigned grid_of(int64_t n, int64_t limit = INT32_MAX) {
    return (unsigned)(n < 1 ? 1 : n > limit ? limit : n);
}

// --- operands ------------------------------------------------------------------------------------

static __host__ __device__ inline int64_t block_bytes(int form) {
    return form == QN_WORD_i12_256   ? (int64_t)sizeof(qn_cuda_i12)
           : form == QN_WORD_i16_256 ? (int64_t)sizeof(qn_cuda_i16)
                                     : (int64_t)sizeof(qn_cuda_i8);
}

static __device__ inline int64_t part_bytes(int form, int64_t width) {
    return form == QN_WORD_f32 ? width * 4
                               : ceil_div(width, (int64_t)QN_CUDA_BLOCK) * block_bytes(form);
}

static __device__ inline unsigned char *row_at(const Operand &x, int64_t r) {
    return x.data + r * x.stride;
}
static __device__ inline float *floats_at(const Operand &x, int64_t r) {
    return (float *)(x.data + r * x.stride);
}
static __device__ inline unsigned char *part_at(const Operand &x, int64_t r, int64_t p) {
    return x.data + r * x.stride + p * part_bytes(x.form, x.width);
}

// An input that comes with the step, or lies in memory. NULL: absent.
static __device__ inline const unsigned char *input_at(const Task &t, int i, int64_t r) {
    const Operand &x = t.in[i];
    const qn_step *s = t.step;
    const void *base = x.data;
    if (x.field == QN_STEP_IDS) base = s->ids;
    if (x.field == QN_STEP_ROW_OUT) base = s->row_out;
    if (x.field == QN_STEP_EXTRA) base = s->n_extra ? s->extra : nullptr;
    if (x.field == QN_STEP_EXTRA_ROW) base = s->extra_row;
    return base ? (const unsigned char *)base + r * x.stride : nullptr;
}

// Blocks of a type in a file, and in a KV cache.
struct TypeSize {
    int block, bytes;
};
static __host__ __device__ inline TypeSize type_size(int type) {
    switch (type) {
#define TYPE(name, gguf, block, bytes, safetensors, support)                                       \
    case QN_TYPE_##name:                                                                           \
        return {block, bytes};
#include "quant/types.def"
#undef TYPE
    default:
        return {1, 1};
    }
}
// The same of a weight on the card.
static __host__ __device__ inline TypeSize weight_size(int type) {
    const TypeSize size = type_size(type);
    return {size.block, qn_cuda_block_bytes(type, size.bytes)};
}
static __host__ __device__ inline int64_t row_of_type(int type, int64_t width) {
    const TypeSize size = weight_size(type);
    return width / size.block * size.bytes;
}

// The activation of a gate.
static __device__ inline float activate(float x, int act) {
    return act == QN_WORD_gelu ? math_gelu(x) : math_silu(x);
}

// --- sums in lanes -------------------------------------------------------------------------------

// 64 lanes, by the first 64 threads of the block; `room` holds 64. All threads get the sum.
template <typename Add>
static __device__ inline float sum_64(const float *x, int64_t n, float *room, Add add) {
    const int l = threadIdx.x;
    if (l < 64) {
        float sum = 0;
#pragma unroll 8
        for (int64_t i = l; i < n; i += 64) sum = add(sum, x[i]);
        room[l] = sum;
    }
    __syncthreads();
    if (l < WARP) {
        float sum = room[l] + room[l + 32];
        for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half);
        if (l == 0) room[0] = sum;
    }
    __syncthreads();
    const float sum = room[0];
    __syncthreads();
    return sum;
}

static __device__ inline float sum_squares(const float *x, int64_t n, float *room) {
    return sum_64(x, n, room, [](float sum, float v) { return fmaf(v, v, sum); });
}

// --- packed forms --------------------------------------------------------------------------------

static __device__ inline float warp_max(float x) {
    for (int half = 16; half > 0; half /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, half));
    return x;
}

static __device__ inline int sum_of_16(int x) {
    for (int half = 8; half > 0; half /= 2) x += __shfl_xor_sync(ALL, x, half);
    return x;
}

static __device__ inline float scale_of(float largest, bool is_broken, float max_q) {
    return is_broken ? nanf("") : largest / max_q;
}

static __device__ inline int round_one(float x, float scale, float max_q) {
    if (!(scale > 0)) return 0;
    const float y = x / scale;
    return (int)rintf(y > max_q ? max_q : y < -max_q ? -max_q : y);
}

// A warp rounds a block: lane l has values l, l + 32, ..., zeros after the end of the row.
static __device__ inline void round_block(unsigned char *to, int form, const float v[8]) {
    const int l = threadIdx.x % WARP;
    float largest[8];
    bool broken = false;
    for (int i = 0; i < 8; i++) {
        broken |= !isfinite(v[i]);
        largest[i] = warp_max(fabsf(v[i]));
    }
    if (form == QN_WORD_i8_32) {
        qn_cuda_i8 *b = (qn_cuda_i8 *)to;
        for (int i = 0; i < 8; i++) {
            const bool is_broken = __any_sync(ALL, !isfinite(v[i]));
            const float scale = scale_of(largest[i], is_broken, 127);
            const int q = round_one(v[i], scale, 127), sum = sum_of_16(q);
            b->q[32 * i + l] = (int8_t)q;
            if (l == 0) b->scales[i] = scale;
            if (l % 16 == 0) b->sums[2 * i + l / 16] = (int16_t)sum;
        }
        return;
    }
    const bool is_i12 = form == QN_WORD_i12_256;
    const float max_q = is_i12 ? 2047 : 32767;
    float most = 0;
    for (int i = 0; i < 8; i++) most = fmaxf(most, largest[i]);
    const float scale = scale_of(most, __any_sync(ALL, broken), max_q);
    int8_t *hi = (int8_t *)to, *lo = hi + QN_CUDA_BLOCK;
    for (int i = 0; i < 8; i++) {
        const int q = round_one(v[i], scale, max_q), sum = sum_of_16(q);
        const int high = is_i12 ? (q + 128) >> 8 : q >> 8;
        hi[32 * i + l] = (int8_t)high;
        lo[32 * i + l] = (int8_t)(is_i12 ? q - 256 * high : q - 256 * high - 128);
        if (l % 16 == 0) {
            if (is_i12)
                ((qn_cuda_i12 *)to)->sums[2 * i + l / 16] = (int16_t)sum;
            else
                ((qn_cuda_i16 *)to)->sums[2 * i + l / 16] = sum;
        }
    }
    if (l == 0) *(is_i12 ? &((qn_cuda_i12 *)to)->scale : &((qn_cuda_i16 *)to)->scale) = scale;
}

// The warps of a block of threads bring a part of n values into a form; value(i) is number i.
template <typename Value>
static __device__ inline void round_part(unsigned char *to, int form, int64_t n, Value value) {
    if (form == QN_WORD_f32) {
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) ((float *)to)[i] = value(i);
        return;
    }
    const int l = threadIdx.x % WARP;
    for (int64_t b = threadIdx.x / WARP; b * QN_CUDA_BLOCK < n; b += blockDim.x / WARP) {
        float v[8];
        for (int i = 0; i < 8; i++) {
            const int64_t k = b * QN_CUDA_BLOCK + 32 * i + l;
            v[i] = k < n ? value(k) : 0.0f;
        }
        round_block(to + b * block_bytes(form), form, v);
    }
}
