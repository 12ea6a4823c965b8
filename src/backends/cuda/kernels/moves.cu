// Copies of rows and parts of rows, and the embedding.
#include "kernels.cuh"
#include "weights.cuh"

constexpr int THREADS = 256;

// Number i of row r of the result is what from(r, i) says.
template <typename From>
static __global__ void fill_rows(const __grid_constant__ Task t, From from) {
    begin();
    const int64_t n = t.out[0].parts * t.out[0].width;
    for (int64_t r = blockIdx.y; r < t.rows; r += gridDim.y) {
        float *to = floats_at(t.out[0], r);
        for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n;
             i += gridDim.x * (int64_t)THREADS)
            to[i] = from(t, r, i);
    }
}

#define FILL(name, ...)                                                                            \
    struct name##_fn {                                                                             \
        __device__ float operator()(const Task &t, int64_t r, int64_t i) const __VA_ARGS__         \
    };                                                                                             \
    LAUNCHER(name) {                                                                               \
        const int64_t n = task->out[0].parts * task->out[0].width;                                 \
        const dim3 grid(grid_of(ceil_div(n, (int64_t)THREADS)), grid_of(task->rows, 65535));       \
        start(fill_rows<name##_fn>, grid, THREADS, 0, stream, *task, name##_fn());                 \
    }

// A slice of the last dimension of each part, or a run of whole parts.
FILL(narrow, {
    const Operand &x = t.in[0], &out = t.out[0];
    const float *from = floats_at(x, r);
    if (x.width == out.width)
        return from[t.attrs.start * (out.parts * out.width / t.attrs.length) + i];
    return from[i / out.width * x.width + t.attrs.start + i % out.width];
})

// Part by part along the last dimension, else all of a and then all of b.
FILL(concat, {
    const Operand &a = t.in[0], &b = t.in[1], &out = t.out[0];
    const int64_t runs = a.width != out.width ? out.parts : 1;
    const int64_t n_a = a.parts * a.width / runs, n_b = b.parts * b.width / runs;
    const int64_t run = i / (n_a + n_b), k = i % (n_a + n_b);
    return k < n_a ? floats_at(a, r)[run * n_a + k] : floats_at(b, r)[run * n_b + k - n_a];
})

FILL(copy, { return floats_at(t.in[0], r)[i]; })
FILL(gather_rows, { return floats_at(t.in[0], *(const int32_t *)input_at(t, 1, r))[i]; })

// ids (T), table (V, D), extra? (N, D), extra_row? (T)
FILL(embed, {
    const Operand &table = t.in[1];
    if (t.step->row_seg[r] < 0) return 0.0f;
    const int32_t *row = (const int32_t *)input_at(t, 3, r);
    const float *extra = (const float *)input_at(t, 2, 0);
    if (row && extra && *row >= 0) return extra[*row * table.width + i];
    const int32_t id = *(const int32_t *)input_at(t, 0, r);
    return weight_at(weight_row(table, id), i);
})
