#include "quant/fit.h"

#include <math.h>

// Of a positive finite x; the exponent e with 2^(e - 1) <= x < 2^e, as the float 2^e.
static float power_above(float x) {
    const uint32_t exponent = qn_float_to_bits(x) >> 23;
    return qn_float_from_bits((exponent + 1) << 23);
}

static void load_weights(float *to, const float *weights, int n) {
    const float min = 0x1p-20f; // changes no choice between values that have a weight
    float max = 0;
    for (int i = 0; i < n; i++) {
        const float w = weights ? weights[i] : 1;
        to[i] = w > 0 && w < INFINITY ? qn_fit_clamp(w, 0, 0x1p100f) : 0;
        max = max > to[i] ? max : to[i];
    }
    const float factor = max > 0x1p-100f ? 1 / power_above(max) : 0;
    for (int i = 0; i < n; i++) to[i] = to[i] * factor > min ? to[i] * factor : min;
}

bool qn_fit_load(qn_fit_input *to, const float *from, const float *weights, int n) {
    float max = 0;
    for (int i = 0; i < n; i++) {
        const float x = qn_fit_finite(from[i]);
        to->x[i] = x;
        max = max > fabsf(x) ? max : fabsf(x);
    }
    if (max < 0x1p-25f) return false;
    to->unit = power_above(max);
    to->per_unit = 1 / to->unit;
    for (int i = 0; i < n; i++) to->x[i] *= to->per_unit;
    to->is_weighted = weights != NULL;
    load_weights(to->w, weights, n);
    return true;
}

uint16_t qn_fit_half(float *scale, const qn_fit_input *input) {
    const float value = qn_fit_clamp(*scale * input->unit, -65504, 65504);
    uint16_t half = qn_half_encode(value);
    if ((half & 0x7fff) == 0 && value != 0) half++;
    *scale = qn_half_decode(half) * input->per_unit;
    return half;
}

float qn_fit_half_above(float scale, const qn_fit_input *input) {
    float near = scale;
    const uint16_t half = qn_fit_half(&near, input);
    if (fabsf(near) >= fabsf(scale) || (half & 0x7fff) == 0x7bff) return near;
    return qn_half_decode((uint16_t)(half + 1)) * input->per_unit;
}
