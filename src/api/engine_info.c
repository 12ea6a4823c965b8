// qn_engine: asking a model things. See quern.h for the contracts.
#include "runtime/media.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/structs.h"
#include "gen/logits.h"
#include "ir/text.h"
#include "runtime/memory.h"
#include "runtime/show.h"

static const char *cache_type_name(const qn_engine *engine) {
    return qn_kv_type_get(engine->opts.reference ? QN_CACHE_F32 : engine->cache_type)->name;
}

static int64_t cached_bytes(const qn_engine *engine) {
    int64_t bytes = 0;
    for (size_t i = 0; i < engine->n_stages && engine->is_loaded; i++)
        bytes += qn_packs_cached_bytes(engine->stages[i].packs);
    return bytes;
}

qn_status qn_engine_get_info(qn_engine_info *out, const qn_engine *engine, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_TRY(QN_RESULT_CHECK(qn_engine_info, out, err));
    const qn_hparams *hp = engine->model->hparams;
    const qn_weights *weights = &engine->model->weights;
    const qn_key *name = qn_source_find_key(engine->source, "general.name");
    qn_engine_info info = {
        .architecture = engine->model->family->arch,
        .name = name && name->kind == QN_KEY_STRING ? name->as.s.data : "",
        .n_layers = hp->layers,
        .width = hp->width,
        .n_heads = hp->heads,
        .n_kv_heads = hp->kv_heads,
        .head_size = hp->head_size,
        .ffn_width = hp->experts ? hp->expert_ffn : hp->ffn,
        .n_vocab = hp->vocab,
        .n_experts = hp->experts,
        .context = hp->context,
        .n_threads = qn_pool_threads(engine->pool),
        .device = engine->devices,
        .cache_type = cache_type_name(engine),
        .profile = engine->profile.path ? engine->profile.path : "",
        .n_adapter_sets = engine->model->n_sets,
        .cached_bytes = cached_bytes(engine),
        .rank = engine->team ? engine->team->rank : 0,
        .n_ranks = engine->team ? engine->team->n_ranks : 1,
        .split = engine->team ? engine->team->split : QN_SPLIT_NONE,
    };
    for (size_t i = 0; i < weights->n; i++) {
        if (weights->items[i].is_predict) continue;
        if (weights->items[i].n_parts) info.n_parameters += weights->items[i].n; // not an adapter's
        info.weight_bytes += weights->items[i].bytes;
    }
    QN_RESULT_WRITE(qn_engine_info, out, &info);
    return QN_OK;
}

static void print_phase(qn_buf *to, const qn_engine *engine, bool is_decode) {
    static const char *const policies[] = {[QN_PLANS_BUCKETED] = "bucketed",
                                           [QN_PLANS_EXACT] = "exact",
                                           [QN_PLANS_DYNAMIC] = "dynamic"};
    const qn_profile_phase *phase = is_decode ? &engine->profile.decode : &engine->profile.prefill;
    const uint64_t skip = engine->skip | phase->skip;
    const char *comma = "";
    qn_buf_printf(to, "[%s]\nskip = [", is_decode ? "decode" : "prefill");
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (!(skip >> i & 1)) continue;
        qn_buf_printf(to, "%s\"%s\"", comma, qn_pass_name(i));
        comma = ", ";
    }
    const qn_plan_policy policy = qn_engine_policy(engine, is_decode);
    qn_buf_printf(to, "]\nplans = \"%s\"\n", policies[policy]);
    if (policy != QN_PLANS_DYNAMIC) // which keeps none
        qn_buf_printf(to, "plan_capacity = %lld\n",
                      (long long)qn_engine_plan_capacity(engine, is_decode));
    if (!is_decode) qn_buf_printf(to, "chunk = %lld\n\n", (long long)qn_engine_chunk(engine, 0));
}

qn_status qn_engine_profile(char **text, const qn_engine *engine, qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(engine, err);
    qn_buf buf = {0};
    if (engine->profile.compile_seq_cap)
        qn_buf_printf(&buf, "compile_seq_cap = %lld\n\n",
                      (long long)engine->profile.compile_seq_cap);
    print_phase(&buf, engine, false);
    print_phase(&buf, engine, true);
    return qn_buf_take(text, &buf, err);
}

