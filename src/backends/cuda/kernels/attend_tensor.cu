// Attention of any rows on tensor cores. A block of threads has a head of keys and values and a
// tile of 64 queries: rows that follow each other, of all heads of the group; a warp has 16 of
// them, their queries and sums in registers. Keys and values of the next 64 positions are on their
// way while these are computed.
#include "tensor_blocks.cuh"

constexpr int M = TENSOR_QUERIES, WARP_ROWS = 16;
static_assert(M / WARP_ROWS * WARP == THREADS);

template <int HEAD> constexpr size_t TILE_BYTES = 4 * Tile<HEAD>::STAGE + M *HEAD * sizeof(float);

// What a thread has of its warp's queries; rows are g and g + 8.
template <int HEAD> struct Queries {
    unsigned hi[Tile<HEAD>::STEPS][4], lo[Tile<HEAD>::STEPS][4];
    int first[2], end[2]; // positions that they see
};

// Sums of the chunk, and of those before, whose o is in shared memory.
template <int HEAD> struct Sums {
    float o[Tile<HEAD>::COLUMNS][4];
    float m[2], l[2], all_m[2], all_l[2];
    bool has_all;
};

// --- queries -------------------------------------------------------------------------------------

template <int HEAD>
static __device__ inline void load_queries(Queries<HEAD> &to, const Task &t, const Operand &q,
                                           const Rows &x, int first) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = first + g + 8 * r;
        const bool is_there = query < x.n * x.group;
        const Range range = is_there ? range_of(t, x.row + query / x.group) : Range{0, 0};
        const float *from = is_there ? (const float *)part_at(q, x.row + query / x.group,
                                                              x.kv * x.group + query % x.group)
                                     : nullptr;
        to.first[r] = (int)range.first;
        to.end[r] = (int)range.end;
#pragma unroll
        for (int k = 0; k < Tile<HEAD>::STEPS; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 two = is_there ? *(const float2 *)(from + 16 * k + 8 * half + 2 * i)
                                            : make_float2(0, 0);
                const Halves halves = split(two.x, two.y);
                to.hi[k][2 * half + r] = halves.hi;
                to.lo[k][2 * half + r] = halves.lo;
            }
        }
    }
}

// --- a block of 64 positions ---------------------------------------------------------------------

template <int HEAD>
static __device__ inline void score_block(float (&s)[TILES][4], const Queries<HEAD> &q,
                                          const unsigned char *keys) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int n = 0; n < TILES; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int k = 0; k < T::STEPS; k++) {
        unsigned b[TILES / 2][4];
#pragma unroll
        for (int n = 0; n < TILES / 2; n++) load_keys<HEAD>(b[n], keys, 16 * n, k);
#pragma unroll
        for (int n = 0; n < TILES; n++)
            mma(s[n], q.hi[k], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < TILES; n++)
            mma(s[n], q.lo[k], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

// Scores become p, which are 0 where a position is not seen.
template <bool IS_WHOLE, int HEAD>
static __device__ inline void soften_block(float (&s)[TILES][4], Sums<HEAD> &sums,
                                           const Queries<HEAD> &q, const qn_attrs &attrs, int at) {
    const int lane = (int)threadIdx.x % WARP, i = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int first = q.first[r] - at - 2 * i, end = q.end[r] - at - 2 * i;
        float most = sums.m[r], sum = 0;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = s[n][2 * r + k];
                x = finish_log(x, attrs);
                if (!IS_WHOLE && !(8 * n + k >= first && 8 * n + k < end)) x = -INFINITY;
                most = larger(x, most);
            }
        }
        most = larger(__shfl_xor_sync(ALL, most, 1), most);
        most = larger(__shfl_xor_sync(ALL, most, 2), most);
        const float base = base_of(most), decay = power_of_2(sums.m[r] - base);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &x = s[n][2 * r + k];
                x = power_of_2(x - base);
                sum += x;
            }
        }
        sum += __shfl_xor_sync(ALL, sum, 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
        sums.l[r] = fmaf(sums.l[r], decay, sum);
        sums.m[r] = most;
#pragma unroll
        for (int f = 0; f < Tile<HEAD>::COLUMNS; f++) {
            sums.o[f][2 * r] *= decay;
            sums.o[f][2 * r + 1] *= decay;
        }
    }
}

template <int HEAD>
static __device__ inline void add_block(Sums<HEAD> &sums, const float (&p)[TILES][4],
                                        const unsigned char *values) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
        unsigned hi[4], lo[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Halves halves =
                split(p[2 * k + i / 2][i % 2 * 2], p[2 * k + i / 2][i % 2 * 2 + 1]);
            hi[i] = halves.hi;
            lo[i] = halves.lo;
        }
