// Opening and closing an engine: from a path to a model, its plans and its weights.
#include "runtime/engine.h"

#include "core/buf.h"
#include "core/cgroup.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/structs.h"
#include "ir/text.h"
#include "runtime/expert_budget.h"
#include "runtime/gpu_layers.h"
#include "runtime/identity.h"
#include "runtime/images.h"
#include "runtime/memory.h"
#include "runtime/sample_defaults.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

// A model without a usable tokenizer still computes logits: say so, and go on.
static qn_status open_tokenizer(qn_engine *engine, qn_err *err) {
    qn_err why = {0};
    const qn_status status = qn_tokenizer_from_source(&engine->tokenizer, engine->source, &why);
    if (status == QN_MEMORY) {
        if (err) *err = why;
        return status;
    }
    if (status) {
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING, "no tokenizer: %s",
               why.message);
        return QN_OK;
    }
    const int32_t n_tokens = qn_tokenizer_own_info(engine->tokenizer)->n_tokens;
    if (n_tokens > engine->model->hparams->vocab)
        return QN_FAIL(err, FORMAT, "the tokenizer has %d tokens, the embedding %lld rows",
                       n_tokens, (long long)engine->model->hparams->vocab);
    bool has_holes;
    const int32_t end = qn_tokenizer_end(engine->tokenizer, &has_holes);
    if (end > 0) engine->n_tokens = end;
    return QN_OK;
}

// QN_DUMP: the graph as text.
static qn_status dump_graph(const qn_engine *engine, qn_err *err) {
    char *path = qn_path_join(engine->switches.dump, "model.ir");
    qn_buf text = {0};
    qn_status status = QN_OK;
    // Opening the file says why it failed.
    (void)qn_path_make_folders(engine->switches.dump, false);
    qn_graph_print(&text, engine->graph);
    if (!path || text.failed) {
        status = QN_NOMEM(err, "QN_DUMP");
        goto done;
    }
    FILE *f = fopen(path, "we");
    if (!f) {
        status = QN_FAIL(err, IO, "QN_DUMP: cannot write %s: %s", path, strerror(errno));
        goto done;
    }
    const bool is_written = fwrite(text.data, 1, text.size, f) == text.size;
    if (fclose(f) != 0 || !is_written) status = QN_FAIL(err, IO, "cannot write %s", path);

done:
    qn_buf_deinit(&text);
    qn_free(path);
    return status;
}

static qn_status check_graphs(const qn_engine *engine, qn_err *err) {
    if (engine->switches.verify) {
        QN_TRY(qn_graph_verify(engine->graph, err));
        if (engine->opts.mtp) QN_TRY(qn_graph_verify(&engine->model->graph_predict, err));
        QN_TRY(qn_graph_verify(&engine->model->graph_hidden, err));
    }
    return engine->switches.dump ? dump_graph(engine, err) : QN_OK;
}

static void log_model(const qn_engine *engine) {
    char names[256];
    const qn_model *model = engine->model;
    const size_t unused = qn_model_unused(model, engine->source, names, sizeof names);
    if (unused > 0)
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING,
               "%zu tensors are not used by %s: %s%s", unused, model->family->arch, names,
               unused > 4 ? ", ..." : "");
    if (engine->switches.debug >= 1)
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_DEBUG,
               "%s: %s, %lld layers, %zu nodes, %zu weights, %d threads",
               qn_source_path(engine->source), model->family->arch,
               (long long)model->hparams->layers, engine->graph->n_nodes, model->weights.n,
               qn_pool_threads(engine->pool));
}

// The KV cache has 16 bits where the weights have no more.
static qn_cache_type choose_cache_type(const qn_engine *engine) {
    if (engine->opts.cache_type != QN_CACHE_AUTO) return engine->opts.cache_type;
    const qn_weights *weights = &engine->model->weights;
    for (size_t i = 0; i < weights->n; i++) {
        if (qn_type_get(weights->items[i].type)->block > 1) return QN_CACHE_F16;
    }
    return QN_CACHE_F32;
}

