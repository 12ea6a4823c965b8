// Keys and values in the pages of a cache.
#ifndef QN_BACKENDS_CPU_KERNELS_ATTEND_H
#define QN_BACKENDS_CPU_KERNELS_ATTEND_H

#include "backends/cpu/kernels/level.h"
#include "backends/cpu/kernels/small_product.h"
#include "quant/blocks.h"

#include <string.h>

static inline int64_t row_position(const qn_step *step, int64_t row) {
    const int32_t seg = step->row_seg[row];
    return step->seg_past[seg] + (row - step->seg_row[seg]);
}

// The page with positions 64 * block ... of a segment, where this layer's part begins; NULL: it was
// given back.
static inline unsigned char *cache_page(const qn_cache_view *cache, const qn_step *step,
                                        int64_t seg, int64_t block) {
    const int64_t groups = step->n_groups > 0 ? step->n_groups : 1;
    const int32_t page =
        step->seg_pages[(seg * groups + cache->group) * step->pages_per_seg + block];
    return page < 0 ? NULL : cache->pages + page * cache->page_bytes + cache->offset;
}

// Keys of a kv head in a page, and its value row at `slot` (0 ... 63).
static inline unsigned char *cache_keys(const qn_cache_view *cache, unsigned char *page,
                                        int64_t head) {
    return page + head * QN_PAGE_ROWS * qn_cpu_cache_row_bytes(cache->type, cache->k_size);
}

static inline unsigned char *cache_value(const qn_cache_view *cache, unsigned char *page,
                                         int64_t head, int64_t slot) {
    return cache_keys(cache, page, cache->heads) +
           (head * QN_PAGE_ROWS + slot) * qn_cpu_cache_row_bytes(cache->type, cache->v_size);
}

// --- keys and values as matrices ---

// Rows and columns of a slab: 16 KB of floats, a part of the first-level cache of every machine.
enum { SLAB = 64, HALF_Q4_0 = QN_VALUES_Q4_0 / 2 };

// What a kv head has in a page. While one part is read the same part of what comes next is fetched
// from memory: after keys the values, after values the keys of the next page.
typedef struct kv_page {
    qn_type type;
    bool is_shared;   // many queries use it: better unpacked once
    int64_t n_groups; // of 16 positions: those after them are not visible
    int64_t k_size, v_size;
    const unsigned char *keys, *values, *next_keys; // next_keys may be NULL
    float *slab;                                    // (64, 64)
} kv_page;

QN_INLINE void fetch_bytes(const unsigned char *at, int64_t bytes) {
    for (int64_t i = 0; at && i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

QN_INLINE void unpack_halves(float *to, const unsigned char *from, int64_t n) {
    int64_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES) store_f32(to + i, widen_half(from + 2 * i));
    for (; i < n; i++) to[i] = qn_load_half(from + 2 * i);
}

// n rows of a block of Q8_0 keys of 16 positions: 16 scales, then rows of bytes. To rows of 64.
static inline void unpack_key_bytes(float *to, const unsigned char *block, int64_t n) {
    f32v scale[QN_KEY_GROUP / QN_LANES];
    for (int j = 0; j < QN_KEY_GROUP; j += QN_LANES)
        scale[j / QN_LANES] = widen_half(block + 2 * j);
    const unsigned char *from = block + 2 * QN_KEY_GROUP;
    for (int64_t i = 0; i < n; i++) {
        for (int j = 0; j < QN_KEY_GROUP; j += QN_LANES)
            store_f32(to + i * SLAB + j,
                      scaled_bytes(from + i * QN_KEY_GROUP + j, scale[j / QN_LANES]));
    }
}

QN_INLINE f32v scaled_nibbles(i32v nibbles, f32v scale) { return scale * to_float(nibbles - 8); }

// A block of Q4_0 keys of 16 positions: 16 scales, then 16 rows of bytes, each of number i and
// number i + 16. To 32 rows of 64.
static inline void unpack_key_nibbles(float *to, const unsigned char *block) {
    const unsigned char *from = block + 2 * QN_KEY_GROUP;
    for (int j = 0; j < QN_KEY_GROUP; j += QN_LANES) {
        const f32v scale = widen_half(block + 2 * j);
        for (int i = 0; i < HALF_Q4_0; i++) {
            const i32v both = widen_u8(from + i * QN_KEY_GROUP + j);
            store_f32(to + i * SLAB + j, scaled_nibbles(both & 15, scale));
            store_f32(to + (i + HALF_Q4_0) * SLAB + j, scaled_nibbles(both >> 4, scale));
        }
    }
}

// n rows of keys of 16 positions, to rows of 64; of Q4_0 whole blocks.
static inline void unpack_group(float *to, qn_type type, const unsigned char *from, int64_t n) {
    if (type == QN_TYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            unpack_halves(to + i * SLAB, from + 2 * QN_KEY_GROUP * i, QN_KEY_GROUP);
    } else if (type == QN_TYPE_F32) {
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * SLAB, from + 4 * QN_KEY_GROUP * i, 4 * QN_KEY_GROUP);
    } else if (type == QN_TYPE_Q8_0) {
        for (int64_t i = 0; i < n; i += QN_VALUES_Q8_0, from += QN_KEY_GROUP * QN_BYTES_Q8_0)
            unpack_key_bytes(to + i * SLAB, from, n - i < QN_VALUES_Q8_0 ? n - i : QN_VALUES_Q8_0);
    } else {
        for (int64_t i = 0; i < n; i += QN_VALUES_Q4_0, from += QN_KEY_GROUP * QN_BYTES_Q4_0)
            unpack_key_nibbles(to + i * SLAB, from);
    }
}

