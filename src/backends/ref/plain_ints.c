// Activations and weights as integers and scales, and the sum of their products (docs/numbers.md).
#include "backends/ref/plain.h"
#include "quant/blocks.h"

#include <math.h>

// --- activations ---------------------------------------------------------------------------------

// n values that share a scale.
static float find_scale(const float *x, int64_t n, float max_q) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return NAN;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    return largest / max_q;
}

static int16_t round_value(float x, float scale, float max_q) {
    if (!(scale > 0)) return 0;
    const float y = x / scale;
    return (int16_t)rintf(y > max_q ? max_q : y < -max_q ? -max_q : y);
}

void qn_plain_round(void *to, const float *from, int64_t n, qn_word form) {
    qn_plain_group *groups = to;
    const int64_t block = form == QN_WORD_i8_32 ? 32 : 256;
    const float max_q = form == QN_WORD_i8_32 ? 127 : form == QN_WORD_i12_256 ? 2047 : 32767;
    if (form == QN_WORD_f32) {
        memcpy(to, from, (size_t)n * sizeof *from);
        return;
    }
    memset(to, 0, (size_t)qn_plain_part_bytes(form, n));
    for (int64_t first = 0; first < n; first += block) {
        const int64_t end = qn_min(first + block, n);
        const float scale = find_scale(from + first, end - first, max_q);
        for (int64_t i = first; i < end; i++) {
            groups[i / 32].scale = scale;
            groups[i / 32].q[i % 32] = round_value(from[i], scale, max_q);
        }
    }
}

void qn_plain_read(float *to, const void *from, int64_t n, qn_word form) {
    const qn_plain_group *groups = from;
    if (form == QN_WORD_f32) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const qn_plain_group *group = &groups[i / 32];
        to[i] = (float)group->q[i % 32] * group->scale;
    }
}

// --- weights -------------------------------------------------------------------------------------

// A block of a type, 32 or 256 values: in group g, value = S * scale[g] * w - M * offset[g].
typedef struct ints {
    float S, M;
    int scale[16], offset[16];
    int w[QN_PLAIN_BLOCK];
} ints;

typedef struct int_type {
    void (*read)(ints *to, const uint8_t *block); // NULL: the type is not made of integers
    int group;                                    // values that share a scale
    bool has_offsets;
} int_type;

// Value i of 32 in 16 bytes: the low nibble of byte i, or the high one of byte i - 16.
static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

static int bit(const uint8_t *bits, int i) { return bits[i / 8] >> i % 8 & 1; }
static int signed_byte(uint8_t byte) { return byte < 128 ? byte : byte - 256; }

// Types of blocks of 32 have one group, whose integer scale and offset are 1.
static void set_float_scale(ints *to, float scale, float offset) {
    to->S = scale;
    to->M = -offset;
    to->scale[0] = to->offset[0] = 1;
}

static void read_q4_0(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), 0);
    for (int i = 0; i < 32; i++) to->w[i] = nibble(b + 2, i) - 8;
}

static void read_q4_1(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), qn_load_half(b + 2));
    for (int i = 0; i < 32; i++) to->w[i] = nibble(b + 4, i);
}

static void read_q5_0(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), 0);
    for (int i = 0; i < 32; i++) to->w[i] = (nibble(b + 6, i) | bit(b + 2, i) << 4) - 16;
}

static void read_q5_1(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), qn_load_half(b + 2));
    for (int i = 0; i < 32; i++) to->w[i] = nibble(b + 8, i) | bit(b + 4, i) << 4;
}

static void read_q8_0(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), 0);
    for (int i = 0; i < 32; i++) to->w[i] = signed_byte(b[2 + i]);
}

static void read_iq4_nl(ints *to, const uint8_t *b) {
    set_float_scale(to, qn_load_half(b), 0);
    for (int i = 0; i < 32; i++) to->w[i] = qn_iq4_level(nibble(b + 2, i));
}

// Twice the levels, half the scale.
static void read_mxfp4(ints *to, const uint8_t *b) {
    static const int doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    set_float_scale(to, ldexpf(1, b[0] - 128), 0);
    for (int i = 0; i < 32; i++) to->w[i] = doubled[nibble(b + 1, i)];
}

