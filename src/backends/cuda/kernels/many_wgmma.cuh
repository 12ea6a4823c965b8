// Matmuls of many rows by warpgroups, on Hopper.
//
// A block of threads has OUTS * WAYS warpgroups that multiply, and one that copies. Warpgroups of
// the same way share rows and have a group of 64 outputs each; way w has blocks w, w + WAYS, ... of
// the inner dimension, and hands its partials to way 0, which adds them in order. Weights are
// unpacked in registers; images of rows come through a ring of chunks of 64 values. Two blocks of
// threads (a cluster) do the same rows: each reads half of an image for both.
//
// The next kernel is not let in early: its blocks of threads would wait on the few multiprocessors
// that are free, and then run there instead of everywhere (10 us of 27 at 128 rows).
#pragma once

#include "many.cuh"

constexpr int CLUSTER = 2, GROUP_THREADS = 128;
constexpr int SHARED_BYTES = 227 * 1024;

template <class I, int OUTS_, int WAYS_> struct Shape : I {
    static constexpr int OUTS = OUTS_, WAYS = WAYS_, GROUPS = OUTS * WAYS;
    static constexpr int THREADS = (GROUPS + 1) * GROUP_THREADS;
    static constexpr int NY = I::ROWS / 2;              // results of a thread
    static constexpr int N_ODD = I::HAS_WHOLE ? NY : 1; // sums of p (q - 32) x
    static constexpr int REGS = GROUPS == 2 ? 232 : GROUPS == 3 ? 160 : 112;
    static constexpr int COPY_REGS = GROUPS == 2 ? 40 : 32;
    // Shared memory: rings of chunks, of weights with the tail of the image, partials, barriers.
    static constexpr int UNIT = Unit<I::TYPE>::BYTES, WEIGHTS = OUTS * 4 * UNIT;
    static constexpr int SLOT = WEIGHTS + I::TAIL;
    static constexpr int PARTIALS = OUTS * (WAYS - 1) * NY * GROUP_THREADS * 4;
    static constexpr int LEFT = SHARED_BYTES - 1024 - PARTIALS;
    static constexpr int W_SLOTS = WAYS == 1 ? LEFT >= 4 * SLOT + 8 * I::CHUNK ? 4 : 3
                                   : LEFT >= WAYS * (3 * SLOT + 8 * I::CHUNK) ? 3
                                                                              : 2;
    static constexpr int FIT = (LEFT - WAYS * W_SLOTS * SLOT) / (WAYS * I::CHUNK);
    static constexpr int B_SLOTS = FIT < 12 ? FIT : 12;
    static constexpr int W_AT = WAYS * B_SLOTS * I::CHUNK, P_AT = W_AT + WAYS * W_SLOTS * SLOT;
    static constexpr int BARRIERS_AT = P_AT + PARTIALS;
    static constexpr int EXTENT_AT = BARRIERS_AT + 16 * WAYS * (B_SLOTS + W_SLOTS);
    static constexpr int BYTES = EXTENT_AT + 16;
    static_assert(B_SLOTS >= 2 && BYTES <= SHARED_BYTES, "rings");
};

#if HAS_WGMMA

// A place in a ring: slot, and the parity of its turn.
template <int SLOTS> struct Turn {
    int slot = 0;
    uint32_t parity = 0;
    __device__ inline void next() {
        if (++slot < SLOTS) return;
        slot = 0;
        parity ^= 1;
    }
};

// The rings of a way, in shared memory.
template <class S> struct Rings {
    uint32_t chunks, weights, barriers;
    __device__ inline Rings(uint32_t base, int way)
        : chunks(base + way * S::B_SLOTS * S::CHUNK),
          weights(base + S::W_AT + way * S::W_SLOTS * S::SLOT),
          barriers(base + S::BARRIERS_AT + way * 16 * (S::B_SLOTS + S::W_SLOTS)) {}
    __device__ inline uint32_t chunk_full(int i) const { return barriers + 16 * i; }
    __device__ inline uint32_t chunk_empty(int i) const { return barriers + 16 * i + 8; }
    __device__ inline uint32_t weights_full(int i) const {
        return barriers + 16 * (S::B_SLOTS + i);
    }
    __device__ inline uint32_t weights_empty(int i) const { return weights_full(i) + 8; }
    __device__ inline void init() const {
        for (int i = 0; i < S::B_SLOTS; i++) {
            barrier_init(chunk_full(i), 1);
            barrier_init(chunk_empty(i), CLUSTER * 4 * S::OUTS);
        }
        for (int i = 0; i < S::W_SLOTS; i++) {
            barrier_init(weights_full(i), 1);
            barrier_init(weights_empty(i), 4 * S::OUTS);
        }
    }
};

