// safetensors, one file:
//
//   1. u64 n, little endian: bytes of the header
//   2. n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...},
//      and perhaps "__metadata__": {"text": "text", ...}; spaces may follow
//   3. the data; offsets count from its beginning, tensors cover it without holes
#include "core/json_reader.h"
#include "formats/source_build.h"

#include "core/mem.h"

enum { LENGTH_BYTES = 8, MAX_HEADER = 100 << 20, DEPTH_OF_FIELDS = 2 };

// --- one tensor ----------------------------------------------------------------------------------

// Up to `max` whole numbers, none below 0.
static qn_status read_numbers(int64_t *to, int *n, int max, qn_json_reader *r, const char *what,
                              qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, r, err));
    if (value.kind != QN_JSON_ARRAY)
        return QN_FAIL(err, FORMAT, "%s is not an array of whole numbers", what);
    int count = 0;
    for (bool more, first = true;; first = false) {
        QN_TRY(qn_json_element(&more, r, first, err));
        if (!more) break;
        QN_TRY(qn_json_read(&value, r, err));
        if (value.kind != QN_JSON_INT || value.i < 0)
            return QN_FAIL(err, FORMAT, "%s: number %d is not a whole number from 0 to 2^63 - 1",
                           what, count);
        if (count == max)
            return QN_FAIL(err, UNSUPPORTED, "%s has more than %d numbers", what, max);
        to[count++] = value.i;
    }
    *n = count;
    return QN_OK;
}

static qn_status read_dtype(qn_tensor *t, qn_json_reader *r, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, r, err));
    if (value.kind != QN_JSON_STRING) return QN_FAIL(err, FORMAT, "dtype is not a string");
    char name[16] = "";
    const size_t size = value.text.size;
    if (size < sizeof name) qn_json_decode(name, value.text);
    if (qn_type_from_safetensors(&t->type, name)) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "unknown dtype %.*s",
                   value.text.raw.size < 64 ? (int)value.text.raw.size : 64, value.text.raw.data);
}

static qn_status read_shape(qn_tensor *t, qn_json_reader *r, qn_err *err) {
    QN_TRY(read_numbers(t->dims, &t->n_dims, QN_MAX_DIMS, r, "shape", err));
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0) return QN_FAIL(err, FORMAT, "dim %d is 0, want at least 1", i);
    }
    if (t->n_dims == 0) { // one value
        t->n_dims = 1;
        t->dims[0] = 1;
    }
    return QN_OK;
}

// Keeps the span in `offset` and `bytes`; check_span compares it with the shape.
static qn_status read_offsets(qn_tensor *t, qn_json_reader *r, qn_err *err) {
    int64_t span[2];
    int n;
    QN_TRY(read_numbers(span, &n, 2, r, "data_offsets", err));
    if (n != 2) return QN_FAIL(err, FORMAT, "data_offsets has %d numbers, want 2", n);
    if (span[0] > span[1])
        return QN_FAIL(err, FORMAT, "data_offsets are reversed: %lld, %lld", (long long)span[0],
                       (long long)span[1]);
    t->offset = span[0];
    t->bytes = span[1] - span[0];
    return QN_OK;
}

static qn_status check_span(qn_tensor *t, int64_t data, int64_t size, qn_err *err) {
    const char *type = qn_type_get(t->type)->name;
    int64_t n = 1, bytes;
    bool fits = true;
    for (int i = 0; i < t->n_dims && fits; i++) fits = qn_i64_mul(&n, n, t->dims[i]);
    if (!fits || !qn_type_bytes(&bytes, t->type, n))
        return QN_FAIL(err, FORMAT, "(%lld, %lld, %lld, %lld, %lld) of %s is not a valid size",
                       (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                       (long long)t->dims[3], (long long)t->dims[4], type);
    if (bytes != t->bytes)
        return QN_FAIL(err, FORMAT, "data_offsets span %lld bytes, its %lld values of %s take %lld",
                       (long long)t->bytes, (long long)n, type, (long long)bytes);
    int64_t end;
    if (!qn_i64_add(&t->offset, data, t->offset) || !qn_i64_add(&end, t->offset, bytes) ||
        end > size)
        return QN_FAIL(err, FORMAT, "%lld bytes at %lld, the file has %lld" QN_TOO_SHORT,
                       (long long)bytes, (long long)t->offset, (long long)size);
    return QN_OK;
}

typedef qn_status field_fn(qn_tensor *t, qn_json_reader *r, qn_err *err);
static const struct {
    const char *name;
    field_fn *read;
} fields[] = {{"dtype", read_dtype}, {"shape", read_shape}, {"data_offsets", read_offsets}};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static int find_field(qn_json_text name) {
    for (int i = 0; i < N_FIELDS; i++) {
        if (qn_json_is(name, fields[i].name)) return i;
    }
    return -1;
}

static qn_status read_fields(qn_tensor *t, qn_json_reader *r, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, r, err));
    if (value.kind != QN_JSON_OBJECT) return QN_FAIL(err, FORMAT, "not a JSON object");
    bool seen[N_FIELDS] = {0};
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, r, first, err));
        if (!more) break;
        const int field = find_field(name);
        if (field < 0) { // some writers add their own
            QN_TRY(qn_json_read(&value, r, err));
            QN_TRY(qn_json_skip(r, &value, DEPTH_OF_FIELDS, err));
            continue;
        }
        if (seen[field]) return QN_FAIL(err, FORMAT, "%s is there twice", fields[field].name);
        seen[field] = true;
        QN_TRY(fields[field].read(t, r, err));
    }
    for (int i = 0; i < N_FIELDS; i++) {
        if (!seen[i]) return QN_FAIL(err, FORMAT, "%s is missing", fields[i].name);
    }
    return QN_OK;
}

