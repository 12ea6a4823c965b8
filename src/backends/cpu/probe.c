#include "backends/cpu/probe.h"

#include "backends/cpu/cpu.h"

#include <string.h>

#define PROBES(level_name)                                                                         \
    qn_probe_read_fn qn_cpu_probe_read_##level_name;                                               \
    qn_probe_peak_fn qn_cpu_probe_f32_##level_name;
PROBES(portable)
#if defined(__x86_64__)
PROBES(avx2)
PROBES(avxvnni)
PROBES(avx512)
qn_probe_peak_fn qn_cpu_probe_int8_avx2, qn_cpu_probe_int8_avxvnni, qn_cpu_probe_int8_avx512;
#if defined(QN_HAS_AMX)
qn_probe_peak_fn qn_cpu_probe_int8_amx;
#endif
#elif defined(__aarch64__)
PROBES(neon)
PROBES(dotprod)
PROBES(i8mm)
qn_probe_peak_fn qn_cpu_probe_int8_neon, qn_cpu_probe_int8_dotprod, qn_cpu_probe_int8_i8mm;
#endif
#undef PROBES

#define ROW(level_name, int8_probe)                                                                \
    {.level = #level_name,                                                                         \
     .read = qn_cpu_probe_read_##level_name,                                                       \
     .int8 = (int8_probe),                                                                         \
     .f32 = qn_cpu_probe_f32_##level_name},
static const qn_probes probes[] = {
    ROW(portable, NULL)
#if defined(__x86_64__)
        ROW(avx2, qn_cpu_probe_int8_avx2) ROW(avxvnni, qn_cpu_probe_int8_avxvnni)
            ROW(avx512, qn_cpu_probe_int8_avx512)
#if defined(QN_HAS_AMX)
                {.level = "amx",
                 .read = qn_cpu_probe_read_avx512,
                 .int8 = qn_cpu_probe_int8_amx,
                 .f32 = qn_cpu_probe_f32_avx512},
#endif
#elif defined(__aarch64__)
        ROW(neon, qn_cpu_probe_int8_neon) ROW(dotprod, qn_cpu_probe_int8_dotprod)
            ROW(i8mm, qn_cpu_probe_int8_i8mm)
#endif
};

const qn_probes *qn_cpu_probes(void) {
    const char *level = "portable";
    for (size_t i = 0; qn_cpu_level_name(i); i++) level = qn_cpu_level_name(i);
    size_t best = 0;
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        if (!strcmp(probes[i].level, level)) best = i;
    }
    return &probes[best];
}
