// Recorded steps, run again.
#include "core/mem.h"
#include "runtime/memory.h"
#include "runtime/record.h"

#include <string.h>

// No runner of this program is larger; a file may say anything.
enum { ROWS_MAX = 1 << 16 };
static const int64_t logits_bytes_max = (int64_t)2 << 30;

static qn_status check_model(const qn_record_head *head, const qn_engine *engine, const char *path,
                             qn_err *err) {
    const qn_hparams *hp = engine->model->hparams;
    if (head->vocab == hp->vocab && head->layers == hp->layers && head->width == hp->width)
        return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "%s: steps of a model with %lld tokens, %lld layers of width %lld; this one has "
                   "%lld, %lld of %lld",
                   path, (long long)head->vocab, (long long)head->layers, (long long)head->width,
                   (long long)hp->vocab, (long long)hp->layers, (long long)hp->width);
}

static qn_status check_sizes(const qn_record_head *head, const qn_engine *engine, const char *path,
                             qn_err *err) {
    const int64_t context = engine->model->hparams->context;
    const struct {
        const char *name;
        int64_t value, low, high;
    } sizes[] = {
        {"context", head->context, 1, context},        {"rows", head->rows, 1, ROWS_MAX},
        {"wanted rows", head->outs, 0, ROWS_MAX},      {"segments", head->segs, 1, ROWS_MAX},
        {"sequences", head->n_seqs, 1, ROWS_MAX},      {"positions", head->positions, 0, INT64_MAX},
        {"kept bytes", head->kept_bytes, 0, INT64_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value < sizes[i].low || sizes[i].value > sizes[i].high)
            return QN_FAIL(err, FORMAT, "%s: %s: %lld, want %lld to %lld", path, sizes[i].name,
                           (long long)sizes[i].value, (long long)sizes[i].low,
                           (long long)sizes[i].high);
    }
    return QN_OK;
}

// *left: what is free for keys, values and states.
static qn_status check_memory(int64_t *left, const qn_runner_opts *opts, const char *path,
                              qn_err *err) {
    qn_runner_size size;
    int64_t available, need;
    QN_TRY(qn_runner_measure(&size, opts, err));
    if (!qn_i64_add(&need, size.arena, size.scratch) || !qn_i64_add(&need, need, size.tables))
        need = INT64_MAX;
    if (!qn_engine_free_memory(opts->engine, &available)) available = INT64_MAX;
    *left = available - need;
    if (need <= available) return QN_OK;
    return QN_FAIL(err, MEMORY, "%s: its steps need %lld bytes, %lld are free", path,
                   (long long)need, (long long)available);
}

// Makes room for `n` more rows, or for the last one alone.
static qn_status grow(qn_logits *to, size_t *cap, int64_t n, bool all_rows, const char *path,
                      qn_err *err) {
    const int64_t rows = all_rows ? to->n_rows + n : 1;
    const int64_t row_bytes = to->n_vocab * (int64_t)sizeof(float);
    if (rows > logits_bytes_max / row_bytes)
        return QN_FAIL(err, LIMIT, "%s: %lld rows of %lld logits, more than %lld bytes", path,
                       (long long)rows, (long long)to->n_vocab, (long long)logits_bytes_max);
    void *logits = to->logits;
    if (!qn_grow(&logits, cap, (size_t)(rows * to->n_vocab), sizeof *to->logits))
        return QN_NOMEM(err, "logits");
    to->logits = logits;
    return QN_OK;
}

static qn_status run_all(qn_logits *to, qn_runner *runner, qn_replay *replay, qn_touched *touched,
                         const qn_logits_opts *opts, const char *path, qn_err *err) {
    size_t cap = 0;
    for (int64_t steps = 0;; steps++) {
        int64_t n;
        bool more;
        const qn_status status = qn_runner_replay(&n, runner, replay, touched, &more, err);
        if (status) return qn_err_prefix(err, status, "%s: step %lld", path, (long long)steps);
        if (!more) return QN_OK;
        if (n) QN_TRY(grow(to, &cap, n, opts->all_rows, path, err));
        for (int64_t i = opts->all_rows || n == 0 ? 0 : n - 1; i < n; i++) {
            const int64_t at = opts->all_rows ? to->n_rows : 0;
            memcpy(to->logits + at * to->n_vocab, qn_runner_row(runner, "logits", i),
                   (size_t)to->n_vocab * sizeof(float));
            to->n_rows = at + 1;
        }
        if (opts->progress && !opts->progress(opts->progress_arg, steps, 0))
            return QN_FAIL(err, STOPPED, "stopped after %lld steps", (long long)steps + 1);
    }
}

qn_status qn_engine_run_record(qn_logits *out, const qn_engine *engine, const char *path,
                               const qn_logits_opts *opts, qn_err *err) {
    qn_record_head head;
    qn_replay *replay = NULL;
    qn_runner *runner = NULL;
    qn_touched touched = {0};
    int64_t left;
    qn_logits result = QN_INIT(qn_logits, .n_vocab = engine->model->hparams->vocab);
    qn_status status = QN_OK;
    QN_TRY(qn_replay_open(&replay, &head, path, err));
    const qn_runner_opts runner_opts = {.engine = engine,
                                        .context = head.context,
                                        .rows = head.rows,
                                        .outs = head.outs,
                                        .segs = head.segs,
                                        .n_seqs = head.n_seqs,
                                        .positions = head.positions,
                                        .kept_bytes = head.kept_bytes,
                                        .is_replay = true};
    QN_TRY_TO(done, check_model(&head, engine, path, err));
    QN_TRY_TO(done, check_sizes(&head, engine, path, err));
    QN_TRY_TO(done, check_memory(&left, &runner_opts, path, err));
    QN_TRY_TO(done, qn_runner_create(&runner, &runner_opts, err));
    QN_TRY_TO(done, qn_touched_init(&touched, qn_runner_state(runner), left, err));
    QN_TRY_TO(done, run_all(&result, runner, replay, &touched, opts, path, err));
    if (result.n_rows == 0) {
        status = QN_FAIL(err, ARGUMENT, "%s: no step wants logits", path);
        goto done;
    }
    *out = result;
    result = QN_INIT(qn_logits);

done:
    qn_touched_deinit(&touched);
    qn_runner_destroy(runner);
    qn_replay_close(replay);
    qn_logits_deinit(&result);
    return status;
}
