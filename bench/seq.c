// Speed of the kernels that know the sequence and of those along rows, as CSV: microseconds of one
// thread for one row, the median of many calls. Thread time, so that a busy machine matters little.
// State lies in several layers that take turns, so that it comes from memory.
//
//   bench_seq [LEVEL]   default: the best
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RUNS = 400, STATE_BYTES = 128 << 20, MAX_ROWS = 64, MAX_DEPTH = 4160 };

typedef struct rig {
    const qn_cpu_level *backend;
    qn_attrs attrs;
    qn_task task;
    int32_t pos[4 * MAX_ROWS], row_seg[MAX_ROWS], seg_row[2], seg_past[1], commit[1], zero[1];
    int32_t pages[MAX_DEPTH / QN_PAGE_ROWS + 2];
    qn_step step;
    qn_cache_view cache;
    qn_slots_view slots;
    int n_layers;
    int64_t layer_bytes; // of state, 0: none
    unsigned char *state;
} rig;

static void *lend(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
    if (!p) exit(1);
    memset(p, 0, (size_t)bytes);
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// One segment of `rows` rows behind `past`.
static void rig_open(rig *r, const qn_cpu_level *backend, int32_t rows, int32_t past) {
    memset(r, 0, sizeof *r);
    r->backend = backend;
    r->seg_row[1] = r->commit[0] = rows;
    r->seg_past[0] = past;
    for (int32_t i = 0; i < rows; i++) r->pos[4 * i] = past + i;
    for (int32_t i = 0; i < MAX_DEPTH / QN_PAGE_ROWS + 2; i++) r->pages[i] = i;
    r->step = (qn_step){.n_rows = rows,
                        .n_segs = 1,
                        .pos = r->pos,
                        .row_seg = r->row_seg,
                        .seg_row = r->seg_row,
                        .seg_past = r->seg_past,
                        .seg_pages = r->pages,
                        .pages_per_seg = MAX_DEPTH / QN_PAGE_ROWS + 2,
                        .n_groups = 1,
                        .seg_slot = r->zero,
                        .seg_accept = r->zero,
                        .seg_commit = r->commit};
    r->task = (qn_task){
        .attrs = &r->attrs, .step = &r->step, .cache = &r->cache, .slots = &r->slots, .rows = rows};
    r->n_layers = 1;
}

// Rows of numbers around 0; `is_param`: one row.
static qn_operand numbers(const rig *r, int64_t parts, int64_t width, qn_word form, bool is_param) {
    const int64_t bytes = parts * r->backend->backend.row_bytes(form, width);
    const int64_t rows = is_param ? 1 : r->task.rows;
    float *data = lend(rows * bytes);
    for (int64_t i = 0; form == QN_WORD_f32 && i < rows * bytes / 4; i++)
        data[i] = (float)(i * 2654435761 % 1021) * 0.001f - 0.5f;
    return (qn_operand){
        .data = data, .stride = is_param ? 0 : bytes, .parts = parts, .width = width, .form = form};
}

// So many layers that they do not fit a cache.
static void give_state(rig *r, int64_t bytes) {
    r->layer_bytes = (bytes + 63) / 64 * 64;
    r->n_layers = (int)(STATE_BYTES / r->layer_bytes) + 1;
    r->state = lend(r->n_layers * r->layer_bytes);
}

static const qn_kernel *find_kernel(const rig *r, const char *name) {
    for (int i = 0; i < r->backend->backend.n_kernels; i++) {
        if (strcmp(r->backend->kernels[i].name, name) == 0) return &r->backend->kernels[i];
    }
    exit(1);
}

static void run_pieces(const rig *r, const qn_kernel *kernel, void *scratch) {
    const int64_t cached = r->seg_past[0] + r->task.rows;
    const int64_t n = kernel->pieces(&r->task, r->task.rows, cached);
    for (int64_t piece = 0; piece < n; piece++) kernel->run(&r->task, piece, scratch);
}

// `next` is the op's next stage, or NULL.
static void rig_run(rig *r, const char *name, const char *next, const char *what) {
    const qn_kernel *kernel = find_kernel(r, name), *then = next ? find_kernel(r, next) : NULL;
    void *scratch = lend(kernel->scratch(&r->task, r->task.rows));
    r->task.shared = lend(kernel->shared(&r->task, r->task.rows, MAX_DEPTH));
    double spent[MAX_RUNS], total = 0;
    int n_runs = 0;
    for (int i = -2; i < MAX_RUNS && total < 1.5e5; i++) {
        unsigned char *layer = r->state + (i + 2) % r->n_layers * r->layer_bytes;
        r->cache.pages = r->slots.slots = layer;
        const double start = now();
        run_pieces(r, kernel, scratch);
        if (then) run_pieces(r, then, scratch);
        if (i < 0) continue;
        spent[n_runs++] = now() - start;
        total += now() - start;
    }
    qsort(spent, (size_t)n_runs, sizeof *spent, compare);
    printf("%s,%s,%s,%d,%.2f\n", r->backend->name, name, what, (int)r->task.rows,
           spent[n_runs / 2] / (double)r->task.rows);
    fflush(stdout);
    for (int i = 0; i < QN_MAX_IN; i++) free(r->task.in[i].data);
    for (int i = 0; i < QN_MAX_OUT; i++) free(r->task.out[i].data);
    free(r->task.shared);
    free(scratch);
    free(r->state);
}

// --- kernels ---

typedef struct heads {
    int32_t heads, kv_heads, size;
} heads;

static void run_attend(const qn_cpu_level *backend, heads h, qn_type type, int32_t rows,
                       int32_t past, bool is_warm) {
    rig r;
    char what[80];
    rig_open(&r, backend, rows, past);
    r.attrs.scale = 0.1f;
    r.attrs.rule = QN_WORD_causal;
    r.cache =
        (qn_cache_view){.type = type, .heads = h.kv_heads, .k_size = h.size, .v_size = h.size};
    r.cache.page_bytes = backend->backend.cache_bytes(type, h.kv_heads, h.size, h.size);
    r.task.in[0] = numbers(&r, h.heads, h.size, QN_WORD_f32, false);
    r.task.out[0] = numbers(&r, h.heads, h.size, QN_WORD_f32, false);
    give_state(&r, r.cache.page_bytes * ((past + rows - 1) / QN_PAGE_ROWS + 1));
    if (is_warm) r.n_layers = 1;
    // Any bits that are small numbers in every type.
    for (int64_t i = 0; i < r.n_layers * r.layer_bytes; i += 4) {
        const float x = (float)(i % 1021) * 0.001f - 0.5f;
        if (type == QN_TYPE_F32)
            memcpy(r.state + i, &x, 4);
        else
            memset(r.state + i, 0x20 + (int)(i / 4 % 8), 4);
    }
    snprintf(what, sizeof what, "%s %dx%d/%d behind %d%s", qn_type_get(type)->name, h.heads, h.size,
             h.kv_heads, past, is_warm ? " warm" : "");
    rig_run(&r, "attend", "attend_merge", what);
}

static void run_write(const qn_cpu_level *backend, heads h, qn_type type, int32_t rows) {
    rig r;
    char what[80];
    rig_open(&r, backend, rows, 100);
    r.attrs.rotate = h.size;
    r.attrs.pairs = QN_WORD_half;
    r.attrs.eps = 1e-6f;
    r.cache =
        (qn_cache_view){.type = type, .heads = h.kv_heads, .k_size = h.size, .v_size = h.size};
    r.cache.page_bytes = backend->backend.cache_bytes(type, h.kv_heads, h.size, h.size);
    r.task.in[1] = numbers(&r, h.kv_heads, h.size, QN_WORD_f32, false);
    r.task.in[2] = numbers(&r, h.kv_heads, h.size, QN_WORD_f32, false);
    r.task.in[4] = numbers(&r, 2, h.size / 2, QN_WORD_f32, false);
    r.task.in[5] = numbers(&r, 1, h.size, QN_WORD_f32, true);
    give_state(&r, r.cache.page_bytes * 4);
    snprintf(what, sizeof what, "%s %dx%d", qn_type_get(type)->name, h.kv_heads, h.size);
    rig_run(&r, "rotate_write", NULL, what);
}

static void run_delta(const qn_cpu_level *backend, heads h, int32_t rows) {
    rig r;
    char what[80];
    rig_open(&r, backend, rows, 100);
    r.attrs.scale = 0.1f;
    for (int i = 0; i < 2; i++) r.task.in[i] = numbers(&r, h.kv_heads, h.size, QN_WORD_f32, false);
    r.task.in[2] = numbers(&r, h.heads, h.size, QN_WORD_f32, false);
    for (int i = 3; i < 5; i++) r.task.in[i] = numbers(&r, 1, h.heads, QN_WORD_f32, false);
    r.task.out[0] = numbers(&r, h.heads, h.size, QN_WORD_f32, false);
    for (int64_t i = 0; i < rows * h.heads; i++) ((float *)r.task.in[3].data)[i] = -0.5f;
    const int64_t state_size = (int64_t)h.heads * h.size * h.size;
    r.slots = (qn_slots_view){.slot_bytes = state_size * 4, .state_size = state_size};
    give_state(&r, r.slots.slot_bytes);
    snprintf(what, sizeof what, "%dx%d", h.heads, h.size);
    rig_run(&r, "delta", NULL, what);
}

static void run_conv(const qn_cpu_level *backend, int64_t channels, int32_t rows) {
    rig r;
    char what[80];
    rig_open(&r, backend, rows, 100);
    r.task.in[0] = numbers(&r, 1, channels, QN_WORD_f32, false);
    r.task.in[1] = numbers(&r, channels, 4, QN_WORD_f32, true);
    r.task.out[0] = numbers(&r, 1, channels, QN_WORD_f32, false);
    r.slots = (qn_slots_view){.slot_bytes = channels * 12, .state_size = channels * 3};
    give_state(&r, r.slots.slot_bytes);
    snprintf(what, sizeof what, "%d", (int)channels);
    rig_run(&r, "conv", NULL, what);
}

// x, a weight or another x, and results as wide as x.
static void run_rows(const qn_cpu_level *backend, const char *name, int64_t parts, int64_t width,
                     qn_word form, int n_in, int32_t rows) {
    rig r;
    char what[80];
    rig_open(&r, backend, rows, 100);
    r.attrs.eps = 1e-6f;
    r.attrs.scale = 2;
    r.attrs.cap = 30;
    r.attrs.rotate = width;
    r.attrs.pairs = QN_WORD_half;
    for (int i = 0; i < n_in; i++)
        r.task.in[i] = numbers(&r, parts, width, QN_WORD_f32, i > 0 && i == n_in - 1);
    r.task.out[0] = numbers(&r, parts, width, strcmp(name, "add_norm") ? form : QN_WORD_f32, false);
    r.task.out[1] = numbers(&r, parts, width, form, false);
    snprintf(what, sizeof what, "%dx%d %s", (int)parts, (int)width, qn_word_get(form)->name);
    rig_run(&r, name, NULL, what);
}

int main(int argc, char **argv) {
    static const heads qwen = {16, 8, 128}, llama = {32, 8, 64}, gemma = {4, 1, 256};
    static const qn_type types[] = {QN_TYPE_F32, QN_TYPE_F16, QN_TYPE_Q8_0};
    static const qn_word forms[] = {QN_WORD_i12_256, QN_WORD_i8_32};
    static const char *const maps[] = {"silu", "gelu", "sigmoid", "softplus", "softcap"};
    qn_err err;
    const qn_cpu_level *backend;
    if (qn_cpu_level_find(&backend, argc > 1 ? argv[1] : NULL, &err)) {
        fprintf(stderr, "bench_seq: %s\n", err.message);
        return 1;
    }
    printf("level,kernel,shape,rows,us_per_row\n");
    for (int i = 0; i < 3; i++) {
        run_attend(backend, qwen, types[i], 1, 1023, true);
        run_attend(backend, qwen, types[i], 1, 1023, false);
        run_attend(backend, qwen, types[i], 32, 1023 - 32, false);
        run_attend(backend, qwen, types[i], 64, 0, false);
        run_write(backend, qwen, types[i], 1);
        run_write(backend, qwen, types[i], 32);
    }
    run_attend(backend, qwen, QN_TYPE_F16, 1, 4095, false);
    run_attend(backend, llama, QN_TYPE_F16, 1, 1023, false);
    run_attend(backend, gemma, QN_TYPE_F16, 1, 1023, false);
    for (int32_t rows = 1; rows <= 64; rows *= 64) {
        run_delta(backend, (heads){16, 16, 128}, rows);
        run_conv(backend, 6144, rows);
        for (int i = 0; i < 2; i++) {
            run_rows(backend, "norm_quantize", 1, 1024, forms[i], 2, rows);
            run_rows(backend, "add_norm", 1, 1024, forms[i], 3, rows);
            run_rows(backend, "quantize", 1, 3072, forms[i], 1, rows);
        }
        run_rows(backend, "rms_norm", 1, 1024, QN_WORD_f32, 2, rows);
        run_rows(backend, "rms_norm", 16, 128, QN_WORD_f32, 2, rows);
        run_rows(backend, "layer_norm", 1, 1024, QN_WORD_f32, 3, rows);
        run_rows(backend, "l2_norm", 16, 128, QN_WORD_f32, 1, rows);
        run_rows(backend, "rope", 16, 128, QN_WORD_f32, 2, rows);
        run_rows(backend, "rotate", 16, 128, QN_WORD_f32, 2, rows);
        for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
            run_rows(backend, maps[i], 1, 3072, QN_WORD_f32, 1, rows);
    }
    return 0;
}
