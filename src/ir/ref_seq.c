// Reference ops that know the sequence: rope, attention over pages, convolution and the delta rule.
#include "ir/ref_int.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

// --- rope ---

// Which of the four positions turns pair i: sections interleave as t h w t h w ..., the rest is t.
static int position_kind(const qn_list *sections, int64_t i) {
    if (i % 3 == 1 && i < 3 * sections->v[1]) return 1;
    if (i % 3 == 2 && i < 3 * sections->v[2]) return 2;
    return 0;
}

// Turns pair i of every head of row t, in place.
static void turn_pair(const ref_call *c, int64_t t, int64_t i, float cosine, float sine) {
    const ref_tensor *x = c->out[0]; // (T, H, E)
    const int64_t half = c->node->attrs.rotate / 2;
    const bool is_half = c->node->attrs.pairs == QN_WORD_half;
    const int64_t a = is_half ? i : 2 * i, b = is_half ? i + half : 2 * i + 1;
    for (int64_t h = 0; h < x->dims[1]; h++) {
        float *head = x->f + (t * x->dims[1] + h) * x->dims[2];
        const float from_a = head[a], from_b = head[b];
        head[a] = from_a * cosine - from_b * sine;
        head[b] = from_a * sine + from_b * cosine;
    }
}

static double angle_of(const ref_call *c, const ref_tensor *frequency, int64_t t, int64_t i) {
    const int kind = position_kind(&c->node->attrs.sections, i);
    return (double)c->step->pos[t * 4 + kind] * (double)frequency->f[i];
}

qn_status qn_ref_ROPE(const ref_call *c) {
    const ref_tensor *x = c->in[0], *frequency = c->in[1];
    const float scale = c->node->attrs.scale;
    memcpy(c->out[0]->f, x->f, (size_t)x->n * sizeof(float));
    for (int64_t t = 0; t < x->dims[0]; t++) {
        for (int64_t i = 0; i < frequency->n; i++) {
            const double angle = angle_of(c, frequency, t, i);
            turn_pair(c, t, i, (float)cos(angle) * scale, (float)sin(angle) * scale);
        }
    }
    return QN_OK;
}

qn_status qn_ref_ANGLES(const ref_call *c) {
    const ref_tensor *frequency = c->in[0], *out = c->out[0]; // (N), (T, 2, N)
    const float scale = c->node->attrs.scale;
    for (int64_t t = 0; t < out->dims[0]; t++) {
        float *cosines = out->f + t * 2 * frequency->n, *sines = cosines + frequency->n;
        for (int64_t i = 0; i < frequency->n; i++) {
            const double angle = angle_of(c, frequency, t, i);
            cosines[i] = (float)cos(angle) * scale;
            sines[i] = (float)sin(angle) * scale;
        }
    }
    return QN_OK;
}

qn_status qn_ref_ROTATE(const ref_call *c) {
    const ref_tensor *x = c->in[0], *angles = c->in[1], *norm = c->in[2];
    const int64_t n = c->node->attrs.rotate / 2;
    memcpy(c->out[0]->f, x->f, (size_t)x->n * sizeof(float));
    if (norm) {
        ref_call rms = *c;
        rms.in[1] = norm;
        QN_TRY(qn_ref_RMS_NORM(&rms));
    }
    for (int64_t t = 0; t < x->dims[0]; t++) {
        const float *cosines = angles->f + t * 2 * n, *sines = cosines + n;
        for (int64_t i = 0; i < n; i++) turn_pair(c, t, i, cosines[i], sines[i]);
    }
    return QN_OK;
}

// --- attention ---

// Keys (then values) of all heads at one position of a segment.
static float *cache_row(const ref_call *c, int64_t seg, int64_t position) {
    const int32_t page = ref_page(c->step, seg, position / QN_PAGE_ROWS);
    return c->state->pages + (page * QN_PAGE_ROWS + position % QN_PAGE_ROWS) * c->state->row_size;
}

qn_status qn_ref_KV_WRITE(const ref_call *c) {
    const ref_tensor *k = c->in[1], *v = c->in[2];
    const int64_t k_size = k->dims[1] * k->dims[2], v_size = v->dims[1] * v->dims[2];
    for (int64_t t = 0; t < k->dims[0]; t++) {
        const int32_t seg = c->step->row_seg[t];
        if (seg < 0) continue;
        float *to = cache_row(c, seg, ref_row_position(c->step, t));
        memcpy(to, k->f + t * k_size, (size_t)k_size * sizeof *to);
        memcpy(to + k_size, v->f + t * v_size, (size_t)v_size * sizeof *to);
    }
    return QN_OK;
}

