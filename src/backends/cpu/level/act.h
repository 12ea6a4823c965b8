// The gate of a feed-forward layer.
#ifndef QN_BACKENDS_CPU_LEVEL_ACT_H
#define QN_BACKENDS_CPU_LEVEL_ACT_H

#include "backends/cpu/level/level.h"
#include "backends/cpu/level/math.h"

// gate[i] = act(gate[i]) * up[i] for n_rows of 16.
static inline void gate_rows(float *gate, const float *up, int64_t n_rows, qn_word act) {
    if (act == QN_WORD_gelu) {
        for (int64_t i = 0; i < n_rows * QN_TILE; i++) gate[i] = math_gelu(gate[i]) * up[i];
    } else {
        for (int64_t i = 0; i < n_rows * QN_TILE; i++) gate[i] = math_silu(gate[i]) * up[i];
    }
}

#endif
