#define _XOPEN_SOURCE 700 // realpath
// What other programs have on the disk. Only read, and hostile: links may leave the folder, notes
// may be endless, sizes may lie. What is odd is left out.
#include "core/buf.h"
#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "hub/digest.h"
#include "hub/filename.h"
#include "hub/spec.h"
#include "hub/stock_int.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

// The folder itself with all links followed (owned: qn_free); NULL: it is not there.
static qn_status real_folder(char **out, const char *path, qn_err *err) {
    *out = realpath(path, NULL);
    return *out || errno != ENOMEM ? QN_OK : QN_NOMEM(err, "a path");
}

// --- Hugging Face --------------------------------------------------------------------------------

enum { COMMIT = 40 };

static bool is_commit(const char *text, size_t n) {
    return n == COMMIT && strspn(text, "0123456789abcdef") >= COMMIT;
}

// snapshots/COMMIT of refs/main, else the only one or the last by name (owned); NULL: none.
static qn_status find_snapshot(char **out, qn_stock *stock, const char *folder, qn_err *err) {
    char *ref = qn_path_join(folder, "refs/main"), *snapshots = qn_path_join(folder, "snapshots");
    char *text = NULL;
    size_t size = 0;
    qn_names names = {0};
    const char *commit = NULL;
    qn_status status = ref && snapshots ? QN_OK : QN_NOMEM(err, "a path");
    *out = NULL;
    const qn_status loaded = status ? status : qn_file_load(&text, &size, ref, PATH_MAX, NULL);
    if (loaded == QN_MEMORY) status = QN_NOMEM(err, "a commit");
    if (!loaded) {
        text[strcspn(text, "\r\n")] = 0;
        if (is_commit(text, strlen(text))) commit = text;
    }
    if (!status && !commit) status = qn_names_read(&names, stock, snapshots, err);
    if (!commit && names.n) commit = names.items[names.n - 1];
    if (!status && commit) *out = qn_path_join(snapshots, commit);
    if (!status && commit && !*out) status = QN_NOMEM(err, "a path");
    qn_names_deinit(&names);
    qn_free(text);
    qn_free(ref);
    qn_free(snapshots);
    return status;
}

// "models--OWNER--REPO" -> "OWNER/REPO" (owned); NULL: it is something else.
static qn_status repo_of_folder(char **out, const char *name, qn_err *err) {
    static const char before[] = "models--";
    *out = NULL;
    if (strncmp(name, before, sizeof before - 1) != 0) return QN_OK;
    name += sizeof before - 1;
    const char *between = strstr(name, "--");
    const size_t owner = between ? (size_t)(between - name) : strlen(name);
    const char *repo = between ? between + 2 : NULL;
    if (!qn_hub_name_is_plain(name, owner)) return QN_OK;
    if (repo && !qn_hub_name_is_plain(repo, strlen(repo))) return QN_OK;
    qn_buf text = {0};
    qn_buf_printf(&text, "%.*s%s%s", (int)owner, name, repo ? "/" : "", repo ? repo : "");
    return qn_buf_take(out, &text, err);
}

static qn_status add_hf_repo(qn_stock *stock, const char *folder, const char *root,
                             const char *name, qn_err *err) {
    char *repo, *snapshot = NULL;
    QN_TRY(repo_of_folder(&repo, name, err));
    if (!repo) return QN_OK;
    char *path = qn_path_join(folder, name);
    qn_status status = path ? find_snapshot(&snapshot, stock, path, err) : QN_NOMEM(err, "a path");
    if (!status && snapshot) {
        const qn_stock_folder at = {
            .keeper = QN_KEEPER_HF, .path = snapshot, .repo = repo, .root = root};
        status = qn_stock_walk(stock, &at, err);
    }
    qn_free(snapshot);
    qn_free(path);
    qn_free(repo);
    return status;
}

qn_status qn_stock_add_hf(qn_stock *stock, const char *folder, qn_err *err) {
    char *root;
    qn_names names = {0};
    QN_TRY(real_folder(&root, folder, err));
    if (!root) return QN_OK;
    qn_status status = qn_names_read(&names, stock, folder, err);
    for (size_t i = 0; i < names.n && !status; i++)
        status = add_hf_repo(stock, folder, root, names.items[i], err);
    qn_names_deinit(&names);
    qn_free(root);
    return status;
}

// --- llama.cpp -----------------------------------------------------------------------------------

enum { MAX_NOTES = 64 << 10, MAX_MANIFEST = 1 << 20 };

// A small JSON object; NULL: there is none, or it is something else.
static qn_status load_json(json_t **out, const char *path, int64_t max, qn_err *err) {
    char *text;
    size_t size;
    *out = NULL;
    qn_status status = qn_file_load(&text, &size, path, max, NULL);
    if (!status) {
        status = qn_json_parse(out, text, size, false, path, NULL);
        qn_free(text);
    }
    if (status) *out = NULL;
    return status == QN_MEMORY ? QN_NOMEM(err, path) : QN_OK;
}

