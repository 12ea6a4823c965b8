// What this machine has.
#ifndef QN_CORE_MACHINE_H
#define QN_CORE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

// Bytes of memory that this process may still take without pushing others out: what the system
// calls available, what its control groups leave, or what its own limits (ulimit -v, -d) leave,
// whichever is smallest. False if none is known.
bool qn_machine_free_memory(int64_t *out);

// Bytes of memory that this process holds now; 0 if that is not known.
int64_t qn_machine_resident_memory(void);

#endif
