// Keys and values of this step's rows go into the cache; queries are turned. A warp has a head of a
// row.
#include "attention.cuh"
#include "kernels.cuh"
#include "turn.cuh"

constexpr int WARPS = 4;

// Which inputs a kernel has; -1: none.
struct Writing {
    int k, v, angles, norm; // of the key
};

// Calls with(number), where number(i) is the number i of a head after norm and turn. SIZE: of the
// head, where it is known; lane l asks for numbers l, l + 32, ... alone.
template <int SIZE, typename With>
static __device__ inline void turned(const Task &t, int angles, int norm, const float *x, int64_t r,
                                     int64_t size, With with) {
    const float *turns = (const float *)input_at(t, angles, r);
    const float *weight = (const float *)t.in[norm].data;
    if constexpr (SIZE > 0) {
        __shared__ float rooms[WARPS][SIZE];
        float *room = rooms[threadIdx.y], y[SIZE / WARP];
        turn_head<SIZE>(y, x, turns, weight, (int)t.attrs.rotate / 2, room, t.attrs);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SIZE / WARP; i++) room[threadIdx.x + WARP * i] = y[i];
        with([&](int64_t i) { return room[i]; });
    } else {
        const Turned head(x, turns, weight, size, t.attrs);
        with([&](int64_t i) { return head.at(i); });
    }
}

template <int SIZE>
static __device__ inline void write_head(const Task &t, const Writing &w, int64_t r, int64_t h) {
    const qn_cache_view &c = t.cache;
    if (t.step->row_seg[r] < 0) return;
    const int64_t position = position_of(t.step, r), slot = position % QN_PAGE_ROWS;
    unsigned char *page = find_page(t, t.step->row_seg[r], position / QN_PAGE_ROWS);
    if (!page) return;
    const float *k = (const float *)part_at(t.in[w.k], r, h);
    const float *v = (const float *)part_at(t.in[w.v], r, h);
    const auto store_key = [&](auto number) {
        store_kv(key_at(c, page, h, slot), c.type, c.k_size, number);
    };
    if (w.angles >= 0)
        turned<SIZE>(t, w.angles, w.norm, k, r, c.k_size, store_key);
    else
        store_key([&](int64_t i) { return k[i]; });
    store_kv(value_at(c, page, h, slot), c.type, c.v_size, [&](int64_t i) { return v[i]; });
}

template <int SIZE> static __global__ void write_rows(const __grid_constant__ Task t, Writing w) {
    begin();
    const int64_t stride = (int64_t)gridDim.y * WARPS;
    for (int64_t h = (int64_t)blockIdx.y * WARPS + threadIdx.y; h < t.cache.heads; h += stride)
        write_head<SIZE>(t, w, blockIdx.x, h);
}

static dim3 grid_of_heads(int64_t rows, int64_t heads) {
    return dim3(grid_of(rows), grid_of(ceil_div(heads, (int64_t)WARPS), 65535));
}

// Calls with(Constant<size>), with 0 for sizes that have no code of their own.
template <typename With> static void with_size(int64_t size, With with) {
    if (size == 64) return with(Constant<64>());
    if (size == 128) return with(Constant<128>());
    if (size == 256) return with(Constant<256>());
    with(Constant<0>());
}

static void launch_write(const Task *task, const Writing &w, cudaStream_t stream) {
    const dim3 grid = grid_of_heads(task->rows, task->cache.heads);
    with_size(task->cache.k_size, [&](auto size) {
        start(write_rows<decltype(size)::value>, grid, dim3(WARP, WARPS), 0, stream, *task, w);
    });
}

// cache, k, v, table
LAUNCHER(kv_write) { launch_write(task, Writing{1, 2, -1, -1}, stream); }
// cache, k, v, table, angles, norm?
LAUNCHER(rotate_write) { launch_write(task, Writing{1, 2, 4, 5}, stream); }

// q, k, v, cache, angles, table, q_norm?, k_norm?, sinks?: the heads of keys, then those of
// queries, which go to temp 0 (T, H, E).
template <int SIZE> static __global__ void turn_rows(const __grid_constant__ Task t) {
    begin();
    const int64_t r = blockIdx.x, stride = (int64_t)gridDim.y * WARPS;
    const int64_t keys = t.cache.heads, heads = keys + t.in[0].parts;
    for (int64_t h = (int64_t)blockIdx.y * WARPS + threadIdx.y; h < heads; h += stride) {
        if (h < keys) {
            write_head<SIZE>(t, Writing{1, 2, 4, 7}, r, h);
            continue;
        }
        float *to = (float *)part_at(t.temp[0], r, h - keys);
        const int64_t size = t.in[0].width;
        turned<SIZE>(t, 4, 6, (const float *)part_at(t.in[0], r, h - keys), r, size,
                     [&](auto number) {
                         for (int64_t i = threadIdx.x; i < size; i += WARP) to[i] = number(i);
                     });
    }
}

// Nothing is left to do where attention_attend does it on the way.
LAUNCHER(attention_turn) {
    if (can_attend_spread(task, task->in[0])) return;
    const dim3 grid = grid_of_heads(task->rows, task->cache.heads + task->in[0].parts);
    const int64_t size = task->cache.k_size == task->in[0].width ? task->cache.k_size : 0;
    with_size(size, [&](auto of) {
        start(turn_rows<decltype(of)::value>, grid, dim3(WARP, WARPS), 0, stream, *task);
    });
}
