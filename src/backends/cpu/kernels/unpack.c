// Unpacking: one block of a tile, in the form that many rows share.
#include "backends/cpu/kernels/amx_digits.h"
#include "backends/cpu/kernels/packed_types.h"
#include "backends/cpu/kernels/tile_products.h"

// Run r as numbers: 16 rows, for outputs o ... o + QN_LANES - 1. The sums of a folded block fit 32
// bits, as 256 * 2047 * |scale * code| does: at most 4096 for Q6_K (128 * 32, 2146435072 in all),
// 4064 for IQ4_XS, 1953 for Q5_K, 945 for Q4_K, 128 for Q3_K, 45 for Q2_K; the offsets stay below
// 256 * 2047 * 63.
QN_INLINE void put_numbers(tile_block *to, const uint8_t *run, int r, const i32v *scales, int o,
                           const source *s) {
    const int step = 32 / s->group; // groups in a run
    for (int i = 0; i < RUN_ROWS; i++) {
        const u16v q = code_row(run + s->run_header + 4 * o, i, s);
        i16v even = even_bytes(q, s->zero), odd = odd_bytes(q, s->zero);
        if (scales) {
            const i16v scale = twice(scales[step * r + step * i / RUN_ROWS]);
            even *= scale;
            odd *= scale;
        }
        store_i16(to->w[16 * r + 2 * i] + 2 * o, even);
        store_i16(to->w[16 * r + 2 * i + 1] + 2 * o, odd);
    }
}

QN_INLINE void put_codes(tile_block *to, const uint8_t *run, int r, int o, const source *s) {
    for (int i = 0; i < RUN_ROWS; i++) {
        u16v q = code_row(run + s->run_header + 4 * o, i, s);
        if ((!QN_BYTE_ZERO || QN_HAS_TILES) && s->zero) q = take_from_bytes(q, s->zero);
        store_u16(to->c[RUN_ROWS * r + i] + 4 * o, q);
    }
}

QN_INLINE void put_mins(tile_block *to, const i32v *mins, int o, const source *s) {
    const int step = s->group / 16; // groups of 16 in a group of the type
    for (int i = 0; i < QN_GROUPS / 2; i++)
        store_i16(to->mins[i] + 2 * o, pair_up(mins[2 * i / step], mins[(2 * i + 1) / step]));
}

QN_INLINE void unpack_scaled(tile_block *to, const uint8_t *from, block_form form, int o,
                             const source *s) {
    const int n_groups = QN_BLOCK / s->group;
    i32v scales[QN_GROUPS], mins[QN_GROUPS];
    const f32v d = float_scale(from, o, s), dmin = s->has_shift ? float_shift(from, o) : d;
    read_scales(scales, mins, from, o, s);
    if (form == BLOCK_FOLDED || form == BLOCK_SPLIT || form == BLOCK_DIGITS) {
        store_f32(to->scale[0] + o, d);
        if (s->has_shift) {
            store_f32(to->shift[0] + o, -dmin);
            put_mins(to, mins, o, s);
        }
        for (int r = 0; r < RUNS; r++) {
            if (form == BLOCK_FOLDED) put_numbers(to, run_at(from, r, s), r, scales, o, s);
#if defined(__AMX_INT8__)
            else if (form == BLOCK_DIGITS)
                put_digits(to, run_at(from, r, s), r, scales, s);
#endif
            else
                put_codes(to, run_at(from, r, s), r, o, s);
        }
        for (int g = 0; form == BLOCK_SPLIT && g < n_groups; g++)
            store_i32(to->by[g] + o, scales[g]);
        return;
    }
    for (int g = 0; g < n_groups; g++) {
        store_f32(to->scale[g] + o, d * to_float(scales[g]));
        if (s->has_shift) store_f32(to->shift[g] + o, -(dmin * to_float(mins[g])));
    }
    for (int r = 0; r < RUNS; r++) {
        if (form == BLOCK_CODED)
            put_codes(to, run_at(from, r, s), r, o, s);
        else
            put_numbers(to, run_at(from, r, s), r, NULL, o, s);
    }
}

QN_INLINE void unpack_simple(tile_block *to, const uint8_t *from, int n_values, block_form form,
                             int o, const source *s) {
    for (int r = 0; r < n_values / 32; r++) {
        const uint8_t *run = run_at(from, r, s);
        store_f32(to->scale[r] + o, float_scale(run, o, s));
        if (s->has_shift) store_f32(to->shift[r] + o, float_shift(run, o));
        if (form == BLOCK_CODED)
            put_codes(to, run, r, o, s);
        else
            put_numbers(to, run, r, NULL, o, s);
    }
}

