// What this machine can do, as measured.
#ifndef QN_BACKENDS_CPU_LIMITS_H
#define QN_BACKENDS_CPU_LIMITS_H

#include "quern.h"

// See qn_machine_limits.
QN_MUST_CHECK qn_status qn_limits_measure(qn_limits *out, int n_threads, qn_err *err);

#endif
