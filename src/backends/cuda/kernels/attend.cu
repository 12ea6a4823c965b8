// Attention over pages, in the order of docs/numbers.md: blocks of 64 positions, chunks of 256,
// chunks merged ascending. Usual shapes go to attend_spread.cu, attend_few.cu and attend_many.cu,
// in numerics tensor to attend_tensor.cu and attend_alone.cu; here a block of threads has one row
// and head, of any shape.
#include "attention.cuh"
#include "kernels.cuh"

constexpr int THREADS = 128;

static __device__ inline float score_of(const float *q, const unsigned char *key, int type,
                                        int64_t n, const qn_attrs &attrs) {
    float sum = 0;
    for (int64_t e = 0; e < n; e++) sum = fmaf(q[e], kv_at(key, type, e), sum);
    return finish_score(sum, attrs);
}

// The largest of 64 scores and m, and the sum of the 64 p in 16 lanes; by a warp, for all of it.
static __device__ inline float max_of_64(const float *p, float m) {
    const int l = threadIdx.x % WARP;
    float most = larger(p[l + 32], larger(p[l], m));
    for (int half = 16; half > 0; half /= 2) most = larger(__shfl_xor_sync(ALL, most, half), most);
    return most;
}

static __device__ inline float sum_of_64(const float *p) {
    const int l = threadIdx.x % 16;
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += p[l + 16 * i];
    for (int half = 8; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half, 16);
    return __shfl_sync(ALL, sum, 0);
}

// Shared memory: q (E), then the softmax of a chunk and of all: o (F) each.
struct Room {
    float *q, *o, *all;
};

struct Softmax {
    float m, l;
    bool is_empty;
};

// Positions first ... end - 1 of a page join the softmax of a chunk; at least one.
static __device__ inline void add_block(const Task &t, Softmax &s, const Room &room, float *p,
                                        unsigned char *page, int64_t kv, int first, int end) {
    const qn_cache_view &c = t.cache;
    const int j = threadIdx.x;
    if (j < BLOCK)
        p[j] = j < first || j >= end
                   ? -INFINITY
                   : score_of(room.q, key_at(c, page, kv, j), c.type, c.k_size, t.attrs);
    __syncthreads();
    const float max = max_of_64(p, s.m);
    __syncthreads();
    if (j < BLOCK) p[j] = j < first || j >= end ? 0 : math_exp(p[j] - max);
    __syncthreads();
    const float decay = math_exp(s.m - max);
    s.l = fmaf(s.l, decay, sum_of_64(p));
    for (int64_t f = threadIdx.x; f < c.v_size; f += THREADS) {
        float o = s.is_empty ? room.o[f] : room.o[f] * decay;
        for (int i = first; i < end; i++)
            o = fmaf(p[i], kv_at(value_at(c, page, kv, i), c.type, f), o);
        room.o[f] = o;
    }
    s.m = max;
    s.is_empty = false;
    __syncthreads();
}

static __device__ inline void merge_chunk(Softmax &all, const Softmax &part, const Room &room,
                                          int64_t n) {
    const Joint j = join_chunk(all.m, all.l, part.m, part.l);
    for (int64_t f = threadIdx.x; f < n; f += THREADS)
        room.all[f] = fmaf(room.all[f], j.before, room.o[f] * j.part);
}

static __device__ inline void attend_head(const Task &t, float *to, const float *q,
                                          const float *sink, int64_t r, int64_t kv) {
    extern __shared__ float shared[];
    __shared__ float p[BLOCK];
    const qn_cache_view &c = t.cache;
    const Room room = {shared, shared + c.k_size, shared + c.k_size + c.v_size};
    const int32_t seg = t.step->row_seg[r];
    if (seg < 0) { // padding
        for (int64_t f = threadIdx.x; f < c.v_size; f += THREADS) to[f] = 0;
        return;
    }
    for (int64_t e = threadIdx.x; e < c.k_size; e += THREADS) room.q[e] = q[e];
    for (int64_t f = threadIdx.x; f < c.v_size; f += THREADS) room.all[f] = 0;
    const Range range = range_of(t, r);
    Softmax all = {-INFINITY, 0, true};
    __syncthreads();
    for (int64_t chunk = range.first / CHUNK; chunk * CHUNK < range.end; chunk++) {
        Softmax part = {-INFINITY, 0, true};
        for (int64_t f = threadIdx.x; f < c.v_size; f += THREADS) room.o[f] = 0;
        for (int64_t at = chunk * CHUNK; at < (chunk + 1) * CHUNK; at += BLOCK) {
            const int64_t first = range.first > at ? range.first - at : 0;
            const int64_t end = range.end - at < BLOCK ? range.end - at : BLOCK;
            unsigned char *page = first < end ? find_page(t, seg, at / BLOCK) : nullptr;
            if (page) add_block(t, part, room, p, page, kv, (int)first, (int)end);
        }
        if (!part.is_empty) merge_chunk(all, part, room, c.v_size);
    }
    const Last last = finish_softmax(all.m, all.l, sink);
    for (int64_t f = threadIdx.x; f < c.v_size; f += THREADS)
        to[f] = room.all[f] * last.a * last.inverse;
    __syncthreads();
}

static __global__ void attend_rows(const __grid_constant__ Task t, Operand q, const float *sinks) {
    begin();
    const int64_t r = blockIdx.x;
    for (int64_t h = blockIdx.y; h < q.parts; h += gridDim.y)
        attend_head(t, (float *)part_at(t.out[0], r, h), (const float *)part_at(q, r, h),
                    sinks ? sinks + h : nullptr, r, h / (q.parts / t.cache.heads));
}

// Which kernels run goes by what bindings are told apart by: rows, segments, positions rounded up.
static void launch_attend(const Task *task, const Operand &q, const unsigned char *sinks,
                          cudaStream_t stream) {
    Attention a = {q, (const float *)sinks, false};
    if (launch_attend_spread(task, a, false, stream) || launch_attend_alone(task, a, stream) ||
        launch_attend_tensor(task, a, stream))
        return;
    if (task->rows - task->segs >= MANY_ROWS - 1) { // else no segment has so many
        a.is_mixed = task->segs > 1;
        const bool is_done = !a.is_mixed || launch_attend_few(task, a, stream);
        if (is_done && launch_attend_many(task, a, stream)) return;
        a.is_mixed = false;
    }
    if (launch_attend_few(task, a, stream)) return;
    const dim3 grid(grid_of(task->rows), grid_of(q.parts, 65535));
    const size_t bytes = (size_t)(task->cache.k_size + 2 * task->cache.v_size) * sizeof(float);
    (void)allow_shared(attend_rows, bytes);
    start(attend_rows, grid, THREADS, bytes, stream, *task, q, (const float *)sinks);
}

// q (T, H, E), cache, table, sinks? (H)
LAUNCHER(attend) { launch_attend(task, task->in[0], task->in[3].data, stream); }
// The queries are those of attention_turn, or turned on the way.
LAUNCHER(attention_attend) {
    const Attention a = {task->in[0], (const float *)task->in[8].data, false};
    if (!launch_attend_spread(task, a, true, stream))
        launch_attend(task, task->temp[0], task->in[8].data, stream);
}
