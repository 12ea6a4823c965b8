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

// Reads the environment. An empty value counts as unset. A value that is not a number where one is wanted is an error that names
// it.
QN_MUST_CHECK qn_status qn_switches_read(qn_switches *out, qn_err *err);

// The names of all switches.
const char *const *qn_switch_names(size_t *n);
// The next variable from *at on (0: the first) whose name begins like that of a switch but is none;
// NULL: no more. The name has *size bytes and no NUL behind it, and lives as long as the environment
// stays as it is.
const char *qn_switch_stray(size_t *at, size_t *size);

#endif
