// Attention over the pages of a cache.
//
// A piece is a few rows and one kv head; all heads that use the kv head read each key once. For one
// row and head, always:
//
//   blocks of 64 positions: score_j = (fma chain over the head size, from 0) * scale, soft cap
//     m' = max(m, scores)   c = exp(m - m')   p_j = exp(score_j - m')
//     l' = fma(l, c, sum of p in 16 lanes)    o' = o * c, then fma(p_j, v_j, .) ascending
//   chunks of 1024 positions, each from m = -inf, l = 0, o = 0, merged into M, L, O ascending:
//     M' = max(M, m)   a = exp(M - M')   b = exp(m - M')   L' = fma(L, a, l * b), O as L
//   a sink s: M' = max(M, s), L' = fma(L, a, exp(s - M')), O' = O * a
//   result: O * (1 / L)
//
// Positions that a row does not see take no part at all: blocks and chunks without a visible one
// are passed over, and what lies there is never multiplied.
#include "backends/cpu/level/attend.h"
#include "backends/cpu/level/math.h"
#include "backends/cpu/level/norm.h"

#include <math.h>

enum { BLOCK = QN_PAGE_ROWS, CHUNK = 1024 };

// What one row sees of its sequence.
typedef struct view {
    int64_t row, position;
    int64_t first, end; // nothing outside
    bool is_seen;       // anything, in this chunk
    int n;              // positions seen in this block, and which
    unsigned char seen[BLOCK];
    float hide[BLOCK]; // 0, or -inf where the row does not see
} view;

// Softmax under way, of one row and head.
typedef struct sums {
    float most, total;         // of the chunk: m, l
    float all_most, all_total; // of the chunks before: M, L
    float *o, *all_o;          // (F)
} sums;

typedef struct attend_job {
    const qn_task *task;
    const qn_operand *q, *out; // (T, H, E), (T, H, F)
    const float *sinks;        // (H) or NULL
    const int32_t *allow;      // (T, T) or NULL
    int64_t kv, group;         // kv head, heads that use it
    int64_t k_size, v_size;
    float *key_room, *value_room; // (E, 64), (64, F') for unpacking; F' a multiple of 32
    const float *keys, *values;   // (E, 64), (64, stride) of a block, here or in its page
    int64_t value_stride;
    view views[QN_ATTEND_ROWS];
    sums *sums; // (rows, group)
} attend_job;

// --- what a row sees ---

static void open_view(const attend_job *job, view *v, int64_t row) {
    const qn_step *step = job->task->step;
    const qn_attrs *attrs = job->task->attrs;
    const int32_t seg = step->row_seg[row];
    const bool is_causal =
        attrs->rule == QN_WORD_causal || (attrs->rule == QN_WORD_spans && !job->allow);
    v->row = row;
    v->position = row_position(step, row);
    v->first =
        attrs->window > 0 && v->position >= attrs->window ? v->position - attrs->window + 1 : 0;
    v->end = is_causal ? v->position + 1
                       : step->seg_past[seg] + step->seg_row[seg + 1] - step->seg_row[seg];
}

// Takes away what `allow` says. Rule spans: it adds rows of this step to what causal shows;
// otherwise it takes rows of this step away.
static void hide_by_allow(const attend_job *job, view *v, int64_t block) {
    const qn_step *step = job->task->step;
    const int32_t seg = step->row_seg[v->row];
    const bool is_spans = job->task->attrs->rule == QN_WORD_spans;
    for (int i = 0; i < BLOCK; i++) {
        const int64_t j = block * BLOCK + i, row = step->seg_row[seg] + j - step->seg_past[seg];
        if (v->hide[i] < 0 || j < step->seg_past[seg] || (is_spans && j <= v->position)) continue;
        if (!job->allow[v->row * step->n_rows + row]) v->hide[i] = -INFINITY;
    }
}

