// Matmuls of a few rows; see few.cuh. Rows beyond ROWS are done by more blocks of threads.
#include "few.cuh"
#include "few_launch.cuh"

constexpr int MAX_TILES = 4; // of a block of threads; a power of two, at most FEW_WARPS

template <int ROWS>
static __device__ inline void rows_at(const unsigned char *to[ROWS], const Operand &x,
                                      int64_t first, int64_t n) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) to[r] = at_row(x, first + r < n ? first + r : n - 1);
}

// Shared memory: partial sums, then the rings.
extern __shared__ __align__(128) unsigned char shared[];
static __host__ __device__ inline int64_t part_room(int tiles, int64_t blocks, int rows) {
    return ceil_div(tiles * blocks * rows * QN_CUDA_TILE * (int64_t)sizeof(float), (int64_t)128) *
           128;
}

// Partial sums of n tiles, of which the warp's is number `k`.
template <int ROWS>
static __device__ inline const float *multiply(const Share &share, int n, int k,
                                               const unsigned char *const x[ROWS]) {
    float *part = (float *)shared;
    few_partials_as<ROWS>(part, shared + part_room(n, share.blocks, ROWS), share, k, x);
    return part;
}

// Calls store(row, tile, output) for all results of the block of threads.
template <int ROWS, typename Store>
static __device__ inline void finish(int n_tiles, int64_t left, Store store) {
    for (int i = threadIdx.x; i < n_tiles * ROWS * QN_CUDA_TILE; i += FEW_THREADS) {
        const int r = i / QN_CUDA_TILE % ROWS;
        if (r < left) store(r, i / (ROWS * QN_CUDA_TILE), i % QN_CUDA_TILE);
    }
}

// Warp i has tile i % n of its block of threads.
static __device__ inline int tile_of_warp(int n) { return threadIdx.x / WARP & (n - 1); }

template <int ROWS>
static __global__ void __launch_bounds__(FEW_THREADS, ROWS == 1 ? 3 : 2)
    few_project(const __grid_constant__ Task t, int per) {
    const Operand &x = t.in[0];
    const int64_t n = t.rows * x.parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)per * QN_CUDA_TILE;
    int64_t at = o;
    int i = 1;
    while (at >= t.in[i].parts) at -= t.in[i++].parts;
    const int k = tile_of_warp(per);
    const Share share = share_of(t.in[i], at / QN_CUDA_TILE + k, per);
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    const float *part = multiply<ROWS>(share, per, k, rows);
    finish<ROWS>(per, n - first, [&](int r, int tile, int out) {
        ((float *)at_row(t.out[0], first + r))[o + tile * QN_CUDA_TILE + out] =
            few_sum<ROWS>(part, share.blocks, tile, r, out);
    });
}

// Tiles of the gate and of what it gates take turns.
template <int ROWS>
static __global__ void __launch_bounds__(FEW_THREADS, ROWS == 1 ? 3 : 2)
    few_gated(const __grid_constant__ Task t, int per) {
    const Operand &x = t.in[0];
    const int64_t n = t.rows * x.parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t tile0 = blockIdx.x * (int64_t)per;
    const int k = tile_of_warp(2 * per);
    const Share share = share_of(t.in[1 + k % 2], tile0 + k / 2, 2 * per);
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    const float *part = multiply<ROWS>(share, 2 * per, k, rows);
    finish<ROWS>(per, n - first, [&](int r, int tile, int out) {
        const float a = few_sum<ROWS>(part, share.blocks, 2 * tile, r, out);
        const float b = few_sum<ROWS>(part, share.blocks, 2 * tile + 1, r, out);
        ((float *)at_row(t.out[0], first + r))[(tile0 + tile) * QN_CUDA_TILE + out] =
            activate(a, t.attrs.act) * b;
    });
}

