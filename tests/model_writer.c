#include "testing.h"

#include "model_writer.h"

#include "core/file.h"
#include "core/mem.h"
#include "formats/source_build.h"
#include "quant/half.h"

// --- tensors -------------------------------------------------------------------------------------

int64_t model_count(const model_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    return n;
}

static size_t bytes_of(const model_tensor *t) {
    int64_t bytes = 0;
    if (!qn_type_bytes(&bytes, t->type, model_count(t)))
        fail_msg("%s: %lld values of %s", t->name, (long long)model_count(t),
                 qn_type_get(t->type)->name);
    return (size_t)bytes;
}

// New bytes are zero.
static void resize(model_tensor *t, size_t bytes) {
    unsigned char *data = calloc(bytes ? bytes : 1, 1);
    assert_non_null(data);
    if (t->data) memcpy(data, t->data, bytes < t->bytes ? bytes : t->bytes);
    free(t->data);
    t->data = data;
    t->bytes = bytes;
}

model_tensor *model_find(const model_file *m, const char *name) {
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    }
    return NULL;
}

model_tensor *model_add(model_file *m, const char *name, qn_type type, const int64_t *dims,
                        int n_dims, const void *data) {
    void *tensors = m->tensors;
    assert_true(qn_grow(&tensors, &m->cap_tensors, m->n_tensors + 1, sizeof *m->tensors));
    m->tensors = tensors;
    model_tensor *t = &m->tensors[m->n_tensors++];
    *t = (model_tensor){.type = type, .n_dims = n_dims};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int i = 0; i < n_dims; i++) t->dims[i] = dims[i];
    resize(t, bytes_of(t));
    if (data) memcpy(t->data, data, t->bytes);
    return t;
}

float *model_floats(const model_tensor *t) {
    float *to = malloc((size_t)model_count(t) * sizeof *to);
    assert_non_null(to);
    qn_type_get(t->type)->unpack(to, t->data, model_count(t));
    return to;
}

static void put_float(unsigned char *to, qn_type type, float value) {
    const uint32_t bits = qn_float_to_bits(value);
    const uint16_t half = type == QN_TYPE_F16 ? qn_half_encode(value) : qn_bf16_encode(value);
    if (type == QN_TYPE_F32)
        memcpy(to, &bits, sizeof bits);
    else
        memcpy(to, &half, sizeof half);
}

static bool is_plain(qn_type type) {
    return type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
}

static void put_floats(model_tensor *t, const float *values) {
    const size_t size = (size_t)qn_type_get(t->type)->bytes;
    for (int64_t i = 0; i < model_count(t); i++)
        put_float(t->data + (size_t)i * size, t->type, values[i]);
}

static void convert(model_tensor *t, qn_type type) {
    float *values = is_plain(type) ? model_floats(t) : NULL;
    t->type = type;
    t->bytes = 0; // nothing is kept
    resize(t, bytes_of(t));
    if (values) put_floats(t, values);
    free(values);
}

// --- keys ----------------------------------------------------------------------------------------

static void remove_key(model_file *m, const char *name) {
    for (size_t i = 0; i < m->n_keys; i++) {
        if (strcmp(m->keys[i].name, name) != 0) continue;
        free(m->keys[i].entry.data);
        memmove(&m->keys[i], &m->keys[i + 1], (--m->n_keys - i) * sizeof *m->keys);
        return;
    }
}

// Takes the one key that the writer holds, in place of an older one of that name.
static void take_key(model_file *m, const char *name, gguf_writer *w) {
    remove_key(m, name);
    void *keys = m->keys;
    assert_true(qn_grow(&keys, &m->cap_keys, m->n_keys + 1, sizeof *m->keys));
    m->keys = keys;
    model_key *key = &m->keys[m->n_keys++];
    snprintf(key->name, sizeof key->name, "%s", name);
    key->entry = w->keys;
    w->keys = (gguf_bytes){0};
    gguf_deinit(w);
}

