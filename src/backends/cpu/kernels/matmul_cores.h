// The cores: unpacked blocks of QN_PANEL_TILES tiles times a few rows. Each load of weights serves
// all rows, each load of a row all tiles. Integer sums are exact, so the order of the loops changes
// no result. Numbers of rows are constants where a core is called.
#ifndef QN_BACKENDS_CPU_KERNELS_MATMUL_CORES_H
#define QN_BACKENDS_CPU_KERNELS_MATMUL_CORES_H

#include "backends/cpu/kernels/tile_products.h"

// Vectors side by side, and rows at a time where there is one sum for each, and where there are
// two: as many as registers hold.
#if defined(__AVX512VNNI__)
enum { VECTORS = QN_PANEL / QN_LANES, FOLDED_ROWS = 8, GROUPED_ROWS = 4 };
#elif defined(__ARM_FEATURE_MATMUL_INT8) // which takes rows by two
enum { VECTORS = QN_TILE / QN_LANES, FOLDED_ROWS = 4, GROUPED_ROWS = 4 };
#elif defined(QN_HAS_VECTORS)
enum { VECTORS = QN_TILE / QN_LANES, FOLDED_ROWS = 4, GROUPED_ROWS = 2 };
#else
enum { VECTORS = QN_TILE / QN_LANES, FOLDED_ROWS = 2, GROUPED_ROWS = 1 };
#endif
// Numbers of rows that cores take are multiples of this.
#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { ROW_STEP = 2 };
#else
enum { ROW_STEP = 1 };
#endif
// Only where the sums are in registers; elsewhere it would be much code without a gain.
#if defined(QN_HAS_VECTORS) && !defined(QN_FEW_COPIES)
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif
#define EACH(i, n) UNROLL for (int i = 0; i < (n); i++)

// Bytes: how early weights are asked for. Q4_K 4096 x 4096, one row, AVX2, best of 3 on a busy
// machine (bench_kernels): 0 1.29 ms, 4096 1.03 ms, 16384 1.04 ms.
enum { AHEAD = 4096 };

// The weights of vector v of the run of vectors that begins at output `first` of the panel.
QN_INLINE const tile_block *tile_at(const tile_block *blocks, int first, int v) {
    return blocks + (first + v * QN_LANES) / QN_TILE;
}
QN_INLINE int lane_at(int first, int v) { return (first + v * QN_LANES) % QN_TILE; }

QN_INLINE const qn_i12_block *i12_of(const void *row, int64_t b) {
    return (const qn_i12_block *)row + b;
}
QN_INLINE const qn_i16_block *i16_of(const void *row, int64_t b) {
    return (const qn_i16_block *)row + b;
}
QN_INLINE const qn_i8_block *i8_of(const void *row, int64_t b) {
    return (const qn_i8_block *)row + b;
}

// Of a block of i12_256 or i16_256, where integers come first in both: the integers, their scale,
// and the sum of group g of 16 or 32 of them.
QN_INLINE const int16_t *words_of(const void *row, int64_t b, const qn_word form) {
    return form == QN_WORD_i12_256 ? i12_of(row, b)->q : i16_of(row, b)->q;
}
QN_INLINE float word_scale(const void *row, int64_t b, const qn_word form) {
    return form == QN_WORD_i12_256 ? i12_of(row, b)->scale : i16_of(row, b)->scale;
}
QN_INLINE float word_sum(const void *row, int64_t b, int g, const int group, const qn_word form) {
    if (form == QN_WORD_i16_256)
        return group == 32 ? i16_of(row, b)->run_sums[g] : (float)i16_of(row, b)->sums[g];
    const int16_t *sums = i12_of(row, b)->sums;
    return group == 32 ? (float)(sums[2 * g] + sums[2 * g + 1]) : (float)sums[g];
}

// What the next block needs of the weights, and how many lines of each tile to ask for at a time:
// between products, as unpacking would wait for all of them.
typedef struct ahead {
    const uint8_t *at[QN_PANEL_TILES];
    int64_t left, step; // lines
} ahead;

