// One step of the model for one or several sessions, and the logits that it leaves.
#include "session/session_int.h"

#include "core/mem.h"
#include "gen/logits.h"

#include <string.h>

void qn_session_drop_logits(qn_session *s) {
    s->has_logits = false;
    s->top_logits.n = 0;
}

static void leave_step(qn_session *const *sessions, const qn_segment *segments, int64_t n) {
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) {
        qn_session *s = sessions[i];
        qn_session_drop_logits(s);
        s->last_after = 0;
        s->step_first = qn_seq_length(segments[i].seq);
        s->step_row = row;
        s->step_rows = 0; // until it has run
        row += segments[i].rows;
    }
}

static void note_step(const qn_shared *shared, qn_session *const *sessions,
                      const qn_segment *segments, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        sessions[i]->step = qn_runner_steps(shared->runner);
        sessions[i]->step_rows = segments[i].rows;
    }
}

qn_status qn_session_run(qn_shared *shared, qn_session *const *sessions, const qn_segment *segments,
                         int64_t n, qn_err *err) {
    leave_step(sessions, segments, n);
    QN_TRY(qn_runner_step(shared->runner, segments, n, err));
    note_step(shared, sessions, segments, n);
    return QN_OK;
}

qn_status qn_session_begin(qn_shared *shared, qn_flight *f, qn_err *err) {
    leave_step(f->sessions, f->segments, f->n);
    QN_TRY(qn_runner_begin(shared->runner, (int)(f - shared->flights), f->segments, f->n, err));
    f->is_under_way = true;
    return QN_OK;
}

qn_status qn_session_end(qn_shared *shared, qn_flight *f, qn_err *err) {
    f->is_under_way = false;
    QN_TRY(qn_runner_end(shared->runner, (int)(f - shared->flights), err));
    note_step(shared, f->sessions, f->segments, f->n);
    return QN_OK;
}

// Checks a row of the last step, of which all logits are there or only the top ones.
static qn_status check_row(const qn_runner *runner, int64_t row, int64_t n_vocab, qn_err *err) {
    qn_runner_top top;
    if (!qn_runner_find_top(&top, runner, row))
        return qn_logits_check(qn_runner_row(runner, "logits", row), n_vocab, err);
    const qn_logits_range range = {
        .n = n_vocab, .min = top.min, .max = top.logits[0], .broken = top.broken};
    return qn_logits_range_check(&range, err);
}

void qn_session_keep_last(qn_session *s, int64_t row, size_t after) {
    if (!s->last) return;
    memcpy(s->last, qn_runner_row(s->shared->runner, QN_ROWS_LAST, row),
           (size_t)s->engine->model->hparams->width * sizeof *s->last);
    s->last_after = after;
}

qn_status qn_session_take(qn_session *s, int64_t row, int64_t top, qn_err *err) {
    const qn_runner *runner = s->shared->runner;
    const size_t vocab = (size_t)s->engine->model->hparams->vocab;
    qn_runner_top found = {0};
    const bool has_top = qn_runner_find_top(&found, runner, row);
    QN_TRY(check_row(runner, row, (int64_t)vocab, err));
    qn_session_keep_last(s, row, (size_t)qn_seq_length(s->seq));
    for (int64_t i = 0; i < found.n; i++)
        s->top_logits.entries[i] = (qn_top_logit){found.logits[i], (int32_t)found.ids[i]};
    s->top_logits.n = found.n;
    s->top_logits.after = (size_t)qn_seq_length(s->seq);
    if (has_top && top != QN_TOP_ALL) return QN_OK;
    if (!s->logits) s->logits = qn_realloc(NULL, vocab, sizeof *s->logits);
    if (!s->logits) return QN_NOMEM(err, "logits");
    memcpy(s->logits, qn_runner_row(runner, "logits", row), vocab * sizeof *s->logits);
    s->has_logits = true;
    return QN_OK;
}

qn_status qn_row_logits_find(qn_row_logits *out, const qn_session *s, int64_t row, int64_t top,
                             qn_err *err) {
    const qn_runner *runner = s->shared->runner;
    qn_runner_top found;
    out->all = NULL;
    out->n_top = 0;
    if (top == QN_TOP_ALL || !qn_runner_find_top(&found, runner, row)) {
        out->all = qn_runner_row(runner, "logits", row);
        return QN_OK;
    }
    for (int64_t i = 0; i < found.n; i++)
        out->top[i] = (qn_top_logit){found.logits[i], (int32_t)found.ids[i]};
    out->n_top = found.n;
    return check_row(runner, row, s->engine->model->hparams->vocab, err);
}
