// Which levels this machine can run.
#include "backends/cpu/amx.h"
#include "backends/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

// Older compilers have no name for it. The operating system saves the registers if it does so for
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

// Byte products for vectors of 32 bytes; machines with AVX-512 may lack them.
static bool has_avxvnni(void) {
    unsigned a = 0, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static bool has_any(void) { return true; }
#if defined(QN_HAS_AMX)
static bool has_amx(void) { return has_avx512() && !qn_amx_refused(); }
#endif

// In the order of qn_cpu_level_get.
static bool (*const has_level[])(void) = {has_any, has_avx2, has_avxvnni, has_avx512,
#if defined(QN_HAS_AMX)
                                          has_amx
#endif
};
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool has_any(void) { return true; }
static bool has_dotprod(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
static bool has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

// In the order of qn_cpu_level_get.
static bool (*const has_level[])(void) = {has_any, has_any, has_dotprod, has_i8mm};
#else
static bool has_any(void) { return true; }
static bool (*const has_level[])(void) = {has_any};
#endif

// The i-th level that this machine has; NULL after the last.
static const qn_cpu_level *level_at(size_t i) {
    for (size_t k = 0; k < sizeof has_level / sizeof *has_level; k++) {
        if (has_level[k]() && i-- == 0) return qn_cpu_level_get(k);
    }
    return NULL;
}

const char *qn_cpu_level_name(size_t i) {
    const qn_cpu_level *level = level_at(i);
    return level ? level->name : NULL;
}

// Why there is no level "amx", which asks more of a machine than a name in a list shows.
static const char *why_no_amx(void) {
    const char *why = qn_amx_refused();
    return why ? why : "AVX-512 is missing";
}

qn_status qn_cpu_level_find(const qn_cpu_level **out, const char *name, qn_err *err) {
    char names[64] = "";
    const qn_cpu_level *level, *best = NULL;
    for (size_t i = 0; (level = level_at(i)) != NULL; i++) {
        best = level;
        if (name && !strcmp(name, level->name)) {
            *out = level;
            return QN_OK;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", level->name);
    }
    if (!name || !*name) {
        *out = best;
        return QN_OK;
    }
    if (!strcmp(name, "amx"))
        return QN_FAIL(err, ARGUMENT, "QN_LEVEL or cpu:LEVEL: 'amx', want one of %s: %s", names,
                       why_no_amx());
    return QN_FAIL(err, ARGUMENT, "QN_LEVEL or cpu:LEVEL: '%.32s', want one of %s", name, names);
}
