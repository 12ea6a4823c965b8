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
#elif defined(__AVX2__)
enum { VECTORS = QN_TILE / QN_LANES, FOLDED_ROWS = 4, GROUPED_ROWS = 2 };
#else
enum { VECTORS = QN_TILE / QN_LANES, FOLDED_ROWS = 2, GROUPED_ROWS = 1 };
#endif
// Only where the sums are in registers; elsewhere it would be much code without a gain.
#if defined(__AVX2__) && !defined(QN_FEW_COPIES)
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

// --- i12_256 and i16_256 ---

enum { LINE_PAIRS = 16 }; // in a line of the cache, and in a run of 32 values

QN_INLINE void zero_sums(i32v (*t)[VECTORS], const int n_rows) {
    EACH(r, n_rows) {
        EACH(v, VECTORS) t[r][v] = (i32v){0};
    }
}

// t += sums of w * q over n pairs from first_pair on.
QN_INLINE void word_dots(i32v (*t)[VECTORS], const tile_block *blocks, const int16_t *const *q,
                         int first_pair, int n, int first, const int n_rows) {
    for (int i = first_pair; i < first_pair + n; i++) {
        i16v w[VECTORS];
        EACH(v, VECTORS) w[v] = load_i16(tile_at(blocks, first, v)->w[i] + 2 * lane_at(first, v));
        EACH(r, n_rows) {
            const int16_t *pair = q[r] + 2 * i;
            EACH(v, VECTORS) t[r][v] = madd(t[r][v], w[v], pair);
        }
    }
}

QN_INLINE void i12_folded(float (*sums)[QN_PANEL], const tile_block *blocks,
                          const void *const *rows, int64_t b, const void *const *next,
                          int64_t next_b, int first, const bool has_shift, const int n_rows) {
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
        word_dots(t, blocks, q, i, LINE_PAIRS, first, n_rows);
    }
    EACH(r, n_rows) {
        EACH(v, VECTORS) {
            const tile_block *tile = tile_at(blocks, first, v);
            const int o = lane_at(first, v);
            float *sum = sums[r] + first + v * QN_LANES;
            f32v value = load_f32(tile->scale[0] + o) * to_float(t[r][v]);
            if (has_shift) {
                i32v below = {0};
                EACH(i, QN_GROUPS / 2)
                    below = madd(below, load_i16(tile->mins[i] + 2 * o), x[r]->sums + 2 * i);
                value = fma_f32(load_f32(tile->shift[0] + o), to_float(below), value);
            }
            store_f32(sum, load_f32(sum) + all_f32(x[r]->scale) * value);
        }
    }
}

// The sums of groups take all registers, so that those of the block lie in memory: they are needed
// once for each group.
QN_INLINE void words_grouped(float (*sums)[QN_PANEL], const tile_block *blocks,
                             const void *const *rows, int64_t b, const void *const *next,
                             int64_t next_b, int n_values, int first, const int group,
                             const bool has_shift, const qn_word form, const int n_rows) {
    const int16_t *q[FOLDED_ROWS];
    float y[FOLDED_ROWS][VECTORS * QN_LANES];
    EACH(r, n_rows) q[r] = words_of(rows[r], b, form);
    memset(y, 0, sizeof y);
    for (int g = 0; g < n_values / group; g++) {
        i32v t[FOLDED_ROWS][VECTORS];
        zero_sums(t, n_rows);
        EACH(r, n_rows) __builtin_prefetch(words_of(next[r], next_b, form) + group * g);
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
                        int64_t b, const void *const *next, int64_t next_b, int n_values, int first,
                        int zero, const int group, const bool has_shift, const bool is_narrow,
                        const int n_rows) {
    const qn_i8_block *x[GROUPED_ROWS];
    int32_t bases[GROUPED_ROWS][QN_GROUPS];
    f32v y[GROUPED_ROWS][VECTORS];
    EACH(r, n_rows) {
        x[r] = i8_of(rows[r], b);
        if (!has_shift) i8_find_bases(bases[r], x[r], zero, group);
        EACH(v, VECTORS) y[r][v] = (f32v){0};
    }
    for (int g = 0; g < n_values / group; g++) {
        const int j = g * group / 32, h = g * group / 16 % 2;
        i32v t[GROUPED_ROWS][VECTORS];
        EACH(r, n_rows) {
            const i32v base = has_shift ? (i32v){0} : all_i32(bases[r][g]);
            __builtin_prefetch((const char *)i8_of(next[r], next_b) + g * group * 3 / 2);
            EACH(v, VECTORS) t[r][v] = base;
        }
        EACH(i, group / 4) {
            const int u = g * group / 4 + i;
            u16v c[VECTORS];
            EACH(v, VECTORS)
                c[v] = load_u16(tile_at(blocks, first, v)->c[u] + 4 * lane_at(first, v));
            EACH(r, n_rows) {
                const int8_t *four = x[r]->q + 4 * u;
                EACH(v, VECTORS) t[r][v] = dot4(t[r][v], c[v], four, is_narrow);
            }
        }
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
