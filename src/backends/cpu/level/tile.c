// The cores: one unpacked block times rows. Four rows at a time share each load of weights; one row
// alone has four chains of integer sums. Integer sums are exact, so neither changes a result.
#include "backends/cpu/level/tile.h"

enum { FEW = 4, RUN_PAIRS = 16 }; // rows at a time; pairs of inner values in a run of 32

// --- i12_256 ---

QN_INLINE const qn_i12_block *i12_of(const void *row, int64_t b) {
    return (const qn_i12_block *)row + b;
}

// t[r] = sum over pairs first ... first + n - 1 of w * q, for n_rows (1 or FEW) rows.
QN_INLINE void i12_dots(i32v *t, const tile_block *block, const void *const *rows, int64_t b,
                        int first, int n, int o, const int n_rows) {
    i32v sums[FEW] = {{0}}; // of each row, or four chains of one row
    for (int i = first; i < first + n; i += FEW) {
        for (int c = 0; c < FEW; c++) {
            const i16v w = load_i16(block->w[i + c] + 2 * o);
            for (int r = 0; r < n_rows; r++) {
                const int s = n_rows == 1 ? c : r;
                sums[s] = madd(sums[s], w, load_i32(i12_of(rows[r], b)->q + 2 * (i + c)));
            }
        }
    }
    for (int r = 0; r < n_rows; r++)
        t[r] = n_rows == 1 ? sums[0] + sums[1] + (sums[2] + sums[3]) : sums[r];
}

QN_INLINE void i12_folded(float (*sums)[QN_TILE], const tile_block *block, const void *const *rows,
                          int64_t b, int o, const int n_rows) {
    i32v t[FEW];
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
    f32v v[FEW] = {{0}};
    for (int j = 0; j < block->n_values / 32; j++) {
        i32v t[FEW];
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

// The bytes of a run as pairs of 16 bits, in the order of the weights.
QN_INLINE void i8_pairs(int32_t *pairs, const int8_t *q) {
    for (int u = 0; u < 8; u++) {
        const uint32_t x = (uint32_t)load_i32(q + 4 * u);
        const uint32_t even = x << 8, odd = x;
        // sign extension of the upper byte of each half
        pairs[2 * u] = (int32_t)((uint32_t)((int32_t)even >> 8) & 0xffff0000u) |
                       (uint16_t)((int16_t)(even & 0xffff) >> 8);
        pairs[2 * u + 1] = (int32_t)((uint32_t)((int32_t)odd >> 8) & 0xffff0000u) |
                           (uint16_t)((int16_t)(odd & 0xffff) >> 8);
    }
}

// One group of a run: v = fma(scale * t, da, v), and its offset.
QN_INLINE f32v i8_group(f32v v, const tile_block *block, const int32_t *pairs, int g,
                        const qn_i8_block *x, int o) {
    const int n_pairs = block->group / 2, first = g * n_pairs;
    const float da = x->scales[g * block->group / 32];
    i32v t[2] = {{0}};
    for (int i = 0; i < n_pairs; i += 2) {
        t[0] = madd(t[0], load_i16(block->w[first + i] + 2 * o), pairs[i]);
        t[1] = madd(t[1], load_i16(block->w[first + i + 1] + 2 * o), pairs[i + 1]);
    }
    v = fma_f32(load_f32(block->scale[g] + o) * to_float(t[0] + t[1]), all_f32(da), v);
    if (!block->has_shift) return v;
    int sum = x->sums[g * block->group / QN_SUM];
    if (block->group == 32) sum += x->sums[2 * g + 1];
    return fma_f32(load_f32(block->shift[g] + o), all_f32(da * (float)sum), v);
}

QN_INLINE void i8_grouped(float *sums, const tile_block *block, const void *row, int64_t b, int o) {
    const qn_i8_block *x = (const qn_i8_block *)row + b;
    const int per_run = 32 / block->group;
    f32v v = {0};
    for (int j = 0; j < block->n_values / 32; j++) {
        int32_t pairs[RUN_PAIRS];
        i8_pairs(pairs, x->q + 32 * j);
        for (int g = 0; g < per_run; g++)
            v = i8_group(v, block, pairs + g * block->group / 2, j * per_run + g, x, o);
    }
    store_f32(sums + o, load_f32(sums + o) + v);
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
    float room[FEW][QN_BLOCK];
    const float *x[FEW];
    f32v p[FEW] = {{0}};
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
        for (; r + FEW <= n_rows; r += FEW) i12_folded(sums + r, block, rows + r, b, o, FEW);
        for (; r < n_rows; r++) i12_folded(sums + r, block, rows + r, b, o, 1);
    } else if (how == BLOCK_PLAIN) {
        for (; r + FEW <= n_rows; r += FEW) plain(sums + r, block, rows + r, b, form, o, FEW);
        for (; r < n_rows; r++) plain(sums + r, block, rows + r, b, form, o, 1);
    } else if (form == QN_WORD_i12_256) {
        for (; r + FEW <= n_rows; r += FEW) i12_grouped(sums + r, block, rows + r, b, o, FEW);
        for (; r < n_rows; r++) i12_grouped(sums + r, block, rows + r, b, o, 1);
    } else {
        for (; r < n_rows; r++) i8_grouped(sums[r], block, rows[r], b, o);
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
