// What this machine can do, as measured.
#ifndef QN_BACKENDS_CPU_LIMITS_H
#define QN_BACKENDS_CPU_LIMITS_H

#include "core/pool.h"

// See qn_machine_limits. Of the best level, whichever variant is asked for.
QN_MUST_CHECK qn_status qn_limits_measure(qn_limits *out, const char *variant, int n_threads,
                                          qn_err *err);
// The same in a third of a second and 256 MiB, of a pool that is there.
QN_MUST_CHECK qn_status qn_limits_sample(qn_limits *out, qn_pool *pool, qn_err *err);

#endif
