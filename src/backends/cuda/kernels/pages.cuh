// Pages of a KV cache: where keys and values lie, and how they are stored and read.
#pragma once

#include "common.cuh"

static __host__ __device__ inline int64_t kv_bytes(int type, int64_t size) {
    const TypeSize t = type_size(type);
    return ceil_div(size, (int64_t)t.block) * t.bytes;
}

// The page with positions 64 * block ... of a segment, where this layer's part begins; NULL: none.
static __device__ inline unsigned char *find_page(const Task &t, int64_t seg, int64_t block) {
    const qn_step *s = t.step;
    const int64_t groups = s->n_groups > 0 ? s->n_groups : 1;
    const int32_t page = s->seg_pages[(seg * groups + t.cache.group) * s->pages_per_seg + block];
    return page < 0 ? nullptr : t.cache.pages + page * t.cache.page_bytes + t.cache.offset;
}

static __device__ inline unsigned char *key_at(const qn_cache_view &c, unsigned char *page,
                                               int64_t head, int64_t slot) {
    return page + (head * QN_PAGE_ROWS + slot) * kv_bytes(c.type, c.k_size);
}

static __device__ inline unsigned char *value_at(const qn_cache_view &c, unsigned char *page,
                                                 int64_t head, int64_t slot) {
    return key_at(c, page, c.heads, 0) +
           (head * QN_PAGE_ROWS + slot) * kv_bytes(c.type, c.v_size);
}

static __device__ inline int64_t position_of(const qn_step *s, int64_t r) {
    const int32_t seg = s->row_seg[r];
    return s->seg_past[seg] + (r - s->seg_row[seg]);
}

// Number i of a key or value.
static __device__ inline float kv_at(const unsigned char *row, int type, int64_t i) {
    if (type == QN_TYPE_F32) return ((const float *)row)[i];
    if (type == QN_TYPE_F16) return qn_half_decode(((const uint16_t *)row)[i]);
    const unsigned char *b = row + i / 32 * 34;
    return qn_load_half(b) * (float)(int8_t)b[2 + i % 32];
}

// 32 values as Q8_0 has them; see quant/q8_0.c.
static __device__ inline void store_q8_0(unsigned char *to, const float *from, int n) {
    const auto finite = [&](int i) {
        const float x = i < n ? from[i] : 0.0f;
        return x == x ? fminf(fmaxf(x, -0x1p30f), 0x1p30f) : 0.0f;
    };
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(finite(i)));
    float d = largest / 127;
    uint16_t half = qn_half_encode(d < 65504 ? d : 65504);
    if (half < 0x400 || half == 0x7bff) { // f16 holds it badly
        if (half < 0x400 && qn_half_decode(half) < d) half++;
        d = qn_half_decode(half);
    }
    const float inverse = d > 0 ? 1 / d : 0;
    qn_store_u16(to, half);
    for (int i = 0; i < 32; i++) {
        const float x = fminf(fmaxf(finite(i) * inverse, -127.0f), 127.0f);
        const float even = rintf(x), left = x - even;
        const float away = left == 0.5f && x > 0 ? 1.0f : left == -0.5f && x < 0 ? -1.0f : 0.0f;
        to[2 + i] = (unsigned char)(int)(even + away);
    }
}

// The threads of a block store n numbers.
static __device__ inline void store_kv(unsigned char *to, int type, const float *from, int64_t n) {
    if (type == QN_TYPE_Q8_0) {
        for (int64_t b = threadIdx.x; b * 32 < n; b += blockDim.x)
            store_q8_0(to + 34 * b, from + 32 * b, n - 32 * b < 32 ? (int)(n - 32 * b) : 32);
        return;
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        if (type == QN_TYPE_F16)
            ((uint16_t *)to)[i] = qn_half_encode(from[i]);
        else
            ((float *)to)[i] = from[i];
    }
}
