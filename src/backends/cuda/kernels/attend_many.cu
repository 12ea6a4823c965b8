// Attention of many rows. A block of threads has a head of keys and values and a tile: queries of
// rows that follow each other, of all heads of the group, against 64 positions at a time, as a
// product of matrices whose sums lie in registers. A half of a warp has the same queries in scores
// and in values, so that the softmax stays inside it.
#include "tiles.cuh"

constexpr int THREADS = 256, SIDE = 16; // threads along the queries, and along positions or values

template <int HEAD> struct Tile {
    static constexpr int M = HEAD > 128 ? 64 : 128; // queries
    static constexpr int Q = M / SIDE;              // of a thread
    static constexpr int QUADS = HEAD / 64;         // fours of values of a thread
    static constexpr int P_ROW = M + 4;             // writes of a column spread over the banks
    static constexpr int PIECES = BLOCK * HEAD / 8 / THREADS; // eights that a thread brings
    static constexpr size_t BYTES =
        (size_t)(HEAD * M + 2 * HEAD * BLOCK + BLOCK * P_ROW) * sizeof(float) + M * sizeof(int2);
};

// Shared memory. Position j of the keys is in column (j % 16) * 4 + j / 16, as a thread has
// positions that are 16 apart: those of one lane of the sum of p.
template <int HEAD> struct Shared {
    float *q, *k, *v, *p; // (E, M), (E, 64), (64, F), (64, P_ROW)
    int2 *ranges;         // (M) positions that a query sees

    __device__ explicit Shared(float *at)
        : q(at), k(q + HEAD * Tile<HEAD>::M), v(k + HEAD * BLOCK), p(v + HEAD * BLOCK),
          ranges((int2 *)(p + BLOCK * Tile<HEAD>::P_ROW)) {}
};

// The queries of a tile and what they see; those that are not there see nothing.
template <int HEAD>
static __device__ inline void load_queries(const Task &t, const Operand &q, const Rows &x,
                                           const Shared<HEAD> &s) {
    constexpr int M = Tile<HEAD>::M;
    const int n = x.n * x.group;
    for (int i = threadIdx.x; i < M * HEAD / 4; i += THREADS) {
        const int query = i % M, e = i / M * 4;
        float4 four = make_float4(0, 0, 0, 0);
        if (query < n)
            four = *(const float4 *)((const float *)part_at(q, x.row + query / x.group,
                                                            x.kv * x.group + query % x.group) +
                                     e);
        s.q[e * M + query] = four.x;
        s.q[(e + 1) * M + query] = four.y;
        s.q[(e + 2) * M + query] = four.z;
        s.q[(e + 3) * M + query] = four.w;
    }
    for (int query = threadIdx.x; query < M; query += THREADS) {
        const Range r = query < n ? range_of(t, x.row + query / x.group) : Range{0, 0};
        s.ranges[query] = make_int2((int)r.first, (int)r.end);
    }
}

// --- keys and values -----------------------------------------------------------------------------

// Neighbours write neighbouring columns.
template <int TYPE, int HEAD>
static __device__ inline void load_keys(Eight<TYPE> *to, const unsigned char *from, int64_t row) {
#pragma unroll
    for (int i = 0; i < Tile<HEAD>::PIECES; i++) {
        const int at = threadIdx.x + i * THREADS, column = at % BLOCK;
        to[i].load(from + (column % 4 * 16 + column / 4) * row, at / BLOCK);
    }
}

template <int TYPE, int HEAD>
static __device__ inline void store_keys(float *to, const Eight<TYPE> *from) {
#pragma unroll
    for (int i = 0; i < Tile<HEAD>::PIECES; i++) {
        const int at = threadIdx.x + i * THREADS;
        float x[8];
        from[i].unpack(x);
#pragma unroll
        for (int e = 0; e < 8; e++) to[(at / BLOCK * 8 + e) * BLOCK + at % BLOCK] = x[e];
    }
}

