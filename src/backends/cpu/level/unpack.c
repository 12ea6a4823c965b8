// Unpacking: one block of a tile, for each type. The layout is drawn in backends/pack.c.
#include "backends/cpu/level/tile.h"
#include "quant/blocks.h"

enum { RUNS = QN_BLOCK / 32, RUN_ROWS = 8 }; // a run: 8 rows of 4 values of 16 outputs

// Everything here is done for QN_LANES outputs at a time, from output o on. In a header their halves
// begin at 2 o, their bytes at o; in a row of a plane, at 4 o.

// --- planes: 4 values of QN_LANES outputs, a byte each ---

QN_INLINE void nibbles(u16v *q, const uint8_t *from) {
    for (int i = 0; i < 4; i++) {
        const u16v both = load_u16(from + 64 * i);
        q[i] = both & 0x0f0f;
        q[i + 4] = both >> 4 & 0x0f0f;
    }
}

QN_INLINE void pairs(u16v *q, const uint8_t *from) {
    for (int i = 0; i < 8; i++) q[i] = load_u16(from + i / 4 * 64) >> i % 4 * 2 & 0x0303;
}

// Bits that come above `shift` bits.
QN_INLINE void more_pairs(u16v *q, const uint8_t *from, int shift) {
    for (int i = 0; i < 8; i++)
        q[i] |= (load_u16(from + i / 4 * 64) >> i % 4 * 2 & 0x0303) << shift;
}

QN_INLINE void more_bits(u16v *q, const uint8_t *from, int shift) {
    const u16v bits = load_u16(from);
    for (int i = 0; i < 8; i++) q[i] |= (bits >> i & 0x0101) << shift;
}

// --- runs: 8 rows of codes become 16 rows of numbers ---

// The numbers of row i: even and odd bytes apart, less `zero`.
QN_INLINE i16v even_bytes(u16v q, int zero) { return (i16v)(q & 0xff) - (int16_t)zero; }
QN_INLINE i16v odd_bytes(u16v q, int zero) { return (i16v)(q >> 8) - (int16_t)zero; }

// Where a run of numbers goes, for outputs o ... o + QN_LANES - 1; rows lie 2 * QN_TILE apart.
QN_INLINE int16_t *run_of(tile_block *to, int run, int o) { return to->w[16 * run] + 2 * o; }

QN_INLINE void put_row(int16_t *w, int i, i16v even, i16v odd) {
    store_i16(w + 4 * QN_TILE * i, even);
    store_i16(w + 4 * QN_TILE * i + 2 * QN_TILE, odd);
}

QN_INLINE void put_codes(int16_t *w, const u16v *q, int zero) {
    for (int i = 0; i < RUN_ROWS; i++) put_row(w, i, even_bytes(q[i], zero), odd_bytes(q[i], zero));
}

// The same times the scale of the first and of the second half of the run.
QN_INLINE void put_scaled(int16_t *w, const u16v *q, int zero, i16v first, i16v second) {
    for (int i = 0; i < RUN_ROWS; i++) {
        const i16v scale = i < 4 ? first : second;
        put_row(w, i, even_bytes(q[i], zero) * scale, odd_bytes(q[i], zero) * scale);
    }
}

// Signed bytes, times a scale that is 1 where nothing is folded in.
QN_INLINE void put_signed(int16_t *w, const u16v *q, i16v scale) {
    for (int i = 0; i < RUN_ROWS; i++)
        put_row(w, i, ((i16v)(q[i] << 8) >> 8) * scale, ((i16v)q[i] >> 8) * scale);
}

// --- types with integer scales: blocks of 256, groups of 16 or 32 ---
//
// The sums of a folded block fit 32 bits, as 256 * 2047 * |scale * code| does: at most 4096 for
// Q6_K (128 * 32, 2146435072 in all), 4064 for IQ4_XS, 1953 for Q5_K, 945 for Q4_K, 128 for Q3_K,
// 45 for Q2_K; the offsets stay below 256 * 2047 * 63.

// Where the scales of a block go. `scales` and `mins` hold 256 / group numbers.
QN_INLINE void put_scales(tile_block *to, block_form form, f32v d, const i32v *scales, int n_groups,
                          int o) {
    if (form == BLOCK_FOLDED) {
        store_f32(to->scale[0] + o, d);
        return;
    }
    for (int g = 0; g < n_groups; g++) store_f32(to->scale[g] + o, d * to_float(scales[g]));
}

