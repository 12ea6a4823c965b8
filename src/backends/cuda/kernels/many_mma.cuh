// Matmuls of many rows by warps: for cards without products of warpgroups.
//
// A block of threads has OUTS groups of four warps, each with 64 outputs. While a block of 256
// values is multiplied, the next one comes into the other half of shared memory. Fragments and sums
// lie in registers as on Hopper, so that all but the products is the same.
#pragma once

#include "many.cuh"

template <class I, int OUTS_> struct WarpShape : I {
    static constexpr int OUTS = OUTS_, THREADS = OUTS * 128;
    static constexpr int NY = I::ROWS / 2, N_ODD = I::HAS_WHOLE ? NY : 1;
    static constexpr int UNIT = Unit<I::TYPE>::BYTES;
    static constexpr int STAGE = I::BLOCK + OUTS * 4 * UNIT, BYTES = 2 * STAGE; // image, weights
};

// d (16, 8) += a (16, 16) b (16, 8)
static __device__ inline void warp_product(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d (16, 2 * REGS) += a b, where columns of b lie at `at` and the odd values `apart` bytes away.
template <int REGS>
static __device__ inline void add_columns(float (&d)[REGS], const uint32_t *a, uint32_t at,
                                          uint32_t apart) {
    const uint32_t lane = threadIdx.x % WARP; // which matrix, and its row
    const uint32_t mine = at + lane / 16 * 128 + lane / 8 % 2 * apart + lane % 8 * 16;
#pragma unroll
    for (int j = 0; j < REGS / 4; j += 2) { // 16 columns at a time
        uint32_t b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(mine + j * 128));
        warp_product(d + 4 * j, a, b[0], b[1]);
        warp_product(d + 4 * j + 4, a, b[2], b[3]);
    }
}

static __device__ inline void copy_16s(uint32_t to, const unsigned char *from, int bytes) {
    for (int i = (int)threadIdx.x * 16; i < bytes; i += (int)blockDim.x * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(from + i)
                     : "memory");
}
template <int LEFT> static __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// The image and the weights of a block.
template <class S>
static __device__ inline void copy_stage(uint32_t to, const Many &m, const ManyJob &job, int groups,
                                         int pass, int block) {
    copy_16s(to, m.image + ((int64_t)job.rows * m.blocks + block) * S::BLOCK, S::BLOCK);
    for (int o = 0; o < S::OUTS; o++) {
        const int group = job.outs * S::OUTS + o;
        if (group >= groups) break;
        const ManyGroup g = group_of(m, group, pass, S::UNIT);
        const int bytes = g.tiles * S::UNIT;
        copy_16s(to + S::BLOCK + o * 4 * S::UNIT, g.data + (int64_t)block * bytes, bytes);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// y += p of a block.
template <class S> static __device__ inline void add_block(float (&y)[S::NY], uint32_t stage) {
    const Unit<S::TYPE> unit(stage + S::BLOCK + threadIdx.x / WARP * S::UNIT);
    float acc[S::N / 2] = {}, odd[S::N_ODD] = {}, v[S::NY];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t frag[16], odd_frag[16];
        if constexpr (S::HAS_SUMS)
            unit.chunk(frag, c);
        else
            unit.template chunk<S::IS_EXACT>(frag, odd_frag, c);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint32_t at = stage + c * S::CHUNK + s * S::STEP;
            add_columns(acc, frag + 4 * s, at, 16 * S::COLUMNS);
            if constexpr (S::HAS_WHOLE)
                add_columns(odd, odd_frag + 4 * s, at + 16 * S::N, 16 * S::COLUMNS);
        }
    }
    scaled_sums<S>(v, acc, odd, unit);
    const uint32_t tail = stage + 4 * S::CHUNK;
    if constexpr (S::HAS_SUMS) {
        uint32_t frag[4];
        unit.offset_frag(frag, S::IS_EXACT);
#pragma unroll
        for (int i = 0; i < S::N / 2; i++) acc[i] = 0;
        add_columns(acc, frag, tail, 16 * S::N);
        take_offsets<S>(v, acc, unit);
    }
    scale_rows<S>(v, tail + S::SUMS);
#pragma unroll
    for (int i = 0; i < S::NY; i++) y[i] += v[i];
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS) many_mma(const __grid_constant__ Many m) {
    extern __shared__ __align__(1024) unsigned char shared[];
    await_others();
    const uint32_t base = shared_at(shared);
    const ManyExtent extent(m);
    const int row_tiles = ceil_div(m.rows, S::ROWS), sets = ceil_div(extent.groups, S::OUTS);
    for (int at = blockIdx.x; at < sets * row_tiles; at += gridDim.x) {
        const ManyJob job(at, row_tiles, sets);
        const int group = job.outs * S::OUTS + (int)threadIdx.x / 128;
        for (int pass = 0; pass < m.passes; pass++) {
            float y[S::NY] = {};
            copy_stage<S>(base, m, job, extent.groups, pass, 0);
            for (int b = 0; b < m.blocks; b++) {
                copies_wait<0>();
                __syncthreads(); // this block is there, and nobody reads the one before
                if (b + 1 < m.blocks)
                    copy_stage<S>(base + (b + 1) % 2 * S::STAGE, m, job, extent.groups, pass,
                                  b + 1);
                add_block<S>(y, base + b % 2 * S::STAGE);
            }
            __syncthreads();
            if (group >= extent.groups) continue;
            const ManyGroup g = group_of(m, group, pass, S::UNIT);
            store_results<S>(y, ManyOut(m, g, job.rows, S::ROWS, extent.columns), m, pass);
        }
    }
}