QN_INLINE void fetch_ahead(ahead *a) {
    for (int64_t i = 0; i < a->step && a->left > 0; i++, a->left--) {
        EACH(t, QN_PANEL_TILES) {
            __builtin_prefetch(a->at[t]);
            a->at[t] += 64;
        }
    }
}

QN_INLINE void zero_sums(i32v (*t)[VECTORS], const int n_rows) {
    EACH(r, n_rows) {
        EACH(v, VECTORS) t[r][v] = (i32v){0};
    }
}

// --- products of bytes ---

// t += sums of codes * x over n rows of codes from row u on; x are the 256 bytes of each row.
#if defined(__ARM_FEATURE_MATMUL_INT8)
// Two rows of 8 bytes with two outputs at a time: n and n_rows are even.
QN_INLINE void byte_dots(i32v (*t)[VECTORS], const tile_block *blocks, const int8_t *const *x,
                         int u, int n, int first, const bool is_narrow, const int n_rows) {
    int32x4_t two[FOLDED_ROWS][VECTORS]; // of rows r and r + 1: outputs 0 and 1, then 2 and 3
    (void)is_narrow;
    EACH(r, n_rows) {
        EACH(v, VECTORS) two[r][v] = vdupq_n_s32(0);
    }
    EACH(i, n / 2) {
        int8x16_t pair[FOLDED_ROWS / 2];
        EACH(p, n_rows / 2)
            pair[p] = vcombine_s8(vld1_s8(x[2 * p] + 4 * u + 8 * i),
                                  vld1_s8(x[2 * p + 1] + 4 * u + 8 * i));
        EACH(v, VECTORS) {
            const tile_block *tile = tile_at(blocks, first, v);
            const int o = 4 * lane_at(first, v);
            const int32x4_t a = (int32x4_t)load_u16(tile->c[u + 2 * i] + o);
            const int32x4_t b = (int32x4_t)load_u16(tile->c[u + 2 * i + 1] + o);
            const int8x16_t low = (int8x16_t)vzip1q_s32(a, b), high = (int8x16_t)vzip2q_s32(a, b);
            EACH(p, n_rows / 2) {
                two[2 * p][v] = vmmlaq_s32(two[2 * p][v], low, pair[p]);
                two[2 * p + 1][v] = vmmlaq_s32(two[2 * p + 1][v], high, pair[p]);
            }
        }
    }
    EACH(p, n_rows / 2) {
        EACH(v, VECTORS) {
            t[2 * p][v] += (i32v)vuzp1q_s32(two[2 * p][v], two[2 * p + 1][v]);
            t[2 * p + 1][v] += (i32v)vuzp2q_s32(two[2 * p][v], two[2 * p + 1][v]);
        }
    }
}
#else
QN_INLINE void byte_dots(i32v (*t)[VECTORS], const tile_block *blocks, const int8_t *const *x,
                         int u, int n, int first, const bool is_narrow, const int n_rows) {
    EACH(i, n) {
        u16v c[VECTORS];
        EACH(v, VECTORS)
            c[v] = load_u16(tile_at(blocks, first, v)->c[u + i] + 4 * lane_at(first, v));
        EACH(r, n_rows) {
            const i32v four = spread(x[r] + 4 * (u + i));
            EACH(v, VECTORS) t[r][v] = dot4_spread(t[r][v], c[v], four, is_narrow);
        }
    }
}
#endif

// The integers of a block of i12_256 in order, as 128 high + low: both are signed bytes.
typedef struct split_row {
    int8_t high[QN_BLOCK], low[QN_BLOCK];
} split_row;

static inline void split_words(split_row *restrict to, const int16_t *restrict q) {
    for (int k = 0; k < QN_BLOCK; k += 4) {
        for (int i = 0; i < 4; i++) {
            const int16_t x = q[k + qn_i12_index(i)];
            to->high[k + i] = (int8_t)(x >> 7);
            to->low[k + i] = (int8_t)(x & 127);
        }
    }
}

