// Element by element: functions of one number, sums and products of two.
#include "kernels.cuh"

constexpr int THREADS = 256;

// A thread for each number of a row, blocks over rows.
template <typename F> static __global__ void map_rows(const __grid_constant__ Task t, F f) {
    begin();
    const int64_t n = t.in[0].parts * t.in[0].width;
    for (int64_t r = blockIdx.y; r < t.rows; r += gridDim.y) {
        const float *x = floats_at(t.in[0], r);
        float *to = floats_at(t.out[0], r);
        for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n;
             i += gridDim.x * (int64_t)THREADS)
            to[i] = f(x[i], t.attrs);
    }
}

static dim3 grid_of_rows(const Task *t) {
    const int64_t n = t->in[0].parts * t->in[0].width;
    return dim3(grid_of(ceil_div(n, (int64_t)THREADS)), grid_of(t->rows, 65535));
}

#define MAP(name, value)                                                                           \
    struct name##_fn {                                                                             \
        __device__ float operator()(float x, const qn_attrs &attrs) const {                        \
            (void)attrs;                                                                           \
            return value;                                                                          \
        }                                                                                          \
    };                                                                                             \
    LAUNCHER(name) {                                                                               \
        start(map_rows<name##_fn>, grid_of_rows(task), THREADS, 0, stream, *task, name##_fn());    \
    }

MAP(scale, x *attrs.scale)
MAP(silu, math_silu(x))
MAP(gelu, math_gelu(x))
MAP(gelu_erf, math_gelu_erf(x))
MAP(sigmoid, math_sigmoid(x))
MAP(softplus, math_softplus(x))
MAP(softcap, attrs.cap *math_tanh(x / attrs.cap))

// b may have one part, or as many as divide those of a; and one number in place of a part.
template <bool is_sum> static __global__ void pair_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &a = t.in[0], &b = t.in[1];
    const int64_t n = a.parts * a.width;
    for (int64_t r = blockIdx.y; r < t.rows; r += gridDim.y) {
        const float *x = floats_at(a, r), *y = floats_at(b, r);
        float *to = floats_at(t.out[0], r);
        for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n;
             i += gridDim.x * (int64_t)THREADS) {
            const int64_t p = i / a.width % b.parts, k = i % a.width;
            const float other = y[p * b.width + (b.width == 1 ? 0 : k)];
            to[i] = is_sum ? x[i] + other : x[i] * other;
        }
    }
}

LAUNCHER(add) { start(pair_rows<true>, grid_of_rows(task), THREADS, 0, stream, *task); }
LAUNCHER(mul) { start(pair_rows<false>, grid_of_rows(task), THREADS, 0, stream, *task); }
