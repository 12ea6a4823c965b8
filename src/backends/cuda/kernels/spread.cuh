// Attention spread over the card (attend_spread.cu): who has what, and how it comes into shared
// memory.
#pragma once

#include "tensor.cuh"
#include "turn.cuh"

#include <cuda_pipeline_primitives.h>

constexpr int THREADS = 256, WARPS = THREADS / WARP, BLOCKS = CHUNK / BLOCK, HEADS_MAX = 8;
constexpr int CLUSTER_MAX = 8;
constexpr int PART_EXTRA = QN_CUDA_PART_EXTRA;
// IS_TENSOR: on tensor cores, see tensor.cuh.
template <int HEAD, int HEADS, int SHARES, bool IS_TENSOR> struct Spread {
    static constexpr int N = HEADS, SIZE = HEAD, ROW = 2 * HEAD; // bytes of a key
    static constexpr int PARTS = SHARES;                         // blocks of threads of a chunk
    static constexpr int TOGETHER = CLUSTER_MAX / PARTS;         // chunks of a cluster, at most
    static constexpr bool TENSOR = IS_TENSOR;
    // A block's own: positions, and blocks of 64 of them; numbers of each value.
    static constexpr int OWN = CHUNK / PARTS, OWN_BLOCKS = BLOCKS / PARTS;
    static constexpr int COLS = HEAD / PARTS, V_ROW = 2 * COLS;
    // Heads of a thread, with one position: a key is converted once for them, by four warps at
    // least.
    static constexpr int MOST = N * OWN > 128 ? N *OWN / 128 : 1, SCORES = MOST < N ? MOST : N;
    static constexpr int VALUES = N * COLS > 128 ? N *COLS / 128 : 1; // the same, with one value
    // Blocks of threads of a multiprocessor, for which registers must suffice.
    static constexpr int AT_ONCE = HEAD > 128 ? PARTS / 2 : PARTS == 4 ? 2 : PARTS == 2 ? 3 : 1;
    // A thread's results: those of several heads, or two values side by side.
    static constexpr int OUTS = TENSOR ? 2 : VALUES;
};

// A chunk's softmax of a head; l is -1 where it saw nothing.
struct State {
    float m, l;
};

template <typename S> struct Shared {
    alignas(16) unsigned char keys[S::OWN * S::ROW]; // pieces of 16 bytes in another order: Eight
    alignas(16) unsigned char values[CHUNK * S::V_ROW]; // the same: place_of
    alignas(16) float q[S::N][S::SIZE];
    alignas(16) float p[S::N][CHUNK];
    float turning[WARPS][S::SIZE];
    alignas(16) float most[S::N][BLOCKS];
    float decay[S::N][BLOCKS], sums[S::N][BLOCKS]; // of blocks of positions
    float m[S::N], l[S::N];                        // of all chunks
    float other_o[S::TOGETHER - 1][S::N][S::COLS]; // of a cluster's other chunks
    State other[S::TOGETHER - 1][S::N];
    int is_last;
};

struct Spreading {
    Operand q;
    const float *sinks;
    int chunks; // of the grid
    bool does_turn;
};

// What a row sees of a block of 64 positions; none: end is 0.
struct Seen {
    int first, end;
};

struct Place {
    int row, kv, head, heads, piece, chunk, part;
    int first_row, past; // of the segment
    int first, end;      // positions that the row sees
    int old;             // positions from here on are of this step
    bool is_together;    // all chunks are in one cluster
    int page[BLOCKS];    // -1: none
};

static __device__ inline int at_least(int a, int b) { return a > b ? a : b; }
static __device__ inline int at_most(int a, int b) { return a < b ? a : b; }

// Registers have no index.
static __device__ inline int page_of(const Place &x, int b) {
    int page = x.page[0];
#pragma unroll
    for (int i = 1; i < BLOCKS; i++) page = i == b ? x.page[i] : page;
    return page;
}

// Keys, or values, of this head in a block of 64 positions.
template <typename S>
static __device__ inline unsigned char *rows_at(const Task &t, const Place &x, int b,
                                                bool is_value) {
    const int64_t head = is_value ? t.cache.heads + x.kv : x.kv;
    return t.cache.pages + page_of(x, b) * t.cache.page_bytes + t.cache.offset +
           head * BLOCK * S::ROW;
}

static __device__ inline Seen seen_of(const Place &x, int b) {
    const int at = x.chunk * CHUNK + b * BLOCK;
    const int first = at_least(x.first - at, 0), end = at_most(x.end - at, BLOCK);
    return first < end && page_of(x, b) >= 0 ? Seen{first, end} : Seen{0, 0};
}