// t = sums of weights that are signed bytes over n values from value k on.
QN_INLINE void split_dots(i32v (*t)[VECTORS], const tile_block *blocks, const split_row *x, int k,
                          int n, int first, const int n_rows) {
    const int8_t *high[FOLDED_ROWS], *low[FOLDED_ROWS];
    EACH(r, n_rows) {
        high[r] = x[r].high;
        low[r] = x[r].low;
    }
    zero_sums(t, n_rows);
    byte_dots(t, blocks, high, k / 4, n / 4, first, true, n_rows);
    EACH(r, n_rows) {
        EACH(v, VECTORS) t[r][v] <<= 7;
    }
    byte_dots(t, blocks, low, k / 4, n / 4, first, true, n_rows);
}

// --- i12_256 and i16_256 ---

enum { LINE_PAIRS = 16 }; // in a line of the cache, and in a run of 32 values

// t += sums of w * q over n pairs from first_pair on.
QN_INLINE void word_dots(i32v (*t)[VECTORS], const tile_block *blocks, const int16_t *const *q,
                         int first_pair, int n, int first, const int n_rows) {
    for (int i = first_pair; i < first_pair + n; i++) {
        i16v w[VECTORS];
        EACH(v, VECTORS) w[v] = load_i16(tile_at(blocks, first, v)->w[i] + 2 * lane_at(first, v));
        EACH(r, n_rows) {
            const i32v pair = spread(q[r] + 2 * i);
            EACH(v, VECTORS) t[r][v] = madd_spread(t[r][v], w[v], pair);
        }
    }
}

// What the offsets of a block say: t = the sums of offsets times sums of 16 integers.
QN_INLINE void min_dots(i32v (*t)[VECTORS], const tile_block *blocks, const qn_i12_block *const *x,
                        int first, const int n_rows) {
    zero_sums(t, n_rows);
    for (int i = 0; i < QN_GROUPS / 2; i++) {
        i16v w[VECTORS];
        EACH(v, VECTORS)
            w[v] = load_i16(tile_at(blocks, first, v)->mins[i] + 2 * lane_at(first, v));
        EACH(r, n_rows) {
            const i32v pair = spread(x[r]->sums + 2 * i);
            EACH(v, VECTORS) t[r][v] = madd_spread(t[r][v], w[v], pair);
        }
    }
}

// Adds what a block of types with integer scales says: t are the sums of scaled integers. They are
// put aside while registers are needed for those of the offsets.
QN_INLINE void add_folded_sums(float (*sums)[QN_PANEL], const tile_block *blocks,
                               const qn_i12_block *const *x, i32v (*t)[VECTORS], int first,
                               const bool has_shift, const int n_rows) {
    float kept[FOLDED_ROWS][VECTORS * QN_LANES];
    EACH(v, VECTORS) {
        const f32v scale = load_f32(tile_at(blocks, first, v)->scale[0] + lane_at(first, v));
        EACH(r, n_rows) store_f32(kept[r] + v * QN_LANES, scale * to_float(t[r][v]));
    }
    if (has_shift) {
        __asm__("" ::: "memory"); // they are to stay there, not the other sums
        min_dots(t, blocks, x, first, n_rows);
    }
    EACH(v, VECTORS) {
        const f32v shift = load_f32(tile_at(blocks, first, v)->shift[0] + lane_at(first, v));
        EACH(r, n_rows) {
            float *sum = sums[r] + first + v * QN_LANES;
            f32v value = load_f32(kept[r] + v * QN_LANES);
            if (has_shift) value = fma_f32(shift, to_float(t[r][v]), value);
            store_f32(sum, load_f32(sum) + all_f32(x[r]->scale) * value);
        }
    }
}

