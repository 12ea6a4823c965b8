// F16: IEEE 754 binary16.
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) { *to = qn_load_half(from); }

static const qn_form form = {QN_VALUES_F16, QN_BYTES_F16, unpack_block};

void qn_f16_unpack(float *to, const void *from, int64_t n) { qn_blocks_unpack(&form, to, from, n); }

float qn_f16_dot(const void *w, const float *x, int64_t n) { return qn_blocks_dot(&form, w, x, n); }
