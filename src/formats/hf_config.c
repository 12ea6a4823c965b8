// config.json as keys: {"a": {"b": 1}, "c": [1, 2], "d": null} becomes a.b = 1 and c = [1, 2].
// Names that are null are kept by themselves: an absent key has a default, null means none.
//
// The text is walked twice with the same code, first to count the keys (and to find what is not
// JSON), then to store them.
#include "core/json_reader.h"
#include "formats/source_build.h"

#include "core/mem.h"

enum { MAX_CONFIG = 16 << 20, MAX_NAME = 1023, MAX_DEPTH = 16 };

typedef struct flattener {
    qn_json_reader reader;
    qn_store *store;
    qn_key *keys; // NULL: only count
    size_t n;
    qn_str *nulls; // names; NULL with keys
    size_t n_nulls;
    char name[MAX_NAME + 1]; // of the key that is being read
} flattener;

static const char *const scalar_types[] = {[QN_KEY_INT] = "JSON integer",
                                           [QN_KEY_FLOAT] = "JSON number",
                                           [QN_KEY_BOOL] = "JSON bool",
                                           [QN_KEY_STRING] = "JSON string"};
static const char *const array_types[] = {[QN_KEY_INT] = "JSON array of integer",
                                          [QN_KEY_FLOAT] = "JSON array of number",
                                          [QN_KEY_BOOL] = "JSON array of bool",
                                          [QN_KEY_STRING] = "JSON array of string"};

// How a JSON scalar is kept; -1 for what is not a scalar.
static const int key_kinds[] = {
    [QN_JSON_OBJECT] = -1,      [QN_JSON_ARRAY] = -1,          [QN_JSON_STRING] = QN_KEY_STRING,
    [QN_JSON_INT] = QN_KEY_INT, [QN_JSON_REAL] = QN_KEY_FLOAT, [QN_JSON_BOOL] = QN_KEY_BOOL,
    [QN_JSON_NULL] = -1};

static const unsigned char storages[] = {[QN_KEY_INT] = QN_STORED_I64,
                                         [QN_KEY_FLOAT] = QN_STORED_F64,
                                         [QN_KEY_BOOL] = QN_STORED_BOOL,
                                         [QN_KEY_STRING] = QN_STORED_STRING};

static qn_status copy_text(qn_str *out, flattener *f, qn_json_text text, qn_err *err) {
    void *copy;
    QN_TRY(qn_store_alloc(&copy, f->store, text.size + 1, 1, f->name, err));
    qn_json_decode(copy, text);
    *out = (qn_str){copy, text.size};
    return QN_OK;
}

// The next key, named as f->name says; *out is NULL while only counting.
static qn_status add_key(qn_key **out, flattener *f, qn_err *err) {
    qn_key *key = f->keys ? &f->keys[f->n] : NULL;
    f->n++;
    if (key) QN_TRY(qn_source_copy_text(&key->name, f->store, f->name, strlen(f->name), err));
    *out = key;
    return QN_OK;
}

static qn_status add_null(flattener *f, qn_err *err) {
    qn_str *name = f->nulls ? &f->nulls[f->n_nulls] : NULL;
    f->n_nulls++;
    return name ? qn_source_copy_text(name, f->store, f->name, strlen(f->name), err) : QN_OK;
}

static qn_status add_scalar(flattener *f, const qn_json_value *value, qn_err *err) {
    const int kind = key_kinds[value->kind];
    if (kind < 0) return add_null(f, err);
    qn_key *key;
    QN_TRY(add_key(&key, f, err));
    if (!key) return QN_OK;
    key->kind = (unsigned char)kind;
    key->type_name = scalar_types[kind];
    if (kind == QN_KEY_STRING) return copy_text(&key->as.s, f, value->text, err);
    if (kind == QN_KEY_FLOAT)
        key->as.f = value->f;
    else if (kind == QN_KEY_BOOL)
        key->as.b = value->b;
    else
        key->as.i = value->i;
    return QN_OK;
}

