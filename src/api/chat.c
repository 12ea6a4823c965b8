// Where chat templates come from: a file, the keys of a GGUF file, the files of a checkpoint.
#include "chat/template.h"

#include "core/file.h"
#include "core/mem.h"
#include "formats/source.h"
#include "runtime/engine.h"
#include "tokenizer/load_json.h"

enum { FILE_MAX = 8 << 20 };

static bool is_default(const char *name) { return !name || strcmp(name, "default") == 0; }

static qn_status has_none(const char *path, const char *name, qn_err *err) {
    if (is_default(name)) return QN_FAIL(err, UNSUPPORTED, "%s: it has no chat template", path);
    return QN_FAIL(err, UNSUPPORTED, "%s: it has no chat template named '%s'", path, name);
}

static qn_status create_from_file(qn_template **out, const qn_files *files, const char *path,
                                  qn_err *err) {
    char *text;
    size_t size;
    QN_TRY(qn_files_load(&text, &size, files, path, FILE_MAX, err));
    const qn_status status = qn_template_create(out, text, size, err);
    qn_free(text);
    return status ? qn_err_prefix(err, status, "%s", path) : QN_OK;
}

// --- GGUF ----------------------------------------------------------------------------------------

static const qn_str *find_token(qn_str *out, const qn_source *source, const char *id_key) {
    const qn_key *id = qn_source_find_key(source, id_key);
    const qn_key *tokens = qn_source_find_key(source, "tokenizer.ggml.tokens");
    if (!id || id->kind != QN_KEY_INT || id->as.i < 0) return NULL;
    if (!tokens || !qn_key_is_array_of(tokens, QN_KEY_STRING)) return NULL;
    if ((uint64_t)id->as.i >= tokens->n) return NULL;
    *out = qn_key_string_at(tokens, (size_t)id->as.i);
    return out;
}

static qn_status open_keys(qn_template **out, const qn_source *source, const char *name,
                           qn_err *err) {
    static const char plain[] = "tokenizer.chat_template";
    char key[160];
    const int n = is_default(name) ? snprintf(key, sizeof key, "%s", plain)
                                   : snprintf(key, sizeof key, "%s.%s", plain, name);
    const char *path = qn_source_path(source);
    const qn_key *text = (size_t)n < sizeof key ? qn_source_find_key(source, key) : NULL;
    if (!text || text->kind != QN_KEY_STRING) return has_none(path, name, err);
    qn_template *template;
    const qn_status status = qn_template_create(&template, text->as.s.data, text->as.s.size, err);
    if (status) return qn_err_prefix(err, status, "%s", path);
    qn_str bos, eos;
    const qn_status ends =
        qn_template_set_ends(template, find_token(&bos, source, "tokenizer.ggml.bos_token_id"),
                             find_token(&eos, source, "tokenizer.ggml.eos_token_id"), err);
    if (ends)
        qn_template_destroy(template);
    else
        *out = template;
    return ends;
}

// --- folders -------------------------------------------------------------------------------------

static qn_status has_file(bool *out, const char *folder, const char *name, qn_err *err) {
    char *path = qn_path_join(folder, name);
    if (!path) return QN_NOMEM(err, "path");
    *out = qn_path_is_file(path);
    qn_free(path);
    return QN_OK;
}

// Opens folder/name if it is there; *out stays NULL if not.
static qn_status try_file(qn_template **out, const qn_location *folder, const char *name,
                          qn_err *err) {
    char *path = qn_path_join(folder->path, name);
    if (!path) return QN_NOMEM(err, "path");
    const qn_status status =
        qn_files_has(folder->files, path) ? create_from_file(out, folder->files, path, err) : QN_OK;
    qn_free(path);
    return status;
}

