// IQ4_XS: 256 values in 136 bytes, 8 groups of 32; levels as IQ4_NL.
//
//    0  f16 d
//    2  u16 scales_h     upper two bits of scale g at bit 2g
//    4  u8 scales_l[4]   lower four bits of scale g in byte g / 2, the even one in the low nibble
//    8  u8 qs[128]       16 bytes for each group: value i of the group in the low nibble of byte i,
//                        value i+16 in the high one
//
// value = d * (scale - 32) * level(q)
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const int scales_h = qn_load_u16(from + 2);
    for (int g = 0; g < 8; g++) {
        const int low = from[4 + g / 2] >> g % 2 * 4 & 15;
        const int high = scales_h >> 2 * g & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        const uint8_t *qs = from + 8 + 16 * g;
        for (int i = 0; i < 16; i++) {
            to[32 * g + i] = scale * (float)qn_iq4_level(qs[i] & 15);
            to[32 * g + i + 16] = scale * (float)qn_iq4_level(qs[i] >> 4);
        }
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_scale_form levels = {
        .groups = 8, .size = 32, .factor_low = -32, .factor_high = 31, .is_iq4 = true};
    qn_fit_input input;
    qn_fit_scale_result fit;
    memset(to, 0, QN_BYTES_IQ4_XS);
    if (!qn_fit_load(&input, from, weights, 256)) return;
    qn_fit_scale(&fit, &input, &levels);
    qn_store_u16(to, fit.d);
    for (int g = 0; g < 8; g++) {
        const int scale = fit.factor[g] + 32;
        to[2 + g / 4] |= (uint8_t)(scale >> 4 << g % 4 * 2);
        to[4 + g / 2] |= (uint8_t)((scale & 15) << g % 2 * 4);
        qn_nibbles_pack(to + 8 + 16 * g, fit.q + 32 * g);
    }
}

static const qn_form form = {QN_VALUES_IQ4_XS, QN_BYTES_IQ4_XS, unpack_block, pack_block};

void qn_iq4_xs_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_iq4_xs_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_iq4_xs_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
