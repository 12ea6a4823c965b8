// The best logits of each row, and the routing of experts: choosing among numbers, ties to the
// lower id.
#include "kernels.cuh"

// --- the head: temp 0 (R, lists of 64 ids), temp 1 (R, lists of 2: min logit, first broken id) ---

constexpr int LIST = QN_CUDA_LIST, BEST = QN_CUDA_BEST; // logits of a list, and the best of them
constexpr int WARPS = LIST / BEST, THREADS = WARPS * WARP;
static_assert(BEST == 2 * WARP && WARPS == WARP);

// Larger logits are larger keys, and so are lower ids of equal logits. 0: no logit.
typedef unsigned long long Key;
static __device__ inline Key key_of(float logit, int64_t id) {
    if (!(logit > -INFINITY)) return 0;
    const uint32_t bits = qn_float_to_bits(logit + 0.0f); // -0 is 0
    const uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)order << 32 | (uint32_t) ~(uint32_t)id;
}
static __device__ inline int32_t id_of(Key key) { return key ? (int32_t) ~(uint32_t)key : -1; }

// 64 keys of a warp, descending: lane l has numbers l and l + 32.
struct Best {
    Key a, b;
};

static __device__ inline Key exchange(Key x, int step, bool keeps_larger) {
    const Key other = __shfl_xor_sync(ALL, x, step);
    return keeps_larger == (x > other) ? x : other;
}

static __device__ inline void order_pair(Best &x) {
    if (x.a < x.b) {
        const Key a = x.a;
        x.a = x.b, x.b = a;
    }
}

// Keys that rise and then fall become descending.
static __device__ inline void order_best(Best &x) {
    const int lane = threadIdx.x % WARP;
    order_pair(x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x.a = exchange(x.a, step, (lane & step) == 0);
        x.b = exchange(x.b, step, (lane & step) == 0);
    }
}

// Keys in any order become descending (bitonic).
static __device__ inline void sort_best(Best &x) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            const bool is_first = (lane & step) == 0;
            x.a = exchange(x.a, step, is_first == ((lane & size) == 0));
            x.b = exchange(x.b, step, is_first == (((lane + 32) & size) == 0));
        }
    }
    order_best(x);
}

// The best 64 of both.
static __device__ inline void join_best(Best &x, const Best &y) {
    const int last = WARP - 1 - threadIdx.x % WARP;
    const Key a = __shfl_sync(ALL, y.b, last), b = __shfl_sync(ALL, y.a, last);
    x.a = x.a > a ? x.a : a;
    x.b = x.b > b ? x.b : b;
    order_best(x);
}

// The best of all warps, in the first one. `room` holds 64 keys of each warp.
static __device__ inline void join_warps(Best &x, Key *room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int half = WARPS / 2; half > 0; half /= 2) {
        Key *mine = room + warp * BEST;
        if (warp >= half && warp < 2 * half) mine[lane] = x.a, mine[lane + WARP] = x.b;
        __syncthreads();
        const Key *other = room + (warp + half) * BEST;
        if (warp < half) join_best(x, {other[lane], other[lane + WARP]});
    }
}

// The least number, and the first broken id, of a warp.
static __device__ inline void least_of_warp(float &min, int &broken) {
    for (int half = 16; half > 0; half /= 2) {
        min = fminf(min, __shfl_xor_sync(ALL, min, half));
        const int other = __shfl_xor_sync(ALL, broken, half);
        broken = other < broken ? other : broken;
    }
}

static __device__ inline int64_t computed_of(const Task &t) {
    const int64_t n = t.in[1].parts;
    return t.step->computed > 0 && t.step->computed < n ? t.step->computed : n;
}