QN_INLINE void i12_folded(float (*sums)[QN_PANEL], const tile_block *blocks,
                          const void *const *rows, int64_t b, const void *const *next,
                          int64_t next_b, ahead *weights, int first, const bool has_shift,
                          const int n_rows) {
    const qn_i12_block *x[FOLDED_ROWS];
    const int16_t *q[FOLDED_ROWS];
    i32v t[FOLDED_ROWS][VECTORS];
    EACH(r, n_rows) {
        x[r] = i12_of(rows[r], b);
        q[r] = x[r]->q;
    }
    zero_sums(t, n_rows);
    for (int i = 0; i < QN_BLOCK / 2; i += LINE_PAIRS) {
        EACH(r, n_rows) __builtin_prefetch(i12_of(next[r], next_b)->q + 2 * i);
        fetch_ahead(weights);
        word_dots(t, blocks, q, i, LINE_PAIRS, first, n_rows);
    }
    add_folded_sums(sums, blocks, x, t, first, has_shift, n_rows);
}

// The same with the integer scales apart.
QN_INLINE void i12_split(float (*sums)[QN_PANEL], const tile_block *blocks, const void *const *rows,
                         int64_t b, ahead *weights, const split_row *split, int first,
                         const int group, const bool has_shift, const int n_rows) {
    const qn_i12_block *x[FOLDED_ROWS];
    i32v all[FOLDED_ROWS][VECTORS];
    EACH(r, n_rows) x[r] = i12_of(rows[r], b);
    zero_sums(all, n_rows);
    for (int g = 0; g < QN_BLOCK / group; g++) {
        i32v t[FOLDED_ROWS][VECTORS];
        fetch_ahead(weights);
        split_dots(t, blocks, split, group * g, group, first, n_rows);
        EACH(v, VECTORS) {
            const i32v by = load_i32v(tile_at(blocks, first, v)->by[g] + lane_at(first, v));
            EACH(r, n_rows) all[r][v] += t[r][v] * by;
        }
    }
    add_folded_sums(sums, blocks, x, all, first, has_shift, n_rows);
}

// The sums of groups take all registers, so that those of the block lie in memory: they are needed
// once for each group. split: the rows of i12_256 where they are split.
QN_INLINE void words_grouped(float (*sums)[QN_PANEL], const tile_block *blocks,
                             const void *const *rows, int64_t b, const void *const *next,
                             int64_t next_b, ahead *weights, const split_row *split, int n_values,
                             int first, const int group, const bool has_shift, const qn_word form,
                             const int n_rows) {
    const int16_t *q[FOLDED_ROWS];
    float y[FOLDED_ROWS][VECTORS * QN_LANES];
    EACH(r, n_rows) q[r] = words_of(rows[r], b, form);
    memset(y, 0, sizeof y);
    for (int g = 0; g < n_values / group; g++) {
        i32v t[FOLDED_ROWS][VECTORS];
        zero_sums(t, n_rows);
        EACH(r, n_rows) __builtin_prefetch(words_of(next[r], next_b, form) + group * g);
        fetch_ahead(weights);
        if (QN_SPLITS_WORDS && form == QN_WORD_i12_256)
            split_dots(t, blocks, split, group * g, group, first, n_rows);
        else
            word_dots(t, blocks, q, group / 2 * g, group / 2, first, n_rows);
        EACH(v, VECTORS) {
            const tile_block *tile = tile_at(blocks, first, v);
            const f32v scale = load_f32(tile->scale[g] + lane_at(first, v));
            EACH(r, n_rows) {
                float *at = y[r] + v * QN_LANES;
                f32v value = fma_f32(scale, to_float(t[r][v]), load_f32(at));
                if (has_shift)
                    value = fma_f32(load_f32(tile->shift[g] + lane_at(first, v)),
                                    all_f32(word_sum(rows[r], b, g, group, form)), value);
                store_f32(at, value);
            }
        }
    }
    EACH(r, n_rows) {
        EACH(v, VECTORS) {
            float *sum = sums[r] + first + v * QN_LANES;
            store_f32(sum, load_f32(sum) + all_f32(word_scale(rows[r], b, form)) *
                                               load_f32(y[r] + v * QN_LANES));
        }
    }
}

// --- i8_32: types with a shift have no zero ---

// -zero times the sums of a row's groups. (Here units for whole numbers are idle, those for vectors
// are not.)
QN_INLINE void i8_find_bases(int32_t *to, const qn_i8_block *x, int zero, const int group) {
    for (int g = 0; g < QN_BLOCK / group; g++)
        to[g] = -zero * (group == 16 ? x->sums[g] : x->sums[2 * g] + x->sums[2 * g + 1]);
}

