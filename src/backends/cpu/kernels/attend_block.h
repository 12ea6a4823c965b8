// A block of 64 positions joins the softmax of the queries that see it: the inner part of attend.c.
#ifndef QN_BACKENDS_CPU_KERNELS_ATTEND_BLOCK_H
#define QN_BACKENDS_CPU_KERNELS_ATTEND_BLOCK_H

#include "backends/cpu/kernels/attend.h"
#include "backends/cpu/attend_cut.h"
#include "backends/cpu/kernels/exp_lanes.h"
#include "backends/kernel_math.h"

#include <math.h>

enum { BLOCK = QN_PAGE_ROWS, CHUNK = QN_ATTEND_CHUNK };

// What one row sees of its sequence.
typedef struct view {
    int64_t row, position;
    int64_t first, end; // nothing outside
    bool is_seen;       // anything, in this chunk
    uint64_t seen;      // positions of this block, one bit each
} view;

// Softmax under way: a number for each query.
typedef struct sums {
    float *max, *total;         // of the chunk: m, l
    float *all_max, *all_total; // of the chunks before: M, L
    float *next_max, *shrink;   // of this block: m', c
} sums;

typedef struct attend_job {
    const qn_task *task;
    const qn_operand *q, *out; // (T, H, E), (T, H, F)
    const float *sinks;        // (H) or NULL
    const int32_t *allow;      // (T, T) or NULL
    qn_attend_cut cut;
    int64_t heads;          // of the cut: queries are (rows, heads)
    int64_t k_size, v_size; // E, F
    int64_t v_stride;       // of the rows below that are as long as a value
    float *slab;            // (64, 64): keys or values
    float *queries;         // (queries, E)
    float *scores;          // (queries, 64)
    float *o, *all_o;       // (queries, v_stride); what is past a value's end is never read
    uint64_t *seen;         // (queries) as of their rows
    sums sums;
    int64_t end;               // no block from here on is read
    const unsigned char *then; // keys that are read after these rows; NULL: none
    view views[QN_ATTEND_QUERIES];
} attend_job;

// --- what a row sees ---

static void open_view(const attend_job *job, view *v, int64_t row) {
    const qn_step *step = job->task->step;
    const qn_attrs *attrs = job->task->attrs;
    const int32_t seg = step->row_seg[row];
    const bool skips_first = attrs->rule == QN_WORD_after_first;
    const bool is_causal = attrs->rule == QN_WORD_causal || skips_first ||
                           (attrs->rule == QN_WORD_spans && !job->allow);
    v->row = row;
    v->position = row_position(step, row);
    v->first =
        attrs->window > 0 && v->position >= attrs->window ? v->position - attrs->window + 1 : 0;
    if (skips_first && v->first == 0) v->first = 1;
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
        const uint64_t bit = 1ull << i;
        if (!(v->seen & bit) || j < step->seg_past[seg] || (is_spans && j <= v->position)) continue;
        if (!job->allow[v->row * step->n_rows + row]) v->seen &= ~bit;
    }
}

static uint64_t bits_from(int64_t n) { return n <= 0 ? ~0ull : n >= 64 ? 0 : ~0ull << n; }

static void look_at_block(const attend_job *job, view *v, int64_t block) {
    v->seen = bits_from(v->first - block * BLOCK) & ~bits_from(v->end - block * BLOCK);
    if (job->allow) hide_by_allow(job, v, block);
    v->is_seen |= v->seen != 0;
}

// --- a block of positions ---

// Queries from `first` on that are multiplied together.
QN_INLINE int query_group(int64_t first, int64_t end) {
    return end - first <= MAC_ROWS ? (int)(end - first) : MAC_BEST;
}

// Positions up to the last that is seen, in 16s.
QN_INLINE int64_t seen_width(uint64_t seen) {
    return seen ? qn_round_up(64 - __builtin_clzll(seen), QN_KEY_GROUP) : 0;
}

