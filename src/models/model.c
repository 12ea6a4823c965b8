#include "models/model.h"

#include "core/buf.h"
#include "core/chars.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define MODEL(arch, hf_types) extern const qn_family qn_family_##arch;
#include "models/models.def"
#undef MODEL

static const struct {
    const qn_family *family;
    const char *hf_types; // separated by ' '
} families[] = {
#define MODEL(arch, hf_types) {&qn_family_##arch, hf_types},
#include "models/models.def"
#undef MODEL
};

enum { N_FAMILIES = sizeof families / sizeof families[0] };

static void list_families(char *to, size_t size, bool is_checkpoint) {
    size_t used = 0;
    to[0] = 0;
    for (size_t i = 0; i < N_FAMILIES && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s", i ? " " : "",
                                 is_checkpoint ? families[i].hf_types : families[i].family->arch);
}

// Files that belong to a model, and are given beside it.
static qn_status refuse_part(const qn_source *source, qn_err *err) {
    static const struct {
        const char *key, *value, *what;
    } parts[] = {
        {"general.architecture", "clip", "a vision tower: give it with --mmproj FILE"},
        {"general.type", "adapter", "an adapter: give it with --lora FILE"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const qn_key *key = qn_source_find_key(source, parts[i].key);
        if (key && key->kind == QN_KEY_STRING && qn_str_is(key->as.s, parts[i].value))
            return QN_FAIL(err, UNSUPPORTED, "%s is not a model but %s, beside its model",
                           qn_source_path(source), parts[i].what);
    }
    return QN_OK;
}

static qn_status find_family(const qn_family **out, const qn_source *source, qn_err *err) {
    const bool is_checkpoint = qn_source_get_kind(source) != QN_SOURCE_GGUF;
    const char *name = is_checkpoint ? "model_type" : "general.architecture";
    const qn_key *key = qn_source_find_key(source, name);
    if (!key || key->kind != QN_KEY_STRING)
        return QN_FAIL(err, FORMAT, "%s: no key %s", qn_source_path(source), name);
    if (!is_checkpoint) QN_TRY(refuse_part(source, err));
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (is_checkpoint ? !qn_has_word(families[i].hf_types, key->as.s.data, ' ')
                          : strcmp(families[i].family->arch, key->as.s.data) != 0)
            continue;
        *out = families[i].family;
        return QN_OK;
    }
    char known[256];
    list_families(known, sizeof known, is_checkpoint);
    return QN_FAIL(err, UNSUPPORTED, "unknown architecture '%.64s'; known: %s", key->as.s.data,
                   known);
}

