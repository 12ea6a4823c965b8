// The cores: one unpacked block times rows. Up to eight rows at a time share each load of weights;
// fewer rows have several chains of integer sums each. Integer sums are exact, so neither changes a
// result.
#include "backends/cpu/level/tile.h"

enum { MANY = 8, SOME = 4, RUN_PAIRS = 16 }; // rows at a time; pairs of values in a run of 32

// --- i12_256 ---

QN_INLINE const qn_i12_block *i12_of(const void *row, int64_t b) {
    return (const qn_i12_block *)row + b;
}

// t[r] = sum over pairs first ... first + n - 1 of w * q, for n_rows (1, SOME or MANY) rows.
QN_INLINE void i12_dots(i32v *t, const tile_block *block, const void *const *rows, int64_t b,
                        int first, int n, int o, const int n_rows) {
    const int chains = MANY / n_rows; // of each row
    i32v sums[MANY] = {{0}};
    for (int i = first; i < first + n; i += MANY) {
        for (int c = 0; c < MANY; c++) {
            const i16v w = load_i16(block->w[i + c] + 2 * o);
            for (int r = 0; r < n_rows; r++) {
                const int s = r * chains + c % chains;
                sums[s] = madd(sums[s], w, load_i32(i12_of(rows[r], b)->q + 2 * (i + c)));
            }
        }
    }
    for (int r = 0; r < n_rows; r++) {
        t[r] = sums[r * chains];
        for (int c = 1; c < chains; c++) t[r] += sums[r * chains + c];
    }
}

QN_INLINE void i12_folded(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                          int64_t b, int o, const int n_rows) {
    i32v t[MANY];
    i12_dots(t, block, rows, b, 0, QN_BLOCK / 2, o, n_rows);
    for (int r = 0; r < n_rows; r++) {
        const qn_i12_block *x = i12_of(rows[r], b);
        f32v v = load_f32(block->scale[0] + o) * to_float(t[r]);
        if (block->has_shift) {
            i32v below = {0};
            for (int i = 0; i < QN_GROUPS / 2; i++)
                below = madd(below, load_i16(block->mins[i] + 2 * o), load_i32(x->sums + 2 * i));
            v = fma_f32(load_f32(block->shift[0] + o), to_float(below), v);
        }
        store_f32(sums[r] + o, load_f32(sums[r] + o) + all_f32(x->scale) * v);
    }
}

QN_INLINE void i12_grouped(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                           int64_t b, int o, const int n_rows) {
    f32v v[MANY] = {{0}};
    for (int j = 0; j < block->n_values / 32; j++) {
        i32v t[MANY];
        i12_dots(t, block, rows, b, RUN_PAIRS * j, RUN_PAIRS, o, n_rows);
        for (int r = 0; r < n_rows; r++) {
            v[r] = fma_f32(load_f32(block->scale[j] + o), to_float(t[r]), v[r]);
            if (!block->has_shift) continue;
            const int16_t *s = i12_of(rows[r], b)->sums + 2 * j;
            v[r] = fma_f32(load_f32(block->shift[j] + o), all_f32((float)(s[0] + s[1])), v[r]);
        }
    }
    for (int r = 0; r < n_rows; r++)
        store_f32(sums[r] + o, load_f32(sums[r] + o) + all_f32(i12_of(rows[r], b)->scale) * v[r]);
}

// --- i8_32 ---

// A block of a row as pairs of 16 bits: of each 4 values the first and third, the second and fourth.
typedef struct i8_pairs {
    int16_t even[QN_BLOCK / 2], odd[QN_BLOCK / 2];
} i8_pairs;

QN_INLINE const qn_i8_block *i8_of(const void *row, int64_t b) {
    return (const qn_i8_block *)row + b;
}

QN_INLINE void i8_widen(i8_pairs *to, const int8_t *q) {
    for (int i = 0; i < QN_BLOCK / 2; i += 2 * QN_LANES) {
        const u16v x = load_u16(q + 2 * i);
        store_i16(to->even + i, (i16v)(x << 8) >> 8);
        store_i16(to->odd + i, (i16v)x >> 8);
    }
}

// t[r] = sum of w * q over group g.
QN_INLINE void i8_dots(i32v *t, const tile_block *block, const i8_pairs *x, int g, int o,
                       const int group, const int n_rows) {
    i32v more[MANY] = {{0}};
    for (int r = 0; r < n_rows; r++) t[r] = (i32v){0};
    for (int u = g * group / 4; u < (g + 1) * group / 4; u++) {
        const i16v even = load_i16(block->w[2 * u] + 2 * o);
        const i16v odd = load_i16(block->w[2 * u + 1] + 2 * o);
        for (int r = 0; r < n_rows; r++) {
            t[r] = madd(t[r], even, load_i32(x[r].even + 2 * u));
            more[r] = madd(more[r], odd, load_i32(x[r].odd + 2 * u));
        }
    }
    for (int r = 0; r < n_rows; r++) t[r] += more[r];
}