// --- arrays --------------------------------------------------------------------------------------

typedef struct array_shape {
    size_t n;
    int kind; // of all elements; -1: they differ, or are not scalars
} array_shape;

// Elements so far of kind `a`, one more of kind `b`.
static int join_kinds(int a, int b) {
    const bool numbers =
        (a == QN_KEY_INT || a == QN_KEY_FLOAT) && (b == QN_KEY_INT || b == QN_KEY_FLOAT);
    return a == b ? a : numbers ? QN_KEY_FLOAT : -1;
}

static qn_status measure_array(array_shape *out, qn_json_reader *r, int depth, qn_err *err) {
    array_shape shape = {.n = 0, .kind = QN_KEY_INT};
    for (bool more, first = true;; first = false) {
        QN_TRY(qn_json_element(&more, r, first, err));
        if (!more) break;
        qn_json_value value;
        QN_TRY(qn_json_read(&value, r, err));
        const int kind = key_kinds[value.kind];
        shape.kind = first ? kind : join_kinds(shape.kind, kind);
        shape.n++;
        QN_TRY(qn_json_skip(r, &value, depth, err));
    }
    *out = shape;
    return QN_OK;
}

static void put_bits(unsigned char *to, uint64_t bits) {
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(bits >> 8 * i);
}

static qn_status put_element(unsigned char *to, flattener *f, int kind, const qn_json_value *value,
                             qn_err *err) {
    if (kind == QN_KEY_STRING) return copy_text((qn_str *)(void *)to, f, value->text, err);
    uint64_t bits = (uint64_t)value->i;
    if (kind == QN_KEY_FLOAT) memcpy(&bits, &value->f, sizeof bits);
    if (kind == QN_KEY_BOOL)
        *to = value->b;
    else
        put_bits(to, bits);
    return QN_OK;
}

// `r` is after the opening bracket of an array that was measured.
static qn_status fill_array(qn_key *key, flattener *f, qn_json_reader r, array_shape shape,
                            qn_err *err) {
    key->kind = QN_KEY_ARRAY;
    key->element = (unsigned char)shape.kind;
    key->storage = storages[shape.kind];
    key->type_name = array_types[shape.kind];
    key->n = shape.n;
    const size_t size =
        shape.kind == QN_KEY_STRING ? sizeof(qn_str) : (size_t)qn_storage_get(key->storage)->bytes;
    void *data;
    QN_TRY(qn_store_alloc(&data, f->store, shape.n, size, f->name, err));
    for (size_t i = 0; i < shape.n; i++) {
        bool more;
        qn_json_value value;
        QN_TRY(qn_json_element(&more, &r, i == 0, err));
        QN_TRY(qn_json_read(&value, &r, err));
        QN_TRY(put_element((unsigned char *)data + i * size, f, shape.kind, &value, err));
    }
    key->as.data = data;
    return QN_OK;
}

static qn_status add_array(flattener *f, int depth, qn_err *err) {
    const qn_json_reader begin = f->reader;
    array_shape shape;
    QN_TRY(measure_array(&shape, &f->reader, depth, err));
    if (shape.kind < 0) return QN_OK;
    qn_key *key;
    QN_TRY(add_key(&key, f, err));
    return key ? fill_array(key, f, begin, shape, err) : QN_OK;
}

// --- objects -------------------------------------------------------------------------------------