template <int TYPE, int HEAD>
static __device__ inline void load_values(Eight<TYPE> *to, const unsigned char *from, int64_t row) {
#pragma unroll
    for (int i = 0; i < Tile<HEAD>::PIECES; i++) {
        const int at = threadIdx.x + i * THREADS;
        to[i].load(from + at / (HEAD / 8) * row, at % (HEAD / 8));
    }
}

template <int TYPE, int HEAD>
static __device__ inline void store_values(float *to, const Eight<TYPE> *from) {
#pragma unroll
    for (int i = 0; i < Tile<HEAD>::PIECES; i++) {
        alignas(16) float x[8];
        from[i].unpack(x);
        float4 *at = (float4 *)(to + (threadIdx.x + i * THREADS) * 8);
        at[0] = make_float4(x[0], x[1], x[2], x[3]);
        at[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

// --- a block of 64 positions ---------------------------------------------------------------------

// Of the queries of a thread: the sums of the chunk, and of all chunks before, whose o is in the
// result.
template <int HEAD> struct Sums {
    float o[Tile<HEAD>::Q][4 * Tile<HEAD>::QUADS];
    float m[Tile<HEAD>::Q], l[Tile<HEAD>::Q], all_m[Tile<HEAD>::Q], all_l[Tile<HEAD>::Q];
    unsigned has_part, has_all; // bit per query: saw something
};

template <int N> static __device__ inline void load_fours(float *to, const float *from) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 x = *(const float4 *)(from + i);
        to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
    }
}

template <int HEAD>
static __device__ inline void score_block(float (*s)[4], const Shared<HEAD> &shared, int queries,
                                          int side) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int i = 0; i < T::Q; i++) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll 4
    for (int e = 0; e < HEAD; e++) {
        float q[T::Q], k[4];
        load_fours<T::Q>(q, shared.q + e * T::M + queries);
        load_fours<4>(k, shared.k + e * BLOCK + 4 * side);
#pragma unroll
        for (int i = 0; i < T::Q; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] = fmaf(q[i], k[j], s[i][j]);
        }
    }
}

// Scores become p, which are negative where a position is not seen.
template <int HEAD>
static __device__ inline void soften_block(float (*s)[4], Sums<HEAD> &sums, const Task &t,
                                           const Shared<HEAD> &shared, int at, int queries,
                                           int side) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int i = 0; i < T::Q; i++) {
        const int2 range = shared.ranges[queries + i];
        const int first = range.x - at, end = range.y - at;
        const bool has_any = (first > 0 ? first : 0) < (end < BLOCK ? end : BLOCK);
        bool is_seen[4];
        float most = sums.m[i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int position = side + SIDE * j;
            is_seen[j] = position >= first && position < end;
            s[i][j] = finish_score(s[i][j], t.attrs);
            most = is_seen[j] && s[i][j] > most ? s[i][j] : most;
        }
#pragma unroll
        for (int half = SIDE / 2; half > 0; half /= 2)
            most = larger(__shfl_xor_sync(ALL, most, half), most);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float p = math_exp(s[i][j] - most);
            sum += is_seen[j] ? p : 0;
            s[i][j] = is_seen[j] ? p : -1;
        }
#pragma unroll
        for (int half = SIDE / 2; half > 0; half /= 2)
            sum += __shfl_down_sync(ALL, sum, half, SIDE);
        sum = __shfl_sync(ALL, sum, 0, SIDE);
        const float decay = has_any ? math_exp(sums.m[i] - most) : 1;
        sums.l[i] = has_any ? fmaf(sums.l[i], decay, sum) : sums.l[i];
        sums.m[i] = most; // as it was where nothing is seen
        sums.has_part |= (unsigned)has_any << i;
#pragma unroll
        for (int f = 0; f < 4 * T::QUADS; f++) sums.o[i][f] *= decay;
    }
}

template <int HEAD>
static __device__ inline void share_p(const float (*s)[4], const Shared<HEAD> &shared, int queries,
                                      int side) {
    using T = Tile<HEAD>;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float *to = shared.p + (side + SIDE * j) * T::P_ROW + queries;
#pragma unroll
        for (int i = 0; i < T::Q; i += 4)
            *(float4 *)(to + i) = make_float4(s[i][j], s[i + 1][j], s[i + 2][j], s[i + 3][j]);
    }
    __syncwarp();
}