// The repository and the file that "FILE.gguf.json" says; all NULL: it does not.
static qn_status read_origin(qn_spec *out, const char *path, qn_err *err) {
    qn_buf notes = {0};
    json_t *origin = NULL;
    qn_buf_printf(&notes, "%s.json", path);
    qn_status status =
        notes.failed ? QN_NOMEM(err, "a path") : load_json(&origin, notes.data, MAX_NOTES, err);
    const char *url = json_string_value(json_object_get(origin, "url"));
    *out = (qn_spec){0};
    if (!status && url && qn_spec_parse(out, url, "https://huggingface.co", NULL) == QN_MEMORY)
        status = QN_NOMEM(err, "a name");
    json_decref(origin);
    qn_buf_deinit(&notes);
    return status;
}

// "OWNER/REPO:TYPE" where that is known, else the file's name.
static qn_status name_llama(qn_stocked *m, const qn_spec *spec, qn_err *err) {
    const char *own = spec->which ? qn_path_name(spec->which) : qn_path_name(m->path);
    const qn_str type = qn_name_type(own), label = type.size ? type : qn_str_of(own);
    qn_buf name = {0}, repo = {0};
    m->stem = strndup(own, qn_split_name_read(own).stem);
    if (!m->stem) return QN_NOMEM(err, "a name");
    if (!spec->repo) return (m->name = strdup(m->stem)) ? QN_OK : QN_NOMEM(err, "a name");
    qn_buf_printf(&repo, "%s/%s", spec->owner, spec->repo);
    qn_buf_printf(&name, "%s/%s:%.*s", spec->owner, spec->repo, (int)label.size, label.data);
    const qn_status status = qn_buf_take(&m->repo, &repo, err);
    if (!status) return qn_buf_take(&m->name, &name, err);
    qn_buf_deinit(&name);
    return status;
}

// A folder of files of many repositories.
typedef struct llama {
    qn_stock *stock;
    const char *folder, *root;
    qn_names names;
} llama;

// The tower of the same repository, whose files begin with the same words (owned); NULL: none.
static qn_status find_llama_tower(char **out, const llama *l, const qn_spec *spec, qn_err *err) {
    qn_buf begin = {0};
    if (!spec->repo) return QN_OK;
    qn_buf_printf(&begin, "%s_%s_mmproj", spec->owner, spec->repo);
    qn_status status = begin.failed ? QN_NOMEM(err, "a name") : QN_OK;
    for (size_t i = 0; i < l->names.n && !status && !*out; i++) {
        int64_t bytes, modified;
        const char *name = l->names.items[i];
        if (strncasecmp(name, begin.data, begin.size) != 0 || !qn_name_is_gguf(name)) continue;
        *out = qn_path_join(l->folder, name);
        if (!*out) status = QN_NOMEM(err, "a path");
        if (!*out || qn_stock_is_inside(*out, l->root, &bytes, &modified)) continue;
        qn_free(*out);
        *out = NULL;
    }
    qn_buf_deinit(&begin);
    return status;
}

static bool is_llama_model(const char *name) {
    return qn_name_is_gguf(name) && !qn_name_is_tower(name) && !strstr(name, "_mmproj") &&
           qn_split_name_read(name).part <= 1;
}

static qn_status add_llama_file(const llama *l, const char *name, qn_err *err) {
    qn_spec spec = {0};
    qn_stocked m = {.keeper = QN_KEEPER_LLAMA, .path = qn_path_join(l->folder, name)};
    if (!m.path) return QN_NOMEM(err, "a path");
    if (!qn_stock_is_inside(m.path, l->root, &m.bytes, &m.modified)) {
        qn_stocked_deinit(&m);
        return QN_OK;
    }
    const int of = qn_split_name_read(name).of;
    m.n_files = of ? of : 1;
    qn_status status = read_origin(&spec, m.path, err);
    if (!status) status = name_llama(&m, &spec, err);
    if (!status) status = find_llama_tower(&m.tower, l, &spec, err);
    qn_spec_deinit(&spec);
    if (!status) return qn_stock_add(l->stock, &m, err);
    qn_stocked_deinit(&m);
    return status;
}

qn_status qn_stock_add_llama(qn_stock *stock, const char *folder, qn_err *err) {
    char *root;
    QN_TRY(real_folder(&root, folder, err));
    if (!root) return QN_OK;
    llama l = {.stock = stock, .folder = folder, .root = root};
    qn_status status = qn_names_read(&l.names, stock, folder, err);
    for (size_t i = 0; i < l.names.n && !status; i++) {
        if (is_llama_model(l.names.items[i])) status = add_llama_file(&l, l.names.items[i], err);
    }
    qn_names_deinit(&l.names);
    qn_free(root);
    return status;
}

// --- Ollama --------------------------------------------------------------------------------------

typedef struct ollama {
    qn_stock *stock;
    const char *folder, *root;
    const char *parts[4]; // HOST, NAMESPACE, NAME, TAG
} ollama;

