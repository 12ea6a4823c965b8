// BF16: the upper half of a binary32.
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) {
    *to = qn_bf16_decode(qn_load_u16(from));
}

static const qn_form form = {QN_VALUES_BF16, QN_BYTES_BF16, unpack_block};

void qn_bf16_unpack(float *to, const void *from, int64_t n) {
    qn_blocks_unpack(&form, to, from, n);
}

float qn_bf16_dot(const void *w, const float *x, int64_t n) {
    return qn_blocks_dot(&form, w, x, n);
}
