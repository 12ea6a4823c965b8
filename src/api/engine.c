// qn_engine: opening a model and asking it things. See quern.h for the contracts.
#include "runtime/engine.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "gen/sample.h"
#include "ir/text.h"
#include "runtime/memory.h"

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
    const int32_t n_tokens = qn_tokenizer_get_info(engine->tokenizer).n_tokens;
    if (n_tokens > engine->model->hparams->vocab)
        return QN_FAIL(err, FORMAT, "the tokenizer has %d tokens, the embedding %lld rows",
                       n_tokens, (long long)engine->model->hparams->vocab);
    return QN_OK;
}

// QN_DUMP: the graph as text.
static qn_status dump_graph(const qn_engine *engine, qn_err *err) {
    char *path = qn_path_join(engine->switches.dump, "model.ir");
    qn_buf text = {0};
    qn_status status = QN_OK;
    FILE *f = path ? fopen(path, "we") : NULL;
    if (!f) {
        status =
            QN_FAIL(err, IO, "QN_DUMP: cannot write %s: %s", path ? path : "", strerror(errno));
        goto done;
    }
    qn_graph_print(&text, &engine->model->graph);
    const bool is_written = !text.failed && fwrite(text.data, 1, text.size, f) == text.size;
    if (fclose(f) != 0 || !is_written) status = QN_FAIL(err, IO, "cannot write %s", path);

done:
    qn_buf_deinit(&text);
    qn_free(path);
    return status;
}

static qn_status check_graphs(const qn_engine *engine, qn_err *err) {
    if (engine->switches.verify) {
        QN_TRY(qn_graph_verify(&engine->model->graph, err));
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
               (long long)model->hparams->layers, model->graph.n_nodes, model->weights.n,
               qn_pool_threads(engine->pool));
}

static qn_status open_parts(qn_engine *engine, const char *path, qn_err *err) {
    QN_TRY(qn_switches_read(&engine->switches, err));
    const int asked = engine->opts.n_threads;
    QN_TRY(qn_pool_create(&engine->pool, asked ? asked : engine->switches.threads, err));
    QN_TRY(qn_source_open(&engine->source, path, err));
    QN_TRY(qn_model_create(&engine->model, engine->source, err));
    QN_TRY(check_graphs(engine, err));
    QN_TRY(open_tokenizer(engine, err));
    log_model(engine);
    if (engine->opts.no_weights) return QN_OK;
    qn_model *model = engine->model;
    const qn_load_opts load = {.progress = engine->opts.progress,
                               .progress_arg = engine->opts.progress_arg};
    QN_TRY(qn_weights_load(&model->weights, engine->source, &load, err));
    QN_TRY(qn_model_params(&engine->params, model, &model->graph, err));
    return qn_model_params(&engine->params_hidden, model, &model->graph_hidden, err);
}

qn_status qn_engine_open(qn_engine **out, const char *path, const qn_engine_opts *opts,
                         qn_err *err) {
    if (!path) return QN_FAIL(err, ARGUMENT, "no model was named");
    qn_engine *engine = qn_alloc(1, sizeof *engine);
    if (!engine) return QN_NOMEM(err, "engine");
    if (opts) engine->opts = *opts;
    const qn_status status = open_parts(engine, path, err);
    if (status)
        qn_engine_close(engine);
    else
        *out = engine;
    return status;
}

void qn_engine_close(qn_engine *engine) {
    if (!engine) return;
    qn_free(engine->params);
    qn_free(engine->params_hidden);
    qn_tokenizer_close(engine->tokenizer);
    qn_model_destroy(engine->model);
    qn_source_close(engine->source);
    qn_pool_destroy(engine->pool);
    qn_free(engine);
}

qn_engine_info qn_engine_get_info(const qn_engine *engine) {
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
    };
    for (size_t i = 0; i < weights->n; i++) {
        if (weights->items[i].is_predict) continue;
        info.n_parameters += weights->items[i].n;
        info.weight_bytes += weights->items[i].bytes;
    }
    return info;
}

const qn_tokenizer *qn_engine_tokenizer(const qn_engine *engine) { return engine->tokenizer; }

qn_status qn_engine_graph(char **text, const qn_engine *engine, qn_graph_form form, qn_err *err) {
    static void (*const writers[])(qn_buf *, const qn_graph *) = {
        [QN_GRAPH_TEXT] = qn_graph_print, [QN_GRAPH_SVG] = qn_graph_svg};
    if ((size_t)form >= sizeof writers / sizeof writers[0])
        return QN_FAIL(err, ARGUMENT, "graph form %d of %zu", (int)form,
                       sizeof writers / sizeof writers[0]);
    qn_buf buf = {0};
    writers[form](&buf, &engine->model->graph);
    return qn_buf_take(text, &buf, err);
}

qn_status qn_engine_memory(qn_memory *out, const qn_engine *engine, int64_t context, qn_err *err) {
    const int64_t most = engine->model->hparams->context;
    if (context == 0) context = most;
    if (context < 0 || context > most)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld", (long long)context,
                       (long long)most);
    return qn_memory_plan(out, engine->model, context, err);
}

qn_status qn_engine_check_ids(const qn_engine *engine, const int32_t *ids, size_t n, int64_t limit,
                              qn_err *err) {
    const int64_t vocab = engine->model->hparams->vocab;
    if (!engine->params) return QN_FAIL(err, STATE, "the model was opened without its weights");
    if (n == 0 || !ids) return QN_FAIL(err, ARGUMENT, "no token ids were given");
    if (n > (uint64_t)limit)
        return QN_FAIL(err, LIMIT, "%zu tokens, the context has %lld", n, (long long)limit);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return QN_FAIL(err, ARGUMENT, "token %zu: id %d, the vocabulary has %lld", i, ids[i],
                           (long long)vocab);
    }
    return QN_OK;
}

qn_status qn_engine_logits(qn_logits *out, const qn_engine *engine, const int32_t *ids, size_t n,
                           const qn_logits_opts *opts, qn_err *err) {
    const qn_logits_opts defaults = {0};
    if (!opts) opts = &defaults;
    if (opts->chunk < 0)
        return QN_FAIL(err, ARGUMENT, "chunks of %lld rows", (long long)opts->chunk);
    QN_TRY(qn_engine_check_ids(engine, ids, n, engine->model->hparams->context, err));
    qn_logits result = {0};
    QN_TRY(qn_engine_run(&result, engine, ids, (int64_t)n, opts, err));
    const float *last = result.logits + (result.n_rows - 1) * result.n_vocab;
    const qn_status status = qn_logits_check(last, result.n_vocab, err);
    if (status)
        qn_logits_deinit(&result);
    else
        *out = result;
    return status;
}
