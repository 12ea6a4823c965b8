// Several prompts in one call: their logits, and their embeddings.
#include "runtime/run_many.h"

#include "core/mem.h"
#include "core/stop_flag.h"
#include "core/structs.h"
#include "gen/logits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// --- prompts -------------------------------------------------------------------------------------

typedef struct asked {
    qn_many_input *inputs; // (n)
    qn_media *media;       // (n)
    size_t n;
    const qn_stop_flag *stop; // ends the encoding of images; NULL: none
} asked;

static void deinit_asked(asked *a) {
    for (size_t i = 0; a->media && i < a->n; i++) qn_media_deinit(&a->media[i]);
    qn_free(a->media);
    qn_free(a->inputs);
}

static qn_status read_prompt(asked *a, size_t i, const qn_engine *engine, const qn_prompt *prompt,
                             qn_err *err) {
    qn_row_opts row;
    qn_until until = {.stop = a->stop};
    QN_TRY(QN_OPTS_READ(qn_row_opts, &row, prompt->opts, err));
    QN_TRY(
        qn_engine_check_ids(engine, prompt->ids, prompt->n, engine->model->hparams->context, err));
    QN_TRY(qn_engine_adapter(&a->inputs[i].adapter, engine, row.adapter,
                             qn_engine_adapter_usual(engine), err));
    QN_TRY(qn_media_init_row(&a->media[i], engine, prompt->ids, prompt->n, &row, &until, err));
    a->inputs[i].run =
        (qn_run_input){.ids = prompt->ids, .n = (int64_t)prompt->n, .media = &a->media[i]};
    return QN_OK;
}

static qn_status read_prompts(asked *a, const qn_engine *engine, const qn_prompt *prompts, size_t n,
                              qn_err *err) {
    if (n == 0) return QN_FAIL(err, ARGUMENT, "0 prompts, want at least 1");
    a->inputs = qn_alloc(n, sizeof *a->inputs);
    a->media = qn_alloc(n, sizeof *a->media);
    a->n = n;
    qn_status status = a->inputs && a->media ? QN_OK : QN_NOMEM(err, "prompts");
    for (size_t i = 0; i < n && !status; i++) {
        status = read_prompt(a, i, engine, &prompts[i], err);
        if (status) (void)qn_err_prefix(err, status, "prompt %zu", i);
    }
    if (status) {
        deinit_asked(a);
        *a = (asked){0};
    }
    return status;
}

// What the calls below ask of a whole sequence where they run one after the other.
static qn_logits_opts single_opts(const asked *a, size_t i, const qn_logits_opts *o) {
    qn_logits_opts one = *o;
    one.adapter = a->inputs[i].adapter < 0 ? QN_NO_ADAPTER : a->inputs[i].adapter + 1;
    return one;
}

// --- logits --------------------------------------------------------------------------------------

static void collect_logits(void *arg, const qn_runner *runner, const qn_many_rows *rows) {
    qn_logits *results = arg;
    qn_logits_collect(&results[rows->input], runner, rows);
}

static qn_status run_together(qn_logits *results, const asked *a, const qn_engine *engine,
                              const qn_logits_opts *o, qn_err *err) {
    const qn_hparams *hp = engine->model->hparams;
    for (size_t i = 0; i < a->n; i++) {
        const int64_t n = a->inputs[i].run.n;
        results[i] =
            QN_INIT(qn_logits, .n_rows = o->all_rows ? n : 1, .n_vocab = hp->vocab,
                    .n_hidden = o->hidden ? hp->layers + 1 : 0, .n_tokens = n, .width = hp->width);
        QN_TRY(qn_logits_init(&results[i], err));
    }
    const qn_many_opts opts = {.hidden = o->hidden,
                               .outs = o->all_rows ? -1 : 1,
                               .chunk = o->chunk,
                               .take = collect_logits,
                               .arg = results,
                               .progress = o->progress,
                               .progress_arg = o->progress_arg};
    return qn_engine_run_many(engine, a->inputs, a->n, &opts, err);
}

