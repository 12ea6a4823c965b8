// qn_generation: reading the prompt, and a context that is full.
#include "api/generate_int.h"

// --- reading -------------------------------------------------------------------------------------

// All rows in one go, by recomputing; the session has no scores afterwards.
static qn_status show_prompt_naive(qn_generation *g, const qn_listener *to, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits logits;
    QN_TRY(qn_engine_run(&logits, s->engine, s->tokens, (int64_t)s->n_tokens,
                         &(qn_logits_opts){.naive = true, .all_rows = true}, err));
    qn_status status = QN_OK;
    for (size_t i = 1; i < s->n_tokens && !status && qn_generation_is_active(g); i++)
        status = qn_generation_show_prompt(g, i, logits.logits + (int64_t)(i - 1) * logits.n_vocab,
                                           to, err);
    qn_logits_deinit(&logits);
    return status;
}

// Scores after tokens [at, at + rows) of the history, which are computed, belong to the next ones.
static qn_status show_rows(qn_generation *g, size_t at, size_t rows, const qn_listener *to,
                           qn_err *err) {
    const qn_session *s = g->session;
    for (size_t i = 0; i < rows && at + i + 1 < s->n_tokens && qn_generation_is_active(g); i++) {
        const float *scores = qn_runner_row(s->shared->runner, "logits", (int64_t)i);
        QN_TRY(qn_generation_show_prompt(g, at + i + 1, scores, to, err));
    }
    return QN_OK;
}

// Computes the whole prompt, as many rows in a step as there can be scores.
static qn_status show_prompt(qn_generation *g, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    const size_t n = s->n_tokens;
    const size_t most = s->chunk < QN_MOST_FAMILY ? (size_t)s->chunk : QN_MOST_FAMILY;
    (void)qn_seq_truncate(s->seq, 0);
    for (size_t at = 0, rows; at < n && qn_generation_is_active(g); at += rows) {
        rows = n - at < most ? n - at : most;
        const qn_segment segment = {
            .seq = s->seq, .ids = s->tokens + at, .rows = (int64_t)rows, .outs = (int64_t)rows};
        s->has_logits = false;
        QN_TRY(qn_runner_step(s->shared->runner, &segment, 1, err));
        if (at + rows == n) QN_TRY(qn_session_take_logits(s, (int64_t)rows - 1, err));
        QN_TRY(show_rows(g, at, rows, to, err));
        if (s->progress && !s->progress(s->progress_arg, (int64_t)(at + rows), (int64_t)n))
            return QN_FAIL(err, STOPPED, "stopped after %zu of %zu tokens", at + rows, n);
    }
    if (s->keeps) qn_state_remember(s->seq, s->keys);
    return QN_OK;
}

static qn_status begin(qn_generation *g, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    if (g->opts.prompt_logprobs)
        QN_TRY(g->opts.naive ? show_prompt_naive(g, to, err) : show_prompt(g, to, err));
    if (!g->opts.naive && qn_session_cached(s) < s->n_tokens && qn_generation_is_active(g)) {
        const int64_t cached = (int64_t)qn_session_cached(s), found = s->reused;
        QN_TRY(qn_session_advance(s, s->n_tokens, true, err));
        g->result.n_reused = cached + s->reused - found;
    } else if (!g->opts.prompt_logprobs && !g->opts.naive) {
        g->result.n_reused = (int64_t)s->n_tokens;
    }
    g->is_begun = true;
    return QN_OK;
}

qn_status qn_generation_read(qn_generation *g, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    if (!g->opts.naive) QN_TRY(qn_session_settle(s, err));
    if (!g->is_begun) return begin(g, to, err);
    if (g->opts.naive || qn_session_cached(s) + 1 >= s->n_tokens) return QN_OK;
    return qn_session_advance(s, s->n_tokens - 1, false, err);
}

// --- a full context ------------------------------------------------------------------------------

// Drops the older half of what lies behind the first `keep` tokens. What follows is read again: its
// state depends on what was before it.
static void shift(qn_generation *g) {
    qn_session *s = g->session;
    const size_t keep = (size_t)g->opts.keep, rest = s->n_tokens - keep;
    const size_t dropped = rest / 2, end = keep + dropped;
    if (s->seq) (void)qn_seq_truncate(s->seq, (int64_t)keep);
    qn_session_set_tokens(s, keep, s->tokens + end, rest - dropped);
    if (g->n_prompt > keep) g->n_prompt = g->n_prompt > end ? g->n_prompt - dropped : keep;
    s->n_prompt = g->n_prompt;
    s->mark = 0;
    g->n_history = s->n_tokens;
    g->shifted += (int64_t)dropped;
    g->result.n_shifts++;
    qn_guesser_reset(&g->guesser);
}

qn_status qn_generation_make_room(qn_generation *g, const qn_listener *to, qn_err *err) {
    const bool is_full = g->session->n_tokens >= (size_t)g->session->context;
    const bool wants_none = g->opts.max_tokens < 0;
    const bool can_go_on = !wants_none && (!is_full || g->opts.shift);
    if (!g->is_begun && (g->opts.prompt_logprobs || (can_go_on && !is_full)))
        QN_TRY(qn_generation_read(g, to, err));
    if (!qn_generation_is_active(g)) return QN_OK;
    if (!can_go_on) return qn_generation_end(g, QN_REASON_LENGTH, to, err);
    if (is_full) shift(g);
    return QN_OK;
}
