// Q5_1: 32 values in 24 bytes.
//
//    0  f16 d
//    2  f16 m
//    4  u32 qh      bit i is the fifth bit of value i
//    8  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * q + m
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const float m = qn_load_half(from + 2);
    const uint32_t qh = qn_load_u32(from + 4);
    const uint8_t *qs = from + 8;
    for (int i = 0; i < 16; i++) {
        const int low = (qs[i] & 15) | (int)(qh >> i & 1) << 4;
        const int high = qs[i] >> 4 | (int)(qh >> (i + 16) & 1) << 4;
        to[i] = d * (float)low + m;
        to[i + 16] = d * (float)high + m;
    }
}

static const qn_form form = {QN_VALUES_Q5_1, QN_BYTES_Q5_1, unpack_block};

void qn_q5_1_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q5_1_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
