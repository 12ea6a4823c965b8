// Opening by what a path is: a file by its first bytes (never by its ending), or a folder.
#include "formats/source_build.h"

#include "core/buf.h"
#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

enum { FIRST_BYTES = 16 };

// --- files ---------------------------------------------------------------------------------------

// Other files that come as models, to name them in the refusal.
static const struct {
    const char *magic, *name;
} strangers[] = {
    {"FUGG", "a GGUF file with its bytes swapped (big endian)"},
    {"lmgg", "an old GGML file, from before GGUF"},
    {"tjgg", "an old GGJT file, from before GGUF"},
    {"fmgg", "an old GGMF file, from before GGUF"},
    {"algg", "an old GGLA adapter"},
    {"PK\x03\x04", "a zip archive (PyTorch's own format)"},
    {"\x80\x02", "a Python pickle"},
    {"\x89HDF", "an HDF5 file"},
    {"version https://", "a Git LFS pointer, not the file itself"},
};

static bool begins_with(const char *bytes, size_t n, const char *magic) {
    return n >= strlen(magic) && memcmp(bytes, magic, strlen(magic)) == 0;
}

static bool looks_like_json(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", bytes[i]) && bytes[i]) i++;
    if (i == n || bytes[i] != '{') return false;
    for (; i < n; i++) {
        if ((unsigned char)bytes[i] < 0x20 && (bytes[i] == 0 || !strchr("\t\r\n", bytes[i])))
            return false;
    }
    return true;
}

// A header length that fits, or an object where the header must begin.
static bool looks_like_safetensors(const char *bytes, size_t n, int64_t size) {
    if (n < 8) return false;
    if (n > 8 && bytes[8] == '{') return true;
    const uint64_t length = (uint64_t)qn_storage_int(QN_STORED_U64, bytes);
    return length >= 2 && length <= (uint64_t)size - 8;
}

static qn_status refuse(const char *path, const char *bytes, size_t n, qn_err *err) {
    const char *accepted =
        "accepted are GGUF, safetensors, a safetensors index (JSON) and a folder "
        "with one of them";
    if (n == 0) return QN_FAIL(err, FORMAT, "%s: the file is empty; %s", path, accepted);
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++) {
        if (begins_with(bytes, n, strangers[i].magic))
            return QN_FAIL(err, UNSUPPORTED, "%s: %s; %s", path, strangers[i].name, accepted);
    }
    char hex[3 * FIRST_BYTES + 1], text[FIRST_BYTES + 1] = "";
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        hex[3 * i] = "0123456789abcdef"[c >> 4];
        hex[3 * i + 1] = "0123456789abcdef"[c & 15];
        hex[3 * i + 2] = ' ';
        text[i] = c >= 0x20 && c < 0x7f ? (char)c : '.';
    }
    hex[3 * n - 1] = 0;
    return QN_FAIL(err, FORMAT, "%s: not a model file: begins with %s (\"%s\"); %s", path, hex,
                   text, accepted);
}

qn_status qn_content_of(qn_content *out, const qn_files *files, const char *path, qn_err *err) {
    qn_file file;
    QN_TRY(qn_files_open(&file, files, path, err));
    char bytes[FIRST_BYTES];
    const size_t n = file.size < FIRST_BYTES ? (size_t)file.size : FIRST_BYTES;
    qn_status status = qn_file_read(&file, 0, bytes, n, err);
    if (status) goto done;
    if (begins_with(bytes, n, "GGUF"))
        *out = QN_CONTENT_GGUF;
    else if (looks_like_json(bytes, n))
        *out = QN_CONTENT_JSON;
    else if (looks_like_safetensors(bytes, n, file.size))
        *out = QN_CONTENT_SAFETENSORS;
    else
        status = refuse(path, bytes, n, err);

done:
    qn_file_close(&file);
    return status;
}

// --- folders -------------------------------------------------------------------------------------

typedef struct name_list {
    const void **paths; // heap strings
    size_t n, cap;
} name_list;

static void name_list_deinit(name_list *list) {
    for (size_t i = 0; i < list->n; i++) qn_free((void *)(uintptr_t)list->paths[i]);
    qn_free(list->paths);
}

