// Attention on tensor cores where most sequences have one row in a step. A block of threads has a
// row and a head of keys and values with up to eight of its query heads. Its four warps divide the
// scores of 64 positions, have the softmax of all of them each, and divide the values. The next
// positions are on their way meanwhile. The sums are those of attend_tensor.cu.
#include "tensor_blocks.cuh"

constexpr int WARPS = THREADS / WARP, HEADS = 8, STAGES = 2;
constexpr int SCORES = BLOCK + 8; // of a head, so that heads are in different banks

template <int HEAD> struct Alone {
    static constexpr int COLUMNS = HEAD / 8 / WARPS; // of a warp, eight values each
    static constexpr size_t BYTES = STAGES * 2 * Tile<HEAD>::STAGE + HEADS * SCORES * sizeof(float);
};

// A thread's part: of the query of head g, and what that head sees.
template <int HEAD> struct Query {
    unsigned hi[Tile<HEAD>::STEPS][2], lo[Tile<HEAD>::STEPS][2];
    int first, end;
};

// Sums of a head: of a chunk, and of those before.
template <int HEAD> struct Sums {
    float o[Alone<HEAD>::COLUMNS][4], all[Alone<HEAD>::COLUMNS][2];
    float m, l, all_m, all_l;
};

template <int HEAD>
static __device__ inline void load_query(Query<HEAD> &to, const Task &t, const Attention &a,
                                         const Rows &x, int64_t head, bool is_there) {
    const int i = (int)threadIdx.x % 4;
    const float *from = (const float *)part_at(a.q, x.row, head);
    const Range range = range_of(t, x.row);
    to.first = is_there ? (int)range.first : 0;
    to.end = is_there ? (int)range.end : 0;
#pragma unroll
    for (int k = 0; k < Tile<HEAD>::STEPS; k++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 two =
                is_there ? *(const float2 *)(from + 16 * k + 8 * half + 2 * i) : make_float2(0, 0);
            const Halves halves = split(two.x, two.y);
            to.hi[k][half] = halves.hi;
            to.lo[k][half] = halves.lo;
        }
    }
}

// A warp has 16 positions.
template <int HEAD>
static __device__ inline void score_block(float *scores, const Query<HEAD> &q,
                                          const unsigned char *keys, const qn_attrs &attrs) {
    const int lane = (int)threadIdx.x % WARP, n = (int)threadIdx.x / WARP * 16;
    float s[2][4] = {};
#pragma unroll
    for (int k = 0; k < Tile<HEAD>::STEPS; k++) {
        const unsigned hi[4] = {q.hi[k][0], 0, q.hi[k][1], 0},
                       lo[4] = {q.lo[k][0], 0, q.lo[k][1], 0};
        unsigned b[4];
        load_keys<HEAD>(b, keys, n, k);
        mma(s[0], hi, b[0], b[1]);
        mma(s[1], hi, b[2], b[3]);
        mma(s[0], lo, b[0], b[1]);
        mma(s[1], lo, b[2], b[3]);
    }
    float *to = scores + lane / 4 * SCORES + n + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < 2; tile++)
        *(float2 *)(to + 8 * tile) =
            make_float2(finish_log(s[tile][0], attrs), finish_log(s[tile][1], attrs));
}

// Scores become p, which are 0 where a position is not seen.
template <int HEAD>
static __device__ inline void soften_block(float (&p)[TILES][2], Sums<HEAD> &sums,
                                           const float *scores, const Query<HEAD> &q, int at) {
    const int lane = (int)threadIdx.x % WARP, i = lane % 4;
    const int first = q.first - at - 2 * i, end = q.end - at - 2 * i;
    float most = sums.m, sum = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float2 two = *(const float2 *)(scores + lane / 4 * SCORES + 8 * n + 2 * i);
        p[n][0] = two.x;
        p[n][1] = two.y;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!(8 * n + k >= first && 8 * n + k < end)) p[n][k] = -INFINITY;
            most = larger(p[n][k], most);
        }
    }
    most = larger(__shfl_xor_sync(ALL, most, 1), most);
    most = larger(__shfl_xor_sync(ALL, most, 2), most);
    const float base = base_of(most), decay = power_of_2(sums.m - base);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            p[n][k] = power_of_2(p[n][k] - base);
            sum += p[n][k];
        }
    }
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    sums.l = fmaf(sums.l, decay, sum);
    sums.m = most;
#pragma unroll
    for (int f = 0; f < Alone<HEAD>::COLUMNS; f++) {
        sums.o[f][0] *= decay;
        sums.o[f][1] *= decay;
    }
}

template <int HEAD>
static __device__ inline void add_block(Sums<HEAD> &sums, const float (&p)[TILES][2],
                                        const unsigned char *values) {
    constexpr int COLUMNS = Alone<HEAD>::COLUMNS;
    const int column = (int)threadIdx.x / WARP * COLUMNS;
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) {
        const Halves a = split(p[2 * k][0], p[2 * k][1]),
                     b = split(p[2 * k + 1][0], p[2 * k + 1][1]);
        const unsigned hi[4] = {a.hi, 0, b.hi, 0}, lo[4] = {a.lo, 0, b.lo, 0};
        unsigned v[COLUMNS / 2][4];
#pragma unroll
        for (int f = 0; f < COLUMNS / 2; f++) load_values<HEAD>(v[f], values, k, column + 2 * f);
#pragma unroll
        for (int f = 0; f < COLUMNS; f++)
            mma(sums.o[f], hi, v[f / 2][f % 2 * 2], v[f / 2][f % 2 * 2 + 1]);
#pragma unroll
        for (int f = 0; f < COLUMNS; f++)
            mma(sums.o[f], lo, v[f / 2][f % 2 * 2], v[f / 2][f % 2 * 2 + 1]);
    }
}

