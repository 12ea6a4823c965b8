#include "cli/inspect.h"

#include "cli/facts.h"

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

double qn_share_of(int64_t part, int64_t all) {
    return all > 0 ? (double)part / (double)all * 100 : 0;
}

// --- tensors -------------------------------------------------------------------------------------

// Purpose by parts of names, in both spellings; the first row that matches counts.
static const struct {
    const char *group, *parts[3];
} groups[] = {
    {"prediction", {"nextn", "mtp"}},
    {"embedding", {"token_embd", "embed_tokens"}},
    {"norms", {"norm"}},
    {"recurrent", {"ssm_", "linear_attn"}},
    {"attention", {"attn"}},
    {"experts", {"_exps", "mlp.experts"}},
    {"feed-forward", {"ffn", "mlp"}},
    {"output", {"output.weight", "lm_head"}},
    {"other", {""}},
};
enum { N_GROUPS = sizeof groups / sizeof *groups };

static size_t group_of(const char *name) {
    for (size_t g = 0; g < N_GROUPS; g++) {
        for (size_t i = 0; i < 3 && groups[g].parts[i]; i++) {
            if (strstr(name, groups[g].parts[i])) return g;
        }
    }
    return N_GROUPS - 1;
}

static void add_to(qn_tally *tally, const qn_tensor_info *tensor) {
    int64_t n = 1;
    for (int d = 0; d < tensor->n_dims; d++) n *= tensor->dims[d]; // the source checked the product
    tally->n++;
    tally->parameters += n;
    tally->bytes += tensor->bytes;
}

static qn_tally *find_tally(qn_inspection *in, size_t first, const char *group, const char *type) {
    for (size_t i = first; i < in->n_tallies; i++) {
        if (strcmp(in->tallies[i].type, type) == 0) return &in->tallies[i];
    }
    if (in->n_tallies == QN_MAX_TALLIES) return &in->tallies[QN_MAX_TALLIES - 1];
    qn_tally *tally = &in->tallies[in->n_tallies++];
    *tally = (qn_tally){.group = group, .type = type};
    return tally;
}

static void count_tensors(qn_inspection *in) {
    const size_t n = qn_source_n_tensors(in->source);
    for (size_t g = 0; g < N_GROUPS; g++) {
        const size_t first = in->n_tallies;
        for (size_t i = 0; i < n; i++) {
            const qn_tensor_info tensor = qn_tensor_facts(in->source, i);
            if (group_of(tensor.name) != g) continue;
            add_to(find_tally(in, first, groups[g].group, tensor.type), &tensor);
            add_to(&in->all, &tensor);
        }
    }
}

// --- keys ----------------------------------------------------------------------------------------

// Keeps the values of the keys that describe the model; takes no array.
static qn_status read_keys(qn_inspection *in, qn_err *err) {
    const struct {
        const char *name;
        char **to; // NULL: only whether it is there
    } wanted[] = {
        {"general.architecture", &in->architecture},
        {"model_type", &in->architecture},
        {"general.name", &in->name},
        {"tokenizer.chat_template", NULL},
    };
    for (size_t i = 0; i < qn_source_n_keys(in->source); i++) {
        qn_key_info key = QN_INIT(qn_key_info);
        QN_TRY(qn_source_key_info(&key, in->source, i, 0, err));
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
            if (strcmp(key.name, wanted[k].name) != 0) continue;
            if (!wanted[k].to)
                in->has_chat_template = true;
            else if (!*wanted[k].to)
                *wanted[k].to = key.value, key.value = NULL;
        }
        qn_free(key.value);
    }
    return QN_OK;
}

// Files that cannot be read have none; running out of memory is an error.
static qn_status config_has_template(bool *out, const char *path, qn_err *err) {
    enum { MAX_BYTES = 64 << 20 };
    char *text = NULL;
    size_t size;
    json_t *config = NULL;
    qn_status status = qn_file_load(&text, &size, path, MAX_BYTES, err);
    if (!status) status = qn_json_parse(&config, text, size, true, path, err);
    *out = !status && json_object_get(config, "chat_template");
    json_decref(config);
    qn_free(text);
    return status == QN_MEMORY ? status : QN_OK;
}