qn_compile_opts qn_engine_compile_opts(const qn_engine *engine, const qn_stage *stage) {
    const qn_team *team = engine->team;
    const bool is_shared = team && team->split == QN_SPLIT_TENSORS;
    return (qn_compile_opts){.backend = stage->device->backend,
                             .numerics = engine->opts.numerics,
                             .fine_layers = qn_passes_fine_layers(&engine->model->graph),
                             .rank = is_shared ? team->rank : 0,
                             .n_ranks = is_shared ? team->n_ranks : 1,
                             .skip = engine->skip | engine->profile.prefill.skip,
                             .disk = &engine->disk,
                             .switches = &engine->switches,
                             .log = engine->opts.log,
                             .log_arg = engine->opts.log_arg};
}

static qn_status check_opts(const qn_engine_opts *o, qn_err *err) {
    if ((unsigned)o->numerics > QN_NUMERICS_TENSOR)
        return QN_FAIL(err, ARGUMENT, "numerics %d of %d", (int)o->numerics,
                       QN_NUMERICS_TENSOR + 1);
    if ((unsigned)o->cache_type >= QN_KV_TYPES)
        return QN_FAIL(err, ARGUMENT, "cache type %d of %d", (int)o->cache_type, QN_KV_TYPES);
    if ((unsigned)o->split > QN_SPLIT_AUTO)
        return QN_FAIL(err, ARGUMENT, "split %d of %d", (int)o->split, QN_SPLIT_AUTO + 1);
    if (o->rank_timeout_ms < 0)
        return QN_FAIL(err, ARGUMENT, "a rank timeout of %lld ms, want 0 or more",
                       (long long)o->rank_timeout_ms);
    if (o->shares && o->split != QN_SPLIT_LAYERS)
        return QN_FAIL(err, ARGUMENT, "shares '%.40s' without a split of layers", o->shares);
    if ((unsigned)o->cache_use > QN_CACHE_DIR_FILL)
        return QN_FAIL(err, ARGUMENT, "cache use %d of %d", (int)o->cache_use,
                       QN_CACHE_DIR_FILL + 1);
    const qn_plan_policy plans[] = {o->plans, o->prefill_plans, o->decode_plans};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        if ((unsigned)plans[i] > QN_PLANS_DYNAMIC)
            return QN_FAIL(err, ARGUMENT, "plans %d of %d", (int)plans[i], QN_PLANS_DYNAMIC + 1);
    }
    if (o->profile && o->profile_text)
        return QN_FAIL(err, ARGUMENT, "profile %s, and the text of a profile: only one of both",
                       o->profile);
    return QN_OK;
}

// The profile that is given, or the one next to the weights.
static qn_status find_profile(qn_engine *engine, const char *path, qn_err *err) {
    const qn_engine_opts *o = &engine->opts;
    if (o->profile) return qn_profile_load(&engine->profile, o->profile, o->log, o->log_arg, err);
    if (o->profile_text)
        return qn_profile_parse(&engine->profile, o->profile_text, strlen(o->profile_text), err);
    if (!path) return QN_OK;
    char *folder = qn_path_is_folder(path) ? qn_path_join(path, "") : qn_path_folder(path);
    if (!folder) return QN_NOMEM(err, "profile");
    const qn_status status = qn_profile_find(&engine->profile, folder, engine->model->family->arch,
                                             engine->opts.log, engine->opts.log_arg, err);
    qn_free(folder);
    return status;
}

// One plan for both phases, unless the profile wants decode otherwise. A check looks at one plan.
static qn_status compile_stage(qn_stage *stage, const qn_engine *engine, uint64_t decode_skip,
                               qn_err *err) {
    const qn_model *model = engine->model;
    const qn_graph *graph;
    qn_graph cut = {0};
    qn_compile_opts opts = qn_engine_compile_opts(engine, stage);
    QN_TRY(qn_stage_graph(&graph, &cut, stage, engine->graph, model->hparams->layers, err));
    qn_status status = qn_compile(&stage->prefill, graph, &opts, err);
    if (!status && engine->decode_differs && decode_skip != opts.skip) {
        opts.skip = decode_skip;
        status = qn_compile(&stage->decode, graph, &opts, err);
    }
    qn_graph_deinit(&cut);
    return status;
}