typedef struct attend_job {
    const ref_call *call;
    float *scores; // (pieces, longest): one row of scores per piece
    int64_t longest, n_pieces;
    int64_t kv_heads, k_size, v_size;
} attend_job;

// Whether row t (at position p of its segment) sees position j. Rule spans: `allow` adds rows of
// this step to what causal shows; otherwise `allow`, where given, takes rows of this step away.
static bool sees(const ref_call *c, int64_t t, int64_t p, int64_t j) {
    const qn_attrs *attrs = &c->node->attrs;
    const ref_tensor *allow = c->in[4];
    const int32_t seg = c->step->row_seg[t];
    const int64_t row = c->step->seg_row[seg] + j - c->step->seg_past[seg]; // of position j
    const bool is_allowed = allow && j >= c->step->seg_past[seg]
                                ? allow->i[t * c->step->n_rows + row] != 0
                                : attrs->rule != QN_WORD_spans;
    if (attrs->window > 0 && p - j >= attrs->window) return false;
    if (attrs->rule == QN_WORD_after_first && j == 0) return false;
    if (attrs->rule == QN_WORD_spans) return j <= p || is_allowed;
    return (attrs->rule == QN_WORD_full || j <= p) && is_allowed;
}

// One row, one head: scores, softmax, weighted sum of values.
static void attend_head(const attend_job *job, int64_t t, int64_t h, float *score) {
    const ref_call *c = job->call;
    const ref_tensor *q = c->in[0], *sinks = c->in[3];
    const qn_attrs *attrs = &c->node->attrs;
    const int32_t seg = c->step->row_seg[t];
    const int64_t heads = q->dims[1], kv = h / (heads / job->kv_heads);
    const int64_t p = ref_row_position(c->step, t);
    const int64_t end = c->step->seg_past[seg] + c->step->seg_row[seg + 1] - c->step->seg_row[seg];
    const float *from = q->f + (t * heads + h) * job->k_size;
    float *to = c->out[0]->f + (t * heads + h) * job->v_size;
    float largest = sinks ? sinks->f[h] : -INFINITY;
    bool sees_any = sinks != NULL;
    for (int64_t j = 0; j < end; j++) {
        score[j] = -INFINITY;
        if (!sees(c, t, p, j)) continue;
        sees_any = true;
        const float *k = cache_row(c, seg, j) + kv * job->k_size;
        float sum = 0;
        for (int64_t i = 0; i < job->k_size; i++) sum += from[i] * k[i];
        score[j] = sum * attrs->scale;
        if (attrs->cap > 0) score[j] = attrs->cap * tanhf(score[j] / attrs->cap);
        largest = fmaxf(largest, score[j]);
    }
    if (!sees_any) return; // zeros
    float total = sinks ? expf(sinks->f[h] - largest) : 0;
    for (int64_t j = 0; j < end; j++) total += score[j] = expf(score[j] - largest);
    for (int64_t j = 0; j < end; j++) {
        if (score[j] == 0) continue;
        const float *v = cache_row(c, seg, j) + job->kv_heads * job->k_size + kv * job->v_size;
        for (int64_t i = 0; i < job->v_size; i++) to[i] += score[j] / total * v[i];
    }
}

// Rows piece, piece + n_pieces, ...
static void attend_rows(void *arg, int64_t piece) {
    const attend_job *job = arg;
    for (int64_t t = piece; t < job->call->step->n_rows; t += job->n_pieces) {
        if (job->call->step->row_seg[t] < 0) continue;
        for (int64_t h = 0; h < job->call->in[0]->dims[1]; h++)
            attend_head(job, t, h, job->scores + piece * job->longest);
    }
}

