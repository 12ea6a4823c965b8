// Positions: cosines and sines, and pairs that turn by them.
#include "kernels.cuh"
#include "turn.cuh"

constexpr int THREADS = 128;

// frequencies (N), table -> (T, 2, N)
static __global__ void find_angles(const __grid_constant__ Task t) {
    begin();
    const int64_t n = t.in[0].width;
    float *to = floats_at(t.out[0], blockIdx.x);
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const turn a = angle_of(t, (const float *)t.in[0].data, blockIdx.x, i);
        to[i] = a.cosine;
        to[n + i] = a.sine;
    }
}

LAUNCHER(angles) { start(find_angles, grid_of(task->rows), THREADS, 0, stream, *task); }

// x (T, H, E), angles (T, 2, N), norm? (E)
static __global__ void rotate_heads(const __grid_constant__ Task t) {
    begin();
    const int64_t r = blockIdx.x, n = t.in[0].width;
    for (int64_t h = blockIdx.y; h < t.in[0].parts; h += gridDim.y) {
        float *to = (float *)part_at(t.out[0], r, h);
        const Turned head((const float *)part_at(t.in[0], r, h), (const float *)input_at(t, 1, r),
                          (const float *)t.in[2].data, n, t.attrs);
        for (int64_t i = threadIdx.x; i < n; i += WARP) to[i] = head.at(i);
    }
}

static dim3 grid_of_heads(const Task *t) {
    return dim3(grid_of(t->rows), grid_of(t->in[0].parts, 65535));
}

LAUNCHER(rotate) { start(rotate_heads, grid_of_heads(task), WARP, 0, stream, *task); }

// x (T, H, E), frequencies, table
static __global__ void rope_heads(const __grid_constant__ Task t) {
    begin();
    const int64_t r = blockIdx.x, pairs = t.attrs.rotate / 2;
    for (int64_t h = blockIdx.y; h < t.in[0].parts; h += gridDim.y) {
        const float *x = (const float *)part_at(t.in[0], r, h);
        float *to = (float *)part_at(t.out[0], r, h);
        for (int64_t i = threadIdx.x; i < pairs; i += THREADS) {
            const turn a = angle_of(t, (const float *)t.in[1].data, r, i);
            turn_pair(to, x, i, pairs, a.cosine, a.sine, t.attrs);
        }
        for (int64_t i = 2 * pairs + threadIdx.x; i < t.in[0].width; i += THREADS) to[i] = x[i];
    }
}

LAUNCHER(rope) { start(rope_heads, grid_of_heads(task), THREADS, 0, stream, *task); }