static bool ends_in(const char *name, const char *ending) {
    const size_t n = strlen(name), tail = strlen(ending);
    return n > tail && strcmp(name + n - tail, ending) == 0;
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

static qn_status add_path(name_list *list, const char *folder, const char *name, qn_err *err) {
    void *paths = list->paths;
    if (!qn_grow(&paths, &list->cap, list->n + 1, sizeof *list->paths))
        return QN_NOMEM(err, folder);
    list->paths = paths;
    char *path = qn_path_join(folder, name);
    if (!path) return QN_NOMEM(err, folder);
    list->paths[list->n++] = path;
    return QN_OK;
}

typedef struct listing {
    name_list gguf, safetensors;
} listing;

static qn_status add_name(listing *out, const char *folder, const char *name, qn_err *err) {
    if (name[0] == '.') return QN_OK; // hidden, and the ._ files of macOS
    if (ends_in(name, ".gguf")) return add_path(&out->gguf, folder, name, err);
    return ends_in(name, ".safetensors") ? add_path(&out->safetensors, folder, name, err) : QN_OK;
}

static void sort(listing *files) {
    qn_sort_pointers(files->gguf.paths, files->gguf.n, by_text);
    qn_sort_pointers(files->safetensors.paths, files->safetensors.n, by_text);
}

static qn_status list_folder(listing *out, const char *folder, qn_err *err) {
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOMEM) return QN_NOMEM(err, folder);
    if (!dir) return QN_FAIL(err, IO, "%s: cannot list: %s", folder, strerror(errno));
    qn_status status = QN_OK;
    for (struct dirent *entry; !status && (entry = readdir(dir));)
        status = add_name(out, folder, entry->d_name, err);
    closedir(dir);
    sort(out);
    return status;
}

static qn_status list_given(listing *out, const qn_source *source, qn_err *err) {
    const char *name;
    for (size_t i = 0; (name = qn_files_name(source->given, i)); i++)
        QN_TRY(add_name(out, source->folder, name, err));
    sort(out);
    return QN_OK;
}

static bool is_one_split_set(const name_list *list) {
    size_t base = 0, first_base = 0;
    int number, count = 0, first_count = 0;
    const char *first = list->paths[0];
    for (size_t i = 0; i < list->n; i++) {
        const char *path = list->paths[i];
        if (!qn_gguf_split_name(path, &base, &number, &count)) return false;
        if (i == 0) first_base = base, first_count = count;
        if (base != first_base || count != first_count || memcmp(path, first, base) != 0)
            return false;
    }
    return true;
}

static qn_status open_one_gguf(qn_source *source, const name_list *list, qn_err *err) {
    enum { MAX_LISTED = 8 };
    if (list->n == 1 || is_one_split_set(list)) return qn_gguf_open(source, list->paths[0], err);
    qn_buf names = {0};
    for (size_t i = 0; i < list->n && i < MAX_LISTED; i++) {
        const char *path = list->paths[i];
        const char *slash = strrchr(path, '/');
        qn_buf_printf(&names, "%s%s", i ? ", " : "", slash ? slash + 1 : path);
    }
    const qn_status status = QN_FAIL(
        err, ARGUMENT, "%s: holds %zu .gguf files; give the path of one of them: %s%s",
        source->path, list->n, names.data ? names.data : "", list->n > MAX_LISTED ? ", ..." : "");
    qn_buf_deinit(&names);
    return status;
}

// Calls `open` on a file of the folder if it is there; *found says so.
static qn_status open_if_there(bool *found, qn_source *source, const char *name, qn_open_fn *open,
                               qn_err *err) {
    char *path = qn_path_join(source->folder, name);
    if (!path) return QN_NOMEM(err, name);
    *found = qn_files_has(source->given, path);
    const qn_status status = *found ? open(source, path, err) : QN_OK;
    qn_free(path);
    return status;
}

static qn_status open_checkpoint(qn_source *source, const name_list *files, qn_err *err) {
    static const struct {
        const char *name;
        qn_open_fn *open;
    } usual[] = {{"model.safetensors", qn_safetensors_open},
                 {"model.safetensors.index.json", qn_safetensors_open_index}};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        bool found = false;
        QN_TRY(open_if_there(&found, source, usual[i].name, usual[i].open, err));
        if (found) return QN_OK;
    }
    return qn_safetensors_open_set(source, (const char *const *)files->paths, files->n, err);
}

static qn_status has_beside(bool *out, const qn_source *source, const char *name, qn_err *err) {
    char *path = qn_path_join(source->folder, name);
    if (!path) return QN_NOMEM(err, name);
    *out = qn_files_has(source->given, path);
    qn_free(path);
    return QN_OK;
}

