// Q8_0: 32 values in 34 bytes.
//
//    0  f16 d
//    2  i8 qs[32]
//
// value = d * q
#include "quant/fit.h"

#include <math.h>

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    for (int i = 0; i < 32; i++) to[i] = d * (float)(int8_t)from[2 + i];
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    (void)weights;
    float x[32], max = 0;
    for (int i = 0; i < 32; i++) {
        x[i] = qn_fit_finite(from[i]);
        max = max > fabsf(x[i]) ? max : fabsf(x[i]);
    }
    float d = max / 127;
    uint16_t half = qn_half_encode(d < 65504 ? d : 65504);
    // The customary quants are those of the unrounded scale. A scale that f16 holds badly would put
    // them off by more than one: then a scale that reaches the largest value, and its own quants.
    if (half < 0x400 || half == 0x7bff) {
        if (half < 0x400 && qn_half_decode(half) < d) half++;
        d = qn_half_decode(half);
    }
    const float inverse = d > 0 ? 1 / d : 0;
    qn_store_u16(to, half);
    for (int i = 0; i < 32; i++)
        to[2 + i] = (uint8_t)(int)qn_fit_round_away(qn_fit_clamp(x[i] * inverse, -127, 127));
}

static const qn_form form = {QN_VALUES_Q8_0, QN_BYTES_Q8_0, unpack_block, pack_block};

void qn_q8_0_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q8_0_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q8_0_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
