// Keys and values in the pages of a cache.
#ifndef QN_BACKENDS_CPU_LEVEL_ATTEND_H
#define QN_BACKENDS_CPU_LEVEL_ATTEND_H

#include "backends/cpu/level/lanes.h"
#include "backends/cpu/level/level.h"
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

// n is a multiple of 16.
static inline void unpack_halves(float *to, const unsigned char *from, int64_t n) {
    for (int64_t i = 0; i < n; i += QN_LANES) store_f32(to + i, widen_half(from + 2 * i));
}

// A value row of the cache that is not F32. `to` has room for a multiple of 32.
static inline void unpack_value(qn_type type, float *to, const unsigned char *from, int64_t n) {
    if (type == QN_TYPE_F16) {
        const int64_t whole = n / 16 * 16;
        unpack_halves(to, from, whole);
        for (int64_t i = whole; i < n; i++) to[i] = qn_load_half(from + 2 * i);
        return;
    }
    for (int64_t at = 0; at < n; at += QN_VALUES_Q8_0, from += QN_BYTES_Q8_0) { // Q8_0
        const float d = qn_load_half(from);
        for (int i = 0; i < QN_VALUES_Q8_0; i++) to[at + i] = d * (float)(int8_t)from[2 + i];
    }
}

// The keys of a head that are not F32, (n, 64) numbers.
static inline void unpack_keys(qn_type type, float *to, const unsigned char *from, int64_t n) {
    if (type == QN_TYPE_F16) {
        unpack_halves(to, from, n * QN_PAGE_ROWS);
        return;
    }
    const int64_t block_bytes = QN_BYTES_Q8_0 * QN_PAGE_ROWS;
    for (int64_t e = 0; e < n; e++) { // Q8_0
        const unsigned char *block = from + e / QN_VALUES_Q8_0 * block_bytes;
        const unsigned char *q = block + (2 + e % QN_VALUES_Q8_0) * QN_PAGE_ROWS;
        float scale[QN_PAGE_ROWS];
        unpack_halves(scale, block, QN_PAGE_ROWS);
        for (int j = 0; j < QN_PAGE_ROWS; j++)
            to[e * QN_PAGE_ROWS + j] = scale[j] * (float)(int8_t)q[j];
    }
}

// A row as the type itself rounds. `from` has room for a multiple of 32 and is filled up with zeros.
static inline void pack_row(qn_type type, unsigned char *to, float *from, int64_t n) {
    const qn_type_info *info = qn_type_get(type);
    const int64_t whole = qn_round_up(n, info->block);
    for (int64_t i = n; i < whole; i++) from[i] = 0;
    info->pack(to, from, whole, NULL);
}

// n units of `bytes` (constant), 64 apart.
QN_INLINE void spread_units(unsigned char *to, const unsigned char *from, int64_t n, size_t bytes) {
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)(i * QN_PAGE_ROWS) * bytes, from + (size_t)i * bytes, bytes);
}

// A packed row to its place among the keys of a head: number by number; of a block of Q8_0 the
// scale, then byte by byte.
static inline void place_key(qn_type type, unsigned char *keys, const unsigned char *row, int64_t n,
                             int64_t slot) {
    if (type == QN_TYPE_F32) {
        spread_units(keys + 4 * slot, row, n, 4);
    } else if (type == QN_TYPE_F16) {
        spread_units(keys + 2 * slot, row, n, 2);
    } else {
        for (int64_t at = 0; at < n; at += QN_VALUES_Q8_0) {
            memcpy(keys + 2 * slot, row, 2);
            spread_units(keys + 2 * QN_PAGE_ROWS + slot, row + 2, QN_VALUES_Q8_0, 1);
            keys += QN_BYTES_Q8_0 * QN_PAGE_ROWS;
            row += QN_BYTES_Q8_0;
        }
    }
}

#endif
