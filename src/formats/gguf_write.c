#include "formats/gguf_write.h"

#include "core/arena.h"
#include "core/buf.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/newfile.h"
#include "formats/source_build.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 32 };

struct qn_gguf_writer {
    qn_status status; // of the declarations
    qn_err err;
    qn_arena arena; // names
    qn_buf keys, infos;
    qn_map key_names, tensor_names;
    uint64_t n_keys, n_tensors;
    int64_t *sizes; // (n_tensors) bytes of each
    size_t cap_sizes;
    int64_t data_bytes; // of all tensors, padded
    qn_newfile *file;
    int64_t data_start, file_bytes;
    size_t i_tensor; // being written
    int64_t left;    // bytes of it still to come
};

qn_status qn_gguf_writer_create(qn_gguf_writer **out, qn_err *err) {
    qn_gguf_writer *w = qn_alloc(1, sizeof *w);
    if (!w) return QN_NOMEM(err, "GGUF writer");
    *out = w;
    return QN_OK;
}

void qn_gguf_writer_destroy(qn_gguf_writer *w) {
    if (!w) return;
    qn_newfile_destroy(w->file);
    qn_buf_deinit(&w->keys);
    qn_buf_deinit(&w->infos);
    qn_map_deinit(&w->key_names);
    qn_map_deinit(&w->tensor_names);
    qn_arena_deinit(&w->arena);
    qn_free(w->sizes);
    qn_free(w);
}

// Little endian, as the file wants it.
static void add_number(qn_buf *to, uint64_t value, int bytes) {
    unsigned char raw[8];
    for (int i = 0; i < bytes; i++) raw[i] = (unsigned char)(value >> 8 * i);
    qn_buf_add(to, raw, (size_t)bytes);
}

static void add_string(qn_buf *to, const char *text, size_t n) {
    add_number(to, n, 8);
    qn_buf_add(to, text, n);
}

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Remembers a name; false (and an error) if it was there already or memory is short.
static bool new_name(qn_gguf_writer *w, qn_map *names, const char *name, const char *what) {
    const uint32_t number = (uint32_t)names->n;
    uint32_t old;
    char *copy = qn_arena_strdup(&w->arena, name, strlen(name));
    if (!copy || !qn_map_add(names, copy, strlen(copy), number, &old))
        w->status = QN_NOMEM(&w->err, "GGUF header");
    else if (old != number)
        w->status = QN_FAIL(&w->err, ARGUMENT, "%s %s is written twice", what, name);
    return w->status == QN_OK;
}

// Begins a key; false after an earlier failure.
static bool begin_key(qn_gguf_writer *w, const char *name, qn_storage storage) {
    if (w->status || !new_name(w, &w->key_names, name, "key")) return false;
    add_string(&w->keys, name, strlen(name));
    add_number(&w->keys, storage, 4);
    w->n_keys++;
    return true;
}

static bool begin_array(qn_gguf_writer *w, const char *name, qn_storage element, size_t n) {
    if (!begin_key(w, name, QN_STORED_ARRAY)) return false;
    add_number(&w->keys, element, 4);
    add_number(&w->keys, n, 8);
    return true;
}

void qn_gguf_put_u32(qn_gguf_writer *w, const char *name, uint32_t value) {
    if (begin_key(w, name, QN_STORED_U32)) add_number(&w->keys, value, 4);
}

void qn_gguf_put_i32(qn_gguf_writer *w, const char *name, int32_t value) {
    if (begin_key(w, name, QN_STORED_I32)) add_number(&w->keys, (uint32_t)value, 4);
}

void qn_gguf_put_f32(qn_gguf_writer *w, const char *name, float value) {
    if (begin_key(w, name, QN_STORED_F32)) add_number(&w->keys, float_bits(value), 4);
}

void qn_gguf_put_bool(qn_gguf_writer *w, const char *name, bool value) {
    if (begin_key(w, name, QN_STORED_BOOL)) add_number(&w->keys, value, 1);
}

void qn_gguf_put_string(qn_gguf_writer *w, const char *name, const char *value) {
    if (begin_key(w, name, QN_STORED_STRING)) add_string(&w->keys, value, strlen(value));
}

void qn_gguf_put_i32s(qn_gguf_writer *w, const char *name, const int32_t *values, size_t n) {
    if (!begin_array(w, name, QN_STORED_I32, n)) return;
    for (size_t i = 0; i < n; i++) add_number(&w->keys, (uint32_t)values[i], 4);
}

