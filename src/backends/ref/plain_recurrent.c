// Ops that keep a state for each sequence: causal convolution, gated delta rule.
//
// A slot holds the state after the last row that is certain, and a log of the rows since. A step
// applies the first seg_accept logged rows, then the first seg_commit rows of the segment, and
// stores that; the rows after them run on a copy and are logged, the first at log index 0.
#include "backends/ref/plain.h"

#include <math.h>

typedef struct segment {
    float *state, *log;
    bool is_new;         // starts from zeros
    int64_t accept;      // logged rows that are applied
    int64_t first, rows; // of the step
    int64_t commit;      // rows that change the slot
} segment;

static segment open_segment(const qn_plain_task *task, int64_t seg) {
    const qn_step *step = task->step;
    const qn_slots_view *slots = task->slots;
    unsigned char *slot = slots->slots + step->seg_slot[seg] * slots->slot_bytes;
    const int64_t rows = step->seg_row[seg + 1] - step->seg_row[seg];
    const bool is_new = step->seg_past[seg] == 0;
    return (segment){.state = (float *)(void *)(slot + slots->offset),
                     .log = (float *)(void *)(slot + slots->log_offset),
                     .is_new = is_new,
                     .accept = is_new ? 0 : step->seg_accept[seg],
                     .first = step->seg_row[seg],
                     .rows = rows,
                     .commit = step->seg_commit ? qn_min(step->seg_commit[seg], rows) : 0};
}

// Rows that belong to no segment give zeros.
static void clear_padding(const qn_plain_task *task) {
    const qn_plain_operand *out = &task->out[0];
    for (int64_t r = 0; r < task->rows; r++) {
        if (task->step->row_seg[r] < 0)
            memset(qn_plain_row(out, r), 0, (size_t)(out->parts * out->width) * sizeof(float));
    }
}

// --- conv: x (T, C), w (C, N), state (N - 1, C), table -------------------------------------------

int64_t qn_plain_room_conv(const qn_plain_task *task) {
    return (task->in[1].width - 1) * task->in[0].width;
}

// tail (N - 1, C): the rows before; the newest is the last.
static void push_row(float *tail, const float *row, int64_t kept, int64_t channels) {
    const size_t bytes = (size_t)channels * sizeof *tail;
    if (kept == 0) return;
    memmove(tail, tail + channels, (size_t)(kept - 1) * bytes);
    memcpy(tail + (kept - 1) * channels, row, bytes);
}

static void conv_row(float *to, const qn_plain_task *task, const float *tail, const float *row) {
    const int64_t channels = task->in[0].width, taps = task->in[1].width;
    const float *w = (const float *)(void *)task->in[1].data;
    for (int64_t c = 0; c < channels; c++) {
        float sum = 0;
        for (int64_t j = 0; j < taps; j++)
            sum = fmaf(w[c * taps + j], j < taps - 1 ? tail[j * channels + c] : row[c], sum);
        to[c] = sum;
    }
}

static void conv_segment(const qn_plain_task *task, int64_t seg) {
    const int64_t channels = task->in[0].width, kept = task->in[1].width - 1;
    const size_t bytes = (size_t)(kept * channels) * sizeof(float);
    const segment s = open_segment(task, seg);
    float *tail = task->room;
    if (s.is_new)
        memset(tail, 0, bytes);
    else
        memcpy(tail, s.state, bytes);
    for (int64_t i = 0; i < s.accept; i++)
        push_row(tail, s.log + i * task->slots->log_size, kept, channels);
    for (int64_t t = 0; t <= s.rows; t++) {
        if (t == s.commit) memcpy(s.state, tail, bytes);
        if (t == s.rows) break;
        const float *row = qn_plain_row(&task->in[0], s.first + t);
        conv_row(qn_plain_row(&task->out[0], s.first + t), task, tail, row);
        if (t >= s.commit && t - s.commit < task->slots->log_rows)
            memcpy(s.log + (t - s.commit) * task->slots->log_size, row,
                   (size_t)channels * sizeof *row);
        push_row(tail, row, kept, channels);
    }
}

void qn_plain_conv(const qn_plain_task *task) {
    for (int64_t seg = 0; seg < task->step->n_segs; seg++) conv_segment(task, seg);
    clear_padding(task);
}

// --- delta: q, k (T, G, E), v (T, H, F), g, beta (T, H), state (H, E, F), table ------------------

// Room: a copy of the state of one head.
int64_t qn_plain_room_delta(const qn_plain_task *task) {
    return task->in[1].width * task->in[2].width;
}

// Sizes of a delta rule.
typedef struct delta {
    int64_t key_heads, heads, k_size, v_size; // G, H, E, F
    bool is_tiled;
    float scale;
} delta;

