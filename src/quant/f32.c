// F32: IEEE 754 binary32.
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) { *to = qn_load_f32(from); }

static const qn_form form = {QN_VALUES_F32, QN_BYTES_F32, unpack_block, NULL};

void qn_f32_unpack(float *to, const void *from, int64_t n) { qn_blocks_unpack(&form, to, from, n); }

float qn_f32_dot(const void *w, const float *x, int64_t n) { return qn_blocks_dot(&form, w, x, n); }

void qn_f32_pack(void *to, const float *from, int64_t n, const float *weights) {
    (void)weights;
    uint8_t *bytes = to;
    for (int64_t i = 0; i < n; i++) qn_store_u32(bytes + 4 * i, qn_float_to_bits(from[i]));
}
