// Matmuls of a few rows; see few.cuh. Rows beyond ROWS are done by more blocks of threads.
#include "few.cuh"
#include "few_launch.cuh"

constexpr int THREADS = FEW_WARPS * WARP;
constexpr int PAIRS = FEW_OUTS / 2; // outputs of a gate, and as many of what it gates

// Row i of x; parts count as rows. Most have one part: then nothing is divided, which costs as much
// as the products of a block.
static __device__ inline unsigned char *at_row(const Operand &x, int64_t i) {
    if (x.parts == 1) return x.data + i * x.stride;
    const uint32_t r = (uint32_t)i / (uint32_t)x.parts, p = (uint32_t)i % (uint32_t)x.parts;
    return part_at(x, r, p);
}

template <int ROWS>
static __device__ inline void rows_at(const unsigned char *to[ROWS], const Operand &x,
                                      int64_t first, int64_t n) {
    for (int r = 0; r < ROWS; r++) to[r] = at_row(x, first + r < n ? first + r : n - 1);
}

// A thread that has a result: its row of all, and its output among the block's four.
template <int ROWS> struct Place {
    int64_t row;
    int output;
    bool is_there;
    __device__ Place(int64_t first, int64_t n)
        : row(first + threadIdx.x / FEW_OUTS), output(threadIdx.x % FEW_OUTS),
          is_there(threadIdx.x < ROWS * FEW_OUTS && row < n) {}
};

template <int ROWS>
static __global__ void __launch_bounds__(THREADS, ROWS == 1 ? 5 : 3)
    few_project(const __grid_constant__ Task t) {
    __shared__ float room[FEW_BLOCKS * ROWS * FEW_OUTS];
    const Operand &x = t.in[0];
    const int64_t n = t.rows * x.parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)FEW_OUTS;
    int64_t at = o;
    int i = 1;
    while (at >= t.in[i].parts) at -= t.in[i++].parts;
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    const float y = few_dots_of<ROWS>(t.in[i], at, rows, room);
    const Place<ROWS> place(first, n);
    if (place.is_there) ((float *)at_row(t.out[0], place.row))[o + place.output] = y;
}

// Two outputs for each block of threads: see few_pairs_of.
template <int ROWS>
static __global__ void __launch_bounds__(THREADS, ROWS == 1 ? 5 : 3)
    few_gated(const __grid_constant__ Task t) {
    __shared__ float room[FEW_BLOCKS * ROWS * FEW_OUTS];
    const Operand &x = t.in[0];
    const int64_t n = t.rows * x.parts, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)PAIRS;
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    float b;
    const float a = few_pairs_of<ROWS>(b, t.in[1], t.in[2], o, rows, room);
    const Place<ROWS> place(first, n);
    if (place.is_there && place.output < PAIRS)
        ((float *)at_row(t.out[0], place.row))[o + place.output] = activate(a, t.attrs.act) * b;
}

template <int ROWS>
static __global__ void __launch_bounds__(THREADS, ROWS == 1 ? 5 : 3)
    few_head(const __grid_constant__ Task t) {
    __shared__ float room[FEW_BLOCKS * ROWS * FEW_OUTS];
    const Operand &x = t.in[0], &w = t.in[1];
    const int64_t n = t.rows, first = blockIdx.y * (int64_t)ROWS;
    const int64_t o = blockIdx.x * (int64_t)FEW_OUTS;
    const int64_t computed = t.step->computed > 0 ? t.step->computed : w.parts;
    if (o >= computed) return;
    const unsigned char *rows[ROWS];
    rows_at<ROWS>(rows, x, first, n);
    const float y = few_dots_of<ROWS>(w, o, rows, room), cap = t.attrs.cap;
    const Place<ROWS> place(first, n);
    if (place.is_there && o + place.output < computed)
        floats_at(t.out[0], place.row)[o + place.output] = cap > 0 ? cap * math_tanh(y / cap) : y;
}

// Experts: a row for each choice. temp: ids, weights, gated, packed, y.
static __global__ void __launch_bounds__(THREADS, 5)
    few_experts_up(const __grid_constant__ Task t) {
    __shared__ float room[FEW_BLOCKS * FEW_OUTS];
    const Operand &out = t.temp[2];
    const int64_t r = blockIdx.y / out.parts, k = blockIdx.y % out.parts;
    const int64_t o = blockIdx.x * (int64_t)PAIRS;
    const int64_t row = ((const int32_t *)row_at(t.temp[0], r))[k] * out.width + o;
    const unsigned char *x[1] = {row_at(t.in[0], r)};
    float b;
    const float a = few_pairs_of<1>(b, t.in[2], t.in[3], row, x, room);
    if (threadIdx.x < PAIRS)
        ((float *)part_at(out, r, k))[o + threadIdx.x] = activate(a, t.attrs.act) * b;
}