static uint32_t key_type(const char *name) {
    for (uint32_t i = 0; i < QN_STORED_COUNT; i++) {
        if (strcmp(name, qn_storage_get((qn_storage)i)->name) == 0) return i;
    }
    if (strcmp(name, "str") != 0) fail_msg("%s: no type of a key", name);
    return GGUF_STRING;
}

static void put_number(gguf_bytes *to, uint32_t type, const char *text) {
    const qn_storage_info *info = qn_storage_get((qn_storage)type);
    const double real = strtod(text, NULL);
    const float single = (float)real;
    if (type == GGUF_F32)
        gguf_put(to, &single, sizeof single);
    else if (type == GGUF_F64)
        gguf_put(to, &real, sizeof real);
    else
        gguf_put_int(to, (uint64_t)strtoll(text, NULL, 10), info->bytes);
}

static void set_array(gguf_writer *w, const char *name, uint32_t type, char *rest) {
    gguf_bytes items = {0};
    uint64_t n = 0;
    char *save = NULL;
    for (char *word = strtok_r(rest, " ", &save); word; word = strtok_r(NULL, " ", &save), n++) {
        if (type == GGUF_STRING)
            gguf_put_text(&items, word, strlen(word));
        else
            put_number(&items, type, word);
    }
    gguf_add_array(w, name, type, items.data, items.size, 1);
    free(items.data);
    unsigned char *count = w->keys.data + 8 + strlen(name) + 4 + 4; // elements, not bytes
    memcpy(count, &n, sizeof n);
}

// name, type, values
static void edit_key(model_file *m, char **words, char *rest) {
    gguf_writer w = {0};
    char *brackets = strstr(words[1], "[]");
    if (brackets) *brackets = 0;
    const uint32_t type = key_type(words[1]);
    gguf_bytes value = {0};
    if (brackets) {
        set_array(&w, words[0], type, rest);
    } else if (type == GGUF_STRING) {
        gguf_add_string(&w, words[0], rest);
    } else {
        put_number(&value, type, rest);
        gguf_add_raw(&w, words[0], type, value.data, value.size);
    }
    free(value.data);
    take_key(m, words[0], &w);
}

static void edit_nokey(model_file *m, char **words, char *rest) {
    (void)rest;
    remove_key(m, words[0]);
}

static void edit_rekey(model_file *m, char **words, char *rest) {
    (void)rest;
    const size_t n = strlen(words[0]);
    for (size_t i = 0; i < m->n_keys; i++) {
        model_key *key = &m->keys[i];
        if (strncmp(key->name, words[0], n) != 0) continue;
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "%s%s", words[1], key->name + n);
        gguf_bytes entry = {0};
        const size_t skip = 8 + strlen(key->name);
        gguf_put_text(&entry, name, strlen(name));
        gguf_put(&entry, key->entry.data + skip, key->entry.size - skip);
        free(key->entry.data);
        key->entry = entry;
        memcpy(key->name, name, sizeof name);
    }
}

// A key as the source has it, in the bytes of the format.
static void copy_key(model_file *m, const qn_key *key) {
    gguf_writer w = {0};
    const char *name = key->name.data;
    if (key->kind == QN_KEY_STRING) {
        gguf_add_text(&w, name, key->as.s.data, key->as.s.size);
    } else if (qn_key_is_array_of(key, QN_KEY_STRING)) {
        gguf_bytes value = {0};
        gguf_put_int(&value, GGUF_STRING, 4);
        gguf_put_int(&value, key->n, 8);
        for (size_t i = 0; i < key->n; i++)
            gguf_put_text(&value, qn_key_string_at(key, i).data, qn_key_string_at(key, i).size);
        gguf_add_raw(&w, name, GGUF_ARRAY, value.data, value.size);
        free(value.data);
    } else if (key->kind == QN_KEY_ARRAY) {
        gguf_add_array(&w, name, key->storage, key->as.data, key->n,
                       (size_t)qn_storage_get(key->storage)->bytes);
    } else {
        const uint32_t type = key_type(key->type_name);
        const float single = (float)key->as.f;
        const int64_t whole = key->kind == QN_KEY_BOOL ? key->as.b : key->as.i;
        if (type == GGUF_F32)
            gguf_add_f32(&w, name, single);
        else if (type == GGUF_F64)
            gguf_add_f64(&w, name, key->as.f);
        else
            gguf_add_int(&w, name, type, whole);
    }
    take_key(m, name, &w);
}

