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
#include "quant/blocks.h"

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

static const qn_form form = {QN_VALUES_MXFP4, QN_BYTES_MXFP4, unpack_block};

void qn_mxfp4_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_mxfp4_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
