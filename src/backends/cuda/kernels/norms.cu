// Norms of parts, and rounding into packed forms.
#include "kernels.cuh"

// A block of threads for each part of a row.
static int threads_of(int64_t width) { return width <= 64 ? 64 : width <= 128 ? 128 : 256; }
static dim3 grid_of_parts(const Task *t) {
    return dim3(grid_of(t->rows), grid_of(t->in[0].parts, 65535));
}

static __device__ inline float inverse_rms(const float *x, int n, float eps, float *room) {
    return 1.0f / sqrtf(sum_squares(x, n, room) / (float)n + eps);
}

static __global__ void rms_norm_parts(const __grid_constant__ Task t) {
    begin();
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    const int n = (int)t.in[0].width;
    const float *w = (const float *)t.in[1].data;
    for (int64_t p = blockIdx.y; p < t.in[0].parts; p += gridDim.y) {
        const float *x = (const float *)part_at(t.in[0], r, p);
        float *to = (float *)part_at(t.out[0], r, p);
        const float inverse = inverse_rms(x, n, t.attrs.eps, room);
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = (x[i] * inverse) * w[i];
    }
}

static __global__ void layer_norm_parts(const __grid_constant__ Task t) {
    begin();
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    const int n = (int)t.in[0].width;
    const float *w = (const float *)t.in[1].data, *b = (const float *)t.in[2].data;
    for (int64_t p = blockIdx.y; p < t.in[0].parts; p += gridDim.y) {
        const float *x = (const float *)part_at(t.in[0], r, p);
        float *to = (float *)part_at(t.out[0], r, p);
        const float mean =
            sum_64(x, n, room, [](float sum, float v) { return sum + v; }) / (float)n;
        const float variance = sum_64(x, n, room,
                                      [mean](float sum, float v) {
                                          const float d = v - mean;
                                          return fmaf(d, d, sum);
                                      }) /
                               (float)n;
        const float inverse = 1.0f / sqrtf(variance + t.attrs.eps);
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            to[i] = fmaf((x[i] - mean) * inverse, w[i], b[i]);
    }
}

static __global__ void l2_norm_parts(const __grid_constant__ Task t) {
    begin();
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    const int n = (int)t.in[0].width;
    for (int64_t p = blockIdx.y; p < t.in[0].parts; p += gridDim.y) {
        const float *x = (const float *)part_at(t.in[0], r, p);
        float *to = (float *)part_at(t.out[0], r, p);
        const float inverse = 1.0f / sqrtf(sum_squares(x, n, room) + t.attrs.eps);
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = x[i] * inverse;
    }
}

// The numbers of a part, in shared memory where they fit; else where they are.
constexpr int64_t KEPT = 11 << 10;

static __global__ void __launch_bounds__(1024) norm_quantize_parts(const __grid_constant__ Task t) {
    begin();
    extern __shared__ float kept[];
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    const int n = (int)t.out[0].width;
    const float *w = (const float *)t.in[1].data;
    for (int64_t p = blockIdx.y; p < t.in[0].parts; p += gridDim.y) {
        const float *x = (const float *)part_at(t.in[0], r, p);
        if (n <= KEPT) {
            for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
            __syncthreads();
            x = kept;
        }
        const float inverse = inverse_rms(x, n, t.attrs.eps, room);
        round_part(part_at(t.out[0], r, p), t.out[0].form, n,
                   [=](int i) { return (x[i] * inverse) * w[i]; });
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(1024) add_norm_parts(const __grid_constant__ Task t) {
    begin();
    extern __shared__ float kept[];
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    const int n = (int)t.out[1].width;
    const float *w = (const float *)t.in[2].data;
    for (int64_t p = blockIdx.y; p < t.in[0].parts; p += gridDim.y) {
        const float *a = (const float *)part_at(t.in[0], r, p);
        const float *b = (const float *)part_at(t.in[1], r, p);
        float *sum = (float *)part_at(t.out[0], r, p);
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const float s = a[i] + b[i];
            sum[i] = s;
            if (n <= KEPT) kept[i] = s;
        }
        __syncthreads();
        const float *x = n <= KEPT ? kept : sum;
        const float inverse = inverse_rms(x, n, t.attrs.eps, room);
        round_part(part_at(t.out[1], r, p), t.out[1].form, n,
                   [=](int i) { return (x[i] * inverse) * w[i]; });
        __syncthreads();
    }
}

// The same of both where a warp has each block of 256 values: they stay in its registers, and the
// weights are there before the values are. The sum (a, b) is not wanted where there is no b.
constexpr int64_t WARPS_LEAST = 2, WARPS_MOST = 32; // 64 lanes add

static __global__ void __launch_bounds__(1024)
    norm_blocks(Operand a, Operand b, Operand weight, Operand sum, Operand out, float eps) {
    extern __shared__ float kept[];
    __shared__ float room[64];
    const int64_t r = blockIdx.x, p = blockIdx.y;
    const int n = (int)out.width, i = 8 * threadIdx.x;
    float w[8], x[8];
    admit_next();
    load_8(w, (const float *)weight.data, i, n);
    await_others();
    load_8(x, (const float *)part_at(a, r, p), i, n);
    if (b.data) {
        float y[8];
        load_8(y, (const float *)part_at(b, r, p), i, n);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] += y[k];
        store_8((float *)part_at(sum, r, p) + i, x);
    }
    store_8(kept + i, x);
    __syncthreads();
    const float inverse = inverse_rms(kept, n, eps, room);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = (x[k] * inverse) * w[k];
    round_block(part_at(out, r, p) + threadIdx.x / WARP * block_bytes(out.form), out.form, x);
}