// A checkpoint has its template in a file of its own or inside tokenizer_config.json.
static qn_status look_for_template(qn_inspection *in, qn_err *err) {
    if (in->has_chat_template || strcmp(qn_source_format(in->source), "GGUF") == 0) return QN_OK;
    char *folder = qn_path_is_folder(in->path) ? strdup(in->path) : qn_path_folder(in->path);
    char *own = folder ? qn_path_join(folder, "chat_template.jinja") : NULL;
    char *config = folder ? qn_path_join(folder, "tokenizer_config.json") : NULL;
    qn_status status = own && config ? QN_OK : QN_NOMEM(err, "a path");
    if (!status && qn_path_is_file(own))
        in->has_chat_template = true;
    else if (!status)
        status = config_has_template(&in->has_chat_template, config, err);
    qn_free(folder);
    qn_free(own);
    qn_free(config);
    return status;
}

// --- memory --------------------------------------------------------------------------------------

static qn_status add_memory(qn_inspection *in, int64_t context, qn_err *err) {
    if (in->n_memory == QN_MAX_MEMORY_ROWS) return QN_OK;
    qn_memory_row row = {.context = context, .memory = QN_INIT(qn_memory)};
    QN_TRY(qn_engine_memory(&row.memory, in->engine, context, 0, err));
    in->memory[in->n_memory++] = row;
    return QN_OK;
}

static qn_status plan_memory(qn_inspection *in, const qn_inspect_opts *opts, qn_err *err) {
    enum { USUAL = 4096, FIRST = 512, STEP = 4 };
    const int64_t max = qn_engine_facts(in->engine).context;
    in->with_resident = opts->all_memory;
    if (opts->context) {
        const qn_status status = add_memory(in, opts->context, err);
        if (status == QN_LIMIT) qn_err_prefix(err, status, "--context");
        return status;
    }
    if (!opts->all_memory) return add_memory(in, max < USUAL ? max : USUAL, err);
    for (int64_t context = FIRST; context < max && in->n_memory + 1 < QN_MAX_MEMORY_ROWS;
         context *= STEP)
        QN_TRY(add_memory(in, context, err));
    return add_memory(in, max, err);
}

// --- all of it -----------------------------------------------------------------------------------

// Of a model that cannot be opened.
static qn_status look_at_tokenizer(qn_inspection *in, qn_err *err) {
    const qn_status status = qn_tokenizer_open(&in->own_tokenizer, in->path, err);
    if (!status) in->tokenizer = in->own_tokenizer;
    return status == QN_MEMORY ? status : QN_OK;
}

static qn_status look(qn_inspection *in, const qn_inspect_opts *opts, qn_err *err) {
    QN_TRY(qn_source_open(&in->source, in->path, err));
    count_tensors(in);
    QN_TRY(read_keys(in, err));
    QN_TRY(look_for_template(in, err));
    const qn_open_opts open_opts = {
        .args = opts->args, .no_weights = true, .context = opts->context};
    const qn_status status = qn_cli_open(&in->loaded, in->path, &open_opts, &in->why);
    if (status == QN_MEMORY) {
        *err = in->why;
        return status;
    }
    if (status) return look_at_tokenizer(in, err);
    in->engine = in->loaded.engine;
    in->tokenizer = qn_engine_tokenizer(in->engine);
    return plan_memory(in, opts, err);
}

qn_status qn_inspection_init(qn_inspection *out, const char *path, const qn_inspect_opts *opts,
                             qn_err *err) {
    *out = (qn_inspection){.path = path};
    const qn_status status = look(out, opts, err);
    if (status) qn_inspection_deinit(out);
    return status;
}

void qn_inspection_deinit(qn_inspection *in) {
    qn_free(in->architecture);
    qn_free(in->name);
    qn_tokenizer_close(in->own_tokenizer);
    qn_cli_close(&in->loaded);
    qn_source_close(in->source);
    *in = (qn_inspection){0};
}
