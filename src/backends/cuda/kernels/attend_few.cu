// Attention of few rows. A block of threads has a row, a head of keys and values with up to N of
// its query heads, and either one chunk, whose part a second kernel merges, or all of them. Keys
// and values are copied into shared memory as they are; the next ones are on their way while these
// are computed.
#include "attention.cuh"

#include <cuda_pipeline_primitives.h>

constexpr int THREADS = 256, HEADS_MAX = 8;
// What a chunk leaves in the room: o (F), m, l, 1 if it saw anything.
constexpr int PART_EXTRA = QN_CUDA_PART_EXTRA;

template <int TYPE, int HEAD, int HEADS> struct Few {
    static constexpr int N = HEADS;
    static constexpr int ROW = TYPE == QN_TYPE_F32   ? 4 * HEAD
                               : TYPE == QN_TYPE_F16 ? 2 * HEAD
                                                     : HEAD / 32 * 34;
    // Positions at a time: keys and values take at most 68 KiB, so that a multiprocessor has room
    // for several blocks of threads, or 128 KiB with numbers of 4 bytes in heads of 256.
    static constexpr int PASS = ROW <= 136 ? 256 : ROW <= 272 ? 128 : 64;
    static constexpr int BLOCKS = PASS / BLOCK;
    static constexpr size_t BYTES = (size_t)2 * PASS * ROW;
    // Scores: a thread has a position and some heads. Values: two numbers f and some heads.
    // A position meets four heads where threads suffice: queries are read once for all of them.
    static constexpr int LEAST = N * PASS > THREADS ? N *PASS / THREADS : 1;
    static constexpr int SCORES = LEAST > 4 ? LEAST : N < 4 ? N : 4;
    static constexpr int PAIRS = HEAD / 2;
    static constexpr int VALUES = N > 2 ? (HEAD == 64 ? N / 4 : N / 2) : 1;
};

// With so many rows and heads all multiprocessors are busy: then chunks are not divided.
constexpr int64_t ENOUGH = 512;

// What a row sees of the blocks of a pass; none: end is 0.
struct Seen {
    int first, end;
};

// What threads share besides keys and values.
template <typename S, int HEAD> struct Shared {
    alignas(16) float q[HEAD * S::N]; // (E, N)
    alignas(16) float p[S::N][S::PASS];
    float decay[S::N][S::BLOCKS];
    float m[S::N], l[S::N];  // of the chunk
    Seen seen[2][S::BLOCKS]; // of even and odd passes
};

// A block's part of the work: which row, which heads.
struct Place {
    int64_t row, seg, kv, head;
    int heads; // of N that there are
    Range range;
};

// --- copies --------------------------------------------------------------------------------------

// 64 rows of keys or values; pieces of 16 bytes change places where that makes reads of columns
// spread over the banks.
template <int ROW, bool IS_TURNED>
static __device__ inline void copy_rows(unsigned char *to, const unsigned char *from) {
    constexpr int PIECES = ROW / 16;
    for (int i = threadIdx.x; i < BLOCK * ROW / 16; i += THREADS) {
        const int row = i / (IS_TURNED ? PIECES : 1), piece = i % (IS_TURNED ? PIECES : 1);
        unsigned char *at = IS_TURNED ? to + row * ROW + (piece ^ (row & 7)) * 16 : to + 16 * i;
        __pipeline_memcpy_async(at, from + (size_t)i * 16, 16);
    }
}

static __device__ inline Seen seen_of(const Range &range, int64_t at) {
    const int64_t first = range.first > at ? range.first - at : 0;
    const int64_t end = range.end - at < BLOCK ? range.end - at : BLOCK;
    return first < end ? Seen{(int)first, (int)end} : Seen{0, 0};
}

// Begins to copy keys or values of the pass at position `at`; says what of it is seen, into `seen`.
template <typename S, bool IS_KEY, bool IS_TURNED>
static __device__ inline void copy_pass(const Task &t, const Place &x, unsigned char *to,
                                        int64_t at, Seen *seen) {
    for (int b = 0; b < S::BLOCKS; b++) {
        Seen s = seen_of(x.range, at + b * BLOCK);
        unsigned char *page = s.end ? find_page(t, x.seg, at / BLOCK + b) : nullptr;
        if (!page) s = {0, 0};
        if (IS_KEY && threadIdx.x == 0) seen[b] = s;
        if (page)
            copy_rows<S::ROW, IS_TURNED>(to + b * BLOCK * S::ROW,
                                         IS_KEY ? key_at(t.cache, page, x.kv, 0)
                                                : value_at(t.cache, page, x.kv, 0));
    }
    __pipeline_commit();
}

