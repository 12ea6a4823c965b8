// Which levels this machine can run.
#include "backends/backend.h"
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

// Older compilers know no name for it. The operating system saves the registers if it does so for
// AVX2.
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

// Levels form a ladder: each has what those below it have.
static size_t n_levels(void) { return has_avx512() ? 3 : has_avx2() ? 2 : 1; }
#else
static size_t n_levels(void) { return 1; }
#endif

const char *qn_backend_cpu_level(size_t i) {
    return i < n_levels() ? qn_cpu_level_get(i)->level : NULL;
}

qn_status qn_backend_cpu(const qn_backend **out, const char *level, qn_err *err) {
    const size_t n = n_levels();
    if (!level || !*level) {
        *out = qn_cpu_level_get(n - 1);
        return QN_OK;
    }
    char names[64] = "";
    for (size_t i = 0; i < n; i++) {
        const qn_backend *backend = qn_cpu_level_get(i);
        if (!strcmp(level, backend->level)) {
            *out = backend;
            return QN_OK;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", backend->level);
    }
    return QN_FAIL(err, ARGUMENT, "cpu level '%.32s': this machine has %s", level, names);
}
