// The gated delta rule, token by token. For one value head, S (E, F):
//
//   S' = exp(g) S                          change_j = (v_j - known_j) * beta
//   known_j = fma chain over i of S'_ij k_i     S_ij = fma(k_i, change_j, S'_ij)
//   out_j = fma chain over i of S_ij (q_i * scale)
//
// chains from 0 with i ascending; lanes are j. A piece is one key head, with all value heads that
// use it (they share the key's place in the log), of some segments.
//
// Columns j do not know each other. So a strip of them, which fits the first-level cache, goes
// through all tokens before the next strip does; and one pass over the strip ends a token
// (S', change -> S, out) and begins the next (S -> S', known).
#include "backends/cpu/kernels/lanes16.h"
#include "backends/kernel_math.h"
#include "backends/cpu/kernels/slot_segment.h"

#include <string.h>

// With E = 128 a strip has 16 KiB, half of a first-level cache. 16 heads of 128 x 128, 64 rows, one
// thread, AVX-512: 21.8 us a row instead of 31.5 without strips. Other widths were not measured.
enum { COLUMNS = 32, VECTORS = COLUMNS / QN_LANES };

typedef struct delta_job {
    const qn_task *task;
    int64_t key_head, key_heads, heads; // this piece's; G, H
    int64_t k_size, v_size;             // E, F
    float *strip;                       // (E, COLUMNS)
    float *q;                           // (E) q * scale
} delta_job;

// What a row brings for one value head, and where its result goes. q and out are NULL where nothing
// is read.
typedef struct token {
    const float *q, *k, *v; // (E), (E), (F)
    float *out;             // (F)
    float g, beta;
} token;

// Columns `first` ... of the state of one value head.
typedef struct columns {
    float *state; // (E, F) at the first column
    int64_t first, n;
} columns;

// --- one pass over a strip ---

// Where a pass reads and writes (E, COLUMNS): the strip or the state.
typedef struct pass {
    const float *from;
    float *to;
    int64_t from_stride, to_stride;
    f32v known[VECTORS]; // of the token that began
    f32v out[VECTORS];   // of the token that ends
} pass;

// Ends token `now`, whose changes are given, and begins token `next`; what it does is constant.
QN_INLINE void run_pass(const delta_job *job, pass *p, const float *k, const f32v *change,
                        const float *next_k, float decay, const bool ends, const bool reads,
                        const bool begins) {
    const int64_t n = job->k_size;
    const int64_t from_stride = p->from_stride, to_stride = p->to_stride;
    const float *from = p->from, *q = job->q;
    float *to = p->to;
    f32v known[VECTORS] = {{0}}, out[VECTORS] = {{0}}, by[VECTORS];
    for (int v = 0; v < VECTORS; v++) by[v] = ends ? change[v] : known[v];
    const f32v left = all_f32(decay);
    for (int64_t i = 0; i < n; i++, from += from_stride, to += to_stride) {
        const f32v now_k = ends ? held(all_f32(k[i])) : left;
        const f32v now_q = reads ? held(all_f32(q[i])) : left;
        const f32v then_k = begins ? held(all_f32(next_k[i])) : left;
        if (!ends) __builtin_prefetch(from + COLUMNS); // the next strip
        for (int v = 0; v < VECTORS; v++) {
            f32v x = load_f32(from + v * QN_LANES);
            if (ends) x = fma_f32(now_k, by[v], x);
            if (reads) out[v] = fma_f32(x, now_q, out[v]);
            if (begins) x = x * left;
            if (begins) known[v] = fma_f32(x, then_k, known[v]);
            store_f32(to + v * QN_LANES, x);
        }
    }
    memcpy(p->known, known, sizeof known);
    memcpy(p->out, out, sizeof out);
}

static void begin_token(const delta_job *job, pass *p, const token *next) {
    run_pass(job, p, NULL, NULL, next->k, math_exp(next->g), false, false, true);
}