// Positions first ... end - 1; is_whole: all queries see all of them.
template <bool IS_WHOLE, int HEAD>
static __device__ inline void add_values(Sums<HEAD> &sums, const Shared<HEAD> &shared, int first,
                                         int end, int queries, int side) {
    using T = Tile<HEAD>;
#pragma unroll(IS_WHOLE ? 4 : 1)
    for (int j = first; j < end; j++) {
        float p[T::Q], v[4 * T::QUADS];
        load_fours<T::Q>(p, shared.p + j * T::P_ROW + queries);
#pragma unroll
        for (int f = 0; f < T::QUADS; f++)
            load_fours<4>(v + 4 * f, shared.v + j * HEAD + 64 * f + 4 * side);
#pragma unroll
        for (int i = 0; i < T::Q; i++) {
            if (!IS_WHOLE && p[i] < 0) continue;
#pragma unroll
            for (int f = 0; f < 4 * T::QUADS; f++) sums.o[i][f] = fmaf(p[i], v[f], sums.o[i][f]);
        }
    }
}

// --- chunks --------------------------------------------------------------------------------------

template <int HEAD> static __device__ inline void open_chunk(Sums<HEAD> &sums) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int i = 0; i < T::Q; i++) {
        sums.m[i] = -INFINITY;
        sums.l[i] = 0;
#pragma unroll
        for (int f = 0; f < 4 * T::QUADS; f++) sums.o[i][f] = 0;
    }
    sums.has_part = 0;
}

template <int HEAD>
static __device__ inline void end_chunk(Sums<HEAD> &sums, const Task &t, const Rows &x, int queries,
                                        int side) {
    using T = Tile<HEAD>;
#pragma unroll
    for (int i = 0; i < T::Q; i++) {
        if (!(sums.has_part >> i & 1)) continue;
        const Joint j = join_chunk(sums.all_m[i], sums.all_l[i], sums.m[i], sums.l[i]);
        float4 *to = (float4 *)result_at(t, x, queries + i) + side;
#pragma unroll
        for (int f = 0; f < T::QUADS; f++) {
            const float *o = sums.o[i] + 4 * f;
            const float4 all = sums.has_all >> i & 1 ? to[SIDE * f] : make_float4(0, 0, 0, 0);
            to[SIDE * f] = make_float4(
                fmaf(all.x, j.before, o[0] * j.part), fmaf(all.y, j.before, o[1] * j.part),
                fmaf(all.z, j.before, o[2] * j.part), fmaf(all.w, j.before, o[3] * j.part));
        }
    }
    sums.has_all |= sums.has_part;
}

template <int HEAD>
static __device__ inline void end_rows(const Sums<HEAD> &sums, const Task &t, const Attention &a,
                                       const Rows &x, int queries, int side) {
    using T = Tile<HEAD>;
    for (int i = 0; i < T::Q && queries + i < x.n * x.group; i++) {
        const int64_t head = x.kv * x.group + (queries + i) % x.group;
        float m = -INFINITY, l = 0;
#pragma unroll
        for (int k = 0; k < T::Q; k++) { // registers have no index
            m = k == i ? sums.all_m[k] : m;
            l = k == i ? sums.all_l[k] : l;
        }
        const Last last = finish_softmax(m, l, a.sinks ? a.sinks + head : nullptr);
        float4 *to = (float4 *)result_at(t, x, queries + i) + side;
        for (int f = 0; f < T::QUADS; f++) {
            const float4 o = sums.has_all >> i & 1 ? to[SIDE * f] : make_float4(0, 0, 0, 0);
            to[SIDE * f] = make_float4(o.x * last.a * last.inverse, o.y * last.a * last.inverse,
                                       o.z * last.a * last.inverse, o.w * last.a * last.inverse);
        }
    }
}

// --- a tile --------------------------------------------------------------------------------------

