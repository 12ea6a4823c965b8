// The whole configuration of an engine as JSON.
#include "core/json.h"
#include "core/mem.h"
#include "passes/passes.h"
#include "runtime/engine.h"
#include "runtime/memory.h"

#include <string.h>

static json_t *text_json(const char *text) {
    return text ? qn_json_string(text, strlen(text)) : json_null();
}

// Names of config.json may be several ("a|b"): the first.
static void put_number(json_t **to, const qn_model_number *number) {
    char name[128];
    const size_t n = strcspn(number->name, "|");
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, number->name);
    qn_json_put(to, name, number->is_int ? json_integer(number->i) : qn_json_real(number->f));
}

static json_t *model_json(const qn_engine *engine) {
    const qn_hparams *hp = engine->model->hparams;
    json_t *model = json_object(), *config = json_object();
    qn_model_number number;
    for (size_t i = 0; qn_model_config(&number, engine->model, i); i++)
        put_number(&config, &number);
    qn_json_put(&model, "path", text_json(qn_source_path(engine->source)));
    qn_json_put(&model, "format", text_json(qn_source_format(engine->source)));
    qn_json_put(&model, "architecture", text_json(engine->model->family->arch));
    qn_json_put(&model, "vocabulary", json_integer(hp->vocab));
    qn_json_put(&model, "tokens", json_integer(engine->n_tokens));
    qn_json_put(&model, "prediction_layers", json_integer(hp->predict_layers));
    qn_json_put(&model, "config", config);
    return model;
}

static json_t *devices_json(const qn_engine *engine) {
    json_t *list = json_array();
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_stage *stage = &engine->stages[i];
        json_t *device = json_object();
        qn_json_put(&device, "name", text_json(stage->device->backend->name));
        qn_json_put(&device, "first_layer", json_integer(stage->first_layer));
        qn_json_put(&device, "end_layer", json_integer(stage->end_layer));
        qn_json_push(&list, device);
    }
    return list;
}

static json_t *phase_json(const qn_engine *engine, bool is_decode) {
    static const char *const policies[] = {[QN_PLANS_BUCKETED] = "bucketed",
                                           [QN_PLANS_EXACT] = "exact",
                                           [QN_PLANS_DYNAMIC] = "dynamic"};
    const qn_profile_phase *said = is_decode ? &engine->profile.decode : &engine->profile.prefill;
    const qn_plan_policy policy = qn_engine_policy(engine, is_decode);
    const uint64_t skip = engine->skip | said->skip;
    json_t *phase = json_object(), *skipped = json_array();
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (skip >> i & 1) qn_json_push(&skipped, text_json(qn_pass_name(i)));
    }
    qn_json_put(&phase, "plans", text_json(policies[policy]));
    qn_json_put(
        &phase, "plan_capacity",
        json_integer(policy == QN_PLANS_DYNAMIC ? 1 : qn_engine_plan_capacity(engine, is_decode)));
    qn_json_put(&phase, "skip", skipped);
    if (!is_decode) qn_json_put(&phase, "chunk", json_integer(qn_engine_chunk(engine, 0)));
    return phase;
}

static json_t *plans_json(const qn_engine *engine) {
    json_t *plans = json_object();
    qn_json_put(&plans, "profile", text_json(engine->profile.path));
    if (engine->profile.compile_seq_cap)
        qn_json_put(&plans, "compile_seq_cap", json_integer(engine->profile.compile_seq_cap));
    qn_json_put(&plans, "prefill", phase_json(engine, false));
    qn_json_put(&plans, "decode", phase_json(engine, true));
    return plans;
}

// Null where the model has none.
static json_t *experts_json(const qn_engine *engine) {
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    if (qn_engine_expert_stats(&stats, engine, -1, NULL) || stats.n_layers == 0) return json_null();
    json_t *experts = json_object();
    qn_json_put(&experts, "layers", json_integer(stats.n_layers));
    qn_json_put(&experts, "of_layer", json_integer(stats.n_experts));
    qn_json_put(&experts, "used", json_integer(stats.n_used));
    qn_json_put(&experts, "resident", json_integer(stats.n_resident));
    return experts;
}

// What the model's makers want; temperature 0 is greedy.
static json_t *sampling_json(const qn_engine *engine) {
    const qn_sample_opts *o = &engine->sample_defaults;
    json_t *sampling = json_object();
    qn_json_put(&sampling, "temperature", qn_json_real((double)o->temperature));
    qn_json_put(&sampling, "top_k", json_integer(o->top_k));
    qn_json_put(&sampling, "top_p", qn_json_real((double)o->top_p));
    qn_json_put(&sampling, "min_p", qn_json_real((double)o->min_p));
    qn_json_put(&sampling, "repeat_penalty", qn_json_real((double)o->repeat_penalty));
    return sampling;
}

// Of a session with the model's own context; null where there are no plans.
static qn_status memory_json(json_t **out, const qn_engine *engine, qn_err *err) {
    qn_memory memory = {0};
    *out = engine->layout ? json_object() : json_null();
    if (!engine->layout) return QN_OK;
    const qn_status status = qn_memory_plan(&memory, engine, engine->model->hparams->context,
                                            qn_engine_chunk(engine, 0), err);
    if (status) {
        json_decref(*out);
        return status;
    }
    qn_json_put(out, "context", json_integer(engine->model->hparams->context));
    qn_json_put(out, "weights", json_integer(memory.weights));
    qn_json_put(out, "state", json_integer(memory.state));
    qn_json_put(out, "cache", json_integer(memory.cache));
    qn_json_put(out, "activations", json_integer(memory.activations));
    qn_json_put(out, "total", json_integer(memory.total));
    qn_json_put(out, "device", json_integer(memory.device));
    return QN_OK;
}

qn_status qn_engine_config(char **json, const qn_engine *engine, qn_err *err) {
    static const char *const numerics[] = {[QN_NUMERICS_EXACT] = "exact",
                                           [QN_NUMERICS_BALANCED] = "balanced",
                                           [QN_NUMERICS_FAST] = "fast",
                                           [QN_NUMERICS_TENSOR] = "tensor"};
    QN_NEED(json, err);
    QN_NEED(engine, err);
    json_t *memory;
    QN_TRY(memory_json(&memory, engine, err));
    qn_engine_info info = QN_INIT(qn_engine_info);
    qn_status status = qn_engine_get_info(&info, engine, err);
    if (status) {
        json_decref(memory);
        return status;
    }
    json_t *root = json_object();
    qn_json_put(&root, "model", model_json(engine));
    qn_json_put(&root, "devices", devices_json(engine));
    qn_json_put(&root, "threads", json_integer(info.n_threads));
    qn_json_put(&root, "numerics", text_json(numerics[engine->opts.numerics]));
    qn_json_put(&root, "cache", text_json(info.cache_type));
    qn_json_put(&root, "reference", json_boolean(engine->opts.reference));
    qn_json_put(&root, "prediction_head", json_boolean(engine->opts.mtp));
    qn_json_put(&root, "adapters", json_integer(info.n_adapter_sets));
    qn_json_put(&root, "experts", experts_json(engine));
    qn_json_put(&root, "sampling", sampling_json(engine));
    qn_json_put(&root, "plans", plans_json(engine));
    qn_json_put(&root, "memory", memory);
    status = qn_json_print(json, root, &(qn_json_form){.indent = 1}, "a configuration", err);
    json_decref(root);
    return status;
}