// --- config.json ---------------------------------------------------------------------------------

// The object that holds the last part of the path, made where it is missing; *last is that part.
static json_t *walk_config(model_file *m, char *path, char **last) {
    assert_non_null(m->config);
    json_t *at = m->config;
    for (char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        *dot = 0;
        json_t *next = json_object_get(at, path);
        if (!next) {
            next = json_object();
            json_object_set_new(at, path, next);
        }
        at = next;
    }
    *last = path;
    return at;
}

static void edit_set(model_file *m, char **words, char *rest) {
    json_error_t why;
    char *last;
    json_t *object = walk_config(m, words[0], &last);
    json_t *value = json_loads(rest, JSON_DECODE_ANY, &why);
    if (!value) fail_msg("%s: %s", rest, why.text);
    json_object_set_new(object, last, value);
}

static void edit_unset(model_file *m, char **words, char *rest) {
    (void)rest;
    char *last;
    json_t *object = walk_config(m, words[0], &last);
    json_object_del(object, last);
}

// --- edits of tensors ----------------------------------------------------------------------------

// Equal, up to one '*' that stands for anything.
static bool matches(const char *name, const char *pattern) {
    const char *star = strchr(pattern, '*');
    if (!star) return strcmp(name, pattern) == 0;
    const size_t n = strlen(name), head = (size_t)(star - pattern), tail = strlen(star + 1);
    return n >= head + tail && strncmp(name, pattern, head) == 0 &&
           strcmp(name + n - tail, star + 1) == 0;
}

typedef void tensor_fn(model_tensor *t, char **words, char *rest);

static void each_tensor(model_file *m, char **words, char *rest, tensor_fn *fn) {
    bool found = false;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (!matches(m->tensors[i].name, words[0])) continue;
        fn(&m->tensors[i], words, rest);
        found = true;
    }
    if (!found) fail_msg("no tensor %s", words[0]);
}

static void edit_drop(model_file *m, char **words, char *rest) {
    (void)rest;
    size_t kept = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (matches(m->tensors[i].name, words[0]))
            free(m->tensors[i].data);
        else
            m->tensors[kept++] = m->tensors[i];
    }
    if (kept == m->n_tensors) fail_msg("no tensor %s", words[0]);
    m->n_tensors = kept;
}

// "a.*" "b.*": what the star stood for is kept.
static void rename_one(model_tensor *t, char **words, char *rest) {
    (void)rest;
    char name[MODEL_NAME];
    const char *star = strchr(words[0], '*'), *to = strchr(words[1], '*');
    if (star && to)
        snprintf(name, sizeof name, "%.*s%s", (int)(to - words[1]), words[1],
                 t->name + (star - words[0]));
    else
        snprintf(name, sizeof name, "%s", words[1]);
    memcpy(t->name, name, sizeof name);
}

static void edit_rename(model_file *m, char **words, char *rest) {
    each_tensor(m, words, rest, rename_one);
}

static void edit_copy(model_file *m, char **words, char *rest) {
    (void)rest;
    const model_tensor *found = model_find(m, words[0]);
    assert_non_null(found);
    const model_tensor t = *found; // the list moves when it grows
    model_add(m, words[1], t.type, t.dims, t.n_dims, t.data);
}

static void type_one(model_tensor *t, char **words, char *rest) {
    (void)rest;
    qn_type type;
    if (!qn_type_from_name(&type, words[1])) fail_msg("no type %s", words[1]);
    convert(t, type);
}

static void edit_type(model_file *m, char **words, char *rest) {
    each_tensor(m, words, rest, type_one);
}

