// Whole sequences through the reference interpreter, in chunks of rows.
#include "runtime/media.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

// One sequence, from nothing: its tables for any step.
typedef struct run_tables {
    int32_t *pos;   // (n, 4)
    int32_t *zeros; // (n) segment of every row
    int32_t *rows;  // (n) 0, 1, ...
    int32_t *pages; // (n_pages) 0, 1, ...
    int64_t n_pages;
    int32_t *extra_row; // (n); NULL: no row is given
    float *extra;       // (n_extra, width)
    int64_t n_extra, width;
} run_tables;

static void deinit_tables(run_tables *t) {
    qn_free(t->pos);
    qn_free(t->zeros);
    qn_free(t->rows);
    qn_free(t->pages);
    qn_free(t->extra_row);
    qn_free(t->extra);
}

static qn_status init_given(run_tables *t, const qn_run_input *input, int64_t width, qn_err *err) {
    const int64_t n = input->n;
    t->width = width;
    t->n_extra = qn_media_count(input->media, 0, n);
    if (t->n_extra) {
        t->extra_row = qn_alloc((size_t)n, sizeof *t->extra_row);
        t->extra = qn_alloc((size_t)t->n_extra, (size_t)width * sizeof *t->extra);
        if (!t->extra_row || !t->extra) return QN_NOMEM(err, "given rows");
    }
    (void)qn_media_fill(input->media, 0, n, t->pos, t->extra_row, t->extra, 0);
    return QN_OK;
}

