// qn_session: several sessions in one step.
#include "session/session_int.h"

static qn_status check_family(qn_session *const *sessions, size_t n, qn_err *err) {
    if (n < 1) return QN_FAIL(err, ARGUMENT, "a step of 0 sessions");
    QN_TRY(qn_session_need_plans(sessions[0], err));
    qn_shared *shared = sessions[0]->shared;
    shared->step++;
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_session_need_plans(sessions[i], err));
        if (sessions[i]->shared != shared)
            return QN_FAIL(err, ARGUMENT, "session %zu is no fork of session 0", i);
        if (sessions[i]->step == shared->step) {
            size_t j = 0;
            while (sessions[j] != sessions[i]) j++;
            return QN_FAIL(err, ARGUMENT, "sessions %zu and %zu are the same", j, i);
        }
        sessions[i]->step = shared->step;
        const qn_status status = qn_session_need_room(sessions[i], 1, err);
        if (status) return qn_err_prefix(err, status, "session %zu", i);
    }
    return QN_OK;
}

// All but the last token of the history are cached afterwards, or all and the scores are there.
static qn_status catch_up(qn_session *s, int64_t top, qn_err *err) {
    QN_TRY(qn_session_settle_for(s, top, err));
    if (qn_session_cached(s) + 1 < s->n_tokens)
        return qn_session_compute(s, s->n_tokens - 1, QN_TOP_NONE, err);
    return QN_OK;
}

qn_status qn_session_step_all(int32_t *tokens, qn_session *const *sessions, size_t n,
                              const qn_sample_opts *opts, qn_err *err) {
    QN_NEED(tokens, err);
    QN_NEED(sessions, err);
    QN_TRY(check_family(sessions, n, err));
    // Different sessions of one family: there is room for all of them.
    qn_segment *segments = sessions[0]->shared->segments;
    qn_session **rows = sessions[0]->shared->rows;
    int64_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        qn_session *s = sessions[i];
        int64_t top;
        QN_TRY(qn_session_set_sampling(&top, s, opts ? &opts[i] : NULL, err));
        QN_TRY(catch_up(s, top, err));
        if (qn_session_cached(s) == s->n_tokens) continue; // its scores are there
        rows[n_rows] = s;
        segments[n_rows++] = (qn_segment){
            .seq = s->seq, .ids = s->tokens + s->n_tokens - 1, .rows = 1, .outs = 1, .top = top};
    }
    // A step may have fewer rows than there are sessions, where chunks are that small.
    const int64_t most = sessions[0]->chunk;
    for (int64_t at = 0; at < n_rows; at += most) {
        const int64_t now = n_rows - at < most ? n_rows - at : most;
        for (int64_t i = 0; i < now; i++) {
            rows[at + i]->has_logits = false;
            rows[at + i]->best.n = 0;
        }
        QN_TRY(qn_runner_step(sessions[0]->shared->runner, segments + at, now, err));
        for (int64_t i = 0; i < now; i++)
            QN_TRY(qn_session_take(rows[at + i], i, segments[at + i].top, err));
    }
    for (size_t i = 0; i < n; i++) QN_TRY(qn_session_choose(&tokens[i], sessions[i], NULL, err));
    return QN_OK;
}
