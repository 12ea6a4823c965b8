// GGUF, little endian, versions 2 and 3:
//
//   1. "GGUF", u32 version, u64 tensor count, u64 key count
//   2. each key: string name, u32 type, value; a string is a u64 length and its bytes, an array is
//      u32 type, u64 count, values
//   3. each tensor: string name, u32 rank, u64 dims (innermost first), u32 type, u64 offset
//   4. padding to the alignment (key general.alignment, 32 without it)
//   5. the data; offsets count from its beginning and are multiples of the alignment
//
// The header is read once, forward, through a small buffer. No count or length is believed before
// it was compared with the bytes that are left.
#include "formats/source_build.h"

#include "core/mem.h"
#include "core/utf8.h"

enum {
    MAGIC = 0x46554747, // "GGUF"
    BUFFER = 16 << 10,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    MAX_KEY_NAME = 65535,
    MAX_TENSOR_NAME = 255,
    MAX_RANK = 4,
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
};

typedef struct reader {
    const qn_file *file;
    qn_store *store;  // for names, strings and arrays
    int64_t at;       // next byte that the buffer does not hold
    size_t pos, have; // of the buffer
    char buffer[BUFFER];
} reader;

typedef struct header {
    uint32_t version;
    size_t n_tensors, n_keys;
} header;

// --- bytes ---------------------------------------------------------------------------------------

static int64_t position(const reader *r) { return r->at - (int64_t)(r->have - r->pos); }
static uint64_t remaining(const reader *r) { return (uint64_t)(r->file->size - position(r)); }

static qn_status refill(reader *r, qn_err *err) {
    const int64_t left = r->file->size - r->at;
    const size_t n = left < BUFFER ? (size_t)left : BUFFER;
    QN_TRY(qn_file_read(r->file, r->at, r->buffer, n, err));
    r->at += (int64_t)n;
    r->pos = 0;
    r->have = n;
    return QN_OK;
}

static qn_status read_bytes(reader *r, void *to, size_t n, const char *what, qn_err *err) {
    if (n > remaining(r))
        return QN_FAIL(err, FORMAT, "%s: %zu bytes at %lld, the file has %lld" QN_TOO_SHORT, what,
                       n, (long long)position(r), (long long)r->file->size);
    for (size_t done = 0; done < n;) {
        if (r->pos == r->have) QN_TRY(refill(r, err));
        const size_t some = n - done < r->have - r->pos ? n - done : r->have - r->pos;
        memcpy((char *)to + done, r->buffer + r->pos, some);
        r->pos += some;
        done += some;
    }
    return QN_OK;
}

static qn_status read_u32(uint32_t *out, reader *r, const char *what, qn_err *err) {
    unsigned char b[4];
    QN_TRY(read_bytes(r, b, sizeof b, what, err));
    *out = (uint32_t)qn_storage_int(QN_STORED_U32, b);
    return QN_OK;
}

static qn_status read_u64(uint64_t *out, reader *r, const char *what, qn_err *err) {
    unsigned char b[8];
    QN_TRY(read_bytes(r, b, sizeof b, what, err));
    *out = (uint64_t)qn_storage_int(QN_STORED_U64, b);
    return QN_OK;
}

// A NUL-terminated copy of a string whose bytes are all in the file.
static qn_status read_string(qn_str *out, reader *r, const char *what, qn_err *err) {
    uint64_t size;
    QN_TRY(read_u64(&size, r, what, err));
    if (size > remaining(r))
        return QN_FAIL(err, FORMAT,
                       "%s: a string of %llu bytes, %llu are left in the file" QN_TOO_SHORT, what,
                       (unsigned long long)size, (unsigned long long)remaining(r));
    void *text;
    QN_TRY(qn_store_alloc(&text, r->store, (size_t)size + 1, 1, what, err));
    QN_TRY(read_bytes(r, text, (size_t)size, what, err));
    *out = (qn_str){text, (size_t)size};
    return QN_OK;
}

