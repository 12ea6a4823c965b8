// Options that do not go together, or do nothing alone: what a kept default gives way to.
#ifndef QN_CLI_RIVALS_H
#define QN_CLI_RIVALS_H

#include "cli/user_config.h"

// Whether an option excludes option `i` and has a stronger origin than `rank`.
bool qn_rivals_exclude(const qn_command *command, const qn_call *call, const qn_origin *origins,
                       size_t i, qn_rank rank);

// Whether option `i` does nothing because all of those that it is for are missing.
bool qn_rivals_idle(const qn_command *command, const qn_call *call, size_t i);

#endif