static qn_status open_listed(qn_source *source, const listing *files, qn_err *err) {
    bool has_config, has_index, is_adapter;
    QN_TRY(has_beside(&has_config, source, "config.json", err));
    QN_TRY(has_beside(&has_index, source, "model.safetensors.index.json", err));
    const bool has_weights = files->safetensors.n > 0 || has_index;
    has_config |= source->config != NULL;
    if (has_config && has_weights) return open_checkpoint(source, &files->safetensors, err);
    if (files->gguf.n > 0 && !has_weights) return open_one_gguf(source, &files->gguf, err);
    QN_TRY(has_beside(&is_adapter, source, "adapter_config.json", err));
    if (has_weights && is_adapter)
        return QN_FAIL(err, FORMAT,
                       "%s is not a model but an adapter: give it with --lora FILE, beside its "
                       "model",
                       source->path);
    if (has_weights)
        return QN_FAIL(err, FORMAT, "%s: has safetensors but no config.json", source->path);
    if (has_config)
        return QN_FAIL(err, FORMAT, "%s: has config.json but no .safetensors and no .gguf file",
                       source->path);
    return QN_FAIL(err, FORMAT,
                   "%s: no model in this folder: no config.json with .safetensors files, no .gguf",
                   source->path);
}

static qn_status open_folder(qn_source *source, qn_err *err) {
    listing files = {0};
    qn_status status =
        source->given ? list_given(&files, source, err) : list_folder(&files, source->folder, err);
    if (!status) status = open_listed(source, &files, err);
    name_list_deinit(&files.gguf);
    name_list_deinit(&files.safetensors);
    return status;
}

// --- any path ------------------------------------------------------------------------------------

static qn_status open_file(qn_source *source, const char *path, qn_err *err) {
    static qn_open_fn *const openers[] = {[QN_CONTENT_GGUF] = qn_gguf_open,
                                          [QN_CONTENT_SAFETENSORS] = qn_safetensors_open,
                                          [QN_CONTENT_JSON] = qn_safetensors_open_index};
    qn_content content;
    QN_TRY(qn_content_of(&content, source->given, path, err));
    return openers[content](source, path, err);
}

static qn_status open_path(qn_source *source, const char *path, qn_err *err) {
    const bool is_folder = qn_path_is_folder(path);
    source->path = strdup(path);
    source->folder = is_folder ? strdup(path) : qn_path_folder(path);
    if (!source->path || !source->folder) return QN_NOMEM(err, "a path");
    source->place = (qn_location){.path = source->folder};
    return is_folder ? open_folder(source, err) : open_file(source, path, err);
}

// A checkpoint where there is one, else the first file.
static qn_status open_given(qn_source *source, const qn_model_file *files, size_t n, qn_err *err) {
    bool has_config;
    if (n == 0) return QN_FAIL(err, ARGUMENT, "no files were given");
    QN_TRY(qn_files_create(&source->given, files, n, err));
    source->path = strdup(files[0].name);
    source->folder = strdup(".");
    if (!source->path || !source->folder) return QN_NOMEM(err, "a path");
    source->place = (qn_location){source->folder, source->given};
    QN_TRY(has_beside(&has_config, source, "config.json", err));
    const bool is_checkpoint = has_config || source->config;
    return is_checkpoint ? open_folder(source, err) : open_file(source, source->path, err);
}

static qn_status open_any(qn_source *source, const qn_source_opts *opts, qn_err *err) {
    source->config = opts->config;
    QN_TRY(opts->path ? open_path(source, opts->path, err)
                      : open_given(source, opts->files, opts->n_files, err));
    if (opts->config && source->kind == QN_SOURCE_GGUF)
        return QN_FAIL(err, ARGUMENT,
                       "%s: a config was given, but this is a GGUF file, whose keys say everything",
                       source->path);
    source->config = NULL; // the caller's
    return QN_OK;
}

qn_status qn_source_create(qn_source **out, const qn_source_opts *opts, qn_err *err) {
    qn_source *source = qn_alloc(1, sizeof *source);
    if (!source) return QN_NOMEM(err, "a source");
    const qn_status status = open_any(source, opts, err);
    if (status)
        qn_source_close(source);
    else
        *out = source;
    return status;
}

qn_status qn_source_open(qn_source **out, const char *path, qn_err *err) {
    QN_NEED(out, err);
    if (!path) return QN_FAIL(err, ARGUMENT, "no path");
    return qn_source_create(out, &(qn_source_opts){.path = path}, err);
}

qn_status qn_source_open_files(qn_source **out, const qn_model_file *files, size_t n, qn_err *err) {
    QN_NEED(out, err);
    if (n) QN_NEED(files, err);
    return qn_source_create(out, &(qn_source_opts){.files = files, .n_files = n}, err);
}
