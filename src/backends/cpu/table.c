// The tables of the CPU backend: kernels by level, recipes, backends.
#include "backends/cpu/cpu.h"

// Indices of kernels, under the names that recipes.def uses.
enum {
#define KERNEL(name, pieces, scratch) name,
#include "backends/cpu/kernels.def"
#undef KERNEL
    N_KERNELS
};

#define IN(i)     (1u << (i))
#define LIST(...) __VA_ARGS__
static const qn_recipe recipes[QN_OP_COUNT] = {
#define RECIPE(op, temps_rule, reads_of, ...)                                                      \
    [QN_OP_##op] = {.n_stages = (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)),                 \
                    .stages = {__VA_ARGS__},                                                       \
                    .reads = {LIST reads_of},                                                      \
                    .temps = qn_cpu_temps_##temps_rule},
#include "backends/cpu/recipes.def"
#undef RECIPE
};

#define ROW(kernel, pieces_rule, scratch_rule, level)                                              \
    {.name = #kernel,                                                                              \
     .pieces = qn_cpu_pieces_##pieces_rule,                                                        \
     .scratch = qn_cpu_scratch_##scratch_rule,                                                     \
     .run = qn_cpu_##kernel##_##level},
#define BACKEND(level_name)                                                                        \
    {.name = "cpu",                                                                                \
     .level = #level_name,                                                                         \
     .kernels = kernels_##level_name,                                                              \
     .n_kernels = N_KERNELS,                                                                       \
     .recipes = recipes,                                                                           \
     .refuse = qn_cpu_refuse,                                                                      \
     .row_bytes = qn_cpu_row_bytes,                                                                \
     .read_row = qn_cpu_read_row,                                                                  \
     .read_kv = qn_cpu_read_kv,                                                                    \
     .cache_bytes = qn_cpu_cache_bytes},

#define KERNEL(name, pieces, scratch)                                                              \
    void qn_cpu_##name##_portable(const qn_task *task, int64_t piece, void *scratch_bytes);
#include "backends/cpu/kernels.def"
#undef KERNEL
static const qn_kernel kernels_portable[] = {
#define KERNEL(name, pieces, scratch) ROW(name, pieces, scratch, portable)
#include "backends/cpu/kernels.def"
#undef KERNEL
};

#if defined(__x86_64__)
#define KERNEL(name, pieces, scratch)                                                              \
    void qn_cpu_##name##_avx2(const qn_task *task, int64_t piece, void *scratch_bytes);            \
    void qn_cpu_##name##_avxvnni(const qn_task *task, int64_t piece, void *scratch_bytes);         \
    void qn_cpu_##name##_avx512(const qn_task *task, int64_t piece, void *scratch_bytes);
#include "backends/cpu/kernels.def"
#undef KERNEL
static const qn_kernel kernels_avx2[] = {
#define KERNEL(name, pieces, scratch) ROW(name, pieces, scratch, avx2)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_avxvnni[] = {
#define KERNEL(name, pieces, scratch) ROW(name, pieces, scratch, avxvnni)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_avx512[] = {
#define KERNEL(name, pieces, scratch) ROW(name, pieces, scratch, avx512)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
#endif

static const qn_backend levels[] = {BACKEND(portable)
#if defined(__x86_64__)
                                        BACKEND(avx2) BACKEND(avxvnni) BACKEND(avx512)
#endif
};

const qn_backend *qn_cpu_level_get(size_t i) {
    return i < sizeof levels / sizeof *levels ? &levels[i] : NULL;
}
