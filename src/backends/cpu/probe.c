#include "backends/cpu/probe.h"

#include "backends/backend.h"

#define PROBES(level_name)                                                                         \
    qn_probe_read_fn qn_cpu_probe_read_##level_name;                                               \
    qn_probe_peak_fn qn_cpu_probe_f32_##level_name;
PROBES(portable)
#if defined(__x86_64__)
PROBES(avx2)
PROBES(avx512)
qn_probe_peak_fn qn_cpu_probe_int8_avx2, qn_cpu_probe_int8_avx512;
#endif
#undef PROBES

#define ROW(level_name, int8_probe)                                                                \
    {.level = #level_name,                                                                         \
     .read = qn_cpu_probe_read_##level_name,                                                       \
     .int8 = (int8_probe),                                                                         \
     .f32 = qn_cpu_probe_f32_##level_name},
// In the order of qn_backend_cpu_level.
static const qn_probes probes[] = {ROW(portable, NULL)
#if defined(__x86_64__)
                                       ROW(avx2, qn_cpu_probe_int8_avx2)
                                           ROW(avx512, qn_cpu_probe_int8_avx512)
#endif
};

const qn_probes *qn_cpu_probes(void) {
    size_t best = 0;
    while (best + 1 < sizeof probes / sizeof *probes && qn_backend_cpu_level(best + 1)) best++;
    return &probes[best];
}
