// Plans on the CPU: operands get addresses, calls are cut into pieces, and the threads of a pool
// take them (walk.h).
//
// The plans of a program take turns in the same memory. Everything is allocated when it is
// prepared.
#ifndef QN_BACKENDS_CPU_EXECUTOR_H
#define QN_BACKENDS_CPU_EXECUTOR_H

#include "backends/cpu/cpu.h"
#include "backends/device.h"

typedef struct qn_cpu_device {
    qn_device head;
    const qn_cpu_level *level;
} qn_cpu_device;

// A weight in tiles, without its numbers.
QN_MUST_CHECK qn_status qn_cpu_describe(qn_packed *out, const qn_plan_leaf *leaf, qn_err *err);

// --- weights (load_weight.c); see qn_device_kind ---

QN_MUST_CHECK qn_status qn_cpu_weight_bytes(int64_t *out, const qn_device *device,
                                            const qn_plan_leaf *leaf, qn_err *err);
QN_MUST_CHECK qn_status qn_cpu_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                                           const qn_weight_reader *reader, qn_err *err);

// Places the pages of a call's weights near the threads that read them, where the pool has nodes
// and the system lets us; once it does not, *has_failed, and nothing more is tried.
void qn_cpu_place_call(bool *has_failed, const qn_pool *pool, const qn_kernel *kernel,
                       const qn_task *task);
QN_MUST_CHECK qn_status qn_cpu_place(bool *is_placed, qn_device *device, const qn_plan *plan,
                                     const void *const *data, qn_err *err);

// --- programs (executor.c); see qn_device_kind ---

QN_MUST_CHECK qn_status qn_cpu_program_prepare(qn_program **out, qn_device *device,
                                               const qn_program_opts *opts, qn_err *err);
void qn_cpu_program_release(qn_program *program);
qn_program_size qn_cpu_program_measure(const qn_program *program);
bool qn_cpu_program_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes);
bool qn_cpu_program_give(qn_program *program, const char *input, const float *rows);
void qn_cpu_program_run(qn_program *program);
void qn_cpu_program_wait(qn_program *program);
const float *qn_cpu_program_row(const qn_program *program, const qn_plan_output *output,
                                int64_t row);
void qn_cpu_program_counts(const qn_program *program, int64_t *hits, int64_t *misses);
bool qn_cpu_program_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end);
void qn_cpu_program_run_call(qn_program *program, size_t call);
void qn_cpu_program_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                             int index, int64_t row);

#endif
