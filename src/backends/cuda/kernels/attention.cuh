// What the kernels of attention share: what a row sees, the softmax in the order of
// docs/numbers.md, and who does which rows.
#pragma once

#include "pages.cuh"

constexpr int BLOCK = QN_PAGE_ROWS, CHUNK = QN_CUDA_CHUNK;

// Segments of fewer rows are computed row by row, their chunks side by side; others in tiles of
// rows.
constexpr int MANY_ROWS = 64;

// A call: queries (T, H, E) and sinks (H) or NULL.
struct Attention {
    Operand q;
    const float *sinks;
    bool is_mixed; // rows of short segments and of long ones have a launch each
};

// These do it and return true where they have the shape and the memory of the card suffices.
bool launch_attend_few(const Task *task, const Attention &a, cudaStream_t stream);
bool launch_attend_many(const Task *task, const Attention &a, cudaStream_t stream);
// Few rows, over many multiprocessors; `does_turn`: q, k and v of task->in are turned and written
// on the way. Whether it would is known before.
bool launch_attend_spread(const Task *task, const Attention &a, bool does_turn,
                          cudaStream_t stream);
bool can_attend_spread(const Task *task, const Operand &q);
// Any rows on tensor cores (tensor.cuh); which shapes goes by is_tensor.
bool launch_attend_tensor(const Task *task, const Attention &a, cudaStream_t stream);
// The same where sequences have one row each, or few more.
bool launch_attend_alone(const Task *task, const Attention &a, cudaStream_t stream);

// --- what a row sees -----------------------------------------------------------------------------

struct Range {
    int64_t first, end; // positions
};

static __device__ inline Range range_of(const Task &t, int64_t r) {
    const qn_step *s = t.step;
    const int32_t seg = s->row_seg[r];
    const int64_t position = position_of(s, r), window = t.attrs.window;
    const int64_t lowest = t.attrs.rule == QN_WORD_after_first;
    const int64_t from = position - window + 1;
    return {window > 0 ? (from > lowest ? from : lowest) : lowest,
            t.attrs.rule == QN_WORD_full ? s->seg_past[seg] + s->seg_row[seg + 1] - s->seg_row[seg]
                                         : position + 1};
}

// Item i of those that the segments have, count(rows) each: its segment and its number there. Where
// segments have fewer, seg is their number, and `at` counts on. By a whole warp, at least.
struct Item {
    int64_t seg, at;
};

template <typename Count>
static __device__ inline Item find_item(const qn_step *s, int64_t i, Count count) {
    const int lane = (threadIdx.x + blockDim.x * threadIdx.y) % WARP;
    for (int64_t base = 0; base < s->n_segs; base += WARP) {
        const int64_t seg = base + lane;
        const int n = seg < s->n_segs ? (int)count(s->seg_row[seg + 1] - s->seg_row[seg]) : 0;
        int end = n; // of this segment's items
        for (int step = 1; step < WARP; step *= 2) {
            const int before = __shfl_up_sync(ALL, end, step);
            if (lane >= step) end += before;
        }
        const unsigned after = __ballot_sync(ALL, i < end);
        if (after) {
            const int found = __ffs((int)after) - 1;
            return {base + found, i - __shfl_sync(ALL, end - n, found)};
        }
        i -= __shfl_sync(ALL, end, WARP - 1);
    }
    return {s->n_segs, i};
}

// --- the softmax ---------------------------------------------------------------------------------

static __device__ __noinline__ float cap_score(float score, float cap) {
    return cap * math_tanh(score / cap);
}

static __device__ inline float finish_score(float sum, const qn_attrs &attrs) {
    const float score = sum * attrs.scale;
    return attrs.cap > 0 ? cap_score(score, attrs.cap) : score;
}

// A NaN is larger than nothing.
static __device__ inline float larger(float a, float b) { return a > b ? a : b; }

// A chunk joins those before it: what scales their o, and its own.
struct Joint {
    float before, part;
};

template <typename Exp>
static __device__ inline Joint join_chunk(float &all_m, float &all_l, float m, float l, Exp exp) {
    const float most = larger(m, all_m);
    const Joint j = {exp(all_m - most), exp(m - most)};
    all_m = most;
    all_l = fmaf(all_l, j.before, l * j.part);
    return j;
}

static __device__ inline Joint join_chunk(float &all_m, float &all_l, float m, float l) {
    return join_chunk(all_m, all_l, m, l, math_exp);
}

// The result is o * a * inverse.
struct Last {
    float a, inverse;
};

template <typename Exp>
static __device__ inline Last finish_softmax(float m, float l, bool has_sink, float sink, Exp exp) {
    float a = 1, total = l;
    if (has_sink) {
        const float most = larger(sink, m);
        a = exp(m - most);
        total = fmaf(total, a, exp(sink - most));
    }
    return {a, total == 0 ? 0 : 1.0f / total}; // 0: saw nothing
}

static __device__ inline Last finish_softmax(float m, float l, const float *sink) {
    return finish_softmax(m, l, sink != nullptr, sink ? *sink : 0.0f, math_exp);
}

// --- launches ------------------------------------------------------------------------------------

// Calls of pick(Constant<type>, Constant<head size>) for the shapes that fast kernels have; false:
// they have not.
template <int N> struct Constant { static constexpr int value = N; };

template <int TYPE, typename Pick> static inline bool pick_size(int64_t size, Pick pick) {
    if (size == 64) return pick(Constant<TYPE>(), Constant<64>());
    if (size == 128) return pick(Constant<TYPE>(), Constant<128>());
    return size == 256 && pick(Constant<TYPE>(), Constant<256>());
}

template <typename Pick> static inline bool pick_shape(const qn_cache_view &c, Pick pick) {
    // Pages are copied in pieces of 16 bytes.
    if (c.k_size != c.v_size || (uintptr_t)c.pages % 16 || c.page_bytes % 16 || c.offset % 16)
        return false;
    if (c.type == QN_TYPE_F32) return pick_size<QN_TYPE_F32>(c.k_size, pick);
    if (c.type == QN_TYPE_F16) return pick_size<QN_TYPE_F16>(c.k_size, pick);
    return c.type == QN_TYPE_Q8_0 && pick_size<QN_TYPE_Q8_0>(c.k_size, pick);
}

// Tiles of queries on tensor cores have so many.
constexpr int TENSOR_QUERIES = 64;

// Whether a call is computed on tensor cores: by what does not change between steps, so that a row
// gets the same in all of them.
static inline bool is_tensor(const Task *task, const Operand &q) {
    const qn_cache_view &c = task->cache;
    return task->is_tensor && c.type == QN_TYPE_F16 && q.parts / c.heads <= TENSOR_QUERIES &&
           pick_shape(c, [](auto, auto size) { return decltype(size)::value <= 128; });
}