QN_INLINE void put_mins(tile_block *to, block_form form, f32v dmin, const i32v *mins, int n_groups,
                        int o) {
    if (form == BLOCK_FOLDED) {
        const int step = QN_GROUPS / n_groups; // groups of 16 in a group of the type
        store_f32(to->shift[0] + o, -dmin);
        for (int i = 0; i < QN_GROUPS / 2; i++)
            store_i16(to->mins[i] + 2 * o, pair_up(mins[2 * i / step], mins[(2 * i + 1) / step]));
        return;
    }
    for (int g = 0; g < n_groups; g++) store_f32(to->shift[g] + o, -(dmin * to_float(mins[g])));
}

// Q4_K and Q5_K: see qn_scale_min_get.
QN_INLINE void six_bits(i32v *scales, i32v *mins, const uint8_t *from, int o) {
    i32v b[12];
    for (int j = 0; j < 12; j++) b[j] = widen_u8(from + 16 * j + o);
    for (int j = 0; j < 4; j++) {
        scales[j] = b[j] & 63;
        mins[j] = b[j + 4] & 63;
        scales[j + 4] = (b[j + 8] & 15) | b[j] >> 6 << 4;
        mins[j + 4] = b[j + 8] >> 4 | b[j + 4] >> 6 << 4;
    }
}

QN_INLINE void q4_q5_k(tile_block *to, const uint8_t *from, block_form form, bool has_fifth,
                       int o) {
    i32v scales[8], mins[8];
    six_bits(scales, mins, from + 64, o);
    put_scales(to, form, widen_half(from + 2 * o), scales, 8, o);
    put_mins(to, form, widen_half(from + 32 + 2 * o), mins, 8, o);
    const uint8_t *run = from + 256;
    for (int r = 0; r < RUNS; r++, run += has_fifth ? 320 : 256) {
        u16v q[RUN_ROWS];
        nibbles(q, run + 4 * o);
        if (has_fifth) more_bits(q, run + 256 + 4 * o, 4);
        if (form == BLOCK_FOLDED)
            put_scaled(run_of(to, r, o), q, 0, twice(scales[r]), twice(scales[r]));
        else
            put_codes(run_of(to, r, o), q, 0);
    }
}

static void unpack_q4_k(tile_block *to, const uint8_t *from, block_form form, int o) {
    if (form == BLOCK_FOLDED)
        q4_q5_k(to, from, BLOCK_FOLDED, false, o);
    else
        q4_q5_k(to, from, BLOCK_GROUPED, false, o);
}

static void unpack_q5_k(tile_block *to, const uint8_t *from, block_form form, int o) {
    if (form == BLOCK_FOLDED)
        q4_q5_k(to, from, BLOCK_FOLDED, true, o);
    else
        q4_q5_k(to, from, BLOCK_GROUPED, true, o);
}

static void unpack_q6_k(tile_block *to, const uint8_t *from, block_form form, int o) {
    i32v scales[16];
    for (int g = 0; g < 16; g++) scales[g] = widen_u8(from + 32 + 16 * g + o) << 24 >> 24;
    put_scales(to, form, widen_half(from + 2 * o), scales, 16, o);
    const uint8_t *run = from + 288;
    for (int r = 0; r < RUNS; r++, run += 384) {
        u16v q[RUN_ROWS];
        nibbles(q, run + 4 * o);
        more_pairs(q, run + 256 + 4 * o, 4);
        if (form == BLOCK_FOLDED)
            put_scaled(run_of(to, r, o), q, 32, twice(scales[2 * r]), twice(scales[2 * r + 1]));
        else
            put_codes(run_of(to, r, o), q, 32);
    }
}

static void unpack_q2_k(tile_block *to, const uint8_t *from, block_form form, int o) {
    i32v scales[16], mins[16];
    for (int g = 0; g < 16; g++) {
        const i32v both = widen_u8(from + 64 + 16 * g + o);
        scales[g] = both & 15;
        mins[g] = both >> 4;
    }
    put_scales(to, form, widen_half(from + 2 * o), scales, 16, o);
    put_mins(to, form, widen_half(from + 32 + 2 * o), mins, 16, o);
    const uint8_t *run = from + 320;
    for (int r = 0; r < RUNS; r++, run += 128) {
        u16v q[RUN_ROWS];
        pairs(q, run + 4 * o);
        if (form == BLOCK_FOLDED)
            put_scaled(run_of(to, r, o), q, 0, twice(scales[2 * r]), twice(scales[2 * r + 1]));
        else
            put_codes(run_of(to, r, o), q, 0);
    }
}