// Scores (queries, 64) of queries first ... end - 1, as far as any of a group sees.
static void score_block(const attend_job *job, const kv_page *page, int64_t first, int64_t end) {
    int64_t n;
    for (int64_t e = 0; e < job->k_size; e += n) {
        const matrix keys = load_keys(page, e, &n);
        for (int64_t i = first, n_i; i < end; i += n_i) {
            uint64_t any = 0;
            n_i = query_group(i, end);
            for (int64_t k = 0; k < n_i; k++) any |= job->seen[i + k];
            const mac m = {.to = job->scores + i * BLOCK,
                           .to_stride = BLOCK,
                           .a = job->queries + i * job->k_size + e,
                           .a_stride = job->k_size,
                           .b = keys,
                           .depth = n,
                           .width = seen_width(any),
                           .is_first = e == 0};
            mac_rows(&m, (int)n_i);
        }
    }
}

// 16 scores of which bits 0 ... 15 of `seen` are seen; others become -inf.
QN_INLINE void hide_scores(float *score, uint64_t seen) {
    for (int l = 0; l < 16; l++) score[l] = seen >> l & 1 ? score[l] : -INFINITY;
}

// Scores as they enter the softmax, as far as they are seen; returns the largest.
static float finish_scores(float *score, uint64_t seen, const qn_attrs *attrs) {
    const int64_t n = seen_width(seen);
    const float cap = attrs->cap, scale = cap > 0 ? 1 : attrs->scale;
    for (int64_t j = 0; cap > 0 && j < n; j++)
        score[j] = cap * math_tanh(score[j] * attrs->scale / cap);
    f32v max[QN_PARTS];
    for (int i = 0; i < QN_PARTS; i++) max[i] = all_f32(-INFINITY);
    for (int64_t j = 0; j < n; j += 16) {
        for (int i = 0; i < QN_PARTS; i++)
            store_f32(score + j + i * QN_LANES,
                      load_f32(score + j + i * QN_LANES) * all_f32(scale));
        if ((~seen >> j & 0xffff) != 0) hide_scores(score + j, seen >> j);
        for (int i = 0; i < QN_PARTS; i++)
            max[i] = max_f32(load_f32(score + j + i * QN_LANES), max[i]);
    }
    return max_16(max);
}

// n scores, in 16s, become p; returns their sum.
static inline float finish_p(float *p, int64_t n, float max) {
    f32v sum[QN_PARTS];
    for (int i = 0; i < QN_PARTS; i++) sum[i] = all_f32(0);
    for (int64_t j = 0; j < n; j += 16) {
        for (int i = 0; i < QN_PARTS; i++) {
            float *at = p + j + i * QN_LANES;
            const f32v x = exp_lanes(load_f32(at) - all_f32(max));
            store_f32(at, x);
            sum[i] += x;
        }
    }
    return sum_16(sum);
}

// The scores of queries first ... end - 1 become p (queries, 64) and join the softmax. What the
// queries have one number of is computed for all of them together.
static void join_block(const attend_job *job, int64_t first, int64_t end) {
    const sums *s = &job->sums;
    for (int64_t i = first; i < end; i++)
        s->next_max[i] = finish_scores(job->scores + i * BLOCK, job->seen[i], job->task->attrs);
    for (int64_t i = first; i < end; i++) {
        const float max = s->max[i];
        s->next_max[i] = s->next_max[i] > max ? s->next_max[i] : max;
        s->shrink[i] = math_exp(max - s->next_max[i]);
    }
    for (int64_t i = first; i < end; i++) {
        if (!job->seen[i]) continue;
        float *p = job->scores + i * BLOCK, *o = job->o + i * job->v_stride;
        const int64_t n = seen_width(job->seen[i]); // after them p would be 0
        const float max = s->next_max[i], c = s->shrink[i];
        const bool is_scaled = c != 1 && s->max[i] != -INFINITY; // else o stays: 0 at first
        s->max[i] = max;
        s->total[i] = __builtin_fmaf(s->total[i], c, finish_p(p, n, max));
        for (int64_t f = 0; is_scaled && f < job->v_stride; f += QN_LANES)
            store_f32(o + f, load_f32(o + f) * all_f32(c));
    }
}