static void look_at_block(const attend_job *job, view *v, int64_t block) {
    const int64_t first = v->first - block * BLOCK, end = v->end - block * BLOCK;
    const int32_t from = first > 0 ? (int32_t)(first < BLOCK ? first : BLOCK) : 0;
    const int32_t to = end > 0 ? (int32_t)(end < BLOCK ? end : BLOCK) : 0;
    for (int32_t i = 0; i < BLOCK; i++) v->hide[i] = i >= from && i < to ? 0 : -INFINITY;
    if (job->allow) hide_by_allow(job, v, block);
    v->n = 0;
    for (int32_t i = from; i < to; i++) {
        v->seen[v->n] = (unsigned char)i;
        v->n += v->hide[i] == 0;
    }
    v->is_seen |= v->n > 0;
}

// --- a block of keys and values ---

// Keys and values of a page: as they lie there where they are floats.
static void load_block(attend_job *job, unsigned char *page) {
    const qn_cache_view *cache = job->task->cache;
    unsigned char *keys = cache_keys(cache, page, job->kv);
    if (cache->type == QN_TYPE_F32) {
        job->keys = (const float *)keys;
        job->values = (const float *)cache_value(cache, page, job->kv, 0);
        job->value_stride = job->v_size;
        return;
    }
    unpack_keys(cache->type, job->key_room, keys, job->k_size);
    job->keys = job->key_room;
    job->values = job->value_room;
    job->value_stride = qn_round_up(job->v_size, 32);
    for (int j = 0; j < BLOCK; j++)
        unpack_value(cache->type, job->value_room + j * job->value_stride,
                     cache_value(cache, page, job->kv, j), job->v_size);
}

enum { SCORE_VECTORS = BLOCK / QN_LANES, VALUE_VECTORS = 4 };

// score (n, 64) of n heads: q[i] (E), keys (E, 64). n is 1 or 2 and constant; `vectors` of positions
// at a time, so that the sums stay in registers.
QN_INLINE void score_block(float *score, const float *const *q, const attend_job *job, const int n,
                           const int vectors) {
    const int64_t k_size = job->k_size;
    for (int j = 0; j < BLOCK; j += vectors * QN_LANES) {
        f32v sum[2][SCORE_VECTORS] = {0};
        const float *k = job->keys + j;
        for (int64_t e = 0; e < k_size; e++, k += BLOCK) {
            for (int i = 0; i < vectors; i++) {
                const f32v key = load_f32(k + i * QN_LANES);
                for (int h = 0; h < n; h++) sum[h][i] = fma_f32(all_f32(q[h][e]), key, sum[h][i]);
            }
        }
        for (int h = 0; h < n; h++) {
            for (int i = 0; i < vectors; i++)
                store_f32(score + h * BLOCK + j + i * QN_LANES, sum[h][i]);
        }
    }
}

// Scores as they enter the softmax; returns the largest.
static float finish_scores(float *score, const float *hide, const qn_attrs *attrs) {
    const float scale = attrs->scale, cap = attrs->cap;
    for (int j = 0; j < BLOCK; j++) score[j] *= scale;
    if (cap > 0) {
        for (int j = 0; j < BLOCK; j++) score[j] = cap * math_tanh(score[j] / cap);
    }
    for (int j = 0; j < BLOCK; j++) score[j] = hide[j] < 0 ? hide[j] : score[j];
    float most[LANES];
    for (int l = 0; l < LANES; l++) most[l] = -INFINITY;
    for (int j = 0; j < BLOCK; j += LANES) {
        for (int l = 0; l < LANES; l++) most[l] = score[j + l] > most[l] ? score[j + l] : most[l];
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            most[l] = most[l + half] > most[l] ? most[l + half] : most[l];
    }
    return most[0];
}

