// Random weights, made in their own type: every block is random bytes, except that its scale is one
// that gives the values the wanted spread.
#include "make/synth.h"

#include "gen/philox.h"
#include "quant/half.h"

#include <assert.h>
#include <math.h>

// Root mean square of a matrix's values: what models are initialised with.
static const float wanted = 0.02f;

// --- blocks --------------------------------------------------------------------------------------

// Sixteen pairs of a scale and a minimum, 4 bits each: equal, and not small.
static void set_pairs_q2_k(uint8_t *b) {
    for (int i = 0; i < 16; i++) b[i] = (uint8_t)((b[i] & 7) * 17 | 0x88);
}

// Eight scales and eight minima of 6 bits (see qn_scale_min_get): equal, and not small.
static void set_pairs_q4_k(uint8_t *block) {
    uint8_t *b = block + 4;
    for (int i = 0; i < 4; i++) {
        const int low = (b[i] & 31) | 32, high = (b[i + 4] & 31) | 32;
        b[i] = b[i + 4] = (uint8_t)(low | high >> 4 << 6);
        b[i + 8] = (uint8_t)((high & 15) * 17);
    }
}

// How a type's random codes become values: with a scale of 1, they have this root mean square. The
// half at `scale_at` is the scale. Types with a minimum keep it, times `min` in units of the scale,
// so that the mean is 0; the others have a scale of either sign.
typedef struct form {
    qn_type type;
    float spread;
    int scale_at, min_at; // bytes in the block; min_at 0: has none
    float min;
    void (*set_pairs)(uint8_t *block);
} form;

static const form forms[] = {
    {QN_TYPE_Q4_0, 4.637f, 0, 0, 0, NULL},
    {QN_TYPE_Q4_1, 4.610f, 0, 2, -7.5f, NULL},
    {QN_TYPE_Q5_0, 9.247f, 0, 0, 0, NULL},
    {QN_TYPE_Q5_1, 9.233f, 0, 2, -15.5f, NULL},
    {QN_TYPE_Q8_0, 73.90f, 0, 0, 0, NULL},
    {QN_TYPE_Q2_K, 13.11f, 80, 82, 1.5f, set_pairs_q2_k},
    {QN_TYPE_Q3_K, 43.34f, 108, 0, 0, NULL},
    {QN_TYPE_Q4_K, 223.1f, 0, 2, 7.5f, set_pairs_q4_k},
    {QN_TYPE_Q5_K, 446.8f, 0, 2, 15.5f, set_pairs_q4_k},
    {QN_TYPE_Q6_K, 1365.7f, 208, 0, 0, NULL},
    {QN_TYPE_IQ4_NL, 67.44f, 0, 0, 0, NULL},
    {QN_TYPE_IQ4_XS, 1246.3f, 0, 0, 0, NULL},
};

static const form *find_form(qn_type type) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].type == type) return &forms[i];
    }
    return NULL;
}

static void set_scale(uint8_t *block, const form *f) {
    const uint16_t random = qn_load_u16(block + f->scale_at);
    const float jitter = 0.75f + (float)(random & 0xff) * (0.5f / 255);
    const float scale = wanted / f->spread * jitter;
    const bool is_negative = !f->min_at && random >> 15;
    qn_store_u16(block + f->scale_at, qn_half_encode(is_negative ? -scale : scale));
    if (f->min_at) qn_store_u16(block + f->min_at, qn_half_encode(scale * f->min));
    if (f->set_pairs) f->set_pairs(block);
}

// --- floats --------------------------------------------------------------------------------------

// The sum of random bytes, which is near to normal, in standard deviations.
static float sum_of_two(const uint8_t *b) { return (float)(b[0] + b[1] - 255) / 104.5f; }

static float sum_of_four(const uint8_t *b) {
    return (float)(b[0] + b[1] + b[2] + b[3] - 510) / 147.8f;
}

