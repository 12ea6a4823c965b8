// qn_session: going back, forking, and putting back what was.
#include "session/session_int.h"

#include "core/mem.h"

#include <string.h>

qn_status qn_session_truncate(qn_session *session, size_t n, qn_err *err) {
    QN_NEED(session, err);
    if (n > session->n_tokens)
        return QN_FAIL(err, ARGUMENT, "truncate to %zu tokens, the history has %zu", n,
                       session->n_tokens);
    if (session->seq && n < qn_session_cached(session))
        (void)qn_seq_truncate(session->seq, (int64_t)n);
    if (n < session->n_tokens) qn_session_cut(session, n);
    return QN_OK;
}

// Room for what `copy_history` copies: afterwards nothing can fail.
static qn_status reserve_history(qn_session *to, size_t n, const float *logits, qn_err *err) {
    const size_t vocab = (size_t)to->engine->model->hparams->vocab;
    QN_TRY(qn_session_reserve(to, n, err));
    if (logits && !to->logits) to->logits = qn_realloc(NULL, vocab, sizeof *to->logits);
    return logits && !to->logits ? QN_NOMEM(err, "logits") : QN_OK;
}

static void copy_scores(qn_session *to, const float *logits, const qn_session_best *best) {
    const int64_t vocab = to->engine->model->hparams->vocab;
    to->has_logits = logits != NULL;
    to->best = *best;
    if (logits) memcpy(to->logits, logits, (size_t)vocab * sizeof *logits);
}

static void copy_history(qn_session *to, const int32_t *tokens, size_t n,
                         const qn_session_memory *memory, const float *logits,
                         const qn_session_best *best) {
    qn_session_set_tokens(to, 0, tokens, n);
    to->memory = *memory;
    copy_scores(to, logits, best);
}

qn_status qn_session_fork(qn_session **out, qn_session *session, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    const float *logits = session->has_logits ? session->logits : NULL;
    qn_session *fork = NULL;
    QN_TRY(qn_session_prepare(&fork, session, session->shared, (size_t)session->context, err));
    qn_status status = QN_OK;
    QN_TRY_TO(done, reserve_history(fork, session->n_tokens, logits, err));
    if (session->seq) QN_TRY_TO(done, qn_seq_fork(&fork->seq, session->seq, err));
    copy_history(fork, session->tokens, session->n_tokens, &session->memory, logits,
                 &session->best);
    *out = fork;
    fork = NULL;

done:
    qn_session_destroy(fork);
    return status;
}

qn_status qn_session_take_state(qn_session *to, qn_session *from, bool moves, qn_err *err) {
    const float *logits = from->has_logits ? from->logits : NULL;
    QN_TRY(reserve_history(to, to->n_tokens, logits, err));
    if (moves) {
        to->seq = from->seq;
        from->seq = NULL;
    } else {
        QN_TRY(qn_seq_fork(&to->seq, from->seq, err));
    }
    copy_scores(to, logits, &from->best);
    return QN_OK;
}

qn_status qn_session_checkpoint(qn_snapshot **out, qn_session *session, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    const int64_t vocab = session->engine->model->hparams->vocab;
    qn_snapshot *snapshot = qn_alloc(1, sizeof *snapshot);
    if (!snapshot) return QN_NOMEM(err, "snapshot");
    snapshot->shared = session->shared;
    if (snapshot->shared) atomic_fetch_add(&snapshot->shared->users, 1);
    snapshot->n_tokens = session->n_tokens;
    snapshot->memory = session->memory;
    snapshot->adapter = session->adapter;
    snapshot->best = session->best;
    snapshot->tokens = qn_alloc(session->n_tokens, sizeof *snapshot->tokens);
    if (session->has_logits) snapshot->logits = qn_alloc((size_t)vocab, sizeof(float));
    qn_status status = QN_OK;
    if (!snapshot->tokens || (session->has_logits && !snapshot->logits)) {
        status = QN_NOMEM(err, "snapshot");
        goto done;
    }
    if (session->n_tokens)
        memcpy(snapshot->tokens, session->tokens, session->n_tokens * sizeof *snapshot->tokens);
    if (snapshot->logits) memcpy(snapshot->logits, session->logits, (size_t)vocab * sizeof(float));
    if (session->seq)
        QN_TRY_TO(done, qn_checkpoint_create(&snapshot->checkpoint, session->seq, err));
    *out = snapshot;
    snapshot = NULL;

done:
    qn_snapshot_destroy(snapshot);
    return status;
}

qn_status qn_session_restore(qn_session *session, const qn_snapshot *snapshot, qn_err *err) {
    QN_NEED(session, err);
    QN_NEED(snapshot, err);
    if (snapshot->shared != session->shared || snapshot->n_tokens > (size_t)session->context)
        return QN_FAIL(err, ARGUMENT, "the snapshot of %zu tokens is of another session",
                       snapshot->n_tokens);
    QN_TRY(reserve_history(session, snapshot->n_tokens, snapshot->logits, err));
    if (session->seq) QN_TRY(qn_seq_restore(session->seq, snapshot->checkpoint, err));
    qn_session_choose_adapter(session, snapshot->adapter);
    copy_history(session, snapshot->tokens, snapshot->n_tokens, &snapshot->memory, snapshot->logits,
                 &snapshot->best);
    return QN_OK;
}

void qn_snapshot_destroy(qn_snapshot *snapshot) {
    if (!snapshot) return;
    qn_checkpoint_destroy(snapshot->checkpoint);
    qn_shared_leave(snapshot->shared);
    qn_free(snapshot->tokens);
    qn_free(snapshot->logits);
    qn_free(snapshot);
}