const qn_tokenizer *qn_engine_tokenizer(const qn_engine *engine) { return engine->tokenizer; }

qn_status qn_engine_sample_defaults(qn_sample_opts *out, const qn_engine *engine, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_TRY(QN_RESULT_CHECK(qn_sample_opts, out, err));
    QN_RESULT_WRITE(qn_sample_opts, out, &engine->sample_defaults);
    return QN_OK;
}

static qn_status need_plan(const qn_engine *engine, qn_err *err) {
    if (engine->layout) return QN_OK;
    return QN_FAIL(err, STATE, "there is no plan for this model: it has weights without kernels");
}

// Passes ask the device; of several, each has a part of the graph.
static qn_status need_one_device(const qn_engine *engine, qn_err *err) {
    if (engine->n_stages == 1) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "the graph after the passes needs one device, got %s",
                   engine->devices);
}

static qn_status print_mid(qn_buf *to, const qn_engine *engine, qn_graph_form form, qn_err *err) {
    const qn_compile_opts opts = qn_engine_compile_opts(engine, &engine->stages[0]);
    qn_graph mid = {0};
    QN_TRY(need_one_device(engine, err));
    QN_TRY(qn_compile_mid(&mid, &engine->model->graph, &opts, NULL, err));
    (form == QN_GRAPH_SVG ? qn_graph_svg : qn_graph_print)(to, &mid);
    qn_graph_deinit(&mid);
    return QN_OK;
}

qn_status qn_engine_graph(char **text, const qn_engine *engine, const qn_graph_opts *opts,
                          qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(engine, err);
    qn_graph_opts o;
    QN_TRY(QN_OPTS_READ(qn_graph_opts, &o, opts, err));
    if ((unsigned)o.form > QN_GRAPH_SVG || (unsigned)o.stage > QN_STAGE_LOW)
        return QN_FAIL(err, ARGUMENT, "graph form %d of 2, stage %d of 3", (int)o.form,
                       (int)o.stage);
    qn_buf buf = {0};
    qn_status status = QN_OK;
    if (o.stage == QN_STAGE_MID)
        status = print_mid(&buf, engine, o.form, err);
    else if (o.stage == QN_STAGE_LOW)
        status = need_plan(engine, err) ? QN_STATE : qn_show_plan(&buf, engine, &o, err);
    else
        (o.form == QN_GRAPH_SVG ? qn_graph_svg : qn_graph_print)(&buf, &engine->model->graph);
    if (status) {
        qn_buf_deinit(&buf);
        return status;
    }
    return qn_buf_take(text, &buf, err);
}

qn_status qn_engine_report(char **text, const qn_engine *engine, qn_report report, qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(engine, err);
    static void (*const writers[])(qn_buf *, const qn_pass_report *) = {
        [QN_REPORT_FUSION] = qn_pass_report_fusion, [QN_REPORT_DISPATCH] = qn_pass_report_dispatch};
    if ((size_t)report >= sizeof writers / sizeof writers[0])
        return QN_FAIL(err, ARGUMENT, "report %d of %zu", (int)report,
                       sizeof writers / sizeof writers[0]);
    const qn_compile_opts opts = qn_engine_compile_opts(engine, &engine->stages[0]);
    qn_pass_report passes = {0};
    qn_graph mid = {0};
    QN_TRY(need_one_device(engine, err));
    QN_TRY(qn_compile_mid(&mid, &engine->model->graph, &opts, &passes, err));
    qn_graph_deinit(&mid);
    qn_buf buf = {0};
    writers[report](&buf, &passes);
    return qn_buf_take(text, &buf, err);
}

qn_status qn_engine_memory(qn_memory *out, const qn_engine *engine, int64_t context, int64_t chunk,
                           qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_TRY(QN_RESULT_CHECK(qn_memory, out, err));
    const int64_t max = engine->model->hparams->context;
    if (context == 0) context = max;
    chunk = qn_engine_chunk(engine, chunk);
    if (context < 0 || context > max)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld", (long long)context,
                       (long long)max);
    QN_TRY(need_plan(engine, err));
    if (chunk < 0) return QN_FAIL(err, ARGUMENT, "chunks of %lld tokens", (long long)chunk);
    qn_memory plan;
    QN_TRY(qn_memory_plan(&plan, engine, context, chunk, err));
    QN_RESULT_WRITE(qn_memory, out, &plan);
    return QN_OK;
}

