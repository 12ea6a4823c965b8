// The gate of a feed-forward layer.
#ifndef QN_BACKENDS_CPU_KERNELS_ACT_H
#define QN_BACKENDS_CPU_KERNELS_ACT_H

#include "backends/cpu/kernels/level.h"
#include "backends/kernel_math.h"
#include "backends/cpu/kernels/tile_block.h"

// gate = act(gate) * up for n_rows of `width` numbers.
static inline void gate_rows(float (*gate)[QN_PANEL], float (*up)[QN_PANEL], int64_t n_rows,
                             int64_t width, qn_word act) {
    for (int64_t r = 0; r < n_rows; r++) {
        if (act == QN_WORD_gelu)
            for (int64_t i = 0; i < width; i++) gate[r][i] = math_gelu(gate[r][i]) * up[r][i];
        else
            for (int64_t i = 0; i < width; i++) gate[r][i] = math_silu(gate[r][i]) * up[r][i];
    }
}

#endif
