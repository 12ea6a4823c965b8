// Attention over the pages of a cache.
//
// A piece is some rows and some heads of one kv head; each such pair is a query. All queries of a
// piece share what is read of a page: many have keys and values made floats a slab at a time, in the
// first-level cache, few multiply with them as they are read. In a step of few rows behind many
// positions a piece has only a run of the chunks: it leaves what each of them comes to in the memory
// that pieces share, and the next stage merges them. For one query, always:
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
#include "backends/cpu/kernels/attend_block.h"

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

// The queries of row `row`, which is the i-th of a run, as the keys are: rotated where those are.
static void take_queries(const attend_job *job, int64_t row, int64_t i) {
    float *to = job->queries + i * job->heads * job->k_size;
    memcpy(to, part_of(job->q, row, job->cut.first_head),
           (size_t)(job->heads * job->k_size) * sizeof(float));
    for (int64_t h = 0; job->task->cache->is_rotated && h < job->heads; h++)
        rotate_numbers(to + h * job->k_size, job->k_size);
}

static void clear_floats(float *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

// The chunk of n queries goes to the shared memory; o is 0 again.
static void keep_chunk(const attend_job *job, int64_t n, int64_t chunk) {
    const size_t bytes = (size_t)job->v_stride * sizeof(float);
    for (int64_t i = 0; i < n; i++) {
        const view *v = &job->views[i / job->heads];
        float *to =
            qn_cpu_attend_chunk(job->task, v->row, job->cut.first_head + i % job->heads, chunk);
        to[QN_ATTEND_MAX] = job->sums.max[i];
        to[QN_ATTEND_TOTAL] = job->sums.total[i];
        to[QN_ATTEND_SEEN] = v->is_seen;
        if (!v->is_seen) continue;
        memcpy(to + QN_ATTEND_SUMS, job->o + i * job->v_stride, bytes);
        memset(job->o + i * job->v_stride, 0, bytes);
    }
}

static void run_chunk(attend_job *job, int n_rows, int64_t chunk, int64_t from, int64_t to) {
    const int64_t n = n_rows * job->heads;
    for (int64_t i = 0; i < n; i++) {
        job->sums.max[i] = -INFINITY;
        job->sums.total[i] = 0;
    }
    for (int i = 0; i < n_rows; i++) job->views[i].is_seen = false;
    for (int64_t block = from / BLOCK; block * BLOCK < to; block++) run_block(job, n_rows, block);
    if (job->cut.n_runs > 1)
        keep_chunk(job, n, chunk);
    else
        merge_chunk(job, n);
}

static void clear_sums(const attend_job *job, int64_t n) {
    clear_floats(job->o, n * job->v_stride);
    clear_floats(job->all_o, n * job->v_stride);
    for (int64_t i = 0; i < n; i++) {
        job->sums.all_max[i] = -INFINITY;
        job->sums.all_total[i] = 0;
    }
}

// The chunks of run `run` of those that rows with these first and last positions see.
static qn_range cut_chunks(const qn_attend_cut *cut, int64_t first, int64_t end) {
    const int64_t begin = first / CHUNK, n = qn_ceil_div(end, CHUNK) - begin;
    const int64_t per = qn_ceil_div(n, cut->n_runs), at = cut->run * per;
    return (qn_range){begin + (at < n ? at : n), begin + (at + per < n ? at + per : n)};
}

// Rows of one segment, at most those of a piece.
static void attend_run(attend_job *job, int64_t row, int n_rows) {
    const int64_t n = n_rows * job->heads;
    int64_t first = INT64_MAX, end = 0;
    for (int i = 0; i < n_rows; i++) {
        open_view(job, &job->views[i], row + i);
        if (job->views[i].first < first) first = job->views[i].first;
        if (job->views[i].end > end) end = job->views[i].end;
    }
    const qn_range chunks = cut_chunks(&job->cut, first, end);
    if (job->cut.n_runs > 1 && chunks.first >= chunks.end) return;
    for (int i = 0; i < n_rows; i++) take_queries(job, row + i, i);
    clear_sums(job, n);
    job->end = chunks.end * CHUNK < end ? chunks.end * CHUNK : end;
    for (int64_t c = chunks.first; c < chunks.end; c++)
        run_chunk(job, n_rows, c, first > c * CHUNK ? first : c * CHUNK,
                  end < (c + 1) * CHUNK ? end : (c + 1) * CHUNK);
    for (int64_t i = 0; job->cut.n_runs == 1 && i < n; i++) finish_query(job, i);
}

// Cuts the scratch (qn_cpu_scratch_attend knows its size).
static void open_job(attend_job *job, void *scratch) {
    const qn_cache_view *cache = job->task->cache;
    const int64_t max = qn_cpu_attend_queries(job->task);
    job->heads = job->cut.end_head - job->cut.first_head;
    job->k_size = cache->k_size;
    job->v_size = cache->v_size;
    job->v_stride = qn_round_up(cache->v_size, SLAB);
    job->slab = scratch;
    job->scores = job->slab + SLAB * SLAB;
    job->o = job->scores + max * BLOCK;
    job->all_o = job->o + max * job->v_stride;
    job->seen = (uint64_t *)(void *)(job->all_o + max * job->v_stride);
    job->queries = (float *)(job->seen + max);
    float *sum = job->queries + max * job->k_size;
    job->sums = (sums){sum, sum + max, sum + 2 * max, sum + 3 * max, sum + 4 * max, sum + 5 * max};
}

// The first keys of a kv head that row r sees in this run of chunks.
static const unsigned char *first_keys(const attend_job *job, int64_t r, int64_t kv) {
    const qn_task *task = job->task;
    view v;
    if (task->step->row_seg[r] < 0) return NULL;
    open_view(job, &v, r);
    const int64_t chunk = cut_chunks(&job->cut, v.first, v.end).first * CHUNK;
    const int64_t first = v.first > chunk ? v.first : chunk;
    if (first >= v.end) return NULL;
    unsigned char *page =
        cache_page(task->cache, task->step, task->step->row_seg[r], first / QN_PAGE_ROWS);
    return page ? cache_keys(task->cache, page, kv) : NULL;
}

// Inert rows get zeros.
static void clear_row(const attend_job *job, int64_t r) {
    clear_floats(part_of(job->out, r, job->cut.first_head), job->heads * job->v_size);
}

static void attend_piece(attend_job *job, int64_t piece, void *scratch) {
    const qn_step *step = job->task->step;
    job->cut = qn_cpu_cut_queries(job->task, piece);
    open_job(job, scratch);
    const qn_range rows = job->cut.rows;
    for (int64_t r = rows.first; r < rows.end;) {
        const int32_t seg = step->row_seg[r];
        int n = 1;
        while (r + n < rows.end && step->row_seg[r + n] == seg) n++;
        job->then = r + n < rows.end   ? first_keys(job, r + n, job->cut.kv)
                    : job->cut.is_last ? NULL
                                       : first_keys(job, rows.first, job->cut.kv + 1);
        if (seg >= 0) attend_run(job, r, n);
        for (int k = 0; seg < 0 && job->cut.n_runs == 1 && k < n; k++) clear_row(job, r + k);
        r += n;
    }
}

// A row's chunks, which lie in the shared memory.
static void merge_row(attend_job *job, int64_t r) {
    view *v = &job->views[0];
    open_view(job, v, r);
    clear_sums(job, job->heads);
    for (int64_t chunk = v->first / CHUNK; chunk * CHUNK < v->end; chunk++) {
        for (int64_t h = 0; h < job->heads; h++) {
            const float *from = qn_cpu_attend_chunk(job->task, r, job->cut.first_head + h, chunk);
            v->is_seen = from[QN_ATTEND_SEEN] != 0;
            if (!v->is_seen) break; // nor do the other heads
            job->sums.max[h] = from[QN_ATTEND_MAX];
            job->sums.total[h] = from[QN_ATTEND_TOTAL];
            memcpy(job->o + h * job->v_stride, from + QN_ATTEND_SUMS,
                   (size_t)job->v_stride * sizeof *from);
        }
        if (v->is_seen) merge_chunk(job, job->heads);
    }
    for (int64_t h = 0; h < job->heads; h++) finish_query(job, h);
}

static void merge_piece(attend_job *job, int64_t piece, void *scratch) {
    job->cut = qn_cpu_cut_merge(job->task, piece);
    open_job(job, scratch);
    for (int64_t r = job->cut.rows.first; r < job->cut.rows.end; r++) {
        if (job->task->step->row_seg[r] < 0)
            clear_row(job, r);
        else
            merge_row(job, r);
    }
}

// q, cache, table, sinks?, allow?
static attend_job attend_operands(const qn_task *task) {
    return (attend_job){.task = task,
                        .q = &task->in[0],
                        .out = &task->out[0],
                        .sinks = task->in[3].data,
                        .allow = task->in[4].data};
}

// q lies turned in temp[0]; sinks? is in[8].
static attend_job attention_operands(const qn_task *task) {
    return (attend_job){
        .task = task, .q = &task->temp[0], .out = &task->out[0], .sinks = task->in[8].data};
}

void QN_FN(attend)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = attend_operands(task);
    attend_piece(&job, piece, scratch);
}

void QN_FN(attend_merge)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = attend_operands(task);
    merge_piece(&job, piece, scratch);
}

void QN_FN(attention_attend)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = attention_operands(task);
    attend_piece(&job, piece, scratch);
}

void QN_FN(attention_merge)(const qn_task *task, int64_t piece, void *scratch) {
    attend_job job = attention_operands(task);
    merge_piece(&job, piece, scratch);
}
