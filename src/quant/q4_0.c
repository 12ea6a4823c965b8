// Q4_0: 32 values in 18 bytes.
//
//    0  f16 d
//    2  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * (q - 8)
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const uint8_t *qs = from + 2;
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)((qs[i] & 15) - 8);
        to[i + 16] = d * (float)((qs[i] >> 4) - 8);
    }
}

static const qn_form form = {QN_VALUES_Q4_0, QN_BYTES_Q4_0, unpack_block};

void qn_q4_0_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q4_0_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
