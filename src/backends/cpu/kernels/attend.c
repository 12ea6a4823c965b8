// Attention over the pages of a cache.
//
// A piece is some rows and some heads of one kv head; each such pair is a query. All queries of a
// piece share what is read of a page: keys and values become floats a slab at a time, in the
// first-level cache, and a few queries at a time are multiplied with a slab. For one query, always:
//
//   blocks of 64 positions: score_j = (fma chain over the head size, from 0) * scale, soft cap
//     m' = max(m, scores)   c = exp(m - m')   p_j = exp(score_j - m')
//     l' = fma(l, c, sum of p in 16 lanes)    o' = o * c, then fma(p_j, v_j, .) ascending
//   chunks of 256 positions, each from m = -inf, l = 0, o = 0, merged into M, L, O ascending:
//     M' = max(M, m)   a = exp(M - M')   b = exp(m - M')   L' = fma(L, a, l * b), O as L
//   a sink s: M' = max(M, s), L' = fma(L, a, exp(s - M')), O' = O * a
//   result: O * (1 / L)
//
// Positions that a row does not see take no part at all: blocks and chunks without a visible one
// are passed over, and what lies there is never multiplied.
#include "backends/cpu/kernels/attend.h"
#include "backends/cpu/attend_cut.h"
#include "backends/cpu/kernels/small_product.h"
#include "backends/kernel_math.h"
#include "backends/cpu/kernels/norm.h"

#include <math.h>

enum { BLOCK = QN_PAGE_ROWS, CHUNK = 256 };

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
    float *slab;            // (32, 64) or (32, v_stride): keys or values
    float *queries;         // (queries, E)
    float *scores;          // (queries, 64)
    float *o, *all_o;       // (queries, v_stride); what is past a value's end is never read
    sums sums;
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

// Scores (queries, 64) of queries first ... end - 1.
static void score_block(const attend_job *job, const kv_page *page, int64_t first, int64_t end) {
    memset(job->scores + first * BLOCK, 0, (size_t)((end - first) * BLOCK) * sizeof(float));
    for (int64_t e = 0; e < job->k_size; e += SLAB) {
        const int64_t n = job->k_size - e < SLAB ? job->k_size - e : SLAB;
        const matrix keys = load_keys(page, e, n);
        for (int64_t i = first; i < end; i += MAC_ROWS) {
            const mac m = {.to = job->scores + i * BLOCK,
                           .to_stride = BLOCK,
                           .a = job->queries + i * job->k_size + e,
                           .a_stride = job->k_size,
                           .b = keys,
                           .depth = n,
                           .width = page->n_groups * QN_KEY_GROUP};
            mac_rows(&m, end - i < MAC_ROWS ? (int)(end - i) : MAC_ROWS);
        }
    }
}

// Scores as they enter the softmax; returns the largest.
static float finish_scores(float *score, uint64_t seen, const qn_attrs *attrs) {
    const float scale = attrs->scale, cap = attrs->cap;
    for (int j = 0; j < BLOCK; j++) score[j] *= scale;
    for (int j = 0; cap > 0 && j < BLOCK; j++) score[j] = cap * math_tanh(score[j] / cap);
    for (int j = 0; seen != ~0ull && j < BLOCK; j++) {
        if (!(seen >> j & 1)) score[j] = -INFINITY;
    }
    f32v max[QN_PARTS];
    for (int i = 0; i < QN_PARTS; i++) max[i] = all_f32(-INFINITY);
    for (int j = 0; j < BLOCK; j += 16) {
        for (int i = 0; i < QN_PARTS; i++)
            max[i] = max_f32(load_f32(score + j + i * QN_LANES), max[i]);
    }
    return max_16(max);
}

// The scores of queries first ... end - 1 become p (queries, 64) and join the softmax. What the
// queries have one number of is computed for all of them together.
static void join_block(const attend_job *job, int64_t first, int64_t end) {
    const sums *s = &job->sums;
    const int64_t n = job->v_stride;
    for (int64_t i = first; i < end; i++)
        s->next_max[i] = finish_scores(job->scores + i * BLOCK, job->views[i / job->heads].seen,
                                       job->task->attrs);
    for (int64_t i = first; i < end; i++) {
        const float max = s->max[i];
        s->next_max[i] = s->next_max[i] > max ? s->next_max[i] : max;
        s->shrink[i] = math_exp(max - s->next_max[i]);
    }
    for (int64_t i = first; i < end; i++) {
        if (!job->views[i / job->heads].seen) continue;
        float *p = job->scores + i * BLOCK, *o = job->o + i * job->v_stride;
        const float max = s->next_max[i], c = s->shrink[i];
        const bool is_scaled = c != 1 && s->max[i] != -INFINITY; // else o stays: 0 at first
        for (int j = 0; j < BLOCK; j++) p[j] = math_exp(p[j] - max);
        s->max[i] = max;
        s->total[i] = __builtin_fmaf(s->total[i], c, sum_row_16(p, BLOCK));
        for (int64_t f = 0; is_scaled && f < n; f += QN_LANES)
            store_f32(o + f, load_f32(o + f) * all_f32(c));
    }
}

