// Matmuls of any type and form: a warp for each output, and up to ROWS rows at a time. Usual ones
// go to few.cu, many.cu and floats.cu.
#include "kernels.cuh"
#include "dot.cuh"
#include "few_launch.cuh"
#include "floats_launch.cuh"
#include "many_launch.cuh"

constexpr int WARPS = 4;

// Rows of x are parts of rows: part i of all is part i % parts of row i / parts.
template <int ROWS>
static __device__ inline void rows_at(const unsigned char *to[ROWS], const Operand &x,
                                      int64_t first, int64_t n) {
    for (int r = 0; r < ROWS; r++) {
        const int64_t i = first + r < n ? first + r : n - 1;
        to[r] = part_at(x, i / x.parts, i % x.parts);
    }
}

// x (T, P, I), weights in[1 ...] (O, I) -> (T, P, O + ...)
template <int ROWS> static __global__ void project_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.in[0], &out = t.out[0];
    const int64_t n = t.rows * x.parts, o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    int64_t at = o;
    int i = 1;
    if (o >= out.width) return;
    while (at >= t.in[i].parts) at -= t.in[i++].parts;
    const Operand &w = t.in[i];
    for (int64_t first = blockIdx.y * (int64_t)ROWS; first < n;
         first += gridDim.y * (int64_t)ROWS) {
        const unsigned char *rows[ROWS];
        float y[ROWS];
        rows_at<ROWS>(rows, x, first, n);
        dot_rows<ROWS>(y, rows, x.form, weight_row(w, at), w.width);
        for (int r = 0; r < ROWS && first + r < n; r++) {
            const int64_t row = (first + r) / x.parts, part = (first + r) % x.parts;
            if (threadIdx.x % WARP == 0) ((float *)part_at(out, row, part))[o] = y[r];
        }
    }
}

static dim3 grid_of_outputs(int64_t outputs, int64_t rows, int per) {
    return dim3(grid_of(ceil_div(outputs, (int64_t)WARPS)),
                grid_of(ceil_div(rows, (int64_t)per), 65535));
}

#define BY_ROWS(kernel, outputs, n)                                                                \
    do {                                                                                           \
        if ((n) == 1)                                                                              \
            start(kernel<1>, grid_of_outputs(outputs, n, 1), WARPS *WARP, 0, stream, *task);       \
        else                                                                                       \
            start(kernel<4>, grid_of_outputs(outputs, n, 4), WARPS *WARP, 0, stream, *task);       \
    } while (0)

LAUNCHER(project) {
    if (many_project_launch(task, stream) || few_project_launch(task, stream) ||
        floats_project_launch(task, stream))
        return;
    BY_ROWS(project_rows, task->out[0].width, task->rows * task->in[0].parts);
}

// x (T, P, I), gate (F, I), up (F, I) -> act(x gate') * (x up')
template <int ROWS> static __global__ void gated_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.in[0], &gate = t.in[1], &up = t.in[2], &out = t.out[0];
    const int64_t n = t.rows * x.parts, o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    if (o >= out.width) return;
    for (int64_t first = blockIdx.y * (int64_t)ROWS; first < n;
         first += gridDim.y * (int64_t)ROWS) {
        const unsigned char *rows[ROWS];
        float a[ROWS], b[ROWS];
        rows_at<ROWS>(rows, x, first, n);
        dot_rows<ROWS>(a, rows, x.form, weight_row(gate, o), gate.width);
        dot_rows<ROWS>(b, rows, x.form, weight_row(up, o), up.width);
        for (int r = 0; r < ROWS && first + r < n; r++) {
            const int64_t row = (first + r) / x.parts, part = (first + r) % x.parts;
            if (threadIdx.x % WARP == 0)
                ((float *)part_at(out, row, part))[o] = activate(a[r], t.attrs.act) * b[r];
        }
    }
}

LAUNCHER(gated) {
    if (many_gated_launch(task, stream) || few_gated_launch(task, stream) ||
        floats_gated_launch(task, stream))
        return;
    BY_ROWS(gated_rows, task->out[0].width, task->rows * task->in[0].parts);
}

