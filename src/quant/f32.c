// F32: IEEE 754 binary32.
#include "quant/blocks.h"

static void unpack_block(float *to, const uint8_t *from) { *to = qn_load_f32(from); }

static const qn_form form = {QN_VALUES_F32, QN_BYTES_F32, unpack_block};

void qn_f32_unpack(float *to, const void *from, int64_t n) { qn_blocks_unpack(&form, to, from, n); }

float qn_f32_dot(const void *w, const float *x, int64_t n) { return qn_blocks_dot(&form, w, x, n); }