static void unpack_q3_k(tile_block *to, const uint8_t *from, block_form form, int o) {
    i32v b[12], scales[16];
    for (int j = 0; j < 12; j++) b[j] = widen_u8(from + 32 + 16 * j + o);
    for (int g = 0; g < 16; g++)
        scales[g] = ((b[g % 8] >> g / 8 * 4 & 15) | (b[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
    put_scales(to, form, widen_half(from + 2 * o), scales, 16, o);
    const uint8_t *run = from + 224;
    for (int r = 0; r < RUNS; r++, run += 192) {
        u16v q[RUN_ROWS];
        pairs(q, run + 4 * o);
        more_bits(q, run + 128 + 4 * o, 2);
        if (form == BLOCK_FOLDED)
            put_scaled(run_of(to, r, o), q, 4, twice(scales[2 * r]), twice(scales[2 * r + 1]));
        else
            put_codes(run_of(to, r, o), q, 4);
    }
}

static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

QN_INLINE void put_levels(int16_t *w, const uint8_t *from, const int8_t *levels, i16v scale) {
    u16v q[RUN_ROWS];
    nibbles(q, from);
    for (int i = 0; i < RUN_ROWS; i++) q[i] = look_up(levels, q[i]);
    put_signed(w, q, scale);
}

static void unpack_iq4_xs(tile_block *to, const uint8_t *from, block_form form, int o) {
    const i32v high = widen_u16(from + 32 + 2 * o);
    i32v scales[8];
    for (int g = 0; g < 8; g++) {
        const i32v low = widen_u8(from + 64 + g / 2 * 16 + o) >> g % 2 * 4 & 15;
        scales[g] = (low | (high >> 2 * g & 3) << 4) - 32;
    }
    put_scales(to, form, widen_half(from + 2 * o), scales, 8, o);
    for (int r = 0; r < RUNS; r++)
        put_levels(run_of(to, r, o), from + 128 + 256 * r + 4 * o, iq4_levels,
                   form == BLOCK_FOLDED ? twice(scales[r]) : (i16v){0} + 1);
}

// --- types with a float scale per 32 values ---

QN_INLINE void nibble_runs(tile_block *to, const uint8_t *from, int zero, bool has_min,
                           bool has_fifth, int o) {
    const int header = has_min ? 64 : 32;
    for (int r = 0; r < to->n_values / 32; r++) {
        u16v q[RUN_ROWS];
        store_f32(to->scale[r] + o, widen_half(from + 2 * o));
        if (has_min) store_f32(to->shift[r] + o, widen_half(from + 32 + 2 * o));
        nibbles(q, from + header + 4 * o);
        if (has_fifth) more_bits(q, from + header + 256 + 4 * o, 4);
        put_codes(run_of(to, r, o), q, zero);
        from += header + 256 + (has_fifth ? 64 : 0);
    }
}

static void unpack_q4_0(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    nibble_runs(to, from, 8, false, false, o);
}

static void unpack_q4_1(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    nibble_runs(to, from, 0, true, false, o);
}

static void unpack_q5_0(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    nibble_runs(to, from, 16, false, true, o);
}

static void unpack_q5_1(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    nibble_runs(to, from, 0, true, true, o);
}

static void unpack_q8_0(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int r = 0; r < to->n_values / 32; r++, from += 16 * 34) {
        u16v q[RUN_ROWS];
        store_f32(to->scale[r] + o, widen_half(from + 2 * o));
        for (int i = 0; i < RUN_ROWS; i++) q[i] = load_u16(from + 32 + 64 * i + 4 * o);
        put_signed(run_of(to, r, o), q, (i16v){0} + 1);
    }
}

static void unpack_iq4_nl(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int r = 0; r < to->n_values / 32; r++, from += 16 * 18) {
        store_f32(to->scale[r] + o, widen_half(from + 2 * o));
        put_levels(run_of(to, r, o), from + 32 + 4 * o, iq4_levels, (i16v){0} + 1);
    }
}

// Levels are doubled, so the scale is 2^(e - 128): subnormal for e < 2.
static void unpack_mxfp4(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int r = 0; r < to->n_values / 32; r++, from += 16 * 17) {
        for (int l = o; l < o + QN_LANES; l++) {
            const uint32_t e = from[l];
            to->scale[r][l] = qn_float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        }
        put_levels(run_of(to, r, o), from + 16 + 4 * o, mxfp4_levels, (i16v){0} + 1);
    }
}