template <int HEAD> static __device__ inline void end_chunk(Sums<HEAD> &sums) {
    Joint j = {1, 0}; // of a head that saw nothing of it
    if (sums.m != -INFINITY) j = join_chunk(sums.all_m, sums.all_l, sums.m, sums.l, power_of_2);
#pragma unroll
    for (int f = 0; f < Alone<HEAD>::COLUMNS; f++) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            sums.all[f][k] = fmaf(sums.all[f][k], j.before, sums.o[f][k] * j.part);
#pragma unroll
        for (int k = 0; k < 4; k++) sums.o[f][k] = 0;
    }
    sums.m = -INFINITY;
    sums.l = 0;
}

// Positions from before this step are asked for before other kernels are waited for.
template <int HEAD>
static __device__ inline void attend_row(Sums<HEAD> &sums, const Task &t, const Attention &a,
                                         const Rows &x, int64_t head, bool is_there,
                                         unsigned char *shared) {
    constexpr int STAGE = 2 * Tile<HEAD>::STAGE;
    float *scores = (float *)(shared + STAGES * STAGE);
    const Range range = range_of(t, x.row);
    const int end = (int)range.end;
    int at = next_block(t, x.seg, (int)(range.first / BLOCK * BLOCK), end), fetched = at;
    const int old = (int)t.step->seg_past[x.seg];
    int to = 0, from = 0, ahead = 0; // stages
    Query<HEAD> q;
    const auto fetch_next = [&]() {
        if (fetched < end) {
            copy_block<HEAD>(shared + to * STAGE, t, x, fetched, end);
            fetched = next_block(t, x.seg, fetched + BLOCK, end);
        }
        to = to + 1 == STAGES ? 0 : to + 1;
        __pipeline_commit();
    };
    for (; ahead < STAGES - 1 && fetched + BLOCK <= old; ahead++) fetch_next();
    await_others();
    load_query(q, t, a, x, head, is_there);
    for (; ahead < STAGES - 1; ahead++) fetch_next();
    while (at < end) {
        const int next = next_block(t, x.seg, at + BLOCK, end);
        const unsigned char *stage = shared + from * STAGE;
        float p[TILES][2];
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads(); // this block is there, and the one before was read
        fetch_next();
        score_block(scores, q, stage, t.attrs);
        __syncthreads();
        soften_block(p, sums, scores, q, at);
        add_block(sums, p, stage + Tile<HEAD>::STAGE);
        if (next >= end || next / CHUNK != at / CHUNK) end_chunk(sums);
        from = from + 1 == STAGES ? 0 : from + 1;
        at = next;
    }
}

// Grid: heads of keys and values, in pieces of 8 query heads; rows.
template <int HEAD>
static __global__ void __launch_bounds__(THREADS, 3)
    attend_alone(const __grid_constant__ Task t, const __grid_constant__ Attention a) {
    extern __shared__ __align__(16) unsigned char alone_shared[];
    admit_next();
    const int group = (int)(a.q.parts / t.cache.heads), pieces = ceil_div(group, HEADS);
    const int g = (int)threadIdx.x % WARP / 4, i = (int)threadIdx.x % 4;
    Rows x = {.row = blockIdx.y, .seg = t.step->row_seg[blockIdx.y], .n = 1, .group = group};
    x.kv = blockIdx.x / pieces;
    const int number = (int)blockIdx.x % pieces * HEADS + g;
    const bool is_there = number < group;
    const int64_t head = x.kv * group + (is_there ? number : 0);
    Sums<HEAD> sums = {};
    sums.m = sums.all_m = -INFINITY;
    if (x.seg >= 0)
        attend_row(sums, t, a, x, head, is_there, alone_shared);
    else // padding
        await_others();
    if (!is_there) return;
    const bool has_sinks = a.sinks && x.seg >= 0;
    const float sink = has_sinks ? a.sinks[head] * LOG2_E : 0.0f;
    const Last last = finish_softmax(sums.all_m, sums.all_l, has_sinks, sink, power_of_2);
    float *to =
        (float *)part_at(t.out[0], x.row, head) + (int)threadIdx.x / WARP * (HEAD / WARPS) + 2 * i;
#pragma unroll
    for (int f = 0; f < Alone<HEAD>::COLUMNS; f++)
        *(float2 *)(to + 8 * f) = make_float2(sums.all[f][0] * last.a * last.inverse + 0.0f,
                                              sums.all[f][1] * last.a * last.inverse + 0.0f);
}

bool launch_attend_alone(const Task *task, const Attention &a, cudaStream_t stream) {
    const int64_t group = a.q.parts / task->cache.heads;
    // Tiles of rows of one segment share keys and values.
    if (!is_tensor(task, a.q) || task->rows > 2 * task->segs || task->rows > 65535) return false;
    return pick_shape(task->cache, [&](auto, auto size) {
        constexpr int HEAD = decltype(size)::value;
        if constexpr (HEAD <= 128) {
            const auto kernel = attend_alone<HEAD>;
            if (!allow_shared(kernel, Alone<HEAD>::BYTES)) return false;
            const dim3 grid(grid_of(task->cache.heads * ceil_div(group, (int64_t)HEADS)),
                            grid_of(task->rows));
            start(kernel, grid, THREADS, Alone<HEAD>::BYTES, stream, *task, a);
            return true;
        }
        return false;
    });
}