static __global__ void __launch_bounds__(THREADS, 5)
    few_experts_down(const __grid_constant__ Task t) {
    __shared__ float room[FEW_BLOCKS * FEW_OUTS];
    const Operand &out = t.temp[4];
    const int64_t r = blockIdx.y / out.parts, k = blockIdx.y % out.parts;
    const int64_t o = blockIdx.x * (int64_t)FEW_OUTS;
    const int64_t row = ((const int32_t *)row_at(t.temp[0], r))[k] * out.width + o;
    const unsigned char *x[1] = {part_at(t.temp[3], r, k)};
    const float y = few_dots_of<1>(t.in[4], row, x, room);
    if (threadIdx.x < FEW_OUTS) ((float *)part_at(out, r, k))[o + threadIdx.x] = y;
}

// --- launches ------------------------------------------------------------------------------------

static dim3 grid_for(int64_t outputs, int64_t rows, int per) {
    return dim3(grid_of(outputs / FEW_OUTS), grid_of(ceil_div(rows, (int64_t)per), 65535));
}

#define BY_ROWS(kernel, outputs, n)                                                                \
    do {                                                                                           \
        if ((n) == 1)                                                                              \
            kernel<1><<<grid_for(outputs, n, 1), THREADS, 0, stream>>>(*task);                     \
        else if ((n) == 2)                                                                         \
            kernel<2><<<grid_for(outputs, n, 2), THREADS, 0, stream>>>(*task);                     \
        else if ((n) <= 4)                                                                         \
            kernel<4><<<grid_for(outputs, n, 4), THREADS, 0, stream>>>(*task);                     \
        else                                                                                       \
            kernel<8><<<grid_for(outputs, n, 8), THREADS, 0, stream>>>(*task);                     \
    } while (0)

static bool is_few(const Operand &x, int64_t n) {
    return x.form == QN_WORD_i12_256 && n <= 65535 * (int64_t)8;
}

bool few_project_launch(const Task *task, cudaStream_t stream) {
    const int64_t n = task->rows * task->in[0].parts;
    if (!is_few(task->in[0], n)) return false;
    for (int i = 1; i < QN_MAX_IN && task->in[i].data; i++) {
        if (!few_takes(task->in[i], task->in[i].parts)) return false;
    }
    BY_ROWS(few_project, task->out[0].width, n);
    return true;
}

bool few_gated_launch(const Task *task, cudaStream_t stream) {
    const int64_t n = task->rows * task->in[0].parts;
    if (!is_few(task->in[0], n) || !few_takes(task->in[1], task->in[1].parts) ||
        task->in[1].type != task->in[2].type)
        return false;
    BY_ROWS(few_gated, 2 * task->out[0].width, n);
    return true;
}

bool few_head_launch(const Task *task, cudaStream_t stream) {
    if (!is_few(task->in[0], task->rows) || !few_takes(task->in[1], task->in[1].parts))
        return false;
    BY_ROWS(few_head, task->in[1].parts, task->rows);
    return true;
}

static bool is_few_experts(const Task *task, const Operand &x, const Operand &out) {
    return x.form == QN_WORD_i12_256 && task->rows * out.parts <= 65535 &&
           out.width % FEW_OUTS == 0;
}

bool few_experts_up_launch(const Task *task, cudaStream_t stream) {
    const Operand &out = task->temp[2];
    if (!is_few_experts(task, task->in[0], out) || !few_takes(task->in[2], out.width) ||
        task->in[2].type != task->in[3].type)
        return false;
    few_experts_up<<<grid_for(2 * out.width, task->rows * out.parts, 1), THREADS, 0, stream>>>(
        *task);
    return true;
}

bool few_experts_down_launch(const Task *task, cudaStream_t stream) {
    const Operand &out = task->temp[4];
    if (!is_few_experts(task, task->temp[3], out) || !few_takes(task->in[4], out.width))
        return false;
    few_experts_down<<<grid_for(out.width, task->rows * out.parts, 1), THREADS, 0, stream>>>(*task);
    return true;
}
