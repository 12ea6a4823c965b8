// A sharded checkpoint: model.safetensors.index.json holds {"weight_map": {"tensor": "shard
// file"}}.
//
// The map is walked twice: first to open each shard once, then to compare it with what the shards
// hold. Shards lie in the folder of the index and nowhere else.
#include "core/json_reader.h"
#include "formats/source_build.h"

#include "core/map.h"
#include "core/mem.h"

enum { MAX_INDEX = 100 << 20, MAX_FILE_NAME = 255 };

typedef struct shards {
    qn_source *source;
    const char *folder;
    qn_map numbers; // file name -> number of the file; the names are in the source's store
} shards;

// Called for each entry of the weight map.
typedef qn_status entry_fn(shards *set, qn_json_text tensor, qn_json_text file, qn_err *err);

static qn_status walk_map(shards *set, qn_json_reader *r, entry_fn *entry, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, r, err));
    if (value.kind != QN_JSON_OBJECT)
        return QN_FAIL(err, FORMAT, "weight_map is not a JSON object");
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, r, first, err));
        if (!more) return QN_OK;
        QN_TRY(qn_json_read(&value, r, err));
        if (value.kind != QN_JSON_STRING)
            return QN_FAIL(err, FORMAT, "weight_map: the file of %.*s is not a string",
                           name.raw.size < 64 ? (int)name.raw.size : 64, name.raw.data);
        QN_TRY(entry(set, name, value.text, err));
    }
}

static qn_status walk_index(shards *set, qn_json_reader r, entry_fn *entry, qn_err *err) {
    qn_json_value value;
    QN_TRY(qn_json_read(&value, &r, err));
    if (value.kind != QN_JSON_OBJECT) return QN_FAIL(err, FORMAT, "not a JSON object");
    bool found = false;
    for (bool more, first = true;; first = false) {
        qn_json_text name;
        QN_TRY(qn_json_member(&name, &more, &r, first, err));
        if (!more) break;
        if (qn_json_is(name, "weight_map")) {
            if (found) return QN_FAIL(err, FORMAT, "weight_map is there twice");
            found = true;
            QN_TRY(walk_map(set, &r, entry, err));
            continue;
        }
        QN_TRY(qn_json_read(&value, &r, err));
        QN_TRY(qn_json_skip(&r, &value, 1, err));
    }
    if (!found)
        return QN_FAIL(err, FORMAT,
                       "a JSON file without weight_map, so not an index of safetensors (to open a "
                       "checkpoint, give its folder)");
    return qn_json_end(&r, err);
}

static bool is_plain_name(const char *name, size_t size) {
    return size > 0 && !memchr(name, '/', size) && !memchr(name, '\\', size) &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static qn_status open_shard(shards *set, qn_json_text tensor, qn_json_text file, qn_err *err) {
    (void)tensor;
    char name[MAX_FILE_NAME + 1] = "";
    if (file.size > MAX_FILE_NAME)
        return QN_FAIL(err, FORMAT, "weight_map: a file name of %zu bytes, want at most %d",
                       file.size, MAX_FILE_NAME);
    qn_json_decode(name, file);
    if (!is_plain_name(name, file.size))
        return QN_FAIL(err, FORMAT, "weight_map: %s: want the name of a file in the same folder",
                       name);
    uint32_t number;
    if (qn_map_find(&set->numbers, name, file.size, &number)) return QN_OK;
    char *path = qn_path_join(set->folder, name);
    if (!path) return QN_NOMEM(err, name);
    int i_file;
    qn_str kept;
    qn_status status = qn_safetensors_add(&i_file, set->source, path, err);
    if (!status) status = qn_source_copy_text(&kept, &set->source->store, name, file.size, err);
    if (!status && !qn_map_add(&set->numbers, kept.data, kept.size, (uint32_t)i_file, NULL))
        status = QN_NOMEM(err, name);
    qn_free(path);
    return status;
}

static qn_status check_entry(shards *set, qn_json_text tensor, qn_json_text file, qn_err *err) {
    char short_name[256];
    char *name = tensor.size < sizeof short_name ? short_name : qn_alloc(tensor.size + 1, 1);
    if (!name) return QN_NOMEM(err, "a name");
    qn_json_decode(name, tensor);
    name[tensor.size] = 0;
    char shard[MAX_FILE_NAME + 1] = "";
    qn_json_decode(shard, file); // its size was checked by open_shard
    uint32_t number = 0;
    qn_map_find(&set->numbers, shard, file.size, &number);
    const qn_tensor *t = qn_source_find_tensor(set->source, name);
    qn_status status = QN_OK;
    if (!t || t->i_file != (int)number)
        status = QN_FAIL(err, FORMAT, "tensor %s: not in %s, where the index has it%s%s", name,
                         shard, t ? ", but in " : "", t ? set->source->files[t->i_file].path : "");
    if (name != short_name) qn_free(name);
    return status;
}

static qn_status read_index(qn_source *source, qn_json_reader r, qn_err *err) {
    shards set = {.source = source, .folder = source->folder};
    qn_status status = walk_index(&set, r, open_shard, err);
    if (!status) status = qn_source_finish(source, err);
    if (!status) status = walk_index(&set, r, check_entry, err);
    qn_map_deinit(&set.numbers);
    return status;
}

qn_status qn_safetensors_open_index(qn_source *source, const char *path, qn_err *err) {
    source->kind = QN_SOURCE_SAFETENSORS;
    char *text;
    size_t size;
    QN_TRY(qn_files_load(&text, &size, source->given, path, MAX_INDEX, err));
    qn_store_allow(&source->store, (int64_t)size);
    qn_status status = qn_store_charge(&source->store, size + 1, 1, "the index", err);
    if (!status) {
        const qn_json_reader r = {.text = text, .size = size, .what = "index", .takes_nan = true};
        status = qn_config_read(source, err);
        if (!status) status = qn_err_prefix(err, read_index(source, r, err), "%s", path);
        qn_store_discharge(&source->store, size + 1);
    }
    qn_free(text);
    return status;
}