static void end_token(const delta_job *job, pass *p, const token *now, const f32v *change,
                      const token *next) {
    const float decay = next ? math_exp(next->g) : 0;
    const float *next_k = next ? next->k : NULL;
    const float scale = job->task->attrs->scale, *from = now->q;
    const int64_t n = now->out ? job->k_size : 0;
    float *q = job->q;
    for (int64_t i = 0; i < n; i++) q[i] = from[i] * scale;
    if (now->out && next)
        run_pass(job, p, now->k, change, next_k, decay, true, true, true);
    else if (now->out)
        run_pass(job, p, now->k, change, next_k, decay, true, true, false);
    else if (next)
        run_pass(job, p, now->k, change, next_k, decay, true, false, true);
    else
        run_pass(job, p, now->k, change, next_k, decay, true, false, false);
}

// --- tokens of a strip ---

static void find_change(f32v *change, const f32v *known, const token *t, const columns *c) {
    float room[COLUMNS] = {0};
    const float *v = t->v + c->first;
    if (c->n < COLUMNS) v = memcpy(room, v, (size_t)c->n * sizeof *v);
    for (int i = 0; i < VECTORS; i++)
        change[i] = (load_f32(v + i * QN_LANES) - known[i]) * all_f32(t->beta);
}

static void store_out(const token *t, const f32v *out, const columns *c) {
    float *to = t->out + c->first;
    if (c->n < COLUMNS) {
        memcpy(to, out, (size_t)c->n * sizeof *to);
        return;
    }
    for (int i = 0; i < VECTORS; i++) store_f32(to + i * QN_LANES, out[i]);
}

static void copy_columns(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                         int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)n * sizeof *to);
}

typedef token token_fn(const delta_job *job, const void *from, int64_t i);

// Tokens 0 ... n - 1 that `get` gives, from the state on; the state is changed if is_kept. A strip
// with fewer columns than others has zeros in their place.
static void run_tokens(const delta_job *job, const columns *c, token_fn *get, const void *from,
                       int64_t n, bool is_kept) {
    const bool is_full = c->n == COLUMNS;
    if (n == 0) return;
    if (!is_full) {
        memset(job->strip, 0, (size_t)(job->k_size * COLUMNS) * sizeof *job->strip);
        copy_columns(job->strip, COLUMNS, c->state, job->v_size, job->k_size, c->n);
    }
    pass p = {.from = is_full ? c->state : job->strip,
              .from_stride = is_full ? job->v_size : COLUMNS,
              .to = job->strip,
              .to_stride = COLUMNS};
    token now = get(job, from, 0);
    begin_token(job, &p, &now);
    p.from = job->strip;
    p.from_stride = COLUMNS;
    for (int64_t i = 0; i < n; i++) {
        f32v change[VECTORS];
        const bool is_last = i + 1 == n;
        const token next = is_last ? now : get(job, from, i + 1);
        if (is_last && is_full && is_kept) {
            p.to = c->state;
            p.to_stride = job->v_size;
        }
        find_change(change, p.known, &now, c);
        end_token(job, &p, &now, change, is_last ? NULL : &next);
        if (now.out) store_out(&now, p.out, c);
        now = next;
    }
    if (!is_full && is_kept)
        copy_columns(c->state, job->v_size, job->strip, COLUMNS, job->k_size, c->n);
}

// A segment and a value head, from which tokens are got.
typedef struct source {
    const segment *s;
    int64_t head, first; // first token, of the log or of the segment's rows
} source;

static token logged_token(const delta_job *job, const void *from, int64_t i) {
    const source *at = from;
    const float *row = at->s->log + (at->first + i) * job->task->slots->log_size;
    const float *v = row + job->key_heads * job->k_size, *g = v + job->heads * job->v_size;
    return (token){.k = row + job->key_head * job->k_size,
                   .v = v + at->head * job->v_size,
                   .g = g[at->head],
                   .beta = g[job->heads + at->head]};
}

