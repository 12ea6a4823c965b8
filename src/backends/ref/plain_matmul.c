// Ops with weights: the embedding, matmuls, experts, the head.
#include "backends/ref/plain.h"

#include <math.h>

// ids (T), table (V, D), extra? (N, D), extra_row? (T)
void qn_plain_embed(const qn_plain_task *task) {
    const qn_plain_operand *table = &task->in[1], *extra = &task->in[2], *extra_row = &task->in[3];
    const int64_t n = task->out[0].width;
    for (int64_t r = 0; r < task->rows; r++) {
        float *to = qn_plain_row(&task->out[0], r);
        const int64_t row = *(int32_t *)qn_plain_row(&task->in[0], r) - task->attrs->start;
        const int32_t *given = extra->data && extra_row->data ? qn_plain_row(extra_row, r) : NULL;
        if (task->step->row_seg[r] < 0)
            memset(to, 0, (size_t)n * sizeof *to);
        else if (given && *given >= 0)
            memcpy(to, qn_plain_row(extra, *given), (size_t)n * sizeof *to);
        else if (row >= 0 && row < table->parts) // else another rank has it
            qn_type_get(table->type)->unpack(to, qn_plain_weight(table, row), n);
    }
}

// Part p of row r of x times row `out` of w.
static float dot_part(const qn_plain_operand *x, int64_t r, int64_t p, const qn_plain_operand *w,
                      int64_t out) {
    return qn_plain_dot(qn_plain_part(x, r, p), x->form, qn_plain_weight(w, out), w->type,
                        w->width);
}

static float apply_act(float x, qn_word act) {
    return act == QN_WORD_gelu ? math_gelu(x) : math_silu(x);
}

// x (T, P, I), weights in[1 ...] (O, I) -> (T, P, O + ...)
void qn_plain_project(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0];
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t p = 0; p < x->parts; p++) {
            float *to = qn_plain_part(&task->out[0], r, p);
            for (int i = 1; i < QN_MAX_IN && task->in[i].data; i++) {
                for (int64_t o = 0; o < task->in[i].parts; o++)
                    *to++ = dot_part(x, r, p, &task->in[i], o);
            }
        }
    }
}

void qn_plain_matmul(const qn_plain_task *task) { qn_plain_project(task); }

int64_t qn_plain_room_lora(const qn_plain_task *task) {
    const int64_t width = task->in[2].width, rank = task->in[3].width;
    return rank + (width > rank ? width : rank);
}

// y (T, O), x (T, I), a (N, r, I), b (N, O, r): y + scale * b (a x) of the segment's adapter
void qn_plain_lora(const qn_plain_task *task) {
    const qn_plain_operand *a = &task->in[2], *b = &task->in[3];
    const int64_t rank = b->width, n_out = task->out[0].width;
    float *inner = task->room, *row = task->room + rank;
    for (int64_t r = 0; r < task->rows; r++) {
        const int32_t seg = task->step->row_seg[r];
        const int64_t adapter = seg < 0 ? -1 : task->step->seg_adapter[seg];
        const float *y = qn_plain_row(&task->in[0], r), *x = qn_plain_row(&task->in[1], r);
        float *to = qn_plain_row(&task->out[0], r);
        memcpy(to, y, (size_t)n_out * sizeof *to);
        for (int64_t j = 0; j < rank && adapter >= 0; j++) {
            qn_type_get(a->type)->unpack(row, qn_plain_weight(a, adapter * rank + j), a->width);
            inner[j] = qn_plain_dot_lanes(row, x, a->width, 64);
        }
        for (int64_t o = 0; o < n_out && adapter >= 0; o++) {
            qn_type_get(b->type)->unpack(row, qn_plain_weight(b, adapter * n_out + o), rank);
            to[o] = fmaf(task->attrs->scale, qn_plain_dot_lanes(row, inner, rank, 16), y[o]);
        }
    }
}

// x (T, P, I), gate (F, I), up (F, I) -> act(x gate') * (x up')
void qn_plain_gated(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0], *gate = &task->in[1], *up = &task->in[2];
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t p = 0; p < x->parts; p++) {
            float *to = qn_plain_part(&task->out[0], r, p);
            for (int64_t o = 0; o < gate->parts; o++)
                to[o] = apply_act(dot_part(x, r, p, gate, o), task->attrs->act) *
                        dot_part(x, r, p, up, o);
        }
    }
}

// x (T, I) or (T, N, I), w (X, O, I), ids (T, N) -> (T, N, O)
void qn_plain_grouped_matmul(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0], *w = &task->in[1], *out = &task->out[0];
    for (int64_t r = 0; r < task->rows; r++) {
        const int32_t *ids = qn_plain_row(&task->in[2], r);
        for (int64_t k = 0; k < out->parts; k++) {
            float *to = qn_plain_part(out, r, k);
            for (int64_t o = 0; o < out->width; o++)
                to[o] = dot_part(x, r, x->parts > 1 ? k : 0, w, ids[k] * out->width + o);
        }
    }
}

// --- experts: x (T, D), scores (T, X), gate, up (X, F, D), down (X, D, F) ------------------------