// The prediction head, beside the last layers.
static qn_status compile_head(qn_engine *engine, qn_err *err) {
    const qn_stage *last = &engine->stages[engine->n_stages - 1];
    qn_compile_opts opts = qn_engine_compile_opts(engine, last);
    opts.disk = NULL;
    engine->head.device = last->device;
    return qn_compile(&engine->head.prefill, &engine->model->graph_predict, &opts, err);
}

static qn_status compile_stages(qn_engine *engine, qn_err *err) {
    // Ranks tell each other once what their plans give: it is the same in both phases.
    const qn_profile_phase *prefill = &engine->profile.prefill,
                           *decode = engine->team ? prefill : &engine->profile.decode;
    const uint64_t skip = engine->skip | decode->skip;
    engine->decode_differs =
        ((skip != (engine->skip | prefill->skip)) ||
         qn_engine_policy(engine, false) != qn_engine_policy(engine, true) ||
         qn_engine_plan_capacity(engine, false) != qn_engine_plan_capacity(engine, true)) &&
        !engine->switches.ref;
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(compile_stage(&engine->stages[i], engine, skip, err));
    const bool has_head = engine->opts.mtp && qn_team_has_head(engine->team);
    return has_head ? compile_head(engine, err) : QN_OK;
}

static qn_status lay_out_state(qn_engine *engine, qn_err *err) {
    qn_state_part *parts = qn_alloc(engine->n_stages, sizeof *parts);
    if (!parts) return QN_NOMEM(err, "stages");
    for (size_t i = 0; i < engine->n_stages; i++)
        parts[i] = (qn_state_part){engine->stages[i].device, &engine->stages[i].prefill};
    const qn_status status = qn_state_layout_create(&engine->layout, engine->graph, parts,
                                                    engine->n_stages, engine->cache_type, err);
    qn_free(parts);
    return status;
}

qn_status qn_engine_plan_stages(qn_engine *engine, qn_err *err) {
    QN_TRY(compile_stages(engine, err));
    return lay_out_state(engine, err);
}

void qn_engine_drop_plans(qn_engine *engine) {
    for (size_t i = 0; i < engine->n_stages; i++) {
        qn_plan_deinit(&engine->stages[i].prefill);
        qn_plan_deinit(&engine->stages[i].decode);
    }
    qn_plan_deinit(&engine->head.prefill);
    engine->head.device = NULL;
    qn_state_layout_destroy(engine->layout);
    engine->layout = NULL;
}

static qn_status name_devices(qn_engine *engine, qn_err *err) {
    qn_buf names = {0};
    for (size_t i = 0; i < engine->n_stages; i++)
        qn_buf_printf(&names, "%s%s", i ? "," : "", engine->stages[i].device->backend->name);
    qn_free(engine->devices);
    engine->devices = NULL;
    return qn_buf_take(&engine->devices, &names, err);
}

static qn_status refuse_cache_type(const qn_engine *engine, const qn_backend *backend,
                                   qn_err *err) {
    char has[64] = "";
    size_t used = 0;
    for (int t = QN_CACHE_F32; t < QN_KV_TYPES; t++) {
        if (backend->caches >> t & 1u)
            used += (size_t)snprintf(has + used, sizeof has - used, "%s%s", used ? ", " : "",
                                     qn_kv_type_get((qn_cache_type)t)->name);
    }
    return QN_FAIL(err, UNSUPPORTED,
                   "device %s has no KV cache of type %s, it has %s; the CPU has all",
                   backend->name, qn_kv_type_get(engine->cache_type)->name, has);
}

