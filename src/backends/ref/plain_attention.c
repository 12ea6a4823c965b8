// Keys and values in pages, and attention over them, one row and head at a time.
#include "backends/ref/plain.h"

#include <math.h>

enum { CHUNK = 256, BLOCKS = CHUNK / QN_PAGE_ROWS };

// --- pages ---------------------------------------------------------------------------------------

int64_t qn_plain_kv_bytes(qn_type type, int64_t size) {
    const qn_type_info *info = qn_type_get(type);
    return qn_plain_ceil(size, info->block) * info->bytes;
}

unsigned char *qn_plain_key(const qn_cache_view *cache, unsigned char *page, int64_t head,
                            int64_t slot) {
    return page + (head * QN_PAGE_ROWS + slot) * qn_plain_kv_bytes(cache->type, cache->k_size);
}

unsigned char *qn_plain_value(const qn_cache_view *cache, unsigned char *page, int64_t head,
                              int64_t slot) {
    return qn_plain_key(cache, page, cache->heads, 0) +
           (head * QN_PAGE_ROWS + slot) * qn_plain_kv_bytes(cache->type, cache->v_size);
}

static int64_t whole_blocks(qn_type type, int64_t n) {
    const int64_t block = qn_type_get(type)->block;
    return qn_plain_ceil(n, block) * block;
}

// `from` has room for whole blocks. Halves that are too large are infinite here, so that they are
// seen.
static void store_row(unsigned char *to, const qn_cache_view *cache, float *from, int64_t n) {
    const qn_type type = cache->type;
    const int64_t whole = whole_blocks(type, n);
    if (cache->is_rotated) qn_kv_rotate(from, n);
    for (int64_t i = n; i < whole; i++) from[i] = 0;
    if (type == QN_TYPE_F16)
        for (int64_t i = 0; i < n; i++) qn_store_u16(to + 2 * i, qn_half_encode(from[i]));
    else
        qn_type_get(type)->pack(to, from, whole, NULL);
}

static int64_t position_of(const qn_step *step, int64_t row) {
    const int32_t seg = step->row_seg[row];
    return step->seg_past[seg] + (row - step->seg_row[seg]);
}

// The page with positions 64 * block ... of a segment; NULL: there is none.
static unsigned char *find_page(const qn_plain_task *task, int64_t seg, int64_t block) {
    const qn_step *step = task->step;
    const qn_cache_view *cache = task->cache;
    const int64_t groups = step->n_groups > 0 ? step->n_groups : 1;
    const int32_t page =
        step->seg_pages[(seg * groups + cache->group) * step->pages_per_seg + block];
    return page < 0 ? NULL : cache->pages + page * cache->page_bytes + cache->offset;
}

// --- writing -------------------------------------------------------------------------------------

// A key or a value, up to whole blocks.
static int64_t kv_room(const qn_cache_view *cache) {
    return whole_blocks(cache->type, qn_max(cache->k_size, cache->v_size));
}

int64_t qn_plain_room_kv_write(const qn_plain_task *task) { return kv_room(task->cache); }

// angles (T, 2, N) and norm (E) may be absent: the key is written as it is.
typedef struct writing {
    const qn_plain_operand *k, *v, *angles, *norm; // (T, K, E), (T, K, F)
} writing;

static void write_row(const qn_plain_task *task, const writing *w, int64_t r) {
    const qn_cache_view *cache = task->cache;
    if (task->step->row_seg[r] < 0) return;
    const int64_t position = position_of(task->step, r), slot = position % QN_PAGE_ROWS;
    unsigned char *page = find_page(task, task->step->row_seg[r], position / QN_PAGE_ROWS);
    for (int64_t h = 0; page && h < cache->heads; h++) {
        const float *k = qn_plain_part(w->k, r, h), *v = qn_plain_part(w->v, r, h);
        if (w->angles)
            qn_plain_turn_head(task->room, k, qn_plain_row(w->angles, r),
                               (const float *)(void *)w->norm->data, cache->k_size, task->attrs);
        else
            memcpy(task->room, k, (size_t)cache->k_size * sizeof *k);
        store_row(qn_plain_key(cache, page, h, slot), cache, task->room, cache->k_size);
        memcpy(task->room, v, (size_t)cache->v_size * sizeof *v);
        store_row(qn_plain_value(cache, page, h, slot), cache, task->room, cache->v_size);
    }
}

