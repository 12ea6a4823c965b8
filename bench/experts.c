// Speed of a layer of experts at the best CPU level of this machine, as CSV: the shape of
// qwen3-30b-a3b (128 experts of 2048 x 768, 8 for each row), rows from one to many. Random scores
// choose the experts; the weights are larger than the caches. One thread, in CPU time; medians.
// `used` counts the experts that some row chose, `mib` their weights: what one pass over each reads;
// `gbs` is that by the time.
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 2048, INNER = 768, EXPERTS = 128, TOP = 8, REPEATS = 5 };
static const int64_t row_counts[] = {1, 8, 64, 512};

static void stop(const char *why) {
    fprintf(stderr, "bench_experts: %s\n", why);
    exit(1);
}

static void *lend(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (!p) stop("out of memory");
    memset(p, 0, (size_t)bytes);
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

// All experts have the same rows, as speed does not depend on values.
static qn_packed make_weight(qn_type type, int64_t n_out, int64_t n_in) {
    qn_packed w, tile;
    uint64_t seed = 1;
    const qn_type_info *info = qn_type_get(type);
    const int64_t row_bytes = n_in / info->block * info->bytes;
    uint8_t *rows = lend(QN_TILE * row_bytes);
    float *values = lend(n_in * (int64_t)sizeof *values);
    for (int64_t o = 0; o < QN_TILE; o++) {
        for (int64_t i = 0; i < n_in; i++) values[i] = next_random(&seed);
        info->pack(rows + o * row_bytes, values, n_in, NULL);
    }
    if (qn_packed_init(&w, type, EXPERTS, n_out, n_in, NULL) ||
        qn_packed_init(&tile, type, 1, QN_TILE, n_in, NULL))
        stop("a weight");
    uint8_t *data = lend(qn_packed_bytes(&w));
    qn_pack_tile(data, &tile, rows, 0);
    for (int64_t t = 1; t < qn_packed_tiles(&w); t++)
        memcpy(data + t * w.tile_bytes, data, (size_t)w.tile_bytes);
    w.data = data;
    free(rows);
    free(values);
    return w;
}

static qn_operand make_rows(const qn_cpu_level *level, int64_t rows, int64_t parts, int64_t width,
                            qn_word form) {
    const int64_t bytes = form == QN_WORD_f32 ? level->backend.row_bytes(form, parts * width)
                                              : parts * level->backend.row_bytes(form, width);
    return (qn_operand){
        .data = lend(rows * bytes), .stride = bytes, .parts = parts, .width = width, .form = form};
}

static void run(const qn_cpu_level *level, qn_op op, const qn_task *task, void *scratch) {
    const qn_recipe *recipe = &level->backend.recipes[op];
    for (int s = 0; s < recipe->n_stages; s++) {
        const qn_kernel *kernel = &level->kernels[recipe->stages[s]];
        const int64_t n = kernel->pieces(task, task->rows, 0);
        for (int64_t piece = 0; piece < n; piece++) kernel->run(task, piece, scratch);
    }
}

static int64_t scratch_of(const qn_cpu_level *level, const qn_task *task) {
    const qn_recipe *recipe = &level->backend.recipes[QN_OP_EXPERTS];
    int64_t most = 64;
    for (int s = 0; s < recipe->n_stages; s++) {
        const int64_t bytes = level->kernels[recipe->stages[s]].scratch(task, task->rows);
        if (bytes > most) most = bytes;
    }
    return most;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int count_used(const qn_operand *ids, int64_t rows) {
    bool is_used[EXPERTS] = {0};
    int n = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int k = 0; k < TOP; k++)
            is_used[((int32_t *)((uint8_t *)ids->data + r * ids->stride))[k]] = true;
    }
    for (int e = 0; e < EXPERTS; e++) n += is_used[e];
    return n;
}