static qn_status run_apart(qn_logits *results, const asked *a, const qn_engine *engine,
                           const qn_logits_opts *o, qn_err *err) {
    for (size_t i = 0; i < a->n; i++) {
        const qn_logits_opts one = single_opts(a, i, o);
        QN_TRY(qn_engine_run(&results[i], engine, &a->inputs[i].run, &one, err));
    }
    return QN_OK;
}

static qn_status check_logits_opts(const qn_logits_opts *o, qn_err *err) {
    if (o->chunk < 0) return QN_FAIL(err, ARGUMENT, "chunks of %lld rows", (long long)o->chunk);
    if (o->mtp)
        return QN_FAIL(err, UNSUPPORTED, "the prediction head: ask for one prompt at a time");
    if (o->last_rows)
        return QN_FAIL(err, ARGUMENT,
                       "logits after the last %lld tokens: ask for one prompt at a time",
                       (long long)o->last_rows);
    if (o->n_images || o->adapter || o->given)
        return QN_FAIL(err, ARGUMENT,
                       "images, adapter and given rows belong to the prompts' own options");
    return QN_OK;
}

static qn_logits *logits_at(qn_logits *outs, size_t i) {
    return (qn_logits *)((char *)outs + i * outs->size);
}

static qn_status check_outs(qn_logits *outs, size_t n, qn_err *err) {
    for (size_t i = 0; i < n; i++) {
        const qn_logits *out = logits_at(outs, i);
        QN_TRY(QN_RESULT_CHECK(qn_logits, out, err));
        if (out->size != outs->size)
            return QN_FAIL(err, ARGUMENT, "qn_logits %zu: size %zu, the first one's is %zu", i,
                           out->size, outs->size);
    }
    return QN_OK;
}

qn_status qn_engine_logits_batch(qn_logits *outs, const qn_engine *engine, const qn_prompt *prompts,
                                 size_t n_prompts, const qn_logits_opts *opts, qn_err *err) {
    QN_NEED(outs, err);
    QN_NEED(engine, err);
    QN_NEED(prompts, err);
    qn_logits_opts o;
    asked a = {0};
    QN_TRY(QN_OPTS_READ(qn_logits_opts, &o, opts, err));
    QN_TRY(check_logits_opts(&o, err));
    QN_TRY(check_outs(outs, n_prompts, err));
    QN_TRY(read_prompts(&a, engine, prompts, n_prompts, err));
    qn_logits *results = qn_alloc(n_prompts, sizeof *results);
    qn_status status = results ? QN_OK : QN_NOMEM(err, "logits");
    const bool is_apart = engine->opts.reference || o.naive; // no steps to share
    if (!status) status = (is_apart ? run_apart : run_together)(results, &a, engine, &o, err);
    for (size_t i = 0; i < n_prompts && !status; i++) {
        const float *last = results[i].logits + (results[i].n_rows - 1) * results[i].n_vocab;
        status = qn_logits_check(last, results[i].n_vocab, err);
        if (status) (void)qn_err_prefix(err, status, "prompt %zu", i);
    }
    for (size_t i = 0; results && i < n_prompts; i++) {
        if (!status)
            QN_RESULT_WRITE(qn_logits, logits_at(outs, i), &results[i]);
        else if (results[i].size)
            qn_logits_deinit(&results[i]);
    }
    qn_free(results);
    deinit_asked(&a);
    return status;
}

// --- embeddings ----------------------------------------------------------------------------------

typedef struct pooling {
    qn_pooling kind;
    char name[32]; // of the last hidden states
    int64_t width;
    const qn_many_input *inputs;
    float *rows;  // (n, width)
    double *sums; // (n, width) of QN_POOLING_MEAN, in the order of the tokens
} pooling;

