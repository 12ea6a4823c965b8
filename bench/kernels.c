// Speed of the matmul kernels at every CPU level of this machine, as CSV: one row, which is bound by
// reading the weights, and more rows, which are bound by arithmetic. Weights are 16 matrices of 4096
// x 4096 in turn, so that they come from memory. One thread, in CPU time, so that other programs on
// the machine disturb it little; medians. The share is that of what one thread could do at best: read
// the weights, or compute, whichever takes longer (8-bit products for all integer weights).
#include "backends/cpu/cpu.h"
#include "backends/cpu/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 4096, N_WEIGHTS = 16, REPEATS = 5 };
enum { MAX_COUNTS = 32 };
static const int64_t usual_counts[] = {1, 8, 64, 512};

static void stop(const qn_err *err) {
    fprintf(stderr, "bench_kernels: %s\n", err->message);
    exit(1);
}

static void *lend(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (!p) stop(&(qn_err){.message = "out of memory"});
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// One weight, packed; its rows repeat, as speed does not depend on values.
static qn_packed make_weight(qn_type type) {
    qn_err err;
    qn_packed w, tile;
    uint64_t seed = 1;
    const qn_type_info *info = qn_type_get(type);
    const int64_t row_bytes = SIZE / info->block * info->bytes;
    uint8_t *rows = lend(QN_TILE * row_bytes);
    float *values = lend(SIZE * (int64_t)sizeof *values);
    for (int o = 0; o < QN_TILE; o++) {
        for (int i = 0; i < SIZE; i++)
            values[i] = (float)(int32_t)next_random(&seed) * 0x1p-31f - 0.5f;
        info->pack(rows + o * row_bytes, values, SIZE, NULL);
    }
    if (qn_packed_init(&w, type, 1, SIZE, SIZE, &err)) stop(&err);
    if (qn_packed_init(&tile, type, 1, QN_TILE, SIZE, &err)) stop(&err);
    uint8_t *data = lend(qn_packed_bytes(&w));
    qn_pack_tile(data, &tile, rows, 0);
    for (int64_t t = 1; t < qn_packed_tiles(&w); t++)
        memcpy(data + t * w.tile_bytes, data, (size_t)w.tile_bytes);
    w.data = data;
    free(rows);
    free(values);
    return w;
}

static const qn_kernel *kernel_of(const qn_cpu_level *backend, qn_op op) {
    return &backend->kernels[backend->backend.recipes[op].stages[0]];
}

static void run(const qn_kernel *kernel, const qn_task *task, void *scratch) {
    const int64_t n = kernel->pieces(task, task->rows, 0);
    for (int64_t piece = 0; piece < n; piece++) kernel->run(task, piece, scratch);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Seconds for one weight.
static double time_matmul(const qn_cpu_level *backend, const qn_packed *weights, qn_operand x,
                          qn_operand out, int64_t rows) {
    static int next; // weights in turn
    double times[REPEATS];
    const qn_kernel *kernel = kernel_of(backend, QN_OP_MATMUL);
    qn_task task = {.in = {x, {.packed = weights}}, .out = {out}, .rows = rows};
    task.has_unit = backend->has_unit;
    void *scratch = lend(kernel->scratch(&task, rows) + 64);
    const int n = rows <= 16 ? N_WEIGHTS : rows <= 64 ? 4 : 1;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = now();
        for (int i = 0; i < n; i++) {
            task.in[1].packed = &weights[next++ % N_WEIGHTS];
            run(kernel, &task, scratch);
        }
        times[repeat] = (now() - start) / n;
    }
    free(scratch);
    qsort(times, REPEATS, sizeof *times, by_size);
    return times[REPEATS / 2];
}

// Seconds that a product takes at best.
static double min_seconds(const qn_limits *limits, double bytes, double ops, bool is_float) {
    const double reading = bytes / (limits->read_gbs * 1e9);
    const double peak = is_float ? limits->f32_gflops * 1e9 : limits->int8_tops * 1e12;
    const double computing = peak > 0 ? ops / peak : 0;
    return reading > computing ? reading : computing;
}

static void measure(const qn_cpu_level *backend, const qn_packed *weights, qn_word form,
                    int64_t rows, const qn_limits *limits) {
    const int64_t x_bytes = backend->backend.row_bytes(QN_WORD_f32, SIZE);
    const int64_t panel_bytes = backend->backend.row_bytes(form, SIZE);
    qn_operand x = {.data = lend(rows * x_bytes), .stride = x_bytes, .parts = 1, .width = SIZE};
    x.form = QN_WORD_f32;
    qn_operand panels = x, out = x;
    panels.data = lend(rows * panel_bytes);
    panels.stride = panel_bytes;
    panels.form = form;
    out.data = lend(rows * x_bytes);
    for (int64_t i = 0; i < rows * SIZE; i++) ((float *)x.data)[i] = (float)(i % 1021) - 510;
    if (form == QN_WORD_f32)
        memcpy(panels.data, x.data, (size_t)(rows * x_bytes));
    else
        run(kernel_of(backend, QN_OP_QUANTIZE),
            &(qn_task){.in = {x}, .out = {panels}, .rows = rows}, NULL);
    const double each = time_matmul(backend, weights, panels, out, rows);
    const double bytes = (double)qn_packed_bytes(&weights[0]), size = SIZE;
    const double ops = 2 * size * size * (double)rows;
    const double min = min_seconds(limits, bytes, ops, form == QN_WORD_f32);
    printf("%s,%s,%s,%d,%.3f,%.2f,%.1f,%.2f\n", backend->name, qn_type_get(weights[0].type)->name,
           qn_word_get(form)->name, (int)rows, each * 1e3, bytes / each * 1e-9, ops / each * 1e-9,
           min / each);
    fflush(stdout);
    free(x.data);
    free(panels.data);
    free(out.data);
}

// bench_kernels [LEVEL | TYPE | ROWS]...: those levels, types and numbers of rows, or all levels, the
// usual types and a few numbers
int main(int argc, char **argv) {
    static const char *const usual[] = {"Q4_K", "Q6_K", "Q8_0", "F16"};
    const char *levels[8], *types[32];
    int64_t counts[MAX_COUNTS];
    int n_levels = 0, n_types = 0, n_counts = 0;
    qn_type type;
    qn_limits limits = QN_INIT(qn_limits);
    qn_err err;
    for (int i = 1; i < argc && n_levels < 8 && n_types < 32 && n_counts < MAX_COUNTS; i++) {
        if (atoi(argv[i]) > 0)
            counts[n_counts++] = atoi(argv[i]);
        else if (qn_type_from_name(&type, argv[i]) && qn_pack_supports(type))
            types[n_types++] = argv[i];
        else
            levels[n_levels++] = argv[i];
    }
    if (!n_types)
        for (; n_types < 4; n_types++) types[n_types] = usual[n_types];
    if (!n_counts) {
        n_counts = sizeof usual_counts / sizeof *usual_counts;
        memcpy(counts, usual_counts, sizeof usual_counts);
    }
    if (!n_levels)
        for (; qn_cpu_level_name((size_t)n_levels); n_levels++)
            levels[n_levels] = qn_cpu_level_name((size_t)n_levels);
    if (qn_limits_measure(&limits, NULL, 1, &err)) stop(&err);
    printf("level,type,form,rows,cpu_ms,weights_GB_per_s,GFLOP_per_s,share_of_limit\n");
    for (int t = 0; t < n_types; t++) {
        qn_packed weights[N_WEIGHTS];
        if (!qn_type_from_name(&type, types[t])) return 1;
        for (int i = 0; i < N_WEIGHTS; i++) weights[i] = make_weight(type);
        const bool is_float = type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
        for (int l = 0; l < n_levels; l++) {
            const qn_cpu_level *backend;
            if (qn_cpu_level_find(&backend, levels[l], &err)) stop(&err);
            static const qn_word forms[] = {QN_WORD_i12_256, QN_WORD_i16_256, QN_WORD_i8_32};
            for (int i = 0; i < (is_float ? 1 : 3); i++) {
                const qn_word form = is_float ? QN_WORD_f32 : forms[i];
                for (int r = 0; r < n_counts; r++)
                    measure(backend, weights, form, counts[r], &limits);
            }
        }
        for (int i = 0; i < N_WEIGHTS; i++) free((void *)(uintptr_t)weights[i].data);
    }
    return 0;
}