static __device__ inline bool sees(Seen s, int j) { return j >= s.first && j < s.end; }

// --- where ---------------------------------------------------------------------------------------

template <typename S> static __device__ inline void find_heads(Place &x, const Task &t, int heads) {
    const int group = heads / (int)t.cache.heads, pieces = ceil_div(group, S::N);
    x.row = (int)blockIdx.z;
    x.kv = (int)blockIdx.y / pieces;
    x.piece = (int)blockIdx.y % pieces;
    x.head = x.kv * group + x.piece * S::N;
    x.heads = at_most(group - x.piece * S::N, S::N);
    x.chunk = (int)blockIdx.x / S::PARTS;
    x.part = (int)blockIdx.x % S::PARTS;
}

static __device__ inline void find_positions(Place &x, const Task &t, int seg, bool does_turn) {
    const Range range = range_of(t, x.row);
    x.first_row = t.step->seg_row[seg];
    x.past = t.step->seg_past[seg];
    x.first = (int)range.first;
    x.end = (int)range.end;
    x.old = does_turn ? x.past : INT32_MAX;
    const qn_step *step = t.step;
    const int64_t groups = step->n_groups > 0 ? step->n_groups : 1;
    const int32_t *pages = step->seg_pages + (seg * groups + t.cache.group) * step->pages_per_seg;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int block = x.chunk * BLOCKS + b;
        x.page[b] = block < step->pages_per_seg ? pages[block] : -1;
    }
}

// The results of a thread.
template <typename S> struct Own {
    int h, f;
    bool is_there;

    __device__ Own() {
        const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
        h = S::TENSOR ? lane / 4 : (int)threadIdx.x / S::COLS * S::VALUES;
        f = S::TENSOR ? 8 * warp + lane % 4 * 2 : (int)threadIdx.x % S::COLS;
        is_there = h < S::N && f < S::COLS;
    }
    __device__ int head(int k) const { return S::TENSOR ? h : h + k; }
    __device__ int number(int k) const { return S::TENSOR ? f + k : f; }
};

// --- copies --------------------------------------------------------------------------------------

// Where a piece of a value lies: for tensor cores eight rows below each other are in different
// banks.
template <typename S> static __device__ inline int place_of(int row, int piece) {
    constexpr int PIECES = S::V_ROW / 16, SAME = PIECES < 8 ? 8 / PIECES : 1; // rows in all banks
    const int turn = S::TENSOR ? row / SAME % (8 / SAME) : 0;
    return row * S::V_ROW + (piece ^ turn) * 16;
}

// Calls with(row, piece) for the pieces of 16 bytes of 64 rows, all of them at once.
template <int PIECES, typename With> static __device__ inline void for_pieces(With with) {
    constexpr int N = BLOCK * PIECES;
#pragma unroll
    for (int k = 0; k < (N + THREADS - 1) / THREADS; k++) {
        const int i = (int)threadIdx.x + k * THREADS;
        if (N % THREADS == 0 || i < N) with(i / PIECES, i % PIECES);
    }
}

// Keys of the block's own positions, and its own part of all values; of rows before this step.
template <typename S>
static __device__ inline void copy_keys(Shared<S> &s, const Task &t, const Place &x) {
#pragma unroll
    for (int k = 0; k < S::OWN_BLOCKS; k++) {
        const int b = x.part * S::OWN_BLOCKS + k;
        const int fresh =
            x.old - x.chunk * CHUNK - b * BLOCK; // slots from here on are of this step
        const int n = at_most(seen_of(x, b).end, fresh);
        if (n <= 0) continue;
        const unsigned char *from = rows_at<S>(t, x, b, false);
        unsigned char *to = s.keys + k * BLOCK * S::ROW;
        for_pieces<S::ROW / 16>([&](int row, int piece) {
            if (row < n)
                __pipeline_memcpy_async(to + row * S::ROW + (piece ^ (row & 7)) * 16,
                                        from + row * S::ROW + piece * 16, 16);
        });
    }
    __pipeline_commit();
}

// Values that are not seen are -0 and meet p = 0, which leaves every sum as it is.
template <typename S>
static __device__ inline void copy_values(Shared<S> &s, const Task &t, const Place &x) {
    constexpr unsigned NONE = 0x80008000u;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const Seen seen = seen_of(x, b);
        const int fresh = x.old - x.chunk * CHUNK - b * BLOCK;
        if (!seen.end) continue;
        const unsigned char *from = rows_at<S>(t, x, b, true) + x.part * S::V_ROW;
        unsigned char *to = s.values + b * BLOCK * S::V_ROW;
        for_pieces<S::V_ROW / 16>([&](int row, int piece) {
            uint4 *at = (uint4 *)(to + place_of<S>(row, piece));
            if (!sees(seen, row))
                *at = make_uint4(NONE, NONE, NONE, NONE);
            else if (row < fresh)
                __pipeline_memcpy_async(at, from + row * S::ROW + piece * 16, 16);
        });
    }
    __pipeline_commit();
}

