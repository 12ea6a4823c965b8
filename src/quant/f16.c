// F16: IEEE 754 binary16.
#include "quant/blocks.h"

#include <math.h>

static void unpack_block(float *to, const uint8_t *from) { *to = qn_load_half(from); }

static const qn_form form = {QN_VALUES_F16, QN_BYTES_F16, unpack_block, NULL};

void qn_f16_unpack(float *to, const void *from, int64_t n) { qn_blocks_unpack(&form, to, from, n); }

float qn_f16_dot(const void *w, const float *x, int64_t n) { return qn_blocks_dot(&form, w, x, n); }

// A number beyond the f16 range becomes the largest; an infinity stays one.
void qn_f16_pack(void *to, const float *from, int64_t n, const float *weights) {
    (void)weights;
    uint8_t *bytes = to;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = qn_half_encode(from[i]);
        const bool has_overflowed = (half & 0x7fff) == 0x7c00 && fabsf(from[i]) < INFINITY;
        qn_store_u16(bytes + 2 * i, has_overflowed ? (uint16_t)(half - 1) : half);
    }
}