// --- a pass --------------------------------------------------------------------------------------

template <int N> static __device__ inline void load_floats(float *to, const float *from) {
    if constexpr (N % 4 == 0) {
        for (int i = 0; i < N; i += 4) *(float4 *)(to + i) = *(const float4 *)(from + i);
    } else if constexpr (N % 2 == 0) {
        for (int i = 0; i < N; i += 2) *(float2 *)(to + i) = *(const float2 *)(from + i);
    } else {
        for (int i = 0; i < N; i++) to[i] = from[i];
    }
}

template <int TYPE, int HEAD, typename S>
static __device__ inline void score_pass(const Task &t, Shared<S, HEAD> &s,
                                         const unsigned char *keys, const Seen *seen) {
    const int j = threadIdx.x % S::PASS, h = threadIdx.x / S::PASS * S::SCORES;
    const Seen b = seen[j / BLOCK];
    if (h >= S::N || j % BLOCK < b.first || j % BLOCK >= b.end) return;
    const unsigned char *row = keys + j * S::ROW;
    float sum[S::SCORES] = {};
#pragma unroll 4
    for (int i = 0; i < HEAD / 8; i++) {
        Eight<TYPE> raw;
        float k[8];
        raw.load(row, i, j & 7);
        raw.unpack(k);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            alignas(16) float q[S::SCORES];
            load_floats<S::SCORES>(q, s.q + (8 * i + e) * S::N + h);
#pragma unroll
            for (int n = 0; n < S::SCORES; n++) sum[n] = fmaf(q[n], k[e], sum[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < S::SCORES; n++) s.p[h + n][j] = finish_score(sum[n], t.attrs);
}

// A warp has a head: the scores of a pass become p; m and l go on.
template <int HEAD, typename S>
static __device__ inline void soften_pass(Shared<S, HEAD> &s, const Seen *seen, int h, float &m,
                                          float &l) {
    const int lane = threadIdx.x % WARP;
    float a[S::BLOCKS], b[S::BLOCKS], most[S::BLOCKS], decay[S::BLOCKS], sum[S::BLOCKS];
#pragma unroll
    for (int k = 0; k < S::BLOCKS; k++) {
        const float *p = s.p[h] + k * BLOCK;
        a[k] = lane >= seen[k].first && lane < seen[k].end ? p[lane] : -INFINITY;
        b[k] = lane + 32 >= seen[k].first && lane + 32 < seen[k].end ? p[lane + 32] : -INFINITY;
        most[k] = larger(b[k], larger(a[k], -INFINITY));
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
#pragma unroll
        for (int k = 0; k < S::BLOCKS; k++)
            most[k] = larger(__shfl_xor_sync(ALL, most[k], half), most[k]);
    }
#pragma unroll
    for (int k = 0; k < S::BLOCKS; k++) {
        const float before = m;
        m = larger(most[k], m); // of a block of which nothing is seen: as it was
        decay[k] = math_exp(before - m);
        const bool has_a = lane >= seen[k].first && lane < seen[k].end;
        const bool has_b = lane + 32 >= seen[k].first && lane + 32 < seen[k].end;
        a[k] = has_a ? math_exp(a[k] - m) : 0;
        b[k] = has_b ? math_exp(b[k] - m) : 0;
        s.p[h][k * BLOCK + lane] = a[k];
        s.p[h][k * BLOCK + lane + 32] = b[k];
        // Lane i of 16 has p of i, i + 16, i + 32, i + 48.
        sum[k] = a[k] + __shfl_down_sync(ALL, a[k], 16);
        sum[k] += b[k];
        sum[k] += __shfl_down_sync(ALL, b[k], 16);
    }
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
#pragma unroll
        for (int k = 0; k < S::BLOCKS; k++) sum[k] += __shfl_down_sync(ALL, sum[k], half, 16);
    }
#pragma unroll
    for (int k = 0; k < S::BLOCKS; k++) {
        if (seen[k].end) l = fmaf(l, decay[k], __shfl_sync(ALL, sum[k], 0));
        if (lane == 0) s.decay[h][k] = decay[k];
    }
    if (lane == 0) {
        s.m[h] = m;
        s.l[h] = l;
    }
}

// The sums o of numbers 2 f and 2 f + 1 of some heads from h on.
template <int TYPE, int HEAD, typename S>
static __device__ inline void add_values(const Shared<S, HEAD> &s, const unsigned char *values,
                                         const Seen *seen, int h, int f, float2 *o) {
    for (int k = 0; k < S::BLOCKS; k++) {
        const Seen b = seen[k];
        if (!b.end) continue;
        const unsigned char *rows = values + k * BLOCK * S::ROW;
#pragma unroll
        for (int n = 0; n < S::VALUES; n++) {
            const float decay = s.decay[h + n][k];
            o[n] = make_float2(o[n].x * decay, o[n].y * decay);
        }
        const auto add = [&](int n, float p, float2 v) {
            o[n] = make_float2(fmaf(p, v.x, o[n].x), fmaf(p, v.y, o[n].y));
        };
        int j = b.first;
        const int whole = j % 4 ? j : b.end / 4 * 4;
#pragma unroll 4
        for (; j < whole; j += 4) {
            float2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = two_of<TYPE>(rows + (j + i) * S::ROW, f);
#pragma unroll
            for (int n = 0; n < S::VALUES; n++) {
                const float4 p = *(const float4 *)&s.p[h + n][k * BLOCK + j];
                add(n, p.x, v[0]);
                add(n, p.y, v[1]);
                add(n, p.z, v[2]);
                add(n, p.w, v[3]);
            }
        }
        for (; j < b.end; j++) {
            const float2 v = two_of<TYPE>(rows + j * S::ROW, f);
            for (int n = 0; n < S::VALUES; n++) add(n, s.p[h + n][k * BLOCK + j], v);
        }
    }
}

// --- a row ---------------------------------------------------------------------------------------

static __device__ inline float *part_of_chunk(const Task &t, int64_t row, int64_t head,
                                              int64_t heads, int64_t chunks, int64_t chunk) {
    return t.room + ((row * heads + head) * chunks + chunk) * (t.cache.v_size + PART_EXTRA);
}

// Which row block i has, and false where it has none; padding belongs to those that are not mixed.
static __device__ inline bool find_row(const Task &t, const Attention &a, Place &x) {
    x.row = blockIdx.x;
    if (a.is_mixed) {
        const qn_step *s = t.step;
        const Item item = find_item(s, blockIdx.x, [](int n) { return n < MANY_ROWS ? n : 0; });
        if (item.seg == s->n_segs) return false;
        x.row = s->seg_row[item.seg] + item.at;
    }
    x.seg = t.step->row_seg[x.row];
    return true;
}

static __device__ inline void clear_heads(const Task &t, const Place &x) {
    for (int n = 0; n < x.heads; n++) {
        float *to = (float *)part_at(t.out[0], x.row, x.head + n);
        for (int f = threadIdx.x; f < t.cache.v_size; f += THREADS) to[f] = 0;
    }
}

template <typename S, int HEAD>
static __device__ inline void load_queries(Shared<S, HEAD> &s, const Operand &q, const Place &x) {
    for (int i = threadIdx.x; i < HEAD * S::N; i += THREADS) {
        const int n = i / HEAD, e = i % HEAD;
        s.q[e * S::N + n] = n < x.heads ? ((const float *)part_at(q, x.row, x.head + n))[e] : 0.0f;
    }
}

// The sums of a thread: of the chunk, and of all chunks before.
template <typename S> struct Sums {
    float2 o[S::VALUES], all[S::VALUES];
    float m[S::VALUES], l[S::VALUES];
};

template <typename S, int HEAD>
static __device__ inline void end_chunk(const Task &t, const Shared<S, HEAD> &s, Sums<S> &sums,
                                        const Place &x, int64_t heads, int64_t chunk, bool has_seen,
                                        bool is_split, int h, int f) {
#pragma unroll
    for (int n = 0; n < S::VALUES; n++) {
        if (is_split && h + n < x.heads) {
            float *to = part_of_chunk(t, x.row, x.head + h + n, heads, gridDim.z, chunk);
            *(float2 *)(to + 2 * f) = sums.o[n];
            if (f == 0) *(float4 *)(to + HEAD) = make_float4(s.m[h + n], s.l[h + n], has_seen, 0);
        }
        if (!is_split && has_seen) {
            const Joint j = join_chunk(sums.m[n], sums.l[n], s.m[h + n], s.l[h + n]);
            sums.all[n] = make_float2(fmaf(sums.all[n].x, j.before, sums.o[n].x * j.part),
                                      fmaf(sums.all[n].y, j.before, sums.o[n].y * j.part));
        }
    }
}

template <typename S>
static __device__ inline void end_row(const Task &t, const Attention &a, const Sums<S> &sums,
                                      const Place &x, int h, int f) {
#pragma unroll
    for (int n = 0; n < S::VALUES; n++) {
        if (h + n >= x.heads) continue;
        const int64_t head = x.head + h + n;
        const Last last = finish_softmax(sums.m[n], sums.l[n], a.sinks ? a.sinks + head : nullptr);
        ((float2 *)part_at(t.out[0], x.row, head))[f] = make_float2(
            sums.all[n].x * last.a * last.inverse, sums.all[n].y * last.a * last.inverse);
    }
}

// Grid: rows; heads of keys and values, in pieces of N query heads; chunks, rounded up, or 1.
template <int TYPE, int HEAD, int HEADS>
static __global__ void __launch_bounds__(THREADS)
    attend_few(const __grid_constant__ Task t, const __grid_constant__ Attention a, bool is_split) {
    begin();
    using S = Few<TYPE, HEAD, HEADS>;
    constexpr bool IS_TURNED = TYPE != QN_TYPE_Q8_0;
    extern __shared__ __align__(16) unsigned char pages_shared[];
    __shared__ Shared<S, HEAD> s;
    unsigned char *keys = pages_shared, *values = pages_shared + S::PASS * S::ROW;
    const int group = (int)(a.q.parts / t.cache.heads), pieces = ceil_div(group, S::N);
    Place x;
    if (!find_row(t, a, x)) return;
    const int piece = (int)blockIdx.y % pieces;
    x.kv = blockIdx.y / pieces;
    x.head = x.kv * group + piece * S::N;
    x.heads = group - piece * S::N < S::N ? group - piece * S::N : S::N;
    if (x.seg < 0) { // padding
        if (blockIdx.z == 0) clear_heads(t, x);
        return;
    }
    x.range = range_of(t, x.row);
    int64_t at = x.range.first / S::PASS * S::PASS, end = x.range.end;
    if (is_split) {
        const int64_t from = (int64_t)blockIdx.z * CHUNK;
        if (from >= end || from + CHUNK <= x.range.first) return;
        at = at > from ? at : from;
        end = end < from + CHUNK ? end : from + CHUNK;
    }
    copy_pass<S, true, IS_TURNED>(t, x, keys, at, s.seen[0]);
    copy_pass<S, false, false>(t, x, values, at, nullptr);
    load_queries(s, a.q, x);
    const int warp = threadIdx.x / WARP, f = threadIdx.x % S::PAIRS;
    const int h = threadIdx.x / S::PAIRS * S::VALUES; // of the sums
    Sums<S> sums;
#pragma unroll
    for (int n = 0; n < S::VALUES; n++) {
        sums.o[n] = sums.all[n] = make_float2(0, 0);
        sums.m[n] = -INFINITY;
        sums.l[n] = 0;
    }
    float m = -INFINITY, l = 0; // of this warp's head in the chunk
    bool has_seen = false;
    for (int odd = 0; at < end; at += S::PASS, odd ^= 1) {
        const Seen *seen = s.seen[odd];
        const bool is_next = at + S::PASS < end;
        const bool is_last = (at + S::PASS) % CHUNK == 0 || !is_next; // of its chunk
        __pipeline_wait_prior(1);
        __syncthreads();
        score_pass<TYPE, HEAD>(t, s, keys, seen);
        __pipeline_wait_prior(0);
        __syncthreads();
        if (is_next) copy_pass<S, true, IS_TURNED>(t, x, keys, at + S::PASS, s.seen[odd ^ 1]);
        if (warp < S::N) soften_pass(s, seen, warp, m, l);
        __syncthreads();
        if (h < S::N) add_values<TYPE, HEAD>(s, values, seen, h, f, sums.o);
        for (int k = 0; k < S::BLOCKS; k++) has_seen |= seen[k].end > 0;
        if (is_last) {
            if (h < S::N) end_chunk(t, s, sums, x, a.q.parts, at / CHUNK, has_seen, is_split, h, f);
#pragma unroll
            for (int n = 0; n < S::VALUES; n++) sums.o[n] = make_float2(0, 0);
            m = -INFINITY;
            l = 0;
            has_seen = false;
        }
        __syncthreads();
        if (is_next) copy_pass<S, false, false>(t, x, values, at + S::PASS, nullptr);
    }
    if (!is_split && h < S::N) end_row<S>(t, a, sums, x, h, f);
}

// The chunks of a row and head, ascending; a thread has a number of the result.
static __global__ void merge_chunks(const __grid_constant__ Task t,
                                    const __grid_constant__ Attention a, int64_t chunks) {
    begin();
    const int64_t r = blockIdx.x, head = blockIdx.y, n = t.cache.v_size;
    const int f = (int)threadIdx.x;
    if (t.step->row_seg[r] < 0) return;
    const Range range = range_of(t, r);
    float m = -INFINITY, l = 0, all = 0;
    const float *part = part_of_chunk(t, r, head, a.q.parts, chunks, 0);
#pragma unroll 4
    for (int64_t c = range.first / CHUNK; c * CHUNK < range.end; c++) {
        const float *from = part + c * (n + PART_EXTRA);
        const float4 state = *(const float4 *)(from + n); // m, l, whether it saw anything
        const float o = from[f];
        if (state.z == 0) continue;
        const Joint j = join_chunk(m, l, state.x, state.y);
        all = fmaf(all, j.before, o * j.part);
    }
    const Last last = finish_softmax(m, l, a.sinks ? a.sinks + head : nullptr);
    ((float *)part_at(t.out[0], r, head))[f] = all * last.a * last.inverse;
}

template <int TYPE, int HEAD, int HEADS>
static bool launch_few(const Task *task, const Attention &a, cudaStream_t stream) {
    using S = Few<TYPE, HEAD, HEADS>;
    const auto kernel = attend_few<TYPE, HEAD, HEADS>;
    const int64_t group = a.q.parts / task->cache.heads, heads = a.q.parts;
    const int64_t ys = task->cache.heads * ceil_div(group, (int64_t)HEADS);
    const int64_t chunks = ceil_div(task->cached, (int64_t)CHUNK);
    const int64_t rows = a.is_mixed && task->rows > (MANY_ROWS - 1) * task->segs
                             ? (MANY_ROWS - 1) * task->segs
                             : task->rows;
    const bool is_split = !a.is_mixed && chunks > 1 && chunks <= 65535 && rows * ys < ENOUGH &&
                          rows * heads * chunks * (HEAD + PART_EXTRA) <= task->room_floats;
    if (ys > 65535 || heads > 65535 || !allow_shared(kernel, S::BYTES)) return false;
    const dim3 grid(grid_of(rows), grid_of(ys), grid_of(is_split ? chunks : 1));
    start(kernel, grid, THREADS, S::BYTES, stream, *task, a, is_split);
    if (is_split)
        start(merge_chunks, dim3(grid_of(rows), grid_of(heads)), HEAD, 0, stream, *task, a, chunks);
    return true;
}

bool launch_attend_few(const Task *task, const Attention &a, cudaStream_t stream) {
    const int64_t group = a.q.parts / task->cache.heads;
    return pick_shape(task->cache, [&](auto type, auto size) {
        constexpr int TYPE = decltype(type)::value, HEAD = decltype(size)::value;
        if (group <= 2) return launch_few<TYPE, HEAD, 2>(task, a, stream);
        if (group <= 4) return launch_few<TYPE, HEAD, 4>(task, a, stream);
        return launch_few<TYPE, HEAD, HEADS_MAX>(task, a, stream);
    });
}
