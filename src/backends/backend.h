// The backends of this machine.
#ifndef QN_BACKENDS_BACKEND_H
#define QN_BACKENDS_BACKEND_H

#include "backends/kernel.h"

// The CPU backend at a level by name ("portable", "avx2", "avxvnni", "avx512"); NULL or "" is the
// best this machine has. A level that is unknown or that the machine lacks is an error that lists
// those it has.
QN_MUST_CHECK qn_status qn_backend_cpu(const qn_backend **out, const char *level, qn_err *err);
// Levels that this machine can run, worst first; NULL behind the last.
const char *qn_backend_cpu_level(size_t i);

#endif
