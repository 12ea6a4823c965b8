// Ops that keep a state for each sequence: causal convolution, gated delta rule.
//
// A slot holds the state after the last row that is certain, and a log of the rows since. A step
// applies the first seg_accept logged rows, then the first seg_commit rows of the segment, and
// stores that; the rows after them run on a copy and are logged, the first at log index 0.
#include "kernels.cuh"

constexpr int THREADS = 128;

struct Segment {
    float *state, *log;
    bool is_new;         // starts from zeros
    int64_t accept;      // logged rows that are applied
    int64_t first, rows; // of the step
    int64_t commit;      // rows that change the slot
};

static __device__ inline Segment open_segment(const Task &t, int64_t seg) {
    const qn_step *s = t.step;
    unsigned char *slot = t.slots.slots + s->seg_slot[seg] * t.slots.slot_bytes;
    const int64_t rows = s->seg_row[seg + 1] - s->seg_row[seg];
    const bool is_new = s->seg_past[seg] == 0;
    const int64_t commit = s->seg_commit ? s->seg_commit[seg] : 0;
    return {(float *)(slot + t.slots.offset),
            (float *)(slot + t.slots.log_offset),
            is_new,
            is_new ? 0 : s->seg_accept[seg],
            s->seg_row[seg],
            rows,
            commit < rows ? commit : rows};
}

// Rows that belong to no segment give zeros.
static __global__ void clear_padding(const __grid_constant__ Task t) {
    begin();
    const int64_t n = t.out[0].parts * t.out[0].width;
    for (int64_t r = blockIdx.x; r < t.rows; r += gridDim.x) {
        if (t.step->row_seg[r] >= 0) continue;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) floats_at(t.out[0], r)[i] = 0;
    }
}

// --- conv: x (T, C), w (C, N), state (N - 1, C), table -------------------------------------------

// A thread has a channel; the rows before, the newest last, are in registers.
static __global__ void conv_segments(const __grid_constant__ Task t) {
    begin();
    constexpr int MAX_TAPS = 16;
    const int64_t channels = t.in[0].width, c = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int taps = (int)t.in[1].width, kept = taps - 1;
    const float *w = (const float *)t.in[1].data + c * taps;
    if (c >= channels) return;
    const Segment s = open_segment(t, blockIdx.y);
    float tail[MAX_TAPS];
    const auto push = [&](float x) {
        for (int j = 0; j + 1 < kept; j++) tail[j] = tail[j + 1];
        if (kept > 0) tail[kept - 1] = x;
    };
    for (int j = 0; j < kept; j++) tail[j] = s.is_new ? 0 : s.state[j * channels + c];
    for (int64_t i = 0; i < s.accept; i++) push(s.log[i * t.slots.log_size + c]);
    for (int64_t i = 0; i <= s.rows; i++) {
        if (i == s.commit)
            for (int j = 0; j < kept; j++) s.state[j * channels + c] = tail[j];
        if (i == s.rows) break;
        const float x = floats_at(t.in[0], s.first + i)[c];
        float sum = 0;
        for (int j = 0; j < taps; j++) sum = fmaf(w[j], j < kept ? tail[j] : x, sum);
        floats_at(t.out[0], s.first + i)[c] = sum;
        if (i >= s.commit && i - s.commit < t.slots.log_rows)
            s.log[(i - s.commit) * t.slots.log_size + c] = x;
        push(x);
    }
}

LAUNCHER(conv) {
    const dim3 grid(grid_of(ceil_div(task->in[0].width, (int64_t)THREADS)), grid_of(task->segs));
    if (task->segs) start(conv_segments, grid, THREADS, 0, stream, *task);
    start(clear_padding, grid_of(task->rows, 1024), THREADS, 0, stream, *task);
}

// --- delta: q, k (T, G, E), v (T, H, F), g, beta (T, H), state (H, E, F), table ------------------

struct Token {
    const float *q, *k; // (E)
    float v, g, beta;   // v of the thread's column
    float *out;         // NULL: the result is not asked for
};