static void write_rows(const qn_plain_task *task, const writing *w) {
    for (int64_t r = 0; r < task->rows; r++) write_row(task, w, r);
}

// cache, k, v, table
void qn_plain_kv_write(const qn_plain_task *task) {
    write_rows(task, &(writing){.k = &task->in[1], .v = &task->in[2]});
}

// cache, k, v, table, angles, norm?
void qn_plain_rotate_write(const qn_plain_task *task) {
    write_rows(task, &(writing){.k = &task->in[1],
                                .v = &task->in[2],
                                .angles = &task->in[4],
                                .norm = &task->in[5]});
}

// --- reading -------------------------------------------------------------------------------------

// One row and head, and what it needs besides its numbers.
typedef struct query {
    const qn_plain_task *task;
    int64_t seg, kv;    // segment of the row; head of keys and values
    int64_t first, end; // positions that it sees
    const float *q;     // (E)
    float *scores;      // (64)
    float *kept;        // a key or value as floats
} query;

// A softmax over some positions: the largest score, the sum of p, the sum of p v (F).
typedef struct softmax {
    float m, l;
    float *o;
    bool is_empty;
} softmax;

static softmax open_softmax(float *o, int64_t n) {
    memset(o, 0, (size_t)n * sizeof *o);
    return (softmax){.m = -INFINITY, .o = o, .is_empty = true};
}

// Of a row that `window` and `rule` let see positions first ... end - 1.
static void set_range(query *a, int64_t r) {
    const qn_step *step = a->task->step;
    const qn_attrs *attrs = a->task->attrs;
    const int64_t position = position_of(step, r), window = attrs->window;
    const int64_t lowest = attrs->rule == QN_WORD_after_first;
    a->first = window > 0 ? qn_max(position - window + 1, lowest) : lowest;
    a->end = attrs->rule == QN_WORD_full
                 ? step->seg_past[a->seg] + step->seg_row[a->seg + 1] - step->seg_row[a->seg]
                 : position + 1;
}

static float score_key(const query *a, const unsigned char *key) {
    const qn_cache_view *cache = a->task->cache;
    const qn_attrs *attrs = a->task->attrs;
    float sum = 0;
    qn_kv_unpack(a->kept, cache->type, key, cache->k_size);
    for (int64_t e = 0; e < cache->k_size; e++) sum = fmaf(a->q[e], a->kept[e], sum);
    const float score = sum * attrs->scale;
    return attrs->cap > 0 ? attrs->cap * math_tanh(score / attrs->cap) : score;
}

// Positions first ... end - 1 of a page join the softmax; at least one.
static void add_positions(const query *a, softmax *s, unsigned char *page, int first, int end) {
    const qn_cache_view *cache = a->task->cache;
    const int64_t n = cache->v_size;
    float max = s->m, *p = a->scores;
    for (int j = first; j < end; j++) {
        p[j] = score_key(a, qn_plain_key(cache, page, a->kv, j));
        max = p[j] > max ? p[j] : max;
    }
    const float c = math_exp(s->m - max);
    for (int j = 0; j < QN_PAGE_ROWS; j++) p[j] = j < first || j >= end ? 0 : math_exp(p[j] - max);
    s->l = fmaf(s->l, c, qn_plain_sum_lanes(p, QN_PAGE_ROWS, 0, 16, QN_PLAIN_PLAIN));
    for (int64_t f = 0; !s->is_empty && f < n; f++) s->o[f] *= c;
    for (int j = first; j < end; j++) {
        qn_kv_unpack(a->kept, cache->type, qn_plain_value(cache, page, a->kv, j), n);
        for (int64_t f = 0; f < n; f++) s->o[f] = fmaf(p[j], a->kept[f], s->o[f]);
    }
    s->m = max;
    s->is_empty = false;
}

// What the row sees of a chunk of 256 positions.
static softmax attend_chunk(const query *a, float *o, int64_t chunk) {
    softmax s = open_softmax(o, a->task->cache->v_size);
    for (int64_t block = chunk * BLOCKS; block < (chunk + 1) * BLOCKS; block++) {
        const int64_t from = block * QN_PAGE_ROWS;
        const int64_t first = qn_max(a->first - from, 0);
        const int64_t end = qn_min(a->end - from, QN_PAGE_ROWS);
        unsigned char *page = first < end ? find_page(a->task, a->seg, block) : NULL;
        if (page) add_positions(a, &s, page, (int)first, (int)end);
    }
    return s;
}