// Every page that a row of this step may see must be there.
static qn_status check_pages(const ref_call *c) {
    const int64_t window = c->node->attrs.window;
    for (int64_t b = 0; b < c->step->n_segs; b++) {
        const int64_t past = c->step->seg_past[b];
        const int64_t first = window > 0 && past >= window ? past - window + 1 : 0;
        for (int64_t i = first / QN_PAGE_ROWS; i < (past + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS; i++) {
            if (ref_page(c->step, b, i) < 0)
                return QN_FAIL(c->err, ARGUMENT, "segment %lld: page %lld is gone, window %lld",
                               (long long)b, (long long)i, (long long)window);
        }
    }
    return QN_OK;
}

qn_status qn_ref_ATTEND(const ref_call *c) {
    const qn_step *step = c->step;
    QN_TRY(check_pages(c));
    const qn_dim *cache = c->in[1]->value->shape.dims; // (K, E, F)
    attend_job job = {
        .call = c, .kv_heads = cache[0].n, .k_size = cache[1].n, .v_size = cache[2].n};
    for (int64_t b = 0; b < step->n_segs; b++) {
        const int64_t length = step->seg_past[b] + step->seg_row[b + 1] - step->seg_row[b];
        if (length > job.longest) job.longest = length;
    }
    const int64_t max = 8 * (int64_t)qn_pool_threads(c->pool);
    job.n_pieces = step->n_rows < max ? step->n_rows : max;
    size_t n;
    if (!qn_size_mul(&n, (size_t)job.n_pieces, (size_t)job.longest))
        return QN_FAIL(c->err, LIMIT, "attention over %lld x %lld scores", (long long)job.n_pieces,
                       (long long)job.longest);
    job.scores = qn_alloc(n, sizeof *job.scores);
    if (!job.scores) return QN_NOMEM(c->err, "attention scores");
    qn_pool_run(c->pool, job.n_pieces, attend_rows, &job);
    qn_free(job.scores);
    return QN_OK;
}

// --- recurrent state ---

// The slot of a segment, ready for this step: emptied for a new sequence, else brought forward over
// the accepted part of its log by `apply(job, state, logged row)`. The log is empty afterwards.
static qn_status open_slot(ref_slot **out, const ref_call *c, int64_t seg, int64_t row_size,
                           void (*apply)(const void *job, float *state, const float *row),
                           const void *job) {
    ref_slot *slot = &c->state->slots[c->step->seg_slot[seg]];
    const int64_t accept = c->step->seg_accept[seg];
    if (c->step->seg_past[seg] == 0) {
        memset(slot->state, 0, (size_t)c->state->state_size * sizeof(float));
        slot->n_log = 0;
    }
    if (accept < 0 || accept > slot->n_log)
        return QN_FAIL(c->err, ARGUMENT, "segment %lld: accepts %lld rows, %lld are logged",
                       (long long)seg, (long long)accept, (long long)slot->n_log);
    for (int64_t i = 0; i < accept; i++) apply(job, slot->state, slot->log + i * row_size);
    slot->n_log = 0;
    *out = slot;
    return QN_OK;
}

// Rows of the segment that are accepted already; see qn_step.seg_commit.
static int64_t rows_committed(const qn_step *step, int64_t seg) {
    return step->seg_commit ? step->seg_commit[seg] : 0;
}

// Room for the rows of this step that are not accepted yet.
static qn_status grow_log(ref_slot *slot, int64_t rows, int64_t row_size, qn_err *err) {
    size_t want;
    void *log = slot->log;
    if (!qn_size_mul(&want, (size_t)rows, (size_t)row_size) ||
        !qn_grow(&log, &slot->cap_log, want, sizeof(float)))
        return QN_NOMEM(err, "log of recurrent rows");
    slot->log = log;
    slot->n_log = rows;
    return QN_OK;
}

// state: the last N - 1 rows; a new row pushes out the oldest.
static void conv_push(const void *arg, float *state, const float *row) {
    const ref_tensor *w = arg; // (C, N)
    const int64_t channels = w->dims[0], kept = w->dims[1] - 1;
    if (kept == 0) return;
    memmove(state, state + channels, (size_t)((kept - 1) * channels) * sizeof *state);
    memcpy(state + (kept - 1) * channels, row, (size_t)channels * sizeof *state);
}

qn_status qn_ref_CONV(const ref_call *c) {
    const ref_tensor *x = c->in[0], *w = c->in[1];
    const int64_t channels = w->dims[0], taps = w->dims[1];
    float *before = qn_alloc((size_t)c->state->state_size, sizeof *before);
    if (!before) return QN_NOMEM(c->err, "convolution");
    qn_status status = QN_OK;
    for (int64_t b = 0; b < c->step->n_segs; b++) {
        const int64_t first = c->step->seg_row[b], rows = c->step->seg_row[b + 1] - first;
        ref_slot *slot;
        const int64_t commit = rows_committed(c->step, b);
        QN_TRY_TO(done, open_slot(&slot, c, b, channels, conv_push, w));
        QN_TRY_TO(done, grow_log(slot, rows - commit, channels, c->err));
        memcpy(before, slot->state, (size_t)c->state->state_size * sizeof *before);
        for (int64_t t = 0; t < rows; t++) {
            const float *now = x->f + (first + t) * channels;
            for (int64_t ch = 0; ch < channels; ch++) {
                float sum = 0;
                for (int64_t j = 0; j < taps; j++) // oldest first
                    sum +=
                        w->f[ch * taps + j] * (j == taps - 1 ? now[ch] : before[j * channels + ch]);
                c->out[0]->f[(first + t) * channels + ch] = sum;
            }
            conv_push(w, before, now);
            if (t < commit)
                conv_push(w, slot->state, now);
            else
                memcpy(slot->log + (t - commit) * channels, now, (size_t)channels * sizeof *now);
        }
    }

done:
    qn_free(before);
    return status;
}

// Sizes of a delta rule, and where the parts of a logged row lie: k | v | g | beta.
typedef struct delta_sizes {
    int64_t key_heads, heads, k_size, v_size; // G, H, E, F
    bool is_tiled;
} delta_sizes;

static int64_t key_head(const delta_sizes *d, int64_t h) {
    return d->is_tiled ? h % d->key_heads : h / (d->heads / d->key_heads);
}

// S <- exp(g) S; S <- S + k (beta (v - S'k))', for every value head. S is (H, E, F).
static void delta_apply(const void *arg, float *state, const float *row) {
    const delta_sizes *d = arg;
    const float *k_all = row, *v_all = k_all + d->key_heads * d->k_size;
    const float *g = v_all + d->heads * d->v_size, *beta = g + d->heads;
    for (int64_t h = 0; h < d->heads; h++) {
        float *s = state + h * d->k_size * d->v_size;
        const float *k = k_all + key_head(d, h) * d->k_size, *v = v_all + h * d->v_size;
        const float decay = expf(g[h]);
        for (int64_t i = 0; i < d->k_size * d->v_size; i++) s[i] *= decay;
        for (int64_t j = 0; j < d->v_size; j++) {
            float known = 0;
            for (int64_t i = 0; i < d->k_size; i++) known += s[i * d->v_size + j] * k[i];
            const float change = (v[j] - known) * beta[h];
            for (int64_t i = 0; i < d->k_size; i++) s[i * d->v_size + j] += k[i] * change;
        }
    }
}

// o = scale * S'q for every value head of one row.
static void delta_read(const delta_sizes *d, float *out, const float *state, const float *q_all,
                       float scale) {
    for (int64_t h = 0; h < d->heads; h++) {
        const float *s = state + h * d->k_size * d->v_size;
        const float *q = q_all + key_head(d, h) * d->k_size;
        for (int64_t j = 0; j < d->v_size; j++) {
            float sum = 0;
            for (int64_t i = 0; i < d->k_size; i++) sum += s[i * d->v_size + j] * (q[i] * scale);
            out[h * d->v_size + j] = sum;
        }
    }
}

static void gather_delta_row(float *to, const ref_call *c, int64_t row) {
    for (int i = 1; i <= 4; i++) { // k, v, g, beta
        const ref_tensor *part = c->in[i];
        const int64_t n = part->n / part->dims[0];
        memcpy(to, part->f + row * n, (size_t)n * sizeof *to);
        to += n;
    }
}

qn_status qn_ref_DELTA(const ref_call *c) {
    const ref_tensor *q = c->in[0], *v = c->in[2];
    const delta_sizes d = {.key_heads = q->dims[1],
                           .heads = v->dims[1],
                           .k_size = q->dims[2],
                           .v_size = v->dims[2],
                           .is_tiled = c->node->attrs.heads == QN_WORD_tiled};
    const int64_t q_row = d.key_heads * d.k_size, v_row = d.heads * d.v_size;
    const int64_t row_size = q_row + v_row + 2 * d.heads;
    float *state = qn_alloc((size_t)c->state->state_size, sizeof *state);
    float *row = qn_alloc((size_t)row_size, sizeof *row);
    qn_status status = QN_OK;
    if (!state || !row) {
        status = QN_NOMEM(c->err, "delta rule");
        goto done;
    }
    for (int64_t b = 0; b < c->step->n_segs; b++) {
        const int64_t first = c->step->seg_row[b], rows = c->step->seg_row[b + 1] - first;
        ref_slot *slot;
        const int64_t commit = rows_committed(c->step, b);
        QN_TRY_TO(done, open_slot(&slot, c, b, row_size, delta_apply, &d));
        QN_TRY_TO(done, grow_log(slot, rows - commit, row_size, c->err));
        memcpy(state, slot->state, (size_t)c->state->state_size * sizeof *state);
        for (int64_t t = 0; t < rows; t++) {
            gather_delta_row(row, c, first + t);
            delta_apply(&d, state, row);
            if (t < commit)
                delta_apply(&d, slot->state, row);
            else
                memcpy(slot->log + (t - commit) * row_size, row, (size_t)row_size * sizeof *row);
            delta_read(&d, c->out[0]->f + (first + t) * v_row, state, q->f + (first + t) * q_row,
                       c->node->attrs.scale);
        }
    }

done:
    qn_free(state);
    qn_free(row);
    return status;
}
