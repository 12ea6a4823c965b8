// Q8_K: 256 values in 292 bytes. Made for activations; a file may hold it all the same.
//
//    0  f32 d
//    4  i8 qs[256]
//  260  i16 sums[16]   of each 16 quants, for integer kernels; not part of the value
//
// value = d * q
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_f32(from);
    for (int i = 0; i < 256; i++) to[i] = d * (float)(int8_t)from[4 + i];
}

static const qn_form form = {QN_VALUES_Q8_K, QN_BYTES_Q8_K, unpack_block};

void qn_q8_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q8_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
