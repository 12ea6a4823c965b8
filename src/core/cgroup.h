// Limits of the control groups that this process is in: its own and all above it, in both versions.
#ifndef QN_CORE_CGROUP_H
#define QN_CORE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

// `root` is prepended to every path: "" for this machine, a folder for tests.

// Bytes of memory that the tightest group leaves; what can be dropped at once counts as free.
// False: there is no limit.
bool qn_cgroup_memory(int64_t *out, const char *root);
// CPUs by the smallest quota, rounded up. False: there is none.
bool qn_cgroup_cpus(int *out, const char *root);

#endif