// What was asked for and not every device has.
static qn_status check_abilities(const qn_engine *engine, qn_err *err) {
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_device *device = engine->stages[i].device;
        if (!(device->backend->caches >> engine->cache_type & 1u))
            return refuse_cache_type(engine, device->backend, err);
        if (engine->opts.numerics == QN_NUMERICS_TENSOR && !device->kind->has_tensor)
            return QN_FAIL(err, UNSUPPORTED, "device %s has no numerics tensor, GPUs have (cuda)",
                           device->backend->name);
    }
    return QN_OK;
}

static qn_status open_devices(qn_engine *engine, qn_err *err) {
    QN_TRY(qn_stages_open(&engine->stages, &engine->n_stages, engine->opts.device,
                          engine->switches.level, engine->model->hparams->layers, engine->pool,
                          err));
    if (engine->team && engine->n_stages > 1)
        return QN_FAIL(err, UNSUPPORTED, "%zu devices of one rank, want one: start more ranks",
                       engine->n_stages);
    return QN_OK;
}

// What this rank has of the layers.
static void share_layers(qn_engine *engine) {
    const qn_team *team = engine->team;
    qn_stage *stage = &engine->stages[0];
    if (team->split != QN_SPLIT_LAYERS) return;
    stage->first_layer = team->first_layer[team->rank];
    stage->end_layer = team->first_layer[team->rank + 1];
    stage->is_whole = team->n_ranks == 1;
}

static qn_status set_up_stages(qn_engine *engine, qn_err *err) {
    if (engine->team) share_layers(engine);
    QN_TRY(qn_gpu_layers_apply(engine, err));
    QN_TRY(check_abilities(engine, err));
    return name_devices(engine, err);
}

// How plans are made: by the options, a switch, and a profile.
static qn_status read_settings(qn_engine *engine, const char *path, qn_err *err) {
    const qn_status status = qn_passes_parse_skip(&engine->skip, engine->switches.skip, err);
    if (status) return qn_err_prefix(err, status, "QN_SKIP");
    QN_TRY(find_profile(engine, path, err));
    return qn_engine_check_plans(engine, err);
}

static qn_status compile(qn_engine *engine, qn_err *err) {
    const qn_disk_opts disk = {.dir = engine->opts.cache_dir,
                               .use = engine->opts.cache_use,
                               .log = engine->opts.log,
                               .log_arg = engine->opts.log_arg};
    QN_TRY(qn_disk_open(&engine->disk, &disk, err));
    QN_TRY(qn_gpu_layers_choose(engine, err));
    QN_TRY(check_abilities(engine, err));
    QN_TRY(name_devices(engine, err));
    return qn_engine_plan_stages(engine, err);
}

// With a weight type that has no kernels, only the reference path and inspection are left.
static qn_status try_compile(qn_engine *engine, qn_err *err) {
    qn_err why;
    const qn_status status = compile(engine, &why);
    const bool needs_none = engine->opts.no_weights || engine->opts.reference;
    if (status == QN_UNSUPPORTED && needs_none && !engine->team) {
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING, "no plan: %s", why.message);
        qn_engine_drop_plans(engine);
        return QN_OK;
    }
    if (status && err) *err = why;
    return status;
}

static qn_status load_reference(qn_engine *engine, qn_err *err) {
    qn_model *model = engine->model;
    const qn_load_opts load = {.with_predict = engine->opts.mtp,
                               .progress = engine->opts.progress,
                               .progress_arg = engine->opts.progress_arg};
    QN_TRY(qn_weights_load(&model->weights, engine->source, &load, err));
    QN_TRY(qn_model_params(&engine->params, model, &model->graph, err));
    if (engine->opts.mtp)
        QN_TRY(qn_model_params(&engine->params_predict, model, &model->graph_predict, err));
    return qn_model_params(&engine->params_hidden, model, &model->graph_hidden, err);
}