// "chat_template" of a JSON file: a text, or a list of names and texts.
static qn_status try_json(qn_template **out, const json_t *json, const char *name, qn_err *err) {
    const json_t *text = json_object_get(json, "chat_template");
    if (json_is_string(text) && !is_default(name)) return QN_OK;
    if (json_is_array(text)) {
        const json_t *list = text;
        text = NULL;
        for (size_t i = 0; i < json_array_size(list) && !text; i++) {
            const json_t *item = json_array_get(list, i);
            const char *item_name = json_string_value(json_object_get(item, "name"));
            if (item_name && strcmp(item_name, name ? name : "default") == 0)
                text = json_object_get(item, "template");
        }
    }
    if (!json_is_string(text)) return QN_OK;
    return qn_template_create(out, json_string_value(text), json_string_length(text), err);
}

static const qn_str *json_token(qn_str *out, const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!json_is_string(value)) return NULL;
    *out = (qn_str){json_string_value(value), json_string_length(value)};
    return out;
}

static qn_status try_all(qn_template **out, const qn_location *folder, const char *name,
                         const json_t *config, qn_err *err) {
    json_t *own = NULL;
    char file[160] = "chat_template.jinja";
    if (!is_default(name))
        snprintf(file, sizeof file, "additional_chat_templates/%.100s.jinja", name);
    if (name && strchr(name, '/')) return QN_FAIL(err, ARGUMENT, "'%s' names no template", name);
    QN_TRY(try_file(out, folder, file, err));
    if (*out) return QN_OK;
    QN_TRY(qn_companion_load(&own, folder, "chat_template.json", err));
    qn_status status = try_json(out, own, name, err);
    json_decref(own);
    if (!status && !*out) status = try_json(out, config, name, err);
    return status ? qn_err_prefix(err, status, "%s", folder->path) : QN_OK;
}

static qn_status open_folder(qn_template **out, const qn_location *folder, const char *name,
                             qn_err *err) {
    json_t *config = NULL;
    qn_template *template = NULL;
    qn_str bos, eos;
    QN_TRY(qn_companion_load(&config, folder, "tokenizer_config.json", err));
    qn_status status = try_all(&template, folder, name, config, err);
    if (!status && !template) status = has_none(folder->path, name, err);
    if (!status)
        status = qn_template_set_ends(template, json_token(&bos, config, "bos_token"),
                                      json_token(&eos, config, "eos_token"), err);
    json_decref(config);
    if (status)
        qn_template_destroy(template);
    else
        *out = template;
    return status;
}

// --- any -----------------------------------------------------------------------------------------

static qn_status open_source(qn_template **out, const qn_source *source, const char *name,
                             qn_err *err) {
    if (qn_source_get_kind(source) == QN_SOURCE_GGUF) return open_keys(out, source, name, err);
    return open_folder(out, qn_source_place(source), name, err);
}

static bool is_jinja(const char *path) {
    const size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".jinja") == 0;
}

qn_status qn_template_open(qn_template **out, const char *path, const char *name, qn_err *err) {
    QN_NEED(out, err);
    if (!path) return QN_FAIL(err, ARGUMENT, "no model was named");
    if (is_jinja(path))
        return is_default(name) ? create_from_file(out, NULL, path, err)
                                : has_none(path, name, err);
    // A folder need not have weights to have a template.
    bool has_own = false, has_config = false;
    if (qn_path_is_folder(path)) {
        QN_TRY(has_file(&has_own, path, "chat_template.jinja", err));
        QN_TRY(has_file(&has_config, path, "tokenizer_config.json", err));
    }
    if (has_own || has_config) return open_folder(out, &(qn_location){.path = path}, name, err);
    qn_source *source;
    QN_TRY(qn_source_open(&source, path, err));
    const qn_status status = open_source(out, source, name, err);
    qn_source_close(source);
    return status;
}

qn_status qn_engine_template(qn_template **out, const qn_engine *engine, const char *name,
                             qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_TRY(open_source(out, engine->source, name, err));
    qn_template_own_ends(*out);
    return QN_OK;
}