static void make_f32(uint8_t *to, int64_t n) {
    for (uint8_t *end = to + 4 * n; to < end; to += 4)
        qn_store_u32(to, qn_float_to_bits(wanted * sum_of_four(to)));
}

static void make_f16(uint8_t *to, int64_t n) {
    for (uint8_t *end = to + 2 * n; to < end; to += 2)
        qn_store_u16(to, qn_half_encode(wanted * sum_of_two(to)));
}

static void make_bf16(uint8_t *to, int64_t n) {
    for (uint8_t *end = to + 2 * n; to < end; to += 2)
        qn_store_u16(to, qn_bf16_encode(wanted * sum_of_two(to)));
}

// Evenly between middle - reach and middle + reach.
static void make_vector(uint8_t *to, int64_t n, qn_noise noise) {
    static const struct {
        float middle, reach;
    } ranges[] = {
        [QN_NOISE_NORM] = {1, 0.1f},   [QN_NOISE_BIAS] = {0, 0.05f}, [QN_NOISE_TAPS] = {0, 0.5f},
        [QN_NOISE_DECAY] = {-2, 1.5f}, [QN_NOISE_STEP] = {-3, 1},
    };
    for (uint8_t *end = to + 4 * n; to < end; to += 4) {
        const float u = (float)(qn_load_u32(to) >> 8) * 0x1p-23f - 1;
        qn_store_u32(to, qn_float_to_bits(ranges[noise].middle + ranges[noise].reach * u));
    }
}

// --- all of it -----------------------------------------------------------------------------------

void qn_noise_fill(uint8_t *to, qn_type type, int64_t n, qn_noise noise, qn_noise_place place) {
    const qn_type_info *info = qn_type_get(type);
    const form *f = find_form(type);
    const size_t bytes = (size_t)(n / info->block * info->bytes);
    qn_philox_fill(to, bytes, (qn_philox){{0, place.piece, place.tensor, 0}}, place.seed);
    if (noise != QN_NOISE_MATRIX) {
        assert(type == QN_TYPE_F32);
        make_vector(to, n, noise);
    } else if (f) {
        for (uint8_t *b = to; b < to + bytes; b += info->bytes) set_scale(b, f);
    } else if (type == QN_TYPE_F16) {
        make_f16(to, n);
    } else if (type == QN_TYPE_BF16) {
        make_bf16(to, n);
    } else {
        assert(type == QN_TYPE_F32);
        make_f32(to, n);
    }
}

static void scale_half(uint8_t *at, float factor) {
    qn_store_u16(at, qn_half_encode(qn_half_decode(qn_load_u16(at)) * factor));
}

static void scale_block(uint8_t *block, const form *f, float factor) {
    scale_half(block + f->scale_at, factor);
    if (f->min_at) scale_half(block + f->min_at, factor);
}

void qn_noise_scale(uint8_t *to, qn_type type, int64_t n, float factor) {
    const qn_type_info *info = qn_type_get(type);
    const form *f = find_form(type);
    uint8_t *end = to + n / info->block * info->bytes;
    for (; to < end; to += info->bytes) {
        if (f)
            scale_block(to, f, factor);
        else if (type == QN_TYPE_F16)
            scale_half(to, factor);
        else if (type == QN_TYPE_BF16)
            qn_store_u16(to, qn_bf16_encode(qn_bf16_decode(qn_load_u16(to)) * factor));
        else
            qn_store_u32(to, qn_float_to_bits(qn_float_from_bits(qn_load_u32(to)) * factor));
    }
}

void qn_noise_skew(uint8_t *to, int64_t first, int64_t n, int64_t width, int64_t n_experts,
                   uint32_t tensor, float skew) {
    for (int64_t i = 0; i < n; i++, to += 4) {
        const int64_t expert = (first + i) / width;
        const int64_t rank = (expert * 5 + tensor * 7) % n_experts; // 5: no power of two shares it
        const float value = qn_float_from_bits(qn_load_u32(to));
        qn_store_u32(to, qn_float_to_bits(value / powf((float)(rank + 1), skew)));
    }
}
