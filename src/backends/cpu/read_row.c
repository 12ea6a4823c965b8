// Packed activations, keys and values as floats again, for looking at them.
#include "backends/cpu/cpu.h"
#include "ir/step.h"
#include "quant/type.h"

#include <string.h>

// Of an i12 or i16 block.
static void read_words(float *to, const int16_t *q, float scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)q[qn_i12_index((int)i)] * scale;
}

static void read_i8(float *to, const qn_i8_block *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)from->q[i] * from->scales[i / 32];
}

void qn_cpu_read_row(float *to, const void *row, qn_word form, int64_t parts, int64_t width) {
    if (form == QN_WORD_f32) {
        memcpy(to, row, (size_t)(parts * width) * sizeof *to);
        return;
    }
    for (int64_t p = 0; p < parts; p++) {
        const unsigned char *part = (const unsigned char *)row + p * qn_cpu_row_bytes(form, width);
        for (int64_t at = 0; at < width; at += QN_BLOCK) {
            const int64_t n = width - at < QN_BLOCK ? width - at : QN_BLOCK, b = at / QN_BLOCK;
            const qn_i12_block *i12 = (const qn_i12_block *)(const void *)part + b;
            const qn_i16_block *i16 = (const qn_i16_block *)(const void *)part + b;
            if (form == QN_WORD_i12_256)
                read_words(to + p * width + at, i12->q, i12->scale, n);
            else if (form == QN_WORD_i16_256)
                read_words(to + p * width + at, i16->q, i16->scale, n);
            else
                read_i8(to + p * width + at, (const qn_i8_block *)(const void *)part + b, n);
        }
    }
}

enum { MAX_BLOCK = 34 }; // bytes of the largest block of a cache: Q8_0

// Whole blocks of one row; a partial last block is cut.
static void unpack(float *to, qn_type type, const unsigned char *block, int64_t at, int64_t size) {
    const qn_type_info *info = qn_type_get(type);
    float values[32];
    info->unpack(values, block, info->block);
    const int64_t n = size - at < info->block ? size - at : info->block;
    memcpy(to + at, values, (size_t)n * sizeof *to);
}

// A key lies unit by unit, 16 apart (see qn_cache_view): where its blocks begin, and how a block is
// put together and taken apart.
typedef struct key_place {
    const qn_type_info *info;
    int64_t base, row; // bytes before its group of keys; number in the group
    int64_t first;     // bytes of the first unit
} key_place;

static key_place find_key(qn_type type, int64_t size, int64_t row) {
    const qn_type_info *info = qn_type_get(type);
    return (key_place){.info = info,
                       .base =
                           row / QN_KEY_GROUP * QN_KEY_GROUP * qn_cpu_cache_row_bytes(type, size),
                       .row = row % QN_KEY_GROUP,
                       .first = info->block > 1 ? 2 : info->bytes};
}

static void get_block(unsigned char *block, const unsigned char *keys, const key_place *p,
                      int64_t b) {
    const unsigned char *from = keys + p->base + b * p->info->bytes * QN_KEY_GROUP;
    memcpy(block, from + p->row * p->first, (size_t)p->first);
    for (int64_t i = p->first; i < p->info->bytes; i++) block[i] = from[i * QN_KEY_GROUP + p->row];
}

static void set_block(unsigned char *keys, const unsigned char *block, const key_place *p,
                      int64_t b) {
    unsigned char *to = keys + p->base + b * p->info->bytes * QN_KEY_GROUP;
    memcpy(to + p->row * p->first, block, (size_t)p->first);
    for (int64_t i = p->first; i < p->info->bytes; i++) to[i * QN_KEY_GROUP + p->row] = block[i];
}

static void read_key(float *to, qn_type type, const unsigned char *keys, int64_t size,
                     int64_t row) {
    const key_place p = find_key(type, size, row);
    for (int64_t at = 0; at < size; at += p.info->block) {
        unsigned char block[MAX_BLOCK];
        get_block(block, keys, &p, at / p.info->block);
        unpack(to, type, block, at, size);
    }
}

void qn_cpu_read_kv(float *keys, float *values, const qn_cache_view *c, int32_t page, int64_t row) {
    const qn_type_info *info = qn_type_get(c->type);
    const int64_t k_bytes = qn_cpu_cache_row_bytes(c->type, c->k_size) * QN_PAGE_ROWS;
    const int64_t v_bytes = qn_cpu_cache_row_bytes(c->type, c->v_size);
    const unsigned char *base = c->pages + page * c->page_bytes + c->offset;
    for (int64_t h = 0; h < c->heads; h++) {
        read_key(keys + h * c->k_size, c->type, base + h * k_bytes, c->k_size, row);
        const unsigned char *value = base + c->heads * k_bytes + (h * QN_PAGE_ROWS + row) * v_bytes;
        for (int64_t at = 0; at < c->v_size; at += info->block)
            unpack(values + h * c->v_size, c->type, value + at / info->block * info->bytes, at,
                   c->v_size);
        if (!c->is_rotated) continue;
        qn_kv_rotate(keys + h * c->k_size, c->k_size);
        qn_kv_rotate(values + h * c->v_size, c->v_size);
    }
}

// Keys and values of one row, to or from `row`, which begins with the keys.
static void move_kv(unsigned char *bytes, const qn_cache_view *c, int32_t page, int64_t row,
                    bool is_set) {
    const int64_t k_bytes = qn_cpu_cache_row_bytes(c->type, c->k_size);
    const int64_t v_bytes = qn_cpu_cache_row_bytes(c->type, c->v_size);
    const key_place p = find_key(c->type, c->k_size, row);
    unsigned char *base = c->pages + page * c->page_bytes + c->offset;
    for (int64_t h = 0; h < c->heads; h++) {
        unsigned char *keys = base + h * k_bytes * QN_PAGE_ROWS;
        unsigned char *value =
            base + c->heads * k_bytes * QN_PAGE_ROWS + (h * QN_PAGE_ROWS + row) * v_bytes;
        unsigned char *k = bytes + h * k_bytes, *v = bytes + c->heads * k_bytes + h * v_bytes;
        for (int64_t b = 0; b < k_bytes / p.info->bytes; b++) {
            if (is_set)
                set_block(keys, k + b * p.info->bytes, &p, b);
            else
                get_block(k + b * p.info->bytes, keys, &p, b);
        }
        memcpy(is_set ? value : v, is_set ? v : value, (size_t)v_bytes);
    }
}

void qn_cpu_move_kv(unsigned char *rows, const qn_cache_view *cache, int32_t page, int64_t first,
                    int64_t n, bool is_set) {
    const int64_t bytes = qn_kv_row_bytes(cache);
    for (int64_t r = 0; r < n; r++) move_kv(rows + r * bytes, cache, page, first + r, is_set);
}
