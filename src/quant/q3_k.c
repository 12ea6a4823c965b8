// Q3_K: 256 values in 110 bytes, 16 groups of 16.
//
//    0  u8 hmask[32]    bit 4*half + j of byte l is the third bit of value 128*half + 32j + l
//   32  u8 qs[64]       the lower two bits: 32 bytes for each half of 128 values; in a half, bits
//                       2j and 2j+1 of byte l are value 32j + l
//   96  u8 scales[12]   16 scales of 6 bits: the lower four of scale g in byte g % 8 (low nibble
//                       for g < 8, else high), the upper two in byte 8 + g % 4 at bit 2 * (g / 4)
//  108  f16 d
//
// value = d * (scale - 32) * (q - 4)
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from + 108);
    const uint8_t *scales = from + 96;
    for (int g = 0; g < 16; g++) {
        const int low = scales[g % 8] >> g / 8 * 4 & 15;
        const int high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        const uint8_t *hmask = from + g % 2 * 16;
        const uint8_t *qs = from + 32 + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2;
        for (int i = 0; i < 16; i++) {
            const int q = (qs[i] >> shift & 3) | (hmask[i] >> g / 2 & 1) << 2;
            to[16 * g + i] = scale * (float)(q - 4);
        }
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_scale_form levels = {
        .groups = 16, .size = 16, .low = -4, .high = 3, .factor_low = -32, .factor_high = 31};
    qn_fit_input input;
    qn_fit_scale_result fit;
    memset(to, 0, QN_BYTES_Q3_K);
    if (!qn_fit_load(&input, from, weights, 256)) return;
    qn_fit_scale(&fit, &input, &levels);
    for (int i = 0; i < 256; i++) {
        to[i % 32] |= (uint8_t)(fit.q[i] >> 2 << i / 32);
        to[32 + i / 128 * 32 + i % 32] |= (uint8_t)((fit.q[i] & 3) << i % 128 / 32 * 2);
    }
    for (int g = 0; g < 16; g++) {
        const int scale = fit.factor[g] + 32;
        to[96 + g % 8] |= (uint8_t)((scale & 15) << g / 8 * 4);
        to[104 + g % 4] |= (uint8_t)(scale >> 4 << g / 4 * 2);
    }
    qn_store_u16(to + 108, fit.d);
}

static const qn_form form = {QN_VALUES_Q3_K, QN_BYTES_Q3_K, unpack_block, pack_block};

void qn_q3_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q3_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q3_k_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
