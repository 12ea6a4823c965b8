// Sizes of what the CPU keeps in memory: rows of activations, pages of a cache.
#include "backends/cpu/cpu.h"
#include "ir/step.h"

int64_t qn_cpu_row_bytes(qn_word form, int64_t width) {
    const int64_t blocks = qn_ceil_div(width, QN_BLOCK);
    if (form == QN_WORD_i12_256) return blocks * (int64_t)sizeof(qn_i12_block);
    if (form == QN_WORD_i16_256) return blocks * (int64_t)sizeof(qn_i16_block);
    if (form == QN_WORD_i8_32) return blocks * (int64_t)sizeof(qn_i8_block);
    return qn_round_up(width * (int64_t)sizeof(float), 64);
}

int64_t qn_cpu_cache_row_bytes(qn_type type, int64_t size) {
    const qn_type_info *info = qn_type_get(type);
    return qn_ceil_div(size, info->block) * info->bytes;
}

int64_t qn_cpu_cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size) {
    return heads * QN_PAGE_ROWS *
           (qn_cpu_cache_row_bytes(type, k_size) + qn_cpu_cache_row_bytes(type, v_size));
}
