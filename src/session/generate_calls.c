// qn_generate and qn_generate_batch: a batch in the runner of a session, until its rows have ended.
#include "session/batch_int.h"

#include "core/mem.h"
#include "core/structs.h"

static qn_status run_all(qn_batch *b, qn_err *err) {
    size_t n;
    do QN_TRY(qn_batch_step(&n, b, err));
    while (n);
    return QN_OK;
}

qn_status qn_generate(qn_result *result, qn_session *session, const qn_generate_opts *opts,
                      qn_event_fn *fn, void *arg, qn_err *err) {
    QN_NEED(session, err);
    if (result) QN_TRY(QN_RESULT_CHECK(qn_result, result, err));
    qn_batch *b = NULL;
    qn_batch_row *row = NULL;
    qn_err own = {0};
    qn_result got = QN_INIT(qn_result);
    qn_status status = QN_OK;
    const qn_row_opts row_opts = QN_INIT(qn_row_opts, .generate = opts);
    const qn_row_want want = {.session = session, .opts = &row_opts, .fn = fn, .arg = arg};
    QN_TRY(qn_batch_open(&b, session, 1, err));
    QN_TRY_TO(done, qn_batch_row_create(&row, b, &want, err));
    row->result = &got;
    row->err = &own;
    (void)qn_batch_push(b, row);
    QN_TRY_TO(done, run_all(b, err));
    status = got.status;
    if (status && err) *err = own;
    if (status || !result) goto done;
    QN_RESULT_WRITE(qn_result, result, &got);
    got = QN_INIT(qn_result);

done:
    qn_batch_destroy(b);
    qn_result_deinit(&got);
    return status;
}

// --- many prompts --------------------------------------------------------------------------------

static qn_status check_prompts(const qn_session *session, const qn_prompt *prompts,
                               size_t n_prompts, size_t n_results, qn_err *err) {
    size_t n = 0;
    if (n_prompts == 0) return QN_FAIL(err, ARGUMENT, "a batch of 0 prompts");
    for (size_t i = 0; i < n_prompts; i++) {
        qn_row_opts opts;
        qn_status status = QN_OPTS_READ(qn_row_opts, &opts, prompts[i].opts, err);
        if (!status)
            status = qn_engine_check_ids(session->engine, prompts[i].ids, prompts[i].n,
                                         session->context, err);
        if (status) return qn_err_prefix(err, status, "prompt %zu", i);
        if (!qn_size_add(&n, n, opts.completions ? opts.completions : 1))
            return QN_NOMEM(err, "batch");
    }
    if (n != n_results)
        return QN_FAIL(err, ARGUMENT, "%zu results for %zu prompts with %zu completions", n_results,
                       n_prompts, n);
    return QN_OK;
}

// The i-th of the caller's results; their stride is the size that they say.
static qn_result *result_at(qn_result *results, size_t i) {
    return (qn_result *)((char *)results + i * results->size);
}

static qn_status check_results(qn_result *results, size_t n, qn_err *err) {
    for (size_t i = 0; i < n; i++) {
        const qn_result *result = result_at(results, i);
        QN_TRY(QN_RESULT_CHECK(qn_result, result, err));
        if (result->size != results->size)
            return QN_FAIL(err, ARGUMENT, "qn_result %zu: size %zu, the first one's is %zu", i,
                           result->size, results->size);
    }
    return QN_OK;
}

// `results` stay where they are until all rows have ended.
static qn_status add_prompts(qn_batch *b, qn_result *results, const qn_prompt *prompts, size_t n,
                             qn_event_fn *fn, void *arg, qn_err *err) {
    size_t result = 0;
    for (size_t i = 0; i < n; i++) {
        qn_row_opts opts;
        QN_TRY(QN_OPTS_READ(qn_row_opts, &opts, prompts[i].opts, err));
        const qn_row_want want = {.ids = prompts[i].ids,
                                  .n = prompts[i].n,
                                  .opts = &opts,
                                  .row = result,
                                  .fn = fn,
                                  .arg = arg};
        qn_batch_row *rows;
        const qn_status status = qn_batch_rows_create(&rows, b, &want, err);
        if (status) return qn_err_prefix(err, status, "prompt %zu", i);
        for (qn_batch_row *row = rows; row; row = row->next) row->result = &results[result++];
        (void)qn_batch_push(b, rows);
    }
    return QN_OK;
}

qn_status qn_generate_batch(qn_result *results, size_t n_results, qn_session *session,
                            const qn_prompt *prompts, size_t n_prompts, qn_event_fn *fn, void *arg,
                            qn_err *err) {
    QN_NEED(results, err);
    QN_NEED(session, err);
    QN_NEED(prompts, err);
    QN_TRY(check_prompts(session, prompts, n_prompts, n_results, err));
    QN_TRY(check_results(results, n_results, err));
    const int64_t places = session->shared ? session->shared->max_seqs : 1;
    qn_batch *b = NULL;
    qn_result *got = qn_alloc(n_results, sizeof *got);
    qn_status status = got ? qn_batch_open(&b, session, places, err) : QN_NOMEM(err, "batch");
    if (!status) status = add_prompts(b, got, prompts, n_prompts, fn, arg, err);
    if (!status) status = run_all(b, err);
    qn_batch_destroy(b);
    for (size_t i = 0; got && i < n_results; i++) {
        if (status)
            qn_result_deinit(&got[i]);
        else
            QN_RESULT_WRITE(qn_result, result_at(results, i), &got[i]);
    }
    qn_free(got);
    return status;
}