// How keys or values are read where they lie, for few queries; MAC_KINDS: by the slab.
static inline mac_kind far_kind(const kv_page *page, bool is_keys) {
    if (page->is_shared) return MAC_KINDS;
    if (page->type == QN_TYPE_F16) return is_keys ? MAC_KEY_HALVES : MAC_FAR_HALVES;
    if (page->type == QN_TYPE_F32) return is_keys ? MAC_KEY_FLOATS : MAC_FAR_FLOATS;
    if (page->type == QN_TYPE_Q8_0) return is_keys ? MAC_KEY_BYTES : MAC_FAR_BYTES;
    return MAC_KINDS;
}

// Numbers e ... e + *n - 1 of the keys of a page, (*n, 64): all where they lie, or those that fill
// the slab. e is a multiple of 64.
static inline matrix load_keys(const kv_page *page, int64_t e, int64_t *n) {
    const qn_type_info *info = qn_type_get(page->type);
    const int64_t group = QN_KEY_GROUP * qn_cpu_cache_row_bytes(page->type, page->k_size);
    const mac_kind kind = far_kind(page, true);
    *n = page->k_size - e;
    if (kind != MAC_KINDS)
        return (matrix){.kind = kind,
                        .rows = page->keys,
                        .stride = QN_KEY_GROUP * number_bytes(kind),
                        .group = group,
                        .ahead = page->values - page->keys};
    if (*n > SLAB) *n = SLAB;
    const int64_t at = e / info->block * info->bytes * (int64_t)QN_KEY_GROUP;
    const int64_t bytes = qn_cpu_cache_row_bytes(page->type, *n) * QN_KEY_GROUP;
    for (int64_t g = 0; g < page->n_groups; g++) {
        if (e < page->v_size) fetch_bytes(page->values + g * group + at, bytes);
        unpack_group(page->slab + g * QN_KEY_GROUP, page->type, page->keys + g * group + at, *n);
    }
    return (matrix){
        .kind = MAC_FLOATS, .rows = (const unsigned char *)page->slab, .stride = 4 * SLAB};
}

static inline void unpack_value_nibbles(float *to, const unsigned char *from, int64_t n) {
    for (int64_t at = 0; at < n; at += QN_VALUES_Q4_0, from += QN_BYTES_Q4_0) {
        const f32v scale = all_half(from);
        for (int i = 0; i < HALF_Q4_0; i += QN_LANES) {
            const i32v both = widen_u8(from + 2 + i);
            store_f32(to + at + i, scaled_nibbles(both & 15, scale));
            store_f32(to + at + HALF_Q4_0 + i, scaled_nibbles(both >> 4, scale));
        }
    }
}