static qn_status check_mtp(const qn_engine *engine, size_t n, const qn_logits_opts *o,
                           qn_err *err) {
    if (!engine->opts.mtp)
        return QN_FAIL(err, STATE, "the model was opened without its prediction head");
    if (o->hidden)
        return QN_FAIL(err, UNSUPPORTED, "hidden states and the prediction head: ask for one");
    if (n < 2) return QN_FAIL(err, ARGUMENT, "the prediction head needs 2 tokens, got %zu", n);
    return QN_OK;
}

qn_status qn_engine_logits(qn_logits *out, const qn_engine *engine, const int32_t *ids, size_t n,
                           const qn_logits_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    qn_logits_opts o;
    QN_TRY(QN_RESULT_CHECK(qn_logits, out, err));
    QN_TRY(QN_OPTS_READ(qn_logits_opts, &o, opts, err));
    if (o.chunk < 0) return QN_FAIL(err, ARGUMENT, "chunks of %lld rows", (long long)o.chunk);
    QN_TRY(qn_engine_check_ids(engine, ids, n, engine->model->hparams->context, err));
    if (o.mtp) QN_TRY(check_mtp(engine, n, &o, err));
    if (o.last_rows < 0 || o.last_rows > (int64_t)n || (o.last_rows && (o.all_rows || o.mtp)))
        return QN_FAIL(err, ARGUMENT, "logits after the last %lld of %zu tokens%s",
                       (long long)o.last_rows, n,
                       o.all_rows ? ", and after all"
                       : o.mtp    ? ", with the prediction head"
                                  : "");
    if (o.n_images) QN_NEED(o.images, err);
    qn_media media;
    const qn_row_opts row =
        QN_INIT(qn_row_opts, .images = o.images, .n_images = o.n_images, .given = o.given);
    QN_TRY(qn_media_init_row(&media, engine, ids, n, &row, NULL, err));
    qn_logits result;
    const qn_run_input input = {.ids = ids, .n = (int64_t)n, .media = &media};
    qn_status status = qn_engine_run(&result, engine, &input, &o, err);
    qn_media_deinit(&media);
    if (status) return status;
    const float *last = result.logits + (result.n_rows - 1) * result.n_vocab;
    status = qn_logits_check(last, result.n_vocab, err);
    if (status)
        qn_logits_deinit(&result);
    else
        QN_RESULT_WRITE(qn_logits, out, &result);
    return status;
}

qn_status qn_engine_replay(qn_logits *out, const qn_engine *engine, const char *path,
                           const qn_logits_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_NEED(path, err);
    qn_logits_opts o;
    QN_TRY(QN_RESULT_CHECK(qn_logits, out, err));
    QN_TRY(QN_OPTS_READ(qn_logits_opts, &o, opts, err));
    if (o.hidden || o.mtp)
        return QN_FAIL(err, UNSUPPORTED, "a record of steps has no place for %s",
                       o.hidden ? "hidden states" : "the prediction head");
    if (!engine->is_loaded)
        return QN_FAIL(err, ARGUMENT, "steps run on an engine with packed weights, not on a %s",
                       engine->opts.reference ? "reference engine" : "model without weights");
    qn_logits result;
    QN_TRY(qn_engine_run_record(&result, engine, path, &o, err));
    QN_RESULT_WRITE(qn_logits, out, &result);
    return QN_OK;
}

qn_status qn_engine_split(char **json, const qn_engine *engine, qn_err *err) {
    QN_NEED(json, err);
    QN_NEED(engine, err);
    const char *plan = engine->team && engine->team->plan ? engine->team->plan : "{}";
    qn_buf text = {0};
    qn_buf_printf(&text, "%s", plan);
    return qn_buf_take(json, &text, err);
}

qn_status qn_engine_check(const qn_engine *engine, qn_err *err) {
    QN_NEED(engine, err);
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(qn_device_failure(engine->stages[i].device, err));
    return engine->team ? qn_team_check(engine->team, err) : QN_OK;
}