static void merge(softmax *all, const softmax *part, int64_t n) {
    const float m = part->m > all->m ? part->m : all->m;
    const float a = math_exp(all->m - m), b = math_exp(part->m - m);
    all->m = m;
    all->l = fmaf(all->l, a, part->l * b);
    for (int64_t f = 0; f < n; f++) all->o[f] = fmaf(all->o[f], a, part->o[f] * b);
}

static void finish(float *to, const softmax *all, const float *sink, int64_t n) {
    float a = 1, total = all->l;
    if (sink) {
        const float m = *sink > all->m ? *sink : all->m;
        a = math_exp(all->m - m);
        total = fmaf(total, a, math_exp(*sink - m));
    }
    const float inverse = total == 0 ? 0 : 1.0f / total; // 0: saw nothing
    for (int64_t f = 0; f < n; f++) to[f] = all->o[f] * a * inverse;
}

// Room: scores (64), o of a chunk and of all (F), a key or value, q (E) where it is turned, and
// where it is rotated.
int64_t qn_plain_room_attend(const qn_plain_task *task) {
    const qn_cache_view *cache = task->cache;
    return QN_PAGE_ROWS + 2 * cache->v_size + kv_room(cache) + 2 * cache->k_size;
}

// One row and head: q (E) -> to (F).
static void attend_head(const qn_plain_task *task, float *to, const float *q, const float *sinks,
                        int64_t r, int64_t head) {
    const qn_cache_view *cache = task->cache;
    const int64_t n = cache->v_size;
    float *o = task->room + QN_PAGE_ROWS;
    query a = {.task = task,
               .seg = task->step->row_seg[r],
               .kv = head / (task->in[0].parts / cache->heads),
               .q = q,
               .scores = task->room,
               .kept = o + 2 * n};
    if (a.seg < 0) { // padding
        memset(to, 0, (size_t)n * sizeof *to);
        return;
    }
    if (cache->is_rotated) {
        float *rotated = a.kept + kv_room(cache);
        memcpy(rotated, q, (size_t)cache->k_size * sizeof *q);
        qn_kv_rotate(rotated, cache->k_size);
        a.q = rotated;
    }
    set_range(&a, r);
    softmax all = open_softmax(o + n, n);
    for (int64_t chunk = a.first / CHUNK; chunk * CHUNK < a.end; chunk++) {
        const softmax part = attend_chunk(&a, o, chunk);
        if (!part.is_empty) merge(&all, &part, n);
    }
    finish(to, &all, sinks ? &sinks[head] : NULL, n);
    if (cache->is_rotated) qn_kv_rotate(to, n);
}

// q (T, H, E), cache, table, sinks? (H)
void qn_plain_attend(const qn_plain_task *task) {
    const float *sinks = (const float *)(void *)task->in[3].data;
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t h = 0; h < task->in[0].parts; h++)
            attend_head(task, qn_plain_part(&task->out[0], r, h), qn_plain_part(&task->in[0], r, h),
                        sinks, r, h);
    }
}

// q, k, v, cache, angles, table, q_norm?, k_norm?, sinks?. All rows are written before one is read.
void qn_plain_attention(const qn_plain_task *task) {
    const qn_plain_operand *q = &task->in[0];
    const float *sinks = (const float *)(void *)task->in[8].data;
    const float *norm = (const float *)(void *)task->in[6].data;
    float *turned = task->room + qn_plain_room_attend(task) - q->width;
    write_rows(task, &(writing){.k = &task->in[1],
                                .v = &task->in[2],
                                .angles = &task->in[4],
                                .norm = &task->in[7]});
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t h = 0; h < q->parts; h++) {
            qn_plain_turn_head(turned, qn_plain_part(q, r, h), qn_plain_row(&task->in[4], r), norm,
                               q->width, task->attrs);
            attend_head(task, qn_plain_part(&task->out[0], r, h), turned, sinks, r, h);
        }
    }
}