template <int TYPE, int HEAD>
static __device__ inline void attend_tile(const Task &t, const Attention &a, const Rows &x,
                                          const Shared<HEAD> &shared) {
    using T = Tile<HEAD>;
    const int queries = (int)threadIdx.x / SIDE * T::Q, side = (int)threadIdx.x % SIDE;
    const Range low = range_of(t, x.row), high = range_of(t, x.row + x.n - 1);
    const int end = (int)high.end;
    const int64_t row = kv_bytes(TYPE, HEAD);
    Eight<TYPE> raw[T::PIECES];
    Sums<HEAD> sums;
#pragma unroll
    for (int i = 0; i < T::Q; i++) {
        sums.all_m[i] = -INFINITY;
        sums.all_l[i] = 0;
    }
    sums.has_all = 0;
    open_chunk(sums);
    int at = next_block(t, x.seg, (int)(low.first / BLOCK * BLOCK), end);
    if (at < end) {
        load_keys<TYPE, HEAD>(raw, key_at(t.cache, find_page(t, x.seg, at / BLOCK), x.kv, 0), row);
        store_keys<TYPE, HEAD>(shared.k, raw);
    }
    __syncthreads();
    while (at < end) {
        const int next = next_block(t, x.seg, at + BLOCK, end);
        float s[T::Q][4];
        load_values<TYPE, HEAD>(raw, value_at(t.cache, find_page(t, x.seg, at / BLOCK), x.kv, 0),
                                row);
        score_block(s, shared, queries, side);
        soften_block(s, sums, t, shared, at, queries, side);
        share_p(s, shared, queries, side);
        store_values<TYPE, HEAD>(shared.v, raw);
        __syncthreads(); // values are there, keys were read
        if (next < end)
            load_keys<TYPE, HEAD>(raw, key_at(t.cache, find_page(t, x.seg, next / BLOCK), x.kv, 0),
                                  row);
        if (at >= high.first && at + BLOCK <= low.end)
            add_values<true>(sums, shared, 0, BLOCK, queries, side);
        else
            add_values<false>(sums, shared, low.first > at ? (int)low.first - at : 0,
                              end - at < BLOCK ? end - at : BLOCK, queries, side);
        if (next < end) store_keys<TYPE, HEAD>(shared.k, raw);
        if (next >= end || next / CHUNK != at / CHUNK) {
            end_chunk(sums, t, x, queries, side);
            open_chunk(sums);
        }
        __syncthreads(); // keys are there, values were read
        at = next;
    }
    end_rows(sums, t, a, x, queries, side);
}

// Grid: heads of keys and values; tiles, the last ones first, as they see most.
template <int TYPE, int HEAD>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_many(const __grid_constant__ Task t, const __grid_constant__ Attention a) {
    begin();
    extern __shared__ __align__(16) float tile_shared[];
    const Shared<HEAD> shared(tile_shared);
    const int group = (int)(a.q.parts / t.cache.heads);
    Rows x = find_rows(t, a, gridDim.y - 1 - blockIdx.y, Tile<HEAD>::M / group);
    x.group = group;
    x.kv = blockIdx.x;
    if (x.n == 0) return;
    if (x.seg < 0) {
        clear_rows<HEAD>(t, x);
        return;
    }
    load_queries(t, a.q, x, shared);
    __syncthreads();
    attend_tile<TYPE, HEAD>(t, a, x, shared);
}

bool launch_attend_many(const Task *task, const Attention &a, cudaStream_t stream) {
    const int64_t group = a.q.parts / task->cache.heads;
    return pick_shape(task->cache, [&](auto type, auto size) {
        constexpr int TYPE = decltype(type)::value, HEAD = decltype(size)::value;
        using T = Tile<HEAD>;
        if (group > T::M) return false;
        const auto kernel = attend_many<TYPE, HEAD>;
        // Every segment, and padding, may have a tile that is not full.
        const int64_t tiles = task->rows / (T::M / group) + task->segs + 1;
        if (tiles > 65535 || !allow_shared(kernel, T::BYTES)) return false;
        const dim3 grid(grid_of(task->cache.heads), grid_of(tiles));
        start(kernel, grid, THREADS, T::BYTES, stream, *task, a);
        return true;
    });
}
