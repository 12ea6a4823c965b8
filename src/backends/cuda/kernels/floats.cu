// Matmuls of float weights. A block of 256 values is one chain of fused multiply-adds
// (docs/numbers.md), so a thread has a chain, of some rows of activations. Weights come through
// shared memory, eight blocks of each row at a time, the next ones while these are multiplied.
#include "dot.cuh"
#include "floats_launch.cuh"

#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

constexpr int THREADS = 128, PIECE = 8, ROWS_MAX = 8;
constexpr int OUTS = 4; // outputs of a block of threads, at most; of a gated one, of either weight

// Blocks lie 16 bytes further apart than they are long: neighbours are in different banks.
template <int TYPE> struct Weights {
    static constexpr int NUMBER = TYPE == QN_TYPE_F32 ? 4 : 2, BLOCK = QN_CUDA_BLOCK * NUMBER;
    static constexpr int STEP = BLOCK + 16, ROW = PIECE * STEP;
};
constexpr int X_STEP = QN_CUDA_BLOCK + 4, X_ROW = PIECE * X_STEP; // floats

// Rows of weights of a block of threads: `n`, from row `at` on, of one weight or of two in turn.
struct Share {
    const unsigned char *weight[2];
    int64_t at, row_bytes;
    int ways, n, width;
    __device__ const unsigned char *row(int i) const {
        return weight[i % ways] + (at + i / ways) * row_bytes;
    }
};

static __device__ inline Share share_of(const Operand &w, const Operand &second, int64_t at,
                                        int ways, int per, int number) {
    return {{w.data, second.data}, at, w.width * number, ways, ways * per, (int)w.width};
}

// Shared memory: two stages of weights, activations, partial sums, sums.
extern __shared__ __align__(16) unsigned char shared[];
template <int TYPE, int ROWS> struct Room {
    unsigned char *weights; // (2, n, PIECE) blocks
    float *x, *part, *sums; // (ROWS, PIECE) blocks; (n, ROWS, PIECE); (n, ROWS)
    __device__ explicit Room(int n)
        : weights(shared), x((float *)(shared + 2 * n * Weights<TYPE>::ROW)),
          part(x + ROWS * X_ROW), sums(part + n * ROWS * PIECE) {}
    static size_t bytes(int n) {
        return (size_t)2 * n * Weights<TYPE>::ROW +
               sizeof(float) * (ROWS * X_ROW + n * ROWS * (PIECE + 1));
    }
};

// --- a piece -------------------------------------------------------------------------------------

template <int TYPE>
static __device__ inline void fetch_weights(unsigned char *to, const Share &s, int first) {
    using W = Weights<TYPE>;
    constexpr int WORDS = W::BLOCK / 16;
    const int left = s.width - first * QN_CUDA_BLOCK;
    const int words =
        (left < PIECE * QN_CUDA_BLOCK ? left : PIECE * QN_CUDA_BLOCK) * W::NUMBER / 16;
    for (int i = 0; i < s.n; i++) {
        const unsigned char *from = s.row(i) + (int64_t)first * W::BLOCK;
        for (int k = threadIdx.x; k < words; k += THREADS)
            __pipeline_memcpy_async(to + i * W::ROW + k / WORDS * W::STEP + k % WORDS * 16,
                                    from + 16 * k, 16);
    }
}

template <int ROWS>
static __device__ inline void load_rows(float *to, const unsigned char *const x[ROWS], int form,
                                        int first, int width) {
    const int from = first * QN_CUDA_BLOCK;
    const int n = width - from < PIECE * QN_CUDA_BLOCK ? width - from : PIECE * QN_CUDA_BLOCK;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++, to += X_ROW) {
        if (form == QN_WORD_f32 && is_aligned(x[r])) {
            const float4 *at = (const float4 *)x[r] + from / 4;
            for (int k = threadIdx.x; k < n / 4; k += THREADS)
                *(float4 *)(to + k / 64 * X_STEP + k % 64 * 4) = at[k];
            continue;
        }
        for (int k = threadIdx.x; k < n; k += THREADS)
            to[k / QN_CUDA_BLOCK * X_STEP + k % QN_CUDA_BLOCK] =
                activation_at(x[r], form, from + k);
    }
}

