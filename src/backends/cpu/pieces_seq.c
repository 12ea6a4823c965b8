// How calls that know the sequence are cut into pieces, and what they need besides their operands.
#include "backends/cpu/attend_cut.h"

#include "core/mem.h"

// Numbers of a piece, as in pieces.c; a convolution has about 4 products for each channel and row,
// and its scratch fits the first-level cache. Neither was tuned.
enum { ROW_NUMBERS = 4096, CONV_CHANNELS = 512 };
// Pieces of attention: those of one row, at least where heads allow it, and those of many rows:
// more read keys more often, fewer leave threads idle. 4 each for 8 threads; not measured.
enum { ATTEND_PIECES = 8, ENOUGH_PIECES = 32 };
// Steps of so few rows cut positions, too, into runs of at least so many chunks, for so many pieces:
// one for each of 64 threads. Shorter runs cost more to merge than they bring.
enum { FEW_ROWS = 8, RUN_CHUNKS = 2, RUN_PIECES = 64 };

static int64_t floats(int64_t n) { return qn_round_up(n * (int64_t)sizeof(float), 64); }

static qn_range cut(int64_t piece, int64_t per, int64_t n) {
    const int64_t first = piece * per;
    if (first >= n) return (qn_range){0, 0};
    return (qn_range){first, first + per < n ? first + per : n};
}

// --- norms and positions ---

int64_t qn_cpu_scratch_width(const qn_task *task, int64_t rows) {
    (void)rows;
    return floats(task->in[0].width);
}

int64_t qn_cpu_scratch_rope(const qn_task *task, int64_t rows) {
    (void)rows;
    return floats(task->attrs->rotate);
}

// --- keys and values ---

static int64_t kv_rows(const qn_task *task) {
    const int64_t n = task->in[1].width + task->in[2].width;
    return n < ROW_NUMBERS && n > 0 ? ROW_NUMBERS / n : 1;
}

int64_t qn_cpu_pieces_kv(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return qn_ceil_div(rows, kv_rows(task)) * task->in[1].parts;
}

// Head by head, so that the threads that write a head's pages are those that read them (walk.h).
// Pieces of rows that are not there lie at the end.
qn_kv_cut qn_cpu_cut_kv(const qn_task *task, int64_t piece) {
    const int64_t per = kv_rows(task), runs = qn_ceil_div(task->rows, per);
    if (runs == 0 || piece / runs >= task->in[1].parts) return (qn_kv_cut){.rows = {0, 0}};
    return (qn_kv_cut){.rows = cut(piece % runs, per, task->rows), .head = piece / runs};
}

int64_t qn_cpu_scratch_kv(const qn_task *task, int64_t rows) {
    (void)rows;
    const int64_t k = task->in[1].width, v = task->in[2].width;
    return 2 * floats(qn_round_up(k > v ? k : v, 32)); // as floats and packed
}

// --- attention ---

// Chunks of which a row may see some, and one more where the first and the last are seen in part.
static int64_t seen_chunks(const qn_task *task, int64_t cached) {
    const int64_t n = qn_ceil_div(cached, QN_ATTEND_CHUNK), window = task->attrs->window;
    const int64_t across = qn_ceil_div(window + FEW_ROWS, QN_ATTEND_CHUNK) + 1;
    return window > 0 && across < n ? across : n;
}

static int64_t attend_runs(const qn_task *task, int64_t rows, int64_t cached) {
    const int64_t wanted = qn_ceil_div(RUN_PIECES, task->cache->heads);
    const int64_t n = seen_chunks(task, cached) / RUN_CHUNKS;
    if (rows > FEW_ROWS || n < 1) return 1;
    return n < wanted ? n : wanted;
}

// Heads of a kv head that one piece takes. All of them share what it reads; where there are few kv
// heads and runs they are parted, so that there is work for several threads.
static int64_t heads_per_piece(const qn_task *task, int64_t n_runs) {
    const int64_t kv = task->cache->heads, group = task->in[0].parts / kv;
    const int64_t wanted = qn_ceil_div(ATTEND_PIECES, kv * n_runs), max = qn_ceil_div(group, 2);
    return qn_ceil_div(group, wanted < max ? wanted : max);
}

// Pieces with the same rows and run.
static int64_t pieces_across(const qn_task *task, int64_t n_runs) {
    const int64_t kv = task->cache->heads, group = task->in[0].parts / kv;
    return qn_ceil_div(group, heads_per_piece(task, n_runs)) * kv;
}

static int64_t max_rows(const qn_task *task, int64_t n_runs) {
    const int64_t n = QN_ATTEND_QUERIES / heads_per_piece(task, n_runs);
    return n > 0 ? n : 1;
}

// Rows of a piece: all that it can hold where there are runs, else as many as leave enough pieces.
static int64_t attend_rows(const qn_task *task, int64_t rows, int64_t n_runs) {
    const int64_t n = rows * pieces_across(task, n_runs) / ENOUGH_PIECES;
    const int64_t max = max_rows(task, n_runs);
    return n_runs > 1 ? max : n < 1 ? 1 : n < max ? n : max;
}

int64_t qn_cpu_attend_queries(const qn_task *task) {
    return qn_max(QN_ATTEND_QUERIES, task->in[0].parts / task->cache->heads);
}