static bool is_aligned(const Operand &x) { return is_aligned(x.data) && x.stride % 16 == 0; }

static bool launch_norm_blocks(const Task *task, const Operand &b, const Operand &weight,
                               const Operand &sum, const Operand &out, cudaStream_t stream) {
    const int64_t n = out.width;
    if (!is_aligned(task->in[0]) || !is_aligned(b) || !is_aligned(weight) || !is_aligned(sum))
        return false;
    if (out.form == QN_WORD_f32 || n % QN_CUDA_BLOCK || n / QN_CUDA_BLOCK < WARPS_LEAST ||
        n / QN_CUDA_BLOCK > WARPS_MOST || out.parts > 65535)
        return false;
    const dim3 grid(grid_of(task->rows), grid_of(out.parts));
    start(norm_blocks, grid, (int)(n / 8), (size_t)n * sizeof(float), stream, task->in[0], b,
          weight, sum, out, task->attrs.eps);
    return true;
}

// Wide parts have many threads: few rows have nothing else to wait with.
static int rounding_threads(int64_t width) { return width <= 1024 ? threads_of(width) : 1024; }
static size_t kept_bytes(int64_t width) {
    return width <= KEPT ? (size_t)width * sizeof(float) : 0;
}

LAUNCHER(rms_norm) {
    start(rms_norm_parts, grid_of_parts(task), threads_of(task->in[0].width), 0, stream, *task);
}
LAUNCHER(layer_norm) {
    start(layer_norm_parts, grid_of_parts(task), threads_of(task->in[0].width), 0, stream, *task);
}
LAUNCHER(l2_norm) {
    start(l2_norm_parts, grid_of_parts(task), threads_of(task->in[0].width), 0, stream, *task);
}
LAUNCHER(norm_quantize) {
    if (launch_norm_blocks(task, Operand{}, task->in[1], Operand{}, task->out[0], stream)) return;
    start(norm_quantize_parts, grid_of_parts(task), rounding_threads(task->in[0].width),
          kept_bytes(task->in[0].width), stream, *task);
}
LAUNCHER(add_norm) {
    if (launch_norm_blocks(task, task->in[1], task->in[2], task->out[0], task->out[1], stream))
        return;
    start(add_norm_parts, grid_of_parts(task), rounding_threads(task->in[0].width),
          kept_bytes(task->in[0].width), stream, *task);
}

// --- rounding ------------------------------------------------------------------------------------

// A warp for each block of 256 values.
static __global__ void quantize_blocks(Operand in, Operand out, int64_t rows) {
    begin();
    const int64_t blocks = ceil_div(out.width, (int64_t)QN_CUDA_BLOCK);
    const int64_t at = blockIdx.x * (int64_t)(blockDim.x / WARP) + threadIdx.x / WARP;
    if (at >= rows * out.parts * blocks) return;
    // 32 bits are enough for a step, and much faster to divide.
    const uint32_t part = (uint32_t)at / (uint32_t)blocks, b = (uint32_t)at % (uint32_t)blocks;
    const uint32_t p = part % (uint32_t)out.parts, r = part / (uint32_t)out.parts;
    const float *x = (const float *)part_at(in, r, p);
    const int width = (int)out.width, first = (int)b * QN_CUDA_BLOCK + 8 * (threadIdx.x % WARP);
    float v[8];
    load_8(v, x, first, width);
    if (out.form != QN_WORD_f32) {
        round_block(part_at(out, r, p) + b * block_bytes(out.form), out.form, v);
        return;
    }
    for (int i = 0; i < 8; i++) {
        if (first + i < width) ((float *)part_at(out, r, p))[first + i] = v[i];
    }
}

static void quantize(const Operand &in, const Operand &out, int64_t rows, cudaStream_t stream) {
    constexpr int WARPS = 4;
    const int64_t n = rows * out.parts * ceil_div(out.width, (int64_t)QN_CUDA_BLOCK);
    start(quantize_blocks, grid_of(ceil_div(n, (int64_t)WARPS)), WARPS * WARP, 0, stream, in, out,
          rows);
}

LAUNCHER(quantize) { quantize(task->in[0], task->out[0], task->rows, stream); }
// temp 2: gated values of each chosen expert; 3: the same, packed.
LAUNCHER(experts_quantize) { quantize(task->temp[2], task->temp[3], task->rows, stream); }
