// Rows of a KV cache as every device hands them out.
#include "backends/backend.h"

#include <string.h>

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

void qn_kv_row_keys(float *to, const unsigned char *row, const qn_cache_view *cache, int64_t head) {
    qn_kv_unpack(to, cache->type, row + head * head_bytes(cache, cache->k_size), cache->k_size);
}

void qn_kv_row_values(float *to, const unsigned char *row, const qn_cache_view *cache,
                      int64_t head) {
    const unsigned char *values = row + cache->heads * head_bytes(cache, cache->k_size);
    qn_kv_unpack(to, cache->type, values + head * head_bytes(cache, cache->v_size), cache->v_size);
}
