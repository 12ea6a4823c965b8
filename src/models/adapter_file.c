// Files of adapters: what they say of themselves, and their pairs of tensors.
#include "models/adapter.h"

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST_NAME = 320, MAX_CONFIG = 1 << 20, MAX_TARGETS = 4096 };

static const char peft_config[] = "adapter_config.json",
                  peft_weights[] = "adapter_model.safetensors";

// --- GGUF ----------------------------------------------------------------------------------------

static qn_status expect_text(const qn_adapter_file *file, const char *name, const char *want,
                             qn_err *err) {
    const qn_key *key = qn_source_find_key(file->source, name);
    if (!key || key->kind != QN_KEY_STRING)
        return QN_FAIL(err, FORMAT, "%s: not an adapter: no key %s", file->path, name);
    if (!qn_str_is(key->as.s, want))
        return QN_FAIL(err, FORMAT, "%s: %s is '%.64s', want '%s'", file->path, name,
                       key->as.s.data, want);
    return QN_OK;
}

static qn_status read_gguf(qn_adapter_file *file, qn_err *err) {
    QN_TRY(expect_text(file, "general.type", "adapter", err));
    QN_TRY(expect_text(file, "adapter.type", "lora", err));
    if (qn_source_find_key(file->source, "adapter.alora.invocation_tokens"))
        return QN_FAIL(err, UNSUPPORTED,
                       "%s: it begins in the middle of a prompt (adapter.alora.invocation_tokens)",
                       file->path);
    const qn_key *key = qn_source_find_key(file->source, "adapter.lora.alpha");
    if (!key) return QN_OK;
    if (key->kind != QN_KEY_FLOAT && key->kind != QN_KEY_INT)
        return QN_FAIL(err, FORMAT, "%s: adapter.lora.alpha: %s, want a number", file->path,
                       key->type_name);
    file->alpha = key->kind == QN_KEY_INT ? (double)key->as.i : key->as.f;
    return QN_OK;
}

// --- PEFT ----------------------------------------------------------------------------------------

// What would change the formula, and must be off: absent, null, false, empty or the word.
static const struct {
    const char *name, *word;
} refused[] = {
    {"use_dora", NULL},
    {"fan_in_fan_out", NULL},
    {"lora_bias", NULL},
    {"bias", "none"},
    {"modules_to_save", NULL},
    {"alpha_pattern", NULL},
    {"layer_replication", NULL},
    {"alora_invocation_tokens", NULL},
    {"trainable_token_indices", NULL},
    {"target_parameters", NULL},
};

static bool is_off(const json_t *value, const char *word) {
    if (!value || json_is_null(value) || json_is_false(value)) return true;
    if (json_is_array(value)) return json_array_size(value) == 0;
    if (json_is_object(value)) return json_object_size(value) == 0;
    return json_is_string(value) && word && strcmp(json_string_value(value), word) == 0;
}

static qn_status read_targets(qn_adapter_file *file, const json_t *config, qn_err *err) {
    const json_t *list = json_object_get(config, "target_modules");
    if (!json_is_array(list)) return QN_OK; // a pattern, or nothing: the tensors tell
    const size_t n = json_array_size(list);
    if (n > MAX_TARGETS)
        return QN_FAIL(err, LIMIT, "%s: target_modules: %zu names, at most %d", file->path, n,
                       MAX_TARGETS);
    file->targets = qn_alloc(n, sizeof *file->targets);
    if (!file->targets) return QN_NOMEM(err, "target_modules");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item))
            return QN_FAIL(err, FORMAT, "%s: target_modules[%zu] is not a string", file->path, i);
        file->targets[i] = strdup(json_string_value(item));
        if (!file->targets[i]) return QN_NOMEM(err, "target_modules");
        file->n_targets++;
    }
    return QN_OK;
}

static qn_status read_config(qn_adapter_file *file, const json_t *config, qn_err *err) {
    const json_t *type = json_object_get(config, "peft_type"), *r = json_object_get(config, "r");
    const json_t *alpha = json_object_get(config, "lora_alpha");
    const json_t *root = json_object_get(config, "use_rslora");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0)
        return QN_FAIL(err, UNSUPPORTED, "%s: peft_type: '%.64s', supported: LORA", file->path,
                       json_is_string(type) ? json_string_value(type) : "not a string");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!is_off(json_object_get(config, refused[i].name), refused[i].word))
            return QN_FAIL(err, UNSUPPORTED, "%s: %s is set, which is not supported", file->path,
                           refused[i].name);
    }
    if (!json_is_integer(r) || !json_is_number(alpha))
        return QN_FAIL(err, FORMAT, "%s: %s is not a %s", file->path,
                       json_is_integer(r) ? "lora_alpha" : "r",
                       json_is_integer(r) ? "number" : "whole number");
    if (root && !json_is_boolean(root) && !json_is_null(root))
        return QN_FAIL(err, FORMAT, "%s: use_rslora is not true or false", file->path);
    file->alpha = json_number_value(alpha);
    file->is_rank_root = json_is_true(root);
    file->rank = is_off(json_object_get(config, "rank_pattern"), NULL) ? json_integer_value(r) : 0;
    if (json_integer_value(r) < 1 || json_integer_value(r) > QN_ADAPTER_RANK)
        return QN_FAIL(err, FORMAT, "%s: r: %lld, want 1 to %d", file->path,
                       (long long)json_integer_value(r), QN_ADAPTER_RANK);
    if (file->alpha == 0) return QN_FAIL(err, FORMAT, "%s: lora_alpha: 0", file->path);
    return read_targets(file, config, err);
}