template <int TYPE> static __device__ inline void eight_of(float w[8], const unsigned char *at) {
    if constexpr (TYPE == QN_TYPE_F32) {
        const float4 a = ((const float4 *)at)[0], b = ((const float4 *)at)[1];
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        return;
    }
    const uint4 raw = *(const uint4 *)at;
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == QN_TYPE_F16) {
            w[2 * i] = __half2float(__ushort_as_half((uint16_t)words[i]));
            w[2 * i + 1] = __half2float(__ushort_as_half((uint16_t)(words[i] >> 16)));
        } else {
            w[2 * i] = __uint_as_float(words[i] << 16);
            w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

// The chains of n values, a multiple of 8.
template <int TYPE, int ROWS>
static __device__ inline void chain(float p[ROWS], const unsigned char *w, const float *x, int n) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) p[r] = 0;
#pragma unroll 4
    for (int k = 0; k < n; k += 8) {
        float by[8];
        eight_of<TYPE>(by, w + k * Weights<TYPE>::NUMBER);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 a = *(const float4 *)(x + r * X_ROW + k);
            const float4 b = *(const float4 *)(x + r * X_ROW + k + 4);
            const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; i++) p[r] = fmaf(by[i], v[i], p[r]);
        }
    }
}

// All sums of the block of threads: sums[i * ROWS + r]. Weights are on their way before other
// kernels are waited for.
template <int TYPE, int ROWS>
static __device__ inline const float *multiply(const Share &s, const Operand &x, int64_t first,
                                               int64_t n_rows) {
    using W = Weights<TYPE>;
    const Room<TYPE, ROWS> room(s.n);
    const int blocks = ceil_div(s.width, (int)QN_CUDA_BLOCK);
    const unsigned char *rows[ROWS];
    float y = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r] = at_row(x, first + r < n_rows ? first + r : n_rows - 1);
    fetch_weights<TYPE>(room.weights, s, 0);
    __pipeline_commit();
    await_others();
    for (int at = 0, odd = 0; at < blocks; at += PIECE, odd ^= 1) {
        if (at + PIECE < blocks)
            fetch_weights<TYPE>(room.weights + (odd ^ 1) * s.n * W::ROW, s, at + PIECE);
        __pipeline_commit();
        load_rows<ROWS>(room.x, rows, x.form, at, s.width);
        __pipeline_wait_prior(1);
        __syncthreads();
        for (int c = threadIdx.x; c < s.n * PIECE; c += THREADS) {
            const int i = c / PIECE, b = c % PIECE, left = s.width - (at + b) * QN_CUDA_BLOCK;
            if (left <= 0) continue;
            float p[ROWS];
            chain<TYPE, ROWS>(p, room.weights + (odd * s.n + i) * W::ROW + b * W::STEP,
                              room.x + b * X_STEP, left < QN_CUDA_BLOCK ? left : QN_CUDA_BLOCK);
#pragma unroll
            for (int r = 0; r < ROWS; r++) room.part[(i * ROWS + r) * PIECE + b] = p[r];
        }
        __syncthreads();
        if (threadIdx.x < s.n * ROWS)
            for (int b = 0; b < PIECE && at + b < blocks; b++)
                y += room.part[threadIdx.x * PIECE + b];
    }
    admit_next();
    if (threadIdx.x < s.n * ROWS) room.sums[threadIdx.x] = y;
    __syncthreads();
    return room.sums;
}

// Calls store(row, output) for all results of the block of threads.
template <int ROWS, typename Store>
static __device__ inline void finish(int per, int64_t left, Store store) {
    for (int i = threadIdx.x; i < per * ROWS; i += THREADS)
        if (i / per < left) store(i / per, i % per);
}

// --- kernels -------------------------------------------------------------------------------------

template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    floats_project(const __grid_constant__ Task t, int per) {
    const int64_t n = t.rows * t.in[0].parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)per;
    int64_t at = o;
    int i = 1;
    while (at >= t.in[i].parts) at -= t.in[i++].parts;
    const Share s = share_of(t.in[i], t.in[i], at, 1, per, Weights<TYPE>::NUMBER);
    const float *sums = multiply<TYPE, ROWS>(s, t.in[0], first, n);
    finish<ROWS>(per, n - first, [&](int r, int out) {
        ((float *)at_row(t.out[0], first + r))[o + out] = sums[out * ROWS + r];
    });
}

