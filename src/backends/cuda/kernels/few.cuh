// Products of a few rows of 12-bit activations and tiles of weights, by a block of threads: for
// decoding, where the time is that of reading weights.
//
// The units of the block's tiles are dealt to its warps, each of which reads ahead (ring.cuh).
// Partial sums go to shared memory, and are added in the order of the blocks at the end.
#pragma once

#include "ring.cuh"
#include "units.cuh"

constexpr int FEW_WARPS = 8, FEW_THREADS = FEW_WARPS * WARP;
constexpr int FEW_SLOTS = 2; // units of a warp on their way: about 110 KB of a multiprocessor

static __host__ __device__ constexpr int few_unit_bytes(int type) {
    return type == QN_TYPE_Q4_K   ? QN_CUDA_Q4_K_UNIT
           : type == QN_TYPE_Q6_K ? QN_CUDA_Q6_K_UNIT
                                  : QN_CUDA_Q8_0_UNIT;
}

// What a warp has of the tiles of its block of threads: of one of them, every `by`-th unit from
// block `first` on, which are `step` bytes apart.
struct Share {
    int type, blocks, first, by;
    const unsigned char *unit;
    int64_t step;
};

// Tile number `warp % n` of a block of threads with n tiles, a power of two; it is `tile` of w.
static __device__ inline Share share_of(const Operand &w, int64_t tile, int n) {
    const int warp = threadIdx.x / WARP, blocks = (int)(w.width / QN_CUDA_BLOCK);
    const int first = warp / n, by = FEW_WARPS / n;
    const int64_t bytes = qn_cuda_unit_bytes(w.type);
    const qn_cuda_unit unit = qn_cuda_unit_of(tile, first, w.parts / QN_CUDA_TILE, blocks);
    return {w.type, blocks, first, by, w.data + unit.at * bytes, unit.step * bytes * by};
}

// The partial sums of a unit and ROWS rows to part[row * 16 + output]; x are their blocks.
template <int TYPE, int ROWS> struct Product {
    static constexpr int QUADS = (ROWS + 3) / 4; // of rows
    static __device__ void run(float *part, const unsigned char *unit,
                               const unsigned char *const x[ROWS], int block) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const unsigned char *columns = x[4 * k], *row = x[4 * k];
#pragma unroll
            for (int r = 1; r < 4 && 4 * k + r < ROWS; r++) {
                if (g / 2 == r) columns = x[4 * k + r];
                if (t == r) row = x[4 * k + r];
            }
            float p[2];
            unit_rows<TYPE>(p, unit, (const qn_cuda_i12 *)columns + block,
                            (const qn_cuda_i12 *)row + block);
            if (4 * k + t >= ROWS) continue;
            part[(4 * k + t) * QN_CUDA_TILE + g] = p[0];
            part[(4 * k + t) * QN_CUDA_TILE + g + 8] = p[1];
        }
    }
};

template <int TYPE> struct Product<TYPE, 1> {
    static __device__ void run(float *part, const unsigned char *unit,
                               const unsigned char *const x[1], int block) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        OneRow<TYPE> row;
        row.load((const qn_cuda_i12 *)x[0] + block);
        const float p = unit_one<TYPE>(unit, row);
        if (t < 2) part[g + 8 * t] = p;
    }
};

template <> struct Product<QN_TYPE_Q8_0, 1> {
    static __device__ void run(float *part, const unsigned char *unit,
                               const unsigned char *const x[1], int block) {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const qn_cuda_i12 *row = (const qn_cuda_i12 *)x[0] + block;
        float p[2];
        unit_rows<QN_TYPE_Q8_0>(p, unit, row, row);
        if (t == 0) part[g] = p[0], part[g + 8] = p[1];
    }
};

// All partial sums: part[(tile * blocks + block) * ROWS * 16 + ...]. Weights are on their way
// before other kernels are waited for.
template <int TYPE, int ROWS>
static __device__ inline void few_partials(float *part, unsigned char *room, const Share &share,
                                           int tile, const unsigned char *const x[ROWS]) {
    Ring<few_unit_bytes(TYPE), FEW_SLOTS> ring(room);
    const unsigned char *next = share.unit;
    int fetched = share.first;
    const auto fetch_next = [&]() {
        const unsigned char *at = fetched < share.blocks ? next : nullptr;
        next += share.step;
        fetched += share.by;
        return at;
    };
#pragma unroll
    for (int i = 0; i < FEW_SLOTS; i++) ring.fetch(i, fetch_next());
    await_others();
    part += tile * share.blocks * ROWS * QN_CUDA_TILE;
    for (int b = share.first; b < share.blocks; b += share.by) {
        const unsigned char *unit = ring.take();
        Product<TYPE, ROWS>::run(part + b * ROWS * QN_CUDA_TILE, unit, x, b);
        ring.drop(fetch_next());
    }
    admit_next(); // earlier, its weights would delay these
    __syncthreads();
}

// The same, for a type that is known at run time.
template <int ROWS>
static __device__ inline void few_partials_as(float *part, unsigned char *room, const Share &share,
                                              int tile, const unsigned char *const x[ROWS]) {
    if (share.type == QN_TYPE_Q4_K)
        few_partials<QN_TYPE_Q4_K, ROWS>(part, room, share, tile, x);
    else if (share.type == QN_TYPE_Q6_K)
        few_partials<QN_TYPE_Q6_K, ROWS>(part, room, share, tile, x);
    else
        few_partials<QN_TYPE_Q8_0, ROWS>(part, room, share, tile, x);
}

// y of output o of a tile and a row.
template <int ROWS>
static __device__ inline float few_sum(const float *part, int blocks, int tile, int row, int o) {
    const float *at = part + (tile * blocks * ROWS + row) * QN_CUDA_TILE + o;
    float y = 0;
#pragma unroll 8
    for (int b = 0; b < blocks; b++, at += ROWS * QN_CUDA_TILE) y += *at;
    return y;
}