// --- rows of this step ---------------------------------------------------------------------------

// A warp brings a query, of number i of these heads, or the key of a position.
template <typename S>
static __device__ inline void bring_head(Shared<S> &s, const Task &t, const Spreading &a,
                                         const Place &x, bool is_query, int i, int position) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int row = is_query ? x.row : x.first_row + position - x.past;
    const unsigned char *from =
        is_query ? a.q.data + row * a.q.stride : t.in[1].data + row * t.in[1].stride;
    const float *angles = (const float *)(t.in[4].data + row * t.in[4].stride);
    const unsigned char *norm = is_query ? t.in[6].data : t.in[7].data;
    float y[S::SIZE / WARP];
    turn_head<S::SIZE>(y, (const float *)from + (is_query ? x.head + i : x.kv) * S::SIZE, angles,
                       a.does_turn ? (const float *)norm : nullptr,
                       a.does_turn ? (int)t.attrs.rotate / 2 : 0, s.turning[warp], t.attrs);
    if (is_query) {
        __half *halves = (__half *)s.q[i]; // on tensor cores: all hi, then all lo
#pragma unroll
        for (int k = 0; k < S::SIZE / WARP; k++) {
            const int e = lane + WARP * k;
            if constexpr (S::TENSOR) {
                const __half hi = __float2half_rn(y[k]);
                halves[e] = hi;
                halves[S::SIZE + e] = __float2half_rn(y[k] - __half2float(hi));
            } else {
                s.q[i][e] = y[k];
            }
        }
        return;
    }
    const int slot = position % BLOCK;
    unsigned char *key = s.keys + position % S::OWN * S::ROW;
    uint16_t *stored =
        (uint16_t *)(rows_at<S>(t, x, position % CHUNK / BLOCK, false) + slot * S::ROW);
#pragma unroll
    for (int k = 0; k < S::SIZE / WARP; k++) {
        const int e = lane + WARP * k;
        const uint16_t half = half_of(y[k]);
        *(uint16_t *)(key + ((e / 8) ^ (slot & 7)) * 16 + e % 8 * 2) = half;
        if (row == x.row && x.piece == 0) stored[e] = half;
    }
}

template <typename S>
static __device__ inline void bring_value(Shared<S> &s, const Task &t, const Place &x,
                                          int position) {
    const int row = x.first_row + position - x.past, slot = position % CHUNK;
    const float *v =
        (const float *)(t.in[2].data + row * t.in[2].stride) + x.kv * S::SIZE + x.part * S::COLS;
    uint16_t *stored = (uint16_t *)(rows_at<S>(t, x, slot / BLOCK, true) + slot % BLOCK * S::ROW) +
                       x.part * S::COLS;
#pragma unroll 1
    for (int f = (int)threadIdx.x % WARP; f < S::COLS; f += WARP) {
        const uint16_t half = half_of(v[f]);
        *(uint16_t *)(s.values + place_of<S>(slot, f / 8) + f % 8 * 2) = half;
        if (row == x.row && x.piece == 0) stored[f] = half;
    }
}

// Queries, and keys and values of this step. Heads that are not there are left as they are: nobody
// asks for what comes of them.
template <typename S>
static __device__ inline void bring_rows(Shared<S> &s, const Task &t, const Spreading &a,
                                         const Place &x) {
    const int at = x.chunk * CHUNK, at_key = at + x.part * S::OWN;
    const int lowest = at_least(x.old, at_most(x.first, x.end - 1)); // its own row at least
    const int keys = at_least(lowest, at_key), values = at_least(lowest, at); // the first ones
    const int n_keys = at_least(at_most(x.end, at_key + S::OWN) - keys, 0);
    const int n_values = at_least(at_most(x.end, at + CHUNK) - values, 0);
#pragma unroll 1
    for (int i = (int)threadIdx.x / WARP; i < x.heads + n_keys + n_values; i += WARPS) {
        const bool is_query = i < x.heads, is_value = i >= x.heads + n_keys;
        const int position = is_value ? values + i - x.heads - n_keys : keys + i - x.heads;
        if (!is_query && page_of(x, position % CHUNK / BLOCK) < 0) continue;
        if (is_value)
            bring_value(s, t, x, position);
        else
            bring_head(s, t, a, x, is_query, i, position);
    }
}
