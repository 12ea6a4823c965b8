#include "backends/cpu/amx.h"

#include <errno.h>
#include <stddef.h>

#if defined(QN_HAS_AMX)
const char *qn_amx_refused(void) {
    enum { TILE_STATE = 3 << 17 }; // configuration and data
    if (!qn_amx_is_there()) return "the CPU has no products of int8 tiles";
    if ((qn_amx_saved() & TILE_STATE) != TILE_STATE) return "the system does not save tiles";
    const int code = qn_amx_ask();
    if (code == ENOSPC) return "a thread's signal stack has no room for tiles";
    if (code) return "the system does not permit tiles";
    return qn_cpu_amx_check() ? NULL : "the products of tiles are wrong";
}
#else
const char *qn_amx_refused(void) { return "this build has no kernels for it"; }
#endif