typedef struct name_rule {
    const char *what; // "key"
    size_t i;         // number of the entry
    size_t max;       // bytes
} name_rule;

static qn_status read_name(qn_str *out, reader *r, name_rule rule, qn_err *err) {
    uint64_t size;
    QN_TRY(read_u64(&size, r, rule.what, err));
    if (size == 0 || size > rule.max)
        return QN_FAIL(err, FORMAT, "%s %zu: a name of %llu bytes, want 1 to %zu", rule.what,
                       rule.i, (unsigned long long)size, rule.max);
    if (size > remaining(r))
        return QN_FAIL(
            err, FORMAT, "%s %zu: a name of %llu bytes, %llu are left in the file" QN_TOO_SHORT,
            rule.what, rule.i, (unsigned long long)size, (unsigned long long)remaining(r));
    void *text;
    QN_TRY(qn_store_alloc(&text, r->store, (size_t)size + 1, 1, rule.what, err));
    QN_TRY(read_bytes(r, text, (size_t)size, rule.what, err));
    *out = (qn_str){text, (size_t)size};
    if (memchr(text, 0, out->size))
        return QN_FAIL(err, FORMAT, "%s %zu: name %s: holds a NUL byte", rule.what, rule.i,
                       out->data);
    if (!qn_utf8_valid(text, out->size))
        return QN_FAIL(err, FORMAT, "%s %zu: name %s: not UTF-8", rule.what, rule.i, out->data);
    return QN_OK;
}

// --- keys ----------------------------------------------------------------------------------------

static qn_status check_scalar(qn_storage type, const void *at, const char *name, qn_err *err) {
    const unsigned first = *(const unsigned char *)at;
    if (type == QN_STORED_BOOL && first > 1)
        return QN_FAIL(err, FORMAT, "key %s: a bool of value %u, want 0 or 1", name, first);
    if (type == QN_STORED_U64 && qn_storage_int(type, at) < 0)
        return QN_FAIL(err, UNSUPPORTED, "key %s: %llu, the largest supported is %lld", name,
                       (unsigned long long)qn_storage_int(type, at), (long long)INT64_MAX);
    return QN_OK;
}

static qn_status read_scalar(qn_key *key, reader *r, qn_storage type, qn_err *err) {
    char bytes[8];
    const qn_storage_info *info = qn_storage_get(type);
    QN_TRY(read_bytes(r, bytes, (size_t)info->bytes, key->name.data, err));
    QN_TRY(check_scalar(type, bytes, key->name.data, err));
    if (info->kind == QN_KEY_FLOAT)
        key->as.f = qn_storage_float(type, bytes);
    else if (info->kind == QN_KEY_BOOL)
        key->as.b = bytes[0] != 0;
    else
        key->as.i = qn_storage_int(type, bytes);
    return QN_OK;
}

static qn_status read_strings(qn_key *key, reader *r, qn_err *err) {
    const char *name = key->name.data;
    void *strings;
    QN_TRY(qn_store_alloc(&strings, r->store, key->n, sizeof(qn_str), name, err));
    for (size_t i = 0; i < key->n; i++) QN_TRY(read_string((qn_str *)strings + i, r, name, err));
    key->as.data = strings;
    return QN_OK;
}

static qn_status read_numbers(qn_key *key, reader *r, qn_err *err) {
    const char *name = key->name.data;
    const size_t bytes = (size_t)qn_storage_get(key->storage)->bytes;
    void *numbers;
    QN_TRY(qn_store_alloc(&numbers, r->store, key->n * bytes, 1, name, err));
    QN_TRY(read_bytes(r, numbers, key->n * bytes, name, err));
    for (size_t i = 0; i < key->n; i++)
        QN_TRY(check_scalar(key->storage, (char *)numbers + i * bytes, name, err));
    key->as.data = numbers;
    return QN_OK;
}

