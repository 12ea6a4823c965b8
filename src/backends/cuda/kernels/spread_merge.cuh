// Attention spread over the card (attend_spread.cu): chunks are merged, and results written.
#pragma once

#include "cluster.cuh"
#include "spread.cuh"

// --- results -------------------------------------------------------------------------------------

template <typename S> static __device__ inline float exp_of(float x) {
    return S::TENSOR ? power_of_2(x) : math_exp(x);
}

template <typename S>
static __device__ inline void write_result(const Task &t, const Spreading &a, const Place &x,
                                           const Own<S> &own, const float (&all)[S::OUTS],
                                           const float (&m)[S::OUTS], const float (&l)[S::OUTS]) {
#pragma unroll
    for (int k = 0; k < S::OUTS; k++) {
        const int head = x.head + own.head(k);
        if (own.head(k) >= x.heads) continue;
        const float sink = a.sinks ? a.sinks[head] * (S::TENSOR ? LOG2_E : 1.0f) : 0.0f;
        const Last last = finish_softmax(m[k], l[k], a.sinks != nullptr, sink, exp_of<S>);
        const float o = all[k] * last.a * last.inverse;
        ((float *)part_at(t.out[0], x.row, head))[x.part * S::COLS + own.number(k)] =
            S::TENSOR ? o + 0.0f : o;
    }
}

template <typename S>
static __device__ inline State state_of(const Shared<S> &s, const Place &x, int h) {
    State all = {-INFINITY, 0};
    bool has = false;
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        if (!seen_of(x, k).end) continue;
        has = true;
        all.m = larger(s.most[h][k], all.m);
        all.l = fmaf(all.l, s.decay[h][k], s.sums[h][k]);
    }
    if (S::TENSOR) has = all.m != -INFINITY;
    return {all.m, has ? all.l : -1};
}

// The chunks of a cluster: that of the first one that is seen merges them.
template <typename S>
static __device__ inline void merge_cluster(Shared<S> &s, const Task &t, const Spreading &a,
                                            const Place &x, const Own<S> &own,
                                            const float (&o)[S::OUTS]) {
    const int first = x.first / CHUNK, n = (x.end - 1) / CHUNK - first; // chunks after the first
    if (x.chunk != first) {
        const unsigned rank = (unsigned)(first * S::PARTS + x.part);
        const int slot = x.chunk - first - 1;
#pragma unroll
        for (int k = 0; own.is_there && k < S::OUTS; k++) {
            const int h = own.head(k);
            store_at_rank(&s.other_o[slot][h][own.number(k)], rank, o[k]);
            if (own.number(k) != 0) continue;
            const State part = state_of(s, x, h);
            store_at_rank(&s.other[slot][h].m, rank, part.m);
            store_at_rank(&s.other[slot][h].l, rank, part.l);
        }
        cluster_arrive();
        return;
    }
    if (n > 0) {
        cluster_arrive();
        cluster_wait();
    }
    if (!own.is_there) return;
    float all[S::OUTS], m[S::OUTS], l[S::OUTS];
#pragma unroll
    for (int k = 0; k < S::OUTS; k++) {
        const int h = own.head(k);
        State part = state_of(s, x, h);
        float mine = o[k];
        all[k] = l[k] = 0;
        m[k] = -INFINITY;
#pragma unroll 1
        for (int c = 0; c <= n; c++) {
            if (!(part.l < 0)) {
                const Joint j = join_chunk(m[k], l[k], part.m, part.l, exp_of<S>);
                all[k] = fmaf(all[k], j.before, mine * j.part);
            }
            if (c == n) break;
            part = s.other[c][h];
            mine = s.other_o[c][h][own.number(k)];
        }
    }
    write_result(t, a, x, own, all, m, l);
}

template <typename S>
static __device__ inline float *part_of(const Task &t, const Spreading &a, const Place &x, int h,
                                        int chunk) {
    const int64_t head = x.row * a.q.parts + x.head + h;
    return t.room + (head * a.chunks + chunk) * (S::SIZE + PART_EXTRA);
}