// Members of an object, whose names follow the first `prefix` bytes of f->name.
static qn_status walk_object(flattener *f, size_t prefix, int depth, qn_err *err) {
    if (depth > MAX_DEPTH)
        return QN_FAIL(err, LIMIT, "%s: %s: nested more than %d deep", f->reader.what, f->name,
                       MAX_DEPTH);
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, &f->reader, first, err));
        if (!more) return QN_OK;
        const size_t end = prefix + name.size;
        if (name.size > MAX_NAME || end + 1 > MAX_NAME)
            return QN_FAIL(err, LIMIT, "%s: a key name of %zu bytes, the limit is %d",
                           f->reader.what, end, MAX_NAME - 1);
        qn_json_decode(f->name + prefix, name);
        f->name[end] = 0;
        qn_json_value value;
        QN_TRY(qn_json_read(&value, &f->reader, err));
        if (value.kind == QN_JSON_OBJECT) {
            f->name[end] = '.';
            f->name[end + 1] = 0;
            QN_TRY(walk_object(f, end + 1, depth + 1, err));
        } else if (value.kind == QN_JSON_ARRAY) {
            QN_TRY(add_array(f, depth, err));
        } else {
            QN_TRY(add_scalar(f, &value, err));
        }
    }
}

static qn_status walk(flattener *f, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &f->reader, err));
    if (value.kind != QN_JSON_OBJECT)
        return QN_FAIL(err, FORMAT, "%s: not a JSON object", f->reader.what);
    QN_TRY(walk_object(f, 0, 1, err));
    return qn_json_end(&f->reader, err);
}

qn_status qn_config_flatten(qn_source *source, const char *text, size_t size, const char *what,
                            qn_err *err) {
    const qn_json_reader reader = {.text = text, .size = size, .what = what, .takes_nan = true};
    flattener f;
    f.reader = reader;
    f.store = &source->store;
    f.keys = NULL;
    f.nulls = NULL;
    f.n = f.n_nulls = 0;
    f.name[0] = 0;
    QN_TRY(walk(&f, err));
    void *keys, *nulls;
    QN_TRY(qn_store_alloc(&keys, &source->store, f.n, sizeof(qn_key), what, err));
    QN_TRY(qn_store_alloc(&nulls, &source->store, f.n_nulls, sizeof(qn_str), what, err));
    f.reader = reader;
    f.keys = keys;
    f.nulls = nulls;
    f.n = f.n_nulls = 0;
    QN_TRY(walk(&f, err));
    const void **index, **null_index;
    const qn_entries entries = {keys, f.n, sizeof(qn_key), "key"};
    const qn_entries null_entries = {nulls, f.n_nulls, sizeof(qn_str), "key"};
    QN_TRY(qn_source_index(&index, &source->store, entries, err));
    QN_TRY(qn_source_index(&null_index, &source->store, null_entries, err));
    source->keys = keys;
    source->n_keys = f.n;
    source->keys_by_name = (const qn_key **)index;
    source->nulls_by_name = null_index;
    source->n_nulls = f.n_nulls;
    return QN_OK;
}

static qn_status flatten_text(qn_source *source, const char *text, size_t size, const char *what,
                              qn_err *err) {
    qn_store_allow(&source->store, (int64_t)size);
    QN_TRY(qn_store_charge(&source->store, size + 1, 1, what, err));
    const qn_status status = qn_config_flatten(source, text, size, what, err);
    qn_store_discharge(&source->store, size + 1);
    return status;
}

qn_status qn_config_read(qn_source *source, qn_err *err) {
    const size_t given = source->config ? strlen(source->config) : 0;
    if (given > MAX_CONFIG)
        return QN_FAIL(err, LIMIT, "the given config: %zu bytes, the limit is %d", given,
                       MAX_CONFIG);
    if (source->config) return flatten_text(source, source->config, given, "the given config", err);
    char *path = qn_path_join(source->folder, "config.json");
    if (!path) return QN_NOMEM(err, "config.json");
    qn_status status = QN_OK;
    char *text = NULL;
    size_t size;
    if (!qn_files_has(source->given, path)) goto done;
    QN_TRY_TO(done, qn_files_load(&text, &size, source->given, path, MAX_CONFIG, err));
    status = flatten_text(source, text, size, path, err);

done:
    qn_free(text);
    qn_free(path);
    return status;
}