// What all families share; defaults that depend on other numbers are filled in afterwards.
static const qn_config_row common_rows[] = {
    QN_INT_ROW(qn_hparams, layers, .gguf = "block_count", .hf = "num_hidden_layers", .min = 1,
               .max = 4096, .is_read_only = true),
    QN_INT_ROW(qn_hparams, width, .gguf = "embedding_length", .hf = "hidden_size", .min = 1,
               .max = 1 << 20),
    QN_INT_ROW(qn_hparams, heads, .gguf = "attention.head_count", .hf = "num_attention_heads",
               .min = 1, .max = 1 << 16, .is_optional = true, .hf_default = QN_DEFAULT(heads)),
    QN_INT_ROW(qn_hparams, kv_heads, .gguf = "attention.head_count_kv", .hf = "num_key_value_heads",
               .min = 1, .max = 1 << 16, .is_optional = true, .hf_default = QN_DEFAULT(kv_heads),
               .is_nullable = true),
    QN_INT_ROW(qn_hparams, head_size, .gguf = "attention.key_length", .hf = "head_dim", .min = 1,
               .max = 1 << 16, .is_optional = true, .hf_default = QN_DEFAULT(head_size),
               .is_nullable = true),
    QN_INT_ROW(qn_hparams, value_size, .gguf = "attention.value_length", .min = 1, .max = 1 << 16,
               .is_optional = true),
    QN_INT_ROW(qn_hparams, ffn, .gguf = "feed_forward_length", .hf = "intermediate_size", .min = 1,
               .max = 1 << 24, .is_optional = true),
    QN_INT_ROW(qn_hparams, context, .gguf = "context_length", .hf = "max_position_embeddings",
               .min = 1, .max = 0x7fffffff, .is_optional = true, .fallback = 8192,
               .hf_default = QN_DEFAULT(context)),
    QN_INT_ROW(qn_hparams, rotate, .gguf = "rope.dimension_count", .min = 2, .max = 1 << 16,
               .is_optional = true, .is_read_only = true),
    QN_INT_ROW(qn_hparams, experts, .gguf = "expert_count",
               .hf = "num_experts|num_local_experts|n_routed_experts", .min = 0, .max = 1 << 16,
               .is_optional = true, .hf_default = QN_DEFAULT(experts), .is_nullable = true),
    QN_INT_ROW(qn_hparams, experts_used, .gguf = "expert_used_count", .hf = "num_experts_per_tok",
               .min = 0, .max = 1 << 16, .is_optional = true,
               .hf_default = QN_DEFAULT(experts_used), .is_nullable = true),
    QN_INT_ROW(qn_hparams, expert_ffn, .gguf = "expert_feed_forward_length",
               .hf = "moe_intermediate_size", .min = 1, .max = 1 << 24, .is_optional = true,
               .hf_default = QN_DEFAULT(expert_ffn), .is_nullable = true),
    QN_FLOAT_ROW(qn_hparams, eps, .gguf = "attention.layer_norm_rms_epsilon", .hf = "rms_norm_eps",
                 .min = 1e-12, .max = 1, .is_optional = true, .fallback = 1e-6,
                 .hf_default = QN_DEFAULT(eps)),
};

// The share of a head that rope turns, in checkpoints that have one.
static qn_status fill_rotate(qn_hparams *hp, const qn_config_reader *reader, qn_err *err) {
    double share;
    QN_TRY(qn_config_float(&share, reader, NULL,
                           "rope_parameters.partial_rotary_factor|partial_rotary_factor",
                           reader->defaults ? reader->defaults->rotary : 1, err));
    if (!(share > 0 && share <= 1))
        return QN_FAIL(err, FORMAT, "partial_rotary_factor: %g, want more than 0, at most 1",
                       share);
    if (hp->rotate == 0) hp->rotate = (int64_t)((double)hp->head_size * share);
    if (hp->rotate < 2 || hp->rotate % 2 || hp->rotate > hp->head_size)
        return QN_FAIL(err, FORMAT, "rope turns %lld values, want an even number from 2 to %lld",
                       (long long)hp->rotate, (long long)hp->head_size);
    return QN_OK;
}

// Sizes of the vocabulary come from the embedding itself; a key that says otherwise is an error.
static qn_status fill_vocab(qn_hparams *hp, const qn_config_reader *reader, qn_err *err) {
    const qn_binder names = {.source = reader->source, .prefix = "model."};
    const qn_tensor *t = NULL;
    static const char *const hf[] = {
        "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
        "language_model.model.embed_tokens.weight", "embed_tokens.weight"};
    for (size_t i = 0; !t && i < sizeof hf / sizeof hf[0]; i++)
        t = qn_binder_find(&names, "token_embd.weight", hf[i], 0);
    if (!t) return QN_FAIL(err, FORMAT, "%s: no token embedding", qn_source_path(reader->source));
    hp->vocab = t->dims[0];
    const qn_key *key = qn_config_find(reader, "vocab_size", "vocab_size");
    if (key && key->kind != QN_KEY_INT)
        return QN_FAIL(err, FORMAT, "%s: %s, want a whole number", key->name.data, key->type_name);
    if (key && key->as.i != hp->vocab)
        return QN_FAIL(err, FORMAT, "%s: %lld, tensor %s has %lld rows", key->name.data,
                       (long long)key->as.i, t->name.data, (long long)hp->vocab);
    return hp->vocab > 0x7fffffff
               ? QN_FAIL(err, LIMIT, "vocabulary of %lld entries", (long long)hp->vocab)
               : QN_OK;
}