#pragma unroll
        for (int f = 0; f < T::COLUMNS; f += 4) {
            unsigned b[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++) load_values<HEAD>(b[n], values, k, f + 2 * n);
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma(sums.o[f + n], hi, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma(sums.o[f + n], lo, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

// --- chunks --------------------------------------------------------------------------------------

template <int HEAD> static __device__ inline void open_chunk(Sums<HEAD> &sums) {
#pragma unroll
    for (int f = 0; f < Tile<HEAD>::COLUMNS; f++)
        sums.o[f][0] = sums.o[f][1] = sums.o[f][2] = sums.o[f][3] = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums.m[r] = -INFINITY;
        sums.l[r] = 0;
    }
}

// `all` is the thread's own: a float4 of every column, 128 threads apart.
template <int HEAD> static __device__ inline void end_chunk(Sums<HEAD> &sums, float4 *all) {
    Joint j[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        j[r] = {1, 0}; // of rows that saw nothing of it
        if (sums.m[r] != -INFINITY)
            j[r] = join_chunk(sums.all_m[r], sums.all_l[r], sums.m[r], sums.l[r], power_of_2);
    }
#pragma unroll
    for (int f = 0; f < Tile<HEAD>::COLUMNS; f++) {
        const float *o = sums.o[f];
        const float4 was = sums.has_all ? all[f * THREADS] : make_float4(0, 0, 0, 0);
        all[f * THREADS] = make_float4(
            fmaf(was.x, j[0].before, o[0] * j[0].part), fmaf(was.y, j[0].before, o[1] * j[0].part),
            fmaf(was.z, j[1].before, o[2] * j[1].part), fmaf(was.w, j[1].before, o[3] * j[1].part));
    }
    sums.has_all = true;
}

template <int HEAD>
static __device__ inline void end_rows(const Sums<HEAD> &sums, const float4 *all, const Task &t,
                                       const Attention &a, const Rows &x, int first) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = first + g + 8 * r;
        if (query >= x.n * x.group) continue;
        const int64_t head = x.kv * x.group + query % x.group;
        const float sink = a.sinks ? a.sinks[head] * LOG2_E : 0.0f;
        const Last last =
            finish_softmax(sums.all_m[r], sums.all_l[r], a.sinks != nullptr, sink, power_of_2);
        float *to = result_at(t, x, query) + 2 * i;
#pragma unroll
        for (int f = 0; f < Tile<HEAD>::COLUMNS; f++) {
            const float4 o = sums.has_all ? all[f * THREADS] : make_float4(0, 0, 0, 0);
            *(float2 *)(to + 8 * f) = make_float2((r ? o.z : o.x) * last.a * last.inverse + 0.0f,
                                                  (r ? o.w : o.y) * last.a * last.inverse + 0.0f);
        }
    }
}

// --- a tile --------------------------------------------------------------------------------------

template <int HEAD>
static __device__ inline void attend_tile(const Task &t, const Attention &a, const Rows &x,
                                          unsigned char *shared) {
    using T = Tile<HEAD>;
    const int first = (int)threadIdx.x / WARP * WARP_ROWS;
    const bool is_idle = first >= x.n * x.group; // of the warp: it only copies
    const Range low = range_of(t, x.row), high = range_of(t, x.row + x.n - 1);
    const int end = (int)high.end;
    float4 *all = (float4 *)(shared + 4 * T::STAGE) + threadIdx.x;
    Queries<HEAD> q;
    Sums<HEAD> sums;
    load_queries(q, t, a.q, x, first);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums.all_m[r] = -INFINITY;
        sums.all_l[r] = 0;
    }
    sums.has_all = false;
    open_chunk(sums);
    int at = next_block(t, x.seg, (int)(low.first / BLOCK * BLOCK), end), odd = 0;
    if (at < end) copy_block<HEAD>(shared, t, x, at, end);
    __pipeline_commit();
    while (at < end) {
        const int next = next_block(t, x.seg, at + BLOCK, end);
        unsigned char *stage = shared + odd * 2 * T::STAGE;
        __pipeline_wait_prior(0);
        __syncthreads(); // this block is there, and the one before was read
        if (next < end) copy_block<HEAD>(shared + (odd ^ 1) * 2 * T::STAGE, t, x, next, end);
        __pipeline_commit();
        if (!is_idle) {
            float s[TILES][4];
            score_block(s, q, stage);
            if (at >= high.first && at + BLOCK <= low.end)
                soften_block<true>(s, sums, q, t.attrs, at);
            else
                soften_block<false>(s, sums, q, t.attrs, at);
            add_block(sums, s, stage + T::STAGE);
            if (next >= end || next / CHUNK != at / CHUNK) {
                end_chunk(sums, all);
                open_chunk(sums);
            }
        }
        odd ^= 1;
        at = next;
    }
    if (!is_idle) end_rows(sums, all, t, a, x, first);
}

// Grid: heads of keys and values; tiles, the last ones first, as they see most.
template <int HEAD>
static __global__ void __launch_bounds__(THREADS, 2)
    attend_tensor(const __grid_constant__ Task t, const __grid_constant__ Attention a) {
    begin();
    extern __shared__ __align__(16) unsigned char tensor_shared[];
    const int group = (int)(a.q.parts / t.cache.heads);
    Rows x = find_rows(t, a, gridDim.y - 1 - blockIdx.y, M / group);
    x.group = group;
    x.kv = blockIdx.x;
    if (x.n == 0) return;
    if (x.seg < 0)
        clear_rows<HEAD>(t, x);
    else
        attend_tile<HEAD>(t, a, x, tensor_shared);
}

bool launch_attend_tensor(const Task *task, const Attention &a, cudaStream_t stream) {
    const int64_t group = a.q.parts / task->cache.heads;
    if (!is_tensor(task, a.q)) return false;
    return pick_shape(task->cache, [&](auto, auto size) {
        constexpr int HEAD = decltype(size)::value;
        if constexpr (HEAD <= 128) {
            const auto kernel = attend_tensor<HEAD>;
            // Every segment, and padding, may have a tile that is not full.
            const int64_t tiles = task->rows / (M / group) + task->segs + 1;
            if (tiles > 65535 || !allow_shared(kernel, TILE_BYTES<HEAD>)) return false;
            const dim3 grid(grid_of(task->cache.heads), grid_of(tiles));
            start(kernel, grid, THREADS, TILE_BYTES<HEAD>, stream, *task, a);
            return true;
        }
        return false;
    });
}