// The maximum over all smaller numbers of rows and positions, too.
int64_t qn_cpu_pieces_attend(const qn_task *task, int64_t rows, int64_t cached) {
    const int64_t across = pieces_across(task, 1), blocks = qn_ceil_div(rows, max_rows(task, 1));
    const int64_t few = 2 * ENOUGH_PIECES / across + 1, alone = rows < few ? rows : few;
    const int64_t few_rows = rows < FEW_ROWS ? rows : FEW_ROWS;
    int64_t n = (blocks > alone ? blocks : alone) * across;
    for (int64_t r = attend_runs(task, few_rows, cached); r > 1; r--)
        n = qn_max(n, qn_ceil_div(few_rows, max_rows(task, r)) * r * pieces_across(task, r));
    return n;
}

// Positions of the longest segment of the step.
static int64_t step_cached(const qn_step *step) {
    int64_t cached = 0;
    for (int64_t b = 0; b < step->n_segs; b++)
        cached = qn_max(cached, step->seg_past[b] + step->seg_row[b + 1] - step->seg_row[b]);
    return cached;
}

static int64_t step_runs(const qn_task *task) {
    return task->rows > FEW_ROWS ? 1 : attend_runs(task, task->rows, step_cached(task->step));
}

qn_attend_cut qn_cpu_cut_queries(const qn_task *task, int64_t piece) {
    const int64_t n_runs = step_runs(task), all = pieces_across(task, n_runs);
    const int64_t parts = all / task->cache->heads, block = piece / all;
    const int64_t group = task->in[0].parts / task->cache->heads, kv = piece % all / parts;
    const qn_range heads = cut(piece % parts, heads_per_piece(task, n_runs), group);
    return (qn_attend_cut){
        .rows = cut(block / n_runs, attend_rows(task, task->rows, n_runs), task->rows),
        .kv = kv,
        .first_head = kv * group + heads.first,
        .end_head = kv * group + heads.end,
        .run = block % n_runs,
        .n_runs = n_runs,
        .is_last = parts > 1 || kv + 1 == task->cache->heads};
}

// As attend.c cuts it: a slab; for each query scores (64), two of (F'), q (E) and eight numbers.
int64_t qn_cpu_scratch_attend(const qn_task *task, int64_t rows) {
    (void)rows;
    const int64_t v = qn_round_up(task->cache->v_size, QN_PAGE_ROWS);
    return floats(QN_PAGE_ROWS * QN_PAGE_ROWS +
                  qn_cpu_attend_queries(task) * (QN_PAGE_ROWS + 2 * v + task->cache->k_size + 8));
}

static int64_t chunk_floats(const qn_task *task) {
    return QN_ATTEND_SUMS + qn_round_up(task->cache->v_size, QN_PAGE_ROWS);
}

int64_t qn_cpu_shared_attend(const qn_task *task, int64_t rows, int64_t cached) {
    const int64_t few_rows = rows < FEW_ROWS ? rows : FEW_ROWS;
    if (attend_runs(task, few_rows, cached) == 1) return 0;
    return floats(few_rows * task->in[0].parts * qn_ceil_div(cached, QN_ATTEND_CHUNK) *
                  chunk_floats(task));
}

float *qn_cpu_attend_chunk(const qn_task *task, int64_t row, int64_t head, int64_t chunk) {
    const int64_t n = qn_ceil_div(step_cached(task->step), QN_ATTEND_CHUNK);
    const int64_t at = (row * task->in[0].parts + head) * n + chunk;
    return (float *)task->shared + at * chunk_floats(task);
}

int64_t qn_cpu_pieces_merge(const qn_task *task, int64_t rows, int64_t cached) {
    const int64_t few_rows = rows < FEW_ROWS ? rows : FEW_ROWS;
    return attend_runs(task, few_rows, cached) == 1 ? 0 : few_rows * task->cache->heads;
}

qn_attend_cut qn_cpu_cut_merge(const qn_task *task, int64_t piece) {
    const int64_t group = task->in[0].parts / task->cache->heads, kv = piece % task->cache->heads;
    const bool is_whole = step_runs(task) == 1;
    return (qn_attend_cut){.rows = cut(piece / task->cache->heads, 1, is_whole ? 0 : task->rows),
                           .kv = kv,
                           .first_head = kv * group,
                           .end_head = (kv + 1) * group};
}

int qn_cpu_temps_attention(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const qn_dim *q = graph->values[node->in[0]].shape.dims; // (T, H, E)
    temp[0] = (qn_plan_arg){.parts = q[1].n, .width = q[2].n, .form = QN_WORD_f32};
    return 1;
}

// --- recurrent layers ---

// A segment has at least one row, so that there are no more segments than rows.
static int64_t seg_turns(int64_t rows) { return rows < QN_SEG_TURNS ? rows : QN_SEG_TURNS; }

static int64_t conv_blocks(const qn_task *task) {
    return qn_ceil_div(task->in[0].width, CONV_CHANNELS);
}

int64_t qn_cpu_pieces_conv(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return conv_blocks(task) * seg_turns(rows);
}

qn_range qn_cpu_cut_conv(const qn_task *task, int64_t piece) {
    return cut(piece % conv_blocks(task), CONV_CHANNELS, task->in[0].width);
}

int64_t qn_cpu_turn_conv(const qn_task *task, int64_t piece) { return piece / conv_blocks(task); }

int64_t qn_cpu_scratch_conv(const qn_task *task, int64_t rows) {
    (void)rows;
    return floats(CONV_CHANNELS * (2 * task->in[1].width - 1));
}

int64_t qn_cpu_pieces_delta(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    return task->in[1].parts * seg_turns(rows);
}

// As state_delta.c cuts it: a strip of (E, 32), and (E).
int64_t qn_cpu_scratch_delta(const qn_task *task, int64_t rows) {
    (void)rows;
    return floats(task->in[1].width * 33);
}
