// qn_imatrix: which columns of the weights matter, from the inputs that a text gives them.
#include "formats/gguf_write.h"
#include "ir/matmul_inputs.h"
#include "make/importance.h"
#include "runtime/engine.h"
#include "runtime/runner.h"
#include "runtime/watch.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/structs.h"

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
    size_t n;
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

// An entry for each weight; one that several matmuls read has one.
static qn_status init_collector(collector *c, const qn_matmul_inputs *inputs, qn_err *err) {
    c->items = qn_alloc(inputs->n, sizeof *c->items);
    if (!c->items) return QN_NOMEM(err, "sums of weights");
    for (size_t i = 0; i < inputs->n; i++) {
        const qn_matmul_input *m = &inputs->items[i];
        uint32_t at = (uint32_t)c->n;
        if (!qn_map_add(&c->by_name, m->weight, strlen(m->weight), at, &at))
            return QN_NOMEM(err, m->weight);
        if (at < c->n) continue;
        seen *s = &c->items[c->n++];
        *s = (seen){.name = m->weight, .n_experts = m->n_experts, .width = m->width};
        s->sums = qn_alloc((size_t)m->n_experts * (size_t)m->width, sizeof *s->sums);
        s->counts = qn_alloc((size_t)m->n_experts, sizeof *s->counts);
        if (!s->sums || !s->counts) return QN_NOMEM(err, m->weight);
    }
    return QN_OK;
}

// Adds what a matmul has read in a step: (n_experts, width + 1).
static void add_step(collector *c, const qn_matmul_input *m, const float *x) {
    uint32_t at;
    if (!qn_map_find(&c->by_name, m->weight, strlen(m->weight), &at)) return;
    seen *s = &c->items[at];
    for (int64_t e = 0; e < s->n_experts; e++, x += s->width + 1) {
        double *sums = s->sums + e * s->width;
        for (int64_t i = 0; i < s->width; i++) sums[i] += (double)x[i];
        s->counts[e] += (int64_t)x[s->width];
    }
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
    qn_watch watch;
    qn_matmul_inputs inputs;
    collector seen;
    qn_runner *runner;
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

// Steps begin at the same tokens of a chunk whatever else is asked for: each step's sums are rounded
// once (docs/numbers.md).
enum { STEP = QN_DEFAULT_CHUNK };

static qn_status open_runner(imatrix_job *job, qn_err *err) {
    const int64_t rows = job->chunk_size < STEP ? job->chunk_size : STEP;
    QN_TRY(qn_matmul_inputs_init(&job->inputs, &job->engine->model->graph, err));
    QN_TRY(init_collector(&job->seen, &job->inputs, err));
    const qn_runner_opts opts = {.engine = job->engine,
                                 .graph = &job->inputs.graph,
                                 .context = job->chunk_size,
                                 .rows = rows,
                                 .outs = rows, // the output matrix reads all of them
                                 .segs = 1,
                                 .n_seqs = 1,
                                 .go_on = qn_watch_goes_on,
                                 .go_on_arg = &job->watch};
    return qn_runner_create(&job->runner, &opts, err);
}

static qn_status run_step(imatrix_job *job, qn_seq *seq, int64_t first, qn_err *err) {
    const int64_t left = job->chunk_size - first, rows = left < STEP ? left : STEP;
    const qn_segment segment = {.seq = seq, .ids = job->chunk + first, .rows = rows, .outs = rows};
    QN_TRY(qn_runner_step(job->runner, &segment, 1, err));
    for (size_t i = 0; i < job->inputs.n; i++) {
        const qn_matmul_input *m = &job->inputs.items[i];
        add_step(&job->seen, m, qn_runner_row(job->runner, m->output, 0));
    }
    return qn_runner_failure(job->runner, err);
}

// `before`: tokens of the chunks that are done.
static qn_status run_chunk(imatrix_job *job, int64_t before, qn_err *err) {
    qn_seq *seq;
    QN_TRY(qn_seq_open(&seq, qn_runner_state(job->runner), err));
    qn_status status = QN_OK;
    for (int64_t first = 0; first < job->chunk_size && !status; first += STEP) {
        if (qn_watch_tell(&job->watch, before + first))
            status = run_step(job, seq, first, err);
        else
            status = QN_STOPPED;
    }
    qn_seq_close(seq);
    return status;
}

static qn_status fail_stopped(const imatrix_job *job, int64_t done, qn_err *err) {
    const long long total = job->n_chunks * job->chunk_size;
    if (done)
        return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)done, total);
    return QN_FAIL(err, STOPPED,
                   "stopped before the first chunk was done; the text has %lld tokens", total);
}