// One token changes column j of S (E, F), which lies in `state`, one number for each E.
template <int STEP>
static __device__ inline void apply_token(float *state, int64_t n, float scale, const Token &t) {
    const float decay = math_exp(t.g);
    float known = 0, out = 0;
    for (int64_t i = 0; i < n; i++) {
        const float s = state[i * STEP] * decay;
        state[i * STEP] = s;
        known = fmaf(s, t.k[i], known);
    }
    const float change = (t.v - known) * t.beta;
    for (int64_t i = 0; i < n; i++) {
        const float s = fmaf(t.k[i], change, state[i * STEP]);
        state[i * STEP] = s;
        if (t.out) out = fmaf(s, t.q[i] * scale, out);
    }
    if (t.out) *t.out = out;
}

// A thread has a column of a head's state, in shared memory: (E, THREADS).
template <int COLUMNS> static __global__ void delta_segments(const __grid_constant__ Task t) {
    begin();
    extern __shared__ float column[];
    const int64_t key_heads = t.in[1].parts, heads = t.in[2].parts;
    const int64_t k_size = t.in[1].width, v_size = t.in[2].width;
    const int64_t h = blockIdx.x, j = blockIdx.z * (int64_t)COLUMNS + threadIdx.x;
    const int64_t kh = t.attrs.heads == QN_WORD_tiled ? h % key_heads : h / (heads / key_heads);
    if (j >= v_size) return;
    const Segment s = open_segment(t, blockIdx.y);
    float *kept = s.state + h * k_size * v_size + j, *state = column + threadIdx.x;
    for (int64_t i = 0; i < k_size; i++) state[i * COLUMNS] = s.is_new ? 0 : kept[i * v_size];
    for (int64_t i = 0; i < s.accept; i++) {
        const float *row = s.log + i * t.slots.log_size, *v = row + key_heads * k_size;
        const float *g = v + heads * v_size;
        apply_token<COLUMNS>(
            state, k_size, 0,
            {nullptr, row + kh * k_size, v[h * v_size + j], g[h], g[heads + h], nullptr});
    }
    for (int64_t i = 0; i <= s.rows; i++) {
        if (i == s.commit)
            for (int64_t e = 0; e < k_size; e++) kept[e * v_size] = state[e * COLUMNS];
        if (i == s.rows) break;
        const int64_t r = s.first + i;
        apply_token<COLUMNS>(state, k_size, t.attrs.scale,
                             {(const float *)part_at(t.in[0], r, kh),
                              (const float *)part_at(t.in[1], r, kh),
                              ((const float *)part_at(t.in[2], r, h))[j], floats_at(t.in[3], r)[h],
                              floats_at(t.in[4], r)[h], (float *)part_at(t.out[0], r, h) + j});
    }
}

// Rows that may be rolled back are logged: k, v, g, beta, after all have read the log.
static __global__ void delta_log(const __grid_constant__ Task t) {
    begin();
    const Segment s = open_segment(t, blockIdx.y);
    const int64_t i = s.commit + blockIdx.x;
    if (i >= s.rows) return;
    float *to = s.log + blockIdx.x * t.slots.log_size;
    for (int k = 1; k <= 4; k++) {
        const int64_t n = t.in[k].parts * t.in[k].width;
        const float *from = floats_at(t.in[k], s.first + i);
        for (int64_t x = threadIdx.x; x < n; x += blockDim.x) to[x] = from[x];
        to += n;
    }
}

LAUNCHER(delta) {
    constexpr int COLUMNS = 32;
    const size_t bytes = (size_t)task->in[1].width * COLUMNS * sizeof(float);
    const dim3 grid(grid_of(task->in[2].parts), grid_of(task->segs, 65535),
                    grid_of(ceil_div(task->in[2].width, (int64_t)COLUMNS), 65535));
    if (task->segs) {
        start(delta_segments<COLUMNS>, grid, COLUMNS, bytes, stream, *task);
        if (task->slots.log_rows > 0)
            start(delta_log, dim3((unsigned)task->slots.log_rows, grid_of(task->segs, 65535)),
                  THREADS, 0, stream, *task);
    }
    start(clear_padding, grid_of(task->rows, 1024), THREADS, 0, stream, *task);
}