// The jobs of this block of threads; `groups` are computed of the outputs.
template <class S> struct Jobs {
    int row_tiles, sets;
    __device__ inline Jobs(const Many &m, int groups)
        : row_tiles(ceil_div(m.rows, S::ROWS)), sets(ceil_div(groups, CLUSTER * S::OUTS)) {}
    __device__ inline bool has(int at) const { return at < sets * row_tiles; }
    __device__ inline ManyJob get(int at) const { return ManyJob(at, row_tiles, sets); }
};
// Group `out` of a job in this block of threads. Groups after the last are computed as the first,
// and not stored.
template <class S> static __device__ inline int group_in(const ManyJob &job, int out) {
    return (job.outs * CLUSTER + (int)cluster_rank()) * S::OUTS + out;
}

// Weights of the groups of a job from one block on.
template <class S> struct Source {
    const unsigned char *from[S::OUTS];
    uint32_t tiles; // of each group, 4 bits each
    __device__ inline Source(const Many &m, const ManyJob &job, int groups, int pass, int block)
        : tiles(0) {
#pragma unroll
        for (int o = 0; o < S::OUTS; o++) {
            const int group = group_in<S>(job, o);
            const ManyGroup g = group_of(m, group < groups ? group : 0, pass, S::UNIT);
            from[o] = g.data + (int64_t)block * g.tiles * S::UNIT;
            tiles |= (uint32_t)g.tiles << 4 * o;
        }
    }
    __device__ inline uint32_t bytes(int o) const { return (tiles >> 4 * o & 15) * S::UNIT; }
    // Copies a block, and goes on to the next of this way.
    __device__ inline void copy(uint32_t to, uint32_t full) {
        uint32_t all = S::TAIL;
#pragma unroll
        for (int o = 0; o < S::OUTS; o++) all += bytes(o);
        barrier_expect(full, all);
#pragma unroll
        for (int o = 0; o < S::OUTS; o++) {
            bulk_copy(to + o * 4 * S::UNIT, from[o], bytes(o), full);
            from[o] += S::WAYS * bytes(o);
        }
    }
};

// One thread copies all that a way wants.
template <class S>
static __device__ inline void copy_way(const Many &m, const volatile int *extent,
                                       const Rings<S> &rings, int way) {
    constexpr uint32_t SHARE = S::CHUNK / CLUSTER;
    const uint32_t share = cluster_rank() * SHARE;
    Turn<S::B_SLOTS> chunk;
    Turn<S::W_SLOTS> weights;
    for (int at = blockIdx.x / CLUSTER; Jobs<S>(m, extent[0]).has(at); at += gridDim.x / CLUSTER) {
        for (int pass = 0; pass < m.passes; pass++) {
            const ManyJob job = Jobs<S>(m, extent[0]).get(at);
            const unsigned char *image = m.image + ((int64_t)job.rows * m.blocks + way) * S::BLOCK;
            Source<S> source(m, job, extent[0], pass, way);
            for (int b = way; b < m.blocks; b += S::WAYS, image += S::WAYS * S::BLOCK) {
                const uint32_t full = rings.weights_full(weights.slot);
                const uint32_t to = rings.weights + weights.slot * S::SLOT;
                barrier_wait(rings.weights_empty(weights.slot), weights.parity ^ 1);
                source.copy(to, full);
                bulk_copy(to + S::WEIGHTS, image + 4 * S::CHUNK, S::TAIL, full);
                weights.next();
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    barrier_wait(rings.chunk_empty(chunk.slot), chunk.parity ^ 1);
                    barrier_expect(rings.chunk_full(chunk.slot), S::CHUNK);
                    bulk_copy_to(rings.chunks + chunk.slot * S::CHUNK + share,
                                 image + c * S::CHUNK + share, SHARE, rings.chunk_full(chunk.slot),
                                 (1 << CLUSTER) - 1);
                    chunk.next();
                }
            }
        }
    }
}

