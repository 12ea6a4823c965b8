// qn_imatrix: which columns of the weights matter, from the inputs that a text gives them.
#include "formats/gguf_write.h"
#include "make/importance.h"
#include "runtime/engine.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/structs.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_CHUNK = 512 };
static const int64_t max_text = (int64_t)1 << 30;

// What was seen of one weight.
typedef struct seen {
    const char *name; // borrowed from the model
    int64_t n_experts, width;
    double *sums;    // (n_experts, width)
    int64_t *counts; // (n_experts)
    qn_order order;  // of the columns in the file
    bool is_double;  // another entry has the name
} seen;

typedef struct collector {
    seen *items;
    size_t n, cap;
    qn_map by_name;
} collector;

static void deinit_collector(collector *c) {
    for (size_t i = 0; i < c->n; i++) {
        qn_free(c->items[i].sums);
        qn_free(c->items[i].counts);
    }
    qn_free(c->items);
    qn_map_deinit(&c->by_name);
}

static qn_status add_weight(uint32_t *out, collector *c, const qn_ref_matmul *m, qn_err *err) {
    void *items = c->items;
    if (!qn_grow(&items, &c->cap, c->n + 1, sizeof *c->items)) return QN_NOMEM(err, m->weight);
    c->items = items;
    const uint32_t i = (uint32_t)c->n;
    seen *s = &c->items[i];
    *s = (seen){.name = m->weight, .n_experts = m->n_experts, .width = m->width};
    s->sums = qn_alloc((size_t)m->n_experts * (size_t)m->width, sizeof *s->sums);
    s->counts = qn_alloc((size_t)m->n_experts, sizeof *s->counts);
    c->n++;
    if (!s->sums || !s->counts || !qn_map_add(&c->by_name, s->name, strlen(s->name), i, NULL))
        return QN_NOMEM(err, m->weight);
    *out = i;
    return QN_OK;
}

static void add_row(seen *s, int64_t expert, const float *x) {
    assert(expert >= 0 && expert < s->n_experts);
    double *sums = s->sums + expert * s->width;
    for (int64_t i = 0; i < s->width; i++) sums[i] += (double)x[i] * (double)x[i];
    s->counts[expert]++;
}

static qn_status collect(void *arg, const qn_ref_matmul *m, qn_err *err) {
    collector *c = arg;
    uint32_t at;
    if (!*m->weight) return QN_OK; // no weight of the file
    if (!qn_map_find(&c->by_name, m->weight, strlen(m->weight), &at))
        QN_TRY(add_weight(&at, c, m, err));
    seen *s = &c->items[at];
    const int64_t n_choices = m->experts ? m->n_choices : 1;
    for (int64_t r = 0; r < m->n_rows * n_choices; r++)
        add_row(s, m->experts ? m->experts[r] : 0, m->x + r / n_choices * m->width);
    return QN_OK;
}

// --- the file ------------------------------------------------------------------------------------

static int compare_seen(const void *a, const void *b) {
    return strcmp(((const seen *)a)->name, ((const seen *)b)->name);
}

static const qn_weight *find_weight(const qn_model *model, const char *name) {
    uint32_t i;
    return qn_map_find(&model->weights.by_name, name, strlen(name), &i) ? &model->weights.items[i]
                                                                        : NULL;
}

// Entries as a GGUF file of the model needs them: by the names of its tensors, of which several
// weights can be parts (they then see the same inputs), and with columns in its order.
static void name_as_in_file(collector *c, const qn_engine *engine) {
    const bool is_gguf = qn_source_get_kind(engine->source) == QN_SOURCE_GGUF;
    for (size_t i = 0; i < c->n; i++) {
        const qn_weight *w = find_weight(engine->model, c->items[i].name);
        if (!w) continue;
        if (w->order.is_columns) c->items[i].order = w->order;
        if (is_gguf) c->items[i].name = w->parts[0].tensor->name.data;
    }
    qsort(c->items, c->n, sizeof *c->items, compare_seen);
    for (size_t i = 1; i < c->n; i++)
        c->items[i].is_double = strcmp(c->items[i - 1].name, c->items[i].name) == 0;
}

