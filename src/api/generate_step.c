// qn_generation: one step of several.
#include "api/generate_int.h"

#include "core/mem.h"

// --- scores --------------------------------------------------------------------------------------

static qn_status choose(int32_t *token, qn_generation *g, const float *scores, qn_err *err) {
    const qn_session *s = g->session;
    const qn_sampler_in in = {.logits = scores,
                              .tokens = s->tokens,
                              .n_tokens = s->n_tokens,
                              .n_prompt = g->n_prompt,
                              .position = (uint64_t)g->shifted + s->n_tokens};
    return qn_sampler_choose(token, g->sampler, &in, err);
}

static qn_status take_from(qn_generation *g, const float *scores, const qn_listener *to,
                           qn_err *err) {
    int32_t token;
    QN_TRY(choose(&token, g, scores, err));
    return qn_generation_take(g, token, scores, false, to, err);
}

static qn_status step_naive(qn_generation *g, const qn_listener *to, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits logits;
    QN_TRY(qn_engine_run(&logits, s->engine, s->tokens, (int64_t)s->n_tokens,
                         &(qn_logits_opts){.naive = true}, err));
    g->result.n_steps++;
    const qn_status status = take_from(g, logits.logits, to, err);
    qn_logits_deinit(&logits);
    return status;
}

// --- before a step -------------------------------------------------------------------------------

static qn_status check_rows(qn_generation *const *gens, size_t n, qn_err *err) {
    if (n < 1 || n > QN_MOST_FAMILY)
        return QN_FAIL(err, ARGUMENT, "a step of %zu rows, want 1 to %d", n, QN_MOST_FAMILY);
    for (size_t i = 0; i < n; i++) {
        const qn_session *s = gens[i]->session;
        if (s->shared != gens[0]->session->shared)
            return QN_FAIL(err, ARGUMENT, "row %zu does not share the state of row 0", i);
        for (size_t j = 0; j < i; j++) {
            if (s == gens[j]->session)
                return QN_FAIL(err, ARGUMENT, "rows %zu and %zu are of the same session", j, i);
        }
        if (qn_generation_is_active(gens[i]) && s->n_tokens != gens[i]->n_history)
            return QN_FAIL(err, STATE,
                           "row %zu: the session has %zu tokens, the generation left %zu", i,
                           s->n_tokens, gens[i]->n_history);
    }
    return QN_OK;
}

// Ends a row that has no room for a token.
static qn_status make_room(qn_generation *g, const qn_listener *to, qn_err *err) {
    if (g->session->n_tokens < (size_t)g->session->context && g->opts.max_tokens >= 0) return QN_OK;
    return qn_generation_end(g, QN_REASON_LENGTH, to, err);
}

qn_status qn_generation_read_prompt(qn_generation *g, const qn_listener *to, qn_err *err) {
    (void)to;
    qn_session *s = g->session;
    QN_TRY(qn_session_settle(s, err));
    const int64_t found = s->reused, cached = (int64_t)qn_session_cached(s);
    if (!g->is_begun && qn_session_cached(s) < s->n_tokens)
        QN_TRY(qn_session_advance(s, s->n_tokens, true, err));
    if (qn_session_cached(s) + 1 < s->n_tokens)
        QN_TRY(qn_session_advance(s, s->n_tokens - 1, false, err));
    if (!g->is_begun) g->result.n_reused = cached + s->reused - found;
    g->is_begun = true;
    return QN_OK;
}

// --- the step ------------------------------------------------------------------------------------

// The rows that one step of the runner computes.
typedef struct rows {
    qn_generation *gens[QN_MOST_FAMILY];
    qn_listener to[QN_MOST_FAMILY];
    qn_segment segments[QN_MOST_FAMILY];
    int64_t n;
} rows;

static qn_status run(rows *r, qn_err *err) {
    if (r->n == 0) return QN_OK;
    qn_runner *runner = r->gens[0]->session->shared->runner;
    QN_TRY(qn_runner_step(runner, r->segments, r->n, err));
    for (int64_t i = 0; i < r->n; i++) {
        r->gens[i]->result.n_steps++;
        const qn_status status =
            take_from(r->gens[i], qn_runner_row(runner, "logits", i), &r->to[i], err);
        if (status) return qn_err_prefix(err, status, "row %zu", r->to[i].row);
    }
    r->n = 0;
    return QN_OK;
}

static qn_status step_row(rows *r, qn_generation *g, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    QN_TRY(make_room(g, to, err));
    if (!qn_generation_is_active(g)) return QN_OK;
    if (g->opts.naive) return step_naive(g, to, err);
    QN_TRY(qn_generation_read_prompt(g, to, err));
    if (qn_session_cached(s) == s->n_tokens) return take_from(g, s->logits, to, err);
    r->gens[r->n] = g;
    r->to[r->n] = *to;
    r->segments[r->n++] =
        (qn_segment){.seq = s->seq, .ids = s->tokens + s->n_tokens - 1, .rows = 1, .outs = 1};
    return QN_OK;
}

qn_status qn_generations_step(size_t *n_active, qn_generation *const *gens, size_t n,
                              qn_event_fn *fn, void *arg, qn_err *err) {
    QN_TRY(check_rows(gens, n, err));
    rows r = {.n = 0};
    for (size_t i = 0; i < n; i++) {
        const qn_listener to = {.fn = fn, .arg = arg, .row = i};
        if (!qn_generation_is_active(gens[i])) continue;
        const qn_status status = step_row(&r, gens[i], &to, err);
        if (status) return qn_err_prefix(err, status, "row %zu", i);
        if (r.n == gens[i]->session->chunk) QN_TRY(run(&r, err));
    }
    QN_TRY(run(&r, err));
    if (!n_active) return QN_OK;
    *n_active = 0;
    for (size_t i = 0; i < n; i++) *n_active += qn_generation_is_active(gens[i]);
    return QN_OK;
}