template <int REGS>
static __device__ inline void add_product(float (&d)[REGS], const uint32_t *a, uint64_t b,
                                          bool is_first) {
    if (is_first)
        first_product(d, a, b);
    else
        product(d, a, b);
}

// The products of a block: digits in acc, and with p (q - 32) in odd. `unit` is the warp's.
template <class S>
static __device__ inline void multiply_block(float (&acc)[S::N / 2], float (&odd)[S::N_ODD],
                                             const Unit<S::TYPE> &unit, const Rings<S> &rings,
                                             Turn<S::B_SLOTS> &turn) {
    const int lane = threadIdx.x % WARP;
    uint32_t frag[2][16], odd_frag[S::HAS_WHOLE ? 2 : 1][16];
    int last = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        if constexpr (S::HAS_SUMS)
            unit.chunk(frag[c % 2], c);
        else
            unit.template chunk<S::IS_EXACT>(frag[c % 2], odd_frag[S::HAS_WHOLE ? c % 2 : 0], c);
        barrier_wait(rings.chunk_full(turn.slot), turn.parity);
        const uint32_t b = rings.chunks + turn.slot * S::CHUNK;
        products_begin();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint32_t at = b + s * S::STEP;
            add_product(acc, frag[c % 2] + 4 * s, b_operand(at, 16 * S::COLUMNS), c + s == 0);
            if constexpr (S::HAS_WHOLE)
                add_product(odd, odd_frag[c % 2] + 4 * s,
                            b_operand(at + 16 * S::N, 16 * S::COLUMNS), c + s == 0);
        }
        products_commit();
        if (c > 0) {
            products_wait<1>();
            if (lane < CLUSTER) barrier_arrive_at(rings.chunk_empty(last), lane);
        }
        last = turn.slot;
        turn.next();
    }
    products_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(rings.chunk_empty(last), lane);
}

// p of a block in v.
template <class S>
static __device__ inline void partial_of_block(float (&v)[S::NY], const Rings<S> &rings,
                                               Turn<S::B_SLOTS> &turn, uint32_t slot, int out) {
    const uint32_t at = slot + (out * 4 + threadIdx.x / WARP % 4) * S::UNIT;
    float acc[S::N / 2], odd[S::N_ODD];
    multiply_block<S>(acc, odd, Unit<S::TYPE>(at), rings, turn);
    const Unit<S::TYPE> unit(at); // its head again: registers are scarce
    scaled_sums<S>(v, acc, odd, unit);
    if constexpr (S::HAS_SUMS) {
        uint32_t frag[4];
        unit.offset_frag(frag, S::IS_EXACT);
        // Made before products_begin, and not moved behind it.
        asm volatile("" : "+r"(frag[0]), "+r"(frag[1]), "+r"(frag[2]), "+r"(frag[3])::"memory");
        products_begin();
        next_product(acc, frag, b_operand(slot + S::WEIGHTS, 16 * S::N));
        products_commit();
        products_wait<0>();
        take_offsets<S>(v, acc, unit);
    }
    scale_rows<S>(v, slot + S::WEIGHTS + S::SUMS);
}

// Partials of another way, 16 bytes of each thread at a time.
template <class S> struct Partials {
    static constexpr int THREADS = 2 * GROUP_THREADS; // of two ways
    uint32_t at;
    int full, empty; // barriers of both
    __device__ inline Partials(uint32_t base, int out, int way)
        : at(base + S::P_AT + (out * (S::WAYS - 1) + way - 1) * S::NY * GROUP_THREADS * 4 +
             threadIdx.x % GROUP_THREADS * 16),
          full(1 + 2 * (out * (S::WAYS - 1) + way - 1)), empty(full + 1) {}
    __device__ inline void give(const float (&p)[S::NY], bool is_first) const {
        if (!is_first) some_sync(empty, THREADS);
#pragma unroll
        for (int i = 0; i < S::NY; i += 4)
            asm volatile(
                "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + i * GROUP_THREADS * 4),
                "f"(p[i]), "f"(p[i + 1]), "f"(p[i + 2]), "f"(p[i + 3])
                : "memory");
        some_arrive(full, THREADS);
    }
    __device__ inline void add(float (&y)[S::NY]) const {
        some_sync(full, THREADS);
#pragma unroll
        for (int i = 0; i < S::NY; i += 4) {
            const uint4 p = load_16(at + i * GROUP_THREADS * 4);
            y[i] += __uint_as_float(p.x);
            y[i + 1] += __uint_as_float(p.y);
            y[i + 2] += __uint_as_float(p.z);
            y[i + 3] += __uint_as_float(p.w);
        }
        some_arrive(empty, THREADS);
    }
};

