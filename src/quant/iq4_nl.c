// IQ4_NL: 32 values in 18 bytes; the 16 levels are not evenly spaced.
//
//    0  f16 d
//    2  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * level(q)
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const uint8_t *qs = from + 2;
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)qn_iq4_level(qs[i] & 15);
        to[i + 16] = d * (float)qn_iq4_level(qs[i] >> 4);
    }
}

static const qn_form form = {QN_VALUES_IQ4_NL, QN_BYTES_IQ4_NL, unpack_block};

void qn_iq4_nl_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_iq4_nl_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