QN_INLINE void i8_groups(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                         int64_t b, int o, const int group, const int n_rows) {
    i8_pairs x[MANY];
    f32v v[MANY] = {{0}};
    for (int r = 0; r < n_rows; r++) i8_widen(&x[r], i8_of(rows[r], b)->q);
    for (int g = 0; g < block->n_values / group; g++) {
        i32v t[MANY];
        i8_dots(t, block, x, g, o, group, n_rows);
        const f32v scale = load_f32(block->scale[g] + o);
        for (int r = 0; r < n_rows; r++) {
            const qn_i8_block *from = i8_of(rows[r], b);
            const float da = from->scales[g * group / 32];
            v[r] = fma_f32(scale * to_float(t[r]), all_f32(da), v[r]);
            if (!block->has_shift) continue;
            const int sum = group == 16 ? from->sums[g] : from->sums[2 * g] + from->sums[2 * g + 1];
            v[r] = fma_f32(load_f32(block->shift[g] + o), all_f32(da * (float)sum), v[r]);
        }
    }
    for (int r = 0; r < n_rows; r++) store_f32(sums[r] + o, load_f32(sums[r] + o) + v[r]);
}

QN_INLINE void i8_grouped(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                          int64_t b, int o, const int n_rows) {
    if (block->group == 16)
        i8_groups(sums, block, rows, b, o, 16, n_rows);
    else
        i8_groups(sums, block, rows, b, o, 32, n_rows);
}

// --- floats ---

// The values of a block of a row; packed ones as they were rounded.
QN_INLINE const float *floats_of(float *room, const void *row, int64_t b, int n, qn_word form) {
    if (form == QN_WORD_f32) return (const float *)row + b * QN_BLOCK;
    if (form == QN_WORD_i8_32) {
        const qn_i8_block *x = (const qn_i8_block *)row + b;
        for (int k = 0; k < n; k++) room[k] = (float)x->q[k] * x->scales[k / 32];
        return room;
    }
    const qn_i12_block *x = i12_of(row, b);
    for (int k = 0; k < n; k++) room[k] = (float)x->q[qn_i12_index(k)] * x->scale;
    return room;
}

QN_INLINE void plain(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                     int64_t b, qn_word form, int o, const int n_rows) {
    float room[MANY][QN_BLOCK];
    const float *x[MANY];
    f32v p[MANY] = {{0}};
    for (int r = 0; r < n_rows; r++) x[r] = floats_of(room[r], rows[r], b, block->n_values, form);
    for (int k = 0; k < block->n_values; k++) {
        for (int r = 0; r < n_rows; r++)
            p[r] = fma_f32(load_f32(block->f[k] + o), all_f32(x[r][k]), p[r]);
    }
    for (int r = 0; r < n_rows; r++) store_f32(sums[r] + o, load_f32(sums[r] + o) + p[r]);
}

// --- all rows ---

static void add_block(float (*sums)[QN_TILE], const tile_block *block, block_form how,
                      const void *const *rows, int64_t n_rows, int64_t b, qn_word form, int o) {
    int64_t r = 0;
    if (how == BLOCK_FOLDED) {
        for (; r + MANY <= n_rows; r += MANY) i12_folded(sums + r, block, rows + r, b, o, MANY);
        for (; r + SOME <= n_rows; r += SOME) i12_folded(sums + r, block, rows + r, b, o, SOME);
        for (; r < n_rows; r++) i12_folded(sums + r, block, rows + r, b, o, 1);
    } else if (how == BLOCK_PLAIN) {
        for (; r + MANY <= n_rows; r += MANY) plain(sums + r, block, rows + r, b, form, o, MANY);
        for (; r + SOME <= n_rows; r += SOME) plain(sums + r, block, rows + r, b, form, o, SOME);
        for (; r < n_rows; r++) plain(sums + r, block, rows + r, b, form, o, 1);
    } else if (form == QN_WORD_i12_256) {
        for (; r + MANY <= n_rows; r += MANY) i12_grouped(sums + r, block, rows + r, b, o, MANY);
        for (; r + SOME <= n_rows; r += SOME) i12_grouped(sums + r, block, rows + r, b, o, SOME);
        for (; r < n_rows; r++) i12_grouped(sums + r, block, rows + r, b, o, 1);
    } else {
        for (; r + MANY <= n_rows; r += MANY) i8_grouped(sums + r, block, rows + r, b, o, MANY);
        for (; r + SOME <= n_rows; r += SOME) i8_grouped(sums + r, block, rows + r, b, o, SOME);
        for (; r < n_rows; r++) i8_grouped(sums + r, block, rows + r, b, o, 1);
    }
}

void tile_sums(float *sums, tile_block *block, const qn_packed *w, int64_t tile,
               const void *const *rows, int64_t n_rows, qn_word x_form) {
    const qn_type_info *info = qn_type_get(w->type);
    const int64_t block_bytes = QN_TILE * (QN_BLOCK / info->block * info->bytes);
    const uint8_t *from = w->data + tile * w->tile_bytes;
    const block_form how = find_form(w->type, x_form);
    memset(sums, 0, (size_t)n_rows * QN_TILE * sizeof *sums);
    for (int64_t b = 0; b * QN_BLOCK < w->n_in; b++) {
        const int64_t left = w->n_in - b * QN_BLOCK;
        unpack_block(block, w->type, from + b * block_bytes,
                     (int)(left < QN_BLOCK ? left : QN_BLOCK), how);
        for (int o = 0; o < QN_TILE; o += QN_LANES)
            add_block((float(*)[QN_TILE])sums, block, how, rows, n_rows, b, x_form, o);
    }
}
