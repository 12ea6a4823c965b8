// The gated delta rule, token by token. For one value head, S (E, F):
//
//   S' = exp(g) S                          change_j = (v_j - known_j) * beta
//   known_j = fma chain over i of S'_ij k_i     S_ij = fma(k_i, change_j, S'_ij)
//   out_j = fma chain over i of S_ij (q_i * scale)
//
// chains from 0 with i ascending; lanes are j. A piece is one key head, with all value heads that
// use it (they share the key's place in the log), of some segments.
#include "backends/cpu/level/math.h"
#include "backends/cpu/level/state.h"

#include <string.h>

typedef struct delta_job {
    const qn_task *task;
    int64_t key_head, key_heads, heads; // this piece's; G, H
    int64_t k_size, v_size;             // E, F
    float *copy;                        // (E, F) state of uncertain rows
    float *known;                       // (F)
} delta_job;

// What a row brings for one value head. q is NULL where nothing is read.
typedef struct token {
    const float *q, *k, *v; // (E), (E), (F)
    float g, beta;
} token;

// known (F) of the decayed state.
static void recall(const delta_job *job, const float *s, const float *k, float decay) {
    const int64_t n = job->v_size;
    float *known = job->known;
    for (int64_t j = 0; j < n; j++) known[j] = 0;
    int64_t i = 0;
    for (; i + 4 <= job->k_size; i += 4) {
        const float *s0 = s + i * n, *s1 = s0 + n, *s2 = s1 + n, *s3 = s2 + n;
        const float k0 = k[i], k1 = k[i + 1], k2 = k[i + 2], k3 = k[i + 3];
        for (int64_t j = 0; j < n; j++) {
            float sum = __builtin_fmaf(s0[j] * decay, k0, known[j]);
            sum = __builtin_fmaf(s1[j] * decay, k1, sum);
            sum = __builtin_fmaf(s2[j] * decay, k2, sum);
            known[j] = __builtin_fmaf(s3[j] * decay, k3, sum);
        }
    }
    for (; i < job->k_size; i++) {
        for (int64_t j = 0; j < n; j++)
            known[j] = __builtin_fmaf(s[i * n + j] * decay, k[i], known[j]);
    }
}

// The state moves by change (F); out (F), where given, reads it with q (E).
static void update(const delta_job *job, float *s, const token *t, float decay,
                   const float *change) {
    const int64_t n = job->v_size;
    for (int64_t i = 0; i < job->k_size; i++) {
        const float k = t->k[i];
        float *row = s + i * n;
        for (int64_t j = 0; j < n; j++) row[j] = __builtin_fmaf(k, change[j], row[j] * decay);
    }
}

static void update_and_read(const delta_job *job, float *s, const token *t, float decay,
                            const float *change, float *out) {
    const int64_t n = job->v_size;
    const float scale = job->task->attrs->scale;
    for (int64_t j = 0; j < n; j++) out[j] = 0;
    int64_t i = 0;
    for (; i + 2 <= job->k_size; i += 2) {
        float *s0 = s + i * n, *s1 = s0 + n;
        const float k0 = t->k[i], k1 = t->k[i + 1];
        const float q0 = t->q[i] * scale, q1 = t->q[i + 1] * scale;
        for (int64_t j = 0; j < n; j++) {
            const float new0 = __builtin_fmaf(k0, change[j], s0[j] * decay);
            const float new1 = __builtin_fmaf(k1, change[j], s1[j] * decay);
            out[j] = __builtin_fmaf(new1, q1, __builtin_fmaf(new0, q0, out[j]));
            s0[j] = new0;
            s1[j] = new1;
        }
    }
    for (; i < job->k_size; i++) {
        const float k = t->k[i], q = t->q[i] * scale;
        for (int64_t j = 0; j < n; j++) {
            s[i * n + j] = __builtin_fmaf(k, change[j], s[i * n + j] * decay);
            out[j] = __builtin_fmaf(s[i * n + j], q, out[j]);
        }
    }
}

static void apply(const delta_job *job, float *s, const token *t, float *out) {
    const float decay = math_exp(t->g);
    recall(job, s, t->k, decay);
    float *change = job->known;
    for (int64_t j = 0; j < job->v_size; j++) change[j] = (t->v[j] - job->known[j]) * t->beta;
    if (out)
        update_and_read(job, s, t, decay, change, out);
    else
        update(job, s, t, decay, change);
}