static qn_status write_seen(qn_gguf_writer *to, const seen *s, qn_err *err) {
    float *row = qn_alloc((size_t)s->width, sizeof *row);
    qn_status status = row ? QN_OK : QN_NOMEM(err, s->name);
    for (int64_t e = 0; !status && e < s->n_experts; e++) {
        for (int64_t i = 0; !status && i < s->width; i++) {
            const int64_t from = s->order.outer ? qn_order_source(&s->order, i) : i;
            row[i] = (float)s->sums[e * s->width + from];
            if (!isfinite(row[i]))
                status = QN_FAIL(err, NUMERIC, "%s: the inputs of column %lld are not finite",
                                 s->name, (long long)i);
        }
        if (!status) status = qn_gguf_write(to, row, (size_t)s->width * sizeof *row, err);
    }
    for (int64_t e = 0; !status && e < s->n_experts; e++) {
        const float count = (float)s->counts[e];
        status = qn_gguf_write(to, &count, sizeof count, err);
    }
    qn_free(row);
    return status;
}

static void declare_seen(qn_gguf_writer *to, const seen *s) {
    char name[512];
    snprintf(name, sizeof name, "%s" QN_IMPORTANCE_SUMS, s->name);
    qn_gguf_add_tensor(to, &(qn_gguf_tensor){name, QN_TYPE_F32, 2, {s->n_experts, s->width}});
    snprintf(name, sizeof name, "%s" QN_IMPORTANCE_COUNTS, s->name);
    qn_gguf_add_tensor(to, &(qn_gguf_tensor){name, QN_TYPE_F32, 2, {s->n_experts, 1}});
}

// --- the run -------------------------------------------------------------------------------------

typedef struct imatrix_job {
    const qn_imatrix_opts *opts;
    const char *text_path;
    qn_engine *engine;
    int32_t *ids; // (n_ids) of the text
    size_t n_ids;
    int32_t *chunk; // (chunk_size)
    int64_t chunk_size, n_chunks;
    int64_t done; // tokens of finished chunks
    collector seen;
} imatrix_job;

static qn_status write_file(imatrix_job *job, const char *path, qn_err *err) {
    collector *c = &job->seen;
    qn_gguf_writer *to;
    QN_TRY(qn_gguf_writer_create(&to, err));
    name_as_in_file(c, job->engine);
    const qn_str dataset = qn_str_of(qn_path_name(job->text_path));
    qn_gguf_put_string(to, "general.type", "imatrix");
    qn_gguf_put_strings(to, "imatrix.datasets", &dataset, 1);
    qn_gguf_put_u32(to, "imatrix.chunk_count", (uint32_t)job->n_chunks);
    qn_gguf_put_u32(to, "imatrix.chunk_size", (uint32_t)job->chunk_size);
    for (size_t i = 0; i < c->n; i++) {
        if (!c->items[i].is_double) declare_seen(to, &c->items[i]);
    }
    qn_status status = qn_gguf_begin(to, path, err);
    for (size_t i = 0; !status && i < c->n; i++) {
        if (!c->items[i].is_double) status = write_seen(to, &c->items[i], err);
    }
    if (!status) status = qn_gguf_finish(to, err);
    qn_gguf_writer_destroy(to);
    return status;
}

static qn_status read_text(imatrix_job *job, qn_err *err) {
    char *text;
    size_t size;
    const qn_tokenizer *tokenizer = job->engine->tokenizer;
    if (!tokenizer) return QN_FAIL(err, UNSUPPORTED, "the model came without a tokenizer");
    QN_TRY(qn_file_load(&text, &size, job->text_path, max_text, err));
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = job->opts->special);
    const qn_status status = qn_tokenize(&job->ids, &job->n_ids, tokenizer, text, size, &opts, err);
    qn_free(text);
    return status;
}

