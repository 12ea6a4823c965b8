// Whole sequences from an empty state, through the plans, in chunks of rows.
#include "runtime/run_many.h"
#include "runtime/watch.h"

#include "core/mem.h"
#include "core/structs.h"

#include <stdio.h>
#include <string.h>

qn_status qn_engine_check_ids(const qn_engine *engine, const int32_t *ids, size_t n, int64_t limit,
                              qn_err *err) {
    const int64_t vocab = engine->model->hparams->vocab;
    if (!engine->params && !engine->is_loaded)
        return QN_FAIL(err, STATE, "the model was opened without its weights");
    if (n == 0 || !ids) return QN_FAIL(err, ARGUMENT, "no token ids were given");
    if (n > (uint64_t)limit)
        return QN_FAIL(err, LIMIT, "%zu tokens, the context has %lld", n, (long long)limit);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return QN_FAIL(err, ARGUMENT, "id %d (number %zu), this model has 0 to %lld", ids[i],
                           i + 1, (long long)vocab - 1);
    }
    return QN_OK;
}

qn_status qn_logits_init(qn_logits *out, qn_err *err) {
    size_t n_logits, n_hidden, n_mtp;
    if (!qn_size_mul(&n_logits, (size_t)out->n_rows, (size_t)out->n_vocab) ||
        !qn_size_mul(&n_hidden, (size_t)out->n_hidden, (size_t)out->n_tokens) ||
        !qn_size_mul(&n_hidden, n_hidden, (size_t)out->width) ||
        !qn_size_mul(&n_mtp, (size_t)out->n_mtp, (size_t)out->n_vocab))
        return QN_FAIL(err, LIMIT, "%lld rows of %lld logits", (long long)out->n_rows,
                       (long long)out->n_vocab);
    out->logits = qn_alloc(n_logits, sizeof *out->logits);
    out->hidden = n_hidden ? qn_alloc(n_hidden, sizeof *out->hidden) : NULL;
    out->mtp = n_mtp ? qn_alloc(n_mtp, sizeof *out->mtp) : NULL;
    const bool is_there = out->logits && (out->hidden || !n_hidden) && (out->mtp || !n_mtp);
    return is_there ? QN_OK : QN_NOMEM(err, "logits");
}

void qn_logits_collect(qn_logits *out, const qn_runner *runner, const qn_many_rows *rows) {
    const int64_t at = rows->first + rows->rows - rows->outs - (out->n_tokens - out->n_rows);
    for (int64_t i = 0; i < rows->outs; i++)
        memcpy(out->logits + (at + i) * out->n_vocab,
               qn_runner_row(runner, "logits", rows->out + i),
               (size_t)out->n_vocab * sizeof *out->logits);
    for (int64_t k = 0; k < out->n_hidden; k++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%lld", (long long)k);
        for (int64_t i = 0; i < rows->rows; i++)
            memcpy(out->hidden + (k * out->n_tokens + rows->first + i) * out->width,
                   qn_runner_row(runner, name, rows->row + i),
                   (size_t)out->width * sizeof *out->hidden);
    }
}

// The prediction head on the rows of this step whose logits are wanted: token t + 1 makes row t.
static qn_status predict(qn_logits *out, qn_runner *runner, int64_t first, const qn_segment *s,
                         float *before, qn_err *err) {
    const size_t bytes = (size_t)out->width * sizeof(float);
    int64_t skipped = s->rows - s->outs; // rows before the wanted ones, and the first token
    if (first + skipped == 0) skipped = 1;
    const int64_t rows = s->rows - skipped, outs = s->outs;
    if (rows <= 0) return QN_OK;
    for (int64_t i = 0; i < rows; i++)
        memcpy(before + i * out->width, qn_runner_row(runner, QN_ROWS_BEFORE, outs - rows + i),
               bytes);
    const qn_predict p = {.seq = s->seq,
                          .position = first + skipped,
                          .ids = s->ids + skipped,
                          .before = before,
                          .rows = rows,
                          .outs = rows,
                          .media = s->media};
    QN_TRY(qn_runner_predict(runner, &p, 1, 0, err));
    const int64_t at = out->n_mtp > 1 ? first + skipped - 1 : 0;
    for (int64_t i = 0; i < rows; i++)
        memcpy(out->mtp + (at + i) * out->n_vocab, qn_runner_head_row(runner, "logits", i),
               (size_t)out->n_vocab * sizeof(float));
    return QN_OK;
}