// Values (64, n) of a block from number f on.
typedef struct value_columns {
    matrix v;
    int64_t f, n;
} value_columns;

// o += p v over the runs of positions in `seen`, for n queries from i on.
static void add_runs(const attend_job *job, const value_columns *c, uint64_t seen, int64_t i,
                     int n) {
    while (seen) {
        const int first = __builtin_ctzll(seen);
        const uint64_t rest = ~(seen >> first); // never 0 but for a full block
        const int length = rest ? __builtin_ctzll(rest) : BLOCK;
        matrix part = c->v;
        part.rows += first * part.stride;
        const mac m = {.to = job->o + i * job->v_stride + c->f,
                       .to_stride = job->v_stride,
                       .a = job->scores + i * BLOCK + first,
                       .a_stride = BLOCK,
                       .b = part,
                       .depth = length,
                       .width = c->n};
        mac_rows(&m, n);
        seen &= bits_from(first + length);
    }
}

// o += p v for n queries from i on: together for the positions below and above those where they do
// not see the same, the end of what they see or the beginning of a window.
static void add_group(const attend_job *job, const value_columns *c, int64_t i, int n) {
    uint64_t differs = 0;
    for (int k = 1; k < n; k++) differs |= job->seen[i + k] ^ job->seen[i];
    if (!differs) {
        add_runs(job, c, job->seen[i], i, n);
        return;
    }
    const uint64_t from = bits_from(__builtin_ctzll(differs));
    const uint64_t after = bits_from(64 - __builtin_clzll(differs));
    add_runs(job, c, job->seen[i] & ~from, i, n);
    for (int k = 0; k < n; k++) add_runs(job, c, job->seen[i + k] & from & ~after, i + k, 1);
    add_runs(job, c, job->seen[i] & after, i, n);
}

static void add_values(const attend_job *job, const kv_page *page, int64_t first, int64_t end) {
    value_columns c;
    for (c.f = 0; c.f < job->v_size; c.f += c.n) {
        c.v = load_values(page, c.f, &c.n);
        for (int64_t i = first; i < end; i += query_group(i, end))
            add_group(job, &c, i, query_group(i, end));
    }
}

// The block for the rows of a run that see any of it.
static void run_block(attend_job *job, int n_rows, int64_t block) {
    const qn_task *task = job->task;
    const int32_t seg = task->step->row_seg[job->views[0].row];
    unsigned char *bytes = cache_page(task->cache, task->step, seg, block);
    if (!bytes) return;
    uint64_t any = 0;
    int from = n_rows, to = 0;
    for (int i = 0; i < n_rows; i++) {
        look_at_block(job, &job->views[i], block);
        const uint64_t seen = job->views[i].seen;
        for (int64_t h = 0; h < job->heads; h++) job->seen[i * job->heads + h] = seen;
        if (!seen) continue;
        any |= seen;
        if (from > i) from = i;
        to = i + 1;
    }
    if (from >= to) return;
    const int64_t first = from * job->heads, end = to * job->heads, next = block + 1;
    unsigned char *after =
        next * BLOCK < job->end ? cache_page(task->cache, task->step, seg, next) : NULL;
    const kv_page page = {.type = task->cache->type,
                          .is_shared = end - first > MAC_ROWS,
                          .n_groups = seen_width(any) / QN_KEY_GROUP,
                          .k_size = job->k_size,
                          .v_size = job->v_size,
                          .keys = cache_keys(task->cache, bytes, job->cut.kv),
                          .values = cache_value(task->cache, bytes, job->cut.kv, 0),
                          .next_keys =
                              after ? cache_keys(task->cache, after, job->cut.kv) : job->then,
                          .slab = job->slab};
    score_block(job, &page, first, end);
    join_block(job, first, end);
    add_values(job, &page, first, end);
}

#endif