// o (F) += p_j v_j over the positions that are seen, ascending; some vectors of o at a time.
static void add_values(const attend_job *job, float *o, const float *p, const view *v) {
    const int64_t n = job->v_size, stride = job->value_stride, step = VALUE_VECTORS * QN_LANES;
    int64_t f = 0;
    for (; f + step <= n; f += step) {
        f32v sum[VALUE_VECTORS];
        for (int i = 0; i < VALUE_VECTORS; i++) sum[i] = load_f32(o + f + i * QN_LANES);
        for (int k = 0; k < v->n; k++) {
            const float *value = job->values + v->seen[k] * stride + f;
            const f32v weight = all_f32(p[v->seen[k]]);
            for (int i = 0; i < VALUE_VECTORS; i++)
                sum[i] = fma_f32(weight, load_f32(value + i * QN_LANES), sum[i]);
        }
        for (int i = 0; i < VALUE_VECTORS; i++) store_f32(o + f + i * QN_LANES, sum[i]);
    }
    for (int k = 0; k < v->n; k++) {
        const float *value = job->values + v->seen[k] * stride, weight = p[v->seen[k]];
        for (int64_t i = f; i < n; i++) o[i] = __builtin_fmaf(weight, value[i], o[i]);
    }
}

static void multiply(float *x, int64_t n, float by) {
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

// The scores p (64) of one head join its softmax.
static void join_block(const attend_job *job, const view *v, sums *s, float *p) {
    const float largest = finish_scores(p, v->hide, job->task->attrs);
    const float most = largest > s->most ? largest : s->most;
    const float c = math_exp(s->most - most);
    for (int j = 0; j < BLOCK; j++) p[j] = math_exp(p[j] - most);
    s->most = most;
    s->total = __builtin_fmaf(s->total, c, sum_row(p, BLOCK));
    if (c != 1) multiply(s->o, job->v_size, c);
    add_values(job, s->o, p, v);
}

// All heads of a row, by twos.
static void attend_block(const attend_job *job, const view *v, sums *s) {
    for (int64_t g = 0; g < job->group; g += 2) {
        const int n = g + 1 < job->group ? 2 : 1;
        const int64_t head = job->kv * job->group + g;
        const float *const q[] = {part_of(job->q, v->row, head),
                                  part_of(job->q, v->row, head + n - 1)};
        float p[2 * BLOCK];
        if (n == 2)
            score_block(p, q, job, 2, SCORE_VECTORS / 2);
        else
            score_block(p, q, job, 1, SCORE_VECTORS);
        for (int i = 0; i < n; i++) join_block(job, v, s + g + i, p + i * BLOCK);
    }
}

// --- chunks and rows ---

static void merge_chunk(sums *s, int64_t v_size) {
    const float most = s->most > s->all_most ? s->most : s->all_most;
    const float a = math_exp(s->all_most - most), b = math_exp(s->most - most);
    s->all_most = most;
    s->all_total = __builtin_fmaf(s->all_total, a, s->total * b);
    for (int64_t f = 0; f < v_size; f++) s->all_o[f] = __builtin_fmaf(s->all_o[f], a, s->o[f] * b);
}

static void finish_head(const attend_job *job, const view *v, sums *s, int64_t head) {
    float *to = part_of(job->out, v->row, head);
    float a = 1;
    if (job->sinks) {
        const float sink = job->sinks[head];
        const float most = sink > s->all_most ? sink : s->all_most;
        a = math_exp(s->all_most - most);
        s->all_total = __builtin_fmaf(s->all_total, a, math_exp(sink - most));
    }
    const float inverse = s->all_total == 0 ? 0 : 1.0f / s->all_total; // 0: saw nothing
    const float *o = s->all_o;
    const int64_t n = job->v_size;
    for (int64_t f = 0; f < n; f++) to[f] = o[f] * a * inverse;
}

static void clear_sums(float *most, float *total, float *o, int64_t n) {
    *most = -INFINITY;
    *total = 0;
    for (int64_t f = 0; f < n; f++) o[f] = 0;
}

// One block of a chunk for the rows of a run that see any of it.
static void run_block(attend_job *job, int n_rows, int64_t block) {
    const int32_t seg = job->task->step->row_seg[job->views[0].row];
    unsigned char *page = cache_page(job->task->cache, job->task->step, seg, block);
    if (!page) return;
    bool is_loaded = false;
    for (int i = 0; i < n_rows; i++) {
        view *v = &job->views[i];
        look_at_block(job, v, block);
        if (v->n == 0) continue;
        if (!is_loaded) {
            load_block(job, page);
            is_loaded = true;
        }
        attend_block(job, v, &job->sums[i * job->group]);
    }
}

// Up to QN_ATTEND_ROWS rows of one segment.
static void attend_run(attend_job *job, int64_t row, int n_rows) {
    int64_t first = INT64_MAX, end = 0;
    for (int i = 0; i < n_rows; i++) {
        open_view(job, &job->views[i], row + i);
        if (job->views[i].first < first) first = job->views[i].first;
        if (job->views[i].end > end) end = job->views[i].end;
    }
    for (int64_t i = 0; i < n_rows * job->group; i++) {
        sums *s = &job->sums[i];
        clear_sums(&s->all_most, &s->all_total, s->all_o, job->v_size);
    }
    for (int64_t chunk = first / CHUNK * CHUNK; chunk < end; chunk += CHUNK) {
        for (int64_t i = 0; i < n_rows * job->group; i++) {
            sums *s = &job->sums[i];
            clear_sums(&s->most, &s->total, s->o, job->v_size);
        }
        for (int i = 0; i < n_rows; i++) job->views[i].is_seen = false;
        const int64_t from = first > chunk ? first : chunk;
        const int64_t to = end < chunk + CHUNK ? end : chunk + CHUNK;
        for (int64_t block = from / BLOCK; block * BLOCK < to; block++)
            run_block(job, n_rows, block);
        for (int64_t i = 0; i < n_rows * job->group; i++) {
            if (job->views[i / job->group].is_seen) merge_chunk(&job->sums[i], job->v_size);
        }
    }
    for (int64_t i = 0; i < n_rows * job->group; i++)
        finish_head(job, &job->views[i / job->group], &job->sums[i],
                    job->kv * job->group + i % job->group);
}

// Cuts the scratch (qn_cpu_scratch_attend knows its size).
static void open_job(attend_job *job, void *scratch) {
    const qn_cache_view *cache = job->task->cache;
    const int64_t most_sums = QN_ATTEND_ROWS * job->group, stride = qn_round_up(cache->v_size, 32);
    job->k_size = cache->k_size;
    job->v_size = cache->v_size;
    job->key_room = scratch;
    job->value_room = job->key_room + job->k_size * BLOCK;
    float *o = job->value_room + stride * BLOCK;
    job->sums = (sums *)(o + 2 * most_sums * stride);
    for (int64_t i = 0; i < most_sums; i++) {
        job->sums[i].o = o + 2 * i * stride;
        job->sums[i].all_o = job->sums[i].o + stride;
    }
}

static void attend_piece(attend_job *job, int64_t piece, void *scratch) {
    const qn_step *step = job->task->step;
    const qn_range rows = qn_cpu_cut_attend(job->task, piece);
    job->kv = piece % job->task->cache->heads;
    job->group = job->q->parts / job->task->cache->heads;
    open_job(job, scratch);
    for (int64_t r = rows.first; r < rows.end;) {
        const int32_t seg = step->row_seg[r];
        if (seg < 0) { // inert: zeros
            memset(part_of(job->out, r, job->kv * job->group), 0,
                   (size_t)(job->group * job->v_size) * sizeof(float));
            r++;
            continue;
        }
        int n = 1;
        while (r + n < rows.end && step->row_seg[r + n] == seg) n++;
        attend_run(job, r, n);
        r += n;
    }
}

// q, cache, table, sinks?, allow?
void QN_FN(attend)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = {.task = task,
                      .q = &task->in[0],
                      .out = &task->out[0],
                      .sinks = task->in[3].data,
                      .allow = task->in[4].data};
    attend_piece(&job, piece, scratch);
}

// The second stage of attention: q lies turned in temp[0]. sinks? is in[8].
void QN_FN(attention_attend)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = {
        .task = task, .q = &task->temp[0], .out = &task->out[0], .sinks = task->in[8].data};
    attend_piece(&job, piece, scratch);
}
