// Keys and values of this step's rows into the cache.
#include "backends/cpu/kernels/attend.h"
#include "backends/cpu/kernels/rope.h"

typedef struct write_job {
    const qn_task *task;
    const qn_operand *k, *v, *angles; // (T, K, E), (T, K, F), (T, 2, N); angles may be NULL
    const float *norm;                // (E) of k, or NULL
    float *row;                       // room for one key or value, and for one as it is kept
    unsigned char *packed;
} write_job;

// After the floats (qn_cpu_scratch_kv).
static unsigned char *packed_room(const qn_task *task, void *scratch) {
    return (unsigned char *)scratch + qn_cpu_scratch_kv(task, task->rows) / 2;
}

// Where row r goes in the cache; NULL: nowhere.
static unsigned char *find_page(const write_job *job, int64_t r, int64_t *slot) {
    const qn_step *step = job->task->step;
    if (step->row_seg[r] < 0) return NULL;
    const int64_t position = row_position(step, r);
    *slot = position % QN_PAGE_ROWS;
    return cache_page(job->task->cache, step, step->row_seg[r], position / QN_PAGE_ROWS);
}

// The numbers of a key lie far apart: their lines are asked for before they are written.
static void fetch_key(const write_job *job, int64_t r, int64_t head) {
    const qn_cache_view *cache = job->task->cache;
    int64_t slot;
    unsigned char *page = find_page(job, r, &slot);
    if (!page) return;
    const int64_t bytes = QN_KEY_GROUP * qn_cpu_cache_row_bytes(cache->type, cache->k_size);
    unsigned char *at = cache_keys(cache, page, head) + slot / QN_KEY_GROUP * bytes;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 1, 3);
    __builtin_prefetch(cache_value(cache, page, head, slot), 1, 3);
}

static void write_row(const write_job *job, int64_t r, int64_t head) {
    const qn_cache_view *cache = job->task->cache;
    int64_t slot;
    unsigned char *page = find_page(job, r, &slot);
    if (!page) return;
    const float *k = part_of(job->k, r, head), *v = part_of(job->v, r, head);
    if (job->angles)
        rotate_head(job->row, k, row_of(job->angles, r), job->norm, cache->k_size,
                    job->task->attrs);
    else
        memcpy(job->row, k, (size_t)cache->k_size * sizeof *k);
    pack_row(cache, job->packed, job->row, cache->k_size);
    place_key(cache->type, cache_keys(cache, page, head), job->packed, cache->k_size, slot);
    memcpy(job->row, v, (size_t)cache->v_size * sizeof *v);
    pack_row(cache, cache_value(cache, page, head, slot), job->row, cache->v_size);
}

// cache, k, v, table
void QN_FN(kv_write)(const qn_task *task, int64_t piece, void *scratch) {
    const write_job job = {.task = task,
                           .k = &task->in[1],
                           .v = &task->in[2],
                           .row = scratch,
                           .packed = packed_room(task, scratch)};
    const qn_kv_cut cut = qn_cpu_cut_kv(task, piece);
    for (int64_t r = cut.rows.first; r < cut.rows.end; r++) write_row(&job, r, cut.head);
}

// cache, k, v, table, angles, norm?
void QN_FN(rotate_write)(const qn_task *task, int64_t piece, void *scratch) {
    const write_job job = {.task = task,
                           .k = &task->in[1],
                           .v = &task->in[2],
                           .angles = &task->in[4],
                           .norm = task->in[5].data,
                           .row = scratch,
                           .packed = packed_room(task, scratch)};
    const qn_kv_cut cut = qn_cpu_cut_kv(task, piece);
    for (int64_t r = cut.rows.first; r < cut.rows.end; r++) write_row(&job, r, cut.head);
}

// q, k, v, cache, angles, table, q_norm?, k_norm?, sinks?: turns q into temp[0], writes k and v.
void QN_FN(attention_turn)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *q = &task->in[0];
    const write_job job = {.task = task,
                           .k = &task->in[1],
                           .v = &task->in[2],
                           .angles = &task->in[4],
                           .norm = task->in[7].data,
                           .row = scratch,
                           .packed = packed_room(task, scratch)};
    const qn_kv_cut cut = qn_cpu_cut_kv(task, piece);
    const int64_t group = q->parts / task->cache->heads; // heads of q that share a key
    if (cut.rows.first < cut.rows.end) fetch_key(&job, cut.rows.first, cut.head);
    for (int64_t r = cut.rows.first; r < cut.rows.end; r++) {
        if (r + 1 < cut.rows.end) fetch_key(&job, r + 1, cut.head);
        for (int64_t h = cut.head * group; h < (cut.head + 1) * group; h++)
            rotate_head(part_of(&task->temp[0], r, h), part_of(q, r, h), row_of(&task->in[4], r),
                        task->in[6].data, q->width, task->attrs);
        write_row(&job, r, cut.head);
    }
}
