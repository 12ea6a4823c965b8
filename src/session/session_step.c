// One step of the model for one or several sessions, and the scores that it leaves.
#include "session/session_int.h"

#include "core/mem.h"
#include "gen/logits.h"

#include <string.h>

void qn_session_drop_scores(qn_session *s) {
    s->has_logits = false;
    s->best.n = 0;
}

qn_status qn_session_run(qn_shared *shared, qn_session *const *sessions, const qn_segment *segments,
                         int64_t n, qn_err *err) {
    for (int64_t i = 0; i < n; i++) qn_session_drop_scores(sessions[i]);
    return qn_runner_step(shared->runner, segments, n, err);
}

// Whether a row of the last step is sound, however much of it is there.
static qn_status check_row(const qn_runner *runner, int64_t row, int64_t n_vocab, qn_err *err) {
    qn_best best;
    if (!qn_runner_best(&best, runner, row))
        return qn_logits_check(qn_runner_row(runner, "logits", row), n_vocab, err);
    const qn_row_facts facts = {
        .n = n_vocab, .least = best.least, .most = best.scores[0], .broken = best.broken};
    return qn_row_facts_check(&facts, err);
}

qn_status qn_session_take(qn_session *s, int64_t row, int64_t top, qn_err *err) {
    const qn_runner *runner = s->shared->runner;
    const size_t vocab = (size_t)s->engine->model->hparams->vocab;
    qn_best best = {0};
    const bool has_best = qn_runner_best(&best, runner, row);
    QN_TRY(check_row(runner, row, (int64_t)vocab, err));
    for (int64_t i = 0; i < best.n; i++)
        s->best.entries[i] = (qn_score){best.scores[i], (int32_t)best.ids[i]};
    s->best.n = best.n;
    s->best.after = (size_t)qn_seq_length(s->seq);
    if (has_best && top != QN_TOP_ALL) return QN_OK;
    if (!s->logits) s->logits = qn_realloc(NULL, vocab, sizeof *s->logits);
    if (!s->logits) return QN_NOMEM(err, "logits");
    memcpy(s->logits, qn_runner_row(runner, "logits", row), vocab * sizeof *s->logits);
    s->has_logits = true;
    return QN_OK;
}

qn_status qn_scores_find(qn_scores *out, const qn_session *s, int64_t row, int64_t top,
                         qn_err *err) {
    const qn_runner *runner = s->shared->runner;
    qn_best best;
    out->all = NULL;
    out->n_best = 0;
    if (top == QN_TOP_ALL || !qn_runner_best(&best, runner, row)) {
        out->all = qn_runner_row(runner, "logits", row);
        return QN_OK;
    }
    for (int64_t i = 0; i < best.n; i++)
        out->best[i] = (qn_score){best.scores[i], (int32_t)best.ids[i]};
    out->n_best = best.n;
    return check_row(runner, row, s->engine->model->hparams->vocab, err);
}
