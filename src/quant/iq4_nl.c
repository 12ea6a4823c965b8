// IQ4_NL: 32 values in 18 bytes; the 16 levels are not evenly spaced.
//
//    0  f16 d
//    2  u8 qs[16]   value i in the low nibble of qs[i], value i+16 in the high one
//
// value = d * level(q)
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const uint8_t *qs = from + 2;
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)qn_iq4_level(qs[i] & 15);
        to[i + 16] = d * (float)qn_iq4_level(qs[i] >> 4);
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_scale_form levels = {.groups = 1, .size = 32, .is_iq4 = true};
    qn_fit_input input;
    qn_fit_scale_result fit;
    if (!qn_fit_load(&input, from, weights, 32)) {
        memset(to, 0, QN_BYTES_IQ4_NL);
        return;
    }
    qn_fit_scale(&fit, &input, &levels);
    qn_store_u16(to, fit.d);
    qn_nibbles_pack(to + 2, fit.q);
}

static const qn_form form = {QN_VALUES_IQ4_NL, QN_BYTES_IQ4_NL, unpack_block, pack_block};

void qn_iq4_nl_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_iq4_nl_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_iq4_nl_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