// y of a job, in the order of blocks. Other ways than the first leave it to that.
template <class S>
static __device__ inline void multiply_rows(float (&y)[S::NY], int blocks, uint32_t base, int out,
                                            int way, const Rings<S> &rings, Turn<S::B_SLOTS> &chunk,
                                            Turn<S::W_SLOTS> &weights, bool &is_first) {
#pragma unroll
    for (int i = 0; i < S::NY; i++) y[i] = 0;
    for (int b = way; b < blocks; b += S::WAYS) {
        float v[S::NY];
        barrier_wait(rings.weights_full(weights.slot), weights.parity);
        partial_of_block<S>(v, rings, chunk, rings.weights + weights.slot * S::SLOT, out);
        __syncwarp();
        if (threadIdx.x % WARP == 0) barrier_arrive(rings.weights_empty(weights.slot));
        weights.next();
        if (S::WAYS > 1 && way > 0) {
            Partials<S>(base, out, way).give(v, is_first);
            is_first = false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < S::NY; i++) y[i] += v[i];
        for (int w = 1; w < S::WAYS && b + w < blocks; w++) Partials<S>(base, out, w).add(y);
    }
}

template <class S>
static __device__ inline void multiply_way(const Many &m, const volatile int *extent, uint32_t base,
                                           int out, int way) {
    const Rings<S> rings(base, way);
    Turn<S::B_SLOTS> chunk;
    Turn<S::W_SLOTS> weights;
    bool is_first = true;
    for (int at = blockIdx.x / CLUSTER; Jobs<S>(m, extent[0]).has(at); at += gridDim.x / CLUSTER) {
        for (int pass = 0; pass < m.passes; pass++) {
            float y[S::NY];
            multiply_rows<S>(y, m.blocks, base, out, way, rings, chunk, weights, is_first);
            const ManyJob job = Jobs<S>(m, extent[0]).get(at);
            const int group = group_in<S>(job, out);
            if (way > 0 || group >= extent[0]) continue;
            const ManyGroup g = group_of(m, group, pass, S::UNIT);
            store_results<S>(y, ManyOut(m, g, job.rows, S::ROWS, extent[1]), m, pass);
        }
    }
    if (S::WAYS > 1 && way > 0 && !is_first)
        some_sync(Partials<S>(base, out, way).empty, Partials<S>::THREADS);
}

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

template <class S>
static __global__ void IN_CLUSTERS __launch_bounds__(S::THREADS, 1)
    many_wgmma(const __grid_constant__ Many m) {
#if HAS_WGMMA && defined(__CUDA_ARCH__)
    extern __shared__ __align__(1024) unsigned char shared[];
    // Groups and columns; read again for each job, as registers are scarce.
    volatile int *extent = (volatile int *)(shared + S::EXTENT_AT);
    const uint32_t base = shared_at(shared);
    const int group = __shfl_sync(ALL, threadIdx.x / GROUP_THREADS, 0); // known to be uniform
    if (threadIdx.x == 0) {
        for (int w = 0; w < S::WAYS; w++) Rings<S>(base, w).init();
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    await_others();
    if (threadIdx.x == 0) {
        const ManyExtent all(m);
        extent[0] = all.groups;
        extent[1] = all.columns;
    }
    __syncthreads();
    cluster_sync();
    if (group == S::GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::COPY_REGS));
        const int way = S::WAYS > 1 ? threadIdx.x / WARP % 4 : 0;
        if (threadIdx.x % GROUP_THREADS == way * WARP && way < S::WAYS)
            copy_way<S>(m, extent, Rings<S>(base, way), way);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGS));
        multiply_way<S>(m, extent, base, group % S::OUTS, S::WAYS > 1 ? group / S::OUTS : 0);
    }
    __syncwarp();
    cluster_sync(); // the other may still copy to here
#else
    (void)m;
#endif
}