void qn_gguf_put_f32s(qn_gguf_writer *w, const char *name, const float *values, size_t n) {
    if (!begin_array(w, name, QN_STORED_F32, n)) return;
    for (size_t i = 0; i < n; i++) add_number(&w->keys, float_bits(values[i]), 4);
}

void qn_gguf_put_bools(qn_gguf_writer *w, const char *name, const bool *values, size_t n) {
    if (!begin_array(w, name, QN_STORED_BOOL, n)) return;
    for (size_t i = 0; i < n; i++) add_number(&w->keys, values[i], 1);
}

void qn_gguf_put_strings(qn_gguf_writer *w, const char *name, const qn_str *values, size_t n) {
    if (!begin_array(w, name, QN_STORED_STRING, n)) return;
    for (size_t i = 0; i < n; i++) add_string(&w->keys, values[i].data, values[i].size);
}

// The storage of a scalar key, by the name of its type in the file.
static qn_storage scalar_storage(const qn_key *key) {
    for (int i = 0; i < QN_STORED_COUNT; i++) {
        if (strcmp(qn_storage_get((qn_storage)i)->name, key->type_name) == 0) return (qn_storage)i;
    }
    static const qn_storage by_kind[] = {QN_STORED_I64, QN_STORED_F64, QN_STORED_BOOL,
                                         QN_STORED_STRING};
    return by_kind[key->kind]; // a key of another format
}

static void put_scalar(qn_gguf_writer *w, const qn_key *key) {
    const qn_storage storage = scalar_storage(key);
    if (!begin_key(w, key->name.data, storage)) return;
    const int bytes = qn_storage_get(storage)->bytes;
    uint64_t bits = 0;
    if (key->kind == QN_KEY_STRING) {
        add_string(&w->keys, key->as.s.data, key->as.s.size);
        return;
    }
    if (key->kind == QN_KEY_INT)
        bits = (uint64_t)key->as.i;
    else if (key->kind == QN_KEY_BOOL)
        bits = key->as.b;
    else if (storage == QN_STORED_F32)
        bits = float_bits((float)key->as.f);
    else
        memcpy(&bits, &key->as.f, sizeof bits);
    add_number(&w->keys, bits, bytes);
}

void qn_gguf_put_key(qn_gguf_writer *w, const qn_key *key) {
    if (key->kind != QN_KEY_ARRAY) {
        put_scalar(w, key);
        return;
    }
    if (key->element == QN_KEY_STRING) {
        qn_gguf_put_strings(w, key->name.data, key->as.data, key->n);
        return;
    }
    const qn_storage storage = (qn_storage)key->storage; // elements lie as in a file
    if (begin_array(w, key->name.data, storage, key->n))
        qn_buf_add(&w->keys, key->as.data, key->n * (size_t)qn_storage_get(storage)->bytes);
}

static bool padded(int64_t *out, int64_t n) {
    if (!qn_i64_add(&n, n, ALIGNMENT - 1)) return false;
    *out = n / ALIGNMENT * ALIGNMENT;
    return true;
}

void qn_gguf_add_tensor(qn_gguf_writer *w, const qn_gguf_tensor *t) {
    if (w->status || !new_name(w, &w->tensor_names, t->name, "tensor")) return;
    int64_t n = 1, bytes = 0, end;
    bool fits = t->n_dims >= 1 && t->n_dims <= 4;
    for (int i = 0; fits && i < t->n_dims; i++) fits = qn_i64_mul(&n, n, t->dims[i]);
    const qn_type_info *type = qn_type_get(t->type);
    if (!fits || type->gguf_id < 0 || t->dims[t->n_dims - 1] % type->block ||
        !qn_type_bytes(&bytes, t->type, n) || !padded(&end, bytes) ||
        !qn_i64_add(&end, end, w->data_bytes)) {
        w->status = QN_FAIL(&w->err, ARGUMENT, "tensor %s: %d dims, rows of %lld as %s", t->name,
                            t->n_dims, (long long)t->dims[t->n_dims - 1], type->name);
        return;
    }
    void *sizes = w->sizes;
    if (!qn_grow(&sizes, &w->cap_sizes, w->n_tensors + 1, sizeof *w->sizes)) {
        w->status = QN_NOMEM(&w->err, "GGUF header");
        return;
    }
    w->sizes = sizes;
    w->sizes[w->n_tensors++] = bytes;
    add_string(&w->infos, t->name, strlen(t->name));
    add_number(&w->infos, (uint64_t)t->n_dims, 4);
    for (int i = t->n_dims - 1; i >= 0; i--) add_number(&w->infos, (uint64_t)t->dims[i], 8);
    add_number(&w->infos, (uint64_t)type->gguf_id, 4);
    add_number(&w->infos, (uint64_t)w->data_bytes, 8);
    w->data_bytes = end;
}