static token step_token(const delta_job *job, const void *from, int64_t i) {
    const source *at = from;
    const qn_operand *in = job->task->in;
    const int64_t r = at->s->first + at->first + i, h = at->head;
    return (token){.q = part_of(&in[0], r, job->key_head),
                   .k = part_of(&in[1], r, job->key_head),
                   .v = part_of(&in[2], r, h),
                   .out = part_of(&job->task->out[0], r, h),
                   .g = ((const float *)row_of(&in[3], r))[h],
                   .beta = ((const float *)row_of(&in[4], r))[h]};
}

static void log_token(const delta_job *job, float *row, const token *t, int64_t h) {
    float *v = row + job->key_heads * job->k_size, *g = v + job->heads * job->v_size;
    memcpy(row + job->key_head * job->k_size, t->k, (size_t)job->k_size * sizeof *row);
    memcpy(v + h * job->v_size, t->v, (size_t)job->v_size * sizeof *row);
    g[h] = t->g;
    g[job->heads + h] = t->beta;
}

// All rows of a value head: those of the log, the certain ones, and the others.
static void run_head(const delta_job *job, const segment *s, int64_t h) {
    const int64_t n = job->k_size * job->v_size;
    float *state = s->state + h * n;
    if (s->is_new) memset(state, 0, (size_t)n * sizeof *state);
    for (int64_t first = 0; first < job->v_size; first += COLUMNS) {
        const int64_t left = job->v_size - first;
        const columns c = {state + first, first, left < COLUMNS ? left : COLUMNS};
        const source at = {.s = s, .head = h}, rest = {.s = s, .head = h, .first = s->commit};
        run_tokens(job, &c, logged_token, &at, s->accept, true);
        run_tokens(job, &c, step_token, &at, s->commit, true);
        run_tokens(job, &c, step_token, &rest, s->rows - s->commit, false);
    }
}

static void log_rows(const delta_job *job, const segment *s, int64_t h) {
    const qn_slots_view *slots = job->task->slots;
    const source at = {.s = s, .head = h, .first = s->commit};
    for (int64_t i = 0; i < s->rows - s->commit && i < slots->log_rows; i++) {
        const token t = step_token(job, &at, i);
        log_token(job, s->log + i * slots->log_size, &t, h);
    }
}

static bool uses_key_head(const delta_job *job, int64_t h) {
    const bool is_tiled = job->task->attrs->heads == QN_WORD_tiled;
    return job->key_head == (is_tiled ? h % job->key_heads : h / (job->heads / job->key_heads));
}

// The log is read by every head before any writes it.
static void delta_segment(const delta_job *job, int64_t seg) {
    const segment s = open_segment(job->task, seg);
    for (int64_t h = 0; h < job->heads; h++) {
        if (uses_key_head(job, h)) run_head(job, &s, h);
    }
    for (int64_t h = 0; h < job->heads; h++) {
        if (uses_key_head(job, h)) log_rows(job, &s, h);
    }
}

// q, k (T, G, E), v (T, H, F), g, beta (T, H), state, table
void QN_FN(delta)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_operand *k = &task->in[1], *v = &task->in[2];
    delta_job job = {.task = task,
                     .key_head = piece % k->parts,
                     .key_heads = k->parts,
                     .heads = v->parts,
                     .k_size = k->width,
                     .v_size = v->width,
                     .strip = scratch};
    job.q = job.strip + job.k_size * COLUMNS;
    const int64_t first_seg = piece / k->parts;
    for (int64_t seg = first_seg; seg < task->step->n_segs; seg += QN_SEG_TURNS)
        delta_segment(&job, seg);
    for (int64_t r = 0; first_seg == 0 && r < task->rows; r++) {
        for (int64_t h = 0; is_inert(task->step, r) && h < job.heads; h++) {
            if (uses_key_head(&job, h))
                memset(part_of(&task->out[0], r, h), 0, (size_t)job.v_size * sizeof(float));
        }
    }
}
