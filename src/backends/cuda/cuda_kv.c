// Pages of a KV cache on a GPU, seen from the host: see cuda_task.h for how they lie.
#include "backends/cuda/cuda_device.h"

#include "core/mem.h"

#include <string.h>

static int64_t row_bytes(qn_type type, int64_t size) {
    const qn_type_info *info = qn_type_get(type);
    return (size + info->block - 1) / info->block * info->bytes;
}

int64_t qn_cuda_cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size) {
    return heads * QN_PAGE_ROWS * (row_bytes(type, k_size) + row_bytes(type, v_size));
}

// Where a head's keys and values of a row lie in the layer's part of a page.
static int64_t key_at(const qn_cache_view *c, int64_t head, int64_t slot) {
    return (head * QN_PAGE_ROWS + slot) * row_bytes(c->type, c->k_size);
}

static int64_t value_at(const qn_cache_view *c, int64_t head, int64_t slot) {
    return key_at(c, c->heads, 0) + (head * QN_PAGE_ROWS + slot) * row_bytes(c->type, c->v_size);
}

static unsigned char *page_at(const qn_cache_view *c, int32_t page) {
    return c->pages + page * c->page_bytes + c->offset;
}

// A row as others hold it: keys of the heads one after the other, then values. Rows of one head lie
// side by side, so that n of them are one copy.
typedef void move_fn(qn_device *device, void *a, void *b, size_t bytes);

static void from_card(qn_device *device, void *host, void *card, size_t bytes) {
    qn_cuda_read(device, host, card, bytes);
}

static void to_card(qn_device *device, void *host, void *card, size_t bytes) {
    qn_cuda_write(device, card, host, bytes);
}

static void move_rows(unsigned char *rows, qn_device *device, const qn_cache_view *c, int32_t page,
                      int64_t first, int64_t n, move_fn *move) {
    const int64_t k = row_bytes(c->type, c->k_size), v = row_bytes(c->type, c->v_size);
    const int64_t all = c->heads * (k + v);
    unsigned char *base = page_at(c, page);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t h = 0; h < c->heads; h++) {
            move(device, rows + r * all + h * k, base + key_at(c, h, first + r), (size_t)k);
            move(device, rows + r * all + c->heads * k + h * v, base + value_at(c, h, first + r),
                 (size_t)v);
        }
    }
}

void qn_cuda_get_kv(unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t first, int64_t n) {
    move_rows(rows, device, cache, page, first, n, from_card);
}

void qn_cuda_set_kv(const unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t first, int64_t n) {
    move_rows((unsigned char *)(uintptr_t)rows, device, cache, page, first, n, to_card);
}

void qn_cuda_read_kv(float *keys, float *values, qn_device *device, const qn_cache_view *c,
                     int32_t page, int64_t row) {
    enum { PIECE = 4096 * sizeof(float) }; // the largest head (cuda_table.c)
    unsigned char bytes[PIECE];
    const int64_t k = row_bytes(c->type, c->k_size), v = row_bytes(c->type, c->v_size);
    for (int64_t h = 0; h < c->heads && k <= PIECE && v <= PIECE; h++) {
        qn_cuda_read(device, bytes, page_at(c, page) + key_at(c, h, row), (size_t)k);
        qn_kv_unpack(keys + h * c->k_size, c->type, bytes, c->k_size);
        qn_cuda_read(device, bytes, page_at(c, page) + value_at(c, h, row), (size_t)v);
        qn_kv_unpack(values + h * c->v_size, c->type, bytes, c->v_size);
    }
}
