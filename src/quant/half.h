// Little endian loads and stores at any address, and 16-bit floats.
//
//   half  1 sign, 5 exponent (bias 15), 10 fraction bits; IEEE 754 binary16
//   bf16  the upper 16 bits of a float
//
// Decoding is exact. Encoding rounds to nearest, ties to even; what is too large becomes infinite;
// a NaN stays a NaN of the same sign.
#ifndef QN_QUANT_HALF_H
#define QN_QUANT_HALF_H

#include "core/inline.h"

#include <stdint.h>
#include <string.h>

QN_ANYWHERE uint16_t qn_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

QN_ANYWHERE uint32_t qn_load_u32(const uint8_t *p) {
    return (uint32_t)qn_load_u16(p) | (uint32_t)qn_load_u16(p + 2) << 16;
}

QN_ANYWHERE void qn_store_u16(uint8_t *p, uint16_t value) {
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
}

QN_ANYWHERE void qn_store_u32(uint8_t *p, uint32_t value) {
    qn_store_u16(p, (uint16_t)value);
    qn_store_u16(p + 2, (uint16_t)(value >> 16));
}

QN_ANYWHERE float qn_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

QN_ANYWHERE uint32_t qn_float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

QN_ANYWHERE float qn_load_f32(const uint8_t *p) { return qn_float_from_bits(qn_load_u32(p)); }

QN_ANYWHERE float qn_half_decode(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31;
    const uint32_t fraction = half & 1023;
    uint32_t magnitude;
    if (exponent == 31)
        magnitude = 0x7f800000 | fraction << 13;
    else if (exponent > 0)
        magnitude = (exponent + 127 - 15) << 23 | fraction << 13;
    else
        magnitude = qn_float_to_bits((float)fraction * 0x1p-24f);
    return qn_float_from_bits(sign | magnitude);
}

QN_ANYWHERE uint16_t qn_half_encode(float value) {
    const uint32_t bits = qn_float_to_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) // NaN: quiet, with the upper bits of the payload
        half = 0x7e00 | (magnitude >> 13 & 0x1ff);
    else if (magnitude >= 0x47800000) // 65536 and above
        half = 0x7c00;
    else if (magnitude < 0x38800000) // below 2^-14: steps of 2^-24, as a float has just above 0.5
        half = qn_float_to_bits(qn_float_from_bits(magnitude) + 0.5f) - 0x3f000000;
    else // a carry runs into the exponent, up to infinity
        half = (magnitude + 0xfff + (magnitude >> 13 & 1) - (uint32_t)((127 - 15) << 23)) >> 13;
    return (uint16_t)(sign | half);
}

QN_ANYWHERE float qn_load_half(const uint8_t *p) { return qn_half_decode(qn_load_u16(p)); }

QN_ANYWHERE float qn_bf16_decode(uint16_t bf16) { return qn_float_from_bits((uint32_t)bf16 << 16); }

QN_ANYWHERE uint16_t qn_bf16_encode(float value) {
    const uint32_t bits = qn_float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