// x (R, I), w (O, I) -> logits (R, O), soft capped
template <int ROWS> static __global__ void head_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.in[0], &w = t.in[1];
    const int64_t n = t.rows, o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    const int64_t computed = t.step->computed > 0 ? t.step->computed : w.parts;
    const float cap = t.attrs.cap;
    if (o >= w.parts || o >= computed) return;
    for (int64_t first = blockIdx.y * (int64_t)ROWS; first < n;
         first += gridDim.y * (int64_t)ROWS) {
        const unsigned char *rows[ROWS];
        float y[ROWS];
        rows_at<ROWS>(rows, x, first, n);
        dot_rows<ROWS>(y, rows, x.form, weight_row(w, o), w.width);
        for (int r = 0; r < ROWS && first + r < n; r++) {
            const float logit = cap > 0 ? cap * math_tanh(y[r] / cap) : y[r];
            if (threadIdx.x % WARP == 0) floats_at(t.out[0], first + r)[o] = logit;
        }
    }
}

LAUNCHER(head_logits) {
    if (many_head_launch(task, stream) || few_head_launch(task, stream) ||
        floats_head_launch(task, stream))
        return;
    BY_ROWS(head_rows, task->in[1].parts, task->rows);
}

// x (T, I) or (T, N, I), w (X, O, I), ids (T, N) -> (T, N, O)
static __global__ void grouped_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.in[0], &w = t.in[1], &out = t.out[0];
    const int64_t o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP, n = t.rows * out.parts;
    if (o >= out.width) return;
    for (int64_t i = blockIdx.y; i < n; i += gridDim.y) {
        const int64_t r = i / out.parts, k = i % out.parts;
        const int32_t expert = ((const int32_t *)row_at(t.in[2], r))[k];
        const unsigned char *row = part_at(x, r, x.parts > 1 ? k : 0);
        float y;
        dot_rows<1>(&y, &row, x.form, weight_row(w, expert * out.width + o), w.width);
        if (threadIdx.x % WARP == 0) ((float *)part_at(out, r, k))[o] = y;
    }
}

LAUNCHER(grouped) {
    const dim3 grid = grid_of_outputs(task->out[0].width, task->rows * task->out[0].parts, 1);
    start(grouped_rows, grid, WARPS * WARP, 0, stream, *task);
}

// --- experts: x (T, D), scores (T, X), gate, up (X, F, D), down (X, D, F) ------------------------
// temp: ids (T, N), weights (T, N), gated (T, N, F), the same packed, y (T, N, D).

static __global__ void experts_up_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.in[0], &gate = t.in[2], &up = t.in[3], &out = t.temp[2];
    const int64_t o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP, n = t.rows * out.parts;
    if (o >= out.width) return;
    for (int64_t i = blockIdx.y; i < n; i += gridDim.y) {
        const int64_t r = i / out.parts, k = i % out.parts;
        const int64_t expert = ((const int32_t *)row_at(t.temp[0], r))[k];
        const unsigned char *at = row_at(x, r);
        int64_t first;
        const Operand of_gate = matrix_of(gate, expert, out.width, &first);
        const Operand of_up = matrix_of(up, expert, out.width, &first);
        if (!of_gate.data) continue;
        float a, b;
        dot_rows<1>(&a, &at, x.form, weight_row(of_gate, first + o), gate.width);
        dot_rows<1>(&b, &at, x.form, weight_row(of_up, first + o), up.width);
        if (threadIdx.x % WARP == 0)
            ((float *)part_at(out, r, k))[o] = activate(a, t.attrs.act) * b;
    }
}

LAUNCHER(experts_up) {
    if (few_experts_up_launch(task, stream)) return;
    const Operand *out = &task->temp[2];
    start(experts_up_rows, grid_of_outputs(out->width, task->rows * out->parts, 1), WARPS * WARP, 0,
          stream, *task);
}