// What a row brings for one value head; q and out are NULL where the result is not asked for.
typedef struct token {
    const float *q, *k, *v; // (E), (E), (F)
    float *out;             // (F)
    float g, beta;
} token;

// One token changes S (E, F). Columns j do not know each other.
static void apply_token(const delta *d, float *state, const token *t) {
    const float decay = math_exp(t->g);
    for (int64_t j = 0; j < d->v_size; j++) {
        float known = 0, out = 0;
        for (int64_t i = 0; i < d->k_size; i++) {
            float *s = &state[i * d->v_size + j];
            *s *= decay;
            known = fmaf(*s, t->k[i], known);
        }
        const float change = (t->v[j] - known) * t->beta;
        for (int64_t i = 0; i < d->k_size; i++) {
            float *s = &state[i * d->v_size + j];
            *s = fmaf(t->k[i], change, *s);
            if (t->out) out = fmaf(*s, t->q[i] * d->scale, out);
        }
        if (t->out) t->out[j] = out;
    }
}

static int64_t key_head(const delta *d, int64_t h) {
    return d->is_tiled ? h % d->key_heads : h / (d->heads / d->key_heads);
}

// A row of the log is k (G, E), v (H, F), g (H), beta (H).
static token logged_token(const delta *d, const float *row, int64_t h) {
    const float *v = row + d->key_heads * d->k_size, *g = v + d->heads * d->v_size;
    return (token){.k = row + key_head(d, h) * d->k_size,
                   .v = v + h * d->v_size,
                   .g = g[h],
                   .beta = g[d->heads + h]};
}

static token step_token(const qn_plain_task *task, const delta *d, int64_t r, int64_t h) {
    const qn_plain_operand *in = task->in;
    return (token){.q = qn_plain_part(&in[0], r, key_head(d, h)),
                   .k = qn_plain_part(&in[1], r, key_head(d, h)),
                   .v = qn_plain_part(&in[2], r, h),
                   .out = qn_plain_part(&task->out[0], r, h),
                   .g = ((const float *)qn_plain_row(&in[3], r))[h],
                   .beta = ((const float *)qn_plain_row(&in[4], r))[h]};
}

static void log_row(const qn_plain_task *task, float *to, int64_t r) {
    for (int i = 1; i <= 4; i++) {
        const int64_t n = task->in[i].parts * task->in[i].width;
        memcpy(to, qn_plain_row(&task->in[i], r), (size_t)n * sizeof *to);
        to += n;
    }
}

static void delta_head(const qn_plain_task *task, const delta *d, const segment *s, int64_t h) {
    const int64_t n = d->k_size * d->v_size;
    float *state = s->state + h * n;
    if (s->is_new) memset(state, 0, (size_t)n * sizeof *state);
    for (int64_t i = 0; i < s->accept; i++) {
        const token t = logged_token(d, s->log + i * task->slots->log_size, h);
        apply_token(d, state, &t);
    }
    for (int64_t i = 0; i < s->rows; i++) {
        const token t = step_token(task, d, s->first + i, h);
        if (i == s->commit) state = memcpy(task->room, state, (size_t)n * sizeof *state);
        apply_token(d, state, &t);
    }
}

void qn_plain_delta(const qn_plain_task *task) {
    const delta d = {.key_heads = task->in[1].parts,
                     .heads = task->in[2].parts,
                     .k_size = task->in[1].width,
                     .v_size = task->in[2].width,
                     .is_tiled = task->attrs->heads == QN_WORD_tiled,
                     .scale = task->attrs->scale};
    for (int64_t seg = 0; seg < task->step->n_segs; seg++) {
        const segment s = open_segment(task, seg);
        for (int64_t h = 0; h < d.heads; h++) delta_head(task, &d, &s, h);
        for (int64_t i = s.commit; i < s.rows && i - s.commit < task->slots->log_rows; i++)
            log_row(task, s.log + (i - s.commit) * task->slots->log_size, s.first + i);
    }
    clear_padding(task);
}

// --- logged rows without a step ------------------------------------------------------------------

void qn_log_apply(float *state, const qn_log_rule *rule, const float *log, int64_t n) {
    const delta d = {.key_heads = rule->key_heads,
                     .heads = rule->heads,
                     .k_size = rule->k_size,
                     .v_size = rule->v_size,
                     .is_tiled = rule->is_tiled};
    for (int64_t i = 0; i < n; i++) {
        const float *row = log + i * rule->log_size;
        if (rule->op == QN_OP_CONV) push_row(state, row, rule->kept, rule->channels);
        for (int64_t h = 0; h < d.heads; h++) {
            const token t = logged_token(&d, row, h);
            apply_token(&d, state + h * d.k_size * d.v_size, &t);
        }
    }
}
