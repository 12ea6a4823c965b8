// The device `ref`: plans run by plain loops on one thread. Programs: ref_program.c.
//
// It follows docs/numbers.md to the letter and gives the same bits as every other device, in
// layouts that are as simple as they can be. It is slow: its worth is that other devices can be
// compared with it. (The float32 interpreter of graphs is another thing: ir/ref.h.)
#include "backends/ref/plain.h"
#include "backends/ref/ref_program.h"

// --- opening -------------------------------------------------------------------------------------

static const char *variant(size_t i) {
    (void)i;
    return NULL;
}

static qn_status open_device(qn_device **out, const char *name, qn_pool *pool, qn_err *err) {
    if (name && *name)
        return QN_FAIL(err, ARGUMENT, "device ref has no variant %s, and no other", name);
    qn_device *device = qn_alloc(1, sizeof *device);
    if (!device) return QN_NOMEM(err, "device ref");
    *device = (qn_device){.kind = &qn_ref_device_kind, .backend = &qn_plain_backend, .pool = pool};
    *out = device;
    return QN_OK;
}

static void close_device(qn_device *device) { qn_free(device); }

// --- memory --------------------------------------------------------------------------------------

static qn_status alloc_bytes(void **out, qn_device *device, size_t bytes, qn_err *err) {
    (void)device;
    void *at = qn_reserve(bytes ? bytes : 1);
    if (!at) return QN_FAIL(err, LIMIT, "device ref: no room for %zu bytes", bytes);
    *out = at;
    return QN_OK;
}

static void free_bytes(qn_device *device, void *at, size_t bytes) {
    (void)device;
    if (at) qn_unreserve(at, bytes ? bytes : 1);
}

static void write_bytes(qn_device *device, void *to, const void *host, size_t bytes) {
    (void)device;
    if (bytes) memcpy(to, host, bytes);
}

static void read_bytes(qn_device *device, void *host, const void *from, size_t bytes) {
    (void)device;
    if (bytes) memcpy(host, from, bytes);
}

static void copy_bytes(qn_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    if (bytes) memmove(to, from, bytes);
}

static bool find_memory(const qn_device *device, int64_t *available) {
    (void)device, (void)available;
    return false;
}

// --- weights -------------------------------------------------------------------------------------

enum { PIECE = 1 << 18 }; // values that are read at a time: whole blocks of every type

static qn_status weight_bytes(int64_t *out, const qn_device *device, const qn_plan_leaf *leaf,
                              qn_err *err) {
    (void)device;
    const qn_type_info *info = qn_type_get(leaf->type);
    const qn_type type = leaf->layout == QN_WORD_typed ? leaf->type : QN_TYPE_F32;
    int64_t n, width;
    QN_TRY(qn_leaf_values(&n, &width, leaf, err));
    if (leaf->layout != QN_WORD_typed && leaf->layout != QN_WORD_rows)
        return QN_FAIL(err, UNSUPPORTED, "weight %s: device ref has no layout %s", leaf->name,
                       qn_word_get(leaf->layout)->name);
    if (leaf->layout == QN_WORD_typed && width % info->block)
        return QN_FAIL(err, FORMAT, "weight %s: rows of %lld values, blocks of %s have %d",
                       leaf->name, (long long)width, info->name, info->block);
    if (!qn_type_bytes(out, type, n))
        return QN_FAIL(err, LIMIT, "weight %s: the bytes of %lld values overflow", leaf->name,
                       (long long)n);
    return QN_OK;
}

static qn_status load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                             const qn_weight_reader *reader, qn_err *err) {
    const bool is_typed = leaf->layout == QN_WORD_typed;
    const qn_type_info *info = qn_type_get(is_typed ? leaf->type : QN_TYPE_F32);
    int64_t n, width, bytes;
    QN_TRY(qn_leaf_values(&n, &width, leaf, err));
    QN_TRY(weight_bytes(&bytes, device, leaf, err));
    for (int64_t first = 0; first < n; first += PIECE) {
        const int64_t some = qn_min(n - first, PIECE);
        unsigned char *at = (unsigned char *)to + first / info->block * info->bytes;
        if (is_typed)
            QN_TRY(reader->read(reader->arg, at, first, some, err));
        else
            QN_TRY(reader->read_f32(reader->arg, (float *)(void *)at, first, some, err));
        if (reader->progress)
            QN_TRY(reader->progress(reader->arg, some / info->block * info->bytes, err));
    }
    return QN_OK;
}

// --- looking -------------------------------------------------------------------------------------

static void read_kv(float *keys, float *values, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t row) {
    (void)device;
    unsigned char *at = cache->pages + page * cache->page_bytes + cache->offset;
    for (int64_t h = 0; h < cache->heads; h++) {
        qn_kv_read(keys + h * cache->k_size, cache, qn_plain_key(cache, at, h, row), cache->k_size);
        qn_kv_read(values + h * cache->v_size, cache, qn_plain_value(cache, at, h, row),
                   cache->v_size);
    }
}

// A row as others hold it: the heads one after the other.
static void move_kv(unsigned char *row, const qn_cache_view *cache, int32_t page, int64_t slot,
                    bool is_set) {
    unsigned char *at = cache->pages + page * cache->page_bytes + cache->offset;
    const size_t k = (size_t)qn_plain_kv_bytes(cache->type, cache->k_size);
    const size_t v = (size_t)qn_plain_kv_bytes(cache->type, cache->v_size);
    for (int64_t h = 0; h < cache->heads; h++, row += k) {
        unsigned char *key = qn_plain_key(cache, at, h, slot);
        memcpy(is_set ? key : row, is_set ? row : key, k);
    }
    for (int64_t h = 0; h < cache->heads; h++, row += v) {
        unsigned char *value = qn_plain_value(cache, at, h, slot);
        memcpy(is_set ? value : row, is_set ? row : value, v);
    }
}

static void get_kv(unsigned char *rows, qn_device *device, const qn_cache_view *cache, int32_t page,
                   int64_t first, int64_t n) {
    (void)device;
    for (int64_t r = 0; r < n; r++)
        move_kv(rows + r * qn_kv_row_bytes(cache), cache, page, first + r, false);
}

static void set_kv(const unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                   int32_t page, int64_t first, int64_t n) {
    (void)device;
    unsigned char *from = (unsigned char *)(uintptr_t)rows;
    for (int64_t r = 0; r < n; r++)
        move_kv(from + r * qn_kv_row_bytes(cache), cache, page, first + r, true);
}

const qn_device_kind qn_ref_device_kind = {
    .name = "ref",
    .about = "plain loops on one thread, bit for bit as cpu: slow, to compare devices with "
             "('logits --ref' "
             "is another thing: float32 throughout, so its numbers differ)",
    .variant = variant,
    .open = open_device,
    .close = close_device,
    .has_host_memory = true,
    .alloc = alloc_bytes,
    .free = free_bytes,
    .write = write_bytes,
    .read = read_bytes,
    .copy = copy_bytes,
    .memory = find_memory,
    .weight_format = "rows 1",
    .weight_bytes = weight_bytes,
    .load_weight = load_weight,
    .prepare = qn_plain_prepare,
    .release = qn_plain_release,
    .measure = qn_plain_measure,
    .begin = qn_plain_begin,
    .give = qn_plain_give,
    .run = qn_plain_run,
    .wait = qn_plain_wait,
    .row = qn_plain_output_row,
    .counts = qn_plain_counts,
    .times = qn_plain_times,
    .run_call = qn_plain_run_call,
    .read_arg = qn_plain_read_arg,
    .read_kv = read_kv,
    .get_kv = get_kv,
    .set_kv = set_kv,
};
