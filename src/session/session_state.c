// qn_session: truncating, forking, snapshots.
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

// Room for copy_history, which cannot fail afterwards.
static qn_status reserve_history(qn_session *to, size_t n, size_t n_media, const float *logits,
                                 qn_err *err) {
    const size_t vocab = (size_t)to->engine->model->hparams->vocab;
    QN_TRY(qn_session_reserve(to, n, err));
    QN_TRY(qn_media_reserve(&to->media, n_media, err));
    if (logits && !to->logits) to->logits = qn_realloc(NULL, vocab, sizeof *to->logits);
    return logits && !to->logits ? QN_NOMEM(err, "logits") : QN_OK;
}

static void copy_logits(qn_session *to, const float *logits, const qn_session_top *top) {
    const int64_t vocab = to->engine->model->hparams->vocab;
    to->has_logits = logits != NULL;
    to->top_logits = *top;
    if (logits) memcpy(to->logits, logits, (size_t)vocab * sizeof *logits);
}

static void copy_last(qn_session *to, const float *last, size_t after) {
    if (!to->last) return;
    memcpy(to->last, last, (size_t)to->engine->model->hparams->width * sizeof *last);
    to->last_after = after;
}

static void copy_history(qn_session *to, const qn_run_input *history,
                         const qn_session_memory *memory, const float *logits,
                         const qn_session_top *top) {
    qn_session_set_tokens(to, 0, history->ids, (size_t)history->n);
    qn_media_copy(&to->media, history->media);
    qn_session_set_keys(to);
    to->memory = *memory;
    copy_logits(to, logits, top);
}

qn_status qn_session_fork(qn_session **out, qn_session *session, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    const float *logits = session->has_logits ? session->logits : NULL;
    const qn_run_input history = qn_session_input(session);
    qn_session *fork = NULL;
    QN_TRY(qn_session_prepare(&fork, session, session->shared, (size_t)session->context, err));
    qn_status status = QN_OK;
    QN_TRY_TO(done, reserve_history(fork, session->n_tokens, session->media.n, logits, err));
    if (session->seq) QN_TRY_TO(done, qn_seq_fork(&fork->seq, session->seq, err));
    copy_history(fork, &history, &session->memory, logits, &session->top_logits);
    copy_last(fork, session->last, session->last_after);
    *out = fork;
    fork = NULL;

done:
    qn_session_destroy(fork);
    return status;
}

qn_status qn_session_take_state(qn_session *to, qn_session *from, bool moves, qn_err *err) {
    const float *logits = from->has_logits ? from->logits : NULL;
    QN_TRY(reserve_history(to, to->n_tokens, 0, logits, err));
    if (moves) {
        to->seq = from->seq;
        from->seq = NULL;
    } else {
        QN_TRY(qn_seq_fork(&to->seq, from->seq, err));
    }
    copy_logits(to, logits, &from->top_logits);
    copy_last(to, from->last, from->last_after);
    return QN_OK;
}

static qn_status keep_last(qn_snapshot *to, const qn_session *from, qn_err *err) {
    const size_t width = (size_t)from->engine->model->hparams->width;
    if (!from->last) return QN_OK;
    to->last = qn_alloc(width, sizeof *to->last);
    if (!to->last) return QN_NOMEM(err, "snapshot");
    memcpy(to->last, from->last, width * sizeof *to->last);
    to->last_after = from->last_after;
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
    snapshot->top_logits = session->top_logits;
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
    QN_TRY_TO(done, qn_media_reserve(&snapshot->media, session->media.n, err));
    qn_media_copy(&snapshot->media, &session->media);
    QN_TRY_TO(done, keep_last(snapshot, session, err));
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
    const qn_run_input history = {
        .ids = snapshot->tokens, .n = (int64_t)snapshot->n_tokens, .media = &snapshot->media};
    QN_TRY(reserve_history(session, snapshot->n_tokens, snapshot->media.n, snapshot->logits, err));
    if (session->seq) QN_TRY(qn_seq_restore(session->seq, snapshot->checkpoint, err));
    qn_session_choose_adapter(session, snapshot->adapter);
    copy_history(session, &history, &snapshot->memory, snapshot->logits, &snapshot->top_logits);
    copy_last(session, snapshot->last, snapshot->last_after);
    return QN_OK;
}

void qn_snapshot_destroy(qn_snapshot *snapshot) {
    if (!snapshot) return;
    qn_checkpoint_destroy(snapshot->checkpoint);
    qn_shared_leave(snapshot->shared);
    qn_media_deinit(&snapshot->media);
    qn_free(snapshot->tokens);
    qn_free(snapshot->logits);
    qn_free(snapshot->last);
    qn_free(snapshot);
}
