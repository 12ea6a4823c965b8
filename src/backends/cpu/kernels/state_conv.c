// Causal convolution of each channel over the last taps.
//
// out = fma chain over the taps from 0, oldest first. A piece is a run of channels of some
// segments.
#include "backends/cpu/kernels/slot_segment.h"

#include <string.h>

typedef struct conv_job {
    const qn_task *task;
    int64_t first, n;       // channels of this piece
    int64_t channels, taps; // C, N
    float *w;               // (N, n)
    float *tail;            // (N - 1, n) the rows before
} conv_job;

// A new row pushes out the oldest. `row` has all channels.
static void push(const conv_job *job, const float *row) {
    const int64_t kept = job->taps - 1, n = job->n;
    if (kept == 0) return;
    memmove(job->tail, job->tail + n, (size_t)((kept - 1) * n) * sizeof(float));
    memcpy(job->tail + (kept - 1) * n, row + job->first, (size_t)n * sizeof(float));
}

// Row t of the segment, or one of those before it.
static const float *row_at(const conv_job *job, const segment *s, int64_t t) {
    if (t < 0) return job->tail + (job->taps - 1 + t) * job->n;
    return (const float *)row_of(&job->task->in[0], s->first + t) + job->first;
}

// As most models have it: four taps, without a sum in memory.
static void conv_row_4(const conv_job *job, const segment *s, float *out, int64_t t) {
    const int64_t n = job->n;
    const float *w0 = job->w, *w1 = w0 + n, *w2 = w1 + n, *w3 = w2 + n;
    const float *x0 = row_at(job, s, t - 3), *x1 = row_at(job, s, t - 2);
    const float *x2 = row_at(job, s, t - 1), *x3 = row_at(job, s, t);
    for (int64_t i = 0; i < n; i++) {
        float sum = __builtin_fmaf(w0[i], x0[i], 0.0f);
        sum = __builtin_fmaf(w1[i], x1[i], sum);
        sum = __builtin_fmaf(w2[i], x2[i], sum);
        out[i] = __builtin_fmaf(w3[i], x3[i], sum);
    }
}

static void conv_row(const conv_job *job, const segment *s, float *out, int64_t t) {
    const int64_t n = job->n, taps = job->taps;
    if (taps == 4) {
        conv_row_4(job, s, out, t);
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    for (int64_t j = 0; j < taps; j++) {
        const float *w = job->w + j * n, *x = row_at(job, s, t - (taps - 1) + j);
        for (int64_t i = 0; i < n; i++) out[i] = __builtin_fmaf(w[i], x[i], out[i]);
    }
}

// The tail between the slot, (N - 1, C), and the job.
static void load_tail(const conv_job *job, const segment *s) {
    const size_t bytes = (size_t)job->n * sizeof(float);
    for (int64_t j = 0; j < job->taps - 1; j++) {
        if (s->is_new)
            memset(job->tail + j * job->n, 0, bytes);
        else
            memcpy(job->tail + j * job->n, s->state + j * job->channels + job->first, bytes);
    }
}

// The tail after `rows` rows of the segment goes to its slot.
static void store_tail(const conv_job *job, const segment *s, int64_t rows) {
    for (int64_t j = 0; j < job->taps - 1; j++)
        memcpy(s->state + j * job->channels + job->first,
               row_at(job, s, rows - (job->taps - 1) + j), (size_t)job->n * sizeof(float));
}

static void conv_segment(const conv_job *job, int64_t seg) {
    const qn_task *task = job->task;
    const segment s = open_segment(task, seg);
    const int64_t log_size = task->slots->log_size;
    load_tail(job, &s);
    for (int64_t i = 0; i < s.accept; i++) push(job, s.log + i * log_size);
    store_tail(job, &s, s.commit);
    for (int64_t t = 0; t < s.rows; t++)
        conv_row(job, &s, (float *)row_of(&task->out[0], s.first + t) + job->first, t);
    for (int64_t t = s.commit; t < s.rows && t - s.commit < task->slots->log_rows; t++)
        memcpy(s.log + (t - s.commit) * log_size + job->first, row_at(job, &s, t),
               (size_t)job->n * sizeof(float));
}

// The weights of a run of channels, (N, n), from (C, N).
static void turn_weights(const conv_job *job, const float *w) {
    const int64_t n = job->n, taps = job->taps;
    float *to = job->w;
    if (taps == 4) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = w[4 * i];
            to[n + i] = w[4 * i + 1];
            to[2 * n + i] = w[4 * i + 2];
            to[3 * n + i] = w[4 * i + 3];
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < taps; j++) to[j * n + i] = w[i * taps + j];
    }
}

// x (T, C), w (C, N), state, table
void QN_FN(conv)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_step *step = task->step;
    const int64_t channels = task->in[0].width, taps = task->in[1].width;
    const qn_range cut = qn_cpu_cut_conv(task, piece);
    const conv_job job = {.task = task,
                          .first = cut.first,
                          .n = cut.end - cut.first,
                          .channels = channels,
                          .taps = taps,
                          .w = scratch,
                          .tail = (float *)scratch + taps * (cut.end - cut.first)};
    turn_weights(&job, (const float *)task->in[1].data + cut.first * taps);
    const int64_t first_seg = qn_cpu_turn_conv(task, piece);
    for (int64_t seg = first_seg; seg < step->n_segs; seg += QN_SEG_TURNS) conv_segment(&job, seg);
    for (int64_t r = 0; first_seg == 0 && r < task->rows; r++) {
        if (is_inert(step, r))
            memset((float *)row_of(&task->out[0], r) + job.first, 0, (size_t)job.n * sizeof(float));
    }
}
