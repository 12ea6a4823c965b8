// What the files of the numeric types share: the functions they define, the loop over blocks, and
// the few pieces of layout that occur in two types.
//
// A type's file defines how one block becomes floats. Where the scale is an f16, all products are
// exact in float (11 bits of scale, at most 7 of small scale and 7 of quant, never more than 23 in
// all) and only the last addition rounds. So the values are the same to the bit in every reader of
// the format, whatever its order of operations and with or without fused multiply-add.
#ifndef QN_QUANT_BLOCKS_H
#define QN_QUANT_BLOCKS_H

#include "quant/half.h"
#include "quant/type.h"

#include <assert.h>

// QN_VALUES_Q4_K, QN_BYTES_Q4_K and so on: the sizes of types.def as constants.
enum {
#define TYPE(name, gguf, block, bytes, safetensors, support)                                       \
    QN_VALUES_##name = block, QN_BYTES_##name = bytes,
#include "quant/types.def"
#undef TYPE
    QN_VALUES_MAX = 256
};

// qn_q4_k_unpack, qn_q4_k_dot, qn_q4_k_pack and so on; see qn_type_info.
#define FULL(file)                                                                                 \
    void qn_##file##_unpack(float *to, const void *from, int64_t n);                               \
    float qn_##file##_dot(const void *w, const float *x, int64_t n);                               \
    void qn_##file##_pack(void *to, const float *from, int64_t n, const float *weights);
#define NAMED
#define TYPE(name, gguf, block, bytes, safetensors, support) support
#include "quant/types.def"
#undef TYPE
#undef NAMED
#undef FULL

typedef struct qn_form {
    int values, bytes; // per block
    void (*unpack)(float *to, const uint8_t *from);
    void (*pack)(uint8_t *to, const float *from, const float *weights); // weights may be NULL
} qn_form;

static inline void qn_blocks_unpack(const qn_form *form, float *to, const void *from, int64_t n) {
    assert(n >= 0 && n % form->values == 0);
    const uint8_t *block = from;
    for (int64_t i = 0; i < n; i += form->values, block += form->bytes) form->unpack(to + i, block);
}

static inline float qn_blocks_dot(const qn_form *form, const void *w, const float *x, int64_t n) {
    assert(n >= 0 && n % form->values == 0);
    const uint8_t *block = w;
    float values[QN_VALUES_MAX];
    float sum = 0;
    for (int64_t i = 0; i < n; i += form->values, block += form->bytes) {
        form->unpack(values, block);
        for (int j = 0; j < form->values; j++) sum += values[j] * x[i + j];
    }
    return sum;
}

static inline void qn_blocks_pack(const qn_form *form, void *to, const float *from, int64_t n,
                                  const float *weights) {
    assert(n >= 0 && n % form->values == 0);
    uint8_t *block = to;
    for (int64_t i = 0; i < n; i += form->values, block += form->bytes)
        form->pack(block, from + i, weights ? weights + i : NULL);
}

// 32 quants of which qs holds the low nibbles: value i in the low nibble of byte i, i+16 in the
// high one.
static inline void qn_nibbles_pack(uint8_t *qs, const uint8_t *q) {
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static inline uint32_t qn_fifth_bits(const uint8_t *q) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(q[i] >> 4 & 1) << i;
    return bits;
}

// Q4_K and Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes. Bytes 0-3 hold scales 0-3, bytes 4-7
// minima 0-3, each with two bits of number j+4 on top; bytes 8-11 hold the lower four bits of scale
// and minimum j+4.
typedef struct qn_scale_min {
    int scale, min;
} qn_scale_min;

static inline qn_scale_min qn_scale_min_get(const uint8_t *b, int j) {
    if (j < 4) return (qn_scale_min){b[j] & 63, b[j + 4] & 63};
    return (qn_scale_min){
        (b[j + 4] & 15) | b[j - 4] >> 6 << 4,
        b[j + 4] >> 4 | b[j] >> 6 << 4,
    };
}

static inline void qn_scale_min_set(uint8_t *b, const uint8_t *scale, const uint8_t *min) {
    for (int j = 0; j < 4; j++) {
        b[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        b[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        b[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

// IQ4_NL and IQ4_XS: the 16 levels.
static inline int qn_iq4_level(int nibble) {
    static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
    return levels[nibble];
}

#endif