static token logged_token(const delta_job *job, const float *row, int64_t h) {
    const float *v = row + job->key_heads * job->k_size, *g = v + job->heads * job->v_size;
    return (token){.k = row + job->key_head * job->k_size,
                   .v = v + h * job->v_size,
                   .g = g[h],
                   .beta = g[job->heads + h]};
}

static token step_token(const delta_job *job, int64_t r, int64_t h) {
    const qn_operand *in = job->task->in;
    return (token){.q = part_of(&in[0], r, job->key_head),
                   .k = part_of(&in[1], r, job->key_head),
                   .v = part_of(&in[2], r, h),
                   .g = ((const float *)row_of(&in[3], r))[h],
                   .beta = ((const float *)row_of(&in[4], r))[h]};
}

static void log_token(const delta_job *job, float *row, const token *t, int64_t h) {
    float *v = row + job->key_heads * job->k_size, *g = v + job->heads * job->v_size;
    memcpy(row + job->key_head * job->k_size, t->k, (size_t)job->k_size * sizeof *row);
    memcpy(v + h * job->v_size, t->v, (size_t)job->v_size * sizeof *row);
    g[h] = t->g;
    g[job->heads + h] = t->beta;
}

// Brings the stored state of a value head up to its last certain row before this step.
static void catch_up(const delta_job *job, const segment *s, int64_t h) {
    const int64_t n = job->k_size * job->v_size;
    float *state = s->state + h * n;
    if (s->is_new) memset(state, 0, (size_t)n * sizeof *state);
    for (int64_t i = 0; i < s->accept; i++) {
        const token t = logged_token(job, s->log + i * job->task->slots->log_size, h);
        apply(job, state, &t, NULL);
    }
}

static void run_rows(const delta_job *job, const segment *s, int64_t h) {
    const qn_slots_view *slots = job->task->slots;
    const int64_t n = job->k_size * job->v_size;
    float *state = s->state + h * n;
    for (int64_t i = 0; i < s->rows; i++) {
        const token t = step_token(job, s->first + i, h);
        if (i == s->commit) state = memcpy(job->copy, state, (size_t)n * sizeof *state);
        apply(job, state, &t, part_of(&job->task->out[0], s->first + i, h));
        if (i >= s->commit && i - s->commit < slots->log_rows)
            log_token(job, s->log + (i - s->commit) * slots->log_size, &t, h);
    }
}

static bool uses_key_head(const delta_job *job, int64_t h) {
    const bool is_tiled = job->task->attrs->heads == QN_WORD_tiled;
    return job->key_head == (is_tiled ? h % job->key_heads : h / (job->heads / job->key_heads));
}

// The log is read by every head before any writes it.
static void delta_segment(const delta_job *job, int64_t seg) {
    const segment s = open_segment(job->task, seg);
    for (int64_t h = 0; h < job->heads; h++) {
        if (uses_key_head(job, h)) catch_up(job, &s, h);
    }
    for (int64_t h = 0; h < job->heads; h++) {
        if (uses_key_head(job, h)) run_rows(job, &s, h);
    }
}

// q, k (T, G, E), v (T, H, F), g, beta (T, H), state, table
void QN_FN(delta)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *k = &task->in[1], *v = &task->in[2];
    delta_job job = {.task = task,
                     .key_head = piece % k->parts,
                     .key_heads = k->parts,
                     .heads = v->parts,
                     .k_size = k->width,
                     .v_size = v->width,
                     .copy = scratch};
    job.known = job.copy + job.k_size * job.v_size;
    const int64_t first_seg = piece / k->parts;
    for (int64_t seg = first_seg; seg < task->step->n_segs; seg += QN_SEG_TURNS)
        delta_segment(&job, seg);
    for (int64_t r = 0; first_seg == 0 && r < task->rows; r++) {
        for (int64_t h = 0; is_inert(task->step, r) && h < job.heads; h++) {
            if (uses_key_head(&job, h))
                memset(part_of(&task->out[0], r, h), 0, (size_t)job.v_size * sizeof(float));
        }
    }
}