// --- the header ----------------------------------------------------------------------------------

static qn_status check_metadata(qn_json_reader *r, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, r, err));
    if (value.kind != QN_JSON_OBJECT)
        return QN_FAIL(err, FORMAT, "__metadata__ is not a JSON object");
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, r, first, err));
        if (!more) return QN_OK;
        QN_TRY(qn_json_read(&value, r, err));
        if (value.kind != QN_JSON_STRING)
            return QN_FAIL(err, FORMAT, "__metadata__: the value of %.*s is not a string",
                           name.raw.size < 64 ? (int)name.raw.size : 64, name.raw.data);
    }
}

// Number of tensors; the text is valid JSON afterwards.
static qn_status count_tensors(size_t *out, qn_json_reader r, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &r, err));
    if (value.kind != QN_JSON_OBJECT)
        return QN_FAIL(err, FORMAT, "the header is not a JSON object");
    size_t n = 0;
    bool has_metadata = false;
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, &r, first, err));
        if (!more) break;
        if (qn_json_is(name, "__metadata__")) {
            if (has_metadata) return QN_FAIL(err, FORMAT, "__metadata__ is there twice");
            has_metadata = true;
            QN_TRY(check_metadata(&r, err));
            continue;
        }
        n++;
        QN_TRY(qn_json_read(&value, &r, err));
        QN_TRY(qn_json_skip(&r, &value, 1, err));
    }
    *out = n;
    return qn_json_end(&r, err);
}

static qn_status read_tensor(qn_tensor *t, qn_source *source, qn_json_reader *r, qn_json_text name,
                             qn_err *err) {
    if (name.size == 0) return QN_FAIL(err, FORMAT, "a tensor without a name");
    void *text;
    QN_TRY(qn_store_alloc(&text, &source->store, name.size + 1, 1, "names", err));
    qn_json_decode(text, name);
    t->name = (qn_str){text, name.size};
    return read_fields(t, r, err);
}

static qn_status read_header(qn_source *source, int i_file, qn_json_reader r, int64_t data,
                             qn_err *err) {
    const int64_t size = source->files[i_file].size;
    size_t n = 0;
    QN_TRY(count_tensors(&n, r, err));
    qn_tensor *tensors;
    QN_TRY(qn_source_add_tensors(&tensors, source, n, err));
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &r, err));
    size_t i = 0;
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, &r, first, err));
        if (!more) break;
        if (qn_json_is(name, "__metadata__")) {
            QN_TRY(check_metadata(&r, err));
            continue;
        }
        qn_tensor *t = &tensors[i++];
        qn_status status = read_tensor(t, source, &r, name, err);
        if (!status) status = check_span(t, data, size, err);
        if (status)
            return qn_err_prefix(err, status, "tensor %s", t->name.data ? t->name.data : "");
        t->i_file = i_file;
    }
    const qn_extent extent = {.begin = data, .end = size, .no_holes = true};
    return qn_source_check_layout(source, tensors, n, extent, err);
}

static qn_status read_length(int64_t *out, const qn_file *file, qn_err *err) {
    unsigned char bytes[LENGTH_BYTES];
    if (file->size < LENGTH_BYTES)
        return QN_FAIL(err, FORMAT, "%lld bytes, want at least %d", (long long)file->size,
                       LENGTH_BYTES);
    QN_TRY(qn_file_read(file, 0, bytes, sizeof bytes, err));
    const uint64_t length = (uint64_t)qn_storage_int(QN_STORED_U64, bytes);
    const uint64_t left = (uint64_t)(file->size - LENGTH_BYTES);
    if (length > left)
        return QN_FAIL(err, FORMAT,
                       "a header of %llu bytes, the file has %llu after its length" QN_TOO_SHORT,
                       (unsigned long long)length, (unsigned long long)left);
    if (length > MAX_HEADER)
        return QN_FAIL(err, LIMIT, "a header of %llu bytes, the limit is %d",
                       (unsigned long long)length, MAX_HEADER);
    *out = (int64_t)length;
    return QN_OK;
}

static qn_status read_file(qn_source *source, int i_file, qn_err *err) {
    const qn_file *file = &source->files[i_file];
    int64_t length = 0;
    QN_TRY(read_length(&length, file, err));
    const size_t size = (size_t)length;
    QN_TRY(qn_store_charge(&source->store, size + 1, 1, "the header", err));
    char *text = qn_alloc(size + 1, 1);
    qn_status status =
        text ? qn_file_read(file, LENGTH_BYTES, text, size, err) : QN_NOMEM(err, "the header");
    if (!status) {
        const qn_json_reader r = {.text = text, .size = size, .what = "header", .takes_nan = true};
        status = read_header(source, i_file, r, LENGTH_BYTES + length, err);
    }
    qn_free(text);
    qn_store_discharge(&source->store, size + 1);
    return status;
}

qn_status qn_safetensors_add(int *i_file, qn_source *source, const char *path, qn_err *err) {
    QN_TRY(qn_source_add_file(i_file, source, path, err));
    const qn_status status = read_file(source, *i_file, err);
    return status == QN_IO ? status : qn_err_prefix(err, status, "%s", path);
}

qn_status qn_safetensors_open_set(qn_source *source, const char *const *paths, size_t n,
                                  qn_err *err) {
    source->kind = QN_SOURCE_SAFETENSORS;
    for (size_t i = 0; i < n; i++) {
        int i_file;
        QN_TRY(qn_safetensors_add(&i_file, source, paths[i], err));
    }
    QN_TRY(qn_config_read(source, err));
    return qn_err_prefix(err, qn_source_finish(source, err), "%s", source->path);
}

qn_status qn_safetensors_open(qn_source *source, const char *path, qn_err *err) {
    return qn_safetensors_open_set(source, &path, 1, err);
}