template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    floats_gated(const __grid_constant__ Task t, int per) {
    const int64_t n = t.rows * t.in[0].parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)per;
    const Share s = share_of(t.in[1], t.in[2], o, 2, per, Weights<TYPE>::NUMBER);
    const float *sums = multiply<TYPE, ROWS>(s, t.in[0], first, n);
    finish<ROWS>(per, n - first, [&](int r, int out) {
        const float a = sums[2 * out * ROWS + r], b = sums[(2 * out + 1) * ROWS + r];
        ((float *)at_row(t.out[0], first + r))[o + out] = activate(a, t.attrs.act) * b;
    });
}

template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    floats_head(const __grid_constant__ Task t, int per) {
    const int64_t n = t.rows, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)per;
    const Share s = share_of(t.in[1], t.in[1], o, 1, per, Weights<TYPE>::NUMBER);
    const float *sums = multiply<TYPE, ROWS>(s, t.in[0], first, n);
    const int64_t computed = t.step->computed > 0 ? t.step->computed : t.in[1].parts;
    const float cap = t.attrs.cap;
    finish<ROWS>(per, n - first, [&](int r, int out) {
        if (o + out >= computed) return;
        const float y = sums[out * ROWS + r];
        floats_at(t.out[0], first + r)[o + out] = cap > 0 ? cap * math_tanh(y / cap) : y;
    });
}

// --- launches ------------------------------------------------------------------------------------

// Whether n weights are of one float type, in rows that are copied in words of 16 bytes.
static bool takes(const Operand *weights, int n) {
    for (int i = 0; i < n; i++) {
        const Operand &w = weights[i];
        if (!is_float_type(w.type) || w.type != weights[0].type || !w.is_weight || w.width % 8 ||
            w.width > INT32_MAX / 8 || !is_aligned(w.data))
            return false;
    }
    return n > 0;
}

// Outputs of a block of threads: as many as leave two blocks of threads for each multiprocessor.
static int outputs_per(const Operand *weights, int n, int64_t outputs) {
    const int64_t enough = 2 * 132;
    int per = 1;
    while (per < OUTS && outputs / (2 * per) >= enough) {
        for (int i = 0; i < n; i++)
            if (weights[i].parts % (2 * per)) return per;
        per *= 2;
    }
    return per;
}

struct Launch {
    const Task *task;
    cudaStream_t stream;
    const Operand *weights;
    int n, ways;
    int64_t outputs, rows;

    template <int TYPE, int ROWS> bool with(void (*kernel)(const Task, int)) const {
        const int per = outputs_per(weights, n, outputs);
        const size_t bytes = Room<TYPE, ROWS>::bytes(ways * per);
        const int64_t tiles = ceil_div(rows, (int64_t)ROWS);
        if (tiles > 65535 || !allow_shared(kernel, bytes)) return false;
        start(kernel, dim3(grid_of(outputs / per), grid_of(tiles)), THREADS, bytes, stream, *task,
              per);
        return true;
    }
};

#define BY_ROWS(kernel, type, launch)                                                              \
    ((launch).rows == 1 ? (launch).with<type, 1>(kernel<type, 1>)                                  \
                        : (launch).with<type, ROWS_MAX>(kernel<type, ROWS_MAX>))
#define BY_TYPE(kernel, launch)                                                                    \
    ((launch).weights[0].type == QN_TYPE_F32   ? BY_ROWS(kernel, QN_TYPE_F32, launch)              \
     : (launch).weights[0].type == QN_TYPE_F16 ? BY_ROWS(kernel, QN_TYPE_F16, launch)              \
                                               : BY_ROWS(kernel, QN_TYPE_BF16, launch))

bool floats_project_launch(const Task *task, cudaStream_t stream) {
    const Launch launch = {task,
                           stream,
                           task->in + 1,
                           count_weights(task),
                           1,
                           task->out[0].width,
                           task->rows * task->in[0].parts};
    return takes(launch.weights, launch.n) && BY_TYPE(floats_project, launch);
}

bool floats_gated_launch(const Task *task, cudaStream_t stream) {
    const Launch launch = {
        task, stream, task->in + 1, 2, 2, task->out[0].width, task->rows * task->in[0].parts};
    return takes(launch.weights, launch.n) && BY_TYPE(floats_gated, launch);
}

bool floats_head_launch(const Task *task, cudaStream_t stream) {
    const Launch launch = {task, stream, task->in + 1, 1, 1, task->in[1].parts, task->rows};
    return takes(launch.weights, launch.n) && BY_TYPE(floats_head, launch);
}