// Factors of up to 32 chunks from `first` on, by a warp: p of a head becomes pairs (before, part),
// with part -1 where a chunk saw nothing. m and l go on.
template <typename S>
static __device__ inline void weigh_chunks(Shared<S> &s, const Task &t, const Spreading &a,
                                           const Place &x, int h, int first, int n, float &m,
                                           float &l) {
    const int lane = (int)threadIdx.x % WARP;
    float2 state = make_float2(-INFINITY, -1); // m, l
    if (lane < n) state = __ldcg((const float2 *)(part_of<S>(t, a, x, h, first + lane) + S::SIZE));
    const bool has = !(state.y < 0);
    float most = larger(has ? state.x : -INFINITY, -INFINITY);
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const float of = __shfl_up_sync(ALL, most, step);
        if (lane >= step) most = larger(of, most);
    }
    most = larger(most, m);
    float before = __shfl_up_sync(ALL, most, 1);
    if (lane == 0) before = m;
    const float decay = exp_of<S>(before - most);
    const float part = has ? exp_of<S>(state.x - most) : -1;
    s.p[h][2 * lane] = decay;
    s.p[h][2 * lane + 1] = part;
    const float scaled = state.y * part;
#pragma unroll 1
    for (int c = 0; c < n; c++) {
        const float by = __shfl_sync(ALL, decay, c), add = __shfl_sync(ALL, scaled, c);
        if (!(__shfl_sync(ALL, part, c) < 0)) l = fmaf(l, by, add);
    }
    m = __shfl_sync(ALL, most, WARP - 1);
}

template <typename S>
static __device__ inline void merge_parts(Shared<S> &s, const Task &t, const Spreading &a,
                                          const Place &x, const Own<S> &own, int first, int end) {
    constexpr int AT_ONCE = S::OUTS > 2 ? 4 : 8;
    const int warp = (int)threadIdx.x / WARP;
    float all[S::OUTS] = {}, m = -INFINITY, l = 0;
#pragma unroll 1
    for (int from = first; from < end; from += WARP) {
        const int n = at_most(end - from, WARP);
        __syncthreads();
        if (warp < x.heads) weigh_chunks(s, t, a, x, warp, from, n, m, l);
        __syncthreads();
        if (!own.is_there || own.h >= x.heads) continue;
#pragma unroll 1
        for (int c = 0; c < n; c += AT_ONCE) {
            float o[S::OUTS][AT_ONCE];
#pragma unroll
            for (int k = 0; k < S::OUTS; k++) {
                const int h = at_most(own.head(k), x.heads - 1);
                const float *part = part_of<S>(t, a, x, h, from + c) + x.part * S::COLS;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    o[k][i] = c + i < n ? __ldcg(part + i * (S::SIZE + PART_EXTRA) + own.number(k))
                                        : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < S::OUTS; k++) {
                const float2 *factors = (const float2 *)s.p[at_most(own.head(k), x.heads - 1)] + c;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    if (c + i >= n || factors[i].y < 0) continue;
                    all[k] = fmaf(all[k], factors[i].x, o[k][i] * factors[i].y);
                }
            }
        }
    }
    if (warp < S::N && (int)threadIdx.x % WARP == 0) {
        s.m[warp] = m;
        s.l[warp] = l;
    }
    __syncthreads();
    if (!own.is_there) return;
    float all_m[S::OUTS], all_l[S::OUTS];
#pragma unroll
    for (int k = 0; k < S::OUTS; k++) {
        all_m[k] = s.m[own.head(k)];
        all_l[k] = s.l[own.head(k)];
    }
    write_result(t, a, x, own, all, all_m, all_l);
}

// The parts of all chunks go through memory; the last block of a part merges them.
template <typename S>
static __device__ inline void merge_card(Shared<S> &s, const Task &t, const Spreading &a,
                                         const Place &x, const Own<S> &own,
                                         const float (&o)[S::OUTS]) {
    if (own.is_there) {
#pragma unroll
        for (int k = 0; k < S::OUTS; k++) {
            const int h = own.head(k);
            if (h >= x.heads) continue;
            float *to = part_of<S>(t, a, x, h, x.chunk);
            to[x.part * S::COLS + own.number(k)] = o[k];
            if (own.number(k) == 0) // the same of all blocks of a chunk
                *(State *)(to + S::SIZE) = state_of(s, x, h);
        }
    }
    __syncthreads();
    const int first = x.first / CHUNK, end = (x.end - 1) / CHUNK + 1;
    if (threadIdx.x == 0) {
        const int64_t work = (int64_t)x.row * gridDim.y + blockIdx.y;
        unsigned *counter = t.counters + work * S::PARTS + x.part;
        __threadfence();
        s.is_last = atomicAdd(counter, 1u) == (unsigned)(end - first - 1);
        if (s.is_last) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    if (s.is_last) merge_parts(s, t, a, x, own, first, end);
}
