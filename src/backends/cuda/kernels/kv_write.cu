// Keys and values of this step's rows go into the cache; queries are turned.
#include "kernels.cuh"
#include "pages.cuh"
#include "turn.cuh"

constexpr int THREADS = 128;

// Which inputs a kernel has; -1: none.
struct Writing {
    int k, v, angles, norm; // of the key
};

// A block of threads for each row and head of keys; `turned` holds a head.
static __device__ inline void write_head(const Task &t, const Writing &w, int64_t r, int64_t h,
                                         float *turned, float *room) {
    const qn_cache_view &c = t.cache;
    if (t.step->row_seg[r] < 0) return;
    const int64_t position = position_of(t.step, r), slot = position % QN_PAGE_ROWS;
    unsigned char *page = find_page(t, t.step->row_seg[r], position / QN_PAGE_ROWS);
    if (!page) return;
    const float *k = (const float *)part_at(t.in[w.k], r, h);
    const float *v = (const float *)part_at(t.in[w.v], r, h);
    if (w.angles >= 0) {
        turn_head(turned, k, (const float *)input_at(t, w.angles, r),
                  (const float *)t.in[w.norm].data, c.k_size, t.attrs, room);
        k = turned;
    }
    store_kv(key_at(c, page, h, slot), c.type, k, c.k_size);
    store_kv(value_at(c, page, h, slot), c.type, v, c.v_size);
    __syncthreads();
}

static __global__ void write_rows(const __grid_constant__ Task t, Writing w) {
    extern __shared__ float turned[];
    __shared__ float room[64];
    for (int64_t h = blockIdx.y; h < t.cache.heads; h += gridDim.y)
        write_head(t, w, blockIdx.x, h, turned, room);
}

static void launch_write(const Task *task, const Writing &w, cudaStream_t stream) {
    const dim3 grid(grid_of(task->rows), grid_of(task->cache.heads, 65535));
    write_rows<<<grid, THREADS, (size_t)task->cache.k_size * sizeof(float), stream>>>(*task, w);
}

// cache, k, v, table
LAUNCHER(kv_write) { launch_write(task, Writing{1, 2, -1, -1}, stream); }
// cache, k, v, table, angles, norm?
LAUNCHER(rotate_write) { launch_write(task, Writing{1, 2, 4, 5}, stream); }

// q, k, v, cache, angles, table, q_norm?, k_norm?, sinks?: the heads of keys, then those of queries,
// which go to temp 0 (T, H, E).
static __global__ void turn_rows(const __grid_constant__ Task t) {
    extern __shared__ float turned[];
    __shared__ float room[64];
    const int64_t r = blockIdx.x;
    for (int64_t h = blockIdx.y; h < t.cache.heads + t.in[0].parts; h += gridDim.y) {
        if (h < t.cache.heads) {
            write_head(t, Writing{1, 2, 4, 7}, r, h, turned, room);
            continue;
        }
        const int64_t q = h - t.cache.heads;
        turn_head((float *)part_at(t.temp[0], r, q), (const float *)part_at(t.in[0], r, q),
                  (const float *)input_at(t, 4, r), (const float *)t.in[6].data, t.in[0].width,
                  t.attrs, room);
    }
}

LAUNCHER(attention_turn) {
    const dim3 grid(grid_of(task->rows), grid_of(task->cache.heads + task->in[0].parts, 65535));
    turn_rows<<<grid, THREADS, (size_t)task->cache.k_size * sizeof(float), stream>>>(*task);
}