// Bits 2 j and 2 j + 1 of byte l are value 32 j + l of a half of 128 values, which has 32 bytes.
static int bit_pair(const uint8_t *qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

// 32 bytes for each 64 values: the first 32 in the low nibbles.
static int wide_nibble(const uint8_t *qs, int i) {
    return qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

static void read_q2_k(ints *to, const uint8_t *b) {
    to->S = qn_load_half(b + 80);
    to->M = qn_load_half(b + 82);
    for (int g = 0; g < 16; g++) {
        to->scale[g] = b[g] & 15;
        to->offset[g] = b[g] >> 4;
    }
    for (int i = 0; i < 256; i++) to->w[i] = bit_pair(b + 16, i);
}

static void read_q3_k(ints *to, const uint8_t *b) {
    const uint8_t *scales = b + 96;
    to->S = qn_load_half(b + 108);
    for (int g = 0; g < 16; g++) {
        const int low = scales[g % 8] >> g / 8 * 4 & 15, high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        to->scale[g] = (low | high << 4) - 32;
    }
    for (int i = 0; i < 256; i++)
        to->w[i] = (bit_pair(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2) - 4;
}

static void read_scale_mins(ints *to, const uint8_t *b) {
    to->S = qn_load_half(b);
    to->M = qn_load_half(b + 2);
    for (int g = 0; g < 8; g++) {
        const qn_scale_min s = qn_scale_min_get(b + 4, g);
        to->scale[g] = s.scale;
        to->offset[g] = s.min;
    }
}

static void read_q4_k(ints *to, const uint8_t *b) {
    read_scale_mins(to, b);
    for (int i = 0; i < 256; i++) to->w[i] = wide_nibble(b + 16, i);
}

static void read_q5_k(ints *to, const uint8_t *b) {
    read_scale_mins(to, b);
    for (int i = 0; i < 256; i++)
        to->w[i] = wide_nibble(b + 48, i) | (b[16 + i % 32] >> i / 32 & 1) << 4;
}

static void read_q6_k(ints *to, const uint8_t *b) {
    to->S = qn_load_half(b + 208);
    for (int g = 0; g < 16; g++) to->scale[g] = signed_byte(b[192 + g]);
    for (int i = 0; i < 256; i++) {
        const int low = b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
        to->w[i] = (low | bit_pair(b + 128, i) << 4) - 32;
    }
}

static void read_iq4_xs(ints *to, const uint8_t *b) {
    to->S = qn_load_half(b);
    for (int g = 0; g < 8; g++) {
        const int low = b[4 + g / 2] >> g % 2 * 4 & 15, high = qn_load_u16(b + 2) >> 2 * g & 3;
        to->scale[g] = (low | high << 4) - 32;
    }
    for (int i = 0; i < 256; i++) to->w[i] = qn_iq4_level(nibble(b + 8 + i / 32 * 16, i % 32));
}

// The blocks are drawn in quant/<type>.c.
static const int_type int_types[QN_TYPE_COUNT] = {
    [QN_TYPE_Q4_0] = {read_q4_0, 32, false},     [QN_TYPE_Q4_1] = {read_q4_1, 32, true},
    [QN_TYPE_Q5_0] = {read_q5_0, 32, false},     [QN_TYPE_Q5_1] = {read_q5_1, 32, true},
    [QN_TYPE_Q8_0] = {read_q8_0, 32, false},     [QN_TYPE_IQ4_NL] = {read_iq4_nl, 32, false},
    [QN_TYPE_MXFP4] = {read_mxfp4, 32, false},   [QN_TYPE_Q2_K] = {read_q2_k, 16, true},
    [QN_TYPE_Q3_K] = {read_q3_k, 16, false},     [QN_TYPE_Q4_K] = {read_q4_k, 32, true},
    [QN_TYPE_Q5_K] = {read_q5_k, 32, true},      [QN_TYPE_Q6_K] = {read_q6_k, 16, false},
    [QN_TYPE_IQ4_XS] = {read_iq4_xs, 32, false},
};

bool qn_plain_reads(qn_type type) {
    return type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16 ||
           int_types[type].read;
}

// --- products ------------------------------------------------------------------------------------

// Up to 256 products: p of docs/numbers.md.
typedef struct chunk {
    const qn_plain_group *x;
    const unsigned char *w;
    qn_type type;
    int n;
} chunk;

// The sums of w * a, and of a, over values first ... first + n - 1 of a block of w; x is its first
// group.
static int64_t dot_ints(const ints *w, const qn_plain_group *x, int first, int n) {
    int64_t sum = 0;
    for (int i = first; i < first + n; i++) sum += w->w[i] * x[i / 32].q[i % 32];
    return sum;
}

static int64_t sum_ints(const qn_plain_group *x, int first, int n) {
    int64_t sum = 0;
    for (int i = first; i < first + n; i++) sum += x[i / 32].q[i % 32];
    return sum;
}

// i12_256, integer scales: a block of the weight is the whole chunk.
static float scaled_i12(const chunk *c) {
    const int_type *type = &int_types[c->type];
    ints w;
    int64_t t = 0, o = 0;
    type->read(&w, c->w);
    for (int g = 0; g < c->n / type->group; g++) {
        t += w.scale[g] * dot_ints(&w, c->x, g * type->group, type->group);
        if (type->has_offsets) o += w.offset[g] * sum_ints(c->x, g * type->group, type->group);
    }
    float v = w.S * (float)t;
    if (type->has_offsets) v = fmaf(-w.M, (float)o, v);
    return c->x->scale * v;
}

// i12_256, a float scale for each 32 values; i16_256, all integer types.
static float grouped_words(const chunk *c) {
    const int_type *type = &int_types[c->type];
    const qn_type_info *info = qn_type_get(c->type);
    float v = 0;
    for (int at = 0; at < c->n; at += info->block) {
        ints w;
        type->read(&w, c->w + at / info->block * info->bytes);
        for (int g = 0; g < info->block / type->group; g++) {
            const int first = g * type->group; // in the block
            const qn_plain_group *x = c->x + at / 32;
            const float s = w.S * (float)w.scale[g], n = w.M * (float)w.offset[g];
            v = fmaf(s, (float)dot_ints(&w, x, first, type->group), v);
            if (type->has_offsets) v = fmaf(-n, (float)sum_ints(x, first, type->group), v);
        }
    }
    return c->x->scale * v;
}

// i8_32, all integer types.
static float any_i8(const chunk *c) {
    const int_type *type = &int_types[c->type];
    const qn_type_info *info = qn_type_get(c->type);
    float v = 0;
    for (int at = 0; at < c->n; at += info->block) {
        ints w;
        type->read(&w, c->w + at / info->block * info->bytes);
        for (int g = 0; g < info->block / type->group; g++) {
            const int first = g * type->group; // in the block
            const qn_plain_group *x = c->x + at / 32;
            const float da = x[first / 32].scale, s = w.S * (float)w.scale[g];
            v = fmaf(s * (float)dot_ints(&w, x, first, type->group), da, v);
            if (!type->has_offsets) continue;
            const float n = w.M * (float)w.offset[g];
            v = fmaf(-n, da * (float)sum_ints(x, first, type->group), v);
        }
    }
    return v;
}

static float int_chunk(const chunk *c, qn_word form) {
    if (form == QN_WORD_i8_32) return any_i8(c);
    const bool is_scaled = qn_type_get(c->type)->block == QN_PLAIN_BLOCK;
    return is_scaled && form == QN_WORD_i12_256 ? scaled_i12(c) : grouped_words(c);
}

static float float_chunk(const float *x, const unsigned char *w, qn_type type, int n) {
    float values[QN_PLAIN_BLOCK], p = 0;
    qn_type_get(type)->unpack(values, w, n);
    for (int k = 0; k < n; k++) p = fmaf(values[k], x[k], p);
    return p;
}

float qn_plain_dot(const void *x, qn_word form, const unsigned char *w, qn_type type, int64_t n) {
    const qn_type_info *info = qn_type_get(type);
    float y = 0;
    for (int64_t at = 0; at < n; at += QN_PLAIN_BLOCK) {
        const int length = (int)qn_min(n - at, QN_PLAIN_BLOCK);
        const void *part = (const unsigned char *)x + qn_plain_part_bytes(form, at);
        const unsigned char *from = w + at / info->block * info->bytes;
        if (form != QN_WORD_f32 && int_types[type].read) {
            y += int_chunk(&(chunk){part, from, type, length}, form);
        } else {
            float values[QN_PLAIN_BLOCK];
            qn_plain_read(values, part, length, form);
            y += float_chunk(values, from, type, length);
        }
    }
    return y;
}
