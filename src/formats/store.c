#include "formats/store.h"

#include "core/mem.h"

// Requests above a quarter of a block get a block of their own, so at most a quarter of any block
// is lost.
enum { BLOCK = 16 << 10, OWN_BLOCK = BLOCK / 4, FREE_BYTES = 1 << 20, FACTOR = 4 };

struct qn_store_block {
    qn_store_block *before;
    _Alignas(16) char data[];
};

void qn_store_allow(qn_store *store, int64_t file_bytes) {
    size_t max = store->max ? store->max : FREE_BYTES, more;
    const bool fits =
        qn_size_mul(&more, (size_t)file_bytes, FACTOR) && qn_size_add(&max, max, more);
    store->max = fits ? max : SIZE_MAX;
}

qn_status qn_store_charge(qn_store *store, size_t n, size_t size, const char *what, qn_err *err) {
    size_t bytes;
    if (!qn_size_mul(&bytes, n, size) || bytes > store->max - store->used)
        return QN_FAIL(err, LIMIT,
                       "%s: %zu entries of %zu bytes on top of %zu bytes, the limit is %zu bytes "
                       "for files of this size",
                       what, n, size, store->used, store->max);
    store->used += bytes;
    return QN_OK;
}

void qn_store_discharge(qn_store *store, size_t bytes) { store->used -= bytes; }

static qn_status add_block(qn_store_block **out, qn_store *store, size_t bytes, const char *what,
                           qn_err *err) {
    size_t whole;
    if (!qn_size_add(&whole, bytes, sizeof(qn_store_block))) return QN_NOMEM(err, what);
    QN_TRY(qn_store_charge(store, whole, 1, what, err));
    qn_store_block *block = qn_alloc(whole, 1);
    if (!block) {
        qn_store_discharge(store, whole);
        return QN_NOMEM(err, what);
    }
    block->before = store->blocks;
    store->blocks = block;
    *out = block;
    return QN_OK;
}

qn_status qn_store_alloc(void **out, qn_store *store, size_t n, size_t size, const char *what,
                         qn_err *err) {
    size_t bytes;
    if (!qn_size_mul(&bytes, n, size))
        return QN_FAIL(err, LIMIT, "%s: %zu entries of %zu bytes", what, n, size);
    qn_store_block *block;
    if (bytes > OWN_BLOCK) {
        QN_TRY(add_block(&block, store, bytes, what, err));
        *out = block->data;
        return QN_OK;
    }
    const size_t skip = size == 1 ? 0 : store->left % 8; // blocks end at a multiple of 8
    if (!store->at || store->left < skip || store->left - skip < bytes) {
        QN_TRY(add_block(&block, store, BLOCK, what, err));
        store->at = block->data;
        store->left = BLOCK;
    } else {
        store->at += skip;
        store->left -= skip;
    }
    *out = store->at;
    store->at += bytes;
    store->left -= bytes;
    return QN_OK;
}

void qn_store_deinit(qn_store *store) {
    for (qn_store_block *block = store->blocks; block;) {
        qn_store_block *before = block->before;
        qn_free(block);
        block = before;
    }
    *store = (qn_store){0};
}
