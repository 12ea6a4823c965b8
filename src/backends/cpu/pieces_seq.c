// How calls that know the sequence are cut into pieces, and what they need besides their operands.
#include "backends/cpu/attend_cut.h"

// Numbers of a piece, as in pieces.c; a convolution has about 4 products for each channel and row,
// and its scratch fits the first-level cache. Neither was tuned.
enum { ROW_NUMBERS = 4096, CONV_CHANNELS = 512 };
// Pieces of attention: those of one row, at least where heads allow it, and those of many rows:
// more read keys more often, fewer leave threads idle. 4 each for 8 threads; not measured.
enum { ATTEND_PIECES = 8, ENOUGH_PIECES = 32 };

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

// Heads of a kv head that one piece takes. All of them share what it reads; where there are few kv
// heads they are parted, so that there is work for several threads.
static int64_t heads_per_piece(const qn_task *task) {
    const int64_t kv = task->cache->heads, group = task->in[0].parts / kv;
    const int64_t wanted = qn_ceil_div(ATTEND_PIECES, kv), max = qn_ceil_div(group, 2);
    return qn_ceil_div(group, wanted < max ? wanted : max);
}

static int64_t parts_of_group(const qn_task *task) {
    return qn_ceil_div(task->in[0].parts / task->cache->heads, heads_per_piece(task));
}

static int64_t max_rows(const qn_task *task) {
    const int64_t n = QN_ATTEND_QUERIES / heads_per_piece(task);
    return n > 0 ? n : 1;
}

// As many rows as leave enough pieces.
static int64_t attend_rows(const qn_task *task, int64_t rows) {
    const int64_t all = rows * parts_of_group(task) * task->cache->heads;
    const int64_t n = all / ENOUGH_PIECES, max = max_rows(task);
    return n < 1 ? 1 : n < max ? n : max;
}

int64_t qn_cpu_attend_queries(const qn_task *task) {
    return max_rows(task) * heads_per_piece(task);
}

// The maximum over all smaller numbers of rows, too.
int64_t qn_cpu_pieces_attend(const qn_task *task, int64_t rows, int64_t cached) {
    (void)cached;
    const int64_t parts = parts_of_group(task) * task->cache->heads;
    const int64_t few = 2 * ENOUGH_PIECES / parts + 1, blocks = qn_ceil_div(rows, max_rows(task));
    const int64_t alone = rows < few ? rows : few;
    return (blocks > alone ? blocks : alone) * parts;
}

qn_attend_cut qn_cpu_cut_queries(const qn_task *task, int64_t piece) {
    const int64_t parts = parts_of_group(task), all = parts * task->cache->heads;
    const int64_t group = task->in[0].parts / task->cache->heads, kv = piece % all / parts;
    const qn_range heads = cut(piece % parts, heads_per_piece(task), group);
    return (qn_attend_cut){.rows = cut(piece / all, attend_rows(task, task->rows), task->rows),
                           .kv = kv,
                           .first_head = kv * group + heads.first,
                           .end_head = kv * group + heads.end};
}

// As attend.c cuts it: a slab; for each query scores (64), two of (F'), q (E) and six numbers.
int64_t qn_cpu_scratch_attend(const qn_task *task, int64_t rows) {
    (void)rows;
    const int64_t v = qn_round_up(task->cache->v_size, 32);
    const int64_t slab = 32 * (v > QN_PAGE_ROWS ? v : QN_PAGE_ROWS);
    return floats(slab +
                  qn_cpu_attend_queries(task) * (QN_PAGE_ROWS + 2 * v + task->cache->k_size + 6));
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
