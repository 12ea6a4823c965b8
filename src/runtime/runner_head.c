// The prediction head of a runner: its rows of several sequences at once.
#include "runtime/kv_memory.h"
#include "runtime/runner_int.h"
#include "runtime/runner_team.h"

#include <string.h>

static qn_status check_predicts(const qn_runner *r, const qn_predict *predicts, int64_t n,
                                qn_err *err) {
    int64_t rows = 0;
    if (!r->before) return QN_FAIL(err, STATE, "the model was opened without its prediction head");
    for (int64_t b = 0; b < n; b++) {
        const qn_predict *p = &predicts[b];
        if (p->rows < 1 || p->outs < 0 || p->outs > p->rows || p->position < 1 || p->top < 0 ||
            p->top > QN_HEAD_TOP || p->position + p->rows > qn_seq_end(p->seq))
            return QN_FAIL(err, ARGUMENT,
                           "prediction %lld: %lld rows at %lld of %lld, %lld wanted, %lld best",
                           (long long)b, (long long)p->rows, (long long)p->position,
                           (long long)qn_seq_end(p->seq), (long long)p->outs, (long long)p->top);
        rows += p->rows;
    }
    if (n < 1 || n > r->opts.segs || rows > r->head_rows)
        return QN_FAIL(
            err, LIMIT, "predictions of %lld sequences, %lld rows; the most is %lld, %lld",
            (long long)n, (long long)rows, (long long)r->opts.segs, (long long)r->head_rows);
    return QN_OK;
}

static void fill_segment(qn_runner *r, qn_step_tables *t, const qn_predict *p, int64_t b) {
    const int64_t width = r->engine->model->hparams->width;
    const qn_step_rows rows = {.ids = p->ids,
                               .position = p->position,
                               .rows = p->rows,
                               .outs = p->outs,
                               .is_full = p->top == 0,
                               .adapter = qn_seq_adapter(p->seq),
                               .media = p->media};
    qn_seq_fill_head(p->seq, &t->segs, b, p->position);
    memcpy(r->before + t->rows * width, p->before, (size_t)(p->rows * width) * sizeof *r->before);
    qn_step_tables_add(t, b, &rows);
}

static int64_t count_given(const qn_predict *predicts, int64_t n) {
    int64_t given = 0;
    for (int64_t b = 0; b < n; b++)
        given += qn_media_count(predicts[b].media, predicts[b].position, predicts[b].rows);
    return given;
}

static qn_status make_room(qn_runner *r, qn_err *err) {
    const qn_step_sizes max = qn_runner_max_head_sizes(r);
    size_t words;
    return qn_runner_make_room(&r->head_message, &words, &r->head_given_room, r, &max, err);
}

static qn_sizes write_message(qn_runner *r, const qn_predict *predicts, int64_t n,
                              int64_t entries) {
    qn_sizes sizes = {.segs = n};
    int64_t top = 1;
    for (int64_t b = 0; b < n; b++) {
        const qn_predict *p = &predicts[b];
        const int64_t cached = qn_seq_end(p->seq);
        sizes.rows += p->rows;
        sizes.outs += p->outs;
        if (cached > sizes.cached) sizes.cached = cached;
        if (p->outs && p->top > top) top = p->top;
    }
    const int64_t given = count_given(predicts, n);
    const qn_step_sizes own = {.rows = sizes.rows,
                               .segs = n,
                               .outs = sizes.outs,
                               .extra = given,
                               .extra_width = given ? r->engine->model->hparams->width : 0,
                               .groups = qn_state_groups(r->state),
                               .pages = (sizes.cached + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS};
    qn_step_begin(r->head_message, &own, top, r->engine->n_tokens);
    qn_step_set_computed(r->head_message, entries);
    qn_step_tables t = qn_step_tables_open(r->head_message, &own);
    for (int64_t b = 0; b < n; b++) fill_segment(r, &t, &predicts[b], b);
    t.seg_row[n] = (int32_t)t.rows;
    qn_step_view(&r->head_step, r->head_message);
    return sizes;
}

qn_status qn_runner_predict(qn_runner *r, const qn_predict *predicts, int64_t n, int64_t entries,
                            qn_err *err) {
    QN_TRY(check_predicts(r, predicts, n, err));
    if (count_given(predicts, n)) QN_TRY(make_room(r, err));
    // As a message of their own: that of the head is not recorded, since a step of the model writes
    // the same rows again.
    qn_runner_flush_copies(r);
    const qn_sizes sizes = write_message(r, predicts, n, entries);
    if (r->team) return qn_runner_team_predict(r, &sizes, err);
    const qn_device_kind *kind = r->head.program->device->kind;
    if (!kind->begin(r->head.program, QN_PREFILL, r->head_message, &sizes))
        return QN_FAIL(err, LIMIT, "a prediction of %lld rows cannot be bound",
                       (long long)sizes.rows);
    (void)kind->give(r->head.program, QN_ROWS_BEFORE, r->before);
    kind->run(r->head.program);
    kind->wait(r->head.program);
    qn_runner_bring_rows(&r->head, &r->head_step);
    QN_TRY(qn_device_failure(r->head.program->device, err));
    if (r->opts.trace) qn_runner_trace(r, &r->head, sizes.rows);
    return QN_OK;
}
