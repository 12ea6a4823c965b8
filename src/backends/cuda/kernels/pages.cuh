// Pages of a KV cache: where keys and values lie, and how they are stored and read.
#pragma once

#include "common.cuh"

#include <cuda_fp16.h>

// Bytes of a key or value: F32, F16 or Q8_0.
static __host__ __device__ inline int64_t kv_bytes(int type, int64_t size) {
    return type == QN_TYPE_F32 ? 4 * size : type == QN_TYPE_F16 ? 2 * size : (size + 31) / 32 * 34;
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
    return key_at(c, page, c.heads, 0) + (head * QN_PAGE_ROWS + slot) * kv_bytes(c.type, c.v_size);
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

// The same bits as qn_half_encode.
static __device__ inline uint16_t half_of(float x) {
    const uint32_t bits = qn_float_to_bits(x);
    const uint32_t nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x1ff);
    return x == x ? __half_as_ushort(__float2half_rn(x)) : (uint16_t)nan;
}

// A warp stores 32 values as Q8_0 has them, one of each lane; see quant/q8_0.c.
static __device__ inline void store_q8_0(unsigned char *to, float x) {
    const float finite = x == x ? fminf(fmaxf(x, -0x1p30f), 0x1p30f) : 0.0f;
    float d = warp_max(fabsf(finite)) / 127;
    uint16_t half = qn_half_encode(d < 65504 ? d : 65504);
    if (half < 0x400 || half == 0x7bff) { // f16 holds it badly
        if (half < 0x400 && qn_half_decode(half) < d) half++;
        d = qn_half_decode(half);
    }
    const float inverse = d > 0 ? 1 / d : 0;
    const float scaled = fminf(fmaxf(finite * inverse, -127.0f), 127.0f);
    const float even = rintf(scaled), left = scaled - even;
    const float away = left == 0.5f && scaled > 0    ? 1.0f
                       : left == -0.5f && scaled < 0 ? -1.0f
                                                     : 0.0f;
    if (threadIdx.x == 0) qn_store_u16(to, half);
    to[2 + threadIdx.x] = (unsigned char)(int)(even + away);
}

// A warp (threadIdx.x) stores n numbers; number(i) is number i.
template <typename Number>
static __device__ inline void store_kv(unsigned char *to, int type, int64_t n, Number number) {
    if (type == QN_TYPE_Q8_0) {
        for (int64_t at = 0; at < n; at += WARP, to += 34)
            store_q8_0(to, at + threadIdx.x < n ? number(at + threadIdx.x) : 0.0f);
        return;
    }
    for (int64_t i = threadIdx.x; i < n; i += WARP) {
        if (type == QN_TYPE_F16)
            ((uint16_t *)to)[i] = half_of(number(i));
        else
            ((float *)to)[i] = number(i);
    }
}

// --- eight numbers at a time ---------------------------------------------------------------------

// Eight numbers of a key or value that lie side by side, from number 8 i of a row on. Where the
// pieces of 16 bytes of a row are in another order, piece i is at place i ^ turn.
template <int TYPE> struct Eight;

template <> struct Eight<QN_TYPE_F32> {
    float4 a, b;
    __device__ void load(const unsigned char *row, int i, int turn = 0) {
        a = ((const float4 *)row)[(2 * i) ^ turn];
        b = ((const float4 *)row)[(2 * i + 1) ^ turn];
    }
    __device__ void unpack(float to[8]) const {
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
        to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
};

static __device__ inline float2 halves_of(unsigned pair) {
    return make_float2(__half2float(__ushort_as_half((unsigned short)pair)),
                       __half2float(__ushort_as_half((unsigned short)(pair >> 16))));
}

template <> struct Eight<QN_TYPE_F16> {
    uint4 x;
    __device__ void load(const unsigned char *row, int i, int turn = 0) {
        x = ((const uint4 *)row)[i ^ turn];
    }
    __device__ void unpack(float to[8]) const {
        const float2 a = halves_of(x.x), b = halves_of(x.y), c = halves_of(x.z), d = halves_of(x.w);
        to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
        to[4] = c.x, to[5] = c.y, to[6] = d.x, to[7] = d.y;
    }
};

template <> struct Eight<QN_TYPE_Q8_0> {
    uint16_t q[4], scale;
    __device__ void load(const unsigned char *row, int i, int = 0) {
        const uint16_t *block = (const uint16_t *)(row + i / 4 * 34);
        scale = block[0];
        for (int k = 0; k < 4; k++) q[k] = block[1 + i % 4 * 4 + k];
    }
    __device__ void unpack(float to[8]) const {
        const float d = __half2float(__ushort_as_half(scale));
        for (int k = 0; k < 4; k++) {
            to[2 * k] = d * (float)(int8_t)q[k];
            to[2 * k + 1] = d * (float)(int8_t)(q[k] >> 8);
        }
    }
};

// Two numbers side by side, from number 2 i on.
template <int TYPE> static __device__ inline float2 two_of(const unsigned char *row, int i) {
    if constexpr (TYPE == QN_TYPE_F32) return ((const float2 *)row)[i];
    if constexpr (TYPE == QN_TYPE_F16) return halves_of(((const unsigned *)row)[i]);
    const uint16_t *block = (const uint16_t *)(row + i / 16 * 34);
    const float d = __half2float(__ushort_as_half(block[0]));
    const uint16_t q = block[1 + i % 16];
    return make_float2(d * (float)(int8_t)q, d * (float)(int8_t)(q >> 8));
}
