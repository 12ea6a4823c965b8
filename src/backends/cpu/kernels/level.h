// What every file of this folder includes first. The folder is compiled once for each CPU level, so
// everything with external linkage is named by QN_FN, and helpers in headers are static: a function
// of one level must never be merged with that of another.
//
// Write loops over 16 lanes that a compiler makes vectors of. A fused multiply-add is written as
// __builtin_fmaf; nothing else is fused (-ffp-contract=off).
#ifndef QN_BACKENDS_CPU_KERNELS_LEVEL_H
#define QN_BACKENDS_CPU_KERNELS_LEVEL_H

#include "backends/cpu/cpu.h"

#define QN_FN_JOIN(name, level)  qn_cpu_##name##_##level
#define QN_FN_LEVEL(name, level) QN_FN_JOIN(name, level)
#define QN_FN(name)              QN_FN_LEVEL(name, QN_LEVEL)

#define KERNEL(name, pieces, scratch)                                                              \
    void QN_FN(name)(const qn_task *task, int64_t piece, void *scratch);
#include "backends/cpu/kernels.def"
#undef KERNEL

// Row r of an operand, and part p of it.
static inline void *row_of(const qn_operand *x, int64_t r) {
    return (unsigned char *)x->data + r * x->stride;
}

static inline void *part_of(const qn_operand *x, int64_t r, int64_t p) {
    const int64_t part_bytes = x->form == QN_WORD_f32 ? x->width * (int64_t)sizeof(float)
                                                      : qn_cpu_row_bytes(x->form, x->width);
    return (unsigned char *)row_of(x, r) + p * part_bytes;
}

#endif