// A row of the input after the final norm, in order.
static void add_row(pooling *p, size_t input, int64_t at, const float *row) {
    const int64_t n = p->inputs[input].run.n, from = (int64_t)input * p->width;
    if (p->kind == QN_POOLING_LAST) {
        if (at == n - 1) memcpy(p->rows + from, row, (size_t)p->width * sizeof *row);
        return;
    }
    for (int64_t i = 0; i < p->width; i++) p->sums[from + i] += (double)row[i];
    for (int64_t i = 0; at == n - 1 && i < p->width; i++)
        p->rows[from + i] = (float)(p->sums[from + i] / (double)n);
}

static void pool_rows(void *arg, const qn_runner *runner, const qn_many_rows *rows) {
    pooling *p = arg;
    for (int64_t i = 0; i < rows->rows; i++)
        add_row(p, rows->input, rows->first + i, qn_runner_row(runner, p->name, rows->row + i));
}

// A reference engine has no steps to share.
static qn_status pool_apart(pooling *p, const asked *a, const qn_engine *engine,
                            const qn_embed_opts *o, qn_err *err) {
    const qn_logits_opts base = QN_INIT(qn_logits_opts, .hidden = true, .chunk = o->chunk);
    for (size_t i = 0; i < a->n; i++) {
        const qn_logits_opts one = single_opts(a, i, &base);
        qn_logits l = QN_INIT(qn_logits);
        if (qn_stop_is_wanted(o->stop))
            return QN_FAIL(err, STOPPED, "stopped after %zu of %zu prompts", i, a->n);
        QN_TRY(qn_engine_run(&l, engine, &a->inputs[i].run, &one, err));
        const float *last = l.hidden + (l.n_hidden - 1) * l.n_tokens * l.width;
        for (int64_t t = 0; t < l.n_tokens; t++) add_row(p, i, t, last + t * l.width);
        qn_logits_deinit(&l);
    }
    return QN_OK;
}

// Lengths are added up in the order of the numbers.
static void normalize(float *row, int64_t width) {
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += (double)row[i] * (double)row[i];
    const double length = sqrt(sum);
    for (int64_t i = 0; i < width && length > 0; i++) row[i] = (float)((double)row[i] / length);
}

// "ARCH.pooling_type" of GGUF files; without it, or 0, the mean.
static qn_status find_pooling(qn_pooling *out, const qn_engine *engine, qn_err *err) {
    static const qn_pooling kinds[] = {QN_POOLING_MEAN, QN_POOLING_MEAN, 0, QN_POOLING_LAST};
    const int64_t n = sizeof kinds / sizeof *kinds;
    char name[128];
    snprintf(name, sizeof name, "%s.pooling_type", engine->model->family->arch);
    const qn_key *key = qn_source_find_key(engine->source, name);
    const int64_t type = key && key->kind == QN_KEY_INT ? key->as.i : 0;
    if (type < 0 || type >= n || !kinds[type])
        return QN_FAIL(err, UNSUPPORTED,
                       "%s: %s is %lld, want 1 (mean) or 3 (last); or ask for one of both",
                       qn_source_path(engine->source), name, (long long)type);
    *out = kinds[type];
    return QN_OK;
}

static qn_status pool(pooling *p, const asked *a, const qn_engine *engine, const qn_embed_opts *o,
                      qn_err *err) {
    const qn_hparams *hp = engine->model->hparams;
    const qn_many_opts opts = {.hidden = true,
                               .chunk = o->chunk,
                               .take = pool_rows,
                               .arg = p,
                               .progress = o->progress,
                               .progress_arg = o->progress_arg,
                               .stop = o->stop};
    p->kind = o->pooling;
    if (!p->kind) QN_TRY(find_pooling(&p->kind, engine, err));
    p->width = hp->width;
    p->inputs = a->inputs;
    snprintf(p->name, sizeof p->name, "hidden.%lld", (long long)hp->layers);
    size_t n;
    if (!qn_size_mul(&n, a->n, (size_t)hp->width)) return QN_NOMEM(err, "embeddings");
    p->rows = qn_alloc(n, sizeof *p->rows);
    if (p->kind == QN_POOLING_MEAN) p->sums = qn_alloc(n, sizeof *p->sums);
    if (!p->rows || (p->kind == QN_POOLING_MEAN && !p->sums)) return QN_NOMEM(err, "embeddings");
    QN_TRY(engine->opts.reference ? pool_apart(p, a, engine, o, err)
                                  : qn_engine_run_many(engine, a->inputs, a->n, &opts, err));
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(p->rows[i]))
            return QN_FAIL(err, NUMERIC, "the forward pass is broken: embedding %zu is not finite",
                           i / (size_t)hp->width);
    }
    for (size_t i = 0; o->normalize && i < a->n; i++)
        normalize(p->rows + (int64_t)i * p->width, p->width);
    return QN_OK;
}

