// The floating-point environment of computations: round to nearest, no flushing of small numbers,
// no traps. Set on every thread that runs kernels, whatever the caller's program did, and put back
// afterwards.
#ifndef QN_CORE_FLOATS_H
#define QN_CORE_FLOATS_H

#include <fenv.h>

typedef struct qn_floats {
    fenv_t before;
} qn_floats;

static inline qn_floats qn_floats_enter(void) {
    qn_floats f;
    fegetenv(&f.before);
    fesetenv(FE_DFL_ENV);
    return f;
}

static inline void qn_floats_leave(const qn_floats *f) { fesetenv(&f->before); }

#endif
