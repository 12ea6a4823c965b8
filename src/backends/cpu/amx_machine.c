#define _DEFAULT_SOURCE // syscall
// What this machine and its system say of the matrix unit. A file of its own, so that tests can say
// something else.
#include "backends/cpu/amx.h"

#if defined(QN_HAS_AMX)
#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

// Of leaf 7, as older compilers have no names for them.
enum { VBMI = 1u << 1 };                          // ecx
enum { TILES = 1u << 24, TILES_INT8 = 1u << 25 }; // edx

bool qn_amx_is_there(void) {
    unsigned a, b, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & VBMI) && (d & TILES) && (d & TILES_INT8);
}

// XGETBV itself is there only where the system uses it.
uint64_t qn_amx_saved(void) {
    unsigned a, b, c = 0, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

// Linux gives a process room for tiles only when it asks (arch_prctl(2)); all its threads have them
// then, also those made before. Asking again changes nothing.
int qn_amx_ask(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? 0 : errno;
}
#endif
