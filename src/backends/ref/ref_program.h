// Programs of the device `ref`: see qn_device_kind.
#ifndef QN_BACKENDS_REF_REF_PROGRAM_H
#define QN_BACKENDS_REF_REF_PROGRAM_H

#include "backends/device.h"

QN_MUST_CHECK qn_status qn_plain_prepare(qn_program **out, qn_device *device,
                                         const qn_program_opts *opts, qn_err *err);
void qn_plain_release(qn_program *program);
qn_program_size qn_plain_measure(const qn_program *program);
bool qn_plain_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes);
bool qn_plain_give(qn_program *program, const char *input, const float *rows);
void qn_plain_run(qn_program *program);
void qn_plain_wait(qn_program *program);
const float *qn_plain_output_row(const qn_program *program, const qn_plan_output *output,
                                 int64_t row);
void qn_plain_counts(const qn_program *program, int64_t *hits, int64_t *misses);
bool qn_plain_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end);
void qn_plain_run_call(qn_program *program, size_t call);
void qn_plain_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                       int index, int64_t row);

#endif