static qn_status fill_heads(qn_hparams *hp, const qn_config_reader *reader, qn_err *err) {
    if (hp->heads == 0)
        return QN_FAIL(err, FORMAT, "%s: no key %s.attention.head_count",
                       qn_source_path(reader->source), reader->arch);
    if (hp->kv_heads == 0) hp->kv_heads = hp->heads;
    if (hp->heads % hp->kv_heads)
        return QN_FAIL(err, FORMAT, "%lld heads cannot share %lld kv heads", (long long)hp->heads,
                       (long long)hp->kv_heads);
    // Old GGUF files of llama give the size of a head only as what rope turns.
    if (hp->head_size == 0) hp->head_size = hp->rotate;
    if (hp->head_size == 0 && hp->width % hp->heads)
        return QN_FAIL(err, FORMAT, "width %lld is not a multiple of %lld heads",
                       (long long)hp->width, (long long)hp->heads);
    if (hp->head_size == 0) hp->head_size = hp->width / hp->heads;
    if (hp->value_size == 0) hp->value_size = hp->head_size;
    return QN_OK;
}

static qn_status read_common(qn_hparams *hp, const qn_config_reader *reader, qn_err *err) {
    QN_TRY(
        qn_config_fill(hp, common_rows, sizeof common_rows / sizeof common_rows[0], reader, err));
    QN_TRY(fill_heads(hp, reader, err));
    if (hp->experts_used > hp->experts)
        return QN_FAIL(err, FORMAT, "%lld experts used of %lld", (long long)hp->experts_used,
                       (long long)hp->experts);
    QN_TRY(fill_rotate(hp, reader, err));
    return fill_vocab(hp, reader, err);
}

typedef void build_fn(qn_net *net, const void *config, const qn_config_reader *reader);

static qn_status build_graph(qn_graph *graph, qn_model *model, const qn_config_reader *reader,
                             build_fn *build, const qn_net *form, qn_err *err) {
    qn_net net = *form;
    net.hp = model->hparams;
    qn_build_init(&net.b, graph, model->family->arch);
    QN_TRY(qn_binder_init(&net.binder, &model->weights, reader->source, &net.b, err));
    qn_net_begin(&net);
    build(&net, model->hparams, reader);
    return qn_build_finish(&net.b, err);
}

static qn_status build_graphs(qn_model *model, const qn_config_reader *reader,
                              qn_adapters *adapters, qn_err *err) {
    const qn_family *family = model->family;
    const qn_net plain = {.adapters = adapters};
    const qn_net hidden = {.with_hidden = true, .adapters = adapters};
    const qn_net predict = {.with_predict = true, .adapters = adapters};
    if (adapters) QN_TRY(qn_adapters_check_arch(adapters, family->arch, err));
    QN_TRY(build_graph(&model->graph, model, reader, family->build, &plain, err));
    QN_TRY(build_graph(&model->graph_hidden, model, reader, family->build, &hidden, err));
    if (family->build_predict && model->hparams->predict_layers > 0) {
        QN_TRY(build_graph(&model->graph_mtp, model, reader, family->build, &predict, err));
        QN_TRY(build_graph(&model->graph_predict, model, reader, family->build_predict, &predict,
                           err));
    }
    model->n_sets = qn_adapters_sets(adapters);
    return adapters ? qn_adapters_check_used(adapters, family->arch, err) : QN_OK;
}

// Tensors that a model may carry without a graph using them: a vision tower, tables that we
// compute.
static bool is_known_extra(const char *name) {
    static const char *const parts[] = {"visual.", "vision_", "multi_modal_projector", "rope_freqs",
                                        "rotary_emb."};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strstr(name, parts[i])) return true;
    }
    return false;
}

// A bias that no graph adds would make every number wrong, so a warning is not enough.
static qn_status check_biases(const qn_model *model, const qn_source *source, qn_err *err) {
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_str name = qn_source_tensor(source, i)->name;
        const bool is_bias = name.size > 5 && strcmp(name.data + name.size - 5, ".bias") == 0;
        if (is_bias && !model->weights.is_used[i] && !is_known_extra(name.data))
            return QN_FAIL(err, UNSUPPORTED, "tensor %s: %s has no such bias", name.data,
                           model->family->arch);
    }
    return QN_OK;
}

qn_status qn_model_create(qn_model **out, const qn_source *source, qn_err *err) {
    return qn_model_create_adapted(out, source, NULL, NULL, err);
}