static qn_status run_chunks(qn_logits *out, qn_runner *runner, const qn_run_input *input,
                            int64_t chunk, qn_watch *watch, int32_t adapter, qn_err *err) {
    qn_seq *seq = NULL;
    float *before = NULL;
    qn_status status = QN_OK;
    const int64_t n = out->n_tokens;
    QN_TRY(qn_seq_open(&seq, qn_runner_state(runner), err));
    qn_seq_set_adapter(seq, adapter);
    if (out->mtp && !(before = qn_alloc((size_t)chunk, (size_t)out->width * sizeof *before))) {
        status = QN_NOMEM(err, "logits");
        goto done;
    }
    for (int64_t first = 0; first < n; first += chunk) {
        const int64_t rows = n - first < chunk ? n - first : chunk;
        const qn_segment segment = {
            .seq = seq,
            .ids = input->ids + first,
            .rows = rows,
            .outs = qn_min(rows, qn_max(0, first + rows - (n - out->n_rows))),
            .media = input->media,
        };
        status = qn_runner_step(runner, &segment, 1, err);
        if (status == QN_STOPPED)
            status = QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)first,
                             (long long)n);
        if (status) break;
        qn_logits_collect(out, runner,
                          &(qn_many_rows){.first = first, .rows = rows, .outs = segment.outs});
        QN_TRY_TO(done, qn_runner_failure(runner, err));
        if (out->mtp) QN_TRY_TO(done, predict(out, runner, first, &segment, before, err));
        const int64_t end = first + rows;
        if (end < n && !qn_watch_tell(watch, end)) {
            status = QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)end,
                             (long long)n);
            break;
        }
    }

done:
    qn_free(before);
    qn_seq_close(seq);
    return status;
}

qn_status qn_engine_run(qn_logits *out, const qn_engine *engine, const qn_run_input *input,
                        const qn_logits_opts *opts, qn_err *err) {
    if (engine->opts.reference) return qn_engine_run_ref(out, engine, input, opts, err);
    const qn_hparams *hp = engine->model->hparams;
    const int64_t n = input->n;
    int32_t adapter;
    QN_TRY(
        qn_engine_adapter(&adapter, engine, opts->adapter, qn_engine_adapter_usual(engine), err));
    int64_t chunk = qn_engine_chunk(engine, opts->naive ? n : opts->chunk);
    if (chunk > n) chunk = n;
    qn_logits result =
        QN_INIT(qn_logits, .n_rows = qn_logits_rows(opts, n), .n_vocab = hp->vocab,
                .n_hidden = opts->hidden ? hp->layers + 1 : 0, .n_tokens = n, .width = hp->width,
                .n_mtp = !opts->mtp       ? 0
                         : opts->all_rows ? n - 1
                                          : 1);
    qn_watch watch;
    qn_watch_init(&watch, opts->progress, opts->progress_arg, n);
    const bool is_watched = opts->progress && !engine->team; // ranks go through a step together
    const qn_runner_opts runner_opts = {.engine = engine,
                                        .hidden = opts->hidden,
                                        .context = n,
                                        .rows = chunk,
                                        .outs = qn_min(chunk, result.n_rows),
                                        .segs = 1,
                                        .n_seqs = 1,
                                        .go_on = is_watched ? qn_watch_goes_on : NULL,
                                        .go_on_arg = &watch};
    qn_runner *runner = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_logits_init(&result, err));
    QN_TRY_TO(done, qn_runner_create(&runner, &runner_opts, err));
    QN_TRY_TO(done, run_chunks(&result, runner, input, chunk, &watch, adapter, err));
    *out = result;
    result = QN_INIT(qn_logits);

done:
    qn_runner_destroy(runner);
    qn_logits_deinit(&result);
    return status;
}

void qn_logits_deinit(qn_logits *logits) {
    if (!logits || QN_RESULT_CHECK(qn_logits, logits, NULL)) return;
    qn_free(logits->logits);
    qn_free(logits->hidden);
    qn_free(logits->mtp);
    QN_RESULT_CLEAR(qn_logits, logits);
}