static qn_status read_array(qn_key *key, reader *r, qn_err *err) {
    const char *name = key->name.data;
    uint32_t type;
    uint64_t n;
    QN_TRY(read_u32(&type, r, name, err));
    QN_TRY(read_u64(&n, r, name, err));
    if (type >= QN_STORED_COUNT)
        return QN_FAIL(err, FORMAT, "key %s: an array of type %u, the last known is %d", name, type,
                       QN_STORED_COUNT - 1);
    if (type == QN_STORED_ARRAY)
        return QN_FAIL(err, UNSUPPORTED, "key %s: an array of arrays is not supported", name);
    const qn_storage_info *info = qn_storage_get(type);
    if (n > remaining(r) / (uint64_t)info->bytes)
        return QN_FAIL(err, FORMAT,
                       "key %s: %llu elements of type %s, %llu bytes are left" QN_TOO_SHORT, name,
                       (unsigned long long)n, info->name, (unsigned long long)remaining(r));
    key->n = (size_t)n;
    key->storage = (unsigned char)type;
    key->element = (unsigned char)info->kind;
    key->type_name = info->array_name;
    return info->kind == QN_KEY_STRING ? read_strings(key, r, err) : read_numbers(key, r, err);
}

static qn_status read_key(qn_key *key, reader *r, size_t i, qn_err *err) {
    QN_TRY(read_name(&key->name, r, (name_rule){"key", i, MAX_KEY_NAME}, err));
    uint32_t type;
    QN_TRY(read_u32(&type, r, key->name.data, err));
    if (type >= QN_STORED_COUNT)
        return QN_FAIL(err, FORMAT, "key %s: value type %u, the last known is %d", key->name.data,
                       type, QN_STORED_COUNT - 1);
    const qn_storage_info *info = qn_storage_get(type);
    key->kind = (unsigned char)info->kind;
    key->type_name = info->name;
    if (info->kind == QN_KEY_ARRAY) return read_array(key, r, err);
    if (info->kind == QN_KEY_STRING) return read_string(&key->as.s, r, key->name.data, err);
    return read_scalar(key, r, type, err);
}

static qn_status read_keys(qn_gguf_keys *out, reader *r, size_t n, qn_err *err) {
    void *keys;
    QN_TRY(qn_store_alloc(&keys, r->store, n, sizeof(qn_key), "keys", err));
    for (size_t i = 0; i < n; i++) QN_TRY(read_key((qn_key *)keys + i, r, i, err));
    const void **index;
    const qn_entries entries = {keys, n, sizeof(qn_key), "key"};
    QN_TRY(qn_source_index(&index, r->store, entries, err));
    *out = (qn_gguf_keys){.keys = keys, .n = n, .by_name = (const qn_key **)index};
    return QN_OK;
}

static qn_status find_alignment(int64_t *out, const qn_gguf_keys *keys, qn_err *err) {
    const char *name = "general.alignment";
    const qn_key *key = qn_source_index_find((const void *const *)keys->by_name, keys->n, name);
    *out = DEFAULT_ALIGNMENT;
    if (!key) return QN_OK;
    if (key->type_name != qn_storage_get(QN_STORED_U32)->name)
        return QN_FAIL(err, FORMAT, "key %s: type %s, want u32", name, key->type_name);
    if (key->as.i < 1 || key->as.i > MAX_ALIGNMENT || (key->as.i & (key->as.i - 1)) != 0)
        return QN_FAIL(err, FORMAT, "key %s: %lld, want a power of two up to %d", name,
                       (long long)key->as.i, MAX_ALIGNMENT);
    *out = key->as.i;
    return QN_OK;
}

// --- tensors -------------------------------------------------------------------------------------

