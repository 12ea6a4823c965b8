// The best logits of each row, and the routing of experts: choosing among numbers, ties to the
// lower id.
#include "kernels.cuh"

// --- the head: temp 0 (R, lists of 64 ids), temp 1 (R, lists of 2: min logit, first broken id)
// ----

constexpr int LIST = QN_CUDA_LIST, BEST = QN_CUDA_BEST, THREADS = 1024;

// Larger logits are larger keys, and so are lower ids of equal logits. 0: no logit.
typedef unsigned long long Key;
static __device__ inline Key key_of(float logit, int64_t id) {
    if (!(logit > -INFINITY)) return 0;
    const uint32_t bits = qn_float_to_bits(logit + 0.0f); // -0 is 0
    const uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)order << 32 | (uint32_t) ~(uint32_t)id;
}
static __device__ inline int32_t id_of(Key key) { return key ? (int32_t) ~(uint32_t)key : -1; }

// Sorts 2048 keys, descending (bitonic).
static __device__ inline void sort_keys(Key *keys) {
    for (int size = 2; size <= LIST; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < LIST / 2; i += THREADS) {
                const int a = 2 * i - (i & (step - 1)), b = a + step;
                const Key x = keys[a], y = keys[b];
                const bool is_down = (a & size) == 0;
                if ((x < y) == is_down) keys[a] = y, keys[b] = x;
            }
        }
    }
    __syncthreads();
}

static __device__ inline int64_t computed_of(const Task &t) {
    const int64_t n = t.in[1].parts;
    return t.step->computed > 0 && t.step->computed < n ? t.step->computed : n;
}

static __global__ void best_of_lists(const __grid_constant__ Task t) {
    __shared__ Key keys[LIST];
    __shared__ float mins[WARP];
    __shared__ int firsts[WARP];
    const int64_t r = blockIdx.y, first = blockIdx.x * (int64_t)LIST, n = computed_of(t);
    const int64_t entries = t.step->entries > 0 ? t.step->entries : t.in[1].parts;
    const float *logits = floats_at(t.out[0], r);
    float min = INFINITY;
    int broken = INT32_MAX;
    for (int i = threadIdx.x; i < LIST; i += THREADS) {
        const int64_t id = first + i;
        const float logit = id < n ? logits[id] : -INFINITY;
        keys[i] = id < n && id < entries ? key_of(logit, id) : 0;
        if (id >= n) continue;
        if (!isfinite(logit))
            broken = (int)id < broken ? (int)id : broken;
        else
            min = logit < min ? logit : min;
    }
    for (int half = 16; half > 0; half /= 2) {
        min = fminf(min, __shfl_xor_sync(ALL, min, half));
        const int other = __shfl_xor_sync(ALL, broken, half);
        broken = other < broken ? other : broken;
    }
    if (threadIdx.x % WARP == 0) {
        mins[threadIdx.x / WARP] = min;
        firsts[threadIdx.x / WARP] = broken;
    }
    sort_keys(keys);
    if (threadIdx.x < BEST)
        ((int32_t *)row_at(t.temp[0], r))[blockIdx.x * BEST + threadIdx.x] =
            id_of(keys[threadIdx.x]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < WARP; i++) {
            min = fminf(min, mins[i]);
            broken = firsts[i] < broken ? firsts[i] : broken;
        }
        floats_at(t.temp[1], r)[2 * blockIdx.x] = min;
        ((int32_t *)row_at(t.temp[1], r))[2 * blockIdx.x + 1] = broken;
    }
}

LAUNCHER(head_lists) {
    const dim3 grid(grid_of(ceil_div(task->in[1].parts, (int64_t)LIST)), grid_of(task->rows));
    if (task->rows) best_of_lists<<<grid, THREADS, 0, stream>>>(*task);
}