static qn_status load_stage(qn_stage *stage, const qn_engine *engine, const qn_packs *besides,
                            qn_err *err) {
    const qn_packs_opts opts = {.weights = &engine->model->weights,
                                .source = engine->source,
                                .plan = &stage->prefill,
                                .besides = besides,
                                .is_head = stage == &engine->head,
                                .device = stage->device,
                                .disk = stage->is_whole && !engine->team ? &engine->disk : NULL,
                                .residency = stage == &engine->head ? NULL : engine->residency,
                                .progress = engine->opts.progress,
                                .progress_arg = engine->opts.progress_arg};
    return qn_packs_create(&stage->packs, &opts, err);
}

// The first stage, the only one where not all experts are in memory. Where that was our own choice
// and the folder has nothing to bring them from, all of them are loaded.
static qn_status load_first(qn_engine *engine, qn_err *err) {
    qn_err why;
    const qn_status status = load_stage(&engine->stages[0], engine, NULL, &why);
    if (!status || status == QN_STOPPED || !engine->residency || !engine->may_hold_all) {
        if (status && err) *err = why;
        return status;
    }
    qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING, "all experts are loaded: %s",
           why.message);
    qn_residency_destroy(engine->residency);
    engine->residency = NULL;
    return load_stage(&engine->stages[0], engine, NULL, err);
}

// Pages of weights near the threads that read them, as steps of one row are cut.
static qn_status place_stage(const qn_stage *stage, const qn_engine *engine, qn_err *err) {
    const qn_plan *plan = stage->decode.n_calls ? &stage->decode : &stage->prefill;
    const size_t n = plan->n_leaves[QN_PLACE_PARAM];
    bool is_placed = true;
    if (!stage->device || !stage->device->kind->place || !qn_pool_numa(engine->pool)) return QN_OK;
    const void **data = qn_alloc(n, sizeof *data);
    if (!data) return QN_NOMEM(err, "weights");
    for (size_t i = 0; i < n; i++)
        data[i] = qn_packs_find(stage->packs, plan->leaves[QN_PLACE_PARAM][i].name);
    const qn_status status = stage->device->kind->place(&is_placed, stage->device, plan, data, err);
    qn_free(data);
    if (!status && !is_placed)
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_INFO,
               "weights stay where they are: the system lets no process choose its memory nodes");
    return status;
}

// Several stages have parts of the weights each, which no file of the cache folder holds; the
// prediction head has what the others do not have.
static qn_status load_packs(qn_engine *engine, qn_err *err) {
    if (!engine->team) QN_TRY(qn_expert_budget_apply(engine, err));
    QN_TRY(qn_memory_check_weights(engine, err));
    QN_TRY(load_first(engine, err));
    for (size_t i = 1; i < engine->n_stages; i++)
        QN_TRY(load_stage(&engine->stages[i], engine, NULL, err));
    if (engine->opts.mtp && qn_team_has_head(engine->team))
        QN_TRY(load_stage(&engine->head, engine, engine->stages[engine->n_stages - 1].packs, err));
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(place_stage(&engine->stages[i], engine, err));
    engine->is_loaded = true;
    if (!engine->params) qn_weights_drop_own(&engine->model->weights);
    return QN_OK;
}

bool qn_engine_is_recurrent(const qn_engine *engine) {
    return engine->layout && qn_state_layout_is_recurrent(engine->layout);
}

static qn_status choose_graph(qn_engine *engine, qn_err *err) {
    const qn_model *model = engine->model;
    if (engine->opts.mtp && !model->graph_predict.n_nodes)
        return QN_FAIL(err, UNSUPPORTED, "%s: %s without a prediction head (MTP)",
                       qn_source_path(engine->source), model->family->arch);
    engine->graph = engine->opts.mtp ? &model->graph_mtp : &model->graph;
    return QN_OK;
}