// Room of a row: probabilities (X), ids (N), weights (N), one expert's values (F), the same
// rounded.
int64_t qn_plain_room_experts(const qn_plain_task *task) {
    const int64_t width = task->in[4].width;
    const int64_t rounded = qn_plain_part_bytes(task->attrs->form, width);
    return task->in[1].width + 2 * task->attrs->top + width +
           qn_plain_ceil(rounded, (int64_t)sizeof(float));
}

// out += weight * down (act(gate x) * (up x)) of one expert.
static void add_expert(const qn_plain_task *task, int64_t r, int64_t expert, float weight,
                       float *values) {
    const qn_plain_operand *x = &task->in[0], *down = &task->in[4];
    const int64_t n_in = down->width, n_out = task->out[0].width;
    const qn_word form = task->attrs->form;
    float *to = qn_plain_row(&task->out[0], r), *rounded = values + n_in;
    for (int64_t i = 0; i < n_in; i++) {
        const int64_t row = expert * n_in + i;
        const float gate = dot_part(x, r, 0, &task->in[2], row);
        values[i] = apply_act(gate, task->attrs->act) * dot_part(x, r, 0, &task->in[3], row);
    }
    qn_plain_round(rounded, values, n_in, form);
    for (int64_t o = 0; o < n_out; o++) {
        const unsigned char *w = qn_plain_weight(down, expert * n_out + o);
        to[o] = fmaf(weight, qn_plain_dot(rounded, form, w, down->type, n_in), to[o]);
    }
}

void qn_plain_experts(const qn_plain_task *task) {
    const qn_plain_operand *scores = &task->in[1];
    const int64_t top = task->attrs->top;
    float *p = task->room, *weights = p + scores->width, *values = weights + 2 * top;
    int32_t *ids = (int32_t *)(void *)(weights + top);
    for (int64_t r = 0; r < task->rows; r++) {
        qn_plain_choose(ids, weights, qn_plain_row(scores, r), scores->width, task->attrs, p);
        memset(qn_plain_row(&task->out[0], r), 0, (size_t)task->out[0].width * sizeof(float));
        for (int64_t k = 0; k < top; k++) add_expert(task, r, ids[k], weights[k], values);
    }
}

// --- the head: x (R, I), w (O, I) -> logits (R, O), best (R, 2 + 2 top) --------------------------

int64_t qn_plain_room_head(const qn_plain_task *task) { return task->in[1].parts; }

// A row of `best` has the min logit, or the first that is not finite; its id, or -1; the top
// logits, and their ids. There is room for `room` entries; only `top` of them are wanted.
typedef struct best {
    float *min, *broken, *logits, *ids;
    int64_t top;
} best;

static best open_best(float *row, int64_t room, int64_t top) {
    const best b = {row, row + 1, row + 2, row + 2 + room, top};
    *b.min = INFINITY;
    *b.broken = -1;
    for (int64_t k = 0; k < room; k++) {
        b.logits[k] = -INFINITY;
        b.ids[k] = -1;
    }
    return b;
}

static void see_logit(const best *b, float logit, int64_t id) {
    if (*b->broken >= 0) return;
    if (!isfinite(logit)) {
        *b->min = isnan(logit) ? NAN : logit; // of no sign
        *b->broken = (float)id;
    } else if (logit < *b->min) {
        *b->min = logit;
    }
}

// Ids ascend, so that of equal logits the lower id stays first.
static void rank_logit(const best *b, float logit, int64_t id) {
    int64_t at = b->top;
    while (at > 0 && logit > b->logits[at - 1]) at--;
    if (at == b->top) return;
    for (int64_t k = b->top - 1; k > at; k--) {
        b->logits[k] = b->logits[k - 1];
        b->ids[k] = b->ids[k - 1];
    }
    b->logits[at] = logit;
    b->ids[at] = (float)id;
}

// How many of this rank's n ids are among the first `max` of all ranks; 0: all of them.
static int64_t count_ids(const qn_plain_task *task, int64_t n, int64_t max) {
    return max > 0 ? qn_max(0, qn_min(n, max - task->attrs->start)) : n;
}

void qn_plain_head(const qn_plain_task *task) {
    const qn_step *step = task->step;
    const int64_t n = task->in[1].parts, room = task->attrs->top;
    const int64_t top = step->top > 0 ? qn_min(step->top, room) : room;
    const int64_t entries = count_ids(task, n, step->entries);
    const int64_t computed = count_ids(task, n, step->computed);
    const float cap = task->attrs->cap;
    for (int64_t r = 0; r < task->rows; r++) {
        const bool is_full = !step->out_full || step->out_full[r];
        float *logits = is_full ? qn_plain_row(&task->out[0], r) : task->room;
        const best b = open_best(qn_plain_row(&task->out[1], r), room, top);
        for (int64_t o = 0; o < computed; o++) {
            const float logit = dot_part(&task->in[0], r, 0, &task->in[1], o);
            logits[o] = cap > 0 ? cap * math_tanh(logit / cap) : logit;
            see_logit(&b, logits[o], o);
            if (o < entries) rank_logit(&b, logits[o], o);
        }
    }
}
