// MXFP4: 32 values in 17 bytes; floats of 4 bits (1 sign, 2 exponent, 1 fraction) under a power of
// two.
//
//    0  u8 e         E8M0
//    1  u8 qs[16]    value i in the low nibble of qs[i], value i+16 in the high one
//
// value = 2^(e - 127) * {0, 0.5, 1, 1.5, 2, 3, 4, 6}, negative where the nibble's top bit is set
//
// Computed as 2^(e - 128) times twice the value, which keeps the table whole and the result exact.
// E8M0 calls e = 255 a NaN; GGUF readers take it as the number 2^128, and so does this one. Minus
// zero reads as zero.
#include "quant/fit.h"

#include <math.h>

static int doubled(int nibble) {
    static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return values[nibble];
}

// 2^(e - 128), subnormal for e < 2
static float half_scale(uint32_t e) {
    return qn_float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

static void unpack_block(float *to, const uint8_t *from) {
    const float d = half_scale(from[0]);
    const uint8_t *qs = from + 1;
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)doubled(qs[i] & 15);
        to[i + 16] = d * (float)doubled(qs[i] >> 4);
    }
}

// The magnitude index nearest to x, in units of the doubled values: each boundary that it exceeds
// is a step; at most 7.
static int nearest_index(float x) {
    static const float boundary[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};
    int index = 0;
    for (int i = 0; i < 7; i++) index += fabsf(x) > boundary[i];
    return index;
}

static float block_error(const qn_fit_input *input, float d) {
    const float inverse = 1 / d;
    float error = 0;
    for (int i = 0; i < 32; i++) {
        const int q = doubled(nearest_index(input->x[i] * inverse));
        const float off = fabsf(input->x[i]) - d * (float)q;
        error += input->w[i] * off * off;
    }
    return error;
}

// Only powers of two to choose from: the one that puts the largest value, in [0.5, 1) here, below
// 6, and the two below it, which may cut it off.
static void pack_block(uint8_t *to, const float *from, const float *weights) {
    qn_fit_input input;
    memset(to, 0, QN_BYTES_MXFP4);
    if (!qn_fit_load(&input, from, weights, 32)) return;
    float best = 0, best_error = INFINITY;
    for (uint32_t k = 0; k < 3; k++) {
        const float d = qn_float_from_bits((127 - 3 - k) << 23); // 1/8 to 1/32
        const float error = block_error(&input, d);
        if (error < best_error) best_error = error, best = d;
    }
    to[0] = (uint8_t)((qn_float_to_bits(best * input.unit) >> 23) + 1);
    uint8_t q[32];
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(nearest_index(input.x[i] / best) | (input.x[i] < 0) << 3);
    qn_nibbles_pack(to + 1, q);
}

static const qn_form form = {QN_VALUES_MXFP4, QN_BYTES_MXFP4, unpack_block, pack_block};

void qn_mxfp4_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_mxfp4_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

void qn_mxfp4_pack(void *to, const float *from, int64_t n, const float *weights) {
    qn_blocks_pack(&form, to, from, n, weights);
}
