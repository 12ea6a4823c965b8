// Q2_K: 256 values in 84 bytes, 16 groups of 16.
//
//    0  u8 scales[16]   of group g: low nibble the scale, high nibble the minimum
//   16  u8 qs[64]       32 bytes for each half of 128 values; in a half, bits 2j and 2j+1 of
//                       byte l are value 32j + l
//   80  f16 d
//   82  f16 dmin
//
// value = d * scale * q - dmin * min
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from + 80);
    const float dmin = qn_load_half(from + 82);
    const uint8_t *qs = from + 16;
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(from[g] & 15);
        const float min = dmin * (float)(from[g] >> 4);
        const uint8_t *q = qs + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2;
        for (int i = 0; i < 16; i++) to[16 * g + i] = scale * (float)(q[i] >> shift & 3) - min;
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_affine_form levels = {
        .groups = 16, .size = 16, .high = 3, .factor_high = 15};
    qn_fit_input input;
    qn_fit_affine_result fit;
    memset(to, 0, QN_BYTES_Q2_K);
    if (!qn_fit_load(&input, from, weights, 256)) return;
    qn_fit_affine(&fit, &input, &levels);
    for (int g = 0; g < 16; g++) to[g] = (uint8_t)(fit.factor[g] | fit.shift[g] << 4);
    for (int i = 0; i < 256; i++)
        to[16 + i / 128 * 32 + i % 32] |= (uint8_t)(fit.q[i] << i % 128 / 32 * 2);
    qn_store_u16(to + 80, fit.d);
    qn_store_u16(to + 82, fit.dmin);
}

static const qn_form form = {QN_VALUES_Q2_K, QN_BYTES_Q2_K, unpack_block, pack_block};

void qn_q2_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q2_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q2_k_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
