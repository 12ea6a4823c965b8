// Q8_K: 256 values in 292 bytes. Made for activations; a file may still hold it.
//
//    0  f32 d
//    4  i8 qs[256]
//  260  i16 sums[16]   of each 16 quants, for integer kernels; not part of the value
//
// value = d * q
#include "quant/fit.h"

#include <math.h>

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_f32(from);
    for (int i = 0; i < 256; i++) to[i] = d * (float)(int8_t)from[4 + i];
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    (void)weights;
    float x[256], max = 0;
    for (int i = 0; i < 256; i++) {
        x[i] = qn_fit_finite(from[i]);
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    }
    // Below this the inverse is not finite.
    const float inverse = fabsf(max) > 0x1p-100f ? -127 / max : 0;
    qn_store_u32(to, qn_float_to_bits(inverse != 0 ? 1 / inverse : 0));
    for (int g = 0; g < 16; g++) {
        int sum = 0;
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            const int q = (int)qn_fit_round(qn_fit_clamp(x[i] * inverse, -127, 127));
            to[4 + i] = (uint8_t)q;
            sum += q;
        }
        qn_store_u16(to + 260 + 2 * g, (uint16_t)sum);
    }
}

static const qn_form form = {QN_VALUES_Q8_K, QN_BYTES_Q8_K, unpack_block, pack_block};

void qn_q8_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q8_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q8_k_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
