// BF16: the upper half of a binary32.
#include "quant/blocks.h"

#include <math.h>

static void unpack_block(float *to, const uint8_t *from) {
    *to = qn_bf16_decode(qn_load_u16(from));
}

static const qn_form form = {QN_VALUES_BF16, QN_BYTES_BF16, unpack_block, NULL};

void qn_bf16_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_bf16_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}

// A number beyond the bf16 range becomes the largest; an infinity stays one.
void qn_bf16_pack(void *to, const float *from, int64_t n, const float *weights) {
    (void)weights;
    uint8_t *bytes = to;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t bf16 = qn_bf16_encode(from[i]);
        const bool has_overflowed = (bf16 & 0x7fff) == 0x7f80 && fabsf(from[i]) < INFINITY;
        qn_store_u16(bytes + 2 * i, has_overflowed ? (uint16_t)(bf16 - 1) : bf16);
    }
}