// The files of each set, in order, and their scales.
static qn_status hash_adapters(qn_engine *engine, const qn_adapters *adapters, qn_err *err) {
    const qn_adapter_file *file;
    engine->adapter_hashes =
        qn_alloc((size_t)qn_adapters_sets(adapters), sizeof *engine->adapter_hashes);
    if (!engine->adapter_hashes) return QN_NOMEM(err, "adapters");
    for (size_t i = 0; (file = qn_adapters_file(adapters, i)); i++) {
        uint64_t *hash = &engine->adapter_hashes[file->set], own;
        QN_TRY(qn_identity_hash(&own, file->source, engine->pool, err));
        // The scale of any rank follows from those of two.
        *hash = qn_identity_mix(*hash, own, qn_adapter_scale(file, 1));
        *hash = qn_identity_mix(*hash, own, qn_adapter_scale(file, 4));
    }
    return QN_OK;
}

static qn_status check_rope(const qn_rope_override *rope, qn_err *err) {
    static const char *const types[] = {"none", "linear", "yarn"};
    bool is_known = !rope->type;
    for (size_t i = 0; !is_known && i < sizeof types / sizeof *types; i++)
        is_known = strcmp(rope->type, types[i]) == 0;
    if (!is_known)
        return QN_FAIL(err, ARGUMENT, "rope scaling '%.64s', want none, linear or yarn",
                       rope->type);
    const bool is_scaled = rope->type && strcmp(rope->type, "none") != 0;
    if (is_scaled ? !(rope->factor >= 1 && rope->factor <= 1 << 20) : rope->factor != 0)
        return QN_FAIL(err, ARGUMENT, "rope factor %g with scaling '%s', want %s", rope->factor,
                       rope->type ? rope->type : "of the model's files",
                       is_scaled ? "1 to 1048576" : "none");
    if (rope->original < 0 || rope->original > INT32_MAX || (!is_scaled && rope->original))
        return QN_FAIL(err, ARGUMENT, "original context %lld with rope scaling '%s'",
                       (long long)rope->original, rope->type ? rope->type : "of the model's files");
    return QN_OK;
}

// 0: none.
static uint64_t hash_rope(const qn_rope_override *rope) {
    uint64_t hash = 0;
    for (const char *at = rope->type; at && *at; at++)
        hash = qn_identity_mix(hash, (unsigned char)*at, (float)rope->factor);
    return rope->type ? qn_identity_mix(hash, (uint64_t)rope->original, 1) : 0;
}

// Adapters are read while the graph is written, and then not needed any more.
static qn_status create_model(qn_engine *engine, qn_err *err) {
    qn_adapters *adapters = NULL;
    if (engine->opts.n_adapters > 0) {
        QN_NEED(engine->opts.adapters, err);
        QN_TRY(qn_adapters_open(&adapters, engine->opts.adapters, engine->opts.n_adapters, err));
    }
    engine->opts.adapters = NULL; // the caller's
    qn_status status = adapters ? hash_adapters(engine, adapters, err) : QN_OK;
    const qn_rope_override rope = {engine->opts.rope_scaling, engine->opts.rope_factor,
                                   engine->opts.rope_original};
    if (!status) status = check_rope(&rope, err);
    if (!status)
        status = qn_model_create_adapted(&engine->model, engine->source, adapters, &rope, err);
    // The text is the caller's; what it says is in the graph and in the hash of the model.
    engine->opts.rope_scaling = NULL;
    engine->rope_hash = hash_rope(&rope);
    qn_adapters_close(adapters);
    return status;
}

// What several ranks cannot do together.
static qn_status check_team(const qn_engine *engine, qn_err *err) {
    const qn_engine_opts *o = &engine->opts;
    const qn_team *team = engine->team;
    if (o->reference) return qn_team_refuse(team, "the reference interpreter", err);
    if (engine->switches.ref) return qn_team_refuse(team, "a check of every kernel (QN_REF)", err);
    if (o->gpu_layers) return qn_team_refuse(team, "a number of layers on GPUs", err);
    if (o->expert_budget || o->expert_budget_bytes)
        return qn_team_refuse(team, "an expert budget", err);
    return QN_OK;
}