static qn_status read_dims(qn_tensor *t, reader *r, qn_err *err) {
    const char *name = t->name.data;
    uint32_t rank;
    QN_TRY(read_u32(&rank, r, name, err));
    if (rank < 1 || rank > MAX_RANK)
        return QN_FAIL(err, FORMAT, "tensor %s: %u dims, want 1 to %d", name, rank, MAX_RANK);
    t->n_dims = (int)rank;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        uint64_t dim;
        QN_TRY(read_u64(&dim, r, name, err));
        if (dim < 1 || dim > INT64_MAX)
            return QN_FAIL(err, FORMAT, "tensor %s: dim %d is %llu, want 1 to %lld", name, i,
                           (unsigned long long)dim, (long long)INT64_MAX);
        t->dims[i] = (int64_t)dim;
    }
    return QN_OK;
}

static qn_status read_type(qn_tensor *t, reader *r, qn_err *err) {
    // Numbers that once meant something; no file that can be trusted to mean it still has them.
    static const char *const removed[] = {
        [4] = "Q4_2",      [5] = "Q4_3",        [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",
        [33] = "Q4_0_8_8", [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8"};
    uint32_t id;
    QN_TRY(read_u32(&id, r, t->name.data, err));
    if (qn_type_from_gguf(&t->type, id)) return QN_OK;
    if (id < sizeof removed / sizeof removed[0] && removed[id])
        return QN_FAIL(err, UNSUPPORTED, "tensor %s: type %u (%s) was removed from GGUF",
                       t->name.data, id, removed[id]);
    return QN_FAIL(err, UNSUPPORTED, "tensor %s: unknown type %u", t->name.data, id);
}

static qn_status measure(qn_tensor *t, qn_err *err) {
    const qn_type_info *type = qn_type_get(t->type);
    const int64_t row = t->dims[t->n_dims - 1];
    if (row % type->block != 0)
        return QN_FAIL(err, FORMAT, "tensor %s: rows of %lld values, %s has blocks of %d",
                       t->name.data, (long long)row, type->name, type->block);
    int64_t n = 1;
    bool fits = true;
    for (int i = 0; i < t->n_dims && fits; i++) fits = qn_i64_mul(&n, n, t->dims[i]);
    if (!fits || !qn_type_bytes(&t->bytes, t->type, n))
        return QN_FAIL(err, FORMAT, "tensor %s: (%lld, %lld, %lld, %lld) of %s is too large",
                       t->name.data, (long long)t->dims[0], (long long)t->dims[1],
                       (long long)t->dims[2], (long long)t->dims[3], type->name);
    return QN_OK;
}

static qn_status read_tensor(qn_tensor *t, reader *r, size_t i, int64_t alignment, qn_err *err) {
    QN_TRY(read_name(&t->name, r, (name_rule){"tensor", i, MAX_TENSOR_NAME}, err));
    QN_TRY(read_dims(t, r, err));
    QN_TRY(read_type(t, r, err));
    QN_TRY(measure(t, err));
    uint64_t offset;
    QN_TRY(read_u64(&offset, r, t->name.data, err));
    if (offset > INT64_MAX || (int64_t)offset % alignment != 0)
        return QN_FAIL(err, FORMAT, "tensor %s: offset %llu, want a multiple of %lld", t->name.data,
                       (unsigned long long)offset, (long long)alignment);
    t->offset = (int64_t)offset; // from the beginning of the data until place() moves it
    return QN_OK;
}

// Turns offsets in the data into offsets in the file, and keeps them inside.
static qn_status place(qn_tensor *t, int64_t data, int64_t size, qn_err *err) {
    int64_t begin, end;
    if (!qn_i64_add(&begin, data, t->offset) || !qn_i64_add(&end, begin, t->bytes) || end > size)
        return QN_FAIL(err, FORMAT,
                       "tensor %s: %lld bytes at %lld after the header of %lld bytes, the file has "
                       "%lld" QN_TOO_SHORT,
                       t->name.data, (long long)t->bytes, (long long)t->offset, (long long)data,
                       (long long)size);
    t->offset = begin;
    return QN_OK;
}

static qn_status read_tensors(qn_source *source, reader *r, size_t n, int i_file, int64_t alignment,
                              qn_err *err) {
    qn_tensor *tensors;
    QN_TRY(qn_source_add_tensors(&tensors, source, n, err));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(read_tensor(&tensors[i], r, i, alignment, err));
        tensors[i].i_file = i_file;
    }
    const int64_t end = position(r);
    const int64_t data = (end + alignment - 1) / alignment * alignment; // end is inside the file
    for (size_t i = 0; i < n; i++) QN_TRY(place(&tensors[i], data, r->file->size, err));
    const qn_extent extent = {.begin = data, .end = r->file->size};
    return qn_source_check_layout(source, tensors, n, extent, err);
}

// --- a file --------------------------------------------------------------------------------------

static qn_status check_version(uint32_t version, qn_err *err) {
    if (version == 2 || version == 3) return QN_OK;
    if (version != 0 && (version & 0xffff) == 0)
        return QN_FAIL(err, UNSUPPORTED,
                       "GGUF version bytes 0x%08x are byte-swapped: a big-endian file, only little "
                       "endian is supported",
                       version);
    return QN_FAIL(err, UNSUPPORTED, "GGUF version %u, want 2 or 3", version);
}

static qn_status read_header(header *out, reader *r, qn_err *err) {
    uint32_t magic;
    header h;
    uint64_t n_tensors, n_keys;
    QN_TRY(read_u32(&magic, r, "GGUF magic", err));
    if (magic != MAGIC)
        return QN_FAIL(err, FORMAT, "magic 0x%08x, want GGUF's 0x%08x", magic, MAGIC);
    QN_TRY(read_u32(&h.version, r, "GGUF version", err));
    QN_TRY(check_version(h.version, err));
    QN_TRY(read_u64(&n_tensors, r, "number of tensors", err));
    QN_TRY(read_u64(&n_keys, r, "number of keys", err));
    const uint64_t left = remaining(r);
    if (n_keys > left / MIN_KEY_BYTES)
        return QN_FAIL(err, FORMAT,
                       "%llu keys, the %llu bytes that are left hold at most %llu" QN_TOO_SHORT,
                       (unsigned long long)n_keys, (unsigned long long)left,
                       (unsigned long long)left / MIN_KEY_BYTES);
    const uint64_t rest = left - n_keys * MIN_KEY_BYTES;
    if (n_tensors > rest / MIN_TENSOR_BYTES)
        return QN_FAIL(err, FORMAT,
                       "%llu tensors, the %llu bytes that are left hold at most %llu" QN_TOO_SHORT,
                       (unsigned long long)n_tensors, (unsigned long long)rest,
                       (unsigned long long)rest / MIN_TENSOR_BYTES);
    h.n_tensors = (size_t)n_tensors;
    h.n_keys = (size_t)n_keys;
    *out = h;
    return QN_OK;
}

static qn_status read_part(qn_gguf_keys *keys, qn_source *source, reader *r, int i_file,
                           qn_err *err) {
    header h = {0};
    int64_t alignment = 0;
    QN_TRY(read_header(&h, r, err));
    QN_TRY(read_keys(keys, r, h.n_keys, err));
    QN_TRY(find_alignment(&alignment, keys, err));
    return read_tensors(source, r, h.n_tensors, i_file, alignment, err);
}

qn_status qn_gguf_read_part(qn_gguf_keys *keys, qn_source *source, int i_file, qn_err *err) {
    const qn_file *file = &source->files[i_file];
    reader r; // not initialised as a whole: its 16 KiB need no zeros
    r.file = file;
    r.store = &source->store;
    r.at = 0;
    r.pos = r.have = 0;
    const qn_status status = read_part(keys, source, &r, i_file, err);
    // Errors of the file system name the file already.
    return status == QN_IO ? status : qn_err_prefix(err, status, "%s", file->path);
}
