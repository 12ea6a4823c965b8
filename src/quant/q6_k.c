// Q6_K: 256 values in 210 bytes, 16 groups of 16.
//
//    0  u8 ql[128]      the lower four bits: 64 bytes for each half of 128 values; in a half,
//                       value i is in byte i % 64, for i < 64 in the low nibble, else in the high
//                       one
//  128  u8 qh[64]       the upper two: 32 bytes for each half; in a half, bits 2j and 2j+1 of byte
//  l
//                       belong to value 32j + l
//  192  i8 scales[16]
//  208  f16 d
//
// value = d * scale * (q - 32)
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from + 208);
    for (int g = 0; g < 16; g++) {
        const int half = g / 8;
        const int at = g % 8 * 16; // of the group in its half
        const float scale = d * (float)(int8_t)from[192 + g];
        const uint8_t *ql = from + 64 * half + at % 64;
        const uint8_t *qh = from + 128 + 32 * half + at % 32;
        for (int i = 0; i < 16; i++) {
            const int q = (ql[i] >> at / 64 * 4 & 15) | (qh[i] >> at / 32 * 2 & 3) << 4;
            to[16 * g + i] = scale * (float)(q - 32);
        }
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_scale_form levels = {
        .groups = 16, .size = 16, .low = -32, .high = 31, .factor_low = -128, .factor_high = 127};
    qn_fit_input input;
    qn_fit_scale_result fit;
    memset(to, 0, QN_BYTES_Q6_K);
    if (!qn_fit_load(&input, from, weights, 256)) return;
    qn_fit_scale(&fit, &input, &levels);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, at = i % 128;
        to[64 * half + at % 64] |= (uint8_t)((fit.q[i] & 15) << at / 64 * 4);
        to[128 + 32 * half + at % 32] |= (uint8_t)(fit.q[i] >> 4 << at / 32 * 2);
    }
    for (int g = 0; g < 16; g++) to[192 + g] = (uint8_t)fit.factor[g];
    qn_store_u16(to + 208, fit.d);
}

static const qn_form form = {QN_VALUES_Q6_K, QN_BYTES_Q6_K, unpack_block, pack_block};

void qn_q6_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q6_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q6_k_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