static qn_status init_tables(run_tables *t, const qn_run_input *input, int64_t width, qn_err *err) {
    const int64_t n = input->n;
    t->n_pages = (n + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS;
    t->pos = qn_alloc((size_t)n, 4 * sizeof *t->pos);
    t->zeros = qn_alloc((size_t)n, sizeof *t->zeros);
    t->rows = qn_alloc((size_t)n, sizeof *t->rows);
    t->pages = qn_alloc((size_t)t->n_pages, sizeof *t->pages);
    if (!t->pos || !t->zeros || !t->rows || !t->pages) return QN_NOMEM(err, "step table");
    for (int64_t i = 0; i < n; i++) t->rows[i] = (int32_t)i;
    for (int64_t i = 0; i < t->n_pages; i++) t->pages[i] = (int32_t)i;
    return init_given(t, input, width, err);
}

// The given rows of a step whose first row is `first`.
static void give_rows(qn_step *step, const run_tables *t, int64_t first) {
    step->n_extra = t->n_extra;
    step->extra_width = t->width;
    step->extra = t->extra;
    step->extra_row = t->extra_row ? t->extra_row + first : NULL;
}

// How far a run is, for its caller.
typedef struct watched {
    const qn_logits_opts *opts;
    int32_t adapter;
    int64_t first, n; // tokens that are done, and all
} watched;

// Copies the rows of this step's outputs to their place in `out`.
static void collect(qn_logits *out, const qn_ref *ref, int64_t first, int64_t rows, int64_t outs) {
    int64_t n = 0;
    const float *logits = qn_ref_output(ref, "logits", &n);
    if (n && out->logits)
        memcpy(out->logits + (first + rows - outs - (out->n_tokens - out->n_rows)) * out->n_vocab,
               logits, (size_t)n * sizeof *logits);
    for (int64_t i = 0; i < out->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%lld", (long long)i);
        const float *hidden = qn_ref_output(ref, name, &n);
        memcpy(out->hidden + (i * out->n_tokens + first) * out->width, hidden,
               (size_t)(rows * out->width) * sizeof *hidden);
    }
}

static qn_status run_chunks(qn_logits *out, qn_ref *ref, const int32_t *ids, const run_tables *t,
                            watched *w, qn_err *err) {
    const qn_logits_opts *opts = w->opts;
    const int64_t n = out->n_tokens, chunk = opts->chunk > 0 ? opts->chunk : n;
    int32_t accepted = 0; // rows that the step before left in the log of recurrent layers
    for (int64_t first = 0; first < n; first += chunk) {
        const int64_t rows = n - first < chunk ? n - first : chunk;
        const int64_t outs = qn_min(rows, qn_max(0, first + rows - (n - out->n_rows)));
        w->first = first;
        const int32_t seg_row[2] = {0, (int32_t)rows}, past = (int32_t)first;
        qn_step step = {
            .n_rows = rows,
            .n_segs = 1,
            .n_out = outs,
            .ids = ids + first,
            .pos = t->pos + first * 4,
            .row_seg = t->zeros,
            .seg_row = seg_row,
            .seg_past = &past,
            .seg_pages = t->pages,
            .pages_per_seg = t->n_pages,
            .seg_slot = t->zeros,
            .seg_accept = &accepted,
            .seg_adapter = &w->adapter,
            .row_out = t->rows + rows - outs,
        };
        give_rows(&step, t, first);
        QN_TRY(qn_ref_run(ref, &step, err));
        collect(out, ref, first, rows, outs);
        accepted = (int32_t)rows;
    }
    return QN_OK;
}

// A qn_progress_fn of the interpreter: nodes of a step, of which the caller knows nothing.
static bool go_on(void *arg, int64_t done, int64_t total) {
    const watched *w = arg;
    (void)done, (void)total;
    return w->opts->progress(w->opts->progress_arg, w->first, w->n);
}

// The prediction head on the rows after the final norm, the last of `hidden`.
static qn_status predict(qn_logits *out, const qn_engine *engine, const int32_t *ids,
                         const run_tables *t, int32_t adapter, qn_err *err) {
    const qn_graph *graph = &engine->model->graph_predict;
    const int64_t rows = out->n_tokens - 1;
    const int32_t seg_row[2] = {0, (int32_t)rows}, one = 1;
    qn_step step = {.n_rows = rows,
                    .n_segs = 1,
                    .n_out = out->n_mtp,
                    .ids = ids + 1,
                    .pos = t->pos + 4,
                    .row_seg = t->zeros,
                    .seg_row = seg_row,
                    .seg_past = &one,
                    .seg_pages = t->pages,
                    .pages_per_seg = t->n_pages,
                    .seg_slot = t->zeros,
                    .seg_accept = t->zeros,
                    .seg_adapter = &adapter,
                    .row_out = t->rows + rows - out->n_mtp};
    const qn_ref_opts opts = {.graph = graph,
                              .params = engine->params_predict,
                              .pool = engine->pool,
                              .n_pages = t->n_pages,
                              .n_slots = 1};
    qn_ref *ref = NULL;
    give_rows(&step, t, 1);
    QN_TRY(qn_ref_create(&ref, &opts, err));
    qn_ref_set_input(ref, qn_graph_find_input(graph, QN_ROWS_BEFORE),
                     out->hidden + (out->n_hidden - 1) * out->n_tokens * out->width);
    const qn_status status = qn_ref_run(ref, &step, err);
    int64_t n = 0;
    const float *logits = status ? NULL : qn_ref_output(ref, "logits", &n);
    if (logits) memcpy(out->mtp, logits, (size_t)n * sizeof *logits);
    qn_ref_destroy(ref);
    return status;
}

qn_status qn_engine_run_ref(qn_logits *out, const qn_engine *engine, const qn_run_input *input,
                            const qn_logits_opts *opts, qn_err *err) {
    const qn_model *model = engine->model;
    const int64_t n = input->n;
    const bool is_hidden = opts->hidden || opts->mtp; // the head reads the last of them
    qn_logits result =
        QN_INIT(qn_logits, .n_rows = qn_logits_rows(opts, n), .n_vocab = model->hparams->vocab,
                .n_hidden = is_hidden ? model->hparams->layers + 1 : 0, .n_tokens = n,
                .width = model->hparams->width,
                .n_mtp = !opts->mtp       ? 0
                         : opts->all_rows ? n - 1
                                          : 1);
    run_tables tables = {0};
    watched w = {.opts = opts, .n = n};
    qn_ref *ref = NULL;
    qn_status status = QN_OK;
    QN_TRY(
        qn_engine_adapter(&w.adapter, engine, opts->adapter, qn_engine_adapter_usual(engine), err));
    QN_TRY_TO(done, init_tables(&tables, input, model->hparams->width, err));
    QN_TRY_TO(done, qn_logits_init(&result, err));
    const qn_ref_opts ref_opts = {
        .progress = opts->progress ? go_on : NULL,
        .progress_arg = &w,
        .graph = is_hidden ? &model->graph_hidden : &model->graph,
        .params = is_hidden ? engine->params_hidden : engine->params,
        .pool = engine->pool,
        .n_pages = tables.n_pages,
        .n_slots = 1,
    };
    QN_TRY_TO(done, qn_ref_create(&ref, &ref_opts, err));
    QN_TRY_TO(done, run_chunks(&result, ref, input->ids, &tables, &w, err));
    if (opts->mtp) {
        QN_TRY_TO(done, predict(&result, engine, input->ids, &tables, w.adapter, err));
        qn_free(result.hidden);
        result.hidden = NULL;
        result.n_hidden = 0;
    }
    *out = result;
    result = QN_INIT(qn_logits);

done:
    qn_logits_deinit(&result);
    qn_ref_destroy(ref);
    deinit_tables(&tables);
    return status;
}
