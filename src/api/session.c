// qn_session: one sequence. See quern.h for the contracts.
#include "runtime/engine.h"

#include "core/mem.h"
#include "gen/sample.h"

#include <string.h>

struct qn_session {
    const qn_engine *engine; // borrowed
    int64_t context;
    int32_t *tokens; // (context at most)
    size_t n_tokens, cap_tokens;
};

qn_status qn_session_create(qn_session **out, const qn_engine *engine, const qn_session_opts *opts,
                            qn_err *err) {
    const int64_t most = engine->model->hparams->context;
    const int64_t context = opts && opts->context ? opts->context : most;
    if (context < 1 || context > most)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld", (long long)context,
                       (long long)most);
    qn_session *session = qn_alloc(1, sizeof *session);
    if (!session) return QN_NOMEM(err, "session");
    session->engine = engine;
    session->context = context;
    *out = session;
    return QN_OK;
}

void qn_session_destroy(qn_session *session) {
    if (!session) return;
    qn_free(session->tokens);
    qn_free(session);
}

static qn_status reserve(qn_session *session, size_t n, qn_err *err) {
    void *tokens = session->tokens;
    if (!qn_grow(&tokens, &session->cap_tokens, n, sizeof *session->tokens))
        return QN_NOMEM(err, "token history");
    session->tokens = tokens;
    return QN_OK;
}

qn_status qn_session_set_prompt(qn_session *session, const int32_t *ids, size_t n, qn_err *err) {
    QN_TRY(qn_engine_check_ids(session->engine, ids, n, session->context, err));
    QN_TRY(reserve(session, n, err));
    memcpy(session->tokens, ids, n * sizeof *ids);
    session->n_tokens = n;
    return QN_OK;
}

qn_status qn_session_step_naive(int32_t *token, qn_session *session, const qn_sample_opts *opts,
                                qn_err *err) {
    const qn_sample_opts greedy = {0};
    const size_t n = session->n_tokens;
    if (n == 0) return QN_FAIL(err, STATE, "no history: call qn_session_set_prompt first");
    if ((int64_t)n >= session->context)
        return QN_FAIL(err, LIMIT, "the context of %lld tokens is full",
                       (long long)session->context);
    QN_TRY(reserve(session, n + 1, err));
    qn_logits logits;
    QN_TRY(qn_engine_run(&logits, session->engine, session->tokens, (int64_t)n,
                         &(qn_logits_opts){0}, err));
    int32_t chosen = 0;
    const qn_status status =
        qn_sample(&chosen, logits.logits, logits.n_vocab, opts ? opts : &greedy, n, err);
    qn_logits_deinit(&logits);
    if (status) return status;
    session->tokens[session->n_tokens++] = chosen;
    *token = chosen;
    return QN_OK;
}

const int32_t *qn_session_tokens(const qn_session *session, size_t *n) {
    *n = session->n_tokens;
    return session->tokens;
}
