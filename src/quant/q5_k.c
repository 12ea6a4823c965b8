// Q5_K: 256 values in 176 bytes, 8 groups of 32.
//
//    0  f16 d
//    2  f16 dmin
//    4  u8 scales[12]   scale and minimum of each group, see qn_scale_min_get
//   16  u8 qh[32]       bit g of byte l is the fifth bit of value 32g + l
//   48  u8 qs[128]      32 bytes for each pair of groups: the even one in the low nibbles
//
// value = d * scale * q - dmin * min
#include "quant/fit.h"

static void unpack_block(float *to, const uint8_t *from) {
    const float d = qn_load_half(from);
    const float dmin = qn_load_half(from + 2);
    const uint8_t *qh = from + 16;
    for (int g = 0; g < 8; g++) {
        const qn_scale_min s = qn_scale_min_get(from + 4, g);
        const float scale = d * (float)s.scale;
        const float min = dmin * (float)s.min;
        const uint8_t *qs = from + 48 + g / 2 * 32;
        const int shift = g % 2 * 4;
        for (int i = 0; i < 32; i++) {
            const int q = (qs[i] >> shift & 15) | (qh[i] >> g & 1) << 4;
            to[32 * g + i] = scale * (float)q - min;
        }
    }
}

static void pack_block(uint8_t *to, const float *from, const float *weights) {
    static const qn_fit_affine_form levels = {
        .groups = 8, .size = 32, .high = 31, .factor_high = 63};
    qn_fit_input input;
    qn_fit_affine_result fit;
    memset(to, 0, QN_BYTES_Q5_K);
    if (!qn_fit_load(&input, from, weights, 256)) return;
    qn_fit_affine(&fit, &input, &levels);
    qn_store_u16(to, fit.d);
    qn_store_u16(to + 2, fit.dmin);
    qn_scale_min_set(to + 4, fit.factor, fit.shift);
    for (int i = 0; i < 256; i++) to[16 + i % 32] |= (uint8_t)(fit.q[i] >> 4 << i / 32);
    for (int i = 0; i < 128; i++) {
        const uint8_t *q = fit.q + i / 32 * 64 + i % 32;
        to[48 + i] = (uint8_t)((q[0] & 15) | (q[32] & 15) << 4);
    }
}

static const qn_form form = {QN_VALUES_Q5_K, QN_BYTES_Q5_K, unpack_block, pack_block};

void qn_q5_k_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_q5_k_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_q5_k_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