static qn_status read_peft(qn_adapter_file *file, qn_err *err) {
    char *path = qn_path_join(qn_source_folder(file->source), peft_config), *text = NULL;
    json_t *config = NULL;
    size_t size;
    if (!path) return QN_NOMEM(err, peft_config);
    qn_status status = QN_OK;
    if (!qn_path_is_file(path))
        status =
            QN_FAIL(err, FORMAT, "%s: not an adapter: no %s beside it", file->path, peft_config);
    if (!status) status = qn_file_load(&text, &size, path, MAX_CONFIG, err);
    if (!status) status = qn_json_parse_as(&config, text, size, &(qn_json_opts){.what = path}, err);
    if (!status && !json_is_object(config))
        status = QN_FAIL(err, FORMAT, "%s: not an object", path);
    if (!status) status = read_config(file, config, err);
    json_decref(config);
    qn_free(text);
    qn_free(path);
    return status;
}

// --- opening -------------------------------------------------------------------------------------

static qn_status open_source(qn_adapter_file *file, qn_err *err) {
    if (!qn_path_is_folder(file->path)) return qn_source_open(&file->source, file->path, err);
    char *path = qn_path_join(file->path, peft_weights);
    if (!path) return QN_NOMEM(err, peft_weights);
    const qn_status status =
        qn_path_is_file(path)
            ? qn_source_open(&file->source, path, err)
            : QN_FAIL(err, FORMAT, "%s: not an adapter: no %s in it", file->path, peft_weights);
    qn_free(path);
    return status;
}

qn_status qn_adapter_file_open(qn_adapter_file *file, const qn_adapter *from, qn_err *err) {
    *file = (qn_adapter_file){.scale = (double)from->scale, .set = from->set ? from->set - 1 : 0};
    if (!from->path) return QN_FAIL(err, ARGUMENT, "an adapter without a path");
    if (!isfinite(from->scale))
        return QN_FAIL(err, ARGUMENT, "%s: a scale of %g", from->path, (double)from->scale);
    file->path = strdup(from->path);
    if (!file->path) return QN_NOMEM(err, "adapter");
    QN_TRY(open_source(file, err));
    file->is_gguf = qn_source_get_kind(file->source) == QN_SOURCE_GGUF;
    file->is_used = qn_alloc(qn_source_n_tensors(file->source), sizeof *file->is_used);
    if (!file->is_used) return QN_NOMEM(err, "adapter");
    QN_TRY(file->is_gguf ? read_gguf(file, err) : read_peft(file, err));
    if (!isfinite(file->alpha))
        return QN_FAIL(err, FORMAT, "%s: alpha is not a finite number", file->path);
    if (qn_source_n_tensors(file->source) == 0)
        return QN_FAIL(err, FORMAT, "%s: an adapter without tensors", file->path);
    return QN_OK;
}

void qn_adapter_file_deinit(qn_adapter_file *file) {
    for (size_t i = 0; i < file->n_targets; i++) qn_free(file->targets[i]);
    qn_free(file->targets);
    qn_free(file->is_used);
    qn_source_close(file->source);
    qn_free(file->path);
    *file = (qn_adapter_file){0};
}

// --- pairs ---------------------------------------------------------------------------------------

// The name of a weight's module in a checkpoint, without what stands before the layers:
// "layers.3.self_attn.q_proj". Empty: it has none.
static void spell_module(char *to, size_t size, const qn_weight *w) {
    static const char inside[] = "model.", weight[] = ".weight";
    to[0] = 0;
    const char *mark = w->hf ? strstr(w->hf, "%d") : NULL;
    if (!mark || strncmp(w->hf, inside, sizeof inside - 1) != 0) return;
    const char *begin = w->hf + sizeof inside - 1, *rest = mark + 2;
    const size_t n = strlen(rest), tail = sizeof weight - 1;
    if (n < tail || strcmp(rest + n - tail, weight) != 0) return;
    snprintf(to, size, "%.*s%lld%.*s", (int)(mark - begin), begin, (long long)w->layer,
             (int)(n - tail), rest);
}

