// The tables of the CPU: kernels by level, recipes.
#include "backends/cpu/cpu.h"

// Indices of kernels, under the names that recipes.def uses.
enum {
#define KERNEL(name, pieces, scratch) name,
#include "backends/cpu/kernels.def"
#undef KERNEL
    N_KERNELS
};

static const char *const names[] = {
#define KERNEL(name, pieces, scratch) #name,
#include "backends/cpu/kernels.def"
#undef KERNEL
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

// What multiplies is read in tiles.
static qn_word weight_layout(qn_op op, int input) {
    return qn_op_get(op)->kinds[input] == 'w' ? QN_WORD_tiles : QN_WORD_rows;
}

#define ROW(kernel, pieces_rule, scratch_rule, shared_rule, level)                                 \
    {.name = #kernel,                                                                              \
     .pieces = qn_cpu_pieces_##pieces_rule,                                                        \
     .scratch = qn_cpu_scratch_##scratch_rule,                                                     \
     .shared = qn_cpu_shared_##shared_rule,                                                        \
     .run = qn_cpu_##kernel##_##level},
#define LEVEL(level, unit)                                                                         \
    {.name = #level,                                                                               \
     .kernels = kernels_##level,                                                                   \
     .has_unit = (unit),                                                                           \
     .backend = {.name = "cpu:" #level,                                                            \
                 .kernels = names,                                                                 \
                 .n_kernels = N_KERNELS,                                                           \
                 .recipes = recipes,                                                               \
                 .forms = 1u << QN_WORD_f32 | 1u << QN_WORD_i8_32 | 1u << QN_WORD_i12_256 |        \
                          1u << QN_WORD_i16_256,                                                   \
                 .caches = QN_KV_ALL,                                                              \
                 .refuse = qn_cpu_refuse,                                                          \
                 .layout = weight_layout,                                                          \
                 .row_bytes = qn_cpu_row_bytes,                                                    \
                 .cache_bytes = qn_cpu_cache_bytes}},

#define KERNEL(name, pieces, scratch)                                                              \
    void qn_cpu_##name##_portable(const qn_task *task, int64_t piece, void *scratch_bytes);
#include "backends/cpu/kernels.def"
#undef KERNEL
static const qn_kernel kernels_portable[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, portable)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, portable)
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
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, avx2)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, avx2)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_avxvnni[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, avxvnni)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, avxvnni)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_avx512[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, avx512)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, avx512)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
#if defined(QN_HAS_AMX)
// What multiplies many rows is compiled for the matrix unit; the other kernels of its level are those
// of AVX-512.
#define OWN_matmul          , amx
#define OWN_project         , amx
#define OWN_gated           , amx
#define OWN_head_logits     , amx
#define OWN_grouped         , amx
#define OWN_experts_up      , amx
#define OWN_experts_down    , amx
#define SECOND(a, b, ...)   b
#define LEVEL_OF(own)       SECOND(own, avx512, )
#define RUN_OF(name, level) qn_cpu_##name##_##level
#define DECLARE(name, level)                                                                       \
    void RUN_OF(name, level)(const qn_task *task, int64_t piece, void *scratch_bytes);
#define ROW_OF(name, pieces, scratch, shared, level) ROW(name, pieces, scratch, shared, level)
#define KERNEL(name, pieces, scratch)                DECLARE(name, LEVEL_OF(OWN_##name))
#include "backends/cpu/kernels.def"
#undef KERNEL
static const qn_kernel kernels_amx[] = {
#define KERNEL(name, pieces, scratch) ROW_OF(name, pieces, scratch, none, LEVEL_OF(OWN_##name))
#define SHARING(name, pieces, scratch, shared)                                                     \
    ROW_OF(name, pieces, scratch, shared, LEVEL_OF(OWN_##name))
#include "backends/cpu/kernels.def"
#undef KERNEL
};
#endif
#elif defined(__aarch64__)
#define KERNEL(name, pieces, scratch)                                                              \
    void qn_cpu_##name##_neon(const qn_task *task, int64_t piece, void *scratch_bytes);            \
    void qn_cpu_##name##_dotprod(const qn_task *task, int64_t piece, void *scratch_bytes);         \
    void qn_cpu_##name##_i8mm(const qn_task *task, int64_t piece, void *scratch_bytes);
#include "backends/cpu/kernels.def"
#undef KERNEL
static const qn_kernel kernels_neon[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, neon)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, neon)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_dotprod[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, dotprod)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, dotprod)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
static const qn_kernel kernels_i8mm[] = {
#define KERNEL(name, pieces, scratch)          ROW(name, pieces, scratch, none, i8mm)
#define SHARING(name, pieces, scratch, shared) ROW(name, pieces, scratch, shared, i8mm)
#include "backends/cpu/kernels.def"
#undef KERNEL
};
#endif

static const qn_cpu_level levels[] = {LEVEL(portable, false)
#if defined(__x86_64__)
                                          LEVEL(avx2, false) LEVEL(avxvnni, false)
                                              LEVEL(avx512, false)
#if defined(QN_HAS_AMX)
                                                  LEVEL(amx, true)
#endif
#elif defined(__aarch64__)
                                          LEVEL(neon, false) LEVEL(dotprod, false)
                                              LEVEL(i8mm, false)
#endif
};

const qn_cpu_level *qn_cpu_level_get(size_t i) {
    return i < sizeof levels / sizeof *levels ? &levels[i] : NULL;
}
