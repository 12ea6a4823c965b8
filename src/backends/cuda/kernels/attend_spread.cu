// Attention of few rows, spread over the card. A row, a head of keys and values with up to N of its
// query heads, and a chunk are the work of one, two or four blocks of threads: each has the scores
// of its own positions, which it tells the others, and its own part of every value. So the chains
// of docs/numbers.md run side by side, as far as they may. All chunks that a cluster has are merged
// there; where there are more, the block that is the last to be done with its part does it.
//
// Where queries, keys and values come as they are, they are turned here: rows of this step are not
// read from the cache but computed by everyone who sees them, and stored by the block of their own
// row. What lies in the cache is asked for before anything that the call before this one computes.
#include "spread_merge.cuh"
#include "spread_sums.cuh"

// --- the kernel ----------------------------------------------------------------------------------

template <typename S> static __device__ inline void clear_part(const Task &t, const Place &x) {
#pragma unroll 1
    for (int i = threadIdx.x; i < x.heads * S::COLS; i += THREADS)
        ((float *)part_at(t.out[0], x.row, x.head + i / S::COLS))[x.part * S::COLS + i % S::COLS] =
            0;
}

// Grid: parts of chunks; heads of keys and values, in pieces of N query heads; rows.
template <int HEAD, int HEADS, int PARTS, bool IS_TENSOR>
static __global__ void __launch_bounds__(THREADS, Spread<HEAD, HEADS, PARTS, IS_TENSOR>::AT_ONCE)
    attend_spread(const __grid_constant__ Task t, const __grid_constant__ Spreading a) {
    if constexpr (HAS_CLUSTERS) {
        using S = Spread<HEAD, HEADS, PARTS, IS_TENSOR>;
        extern __shared__ __align__(16) unsigned char spread_shared[];
        Shared<S> &s = *(Shared<S> *)spread_shared;
        admit_next();
        if (!a.does_turn) await_others(); // what it attends to was turned by the one before
        cluster_arrive(); // whoever stores into a block's memory waits until it is there
        Place x;
        find_heads<S>(x, t, (int)a.q.parts);
        const int32_t seg = t.step->row_seg[x.row];
        if (seg < 0) { // padding
            await_others();
            if (x.chunk == 0) clear_part<S>(t, x);
            return;
        }
        x.is_together = a.chunks <= S::TOGETHER;
        find_positions(x, t, seg, a.does_turn);
        const int at = x.chunk * CHUNK;
        const bool is_seen = x.first < x.end && at < x.end && at + CHUNK > x.first;
        if (!is_seen) await_others();
        if (x.first >= x.end && x.chunk == 0) clear_part<S>(t, x);
        if (!is_seen && (at >= x.end || at + CHUNK <= x.old)) return; // nor has it rows to store
        copy_keys(s, t, x);
        copy_values(s, t, x);
        await_others();
        bring_rows(s, t, a, x);
        if (!is_seen) return;
        __pipeline_wait_prior(1);
        __syncthreads();
        cluster_wait();
        if constexpr (IS_TENSOR)
            score_tensor(s, t, x);
        else
            score_exact(s, t, x);
        __pipeline_wait_prior(0);
        cluster_arrive();
        cluster_wait();
        const int warp = (int)threadIdx.x / WARP;
        if constexpr (IS_TENSOR) {
            if (warp < S::N) soften_tensor(s, x, warp);
            __syncthreads();
        } else {
            soften_exact(s, x);
        }
        const Own<S> own;
        float o[S::OUTS] = {};
        if constexpr (IS_TENSOR) {
            if (8 * warp < S::COLS) add_tensor(o, s, x, own);
        } else if (own.is_there) {
            add_exact(o, s, x, own);
        }
        if (x.is_together)
            merge_cluster(s, t, a, x, own, o);
        else
            merge_card(s, t, a, x, own, o);
    }
}

// --- launches ------------------------------------------------------------------------------------

// So many rows, heads and chunks are spread; more are computed by blocks that have more work each.
// On tensor cores so many rows and heads are. Rows of a segment are turned by every row after them:
// there must not be many.
constexpr int SPREAD_ITEMS = 256, SPREAD_HEADS = 88, SPREAD_ROWS = 16;

static int64_t pieces_of(const Task *task, const Operand &q, int n) {
    return task->cache.heads * ceil_div(q.parts / task->cache.heads, (int64_t)n);
}

