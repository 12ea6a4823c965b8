// Causal convolution of each channel over the last taps.
//
// out = fma chain over the taps from 0, oldest first. A piece is a run of channels of some segments.
#include "backends/cpu/level/state.h"

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

static void conv_row(const conv_job *job, float *out, const float *x) {
    const int64_t n = job->n;
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    for (int64_t j = 0; j < job->taps; j++) {
        const float *w = job->w + j * n, *from = j == job->taps - 1 ? x : job->tail + j * n;
        for (int64_t i = 0; i < n; i++) out[i] = __builtin_fmaf(w[i], from[i], out[i]);
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

static void store_tail(const conv_job *job, const segment *s) {
    for (int64_t j = 0; j < job->taps - 1; j++)
        memcpy(s->state + j * job->channels + job->first, job->tail + j * job->n,
               (size_t)job->n * sizeof(float));
}

static void conv_segment(const conv_job *job, int64_t seg) {
    const qn_task *task = job->task;
    const segment s = open_segment(task, seg);
    const int64_t log_size = task->slots->log_size;
    load_tail(job, &s);
    for (int64_t i = 0; i < s.accept; i++) push(job, s.log + i * log_size);
    for (int64_t t = 0; t < s.rows; t++) {
        if (t == s.commit) store_tail(job, &s);
        const float *x = row_of(&task->in[0], s.first + t);
        conv_row(job, (float *)row_of(&task->out[0], s.first + t) + job->first, x + job->first);
        push(job, x);
        if (t >= s.commit && t - s.commit < task->slots->log_rows)
            memcpy(s.log + (t - s.commit) * log_size + job->first, x + job->first,
                   (size_t)job->n * sizeof(float));
    }
    if (s.commit == s.rows) store_tail(job, &s);
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
    const float *w = task->in[1].data;
    for (int64_t i = 0; i < job.n; i++) {
        for (int64_t j = 0; j < taps; j++) job.w[j * job.n + i] = w[(cut.first + i) * taps + j];
    }
    const int64_t first_seg = qn_cpu_turn_conv(task, piece);
    for (int64_t seg = first_seg; seg < step->n_segs; seg += QN_SEG_TURNS) conv_segment(&job, seg);
    for (int64_t r = 0; first_seg == 0 && r < task->rows; r++) {
        if (is_inert(step, r))
            memset((float *)row_of(&task->out[0], r) + job.first, 0, (size_t)job.n * sizeof(float));
    }
}