QN_INLINE void i8_coded(float (*sums)[QN_PANEL], const tile_block *blocks, const void *const *rows,
                        int64_t b, const void *const *next, int64_t next_b, ahead *weights,
                        int n_values, int first, int zero, const int group, const bool has_shift,
                        const bool is_narrow, const int n_rows) {
    const qn_i8_block *x[GROUPED_ROWS];
    const int8_t *q[GROUPED_ROWS];
    int32_t bases[GROUPED_ROWS][QN_GROUPS];
    f32v y[GROUPED_ROWS][VECTORS];
    EACH(r, n_rows) {
        x[r] = i8_of(rows[r], b);
        q[r] = x[r]->q;
        if (!has_shift) i8_find_bases(bases[r], x[r], zero, group);
        EACH(v, VECTORS) y[r][v] = (f32v){0};
    }
    for (int g = 0; g < n_values / group; g++) {
        const int j = g * group / 32, h = g * group / 16 % 2;
        i32v t[GROUPED_ROWS][VECTORS];
        fetch_ahead(weights);
        EACH(r, n_rows) {
            const i32v base = has_shift ? (i32v){0} : all_i32(bases[r][g]);
            __builtin_prefetch((const char *)i8_of(next[r], next_b) + g * group * 3 / 2);
            EACH(v, VECTORS) t[r][v] = base;
        }
        byte_dots(t, blocks, q, g * group / 4, group / 4, first, is_narrow, n_rows);
        EACH(v, VECTORS) {
            const tile_block *tile = tile_at(blocks, first, v);
            const int o = lane_at(first, v);
            const f32v scale = load_f32(tile->scale[g] + o);
            EACH(r, n_rows) {
                y[r][v] = fma_f32(scale * to_float(t[r][v]), all_f32(x[r]->scales[j]), y[r][v]);
                if (has_shift)
                    y[r][v] = fma_f32(load_f32(tile->shift[g] + o),
                                      all_f32(qn_i8_offset(x[r], j, h, group)), y[r][v]);
            }
        }
    }
    EACH(r, n_rows) {
        EACH(v, VECTORS) {
            float *sum = sums[r] + first + v * QN_LANES;
            store_f32(sum, load_f32(sum) + y[r][v]);
        }
    }
}

// --- floats ---

// Value k of QN_LANES outputs.
QN_INLINE f32v read_float(const uint8_t *tile, int k, int o, const qn_type type) {
    if (type == QN_TYPE_F16) return widen_half(tile + 2 * (QN_TILE * k + o));
    if (type == QN_TYPE_BF16) return (f32v)(widen_u16(tile + 2 * (QN_TILE * k + o)) << 16);
    return load_f32((const float *)(const void *)tile + QN_TILE * k + o);
}

QN_INLINE void plain(float (*sums)[QN_PANEL], const uint8_t *const *tiles, const float *const *x,
                     int n_values, int first, const qn_type type, const int n_rows) {
    f32v y[FOLDED_ROWS][VECTORS];
    EACH(r, n_rows) {
        EACH(v, VECTORS) y[r][v] = (f32v){0};
    }
    for (int k = 0; k < n_values; k++) {
        f32v w[VECTORS];
        EACH(v, VECTORS)
            __builtin_prefetch(tiles[(first + v * QN_LANES) / QN_TILE] +
                               (type == QN_TYPE_F32 ? 64 : 32) * k + AHEAD);
        EACH(v, VECTORS)
            w[v] = read_float(tiles[(first + v * QN_LANES) / QN_TILE], k, lane_at(first, v), type);
        EACH(r, n_rows) {
            EACH(v, VECTORS) y[r][v] = fma_f32(w[v], all_f32(x[r][k]), y[r][v]);
        }
    }
    EACH(r, n_rows) {
        EACH(v, VECTORS) {
            float *sum = sums[r] + first + v * QN_LANES;
            store_f32(sum, load_f32(sum) + y[r][v]);
        }
    }
}

#endif
