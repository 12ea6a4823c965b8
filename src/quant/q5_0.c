// Q5_0: 32 values in 22 bytes.
//
//    0  f16 d
//    2  u32 qh      bit i is the fifth bit of value i
//    6  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * (q - 16)
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const uint32_t qh = qn_load_u32(from + 2);
    const uint8_t *qs = from + 6;
    for (int i = 0; i < 16; i++) {
        const int low = (qs[i] & 15) | (int)(qh >> i & 1) << 4;
        const int high = qs[i] >> 4 | (int)(qh >> (i + 16) & 1) << 4;
        to[i] = d * (float)(low - 16);
        to[i + 16] = d * (float)(high - 16);
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_scale_form levels = {.groups = 1, .size = 32, .low = -16, .high = 15};
    qn_fit_input input;
    qn_fit_scale_result fit;
    if (!qn_fit_load(&input, from, weights, 32)) {
        qn_store_u16(to, 0);
        qn_store_u32(to + 2, UINT32_MAX);
        memset(to + 6, 0, 16);
        return;
    }
    qn_fit_scale(&fit, &input, &levels);
    qn_store_u16(to, fit.d);
    qn_store_u32(to + 2, qn_fifth_bits(fit.q));
    qn_nibbles_pack(to + 6, fit.q);
}

static const qn_form form = {QN_VALUES_Q5_0, QN_BYTES_Q5_0, unpack_block, pack_block};

void qn_q5_0_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q5_0_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q5_0_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