static bool is_target(const qn_adapter_file *file, const char *module) {
    const size_t n = strlen(module);
    for (size_t i = 0; i < file->n_targets; i++) {
        const size_t size = strlen(file->targets[i]);
        if (size <= n && strcmp(module + n - size, file->targets[i]) == 0 &&
            (size == n || module[n - size - 1] == '.'))
            return true;
    }
    return file->targets == NULL;
}

static const qn_tensor *find_peft(const qn_adapter_file *file, const char *module, char which) {
    char name[LONGEST_NAME];
    for (size_t i = 0; i < QN_N_PREFIXES; i++) {
        snprintf(name, sizeof name, "base_model.model.%s%s.lora_%c.weight", qn_prefixes[i], module,
                 which);
        const qn_tensor *t = qn_source_find_tensor(file->source, name);
        if (t) return t;
    }
    return NULL;
}

static const qn_tensor *find_gguf(const qn_adapter_file *file, const char *weight, char which) {
    char name[LONGEST_NAME];
    snprintf(name, sizeof name, "%s.lora_%c", weight, which);
    return qn_source_find_tensor(file->source, name);
}

static qn_status check_shape(const qn_adapter_file *file, const qn_tensor *t, int64_t rows,
                             int64_t columns, const char *weight, qn_err *err) {
    if (t->n_dims != 2 || t->dims[0] != rows || t->dims[1] != columns)
        return QN_FAIL(err, FORMAT,
                       "%s: tensor %s: %d dimensions, (%lld, %lld), for %s want (%lld, "
                       "%lld)",
                       file->path, t->name.data, t->n_dims, (long long)t->dims[0],
                       (long long)(t->n_dims > 1 ? t->dims[1] : 1), weight, (long long)rows,
                       (long long)columns);
    if (!qn_type_is_supported(t->type))
        return QN_FAIL(err, UNSUPPORTED, "%s: tensor %s: type %s is not supported", file->path,
                       t->name.data, qn_type_get(t->type)->name);
    return QN_OK;
}

static qn_status check_pair(qn_adapter_pair *pair, const qn_adapter_file *file, const qn_weight *w,
                            qn_err *err) {
    const qn_tensor *a = pair->a, *b = pair->b;
    if (!a || !b)
        return QN_FAIL(err, FORMAT, "%s: tensor %s has no partner for %s", file->path,
                       (a ? a : b)->name.data, w->name);
    if (w->shape.n_dims != 2)
        return QN_FAIL(err, UNSUPPORTED, "%s: tensor %s: %s is not a matrix", file->path,
                       a->name.data, w->name);
    const int64_t rank = a->n_dims > 0 ? a->dims[0] : 0;
    if (rank < 1 || rank > QN_ADAPTER_RANK)
        return QN_FAIL(err, FORMAT, "%s: tensor %s: rank %lld, want 1 to %d", file->path,
                       a->name.data, (long long)rank, QN_ADAPTER_RANK);
    if (file->rank && rank != file->rank)
        return QN_FAIL(err, FORMAT, "%s: tensor %s: rank %lld, %s says %lld", file->path,
                       a->name.data, (long long)rank, peft_config, (long long)file->rank);
    QN_TRY(check_shape(file, a, rank, w->shape.dims[1].n, w->name, err));
    QN_TRY(check_shape(file, b, w->shape.dims[0].n, rank, w->name, err));
    pair->rank = rank;
    return QN_OK;
}

qn_status qn_adapter_file_find(qn_adapter_pair *out, const qn_adapter_file *file,
                               const qn_weight *w, qn_err *err) {
    char module[LONGEST_NAME];
    qn_adapter_pair pair = {0};
    spell_module(module, sizeof module, w);
    if (file->is_gguf) {
        pair.a = find_gguf(file, w->name, 'a');
        pair.b = find_gguf(file, w->name, 'b');
    } else if (*module) {
        pair.a = find_peft(file, module, 'A');
        pair.b = find_peft(file, module, 'B');
    }
    if ((pair.a || pair.b) && !file->is_gguf && !is_target(file, module))
        return QN_FAIL(err, FORMAT, "%s: tensor %s: its module is not among target_modules",
                       file->path, (pair.a ? pair.a : pair.b)->name.data);
    if (pair.a || pair.b) QN_TRY(check_pair(&pair, file, w, err));
    *out = pair;
    return QN_OK;
}

double qn_adapter_scale(const qn_adapter_file *file, int64_t rank) {
    if (file->alpha == 0) return file->scale;
    return file->scale * file->alpha / (file->is_rank_root ? sqrt((double)rank) : (double)rank);
}