// A row of the result has the min logit, or the first that is not finite; its id, or -1; the best
// logits, and their ids.
static __device__ inline void tell_min(const Task &t, int64_t r, int64_t lists, float *to) {
    float min = INFINITY;
    int broken = INT32_MAX;
    for (int64_t i = 0; i < lists; i++) {
        const int first = ((const int32_t *)row_at(t.temp[1], r))[2 * i + 1];
        min = fminf(min, floats_at(t.temp[1], r)[2 * i]);
        broken = first < broken ? first : broken;
    }
    const float value = broken == INT32_MAX ? min : floats_at(t.out[0], r)[broken];
    to[0] = isnan(value) ? nanf("") : value;
    to[1] = broken == INT32_MAX ? -1.0f : (float)broken;
}

static __global__ void merge_lists(const __grid_constant__ Task t) {
    __shared__ Key keys[LIST];
    const int64_t r = blockIdx.x, room = t.attrs.top;
    const int64_t lists = ceil_div(t.in[1].parts, (int64_t)LIST), n = lists * BEST;
    const int64_t top = t.step->top > 0 && t.step->top < room ? t.step->top : room;
    const int32_t *ids = (const int32_t *)row_at(t.temp[0], r);
    const float *logits = floats_at(t.out[0], r);
    float *to = floats_at(t.out[1], r);
    for (int i = threadIdx.x; i < BEST; i += THREADS) keys[i] = 0;
    for (int64_t at = 0; at < n; at += LIST - BEST) { // the best so far, and some more
        __syncthreads();
        for (int i = threadIdx.x; i < LIST - BEST; i += THREADS) {
            const int32_t id = at + i < n ? ids[at + i] : -1;
            keys[BEST + i] = id < 0 ? 0 : key_of(logits[id], id);
        }
        sort_keys(keys);
    }
    for (int64_t k = threadIdx.x; k < room; k += THREADS) {
        const int32_t id = k < top ? id_of(keys[k]) : -1;
        to[2 + k] = id < 0 ? -INFINITY : logits[id];
        to[2 + room + k] = (float)id;
    }
    if (threadIdx.x == 0) tell_min(t, r, lists, to);
}

LAUNCHER(head_merge) {
    if (task->rows) merge_lists<<<grid_of(task->rows), THREADS, 0, stream>>>(*task);
}

// --- routing: scores (T, X) -> ids (T, N), weights (T, N) ----------------------------------------

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
        int best = 0;
        if (l == 0) {
            for (int64_t i = 1; i < n; i++)
                if (p[i] > p[best]) best = (int)i;
            const float weight = p[best] / sum;
            ids[k] = best;
            weights[k] = weight;
            chosen += weight;
            p[best] = -1; // taken
        }
        __syncwarp();
    }
    if (l == 0)
        for (int64_t k = 0; k < attrs.top; k++)
            weights[k] = weights[k] / (attrs.normalize ? chosen : 1.0f) * attrs.scale;
}

static __global__ void route_rows(Operand scores, Operand ids, Operand weights, qn_attrs attrs) {
    extern __shared__ float p[];
    const int64_t r = blockIdx.x;
    choose((int32_t *)row_at(ids, r), floats_at(weights, r), floats_at(scores, r), scores.width,
           attrs, p);
}

static void launch_route(const Task *t, const Operand &scores, const Operand &ids,
                         const Operand &weights, cudaStream_t stream) {
    route_rows<<<grid_of(t->rows), WARP, (size_t)scores.width * sizeof(float), stream>>>(
        scores, ids, weights, t->attrs);
}

LAUNCHER(route) { launch_route(task, task->in[0], task->out[0], task->out[1], stream); }
LAUNCHER(experts_route) { launch_route(task, task->in[1], task->temp[0], task->temp[1], stream); }

// y (T, N, D), weights (T, N) -> from 0, one fma for each choice, in order
static __global__ void combine_rows(Operand y, Operand weights, Operand out, int64_t rows) {
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
    combine_rows<<<grid, 256, 0, stream>>>(y, weights, out, rows);
}

LAUNCHER(combine) { launch_combine(task->in[0], task->in[1], task->out[0], task->rows, stream); }
LAUNCHER(experts_combine) {
    launch_combine(task->temp[4], task->temp[1], task->out[0], task->rows, stream);
}
