// Debug switches, all in one table (switch.def). The environment is read here and nowhere else,
// once per engine.
#ifndef QN_CORE_DEBUG_H
#define QN_CORE_DEBUG_H

#include "core/err.h"

typedef struct qn_switches {
#define SWITCH(env, type, field, value, meaning) type field;
#include "core/switch.def"
#undef SWITCH
} qn_switches;

// Reads the environment. A value that is not a number where one is wanted is an error that names
// it.
QN_MUST_CHECK qn_status qn_switches_read(qn_switches *out, qn_err *err);

#endif