static void measure(const qn_cpu_level *level, const qn_packed w[3], qn_word form, int64_t rows) {
    uint64_t seed = 7;
    double times[REPEATS];
    const qn_attrs attrs = {
        .top = TOP, .normalize = 1, .scale = 1, .act = QN_WORD_silu, .form = form};
    qn_value values[5] = {0};
    values[2].shape = (qn_shape){.n_dims = 3, .dims = {{EXPERTS, 0}, {INNER, 0}, {WIDTH, 0}}};
    const qn_graph graph = {.values = values, .n_values = 5};
    const qn_node node = {.op = QN_OP_EXPERTS, .in = {0, 1, 2, 3, 4}, .n_in = 5, .attrs = attrs};
    qn_plan_arg temps[QN_MAX_TEMPS];
    const int n_temps = level->backend.recipes[QN_OP_EXPERTS].temps(temps, &graph, &node);
    const qn_operand x = make_rows(level, rows, 1, WIDTH, QN_WORD_f32);
    qn_task task = {.attrs = &attrs,
                    .in = {make_rows(level, rows, 1, WIDTH, form),
                           make_rows(level, rows, 1, EXPERTS, QN_WORD_f32),
                           {.packed = &w[0]},
                           {.packed = &w[1]},
                           {.packed = &w[2]}},
                    .out = {make_rows(level, rows, 1, WIDTH, QN_WORD_f32)},
                    .rows = rows};
    for (int i = 0; i < n_temps; i++)
        task.temp[i] = make_rows(level, rows, temps[i].parts, temps[i].width, temps[i].form);
    for (int64_t i = 0; i < rows * WIDTH; i++) ((float *)x.data)[i] = next_random(&seed);
    run(level, QN_OP_QUANTIZE, &(qn_task){.in = {x}, .out = {task.in[0]}, .rows = rows}, NULL);
    void *scratch = lend(scratch_of(level, &task));
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int64_t i = 0; i < rows * EXPERTS; i++)
            ((float *)task.in[1].data)[i] = 3 * next_random(&seed);
        const double start = now();
        run(level, QN_OP_EXPERTS, &task, scratch);
        times[repeat] = now() - start;
    }
    const int used = count_used(&task.temp[0], rows);
    const double mib =
        (double)used / EXPERTS *
        (double)(qn_packed_bytes(&w[0]) + qn_packed_bytes(&w[1]) + qn_packed_bytes(&w[2])) /
        (1 << 20);
    qsort(times, REPEATS, sizeof *times, by_size);
    const double ms = times[REPEATS / 2] * 1e3;
    printf("%s,%s,%s,%d,%d,%.1f,%.3f,%.4f,%.2f\n", level->name, qn_type_get(w[0].type)->name,
           qn_word_get(form)->name, (int)rows, used, mib, ms, ms / (double)rows,
           mib * 1.048576 / ms);
    fflush(stdout);
    for (int i = 0; i < n_temps; i++) free(task.temp[i].data);
    free(task.in[0].data);
    free(task.in[1].data);
    free(task.out[0].data);
    free(x.data);
    free(scratch);
}

// bench_experts [TYPE]...
int main(int argc, char **argv) {
    static const char *const usual[] = {"Q4_K", "Q8_0"};
    const qn_cpu_level *level;
    if (qn_cpu_level_find(&level, NULL, NULL)) stop("no CPU level");
    printf("level,type,activations,rows,used,mib,ms,ms_per_row,gbs\n");
    for (int i = 0; i < (argc > 1 ? argc - 1 : 2); i++) {
        const char *name = argc > 1 ? argv[i + 1] : usual[i];
        qn_type type;
        if (!qn_type_from_name(&type, name) || !qn_pack_supports(type)) stop(name);
        qn_packed w[] = {make_weight(type, INNER, WIDTH), make_weight(type, INNER, WIDTH),
                         make_weight(type, WIDTH, INNER)};
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++)
            measure(level, w, QN_WORD_i12_256, row_counts[r]);
        for (int k = 0; k < 3; k++) free((void *)(uintptr_t)w[k].data);
    }
    return 0;
}
