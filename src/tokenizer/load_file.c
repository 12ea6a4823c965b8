// Finding the tokenizer: which kind of file a path is, and which files lie next to it.
#include "core/file.h"
#include "tokenizer/load_json.h"

enum {
    FILE_MAX = 1 << 29,
    COMPANION_MAX = 16 << 20
}; // bytes of a tokenizer file and of its companions

// --- companions ----------------------------------------------------------------------------------

qn_status qn_companion_load(json_t **out, const qn_location *folder, const char *name,
                            qn_err *err) {
    char *path = qn_path_join(folder->path, name);
    char *text = NULL;
    size_t size;
    qn_status status = QN_OK;
    *out = NULL;
    if (!path) return QN_NOMEM(err, "path");
    if (!qn_files_has(folder->files, path)) goto done;
    QN_TRY_TO(done, qn_files_load(&text, &size, folder->files, path, COMPANION_MAX, err));
    QN_TRY_TO(done, qn_json_parse(out, text, size, true, path, err));
done:
    qn_free(text);
    qn_free(path);
    return status;
}

// The id of a token given by name, as "text" or {"content": "text"}; *id stays if it is not there.
static void read_named(int32_t *id, const qn_tokenizer *tokenizer, const json_t *config,
                       const char *key) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!json_is_string(value)) return;
    const qn_str name = qn_json_text(value);
    const int32_t found = qn_vocab_find(&tokenizer->vocab, name.data, name.size);
    if (found >= 0) *id = found;
}

static qn_status read_config(qn_tokenizer *tokenizer, const json_t *config, bool is_model,
                             qn_err *err) {
    static const char what[] = "tokenizer_config.json";
    qn_tokenizer_info *info = &tokenizer->info;
    read_named(&info->bos, tokenizer, config, "bos_token");
    read_named(&info->eos, tokenizer, config, "eos_token");
    read_named(&info->pad, tokenizer, config, "pad_token");
    qn_tokenizer_add_end(tokenizer, info->eos);
    if (!is_model) return QN_OK;
    QN_TRY(qn_json_get_bool(&info->add_bos, config, "add_bos_token", info->add_bos, what, err));
    QN_TRY(qn_json_get_bool(&info->add_eos, config, "add_eos_token", info->add_eos, what, err));
    info->add_bos &= info->bos >= 0;
    info->add_eos &= info->eos >= 0;
    tokenizer->before = (qn_wrap){{info->bos}, info->add_bos};
    tokenizer->after = (qn_wrap){{info->eos}, info->add_eos};
    return QN_OK;
}

static void add_end(qn_tokenizer *tokenizer, const json_t *id) {
    const double value = json_number_value(id);
    if (json_is_number(id) && value >= 0 && value < INT32_MAX)
        qn_tokenizer_add_end(tokenizer, (int64_t)value);
}

static void read_ends(qn_tokenizer *tokenizer, const json_t *config) {
    const json_t *ends = json_object_get(config, "eos_token_id");
    add_end(tokenizer, ends);
    for (size_t i = 0; i < json_array_size(ends) && i < QN_ENDS_MAX; i++)
        add_end(tokenizer, json_array_get(ends, i));
}

// config.json names the end tokens too.
static void read_source_ends(qn_tokenizer *tokenizer, const qn_source *source) {
    const qn_key *key = qn_source_find_key(source, "eos_token_id");
    if (!key) return;
    if (key->kind == QN_KEY_INT) qn_tokenizer_add_end(tokenizer, key->as.i);
    if (!qn_key_is_array_of(key, QN_KEY_INT)) return;
    for (size_t i = 0; i < key->n && i < QN_ENDS_MAX; i++)
        qn_tokenizer_add_end(tokenizer, qn_key_int_at(key, i));
}

qn_status qn_tokenizer_read_companions(qn_tokenizer *tokenizer, const qn_location *folder,
                                       bool is_model, qn_err *err) {
    json_t *config = NULL, *generation = NULL;
    qn_status status;
    QN_TRY_TO(done, qn_companion_load(&config, folder, "tokenizer_config.json", err));
    QN_TRY_TO(done, qn_companion_load(&generation, folder, "generation_config.json", err));
    if (config) QN_TRY_TO(done, read_config(tokenizer, config, is_model, err));
    if (generation) read_ends(tokenizer, generation);
done:
    json_decref(config);
    json_decref(generation);
    return status;
}