// The file of a layer, as large as the manifest says it is (owned); NULL: there is none.
static qn_status layer_file(char **out, const ollama *o, const json_t *layer, int64_t *bytes,
                            int64_t *modified, qn_err *err) {
    static const char before[] = "sha256:";
    const char *digest = json_string_value(json_object_get(layer, "digest"));
    qn_buf path = {0};
    *out = NULL;
    if (!digest || strncmp(digest, before, sizeof before - 1) != 0) return QN_OK;
    digest += sizeof before - 1;
    if (!qn_digest_is(digest)) return QN_OK;
    qn_buf_printf(&path, "%s/blobs/sha256-%s", o->folder, digest);
    QN_TRY(qn_buf_take(out, &path, err));
    if (qn_stock_is_inside(*out, o->root, bytes, modified) &&
        json_integer_value(json_object_get(layer, "size")) == *bytes)
        return QN_OK;
    qn_free(*out);
    *out = NULL;
    return QN_OK;
}

// The first layer of that kind that has a file.
static qn_status find_layer(char **out, const ollama *o, const json_t *manifest, const char *kind,
                            int64_t *bytes, int64_t *modified, qn_err *err) {
    const json_t *layers = json_object_get(manifest, "layers");
    for (size_t i = 0; i < json_array_size(layers) && !*out; i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        if (type && strcmp(type, kind) == 0)
            QN_TRY(layer_file(out, o, layer, bytes, modified, err));
    }
    return QN_OK;
}

// NAME:TAG as people type it there; what is from the hub has the hub's names.
static qn_status name_ollama(qn_stocked *m, const ollama *o, qn_err *err) {
    const char *host = o->parts[0], *space = o->parts[1];
    const bool is_usual = strcmp(host, "registry.ollama.ai") == 0;
    const bool is_hub = strcmp(host, "hf.co") == 0 || strcmp(host, "huggingface.co") == 0;
    qn_buf repo = {0}, name = {0};
    if (!is_usual && !is_hub) qn_buf_printf(&repo, "%s/", host);
    if (!is_usual || strcmp(space, "library") != 0) qn_buf_printf(&repo, "%s/", space);
    qn_buf_text(&repo, o->parts[2]);
    QN_TRY(qn_buf_take(&m->repo, &repo, err));
    qn_buf_printf(&name, "%s:%s", m->repo, o->parts[3]);
    return qn_buf_take(&m->name, &name, err);
}

static qn_status describe(qn_stocked *m, const ollama *o, const json_t *manifest, qn_err *err) {
    int64_t bytes, modified;
    QN_TRY(find_layer(&m->path, o, manifest, "application/vnd.ollama.image.model", &m->bytes,
                      &m->modified, err));
    if (!m->path) return QN_OK;
    QN_TRY(find_layer(&m->tower, o, manifest, "application/vnd.ollama.image.projector", &bytes,
                      &modified, err));
    return name_ollama(m, o, err);
}

static qn_status add_manifest(const ollama *o, const char *path, qn_err *err) {
    int64_t bytes, modified;
    json_t *manifest;
    qn_stocked m = {.keeper = QN_KEEPER_OLLAMA, .n_files = 1};
    if (!qn_stock_is_inside(path, o->root, &bytes, &modified)) return QN_OK;
    QN_TRY(load_json(&manifest, path, MAX_MANIFEST, err));
    const qn_status status = describe(&m, o, manifest, err);
    json_decref(manifest);
    if (!status && m.path) return qn_stock_add(o->stock, &m, err);
    qn_stocked_deinit(&m);
    return status;
}

// manifests/HOST/NAMESPACE/NAME/TAG: a level of them.
static qn_status look_in(ollama *o, const char *path, size_t level, qn_err *err) {
    qn_names names;
    enum { LEVELS = sizeof o->parts / sizeof *o->parts };
    QN_TRY(qn_names_read(&names, o->stock, path, err));
    qn_status status = QN_OK;
    for (size_t i = 0; i < names.n && !status; i++) {
        char *below = qn_path_join(path, names.items[i]);
        struct stat st;
        o->parts[level] = names.items[i];
        if (!below)
            status = QN_NOMEM(err, "a path");
        else if (level + 1 == LEVELS)
            status = add_manifest(o, below, err);
        else if (lstat(below, &st) == 0 && S_ISDIR(st.st_mode))
            status = look_in(o, below, level + 1, err);
        qn_free(below);
    }
    qn_names_deinit(&names);
    return status;
}

qn_status qn_stock_add_ollama(qn_stock *stock, const char *folder, qn_err *err) {
    char *root;
    QN_TRY(real_folder(&root, folder, err));
    if (!root) return QN_OK;
    char *manifests = qn_path_join(folder, "manifests");
    ollama o = {.stock = stock, .folder = folder, .root = root};
    const qn_status status = manifests ? look_in(&o, manifests, 0, err) : QN_NOMEM(err, "a path");
    qn_free(root);
    qn_free(manifests);
    return status;
}