// o += p v over the runs of positions in `seen` (bit 0: the slab's first, `at`), for n queries from
// i on.
static void add_runs(const attend_job *job, const matrix *v, int64_t at, uint32_t seen, int64_t i,
                     int n) {
    while (seen) {
        const int first = __builtin_ctz(seen);
        const uint32_t rest = ~(seen >> first); // never 0 but for a full slab
        const int length = rest ? __builtin_ctz(rest) : SLAB;
        matrix part = *v;
        part.rows += first * v->stride;
        const mac m = {.to = job->o + i * job->v_stride,
                       .to_stride = job->v_stride,
                       .a = job->scores + i * BLOCK + at + first,
                       .a_stride = BLOCK,
                       .b = part,
                       .depth = length,
                       .width = job->v_size};
        mac_rows(&m, n);
        if (first + length >= SLAB) return;
        seen &= ~0u << (first + length);
    }
}

// o += p v for queries first ... end - 1: some at a time where they see the same, else one by one.
static void add_values(const attend_job *job, const kv_page *page, int64_t first, int64_t end) {
    for (int at = 0; at < BLOCK; at += SLAB) {
        uint32_t any = 0, seen[MAC_ROWS];
        for (int64_t r = first / job->heads; r * job->heads < end; r++)
            any |= (uint32_t)(job->views[r].seen >> at);
        if (!any) continue;
        const matrix v = load_values(page, at);
        for (int64_t i = first; i < end; i += MAC_ROWS) {
            const int n = end - i < MAC_ROWS ? (int)(end - i) : MAC_ROWS;
            bool is_same = true;
            for (int k = 0; k < n; k++) {
                seen[k] = (uint32_t)(job->views[(i + k) / job->heads].seen >> at);
                is_same &= seen[k] == seen[0];
            }
            for (int k = 0; k < (is_same ? 1 : n); k++)
                add_runs(job, &v, at, seen[k], i + k, is_same ? n : 1);
        }
    }
}

// --- chunks and rows ---

// The chunk of n queries joins the chunks before; o is 0 again.
static void merge_chunk(const attend_job *job, int64_t n) {
    const sums *s = &job->sums;
    const int64_t stride = job->v_stride;
    for (int64_t i = 0; i < n; i++) {
        const float m = s->max[i], all = s->all_max[i], max = m > all ? m : all;
        s->next_max[i] = max;
        s->shrink[i] = math_exp(all - max);
        s->max[i] = math_exp(m - max);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!job->views[i / job->heads].is_seen) continue;
        const float a = s->shrink[i], b = s->max[i];
        float *o = job->o + i * stride, *all_o = job->all_o + i * stride;
        s->all_max[i] = s->next_max[i];
        s->all_total[i] = __builtin_fmaf(s->all_total[i], a, s->total[i] * b);
        for (int64_t f = 0; f < stride; f += QN_LANES) {
            const f32v here = load_f32(o + f) * all_f32(b);
            store_f32(all_o + f, fma_f32(load_f32(all_o + f), all_f32(a), here));
            store_f32(o + f, all_f32(0));
        }
    }
}

static void finish_query(const attend_job *job, int64_t i) {
    const int64_t head = job->cut.first_head + i % job->heads, n = job->v_size;
    float *to = part_of(job->out, job->views[i / job->heads].row, head);
    const float *o = job->all_o + i * job->v_stride;
    float a = 1, total = job->sums.all_total[i];
    if (job->sinks) {
        const float sink = job->sinks[head], all_max = job->sums.all_max[i];
        const float max = sink > all_max ? sink : all_max;
        a = math_exp(all_max - max);
        total = __builtin_fmaf(total, a, math_exp(sink - max));
    }
    const float inverse = total == 0 ? 0 : 1.0f / total; // 0: saw nothing
    for (int64_t f = 0; f < n; f++) to[f] = o[f] * a * inverse;
    if (job->task->cache->is_rotated) rotate_numbers(to, n);
}