// Threads have nodes where the machine is ours: all of its CPUs, without a quota. Ranks that share a
// machine are placed by who starts them.
static qn_status open_pool(qn_engine *engine, int n_threads, qn_err *err) {
    const char *folder = engine->switches.nodes;
    qn_cpus allowed;
    qn_numa numa = {0};
    int quota;
    if (engine->opts.numa == QN_NUMA_AUTO && !engine->team && qn_cpus_allowed(&allowed) &&
        !qn_cgroup_cpus(&quota, ""))
        qn_numa_read(&numa, folder ? folder : "/sys/devices/system/node", &allowed);
    const qn_pool_opts opts = {.n_threads = n_threads, .numa = &numa};
    return qn_pool_open(&engine->pool, &opts, err);
}

static qn_status open_model(qn_engine *engine, const qn_source_opts *from, qn_err *err) {
    if (engine->team) QN_TRY(check_team(engine, err));
    const int asked = engine->opts.n_threads ? engine->opts.n_threads : engine->switches.threads;
    const int usual = engine->team ? qn_team_threads(engine->team) : 0;
    QN_TRY(open_pool(engine, asked ? asked : usual, err));
    QN_TRY(qn_source_create(&engine->source, from, err));
    QN_TRY(create_model(engine, err));
    QN_TRY(choose_graph(engine, err));
    engine->cache_type = choose_cache_type(engine);
    QN_TRY(read_settings(engine, from->path, err));
    return open_devices(engine, err);
}

// With several ranks, those that follow have no use for text and images.
static qn_status open_text(qn_engine *engine, qn_err *err) {
    engine->n_tokens = engine->model->hparams->vocab;
    if (!qn_team_leads(engine->team)) return QN_OK;
    QN_TRY(open_tokenizer(engine, err));
    QN_TRY(qn_sample_defaults_read(&engine->sample_defaults, engine->source, engine->opts.log,
                                   engine->opts.log_arg, err));
    log_model(engine);
    return QN_OK;
}

static qn_status open_plans(qn_engine *engine, qn_err *err) {
    QN_TRY(set_up_stages(engine, err));
    QN_TRY(check_graphs(engine, err));
    QN_TRY(open_text(engine, err));
    QN_TRY(try_compile(engine, err));
    if (engine->opts.no_weights) return QN_OK;
    if (qn_team_leads(engine->team)) QN_TRY(qn_images_check(engine, err));
    if (engine->opts.reference || engine->switches.ref) QN_TRY(load_reference(engine, err));
    if (!engine->opts.reference) QN_TRY(load_packs(engine, err));
    return qn_team_leads(engine->team) ? qn_images_create(&engine->images, engine, err) : QN_OK;
}

// Ranks meet on the way, so that none waits for one that has failed.
static qn_status meet(qn_engine *engine, const qn_source_opts *from, qn_err *err) {
    qn_team *team = engine->team;
    if (team->n_ranks == 1)
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING,
               "a split over one process: mpirun or srun starts several");
    QN_TRY(qn_team_compare_versions(team, err));
    qn_status status = open_model(engine, from, err);
    QN_TRY(qn_team_compare(team, engine, status, err));
    QN_TRY(qn_team_choose(team, engine, err));
    status = open_plans(engine, err);
    QN_TRY(qn_ranks_agree_late(team->ranks, status, err));
    QN_TRY(qn_team_level(team, engine, err));
    team->has_opened = true;
    return QN_OK;
}

static qn_status open_shared(qn_engine *engine, const qn_source_opts *from,
                             const qn_ranks_opts *ranks, qn_err *err) {
    qn_err why;
    qn_status status = qn_team_join(&engine->team, &engine->opts, ranks, &why);
    if (!status) status = meet(engine, from, &why);
    if (status && engine->team) qn_ranks_fail(engine->team->ranks, &why);
    if (status && err) *err = why;
    return status;
}