// Each chunk begins as a text does, with the beginning token where the model wants one.
static qn_status size_chunks(imatrix_job *job, qn_err *err) {
    const int64_t context = job->engine->model->hparams->context, asked = job->opts->chunk;
    const int64_t extra = qn_tokenizer_own_info(job->engine->tokenizer)->add_bos;
    job->chunk_size = asked ? asked : context < DEFAULT_CHUNK ? context : DEFAULT_CHUNK;
    if (asked < 0 || job->opts->n_chunks < 0 || job->chunk_size <= extra)
        return QN_FAIL(err, ARGUMENT, "chunks of %lld tokens, %lld of them", (long long)asked,
                       (long long)job->opts->n_chunks);
    if (job->chunk_size > context)
        return QN_FAIL(err, LIMIT, "chunks of %lld tokens, the context has %lld",
                       (long long)job->chunk_size, (long long)context);
    const int64_t n_ids = (int64_t)job->n_ids;
    if (n_ids == 0) return QN_FAIL(err, FORMAT, "%s: no text", job->text_path);
    if (n_ids + extra < job->chunk_size) job->chunk_size = n_ids + extra;
    job->n_chunks = n_ids / (job->chunk_size - extra);
    if (job->opts->n_chunks && job->opts->n_chunks < job->n_chunks)
        job->n_chunks = job->opts->n_chunks;
    job->chunk = qn_alloc((size_t)job->chunk_size, sizeof *job->chunk);
    return job->chunk ? QN_OK : QN_NOMEM(err, "a chunk");
}

// A qn_progress_fn, inside a chunk.
static bool go_on(void *arg, int64_t done, int64_t total) {
    const imatrix_job *job = arg;
    const int64_t part = total > 0 ? job->chunk_size * done / total : 0;
    return !job->opts->progress || job->opts->progress(job->opts->progress_arg, job->done + part,
                                                       job->n_chunks * job->chunk_size);
}

static qn_status run_chunks(imatrix_job *job, qn_err *err) {
    const qn_tokenizer_info *info = qn_tokenizer_own_info(job->engine->tokenizer);
    const int64_t extra = info->add_bos, fresh = job->chunk_size - extra;
    const int64_t total = job->n_chunks * job->chunk_size;
    const qn_ref_opts watch = {
        .observe = collect, .observe_arg = &job->seen, .progress = go_on, .progress_arg = job};
    for (int64_t i = 0; i < job->n_chunks; i++) {
        if (extra) job->chunk[0] = info->bos;
        memcpy(job->chunk + extra, job->ids + i * fresh, (size_t)fresh * sizeof *job->chunk);
        QN_TRY(qn_engine_check_ids(job->engine, job->chunk, (size_t)job->chunk_size,
                                   job->chunk_size, err));
        const qn_status status =
            qn_engine_observe(job->engine, job->chunk, job->chunk_size, &watch, err);
        if (!status) job->done += job->chunk_size;
        const bool is_stopped = status == QN_STOPPED || (!status && !go_on(job, 0, 1));
        if (is_stopped && job->done == 0)
            return QN_FAIL(err, STOPPED,
                           "stopped before the first chunk was done; the text has %lld tokens",
                           (long long)total);
        if (is_stopped)
            return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)job->done,
                           (long long)total);
        QN_TRY(status);
    }
    return QN_OK;
}

qn_status qn_imatrix(const char *model, const char *text, const char *out,
                     const qn_imatrix_opts *opts, qn_err *err) {
    qn_imatrix_opts o;
    if (!model || !text || !out)
        return QN_FAIL(err, ARGUMENT, "imatrix needs a model, a text and an output");
    QN_TRY(QN_OPTS_READ(qn_imatrix_opts, &o, opts, err));
    imatrix_job job = {.opts = &o, .text_path = text};
    const qn_engine_opts engine_opts =
        QN_INIT(qn_engine_opts, .n_threads = o.n_threads, .reference = true, .log = o.log,
                .log_arg = o.log_arg);
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_engine_open(&job.engine, model, &engine_opts, err));
    if (qn_source_has_file(job.engine->source, out) || qn_path_is_same(text, out)) {
        status = QN_FAIL(err, ARGUMENT, "%s: is an input, want another name", out);
        goto done;
    }
    QN_TRY_TO(done, qn_gguf_check_place(out, err));
    QN_TRY_TO(done, read_text(&job, err));
    QN_TRY_TO(done, size_chunks(&job, err));
    QN_TRY_TO(done, run_chunks(&job, err));
    status = write_file(&job, out, err);

done:
    deinit_collector(&job.seen);
    qn_free(job.ids);
    qn_free(job.chunk);
    qn_engine_close(job.engine);
    return status;
}
