// Q8_0: 32 values in 34 bytes.
//
//    0  f16 d
//    2  i8 qs[32]
//
// value = d * q
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    for (int i = 0; i < 32; i++) to[i] = d * (float)(int8_t)from[2 + i];
}

static const qn_form form = {QN_VALUES_Q8_0, QN_BYTES_Q8_0, unpack_block};

void qn_q8_0_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q8_0_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
