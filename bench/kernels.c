// Speed of the matmul kernels at every CPU level of this machine, as CSV: one row, which is bound by
// reading the weights, and many rows, which are bound by arithmetic. Weights are 16 matrices of 4096
// x 4096 in turn, so that they come from memory.
#include "backends/backend.h"
#include "core/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 4096, N_WEIGHTS = 16, MANY = 512 };

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
    clock_gettime(CLOCK_MONOTONIC, &t);
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

static const qn_kernel *kernel_of(const qn_backend *backend, qn_op op) {
    return &backend->kernels[backend->recipes[op].stages[0]];
}

typedef struct job {
    const qn_kernel *kernel;
    const qn_task *task;
    uint8_t *scratch; // (pieces, scratch_bytes): no thread is known by number
    int64_t scratch_bytes;
} job;

static void run_piece(void *arg, int64_t piece) {
    const job *j = arg;
    j->kernel->run(j->task, piece, j->scratch + piece * j->scratch_bytes);
}

static void run(qn_pool *pool, const qn_kernel *kernel, const qn_task *task) {
    const int64_t n = kernel->pieces(task, task->rows, 0);
    job j = {.kernel = kernel, .task = task};
    j.scratch_bytes = (kernel->scratch(task, task->rows) + 63) / 64 * 64;
    j.scratch = j.scratch_bytes ? lend(n * j.scratch_bytes) : NULL;
    qn_pool_run(pool, n, run_piece, &j);
    free(j.scratch);
}

static void measure(const qn_backend *backend, qn_pool *pool, const qn_packed *weights,
                    qn_word form, int64_t rows) {
    const int64_t x_bytes = backend->row_bytes(QN_WORD_f32, SIZE);
    const int64_t panel_bytes = backend->row_bytes(form, SIZE);
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
        run(pool, kernel_of(backend, QN_OP_QUANTIZE),
            &(qn_task){.in = {x}, .out = {panels}, .rows = rows});
    double best = 1e9;
    for (int repeat = 0; repeat < 3; repeat++) {
        const int n = rows > 1 ? 1 : N_WEIGHTS;
        const double start = now();
        for (int i = 0; i < n; i++) {
            const qn_task task = {
                .in = {panels, {.packed = &weights[i]}}, .out = {out}, .rows = rows};
            run(pool, kernel_of(backend, QN_OP_MATMUL), &task);
        }
        const double each = (now() - start) / n;
        if (each < best) best = each;
    }
    const double bytes = (double)qn_packed_bytes(&weights[0]), size = SIZE;
    printf("%s,%s,%s,%d,%d,%.3f,%.2f,%.1f\n", backend->level, qn_type_get(weights[0].type)->name,
           qn_word_get(form)->name, qn_pool_threads(pool), (int)rows, best * 1e3,
           bytes / best * 1e-9, 2 * size * size * (double)rows / best * 1e-9);
    fflush(stdout);
    free(x.data);
    free(panels.data);
    free(out.data);
}

// bench_kernels [TYPE]...
int main(int argc, char **argv) {
    static const char *const usual[] = {"Q4_K", "Q6_K", "Q8_0", "F16"};
    const int n_types = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    qn_err err;
    qn_pool *pool;
    if (qn_pool_create(&pool, 0, &err)) stop(&err);
    printf("level,type,form,threads,rows,ms,weights_GB_per_s,GFLOP_per_s\n");
    for (int t = 0; t < n_types; t++) {
        qn_type type;
        if (!qn_type_from_name(&type, argc > 1 ? argv[t + 1] : usual[t]) ||
            !qn_pack_supports(type)) {
            fprintf(stderr, "bench_kernels: no packed type %s\n",
                    argc > 1 ? argv[t + 1] : usual[t]);
            return 1;
        }
        qn_packed weights[N_WEIGHTS];
        for (int i = 0; i < N_WEIGHTS; i++) weights[i] = make_weight(type);
        const bool is_float = type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
        for (size_t l = 0; qn_backend_cpu_level(l); l++) {
            const qn_backend *backend;
            if (qn_backend_cpu(&backend, qn_backend_cpu_level(l), &err)) stop(&err);
            for (int i = 0; i < (is_float ? 1 : 2); i++) {
                const qn_word form = is_float ? QN_WORD_f32 : i ? QN_WORD_i8_32 : QN_WORD_i12_256;
                measure(backend, pool, weights, form, 1);
                measure(backend, pool, weights, form, MANY);
            }
        }
        for (int i = 0; i < N_WEIGHTS; i++) free((void *)(uintptr_t)weights[i].data);
    }
    qn_pool_destroy(pool);
    return 0;
}