// --- floats ---

static void unpack_f32(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int k = 0; k < to->n_values; k++)
        memcpy(to->f[k] + o, from + 4 * (QN_TILE * k + o), QN_LANES * sizeof(float));
}

static void unpack_f16(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int k = 0; k < to->n_values; k++)
        store_f32(to->f[k] + o, widen_half(from + 32 * k + 2 * o));
}

static void unpack_bf16(tile_block *to, const uint8_t *from, block_form form, int o) {
    (void)form;
    for (int k = 0; k < to->n_values; k++)
        store_f32(to->f[k] + o, (f32v)(widen_u16(from + 32 * k + 2 * o) << 16));
}

// --- the table ---

// Types with integer scales can be folded, floats are plain, the rest is grouped.
typedef struct unpacker {
    void (*unpack)(tile_block *to, const uint8_t *from, block_form form, int o);
    block_form form; // that suits it best
    int group;       // values that share a scale
    bool has_shift;
} unpacker;

static const unpacker unpackers[QN_TYPE_COUNT] = {
    [QN_TYPE_F32] = {unpack_f32, BLOCK_PLAIN, 0, false},
    [QN_TYPE_F16] = {unpack_f16, BLOCK_PLAIN, 0, false},
    [QN_TYPE_BF16] = {unpack_bf16, BLOCK_PLAIN, 0, false},
    [QN_TYPE_Q4_0] = {unpack_q4_0, BLOCK_GROUPED, 32, false},
    [QN_TYPE_Q4_1] = {unpack_q4_1, BLOCK_GROUPED, 32, true},
    [QN_TYPE_Q5_0] = {unpack_q5_0, BLOCK_GROUPED, 32, false},
    [QN_TYPE_Q5_1] = {unpack_q5_1, BLOCK_GROUPED, 32, true},
    [QN_TYPE_Q8_0] = {unpack_q8_0, BLOCK_GROUPED, 32, false},
    [QN_TYPE_IQ4_NL] = {unpack_iq4_nl, BLOCK_GROUPED, 32, false},
    [QN_TYPE_MXFP4] = {unpack_mxfp4, BLOCK_GROUPED, 32, false},
    [QN_TYPE_Q2_K] = {unpack_q2_k, BLOCK_FOLDED, 16, true},
    [QN_TYPE_Q3_K] = {unpack_q3_k, BLOCK_FOLDED, 16, false},
    [QN_TYPE_Q4_K] = {unpack_q4_k, BLOCK_FOLDED, 32, true},
    [QN_TYPE_Q5_K] = {unpack_q5_k, BLOCK_FOLDED, 32, true},
    [QN_TYPE_Q6_K] = {unpack_q6_k, BLOCK_FOLDED, 16, false},
    [QN_TYPE_IQ4_XS] = {unpack_iq4_xs, BLOCK_FOLDED, 32, false},
};

block_form find_form(qn_type type, qn_word x_form) {
    if (x_form == QN_WORD_f32) return BLOCK_PLAIN;
    const block_form best = unpackers[type].form;
    return best == BLOCK_FOLDED && x_form == QN_WORD_i8_32 ? BLOCK_GROUPED : best;
}

// From grouped to plain: the value as the type's own unpack has it.
static void make_plain(tile_block *block) {
    int16_t w[QN_BLOCK / 2][2 * QN_TILE];
    memcpy(w, block->w, sizeof w);
    for (int k = 0; k < block->n_values; k++) {
        const int g = k / block->group, row = k / 4 * 2 + k % 2, half = k % 4 / 2;
        for (int o = 0; o < QN_TILE; o++) {
            const float value = block->scale[g][o] * (float)w[row][2 * o + half];
            block->f[k][o] = block->has_shift ? value + block->shift[g][o] : value;
        }
    }
}

void unpack_block(tile_block *to, qn_type type, const uint8_t *from, int n_values,
                  block_form form) {
    const unpacker *u = &unpackers[type];
    to->n_values = n_values;
    to->group = u->group;
    to->has_shift = u->has_shift;
    const bool is_made = form == BLOCK_PLAIN && u->form != BLOCK_PLAIN;
    for (int o = 0; o < QN_TILE; o += QN_LANES)
        u->unpack(to, from, is_made ? BLOCK_GROUPED : form, o);
    if (is_made) make_plain(to);
}