static qn_status write_padding(qn_gguf_writer *w, qn_err *err) {
    static const char zeros[ALIGNMENT] = {0};
    int64_t end;
    const int64_t at = qn_newfile_size(w->file);
    return padded(&end, at) ? qn_newfile_write(w->file, zeros, (size_t)(end - at), err)
                            : QN_FAIL(err, LIMIT, "GGUF file of %lld bytes", (long long)at);
}

qn_status qn_gguf_check_place(const char *path, qn_err *err) {
    static const qn_newfile_kind gguf = {.name = "a GGUF file", .marks = {"GGUF"}};
    return qn_newfile_check(path, &gguf, err);
}

// All that comes before the tensors' data.
static qn_status make_header(qn_buf *to, const qn_gguf_writer *w, qn_err *err) {
    static const char zeros[ALIGNMENT] = {0};
    int64_t end;
    if (w->status) {
        if (err) *err = w->err;
        return w->status;
    }
    qn_buf_add(to, "GGUF", 4);
    add_number(to, 3, 4);
    add_number(to, w->n_tensors, 8);
    add_number(to, w->n_keys, 8);
    qn_buf_add(to, w->keys.data, w->keys.size);
    qn_buf_add(to, w->infos.data, w->infos.size);
    if (to->failed || w->keys.failed || w->infos.failed) return QN_NOMEM(err, "GGUF header");
    if (!padded(&end, (int64_t)to->size))
        return QN_FAIL(err, LIMIT, "GGUF header of %zu bytes", to->size);
    qn_buf_add(to, zeros, (size_t)end - to->size);
    return to->failed ? QN_NOMEM(err, "GGUF header") : QN_OK;
}

qn_status qn_gguf_get_header(qn_buf *out, int64_t *file_bytes, const qn_gguf_writer *w,
                             qn_err *err) {
    QN_TRY(make_header(out, w, err));
    if (!qn_i64_add(file_bytes, (int64_t)out->size, w->data_bytes))
        return QN_FAIL(err, LIMIT, "GGUF file of more than 2^63 bytes");
    return QN_OK;
}

qn_status qn_gguf_begin(qn_gguf_writer *w, const char *path, qn_err *err) {
    qn_buf head = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, make_header(&head, w, err));
    QN_TRY_TO(done, qn_gguf_check_place(path, err));
    QN_TRY_TO(done, qn_newfile_create(&w->file, path, 0, err));
    QN_TRY_TO(done, qn_newfile_write(w->file, head.data, head.size, err));
    w->data_start = qn_newfile_size(w->file);
    w->file_bytes = w->data_start + w->data_bytes;
    w->left = w->n_tensors ? w->sizes[0] : 0;

done:
    qn_buf_deinit(&head);
    return status;
}

qn_status qn_gguf_write(qn_gguf_writer *w, const void *bytes, size_t n, qn_err *err) {
    const char *from = bytes;
    assert(w->file);
    while (n > 0) {
        if (w->i_tensor >= w->n_tensors)
            return QN_FAIL(err, ARGUMENT, "%zu bytes more than the %llu tensors hold", n,
                           (unsigned long long)w->n_tensors);
        const size_t part = n < (uint64_t)w->left ? n : (size_t)w->left;
        QN_TRY(qn_newfile_write(w->file, from, part, err));
        from += part;
        n -= part;
        w->left -= (int64_t)part;
        if (w->left > 0) continue;
        QN_TRY(write_padding(w, err));
        if (++w->i_tensor < w->n_tensors) w->left = w->sizes[w->i_tensor];
    }
    return QN_OK;
}

qn_status qn_gguf_prepare(qn_gguf_writer *w, qn_err *err) {
    if (w->i_tensor < w->n_tensors)
        return QN_FAIL(err, STATE, "tensor %zu of %llu is not complete", w->i_tensor,
                       (unsigned long long)w->n_tensors);
    return qn_newfile_prepare(w->file, err);
}

qn_status qn_gguf_place(qn_gguf_writer *w, qn_err *err) { return qn_newfile_place(w->file, err); }

qn_status qn_gguf_finish(qn_gguf_writer *w, qn_err *err) {
    QN_TRY(qn_gguf_prepare(w, err));
    return qn_gguf_place(w, err);
}

int64_t qn_gguf_file_bytes(const qn_gguf_writer *w) { return w->file_bytes; }