static qn_status open_parts(qn_engine *engine, const qn_source_opts *from,
                            const qn_ranks_opts *ranks, qn_err *err) {
    QN_TRY(check_opts(&engine->opts, err));
    QN_TRY(qn_switches_read(&engine->switches, err));
    if (engine->opts.split != QN_SPLIT_NONE) return open_shared(engine, from, ranks, err);
    QN_TRY(open_model(engine, from, err));
    return open_plans(engine, err);
}

// What several ranks fail with is told once.
static void hush(const qn_engine *engine, qn_err *err) {
    if (err && engine->team && !qn_ranks_tells(engine->team->ranks)) err->message[0] = 0;
}

static qn_status open_engine(qn_engine **out, qn_source_opts *from, const qn_engine_opts *opts,
                             const qn_ranks_opts *ranks, qn_err *err) {
    qn_engine_opts own;
    QN_TRY(QN_OPTS_READ(qn_engine_opts, &own, opts, err));
    qn_engine *engine = qn_alloc(1, sizeof *engine);
    if (!engine) return QN_NOMEM(err, "engine");
    engine->model_hash = qn_alloc(1, sizeof *engine->model_hash);
    if (!engine->model_hash) {
        qn_free(engine);
        return QN_NOMEM(err, "engine");
    }
    engine->opts = own;
    from->config = own.config;
    if (!from->path) engine->opts.cache_dir = NULL; // nothing tells when such files change
    const qn_status status = open_parts(engine, from, ranks, err);
    qn_disk_close(&engine->disk);
    engine->opts.config = engine->opts.profile = engine->opts.profile_text = NULL; // the caller's
    engine->opts.mmproj = engine->opts.device = engine->opts.cache_dir = NULL;
    engine->opts.shares = NULL;
    if (status) {
        hush(engine, err);
        qn_engine_close(engine);
    } else {
        *out = engine;
    }
    return status;
}

qn_status qn_engine_open(qn_engine **out, const char *path, const qn_engine_opts *opts,
                         qn_err *err) {
    QN_NEED(out, err);
    if (!path) return QN_FAIL(err, ARGUMENT, "no model was named");
    return open_engine(out, &(qn_source_opts){.path = path}, opts, NULL, err);
}

qn_status qn_engine_open_ranked(qn_engine **out, const char *path, const qn_engine_opts *opts,
                                const qn_ranks_opts *ranks, qn_err *err) {
    return open_engine(out, &(qn_source_opts){.path = path}, opts, ranks, err);
}

qn_status qn_engine_follow(qn_engine *engine, qn_err *err) {
    QN_NEED(engine, err);
    if (!engine->team || engine->team->rank == 0)
        return QN_FAIL(err, STATE, "rank %d of %d follows nobody", 0,
                       engine->team ? engine->team->n_ranks : 1);
    const qn_status status = qn_team_follow(engine, err);
    if (status) hush(engine, err);
    return status;
}

qn_status qn_engine_open_files(qn_engine **out, const qn_model_file *files, size_t n,
                               const qn_engine_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    if (n) QN_NEED(files, err);
    return open_engine(out, &(qn_source_opts){.files = files, .n_files = n}, opts, NULL, err);
}

void qn_engine_close(qn_engine *engine) {
    if (!engine) return;
    qn_team_leave(engine->team);
    qn_images_destroy(engine->images);
    qn_free(engine->adapter_hashes);
    qn_free(engine->model_hash);
    qn_free(engine->params);
    qn_free(engine->params_hidden);
    qn_free(engine->params_predict);
    qn_state_layout_destroy(engine->layout);
    qn_profile_deinit(&engine->profile);
    engine->head.device = NULL; // the last stage's
    qn_stage_deinit(&engine->head);
    qn_residency_destroy(engine->residency); // before its device
    for (size_t i = 0; i < engine->n_stages; i++) qn_stage_deinit(&engine->stages[i]);
    qn_free(engine->stages);
    qn_free(engine->devices);
    qn_tokenizer_close(engine->tokenizer);
    qn_model_destroy(engine->model);
    qn_source_close(engine->source);
    qn_pool_destroy(engine->pool);
    qn_free(engine);
}
