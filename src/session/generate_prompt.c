// qn_generation: reading the prompt, and a context that is full.
#include "session/generate_int.h"

enum { KEPT_ROWS = 2048 }; // state is kept at multiples of this, too

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
        s->best.n = 0;
        QN_TRY(qn_runner_step(s->shared->runner, &segment, 1, err));
        if (at + rows == n) QN_TRY(qn_session_take_logits(s, (int64_t)rows - 1, err));
        QN_TRY(show_rows(g, at, rows, to, err));
        if (s->progress && !s->progress(s->progress_arg, (int64_t)(at + rows), (int64_t)n))
            return QN_FAIL(err, STOPPED, "stopped after %zu of %zu tokens", at + rows, n);
    }
    if (s->keeps) qn_state_remember(s->seq, s->keys);
    return QN_OK;
}

qn_status qn_generation_read(qn_generation *g, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    g->is_begun = true;
    if (g->opts.prompt_logprobs)
        return g->opts.naive ? show_prompt_naive(g, to, err) : show_prompt(g, to, err);
    if (g->opts.naive) return QN_OK;
    QN_TRY(qn_session_settle(s, err));
    const int64_t cached = (int64_t)qn_session_cached(s), found = s->reused;
    if ((size_t)cached < s->n_tokens) QN_TRY(qn_session_advance(s, s->n_tokens, true, err));
    g->result.n_reused = cached + s->reused - found;
    return QN_OK;
}

void qn_generation_begin(qn_generation *g) {
    qn_session *s = g->session;
    if (s->keeps && qn_session_cached(s) == 0 && s->n_tokens > 1)
        s->reused += qn_state_find(s->seq, s->keys, (int64_t)s->n_tokens - 1);
    if (!g->is_begun) g->result.n_reused = (int64_t)qn_session_cached(s);
    g->is_begun = true;
}

// Where other sequences can go on from, of the tokens that two prompts have in common: anywhere, but
// for state that is kept in some places only.
static size_t usable(const qn_session *s, size_t common) {
    const bool anywhere = s->engine->prefill.n_leaves[QN_PLACE_STATE] == 0 &&
                          qn_state_groups(qn_runner_state(s->shared->runner)) < 2;
    if (anywhere || common >= s->n_tokens) return common;
    return s->mark && common >= s->mark ? s->mark : 0;
}

bool qn_generation_should_wait(const qn_generation *g, const qn_generation *for_it) {
    const qn_session *s = g->session, *other = for_it->session;
    if (g->is_begun || !s->keeps) return false;
    size_t common = 0;
    while (common + 1 < s->n_tokens && common < other->n_tokens &&
           s->tokens[common] == other->tokens[common])
        common++;
    const size_t known = qn_session_cached(s), reused = (size_t)for_it->result.n_reused;
    return usable(other, common) >= (known > reused ? known : reused) + QN_PAGE_ROWS;
}

int64_t qn_generation_next_rows(const qn_generation *g, int64_t most) {
    const qn_session *s = g->session;
    const int64_t cached = (int64_t)qn_session_cached(s);
    const int64_t left = (int64_t)s->n_tokens - cached, to_mark = (int64_t)s->mark - cached;
    int64_t rows = left < most ? left : most;
    return to_mark > 0 && to_mark < rows ? to_mark : rows; // a step ends there
}

qn_status qn_generation_has_read(qn_generation *g, int64_t rows, qn_err *err) {
    const qn_session *s = g->session;
    const int64_t end = (int64_t)qn_session_cached(s), n = (int64_t)s->n_tokens;
    const bool is_mark = end == (int64_t)s->mark || (end - rows) / KEPT_ROWS != end / KEPT_ROWS ||
                         (n - end > 0 && n - end <= s->chunk); // near enough to go back to
    if (s->keeps && (is_mark || end == n)) qn_state_remember(s->seq, s->keys);
    if (s->progress && !s->progress(s->progress_arg, end, n) && end < n)
        return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)end,
                       (long long)n);
    return QN_OK;
}

// --- a full context ------------------------------------------------------------------------------

// Drops the older half of what lies behind the first `keep` tokens. What follows is read again: its
// state depends on what was before it.
static void shift(qn_generation *g) {
    qn_session *s = g->session;
    const size_t keep = (size_t)g->opts.keep, rest = s->n_tokens - keep;
    const size_t dropped = rest / 2, end = keep + dropped;
    const qn_session_memory before = s->memory;
    if (s->seq) (void)qn_seq_truncate(s->seq, (int64_t)keep);
    qn_session_set_tokens(s, keep, s->tokens + end, rest - dropped);
    s->memory = before;
    if (before.n_prompt > keep)
        s->memory.n_prompt = before.n_prompt > end ? before.n_prompt - dropped : keep;
    s->mark = 0;
    g->n_history = s->n_tokens;
    s->memory.shifted += (int64_t)dropped;
    g->result.n_shifts++;
    qn_guesser_reset(&g->guesser);
}

qn_status qn_generation_make_room(qn_generation *g, const qn_listener *to, qn_err *err) {
    const bool is_full = g->session->n_tokens >= (size_t)g->session->context;
    if (g->opts.max_tokens < 0 || (is_full && !g->opts.shift))
        return qn_generation_end(g, QN_REASON_LENGTH, to, err);
    if (is_full) shift(g);
    return QN_OK;
}