// A warp for 64 logits.
static __global__ void best_of_lists(const __grid_constant__ Task t) {
    begin();
    __shared__ Key room[WARPS * BEST];
    __shared__ float mins[WARPS];
    __shared__ int firsts[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t r = blockIdx.y, n = computed_of(t);
    const int64_t first = blockIdx.x * (int64_t)LIST + warp * BEST + lane;
    const int64_t entries = t.step->entries > 0 ? t.step->entries : t.in[1].parts;
    const float *logits = floats_at(t.out[0], r);
    Key keys[2];
    float min = INFINITY;
    int broken = INT32_MAX;
    for (int i = 0; i < 2; i++) {
        const int64_t id = first + i * WARP;
        const float logit = id < n ? logits[id] : -INFINITY;
        keys[i] = id < n && id < entries ? key_of(logit, id) : 0;
        if (id >= n) continue;
        if (!isfinite(logit))
            broken = (int)id < broken ? (int)id : broken;
        else
            min = logit < min ? logit : min;
    }
    least_of_warp(min, broken);
    if (lane == 0) mins[warp] = min, firsts[warp] = broken;
    Best best = {keys[0], keys[1]};
    sort_best(best);
    join_warps(best, room); // waits for the least ones, too
    if (warp > 0) return;
    int32_t *ids = (int32_t *)row_at(t.temp[0], r) + blockIdx.x * BEST;
    ids[lane] = id_of(best.a);
    ids[lane + WARP] = id_of(best.b);
    min = mins[lane], broken = firsts[lane];
    least_of_warp(min, broken);
    if (lane > 0) return;
    floats_at(t.temp[1], r)[2 * blockIdx.x] = min;
    ((int32_t *)row_at(t.temp[1], r))[2 * blockIdx.x + 1] = broken;
}

LAUNCHER(head_lists) {
    const dim3 grid(grid_of(ceil_div(task->in[1].parts, (int64_t)LIST)), grid_of(task->rows));
    if (task->rows) start(best_of_lists, grid, THREADS, 0, stream, *task);
}

// A row of the result has the min logit, or the first that is not finite; its id, or -1; the best
// logits, and their ids.
static __device__ inline void tell_min(const Task &t, int64_t r, int64_t lists, float *to) {
    float min = INFINITY;
    int broken = INT32_MAX;
    for (int64_t i = threadIdx.x; i < lists; i += WARP) {
        const int first = ((const int32_t *)row_at(t.temp[1], r))[2 * i + 1];
        min = fminf(min, floats_at(t.temp[1], r)[2 * i]);
        broken = first < broken ? first : broken;
    }
    least_of_warp(min, broken);
    if (threadIdx.x > 0) return;
    const float value = broken == INT32_MAX ? min : floats_at(t.out[0], r)[broken];
    to[0] = isnan(value) ? nanf("") : value;
    to[1] = broken == INT32_MAX ? -1.0f : (float)broken;
}

// Warps join lists, then what they have.
static __global__ void merge_lists(const __grid_constant__ Task t) {
    begin();
    __shared__ Key room[WARPS * BEST];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t r = blockIdx.x, n = t.attrs.top;
    const int64_t lists = ceil_div(t.in[1].parts, (int64_t)LIST);
    const int64_t top = t.step->top > 0 && t.step->top < n ? t.step->top : n;
    const float *logits = floats_at(t.out[0], r);
    const auto key_at = [=](int64_t i) {
        const int32_t id = ((const int32_t *)row_at(t.temp[0], r))[i];
        return id < 0 ? 0 : key_of(logits[id], id);
    };
    float *to = floats_at(t.out[1], r);
    Best best = {};
    for (int64_t i = warp; i < lists; i += WARPS)
        join_best(best, {key_at(i * BEST + lane), key_at(i * BEST + WARP + lane)});
    join_warps(best, room);
    if (warp > 0) return;
    for (int h = 0; h < 2; h++) {
        const int k = lane + h * WARP, id = id_of(h ? best.b : best.a);
        if (k >= n) continue;
        to[2 + k] = id < 0 || k >= top ? -INFINITY : logits[id];
        to[2 + n + k] = k < top ? (float)id : -1.0f;
    }
    tell_min(t, r, lists, to);
}

LAUNCHER(head_merge) {
    if (task->rows) start(merge_lists, grid_of(task->rows), THREADS, 0, stream, *task);
}

// --- routing: scores (T, X) -> ids (T, N), weights (T, N) ----------------------------------------

// The first of the largest, as one number after the other would find it: a NaN is not larger than
// anything, and nothing is larger than one that is first. By a warp.
static __device__ inline int find_largest(const float *p, int n) {
    float most = -INFINITY;
    int best = INT32_MAX;
    for (int i = threadIdx.x; i < n; i += WARP) {
        if (p[i] > most) most = p[i], best = i;
    }
    for (int half = 16; half > 0; half /= 2) {
        const float other = __shfl_xor_sync(ALL, most, half);
        const int at = __shfl_xor_sync(ALL, best, half);
        if (other > most || (other == most && at < best)) most = other, best = at;
    }
    return isnan(p[0]) || best == INT32_MAX ? 0 : best;
}

// One warp for a row; p (X) is in shared memory.
static __device__ inline void choose(int32_t *ids, float *weights, const float *scores, int64_t n,
                                     const qn_attrs &attrs, float *p) {
    const int l = threadIdx.x;
    float most = -INFINITY;
    // As one number after the other would: a NaN is not larger than anything, unless it is first.
    for (int64_t i = l; i < n; i += WARP) most = scores[i] > most ? scores[i] : most;
    for (int half = 16; half > 0; half /= 2) {
        const float other = __shfl_xor_sync(ALL, most, half);
        most = other > most ? other : most;
    }
    if (isnan(scores[0])) most = scores[0];
    for (int64_t i = l; i < n; i += WARP) p[i] = math_exp(scores[i] - most);
    __syncwarp();
    float sum = 0;
    for (int64_t i = l % 16; i < n; i += 16) sum += p[i];
    for (int half = 8; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half, 16);
    sum = __shfl_sync(ALL, sum, 0);
    float chosen = 0;
    for (int64_t k = 0; k < attrs.top; k++) {
        const int best = find_largest(p, (int)n);
        const float weight = p[best] / sum;
        chosen += weight;
        __syncwarp();
        if (l == 0) {
            ids[k] = best;
            weights[k] = weight;
            p[best] = -1; // taken
        }
        __syncwarp();
    }
    for (int64_t k = l; k < attrs.top; k += WARP)
        weights[k] = weights[k] / (attrs.normalize ? chosen : 1.0f) * attrs.scale;
}

static __global__ void route_rows(Operand scores, Operand ids, Operand weights, qn_attrs attrs) {
    begin();
    extern __shared__ float p[];
    const int64_t r = blockIdx.x;
    choose((int32_t *)row_at(ids, r), floats_at(weights, r), floats_at(scores, r), scores.width,
           attrs, p);
}

static void launch_route(const Task *t, const Operand &scores, const Operand &ids,
                         const Operand &weights, cudaStream_t stream) {
    start(route_rows, grid_of(t->rows), WARP, (size_t)scores.width * sizeof(float), stream, scores,
          ids, weights, t->attrs);
}

LAUNCHER(route) { launch_route(task, task->in[0], task->out[0], task->out[1], stream); }
LAUNCHER(experts_route) { launch_route(task, task->in[1], task->temp[0], task->temp[1], stream); }

// y (T, N, D), weights (T, N) -> from 0, one fma for each choice, in order
static __global__ void combine_rows(Operand y, Operand weights, Operand out, int64_t rows) {
    begin();
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= out.width) return;
    for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
        float sum = 0;
        for (int64_t k = 0; k < y.parts; k++)
            sum = fmaf(floats_at(weights, r)[k], ((const float *)part_at(y, r, k))[i], sum);
        floats_at(out, r)[i] = sum;
    }
}

static void launch_combine(const Operand &y, const Operand &weights, const Operand &out,
                           int64_t rows, cudaStream_t stream) {
    const dim3 grid(grid_of(ceil_div(out.width, (int64_t)256)), grid_of(rows, 65535));
    start(combine_rows, grid, 256, 0, stream, y, weights, out, rows);
}

LAUNCHER(combine) { launch_combine(task->in[0], task->in[1], task->out[0], task->rows, stream); }
LAUNCHER(experts_combine) {
    launch_combine(task->temp[4], task->temp[1], task->out[0], task->rows, stream);
}
