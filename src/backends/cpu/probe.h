// Probes: loops that do nothing but reach a limit of the machine. One set for each CPU level.
#ifndef QN_BACKENDS_CPU_PROBE_H
#define QN_BACKENDS_CPU_PROBE_H

#include <stdint.h>

// What a probe computes goes to *sink, so that the compiler cannot leave it out.
// Reads `bytes`, a multiple of 4096, from an address that is a multiple of 64, as `streams` parts
// side by side (1 or 2).
typedef void qn_probe_read_fn(uint64_t *sink, const void *from, int64_t bytes, int streams);
// Runs the densest loop of multiply-adds `rounds` times; returns the operations of all rounds, two
// for each multiply-add.
typedef double qn_probe_peak_fn(uint64_t *sink, int64_t rounds);

typedef struct qn_probes {
    const char *level;
    qn_probe_read_fn *read;
    qn_probe_peak_fn *int8; // products of 8 bits summed in integers; NULL: no instruction for it
    qn_probe_peak_fn *f32;
} qn_probes;

// Those of the best level that this machine has.
const qn_probes *qn_cpu_probes(void);

#endif