static __global__ void experts_down_rows(const __grid_constant__ Task t) {
    begin();
    const Operand &x = t.temp[3], &down = t.in[4], &out = t.temp[4];
    const int64_t o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP, n = t.rows * out.parts;
    if (o >= out.width) return;
    for (int64_t i = blockIdx.y; i < n; i += gridDim.y) {
        const int64_t r = i / out.parts, k = i % out.parts;
        const int64_t expert = ((const int32_t *)row_at(t.temp[0], r))[k];
        const unsigned char *at = part_at(x, r, k);
        int64_t first;
        const Operand of_down = matrix_of(down, expert, out.width, &first);
        if (!of_down.data) continue;
        float y;
        dot_rows<1>(&y, &at, x.form, weight_row(of_down, first + o), down.width);
        if (threadIdx.x % WARP == 0) ((float *)part_at(out, r, k))[o] = y;
    }
}

LAUNCHER(experts_down) {
    if (few_experts_down_launch(task, stream)) return;
    const Operand *out = &task->temp[4];
    start(experts_down_rows, grid_of_outputs(out->width, task->rows * out->parts, 1), WARPS * WARP,
          0, stream, *task);
}

// --- adapters: y (T, O), x (T, I), a (N, r, I), b (N, O, r) --------------------------------------

// The sum of w * x in lanes; n_lanes is 64 or 16. A warp; `room` holds 64.
static __device__ inline float dot_lanes(const WeightRow &w, const float *x, int64_t n, int n_lanes,
                                         float *room) {
    const int l = threadIdx.x % WARP;
    for (int lane = l; lane < n_lanes; lane += WARP) {
        float sum = 0;
        for (int64_t i = lane; i < n; i += n_lanes) sum = fmaf(weight_at(w, i), x[i], sum);
        room[lane] = sum;
    }
    __syncwarp();
    for (int half = n_lanes / 2; half > 0; half /= 2) {
        if (l < half) room[l] += room[l + half];
        __syncwarp();
    }
    const float sum = room[0];
    __syncwarp();
    return sum;
}

static __device__ inline int64_t adapter_of(const Task &t, int64_t r) {
    const int32_t seg = t.step->row_seg[r];
    return seg < 0 ? -1 : t.step->seg_adapter[seg];
}

static __global__ void lora_down_rows(const __grid_constant__ Task t) {
    begin();
    __shared__ float room[WARPS][64];
    const Operand &a = t.in[2];
    const int64_t rank = t.temp[0].width, j = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    if (j >= rank) return;
    for (int64_t r = blockIdx.y; r < t.rows; r += gridDim.y) {
        const int64_t adapter = adapter_of(t, r);
        if (adapter < 0) continue;
        const float u = dot_lanes(weight_row(a, adapter * rank + j), floats_at(t.in[1], r), a.width,
                                  64, room[threadIdx.x / WARP]);
        if (threadIdx.x % WARP == 0) floats_at(t.temp[0], r)[j] = u;
    }
}

LAUNCHER(lora_down) {
    start(lora_down_rows, grid_of_outputs(task->temp[0].width, task->rows, 1), WARPS * WARP, 0,
          stream, *task);
}

static __global__ void lora_up_rows(const __grid_constant__ Task t) {
    begin();
    __shared__ float room[WARPS][64];
    const Operand &b = t.in[3];
    const int64_t n_out = t.out[0].width, o = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    if (o >= n_out) return;
    for (int64_t r = blockIdx.y; r < t.rows; r += gridDim.y) {
        const int64_t adapter = adapter_of(t, r);
        float y = floats_at(t.in[0], r)[o];
        if (adapter >= 0)
            y = fmaf(t.attrs.scale,
                     dot_lanes(weight_row(b, adapter * n_out + o), floats_at(t.temp[0], r), b.width,
                               16, room[threadIdx.x / WARP]),
                     y);
        if (threadIdx.x % WARP == 0) floats_at(t.out[0], r)[o] = y;
    }
}

LAUNCHER(lora_up) {
    start(lora_up_rows, grid_of_outputs(task->out[0].width, task->rows, 1), WARPS * WARP, 0, stream,
          *task);
}