// n numbers of a value row. `to` has room for a multiple of 32.
static inline void unpack_value(qn_type type, float *to, const unsigned char *from, int64_t n) {
    if (type == QN_TYPE_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    if (type == QN_TYPE_F16) {
        unpack_halves(to, from, n);
        return;
    }
    if (type == QN_TYPE_Q4_0) {
        unpack_value_nibbles(to, from, n);
        return;
    }
    for (int64_t at = 0; at < n; at += QN_VALUES_Q8_0, from += QN_BYTES_Q8_0) {
        const f32v scale = all_half(from);
        for (int i = 0; i < QN_VALUES_Q8_0; i += QN_LANES)
            store_f32(to + at + i, scaled_bytes(from + 2 + i, scale));
    }
}

// Numbers f ... f + *n - 1 of the values of a page, (64, *n): all where they lie, or those that fill
// the slab. f is a multiple of 64.
static inline matrix load_values(const kv_page *page, int64_t f, int64_t *n) {
    const qn_type_info *info = qn_type_get(page->type);
    const int64_t row = qn_cpu_cache_row_bytes(page->type, page->v_size);
    const mac_kind kind = far_kind(page, false);
    *n = page->v_size - f;
    if (kind != MAC_KINDS)
        return (matrix){.kind = kind,
                        .rows = page->values,
                        .stride = row,
                        .ahead = page->next_keys ? page->next_keys - page->values : 0};
    if (*n > SLAB) *n = SLAB;
    const int64_t at = f / info->block * info->bytes;
    const int64_t bytes = qn_cpu_cache_row_bytes(page->type, *n);
    for (int64_t j = 0; j < page->n_groups * QN_KEY_GROUP; j++) {
        if (page->next_keys) fetch_bytes(page->next_keys + j * row + at, bytes);
        unpack_value(page->type, page->slab + j * SLAB, page->values + j * row + at, *n);
    }
    return (matrix){
        .kind = MAC_FLOATS, .rows = (const unsigned char *)page->slab, .stride = 4 * SLAB};
}

// --- rotating ---

// Sums and differences of numbers that are `apart` (constant, at most 8) from each other.
QN_INLINE void rotate_near(float *x, int64_t n, const int64_t apart) {
    for (int64_t i = 0; i < n; i += 2 * apart) {
        for (int64_t j = i; j < i + apart; j++) {
            const float a = x[j], b = x[j + apart];
            x[j] = a + b;
            x[j + apart] = a - b;
        }
    }
}

static inline void rotate_far(float *x, int64_t n, int64_t apart) {
    for (int64_t i = 0; i < n; i += 2 * apart) {
        for (int64_t j = i; j < i + apart; j += QN_LANES) {
            const f32v a = load_f32(x + j), b = load_f32(x + j + apart);
            store_f32(x + j, a + b);
            store_f32(x + j + apart, a - b);
        }
    }
}

static inline void rotate_part(float *x, int64_t n) {
    if (n > 1) rotate_near(x, n, 1);
    if (n > 2) rotate_near(x, n, 2);
    if (n > 4) rotate_near(x, n, 4);
    if (n > 8) rotate_near(x, n, 8);
    for (int64_t apart = 16; apart < n; apart *= 2) rotate_far(x, n, apart);
}

// As qn_kv_rotate, bit for bit.
static inline void rotate_numbers(float *x, int64_t size) {
    const int64_t n = qn_kv_rotated(size);
    const float scale = qn_kv_rotation_scale(n);
    for (int64_t at = 0; at < size; at += n) rotate_part(x + at, n);
    for (int64_t i = 0; i < size; i++) x[i] *= scale;
}

// --- writing ---

// A row of a cache: rotated where it is, then as the type itself rounds. `from` has room for a
// multiple of 32 and is filled up with zeros.
static inline void pack_row(const qn_cache_view *cache, unsigned char *to, float *from, int64_t n) {
    const qn_type type = cache->type;
    if (cache->is_rotated) rotate_numbers(from, n);
    if (type == QN_TYPE_F16) {
        int64_t i = 0;
        for (; i + QN_LANES <= n; i += QN_LANES) store_half(to + 2 * i, load_f32(from + i));
        for (; i < n; i++) qn_store_u16(to + 2 * i, qn_half_encode(from[i]));
        return;
    }
    const qn_type_info *info = qn_type_get(type);
    const int64_t whole = qn_round_up(n, info->block);
    for (int64_t i = n; i < whole; i++) from[i] = 0;
    info->pack(to, from, whole, NULL);
}

// n units of `bytes` (constant), 16 apart.
QN_INLINE void spread_units(unsigned char *to, const unsigned char *from, int64_t n, size_t bytes) {
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)(i * QN_KEY_GROUP) * bytes, from + (size_t)i * bytes, bytes);
}

// A packed row to its place among the keys of a head: number by number; of a block of Q8_0 or Q4_0
// the scale, then byte by byte.
static inline void place_key(qn_type type, unsigned char *keys, const unsigned char *row, int64_t n,
                             int64_t slot) {
    keys += slot / QN_KEY_GROUP * QN_KEY_GROUP * qn_cpu_cache_row_bytes(type, n);
    slot %= QN_KEY_GROUP;
    if (type == QN_TYPE_F32) {
        spread_units(keys + 4 * slot, row, n, 4);
    } else if (type == QN_TYPE_F16) {
        spread_units(keys + 2 * slot, row, n, 2);
    } else {
        const qn_type_info *info = qn_type_get(type);
        for (int64_t at = 0; at < n; at += info->block) {
            memcpy(keys + 2 * slot, row, 2);
            spread_units(keys + 2 * QN_KEY_GROUP + slot, row + 2, info->bytes - 2, 1);
            keys += info->bytes * QN_KEY_GROUP;
            row += info->bytes;
        }
    }
}

#endif
