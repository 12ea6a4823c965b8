#define _XOPEN_SOURCE 700 // realpath
// What other programs have on the disk. Only read, and hostile: links may leave the folder, notes
// may be endless, sizes may lie. What is odd is left out.
#include "core/buf.h"
#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "hub/filename.h"
#include "hub/spec.h"
#include "hub/stock_int.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

// The folder itself with all links followed (owned: qn_free); NULL: it is not there.
static char *real_folder(const char *path) { return realpath(path, NULL); }

// --- Hugging Face --------------------------------------------------------------------------------

enum { COMMIT = 40 };

static bool is_commit(const char *text, size_t n) {
    return n == COMMIT && strspn(text, "0123456789abcdef") >= COMMIT;
}

// snapshots/COMMIT of refs/main, else the only one or the last by name (owned); NULL: none.
static qn_status find_snapshot(char **out, const char *folder, qn_err *err) {
    char *ref = qn_path_join(folder, "refs/main"), *snapshots = qn_path_join(folder, "snapshots");
    char *text = NULL;
    size_t size = 0;
    qn_names names = {0};
    const char *commit = NULL;
    qn_status status = ref && snapshots ? QN_OK : QN_NOMEM(err, "a path");
    *out = NULL;
    if (!status && qn_file_load(&text, &size, ref, PATH_MAX, NULL) == QN_OK) {
        text[strcspn(text, "\r\n")] = 0;
        if (is_commit(text, strlen(text))) commit = text;
    }
    if (!status && !commit) status = qn_names_read(&names, snapshots, err);
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
static char *repo_of_folder(const char *name) {
    static const char before[] = "models--";
    if (strncmp(name, before, sizeof before - 1) != 0) return NULL;
    name += sizeof before - 1;
    const char *between = strstr(name, "--");
    const size_t owner = between ? (size_t)(between - name) : strlen(name);
    const char *repo = between ? between + 2 : NULL;
    if (!qn_hub_name_is_plain(name, owner)) return NULL;
    if (repo && !qn_hub_name_is_plain(repo, strlen(repo))) return NULL;
    qn_buf text = {0};
    char *out = NULL;
    qn_buf_printf(&text, "%.*s%s%s", (int)owner, name, repo ? "/" : "", repo ? repo : "");
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

static qn_status add_hf_repo(qn_stock *stock, const char *folder, const char *root,
                             const char *name, qn_err *err) {
    char *repo = repo_of_folder(name), *path = repo ? qn_path_join(folder, name) : NULL;
    char *snapshot = NULL;
    qn_status status = path ? find_snapshot(&snapshot, path, err) : QN_OK;
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
    char *root = real_folder(folder);
    qn_names names = {0};
    if (!root) return QN_OK;
    qn_status status = qn_names_read(&names, folder, err);
    for (size_t i = 0; i < names.n && !status; i++)
        status = add_hf_repo(stock, folder, root, names.items[i], err);
    qn_names_deinit(&names);
    qn_free(root);
    return status;
}

// --- llama.cpp -----------------------------------------------------------------------------------

enum { MAX_NOTES = 64 << 10, MAX_MANIFEST = 1 << 20 };

// A small JSON object; NULL: there is none, or it is something else.
static json_t *load_json(const char *path, int64_t max) {
    char *text;
    size_t size;
    json_t *value = NULL;
    if (qn_file_load(&text, &size, path, max, NULL)) return NULL;
    if (qn_json_parse(&value, text, size, false, path, NULL)) value = NULL;
    qn_free(text);
    return value;
}

// The repository and the file that "FILE.gguf.json" says; all NULL: it does not.
static void read_origin(qn_spec *out, const char *path) {
    qn_buf notes = {0};
    qn_buf_printf(&notes, "%s.json", path);
    json_t *origin = notes.failed ? NULL : load_json(notes.data, MAX_NOTES);
    const char *url = json_string_value(json_object_get(origin, "url"));
    *out = (qn_spec){0};
    if (url && qn_spec_parse(out, url, "https://huggingface.co", NULL)) *out = (qn_spec){0};
    json_decref(origin);
    qn_buf_deinit(&notes);
}

// "OWNER/REPO:TYPE" where that is known, else the file's name.
static void name_llama(qn_stocked *m, const qn_spec *spec) {
    const char *own = spec->which ? qn_path_name(spec->which) : qn_path_name(m->path);
    const qn_str type = qn_name_type(own);
    qn_buf name = {0}, repo = {0};
    m->stem = strndup(own, qn_split_name_read(own).stem);
    if (spec->repo) {
        qn_buf_printf(&repo, "%s/%s", spec->owner, spec->repo);
        qn_buf_printf(&name, "%s/%s:%.*s", spec->owner, spec->repo,
                      (int)(type.size ? type.size : strlen(own)), type.size ? type.data : own);
        (void)!qn_buf_take(&m->repo, &repo, NULL);
    } else if (m->stem) {
        qn_buf_text(&name, m->stem);
    }
    if (name.size == 0 || qn_buf_take(&m->name, &name, NULL)) m->name = NULL;
    qn_buf_deinit(&name);
    qn_buf_deinit(&repo);
}

// The tower of the same repository, whose files begin with the same words.
static char *find_llama_tower(const qn_names *names, const char *folder, const char *root,
                              const qn_spec *spec) {
    qn_buf begin = {0};
    char *found = NULL;
    if (!spec->repo) return NULL;
    qn_buf_printf(&begin, "%s_%s_mmproj", spec->owner, spec->repo);
    for (size_t i = 0; i < names->n && !begin.failed && !found; i++) {
        int64_t bytes, modified;
        const char *name = names->items[i];
        if (strncasecmp(name, begin.data, begin.size) != 0 || !qn_name_is_gguf(name)) continue;
        found = qn_path_join(folder, name);
        if (found && qn_stock_is_inside(found, root, &bytes, &modified)) continue;
        qn_free(found);
        found = NULL;
    }
    qn_buf_deinit(&begin);
    return found;
}

static bool is_llama_model(const char *name) {
    return qn_name_is_gguf(name) && !qn_name_is_tower(name) && !strstr(name, "_mmproj") &&
           qn_split_name_read(name).part <= 1;
}

static qn_status add_llama_file(qn_stock *stock, const qn_names *names, const char *folder,
                                const char *root, const char *name, qn_err *err) {
    qn_spec spec;
    qn_stocked m = {.keeper = QN_KEEPER_LLAMA, .n_files = 1, .path = qn_path_join(folder, name)};
    if (!m.path) return QN_NOMEM(err, "a path");
    if (!qn_stock_is_inside(m.path, root, &m.bytes, &m.modified)) {
        qn_stocked_deinit(&m);
        return QN_OK;
    }
    const qn_split_name s = qn_split_name_read(name);
    m.n_files = s.of ? s.of : 1;
    read_origin(&spec, m.path);
    name_llama(&m, &spec);
    m.tower = find_llama_tower(names, folder, root, &spec);
    qn_spec_deinit(&spec);
    return qn_stock_add(stock, &m, err);
}

qn_status qn_stock_add_llama(qn_stock *stock, const char *folder, qn_err *err) {
    char *root = real_folder(folder);
    qn_names names = {0};
    if (!root) return QN_OK;
    qn_status status = qn_names_read(&names, folder, err);
    for (size_t i = 0; i < names.n && !status; i++) {
        if (is_llama_model(names.items[i]))
            status = add_llama_file(stock, &names, folder, root, names.items[i], err);
    }
    qn_names_deinit(&names);
    qn_free(root);
    return status;
}

// --- Ollama --------------------------------------------------------------------------------------

typedef struct ollama {
    qn_stock *stock;
    const char *folder, *root;
    const char *parts[4]; // HOST, NAMESPACE, NAME, TAG
} ollama;

// The file of a layer of that kind (owned), as large as the manifest says; NULL: there is none.
static char *find_layer(const ollama *o, const json_t *manifest, const char *kind, int64_t *bytes,
                        int64_t *modified) {
    static const char before[] = "sha256:";
    enum { HEX = 64 };
    const json_t *layers = json_object_get(manifest, "layers");
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        qn_buf path = {0};
        char *out = NULL;
        if (!type || strcmp(type, kind) != 0 || !digest) continue;
        if (strncmp(digest, before, sizeof before - 1) != 0) continue;
        digest += sizeof before - 1;
        if (strlen(digest) != HEX || strspn(digest, "0123456789abcdef") != HEX) continue;
        qn_buf_printf(&path, "%s/blobs/sha256-%s", o->folder, digest);
        if (qn_buf_take(&out, &path, NULL)) return NULL;
        if (qn_stock_is_inside(out, o->root, bytes, modified) &&
            json_integer_value(json_object_get(layer, "size")) == *bytes)
            return out;
        qn_free(out);
    }
    return NULL;
}

// NAME:TAG as people type it there; what is from the hub has the hub's names.
static void name_ollama(qn_stocked *m, const ollama *o) {
    const char *host = o->parts[0], *space = o->parts[1];
    const bool is_usual = strcmp(host, "registry.ollama.ai") == 0;
    const bool is_hub = strcmp(host, "hf.co") == 0 || strcmp(host, "huggingface.co") == 0;
    qn_buf repo = {0}, name = {0};
    if (!is_usual && !is_hub) qn_buf_printf(&repo, "%s/", host);
    if (!is_usual || strcmp(space, "library") != 0) qn_buf_printf(&repo, "%s/", space);
    qn_buf_text(&repo, o->parts[2]);
    if (!repo.failed) qn_buf_printf(&name, "%s:%s", repo.data, o->parts[3]);
    if (qn_buf_take(&m->repo, &repo, NULL)) m->repo = NULL;
    if (name.size == 0 || qn_buf_take(&m->name, &name, NULL)) m->name = NULL;
    qn_buf_deinit(&repo);
    qn_buf_deinit(&name);
}

static qn_status add_manifest(const ollama *o, const char *path, qn_err *err) {
    int64_t bytes, modified;
    qn_stocked m = {.keeper = QN_KEEPER_OLLAMA, .n_files = 1};
    if (!qn_stock_is_inside(path, o->root, &bytes, &modified)) return QN_OK;
    json_t *manifest = load_json(path, MAX_MANIFEST);
    m.path = find_layer(o, manifest, "application/vnd.ollama.image.model", &m.bytes, &m.modified);
    if (!m.path) {
        json_decref(manifest);
        return QN_OK;
    }
    m.tower = find_layer(o, manifest, "application/vnd.ollama.image.projector", &bytes, &modified);
    json_decref(manifest);
    name_ollama(&m, o);
    return qn_stock_add(o->stock, &m, err);
}

// manifests/HOST/NAMESPACE/NAME/TAG: a level of them.
static qn_status look_in(ollama *o, const char *path, size_t level, qn_err *err) {
    qn_names names;
    enum { LEVELS = sizeof o->parts / sizeof *o->parts };
    QN_TRY(qn_names_read(&names, path, err));
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
    char *root = real_folder(folder), *manifests = qn_path_join(folder, "manifests");
    ollama o = {.stock = stock, .folder = folder, .root = root};
    const qn_status status = root && manifests ? look_in(&o, manifests, 0, err) : QN_OK;
    qn_free(root);
    qn_free(manifests);
    return status;
}
