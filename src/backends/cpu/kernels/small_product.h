// Products of a few rows with a matrix that lies in the first-level cache, or comes from a KV cache.
#ifndef QN_BACKENDS_CPU_KERNELS_SMALL_PRODUCT_H
#define QN_BACKENDS_CPU_KERNELS_SMALL_PRODUCT_H

#include "backends/cpu/kernels/lanes16.h"
#include "quant/blocks.h"

// How the matrix lies in memory: floats in a cache already, or values or keys as they are kept
// (F16, F32, Q8_0), which come from memory; with these what is read next, at the same place but
// `ahead` bytes further, is fetched. Of keys, 16 columns lie together, `group` bytes from the 16
// before; of Q8_0 `rows` is where a block begins, with its scales. Other rows are dense.
typedef enum mac_kind {
    MAC_FLOATS,
    MAC_FAR_HALVES,
    MAC_FAR_FLOATS,
    MAC_FAR_BYTES,
    MAC_KEY_HALVES,
    MAC_KEY_FLOATS,
    MAC_KEY_BYTES,
    MAC_KINDS
} mac_kind;

typedef struct matrix {
    mac_kind kind;
    const unsigned char *rows;
    int64_t stride, group, ahead; // bytes
} matrix;

// Bytes of a number.
QN_INLINE int64_t number_bytes(const mac_kind kind) {
    if (kind == MAC_FAR_BYTES || kind == MAC_KEY_BYTES) return 1;
    return kind == MAC_FAR_HALVES || kind == MAC_KEY_HALVES ? 2 : 4;
}

// Bytes from the beginning of a row to column `at`.
QN_INLINE int64_t column_at(int64_t at, int64_t group, const mac_kind kind) {
    if (kind >= MAC_KEY_HALVES)
        return at / QN_KEY_GROUP * group + at % QN_KEY_GROUP * number_bytes(kind);
    if (kind == MAC_FAR_BYTES) return at / QN_VALUES_Q8_0 * QN_BYTES_Q8_0 + 2 + at % QN_VALUES_Q8_0;
    return at * number_bytes(kind);
}

// Bytes from a vector of a row to the i-th after it; vectors begin where that many begin, so that
// none crosses a block or a group of keys.
QN_INLINE int64_t vector_at(int64_t i, int64_t group, const mac_kind kind) {
    return column_at(i * QN_LANES, group, kind) - (kind == MAC_FAR_BYTES ? 2 : 0);
}

// to (n, width) += a (n, depth) b (depth, width): one fma for each k of the depth, ascending. Rows
// of `to` and `a` lie that many floats apart.
typedef struct mac {
    float *to;
    const float *a;
    matrix b;
    int64_t to_stride, a_stride;
    int64_t depth, width;
    bool is_first; // from 0, whatever is in `to`
} mac;

// Rows at a time at most and, of many, at best; vectors of their results: what the registers hold.
// With fewer rows more vectors, as so many sums must be under way that none is waited for.
#if defined(__AVX512VNNI__)
enum { MAC_ROWS = 6, MAC_BEST = 6, MAC_VECTORS = 4, MAC_ALONE = 8 };
#else
enum { MAC_ROWS = 4, MAC_BEST = 3, MAC_VECTORS = 4, MAC_ALONE = 8 };
#endif

QN_INLINE int mac_vectors(const int n) {
    if (n == 1) return MAC_ALONE;
    return n > MAC_BEST ? 2 : MAC_VECTORS;
}

QN_INLINE f32v scaled_bytes(const unsigned char *from, f32v scale) {
    return scale * to_float(widen_i8(from));
}

// Vector i of a row of b; `scale` is that of its columns, of keys of Q8_0, `to_scale` the way to
// those of a row of Q8_0.
QN_INLINE f32v load_row(const unsigned char *row, int i, int64_t group, f32v scale,
                        int64_t to_scale, const mac_kind kind) {
    const unsigned char *from = row + vector_at(i, group, kind);
    if (kind == MAC_KEY_BYTES) return scaled_bytes(from, scale);
    if (kind == MAC_FAR_BYTES)
        return scaled_bytes(
            from, all_half(row + to_scale + i * QN_LANES / QN_VALUES_Q8_0 * QN_BYTES_Q8_0));
    return number_bytes(kind) == 2 ? widen_half(from) : load_f32((const float *)from);
}

// sum += `depth` rows of b. n, vectors and kind are constants.
QN_INLINE void mac_depth(f32v sum[][MAC_ALONE], const mac *m, const unsigned char *b,
                         const float *a, int64_t depth, const f32v *scale, int64_t to_scale,
                         const int n, const int vectors, const mac_kind kind) {
    const int64_t a_stride = m->a_stride, b_stride = m->b.stride, group = m->b.group;
    const int64_t ahead = m->b.ahead, bytes = QN_LANES * number_bytes(kind);
    const float *const end = a + depth;
    do {
        for (int i = 0; kind != MAC_FLOATS && i < vectors; i++) {
            if (kind >= MAC_KEY_HALVES || i * bytes % 64 == 0)
                __builtin_prefetch(b + ahead + vector_at(i, group, kind), 0, 2);
        }
        for (int i = 0; i < vectors; i++) {
            const f32v x = held(load_row(b, i, group, scale[i], to_scale, kind));
            for (int r = 0; r < n; r++) sum[r][i] = fma_f32(all_f32(a[r * a_stride]), x, sum[r][i]);
        }
        b += b_stride;
    } while (++a < end);
}