qn_status qn_engine_embed(qn_embeddings *out, const qn_engine *engine, const qn_prompt *prompts,
                          size_t n_prompts, const qn_embed_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_NEED(prompts, err);
    qn_embed_opts o;
    asked a = {0};
    pooling p = {0};
    QN_TRY(QN_RESULT_CHECK(qn_embeddings, out, err));
    QN_TRY(QN_OPTS_READ(qn_embed_opts, &o, opts, err));
    if ((unsigned)o.pooling > QN_POOLING_LAST)
        return QN_FAIL(err, ARGUMENT, "pooling %d, want 0 to %d", (int)o.pooling, QN_POOLING_LAST);
    if (o.chunk < 0) return QN_FAIL(err, ARGUMENT, "chunks of %lld rows", (long long)o.chunk);
    a.stop = o.stop;
    QN_TRY(read_prompts(&a, engine, prompts, n_prompts, err));
    const qn_status status = pool(&p, &a, engine, &o, err);
    qn_embeddings result = {.n = (int64_t)n_prompts, .width = p.width, .rows = p.rows};
    for (size_t i = 0; i < n_prompts; i++) result.n_tokens += (int64_t)prompts[i].n;
    if (status)
        qn_free(p.rows);
    else
        QN_RESULT_WRITE(qn_embeddings, out, &result);
    qn_free(p.sums);
    deinit_asked(&a);
    return status;
}

static qn_status tokenize_texts(qn_prompt *prompts, const qn_tokenizer *tokenizer,
                                const char *const *texts, size_t n, qn_err *err) {
    const qn_tokenize_opts how = QN_INIT(qn_tokenize_opts, .add_ends = true);
    for (size_t i = 0; i < n; i++) {
        int32_t *ids;
        if (!texts[i]) return QN_FAIL(err, ARGUMENT, "text %zu is NULL", i);
        QN_TRY(qn_tokenize(&ids, &prompts[i].n, tokenizer, texts[i], strlen(texts[i]), &how, err));
        prompts[i].ids = ids;
        if (prompts[i].n == 0) return QN_FAIL(err, ARGUMENT, "text %zu is empty", i);
    }
    return QN_OK;
}

qn_status qn_engine_embed_texts(qn_embeddings *out, const qn_engine *engine,
                                const char *const *texts, size_t n_texts, const qn_embed_opts *opts,
                                qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_NEED(texts, err);
    if (!engine->tokenizer)
        return QN_FAIL(err, UNSUPPORTED, "%zu texts, the model has no tokenizer", n_texts);
    qn_prompt *prompts = qn_alloc(n_texts, sizeof *prompts);
    qn_status status = prompts ? tokenize_texts(prompts, engine->tokenizer, texts, n_texts, err)
                               : QN_NOMEM(err, "texts");
    if (!status) status = qn_engine_embed(out, engine, prompts, n_texts, opts, err);
    for (size_t i = 0; prompts && i < n_texts; i++) qn_free((void *)(uintptr_t)prompts[i].ids);
    qn_free(prompts);
    return status;
}

void qn_embeddings_deinit(qn_embeddings *embeddings) {
    if (!embeddings || QN_RESULT_CHECK(qn_embeddings, embeddings, NULL)) return;
    qn_free(embeddings->rows);
    QN_RESULT_CLEAR(qn_embeddings, embeddings);
}