#define UNPACK_SCALED(name, ...)                                                                   \
    static void unpack_##name(tile_block *to, const uint8_t *from, int n_values, block_form form,  \
                              int o) {                                                             \
        (void)n_values;                                                                            \
        if (form == BLOCK_FOLDED)                                                                  \
            unpack_scaled(to, from, BLOCK_FOLDED, o, &source_##name);                              \
        else if (QN_HAS_TILES && form == BLOCK_DIGITS)                                             \
            unpack_scaled(to, from, BLOCK_DIGITS, o, &source_##name);                              \
        else if (QN_SPLITS_WORDS && form == BLOCK_SPLIT)                                           \
            unpack_scaled(to, from, BLOCK_SPLIT, o, &source_##name);                               \
        else if (form == BLOCK_CODED)                                                              \
            unpack_scaled(to, from, BLOCK_CODED, o, &source_##name);                               \
        else                                                                                       \
            unpack_scaled(to, from, BLOCK_GROUPED, o, &source_##name);                             \
    }
#define UNPACK_SIMPLE(name, ...)                                                                   \
    static void unpack_##name(tile_block *to, const uint8_t *from, int n_values, block_form form,  \
                              int o) {                                                             \
        if (form == BLOCK_CODED)                                                                   \
            unpack_simple(to, from, n_values, BLOCK_CODED, o, &source_##name);                     \
        else                                                                                       \
            unpack_simple(to, from, n_values, BLOCK_GROUPED, o, &source_##name);                   \
    }
QN_SCALED_TYPES(UNPACK_SCALED)
QN_SIMPLE_TYPES(UNPACK_SIMPLE)

// --- floats ---

static void unpack_F32(tile_block *to, const uint8_t *from, int n_values, block_form form, int o) {
    (void)form;
    for (int k = 0; k < n_values; k++)
        memcpy(to->f[k] + o, from + 4 * (QN_TILE * k + o), QN_LANES * sizeof(float));
}

static void unpack_F16(tile_block *to, const uint8_t *from, int n_values, block_form form, int o) {
    (void)form;
    for (int k = 0; k < n_values; k++) store_f32(to->f[k] + o, widen_half(from + 32 * k + 2 * o));
}

static void unpack_BF16(tile_block *to, const uint8_t *from, int n_values, block_form form, int o) {
    (void)form;
    for (int k = 0; k < n_values; k++)
        store_f32(to->f[k] + o, (f32v)(widen_u16(from + 32 * k + 2 * o) << 16));
}

// --- the table ---

typedef struct unpacker {
    void (*unpack)(tile_block *to, const uint8_t *from, int n_values, block_form form, int o);
    const source *source; // NULL: floats
} unpacker;

#define ROW(name, ...) [QN_TYPE_##name] = {unpack_##name, &source_##name},
static const unpacker unpackers[QN_TYPE_COUNT] = {[QN_TYPE_F32] = {unpack_F32, NULL},
                                                  [QN_TYPE_F16] = {unpack_F16, NULL},
                                                  [QN_TYPE_BF16] = {unpack_BF16, NULL},
                                                  QN_SCALED_TYPES(ROW) QN_SIMPLE_TYPES(ROW)};

const source *find_source(qn_type type) { return unpackers[type].source; }

block_form find_form(qn_type type, qn_word x_form) {
    const source *s = unpackers[type].source;
    if (!s || x_form == QN_WORD_f32) return BLOCK_PLAIN;
    if (x_form == QN_WORD_i8_32) return BLOCK_CODED;
    if (QN_HAS_TILES) return x_form == QN_WORD_i12_256 && is_scaled(s) ? BLOCK_DIGITS : BLOCK_CODED;
    if (x_form != QN_WORD_i12_256) return BLOCK_GROUPED;
    if (QN_SPLITS_WORDS) return is_scaled(s) ? BLOCK_SPLIT : BLOCK_CODED;
    return is_scaled(s) ? BLOCK_FOLDED : BLOCK_GROUPED;
}

// From grouped to plain: the value as the type's own unpack has it.
static void make_plain(tile_block *block, int n_values, const source *s) {
    int16_t w[QN_BLOCK / 2][2 * QN_TILE];
    memcpy(w, block->w, sizeof w);
    for (int k = 0; k < n_values; k++) {
        const int g = k / s->group, row = k / 4 * 2 + k % 2, half = k % 4 / 2;
        for (int o = 0; o < QN_TILE; o++) {
            const float value = block->scale[g][o] * (float)w[row][2 * o + half];
            block->f[k][o] = s->has_shift ? value + block->shift[g][o] : value;
        }
    }
}

void unpack_block(tile_block *to, qn_type type, const uint8_t *from, int n_values,
                  block_form form) {
    const unpacker *u = &unpackers[type];
    const bool is_made = form == BLOCK_PLAIN && u->source;
    for (int o = 0; o < QN_TILE; o += QN_LANES)
        u->unpack(to, from, n_values, is_made ? BLOCK_GROUPED : form, o);
    if (is_made) make_plain(to, n_values, u->source);
}
