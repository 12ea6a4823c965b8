// Types of KV caches, and their rows as every device hands them out.
#include "backends/backend.h"

#include <string.h>

static const qn_kv_type kv_types[QN_KV_TYPES] = {[QN_CACHE_F32] = {"f32", QN_TYPE_F32, false},
                                                 [QN_CACHE_F16] = {"f16", QN_TYPE_F16, false},
                                                 [QN_CACHE_Q8_0] = {"q8_0", QN_TYPE_Q8_0, false},
                                                 [QN_CACHE_Q4_0] = {"q4_0", QN_TYPE_Q4_0, false},
                                                 [QN_CACHE_Q8_0R] = {"q8_0r", QN_TYPE_Q8_0, true},
                                                 [QN_CACHE_Q4_0R] = {"q4_0r", QN_TYPE_Q4_0, true}};

const qn_kv_type *qn_kv_type_get(qn_cache_type type) { return &kv_types[type]; }

// Sums and differences of numbers that are 1, 2, 4, ... apart.
static void rotate_part(float *x, int64_t n) {
    for (int64_t apart = 1; apart < n; apart *= 2) {
        for (int64_t i = 0; i < n; i++) {
            if (i & apart) continue;
            const float a = x[i], b = x[i + apart];
            x[i] = a + b;
            x[i + apart] = a - b;
        }
    }
    const float scale = qn_kv_rotation_scale(n);
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
}

void qn_kv_rotate(float *x, int64_t size) {
    const int64_t n = qn_kv_rotated(size);
    for (int64_t at = 0; at < size; at += n) rotate_part(x + at, n);
}

static int64_t head_bytes(const qn_cache_view *cache, int64_t size) {
    const qn_type_info *info = qn_type_get(cache->type);
    return (size + info->block - 1) / info->block * info->bytes;
}

int64_t qn_kv_row_bytes(const qn_cache_view *cache) {
    return cache->heads * (head_bytes(cache, cache->k_size) + head_bytes(cache, cache->v_size));
}

void qn_kv_unpack(float *to, qn_type type, const unsigned char *from, int64_t n) {
    const qn_type_info *info = qn_type_get(type);
    const int64_t whole = n / info->block * info->block;
    float last[32]; // no type of a cache has larger blocks
    info->unpack(to, from, whole);
    if (whole == n) return;
    info->unpack(last, from + whole / info->block * info->bytes, info->block);
    memcpy(to + whole, last, (size_t)(n - whole) * sizeof *to);
}

void qn_kv_read(float *to, const qn_cache_view *cache, const unsigned char *from, int64_t size) {
    qn_kv_unpack(to, cache->type, from, size);
    if (cache->is_rotated) qn_kv_rotate(to, size);
}

void qn_kv_row_keys(float *to, const unsigned char *row, const qn_cache_view *cache, int64_t head) {
    qn_kv_read(to, cache, row + head * head_bytes(cache, cache->k_size), cache->k_size);
}

void qn_kv_row_values(float *to, const unsigned char *row, const qn_cache_view *cache,
                      int64_t head) {
    const unsigned char *values = row + cache->heads * head_bytes(cache, cache->k_size);
    qn_kv_read(to, cache, values + head * head_bytes(cache, cache->v_size), cache->v_size);
}