static void shape_one(model_tensor *t, char **words, char *rest) {
    (void)words;
    t->n_dims = 0;
    for (char *end = rest; *rest && t->n_dims < QN_MAX_DIMS; rest = end)
        t->dims[t->n_dims++] = strtoll(rest, &end, 10);
    resize(t, bytes_of(t));
}

static void edit_shape(model_file *m, char **words, char *rest) {
    each_tensor(m, words, rest, shape_one);
}

static void fill_one(model_tensor *t, char **words, char *rest) {
    (void)rest;
    assert_true(is_plain(t->type));
    const int64_t n = model_count(t);
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) values[i] = strtof(words[1], NULL);
    put_floats(t, values);
    free(values);
}

static void edit_fill(model_file *m, char **words, char *rest) {
    each_tensor(m, words, rest, fill_one);
}

// --- the language --------------------------------------------------------------------------------

static const struct {
    const char *name;
    int n_words; // taken one by one; what follows is the rest
    void (*apply)(model_file *m, char **words, char *rest);
} verbs[] = {
    {"key", 2, edit_key},       {"nokey", 1, edit_nokey}, {"rekey", 2, edit_rekey},
    {"set", 1, edit_set},       {"unset", 1, edit_unset}, {"drop", 1, edit_drop},
    {"rename", 2, edit_rename}, {"copy", 2, edit_copy},   {"type", 2, edit_type},
    {"shape", 1, edit_shape},   {"fill", 2, edit_fill},
};

// Cuts one word off the text.
static char *next_word(char **text) {
    char *word = *text + strspn(*text, " ");
    char *end = word + strcspn(word, " ");
    *text = *end ? end + 1 + strspn(end + 1, " ") : end;
    *end = 0;
    return word;
}

static void apply_one(model_file *m, char *text) {
    const char *verb = next_word(&text);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, verb) != 0) continue;
        char *words[2] = {NULL, NULL};
        for (int k = 0; k < verbs[i].n_words; k++) words[k] = next_word(&text);
        verbs[i].apply(m, words, text);
        return;
    }
    fail_msg("no edit '%s'", verb);
}

void model_edit(model_file *m, const char *edits) {
    char *copy = strdup(edits), *save = NULL;
    assert_non_null(copy);
    for (char *one = strtok_r(copy, ";", &save); one; one = strtok_r(NULL, ";", &save))
        apply_one(m, one);
    free(copy);
}

// --- reading and writing -------------------------------------------------------------------------

static void load_config(model_file *m, const char *folder) {
    qn_err err;
    char *text = NULL, *path = qn_path_join(folder, "config.json");
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, path, 1 << 20, &err));
    ASSERT_OK(qn_json_parse(&m->config, text, size, false, path, &err));
    qn_free(text);
    qn_free(path);
}

model_file *model_load(const char *path) {
    qn_err err;
    qn_source *source = NULL;
    model_file *m = calloc(1, sizeof *m);
    assert_non_null(m);
    ASSERT_OK(qn_source_open(&source, path, &err));
    if (qn_source_get_kind(source) == QN_SOURCE_GGUF) {
        for (size_t i = 0; i < qn_source_n_keys(source); i++) copy_key(m, qn_source_key(source, i));
    } else {
        load_config(m, qn_source_folder(source));
    }
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *from = qn_source_tensor(source, i);
        model_tensor *t = model_add(m, from->name.data, from->type, from->dims, from->n_dims, NULL);
        ASSERT_OK(qn_source_read(source, from, 0, t->data, t->bytes, &err));
    }
    qn_source_close(source);
    return m;
}

void model_free(model_file *m) {
    for (size_t i = 0; i < m->n_tensors; i++) free(m->tensors[i].data);
    for (size_t i = 0; i < m->n_keys; i++) free(m->keys[i].entry.data);
    qn_free(m->tensors);
    qn_free(m->keys);
    json_decref(m->config);
    free(m);
}