// --- files ---------------------------------------------------------------------------------------

typedef qn_status content_fn(qn_tokenizer **out, const char *bytes, size_t size, const char *name,
                             qn_err *err);

static qn_status open_content(qn_tokenizer **out, const qn_files *files, const char *path,
                              content_fn *load, qn_err *err) {
    char *bytes;
    size_t size;
    qn_tokenizer *tokenizer = NULL;
    QN_TRY(qn_files_load(&bytes, &size, files, path, FILE_MAX, err));
    qn_status status = load(&tokenizer, bytes, size, path, err);
    qn_free(bytes);
    if (status) return status;
    char *folder = qn_path_folder(path);
    status = folder ? qn_tokenizer_read_companions(tokenizer, &(qn_location){folder, files},
                                                   load == qn_tokenizer_from_model, err)
                    : QN_NOMEM(err, "path");
    qn_free(folder);
    if (status) {
        qn_tokenizer_close(tokenizer);
        return status;
    }
    *out = tokenizer;
    return QN_OK;
}

qn_status qn_tokenizer_from_source(qn_tokenizer **out, const qn_source *source, qn_err *err) {
    if (qn_source_get_kind(source) == QN_SOURCE_GGUF)
        return qn_tokenizer_from_gguf(out, source, err);
    static const struct {
        const char *name;
        content_fn *load;
    } files[] = {{"tokenizer.json", qn_tokenizer_from_json},
                 {"tokenizer.model", qn_tokenizer_from_model}};
    const qn_location *folder = qn_source_place(source);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = qn_path_join(folder->path, files[i].name);
        if (!path) return QN_NOMEM(err, "path");
        const bool is_there = qn_files_has(folder->files, path);
        const qn_status status =
            is_there ? open_content(out, folder->files, path, files[i].load, err) : QN_OK;
        qn_free(path);
        if (is_there && status == QN_OK) read_source_ends(*out, source);
        if (is_there) return status;
    }
    return QN_FAIL(err, IO, "%s: no tokenizer.json and no tokenizer.model in it", folder->path);
}

static qn_status open_source(qn_tokenizer **out, const char *path, qn_err *err) {
    qn_source *source;
    QN_TRY(qn_source_open(&source, path, err));
    const qn_status status = qn_tokenizer_from_source(out, source, err);
    qn_source_close(source);
    return status;
}

// What the first bytes say. A SentencePiece model mostly begins with a piece, but need not.
typedef enum guess { IS_SOURCE, IS_JSON, IS_MODEL, IS_ANYTHING } guess;

static qn_status look_at(guess *out, const char *path, qn_err *err) {
    qn_file file;
    char head[64] = {0};
    QN_TRY(qn_file_open(&file, path, err));
    const size_t n = file.size < (int64_t)sizeof head ? (size_t)file.size : sizeof head;
    const qn_status status = qn_file_read(&file, 0, head, n, err);
    qn_file_close(&file);
    if (status) return status;
    size_t i = 0;
    while (i < n && (head[i] == ' ' || head[i] == '\t' || head[i] == '\r' || head[i] == '\n')) i++;
    // A safetensors file opens with the length of its header, and byte 8 is its brace.
    const bool is_source = (n >= 4 && memcmp(head, "GGUF", 4) == 0) || (n > 8 && head[8] == '{');
    *out = IS_ANYTHING;
    if (n > 0 && head[0] == '\n') *out = IS_MODEL;
    if (is_source) *out = IS_SOURCE;
    if (i < n && head[i] == '{') *out = IS_JSON;
    return QN_OK;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

qn_status qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_err *err) {
    QN_NEED(out, err);
    if (!path) return QN_FAIL(err, ARGUMENT, "qn_tokenizer_open: NULL");
    if (qn_path_is_folder(path) || ends_with(path, ".index.json"))
        return open_source(out, path, err);
    guess what = IS_SOURCE;
    QN_TRY(look_at(&what, path, err));
    if (what == IS_JSON) return open_content(out, NULL, path, qn_tokenizer_from_json, err);
    if (what == IS_MODEL) return open_content(out, NULL, path, qn_tokenizer_from_model, err);
    if (what == IS_ANYTHING) {
        const qn_status status = open_content(out, NULL, path, qn_tokenizer_from_model, err);
        if (!status || status == QN_MEMORY) return status;
    }
    // Damaged or foreign: the message is that of the model files.
    return open_source(out, path, err);
}