static qn_status run_chunks(imatrix_job *job, qn_err *err) {
    const qn_tokenizer_info *info = qn_tokenizer_own_info(job->engine->tokenizer);
    const int64_t extra = info->add_bos, fresh = job->chunk_size - extra;
    for (int64_t i = 0; i < job->n_chunks; i++) {
        if (extra) job->chunk[0] = info->bos;
        memcpy(job->chunk + extra, job->ids + i * fresh, (size_t)fresh * sizeof *job->chunk);
        QN_TRY(qn_engine_check_ids(job->engine, job->chunk, (size_t)job->chunk_size,
                                   job->chunk_size, err));
        const qn_status status = run_chunk(job, i * job->chunk_size, err);
        const bool goes_on = status || qn_watch_tell(&job->watch, (i + 1) * job->chunk_size);
        if (status == QN_STOPPED || !goes_on) return fail_stopped(job, i * job->chunk_size, err);
        QN_TRY(status);
    }
    return QN_OK;
}

// While the weights are loaded: the text has not been counted.
static bool go_on_loading(void *arg, int64_t done, int64_t total) {
    (void)done, (void)total;
    return qn_watch_tell(arg, 0);
}

static qn_status open_engine(imatrix_job *job, const char *model, qn_err *err) {
    const qn_imatrix_opts *o = job->opts;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = o->n_threads, .device = "cpu",
                .cache_type = QN_CACHE_F32, .log = o->log, .log_arg = o->log_arg,
                .progress = go_on_loading, .progress_arg = &job->watch);
    QN_TRY(qn_engine_open(&job->engine, model, &opts, err));
    return qn_team_refuse(job->engine->team, "an importance matrix", err);
}

qn_status qn_imatrix(const char *model, const char *text, const char *out,
                     const qn_imatrix_opts *opts, qn_err *err) {
    qn_imatrix_opts o;
    if (!model || !text || !out)
        return QN_FAIL(err, ARGUMENT, "imatrix needs a model, a text and an output");
    QN_TRY(QN_OPTS_READ(qn_imatrix_opts, &o, opts, err));
    imatrix_job job = {.opts = &o, .text_path = text};
    qn_status status = QN_OK;
    qn_watch_init(&job.watch, o.progress, o.progress_arg, 0);
    QN_TRY_TO(done, open_engine(&job, model, err));
    if (qn_source_has_file(job.engine->source, out) || qn_path_is_same(text, out)) {
        status = QN_FAIL(err, ARGUMENT, "%s: is an input, want another name", out);
        goto done;
    }
    QN_TRY_TO(done, qn_gguf_check_place(out, err));
    QN_TRY_TO(done, read_text(&job, err));
    QN_TRY_TO(done, size_chunks(&job, err));
    job.watch.total = job.n_chunks * job.chunk_size;
    QN_TRY_TO(done, open_runner(&job, err));
    QN_TRY_TO(done, run_chunks(&job, err));
    status = write_file(&job, out, err);

done:
    qn_runner_destroy(job.runner);
    deinit_collector(&job.seen);
    qn_matmul_inputs_deinit(&job.inputs);
    qn_free(job.ids);
    qn_free(job.chunk);
    qn_engine_close(job.engine);
    return status;
}
