// Q5_1: 32 values in 24 bytes.
//
//    0  f16 d
//    2  f16 m
//    4  u32 qh      bit i is the fifth bit of value i
//    8  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * q + m
#include "quant/fit.h"

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

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_affine_form levels = {.groups = 1, .size = 32, .high = 31};
    qn_fit_input input;
    qn_fit_affine_result fit;
    if (!qn_fit_load(&input, from, weights, 32)) {
        memset(to, 0, QN_BYTES_Q5_1);
        return;
    }
    qn_fit_affine(&fit, &input, &levels);
    qn_store_u16(to, fit.d);
    qn_store_u16(to + 2, fit.dmin ^ 0x8000);
    qn_store_u32(to + 4, qn_fifth_bits(fit.q));
    qn_nibbles_pack(to + 8, fit.q);
}

static const qn_form form = {QN_VALUES_Q5_1, QN_BYTES_Q5_1, unpack_block, pack_block};

void qn_q5_1_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q5_1_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q5_1_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