// Columns from `at` on; the depth is at least 1.
QN_INLINE void mac_columns(const mac *m, int64_t at, const int n, const int vectors,
                           const mac_kind kind) {
    f32v sum[MAC_ROWS][MAC_ALONE], scale[MAC_ALONE] = {{0}};
    float *const to = m->to + at;
    const unsigned char *b = m->b.rows + column_at(at, m->b.group, kind);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < vectors; i++) {
            const float *from = to + r * m->to_stride + i * QN_LANES;
            sum[r][i] = m->is_first ? all_f32(0) : load_f32(from);
        }
    }
    if (kind == MAC_KEY_BYTES) {
        for (int64_t k = 0; k < m->depth; k += QN_VALUES_Q8_0) {
            for (int i = 0; i < vectors; i++) // 16 of them, of two bytes each
                scale[i] = widen_half(b + vector_at(i, m->b.group, kind) + at % QN_KEY_GROUP +
                                      i * QN_LANES % QN_KEY_GROUP);
            const int64_t n_rows = m->depth - k < QN_VALUES_Q8_0 ? m->depth - k : QN_VALUES_Q8_0;
            mac_depth(sum, m, b + 2 * QN_KEY_GROUP, m->a + k, n_rows, scale, 0, n, vectors, kind);
            b += QN_KEY_GROUP * QN_BYTES_Q8_0;
        }
    } else {
        mac_depth(sum, m, b, m->a, m->depth, scale, -2 - at % QN_VALUES_Q8_0, n, vectors, kind);
    }
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < vectors; i++)
            store_f32(to + r * m->to_stride + i * QN_LANES, sum[r][i]);
    }
}

// Number (k, at) of b; not of keys, which have whole vectors of columns.
QN_INLINE float number_of(const matrix *b, int64_t k, int64_t at) {
    const unsigned char *row = b->rows + k * b->stride, *from = row + column_at(at, 0, b->kind);
    if (b->kind == MAC_FAR_BYTES) {
        const float scale = qn_load_half(from - 2 - at % QN_VALUES_Q8_0);
        return scale * (float)(int8_t)*from;
    }
    return b->kind == MAC_FAR_HALVES ? qn_load_half(from) : *(const float *)from;
}

// A single column.
static inline void mac_column(const mac *m, int64_t at, int n) {
    for (int r = 0; r < n; r++) {
        float *to = m->to + r * m->to_stride + at, sum = m->is_first ? 0 : *to;
        for (int64_t k = 0; k < m->depth; k++)
            sum = __builtin_fmaf(m->a[r * m->a_stride + k], number_of(&m->b, k, at), sum);
        *to = sum;
    }
}

// Many vectors at a time, then two, one, and the numbers that are left.
QN_INLINE void mac_n(const mac *m, const int n, const mac_kind kind) {
    const int vectors = mac_vectors(n);
    int64_t at = 0;
    for (; at + vectors * QN_LANES <= m->width; at += vectors * QN_LANES)
        mac_columns(m, at, n, vectors, kind);
    for (; vectors > 4 && at + 4 * QN_LANES <= m->width; at += 4 * QN_LANES)
        mac_columns(m, at, n, 4, kind);
    for (; at + 2 * QN_LANES <= m->width; at += 2 * QN_LANES) mac_columns(m, at, n, 2, kind);
    for (; at + QN_LANES <= m->width; at += QN_LANES) mac_columns(m, at, n, 1, kind);
    for (; at < m->width; at++) mac_column(m, at, n);
}

typedef void mac_fn(const mac *m);
#define MAC(n)                                                                                     \
    static void mac_floats_##n(const mac *m) { mac_n(m, n, MAC_FLOATS); }                          \
    static void mac_far_halves_##n(const mac *m) { mac_n(m, n, MAC_FAR_HALVES); }                  \
    static void mac_far_floats_##n(const mac *m) { mac_n(m, n, MAC_FAR_FLOATS); }                  \
    static void mac_far_bytes_##n(const mac *m) { mac_n(m, n, MAC_FAR_BYTES); }                    \
    static void mac_key_halves_##n(const mac *m) { mac_n(m, n, MAC_KEY_HALVES); }                  \
    static void mac_key_floats_##n(const mac *m) { mac_n(m, n, MAC_KEY_FLOATS); }                  \
    static void mac_key_bytes_##n(const mac *m) { mac_n(m, n, MAC_KEY_BYTES); }
MAC(1)
MAC(2)
MAC(3)
MAC(4)
#if defined(__AVX512VNNI__)
MAC(5)
MAC(6)
#endif
#undef MAC

// n is 1 ... MAC_ROWS.
static inline void mac_rows(const mac *m, int n) {
#define MAC(n)                                                                                     \
    {                                                                                              \
        mac_floats_##n, mac_far_halves_##n, mac_far_floats_##n, mac_far_bytes_##n,                 \
            mac_key_halves_##n, mac_key_floats_##n, mac_key_bytes_##n                              \
    }
    static mac_fn *const fns[][MAC_KINDS] = {
        MAC(1),
        MAC(2),
        MAC(3),
        MAC(4),
#if defined(__AVX512VNNI__)
        MAC(5),
        MAC(6)
#endif
    };
#undef MAC
    fns[n - 1][m->b.kind](m);
}

#endif