static void put_keys(gguf_writer *w, const model_file *m) {
    for (size_t i = 0; i < m->n_keys; i++)
        gguf_put(&w->keys, m->keys[i].entry.data, m->keys[i].entry.size);
    w->n_keys += m->n_keys;
}

// Tensors `first` to `end`.
static void put_tensors(gguf_writer *w, const model_file *m, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        const model_tensor *t = &m->tensors[i];
        gguf_add_tensor(w, t->name, (uint32_t)qn_type_get(t->type)->gguf_id, (uint32_t)t->n_dims,
                        t->dims, t->data, t->bytes);
    }
    gguf_pad(&w->data, 32);
}

void model_write_gguf(const model_file *m, const char *path) {
    gguf_writer w = {0};
    put_keys(&w, m);
    put_tensors(&w, m, 0, m->n_tensors);
    gguf_write(&w, path);
}

void model_write_split(const model_file *m, const char *folder, const char *base, int n) {
    for (int i = 0; i < n; i++) {
        gguf_writer w = {0};
        char path[512];
        if (i == 0) put_keys(&w, m);
        gguf_add_int(&w, "split.no", GGUF_U16, i);
        gguf_add_int(&w, "split.count", GGUF_U16, n);
        gguf_add_int(&w, "split.tensors.count", GGUF_I32, (int64_t)m->n_tensors);
        const size_t parts = (size_t)n, part = (size_t)i;
        put_tensors(&w, m, m->n_tensors * part / parts, m->n_tensors * (part + 1) / parts);
        snprintf(path, sizeof path, "%s/%s-%05d-of-%05d.gguf", folder, base, i + 1, n);
        gguf_write(&w, path);
    }
}

static json_t *describe(const model_tensor *t, size_t offset) {
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++) json_array_append_new(shape, json_integer(t->dims[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", qn_type_get(t->type)->safetensors, "shape",
                     shape, "data_offsets", (json_int_t)offset, (json_int_t)(offset + t->bytes));
}

static void write_safetensors(const model_file *m, const char *path, size_t first, size_t end) {
    json_t *header = json_object();
    gguf_bytes data = {0}, out = {0};
    for (size_t i = first; i < end; i++) {
        const model_tensor *t = &m->tensors[i];
        json_object_set_new(header, t->name, describe(t, data.size));
        gguf_put(&data, t->data, t->bytes);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    assert_non_null(text);
    const size_t size = strlen(text), padded = (size + 7) / 8 * 8;
    gguf_put_int(&out, padded, 8);
    gguf_put(&out, text, size);
    gguf_put(&out, "       ", padded - size);
    gguf_put(&out, data.data, data.size);
    gguf_save(path, out.data, out.size);
    free(text);
    free(data.data);
    free(out.data);
    json_decref(header);
}

static void write_json(const json_t *json, const char *folder, const char *name) {
    char path[512], *text = json_dumps(json, JSON_INDENT(2));
    assert_non_null(text);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gguf_save(path, text, strlen(text));
    free(text);
}

static void write_shards(const model_file *m, const char *folder, int n) {
    json_t *map = json_object();
    const size_t parts = (size_t)n;
    for (size_t i = 0; i < parts; i++) {
        char name[64], path[512];
        const size_t first = m->n_tensors * i / parts, end = m->n_tensors * (i + 1) / parts;
        snprintf(name, sizeof name, "model-%05zu-of-%05d.safetensors", i + 1, n);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        write_safetensors(m, path, first, end);
        for (size_t k = first; k < end; k++)
            json_object_set_new(map, m->tensors[k].name, json_string(name));
    }
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", map);
    write_json(index, folder, "model.safetensors.index.json");
    json_decref(index);
}

void model_write_checkpoint(const model_file *m, const char *folder, int n) {
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    remove(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    remove(path);
    write_json(m->config, folder, "config.json");
    if (n > 1)
        write_shards(m, folder, n);
    else
        write_safetensors(m, path, 0, m->n_tensors);
}
