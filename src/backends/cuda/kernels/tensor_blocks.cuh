// Keys and values of 64 positions in shared memory, for attention on tensor cores by 128 threads.
#pragma once

#include "tensor.cuh"
#include "tiles.cuh"

#include <cuda_pipeline_primitives.h>

constexpr int THREADS = 128;
constexpr int TILES = BLOCK / 8; // of scores

template <int HEAD> struct Tile {
    static constexpr int ROW = 2 * HEAD, PIECES = ROW / 16; // of a key or value
    static constexpr int STEPS = HEAD / 16, COLUMNS = HEAD / 8;
    static constexpr int STAGE = BLOCK * ROW; // bytes of keys, or of values
};

// 64 rows; pieces of 16 bytes change places, so that reads of columns spread over the banks. Values
// that nobody sees are zeros, as they meet p = 0.
template <int HEAD>
static __device__ inline void copy_rows(unsigned char *to, const unsigned char *from, int n) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int i = threadIdx.x; i < BLOCK * T::PIECES; i += THREADS) {
        const int row = i / T::PIECES, piece = i % T::PIECES;
        __pipeline_memcpy_async(to + row * T::ROW + (piece ^ (row & 7)) * 16, from + i * 16, 16,
                                row < n ? 0 : 16);
    }
}

// Keys, then values, of the block that begins at position `at`.
template <int HEAD>
static __device__ inline void copy_block(unsigned char *stage, const Task &t, const Rows &x, int at,
                                         int end) {
    unsigned char *page = find_page(t, x.seg, at / BLOCK);
    copy_rows<HEAD>(stage, key_at(t.cache, page, x.kv, 0), end - at);
    copy_rows<HEAD>(stage + Tile<HEAD>::STAGE, value_at(t.cache, page, x.kv, 0), end - at);
}

// Keys of positions n ... n + 15, of step k, as b of two products; values of step k, columns
// 8 f ... 8 f + 15, likewise.
template <int HEAD>
static __device__ inline void load_keys(unsigned (&b)[4], const unsigned char *keys, int n, int k) {
    const int lane = (int)threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8, side = lane / 8 % 2;
    load_matrices(b, keys + (n + row) * Tile<HEAD>::ROW + ((2 * k + side) ^ (row & 7)) * 16);
}
template <int HEAD>
static __device__ inline void load_values(unsigned (&b)[4], const unsigned char *values, int k,
                                          int f) {
    const int lane = (int)threadIdx.x % WARP, row = lane % 16, side = lane / 16;
    load_transposed(b, values + (16 * k + row) * Tile<HEAD>::ROW + ((f + side) ^ (row & 7)) * 16);
}
