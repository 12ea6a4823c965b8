// The matrix unit of x86 machines: whether this one has it, and may be used.
#ifndef QN_BACKENDS_CPU_AMX_H
#define QN_BACKENDS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

// NULL: the kernels of the level "amx" run here, on every thread of the process. Else why not. Asks
// the system once more each time, and multiplies two known tiles; some microseconds.
const char *qn_amx_refused(void);

// What it looks at, in this order: the CPU has the tiles, products of bytes and AVX512-VBMI; the
// registers that the system saves, as bits of XCR0; the permission of this process, 0 or errno.
bool qn_amx_is_there(void);
uint64_t qn_amx_saved(void);
int qn_amx_ask(void);

// Whether the product of two tiles is what plain C says (kernels/amx_check.c).
bool qn_cpu_amx_check(void);

#endif
