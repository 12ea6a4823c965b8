// What all kernels share: rows of operands, sums in lanes, rounding into packed forms.
//
// Compiled without contraction: a fused multiply-add is written as fmaf, everything else is one
// operation, rounded. So the bits are those of docs/numbers.md.
#pragma once

#include "backends/cuda/cuda_task.h"
#include "backends/kernel_math.h"

#include <cuda_runtime.h>
#include <utility>

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

// --- one kernel after the other ------------------------------------------------------------------

// Kernels are launched while the one before them still runs, so that what does not depend on it is
// done meanwhile. Each of them calls this before it reads or writes what another kernel does: it
// returns when all that were launched before have ended, as each of those has waited, too.
static __device__ inline void await_others() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as all blocks of threads of this one have begun.
static __device__ inline void admit_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first words of a kernel that has nothing to do before.
static __device__ inline void begin() {
    admit_next();
    await_others();
}

// Whether the card can, and the code waits; others run one kernel after the other.
static inline bool has_early_starts() {
    int card = 0, major = 0;
#ifndef QN_CUDA_HAS_90A
    return false;
#endif
    return !cudaGetDevice(&card) &&
           !cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card) && major >= 9;
}

// Launches a kernel that calls await_others; errors come from cudaGetLastError.
template <typename... Params, typename... Args>
static inline void start(void (*kernel)(Params...), dim3 grid, dim3 threads, size_t shared,
                         cudaStream_t stream, Args &&...args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = has_early_starts();
    (void)cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

// Lets a kernel have so many bytes of shared memory; false: the card has less.
template <typename Kernel> static inline bool allow_shared(Kernel *kernel, size_t bytes) {
    int card = 0, most = 0;
    if (cudaGetDevice(&card) ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, card))
        return false;
    return bytes <= (size_t)most &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
               cudaSuccess;
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

// Row i of x; parts count as rows. Most have one part: then nothing is divided.
static __device__ inline unsigned char *at_row(const Operand &x, int64_t i) {
    if (x.parts == 1) return x.data + i * x.stride;
    const uint32_t r = (uint32_t)i / (uint32_t)x.parts, p = (uint32_t)i % (uint32_t)x.parts;
    return part_at(x, r, p);
}

// Weights of a matmul: its inputs after the first, as far as they are there.
static inline int count_weights(const Task *task) {
    int n = 0;
    while (n + 1 < QN_MAX_IN && task->in[n + 1].data) n++;
    return n;
}

// Matrix i of a weight with one for each expert, of n rows: it begins at row `first` of the result.
// Without data it is not to be computed now.
static __device__ inline Operand matrix_of(const Operand &w, int64_t i, int64_t n, int64_t *first) {
    Operand matrix = w;
    *first = w.places ? 0 : i * n;
    if (w.places) matrix.data = (unsigned char *)w.places[i];
    return matrix;
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

// Blocks of a type.
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
// The activation of a gate.
static __device__ inline float activate(float x, int act) {
    return act == QN_WORD_gelu ? math_gelu(x) : math_silu(x);
}

// --- sums in lanes -------------------------------------------------------------------------------

// 64 lanes, by the first 64 threads of the block; `room` holds 64. All threads get the sum.
template <typename Add>
static __device__ inline float sum_64(const float *x, int n, float *room, Add add) {
    const int l = threadIdx.x;
    if (l < 64) {
        float sum = 0;
#pragma unroll 16
        for (int i = l; i < n; i += 64) sum = add(sum, x[i]);
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

static __device__ inline float sum_squares(const float *x, int n, float *room) {
    return sum_64(x, n, room, [](float sum, float v) { return fmaf(v, v, sum); });
}

// --- packed forms --------------------------------------------------------------------------------

static __device__ inline float warp_max(float x) {
    for (int half = 16; half > 0; half /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, half));
    return x;
}

// x / scale, rounded to an integer. A division takes long. With the rounded reciprocal, a quotient
// that is off by a last place becomes the rounded one by a correction (Markstein); it is so after
// the first, while nothing leaves the range of normal numbers or is far below 1/2.
struct Divisor {
    float scale, inverse;
    bool is_plain;
    __device__ explicit Divisor(float s) : scale(s), is_plain(s > 0x1p-90f && s < 0x1p90f) {
        inverse = is_plain ? 1.0f / s : 0.0f;
    }
    __device__ int round(float x, float max_q) const {
        float y = 0;
        if (is_plain) {
            y = x * inverse;
            y = fmaf(fmaf(-y, scale, x), inverse, y);
            y = fmaf(fmaf(-y, scale, x), inverse, y);
        } else if (scale > 0) {
            y = x / scale;
        }
        return (int)rintf(y > max_q ? max_q : y < -max_q ? -max_q : y);
    }
};

static __device__ inline uint32_t pack_bytes(const int v[4]) {
    return (v[0] & 255) | (v[1] & 255) << 8 | (v[2] & 255) << 16 | (uint32_t)v[3] << 24;
}
// Eight values; four of them are `step` bytes after the other four.
static __device__ inline void store_bytes(int8_t *to, int step, const int v[8]) {
    *(uint32_t *)to = pack_bytes(v);
    *(uint32_t *)(to + step) = pack_bytes(v + 4);
}

// The largest of the values, infinite where one of them is no number.
static __device__ inline float largest_of(const float v[8]) {
    float most = 0;
    bool is_broken = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        is_broken |= !isfinite(v[i]);
        most = fmaxf(most, fabsf(v[i]));
    }
    return is_broken ? INFINITY : most;
}

static __device__ inline float scale_of(float largest, float max_q) {
    return isinf(largest) ? nanf("") : largest / max_q;
}

// Four lanes have a group of 32, two of them a half.
static __device__ inline void round_i8(qn_cuda_i8 *to, const float v[8]) {
    const int l = threadIdx.x % WARP;
    float most = largest_of(v);
    for (int half = 2; half > 0; half /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, half));
    const float scale = scale_of(most, 127);
    const Divisor by(scale);
    int q[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += q[i] = by.round(v[i], 127);
    sum += __shfl_xor_sync(ALL, sum, 1);
    store_bytes(to->q + 8 * l, 4, q);
    if (l % 4 == 0) to->scales[l / 4] = scale;
    if (l % 2 == 0) to->sums[l / 2] = (int16_t)sum;
}

// 12 or 16 bits: two planes of bytes. The low bytes are signed: see cuda_task.h.
template <typename Block, int MAX_Q>
static __device__ inline void round_wide(Block *to, const float v[8]) {
    constexpr bool IS_I12 = MAX_Q == 2047;
    const int l = threadIdx.x % WARP;
    const float scale = scale_of(warp_max(largest_of(v)), MAX_Q);
    const Divisor by(scale);
    int hi[8], lo[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int q = by.round(v[i], MAX_Q);
        sum += q;
        hi[i] = IS_I12 ? (q + 128) >> 8 : q >> 8;
        lo[i] = q - 256 * hi[i] - (IS_I12 ? 0 : 128);
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    const int at = IS_I12 ? qn_cuda_i12_at(8 * l) : 8 * l, step = IS_I12 ? 16 : 4;
    store_bytes(to->hi + at, step, hi);
    store_bytes(to->lo + at, step, lo);
    if (l % 2 == 0) to->sums[l / 2] = sum;
    if (l == 0) to->scale = scale;
}

// A warp rounds a block: lane l has values 8 l to 8 l + 7, zeros after the end of the row.
static __device__ inline void round_block(unsigned char *to, int form, const float v[8]) {
    if (form == QN_WORD_i8_32)
        round_i8((qn_cuda_i8 *)to, v);
    else if (form == QN_WORD_i12_256)
        round_wide<qn_cuda_i12, 2047>((qn_cuda_i12 *)to, v);
    else
        round_wide<qn_cuda_i16, 32767>((qn_cuda_i16 *)to, v);
}

// Whether words of 16 bytes can be read there: views of parts begin anywhere.
static __host__ __device__ inline bool is_aligned(const void *x) { return (uintptr_t)x % 16 == 0; }

// Values i to i + 7 of n, zeros after the end; i is a multiple of 8.
static __device__ inline void load_8(float v[8], const float *x, int i, int n) {
    if (n % 8 == 0 && i < n && is_aligned(x)) {
        const float4 a = ((const float4 *)(x + i))[0], b = ((const float4 *)(x + i))[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    for (int k = 0; k < 8; k++) v[k] = i + k < n ? x[i + k] : 0.0f;
}
static __device__ inline void store_8(float *x, const float v[8]) {
    ((float4 *)x)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)x)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// The warps of a block of threads bring a part of n values into a form; value(i) is number i.
template <typename Value>
static __device__ inline void round_part(unsigned char *to, int form, int n, Value value) {
    if (form == QN_WORD_f32) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) ((float *)to)[i] = value(i);
        return;
    }
    for (int b = threadIdx.x / WARP; b * QN_CUDA_BLOCK < n; b += blockDim.x / WARP) {
        const int first = b * QN_CUDA_BLOCK + 8 * (threadIdx.x % WARP);
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = first + i < n ? value(first + i) : 0.0f;
        round_block(to + b * block_bytes(form), form, v);
    }
}