qn_status qn_model_create_adapted(qn_model **out, const qn_source *source, qn_adapters *adapters,
                                  const qn_rope_override *rope, qn_err *err) {
    qn_model *model = qn_alloc(1, sizeof *model);
    if (!model) return QN_NOMEM(err, "model");
    qn_status status = QN_OK;
    QN_TRY_TO(done, find_family(&model->family, source, err));
    qn_config_reader reader = qn_config_reader_of(source, model->family->arch);
    if (rope) reader.rope = *rope;
    model->hparams = qn_arena_alloc(&model->arena, 1, model->family->config_size);
    if (!model->hparams) {
        status = QN_NOMEM(err, "model");
        goto done;
    }
    QN_TRY_TO(done, read_common(model->hparams, &reader, err));
    QN_TRY_TO(done, qn_config_fill(model->hparams, model->family->rows, model->family->n_rows,
                                   &reader, err));
    QN_TRY_TO(done, model->family->read(model->hparams, &reader, &model->arena, err));
    QN_TRY_TO(done,
              qn_rope_lengthen(&model->hparams->context, model->hparams->rotate, &reader, err));
    if (model->hparams->context > QN_MAX_CONTEXT) model->hparams->context = QN_MAX_CONTEXT;
    QN_TRY_TO(done, build_graphs(model, &reader, adapters, err));
    QN_TRY_TO(done, check_biases(model, source, err));
    *out = model;
    model = NULL;

done:
    qn_model_destroy(model);
    return status;
}

qn_status qn_model_export(qn_export *to, qn_model *model, const qn_source *source,
                          qn_gguf_writer *writer, qn_err *err) {
    const qn_family *family = model->family;
    const qn_hparams *hp = model->hparams;
    const qn_config_reader reader = qn_config_reader_of(source, family->arch);
    qn_export x = {.writer = writer, .reader = &reader, .arena = &model->arena};
    qn_export_u32(&x, "block_count", hp->layers + hp->predict_layers);
    qn_export_rows(&x, hp, common_rows, sizeof common_rows / sizeof common_rows[0]);
    qn_export_rows(&x, hp, family->rows, family->n_rows);
    QN_TRY(family->export_keys(&x, hp, err));
    x.reader = NULL; // of this call
    *to = x;
    return QN_OK;
}

void qn_model_destroy(qn_model *model) {
    if (!model) return;
    qn_graph_deinit(&model->graph);
    qn_graph_deinit(&model->graph_hidden);
    qn_graph_deinit(&model->graph_mtp);
    qn_graph_deinit(&model->graph_predict);
    qn_weights_deinit(&model->weights);
    qn_arena_deinit(&model->arena);
    qn_free(model);
}

size_t qn_model_unused(const qn_model *model, const qn_source *source, char *to, size_t size) {
    size_t n = 0, used = 0;
    to[0] = 0;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const char *name = qn_source_tensor(source, i)->name.data;
        if (model->weights.is_used[i] || is_known_extra(name)) continue;
        if (n++ < 4 && used < size)
            used += (size_t)snprintf(to + used, size - used, "%s%s", n > 1 ? ", " : "", name);
    }
    return n;
}

qn_status qn_model_params(const void ***out, const qn_model *model, const qn_graph *graph,
                          qn_err *err) {
    return qn_weights_params(out, &model->weights, graph, err);
}

bool qn_model_config(qn_model_number *out, const qn_model *model, size_t i) {
    const size_t n_common = sizeof common_rows / sizeof common_rows[0];
    const qn_family *family = model->family;
    if (i >= n_common + family->n_rows) return false;
    const qn_config_row *row = i < n_common ? &common_rows[i] : &family->rows[i - n_common];
    const char *at = (const char *)model->hparams + row->offset;
    *out = (qn_model_number){.name = row->gguf ? row->gguf : row->hf,
                             .is_int = row->kind == QN_CONFIG_INT};
    if (out->is_int)
        memcpy(&out->i, at, sizeof out->i);
    else {
        float f;
        memcpy(&f, at, sizeof f);
        out->f = (double)f;
    }
    return true;
}