// One block of a chunk for the rows of a run that see any of it.
static void run_block(attend_job *job, int n_rows, int64_t block) {
    const qn_task *task = job->task;
    const int32_t seg = task->step->row_seg[job->views[0].row];
    unsigned char *bytes = cache_page(task->cache, task->step, seg, block);
    if (!bytes) return;
    uint64_t any = 0;
    int from = n_rows, to = 0;
    for (int i = 0; i < n_rows; i++) {
        look_at_block(job, &job->views[i], block);
        if (!job->views[i].seen) continue;
        any |= job->views[i].seen;
        if (from > i) from = i;
        to = i + 1;
    }
    if (from >= to) return;
    const int64_t first = from * job->heads, end = to * job->heads, next = block + 1;
    const bool has_next = next * BLOCK < job->views[n_rows - 1].end;
    unsigned char *after = has_next ? cache_page(task->cache, task->step, seg, next) : NULL;
    const kv_page page = {.type = task->cache->type,
                          .is_shared = end - first > MAC_ROWS,
                          .n_groups = (64 - __builtin_clzll(any) + QN_KEY_GROUP - 1) / QN_KEY_GROUP,
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

// The queries of row `row`, which is the i-th of a run, as the keys are: rotated where those are.
static void take_queries(const attend_job *job, int64_t row, int64_t i) {
    float *to = job->queries + i * job->heads * job->k_size;
    memcpy(to, part_of(job->q, row, job->cut.first_head),
           (size_t)(job->heads * job->k_size) * sizeof(float));
    for (int64_t h = 0; job->task->cache->is_rotated && h < job->heads; h++)
        rotate_numbers(to + h * job->k_size, job->k_size);
}

static void clear_floats(float *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

static void run_chunk(attend_job *job, int n_rows, int64_t from, int64_t to) {
    const int64_t n = n_rows * job->heads;
    for (int64_t i = 0; i < n; i++) {
        job->sums.max[i] = -INFINITY;
        job->sums.total[i] = 0;
    }
    for (int i = 0; i < n_rows; i++) job->views[i].is_seen = false;
    for (int64_t block = from / BLOCK; block * BLOCK < to; block++) run_block(job, n_rows, block);
    merge_chunk(job, n);
}

// Rows of one segment, at most those of a piece.
static void attend_run(attend_job *job, int64_t row, int n_rows) {
    const int64_t n = n_rows * job->heads;
    int64_t first = INT64_MAX, end = 0;
    for (int i = 0; i < n_rows; i++) {
        open_view(job, &job->views[i], row + i);
        if (job->views[i].first < first) first = job->views[i].first;
        if (job->views[i].end > end) end = job->views[i].end;
        take_queries(job, row + i, i);
    }
    clear_floats(job->o, n * job->v_stride);
    clear_floats(job->all_o, n * job->v_stride);
    for (int64_t i = 0; i < n; i++) {
        job->sums.all_max[i] = -INFINITY;
        job->sums.all_total[i] = 0;
    }
    for (int64_t chunk = first / CHUNK * CHUNK; chunk < end; chunk += CHUNK)
        run_chunk(job, n_rows, first > chunk ? first : chunk,
                  end < chunk + CHUNK ? end : chunk + CHUNK);
    for (int64_t i = 0; i < n; i++) finish_query(job, i);
}

// Cuts the scratch (qn_cpu_scratch_attend knows its size).
static void open_job(attend_job *job, int64_t piece, void *scratch) {
    const qn_cache_view *cache = job->task->cache;
    const int64_t max = qn_cpu_attend_queries(job->task);
    job->cut = qn_cpu_cut_queries(job->task, piece);
    job->heads = job->cut.end_head - job->cut.first_head;
    job->k_size = cache->k_size;
    job->v_size = cache->v_size;
    job->v_stride = qn_round_up(cache->v_size, SLAB);
    job->slab = scratch;
    job->scores = job->slab + SLAB * (job->v_stride > BLOCK ? job->v_stride : BLOCK);
    job->o = job->scores + max * BLOCK;
    job->all_o = job->o + max * job->v_stride;
    job->queries = job->all_o + max * job->v_stride;
    float *sum = job->queries + max * job->k_size;
    job->sums = (sums){sum, sum + max, sum + 2 * max, sum + 3 * max, sum + 4 * max, sum + 5 * max};
}

// The first keys that row r sees.
static const unsigned char *first_keys(const attend_job *job, int64_t r) {
    const qn_step *step = job->task->step;
    view v;
    if (step->row_seg[r] < 0) return NULL;
    open_view(job, &v, r);
    unsigned char *page =
        cache_page(job->task->cache, step, step->row_seg[r], v.first / QN_PAGE_ROWS);
    return page ? cache_keys(job->task->cache, page, job->cut.kv) : NULL;
}

static void attend_piece(attend_job *job, int64_t piece, void *scratch) {
    const qn_step *step = job->task->step;
    open_job(job, piece, scratch);
    const qn_range rows = job->cut.rows;
    for (int64_t r = rows.first; r < rows.end;) {
        const int32_t seg = step->row_seg[r];
        if (seg < 0) { // inert: zeros
            clear_floats(part_of(job->out, r, job->cut.first_head), job->heads * job->v_size);
            r++;
            continue;
        }
        int n = 1;
        while (r + n < rows.end && step->row_seg[r + n] == seg) n++;
        job->then = r + n < rows.end ? first_keys(job, r + n) : NULL;
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
