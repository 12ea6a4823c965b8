// Products of a few rows with a matrix that lies in the first-level cache.
#ifndef QN_BACKENDS_CPU_KERNELS_SMALL_PRODUCT_H
#define QN_BACKENDS_CPU_KERNELS_SMALL_PRODUCT_H

#include "backends/cpu/kernels/lanes16.h"

// How the matrix lies in memory: floats in a cache already, or halves or floats that come from
// memory; with these what is read next, at the same place but `ahead` bytes further, is fetched. Of
// keys, 16 columns lie together, `group` bytes from the 16 before; other rows are dense.
typedef enum mac_kind {
    MAC_FLOATS,
    MAC_FAR_HALVES,
    MAC_FAR_FLOATS,
    MAC_KEY_HALVES,
    MAC_KEY_FLOATS,
    MAC_KINDS
} mac_kind;

typedef struct matrix {
    mac_kind kind;
    const unsigned char *rows;
    int64_t stride, group, ahead; // bytes
} matrix;

QN_INLINE bool has_halves(mac_kind kind) {
    return kind == MAC_FAR_HALVES || kind == MAC_KEY_HALVES;
}

// Bytes from the beginning of a row to column `at`.
QN_INLINE int64_t column_at(int64_t at, int64_t group, const mac_kind kind) {
    const int64_t size = has_halves(kind) ? 2 : 4;
    if (kind != MAC_KEY_HALVES && kind != MAC_KEY_FLOATS) return at * size;
    return at / QN_KEY_GROUP * group + at % QN_KEY_GROUP * size;
}

// to (n, width) += a (n, depth) b (depth, width): one fma for each k of the depth, ascending. Rows
// of `to` and `a` lie that many floats apart.
typedef struct mac {
    float *to;
    const float *a;
    matrix b;
    int64_t to_stride, a_stride;
    int64_t depth, width;
} mac;

// Rows at a time, and vectors of their results: what the registers hold.
#if defined(__AVX512VNNI__)
enum { MAC_ROWS = 6, MAC_VECTORS = 4, MAC_ALONE = 8 };
#else
enum { MAC_ROWS = 3, MAC_VECTORS = 4, MAC_ALONE = 8 };
#endif

QN_INLINE f32v load_row(const unsigned char *from, const mac_kind kind) {
    return has_halves(kind) ? widen_half(from) : load_f32((const float *)from);
}

// Columns from `at` on; n, vectors and kind are constants, the depth is at least 1.
QN_INLINE void mac_columns(const mac *m, int64_t at, const int n, const int vectors,
                           const mac_kind kind) {
    f32v sum[MAC_ROWS][MAC_ALONE];
    float *const to = m->to + at;
    const float *a = m->a, *const end = a + m->depth;
    const unsigned char *b = m->b.rows + column_at(at, m->b.group, kind);
    const int64_t a_stride = m->a_stride, b_stride = m->b.stride, to_stride = m->to_stride;
    const int64_t ahead = m->b.ahead, group = m->b.group;
    const int bytes = QN_LANES * (has_halves(kind) ? 2 : 4);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < vectors; i++) sum[r][i] = load_f32(to + r * to_stride + i * QN_LANES);
    }
    do {
        for (int i = 0; kind != MAC_FLOATS && i < vectors; i++) {
            const int64_t from = column_at(i * QN_LANES, group, kind);
            if (kind >= MAC_KEY_HALVES || i * bytes % 64 == 0)
                __builtin_prefetch(b + ahead + from, 0, 2);
        }
        for (int i = 0; i < vectors; i++) {
            const f32v x = held(load_row(b + column_at(i * QN_LANES, group, kind), kind));
            for (int r = 0; r < n; r++) sum[r][i] = fma_f32(all_f32(a[r * a_stride]), x, sum[r][i]);
        }
        b += b_stride;
    } while (++a < end);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < vectors; i++) store_f32(to + r * to_stride + i * QN_LANES, sum[r][i]);
    }
}

// A single column.
static inline void mac_column(const mac *m, int64_t at, int n) {
    for (int r = 0; r < n; r++) {
        float *to = m->to + r * m->to_stride + at;
        for (int64_t k = 0; k < m->depth; k++) {
            const unsigned char *from =
                m->b.rows + k * m->b.stride + column_at(at, m->b.group, m->b.kind);
            const float x = has_halves(m->b.kind) ? qn_load_half(from) : *(const float *)from;
            *to = __builtin_fmaf(m->a[r * m->a_stride + k], x, *to);
        }
    }
}

// Many vectors at a time, then two, one, and the numbers that are left.
QN_INLINE void mac_n(const mac *m, const int n, const mac_kind kind) {
    const int vectors = n == 1 ? MAC_ALONE : MAC_VECTORS;
    int64_t at = 0;
    for (; at + vectors * QN_LANES <= m->width; at += vectors * QN_LANES)
        mac_columns(m, at, n, vectors, kind);
    for (; at + 2 * QN_LANES <= m->width; at += 2 * QN_LANES) mac_columns(m, at, n, 2, kind);
    for (; at + QN_LANES <= m->width; at += QN_LANES) mac_columns(m, at, n, 1, kind);
    for (; at < m->width; at++) mac_column(m, at, n);
}

typedef void mac_fn(const mac *m);
#define MAC(n)                                                                                     \
    static void mac_floats_##n(const mac *m) { mac_n(m, n, MAC_FLOATS); }                          \
    static void mac_far_halves_##n(const mac *m) { mac_n(m, n, MAC_FAR_HALVES); }                  \
    static void mac_far_floats_##n(const mac *m) { mac_n(m, n, MAC_FAR_FLOATS); }                  \
    static void mac_key_halves_##n(const mac *m) { mac_n(m, n, MAC_KEY_HALVES); }                  \
    static void mac_key_floats_##n(const mac *m) { mac_n(m, n, MAC_KEY_FLOATS); }
MAC(1)
MAC(2)
MAC(3)
#if defined(__AVX512VNNI__)
MAC(4)
MAC(5)
MAC(6)
#endif
#undef MAC

// n is 1 ... MAC_ROWS.
static inline void mac_rows(const mac *m, int n) {
#define MAC(n)                                                                                     \
    {                                                                                              \
        mac_floats_##n, mac_far_halves_##n, mac_far_floats_##n, mac_key_halves_##n,                \
            mac_key_floats_##n                                                                     \
    }
    static mac_fn *const fns[][MAC_KINDS] = {
        MAC(1),
        MAC(2),
        MAC(3),
#if defined(__AVX512VNNI__)
        MAC(4),
        MAC(5),
        MAC(6)
#endif
    };
#undef MAC
    fns[n - 1][m->b.kind](m);
}

#endif