template <int ROWS>
static __global__ void __launch_bounds__(FEW_THREADS, ROWS == 1 ? 3 : 2)
    few_head(const __grid_constant__ Task t, int per) {
    const Operand &x = t.in[0], &w = t.in[1];
    const int64_t n = t.rows, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)per * QN_CUDA_TILE;
    const int k = tile_of_warp(per);
    const Share share = share_of(w, o / QN_CUDA_TILE + k, per);
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    const float *part = multiply<ROWS>(share, per, k, rows);
    const int64_t computed = t.step->computed > 0 ? t.step->computed : w.parts;
    const float cap = t.attrs.cap;
    finish<ROWS>(per, n - first, [&](int r, int tile, int out) {
        const int64_t at = o + tile * QN_CUDA_TILE + out;
        if (at >= computed) return;
        const float y = few_sum<ROWS>(part, share.blocks, tile, r, out);
        floats_at(t.out[0], first + r)[at] = cap > 0 ? cap * math_tanh(y / cap) : y;
    });
}

// Experts: a row for each choice. temp: ids, weights, gated, packed, y. Which weights are read is
// known when the kernels before are done.
static __global__ void __launch_bounds__(FEW_THREADS, 3)
    few_experts_up(const __grid_constant__ Task t, int per) {
    await_others();
    const Operand &out = t.temp[2];
    const int64_t r = blockIdx.y / out.parts, choice = blockIdx.y % out.parts;
    const int64_t tile0 = blockIdx.x * (int64_t)per;
    const int64_t expert = ((const int32_t *)row_at(t.temp[0], r))[choice];
    const int k = tile_of_warp(2 * per);
    int64_t first;
    const Operand w = matrix_of(t.in[2 + k % 2], expert, out.width, &first);
    if (!w.data) return;
    const Share share = share_of(w, first / QN_CUDA_TILE + tile0 + k / 2, 2 * per);
    const unsigned char *x[1] = {row_at(t.in[0], r)};
    const float *part = multiply<1>(share, 2 * per, k, x);
    finish<1>(per, 1, [&](int, int tile, int o) {
        const float a = few_sum<1>(part, share.blocks, 2 * tile, 0, o);
        const float b = few_sum<1>(part, share.blocks, 2 * tile + 1, 0, o);
        ((float *)part_at(out, r, choice))[(tile0 + tile) * QN_CUDA_TILE + o] =
            activate(a, t.attrs.act) * b;
    });
}

static __global__ void __launch_bounds__(FEW_THREADS, 3)
    few_experts_down(const __grid_constant__ Task t, int per) {
    await_others();
    const Operand &out = t.temp[4];
    const int64_t r = blockIdx.y / out.parts, choice = blockIdx.y % out.parts;
    const int64_t tile0 = blockIdx.x * (int64_t)per;
    const int64_t expert = ((const int32_t *)row_at(t.temp[0], r))[choice];
    const int k = tile_of_warp(per);
    int64_t first;
    const Operand w = matrix_of(t.in[4], expert, out.width, &first);
    if (!w.data) return;
    const Share share = share_of(w, first / QN_CUDA_TILE + tile0 + k, per);
    const unsigned char *x[1] = {part_at(t.temp[3], r, choice)};
    const float *part = multiply<1>(share, per, k, x);
    finish<1>(per, 1, [&](int, int tile, int o) {
        ((float *)part_at(out, r, choice))[(tile0 + tile) * QN_CUDA_TILE + o] =
            few_sum<1>(part, share.blocks, tile, 0, o);
    });
}

// --- launches ------------------------------------------------------------------------------------

// Tiles of a block of threads, times `at_once` where a step takes several: as many as leave two
// blocks of threads for each multiprocessor. All weights have a multiple of it.
static int tiles_per(const Operand *weights, int n, int at_once, int64_t tiles) {
    const int64_t enough = 2 * 132;
    int per = 1;
    while (2 * per * at_once <= MAX_TILES && tiles / (2 * per) >= enough &&
           tiles % (2 * per) == 0) {
        for (int i = 0; i < n; i++) {
            if (weights[i].parts / QN_CUDA_TILE % (2 * per)) return per;
        }
        per *= 2;
    }
    return per;
}