template <int HEAD, int HEADS, int PARTS, bool IS_TENSOR>
static bool launch_spread(const Task *task, const Attention &a, bool does_turn, bool is_asked,
                          cudaStream_t stream) {
    using S = Spread<HEAD, HEADS, PARTS, IS_TENSOR>;
    const auto kernel = attend_spread<HEAD, HEADS, PARTS, IS_TENSOR>;
    const int64_t ys = pieces_of(task, a.q, HEADS);
    const int64_t chunks = ceil_div(task->cached, (int64_t)CHUNK);
    const int64_t floats = task->rows * a.q.parts * chunks * (HEAD + PART_EXTRA);
    const bool is_small =
        IS_TENSOR ? task->rows * ys <= SPREAD_HEADS : task->rows * ys * chunks <= SPREAD_ITEMS;
    if (!is_small || chunks > INT32_MAX / CHUNK || ys > 65535 || task->rows > 65535 ||
        !has_cluster_code(kernel) || !allow_shared(kernel, sizeof(Shared<S>)))
        return false;
    if (chunks > S::TOGETHER &&
        (floats > task->room_floats || task->rows * ys * PARTS > QN_CUDA_COUNTERS))
        return false;
    if (is_asked) return true;
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeClusterDimension;
    attrs[0].val.clusterDim.x = (unsigned)(PARTS * (chunks <= S::TOGETHER ? chunks : 1));
    attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
    attrs[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid_of(PARTS * chunks), grid_of(ys), grid_of(task->rows));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(Shared<S>);
    config.stream = stream;
    config.attrs = attrs;
    config.numAttrs = 2;
    const Spreading with = {a.q, a.sinks, (int)chunks, does_turn};
    return cudaLaunchKernelEx(&config, kernel, *task, with) == cudaSuccess;
}

// Blocks of threads that share a chunk. They are made more as long as the card has idle
// multiprocessors; where one cluster can merge all chunks that is worth more.
static int parts_of(int64_t items, int64_t chunks) {
    if (chunks > 2) return 2;
    return items * 4 <= 264 ? 4 : items <= 66 ? 2 : 1;
}

template <int HEAD, int HEADS, bool IS_TENSOR>
static bool pick_parts(const Task *task, const Attention &a, bool does_turn, bool is_asked,
                       cudaStream_t stream) {
    // Shared memory holds no more, and eight warps have no more than 64 values on tensor cores.
    constexpr int LEAST = HEAD <= (IS_TENSOR ? 64 : 128) ? 1 : 2;
    const int64_t chunks = ceil_div(task->cached, (int64_t)CHUNK);
    const int parts = parts_of(task->rows * pieces_of(task, a.q, HEADS) * chunks, chunks);
    const auto launch = parts == 4   ? launch_spread<HEAD, HEADS, 4, IS_TENSOR>
                        : parts == 2 ? launch_spread<HEAD, HEADS, 2, IS_TENSOR>
                                     : launch_spread<HEAD, HEADS, LEAST, IS_TENSOR>;
    return launch(task, a, does_turn, is_asked, stream);
}

template <int HEAD, bool IS_TENSOR>
static bool pick_heads(const Task *task, const Attention &a, bool does_turn, bool is_asked,
                       cudaStream_t stream) {
    const int64_t group = a.q.parts / task->cache.heads;
    if constexpr (!IS_TENSOR) {
        if (group <= 2) return pick_parts<HEAD, 2, false>(task, a, does_turn, is_asked, stream);
    }
    if (group <= 4) return pick_parts<HEAD, 4, IS_TENSOR>(task, a, does_turn, is_asked, stream);
    return pick_parts<HEAD, HEADS_MAX, IS_TENSOR>(task, a, does_turn, is_asked, stream);
}

static bool pick_spread(const Task *task, const Attention &a, bool does_turn, bool is_asked,
                        cudaStream_t stream) {
    const qn_cache_view &c = task->cache;
    if (c.type != QN_TYPE_F16 || task->rows - task->segs >= SPREAD_ROWS) return false;
    return pick_shape(c, [&](auto, auto size) {
        constexpr int HEAD = decltype(size)::value;
        if (!is_tensor(task, a.q))
            return pick_heads<HEAD, false>(task, a, does_turn, is_asked, stream);
        if constexpr (HEAD <= 128)
            return pick_heads<HEAD, true>(task, a, does_turn, is_asked, stream);
        return false;
    });
}

bool can_attend_spread(const Task *task, const Operand &q) {
    return pick_spread(task, Attention{q, nullptr, false}, true, true, nullptr);
}

bool launch_attend_spread(const Task *task, const Attention &a, bool does_turn,
                          cudaStream_t stream) {
    return pick_spread(task, a, does_turn, false, stream);
}
