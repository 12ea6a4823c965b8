// Makes images of rows (digits.cuh). A thread does 16 values of a row, so that it writes 16 bytes
// at a time; eight neighbours write 128.
#pragma once

#include "digits.cuh"

#include <cuda_fp16.h>

static __device__ inline uint32_t half_pair(int low, int high) {
    const __half2 h = __halves2half2(__int2half_rn(low), __int2half_rn(high));
    return *(const uint32_t *)&h;
}

static __device__ inline int byte_of(const uint4 &v, int i) {
    const uint32_t word = i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w;
    return (int8_t)(word >> i % 4 * 8);
}

static __device__ inline int low_digit(int q, int radix) {
    return ((q + radix / 2) & (radix - 1)) - radix / 2;
}

// 8 integers in one column: `at` is the matrix of that column's even or odd values.
static __device__ inline void put_8(unsigned char *at, const int v[8]) {
    *(uint4 *)at = make_uint4(half_pair(v[0], v[1]), half_pair(v[2], v[3]), half_pair(v[4], v[5]),
                              half_pair(v[6], v[7]));
}

// Where column `column` begins.
static __device__ inline int column_at(int column) { return column / 8 * 128 + column % 8 * 16; }

template <class I>
static __device__ inline void put_step(unsigned char *to, const uint4 &hi, const uint4 &lo, int r) {
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        unsigned char *half = to + odd * 16 * I::COLUMNS;
        int q[8], a[8], b[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[i] = 256 * byte_of(hi, 2 * i + odd) + byte_of(lo, 2 * i + odd);
            b[i] = low_digit(q[i], 64);
            a[i] = (q[i] - b[i]) >> 6;
        }
        if (I::IS_EXACT) {
            put_8(half + column_at(r), a);
            put_8(half + column_at(I::ROWS + r), b);
        }
        if (!I::IS_EXACT || I::HAS_WHOLE) put_8(half + column_at(I::IS_EXACT ? I::N + r : r), q);
    }
}

template <class I>
static __device__ inline void put_tail(unsigned char *to, const qn_cuda_i12 *block, int r) {
    if (I::HAS_SUMS) {
        int a[8], b[8];
        const int none[8] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int sum = block ? block->sums[2 * i] + block->sums[2 * i + 1] : 0;
            b[i] = low_digit(sum, 256);
            a[i] = (sum - b[i]) >> 8;
        }
        unsigned char *odd = to + 16 * I::N;
        put_8(to + column_at(r), a);
        put_8(I::IS_EXACT ? to + column_at(I::ROWS + r) : odd + column_at(r), b);
        if (I::IS_EXACT) {
            put_8(odd + column_at(r), none);
            put_8(odd + column_at(I::ROWS + r), none);
        }
    }
    ((float *)(to + I::SUMS))[r] = block ? block->scale : 0.0f;
}

// 16 values of a plane, in order: see qn_cuda_i12_at.
static __device__ inline uint4 words_of(const int8_t *plane, int step) {
    const int8_t *at = plane + qn_cuda_i12_at(16 * step);
    return make_uint4(*(const uint32_t *)at, *(const uint32_t *)(at + 16),
                      *(const uint32_t *)(at + 32), *(const uint32_t *)(at + 48));
}

constexpr int IMAGE_THREADS = 256;

// A block of threads for each block of a tile. Rows after the last one are zeros.
template <class I>
static __global__ void make_image(unsigned char *image, Flat x, int rows, int blocks) {
    begin();
    const int b = blockIdx.x, tile = blockIdx.y;
    unsigned char *to = image + ((int64_t)tile * blocks + b) * I::BLOCK;
    for (int i = threadIdx.x; i < 16 * I::ROWS; i += IMAGE_THREADS) {
        const int in_step = i / 8 % 4, r8 = i / 32 % (I::ROWS / 8);
        const int step = i / (4 * I::ROWS) * 4 + in_step, r = 8 * r8 + i % 8;
        const int row = tile * I::ROWS + r;
        const qn_cuda_i12 *block =
            row < rows ? (const qn_cuda_i12 *)(x.data + row * x.stride) + b : nullptr;
        const uint4 none = make_uint4(0, 0, 0, 0);
        const uint4 hi = block ? words_of(block->hi, step) : none;
        const uint4 lo = block ? words_of(block->lo, step) : none;
        put_step<I>(to + step * I::STEP, hi, lo, r);
        if (step == 0) put_tail<I>(to + 16 * I::STEP, block, r);
    }
}