template <typename... Params>
static bool launch(void (*kernel)(Params...), const Task *task, const Operand *weights, int n,
                   int at_once, int64_t tiles, int64_t groups, int rows, cudaStream_t stream) {
    int per = tiles_per(weights, n, at_once, tiles), unit = 0;
    for (int i = 0; i < n; i++)
        unit = unit < few_unit_bytes(weights[i].type) ? few_unit_bytes(weights[i].type) : unit;
    const auto shared_for = [=](int n_tiles) {
        return (size_t)(part_room(n_tiles, weights[0].width / QN_CUDA_BLOCK, rows) +
                        FEW_WARPS * FEW_SLOTS * unit);
    };
    while (per > 1 && !allow_shared(kernel, shared_for(per * at_once))) per /= 2;
    const size_t shared = shared_for(per * at_once);
    if (!allow_shared(kernel, shared) || groups > 65535) return false;
    start(kernel, dim3(grid_of(tiles / per), grid_of(groups)), FEW_THREADS, shared, stream, *task,
          per);
    return true;
}

static bool takes(const Operand &x, const Operand *weights, int n) {
    if (x.form != QN_WORD_i12_256) return false;
    for (int i = 0; i < n; i++) {
        if (!weights[i].is_tiled) return false;
    }
    return true;
}

#define BY_ROWS(kernel, weights, n_weights, at_once, tiles, n)                                     \
    ((n) == 1   ? launch(kernel<1>, task, weights, n_weights, at_once, tiles, 1, 1, stream)        \
     : (n) <= 4 ? launch(kernel<4>, task, weights, n_weights, at_once, tiles, 1, 4, stream)        \
                : launch(kernel<8>, task, weights, n_weights, at_once, tiles,                      \
                         ceil_div(n, (int64_t)8), 8, stream))

bool few_project_launch(const Task *task, cudaStream_t stream) {
    const int64_t n = task->rows * task->in[0].parts;
    const int n_weights = count_weights(task);
    if (!takes(task->in[0], task->in + 1, n_weights)) return false;
    return BY_ROWS(few_project, task->in + 1, n_weights, 1, task->out[0].width / QN_CUDA_TILE, n);
}

bool few_gated_launch(const Task *task, cudaStream_t stream) {
    const int64_t n = task->rows * task->in[0].parts;
    if (!takes(task->in[0], task->in + 1, 2) || task->in[1].type != task->in[2].type) return false;
    return BY_ROWS(few_gated, task->in + 1, 2, 2, task->out[0].width / QN_CUDA_TILE, n);
}

bool few_head_launch(const Task *task, cudaStream_t stream) {
    const int64_t n = task->rows;
    if (!takes(task->in[0], task->in + 1, 1)) return false;
    return BY_ROWS(few_head, task->in + 1, 1, 1, task->in[1].parts / QN_CUDA_TILE, n);
}

bool few_experts_up_launch(const Task *task, cudaStream_t stream) {
    const Operand &out = task->temp[2];
    if (!takes(task->in[0], task->in + 2, 2) || task->in[2].type != task->in[3].type ||
        out.width % QN_CUDA_TILE)
        return false;
    return launch(few_experts_up, task, task->in + 2, 2, 2, out.width / QN_CUDA_TILE,
                  task->rows * out.parts, 1, stream);
}

bool few_experts_down_launch(const Task *task, cudaStream_t stream) {
    const Operand &out = task->temp[4];
    if (!takes(task->temp[3], task->in + 4, 1) || out.width % QN_CUDA_TILE) return false;
    return launch(few_experts_down, task, task->in + 4, 1, 1, out.width / QN_CUDA_TILE,
                  task->rows * out.parts, 1, stream);
}
