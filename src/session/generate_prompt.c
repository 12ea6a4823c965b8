// qn_generation: events of the prompt, and context shift.
#include "session/generate_int.h"

#include <string.h>

// --- prefill -------------------------------------------------------------------------------------

qn_status qn_generation_show_naive(qn_generation *g, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits logits;
    const qn_run_input input = qn_session_input(s);
    QN_TRY(qn_engine_run(
        &logits, s->engine, &input,
        &QN_INIT(qn_logits_opts, .naive = true, .all_rows = true, .adapter = qn_session_adapter(s)),
        err));
    qn_status status = QN_OK;
    for (size_t i = 1; i < s->n_tokens && !status && qn_generation_is_active(g); i++)
        status =
            qn_generation_show_prompt(g, i, logits.logits + (int64_t)(i - 1) * logits.n_vocab, err);
    qn_logits_deinit(&logits);
    return status;
}

qn_status qn_generation_show_rows(qn_generation *g, int64_t row, int64_t rows, qn_err *err) {
    const qn_session *s = g->session;
    const size_t first = qn_session_cached(s) - (size_t)rows + 1; // its logits are in `row`
    for (size_t i = 0; i < (size_t)rows && qn_generation_is_active(g); i++) {
        if (first + i < g->n_shown || first + i >= s->n_tokens) continue;
        const float *logits = qn_runner_row(s->shared->runner, "logits", row + (int64_t)i);
        QN_TRY(qn_generation_show_prompt(g, first + i, logits, err));
    }
    return QN_OK;
}

void qn_generation_begin(qn_generation *g) {
    qn_session *s = g->session;
    size_t max = s->n_tokens - 1; // the last one is computed for its logits
    if (!g->is_begun && s->shared)
        memcpy(g->drafter.records, s->shared->records, sizeof g->drafter.records);
    if (qn_generation_shows_prompt(g)) { // and the others for theirs
        max = g->n_shown - 1;
        if (qn_session_cached(s) > max) (void)qn_seq_truncate(s->seq, (int64_t)max);
    }
    qn_session_begin_prefill(s, s->n_tokens, max);
    if (g->is_begun) return;
    g->result.n_reused = (int64_t)qn_session_cached(s);
    g->is_begun = true;
    qn_generation_tell_progress(g);
}

void qn_generation_tell_progress(qn_generation *g) {
    const int64_t cached = (int64_t)qn_session_cached(g->session), total = g->result.n_prompt;
    if (!g->progress || g->result.n_tokens > 0) return;
    // A draft may have been computed after the prompt's last token.
    if (!g->progress(g->progress_arg, cached < total ? cached : total, total))
        qn_generation_stop(g, QN_REASON_CALLER);
}

// How many of the tokens that two prompts have in common can be reused: all, except where state is
// kept at some positions only.
static size_t usable(const qn_session *s, size_t common) {
    const bool anywhere = !qn_engine_is_recurrent(s->engine) &&
                          qn_state_groups(qn_runner_state(s->shared->runner)) < 2;
    if (anywhere || common >= s->n_tokens) return common;
    return s->mark && common >= s->mark ? s->mark : 0;
}

bool qn_generation_should_wait(const qn_generation *g, const qn_generation *for_it) {
    const qn_session *s = g->session, *other = for_it->session;
    if (g->is_begun || !s->keeps) return false;
    size_t common = 0;
    while (common + 1 < s->n_tokens && common < other->n_tokens &&
           s->keys[common] == other->keys[common]) // images included
        common++;
    const size_t cached = qn_session_cached(s), reused = (size_t)for_it->result.n_reused;
    return usable(other, common) >= (cached > reused ? cached : reused) + QN_PAGE_ROWS;
}

// --- context shift -------------------------------------------------------------------------------

// Drops the older half of the tokens after the first `keep`. The rest is prefilled again: its state
// depends on the tokens before it.
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
    qn_drafter_reset(&g->drafter);
}

qn_status qn_generation_make_room(qn_generation *g, qn_err *err) {
    const bool is_full = g->session->n_tokens >= (size_t)g->session->context;
    if (g->opts.max_tokens < 0 || (is_full && !g->opts.shift))
        return qn_generation_end(g, QN_REASON_LENGTH, err);
    if (is_full) shift(g);
    return qn_session_reserve(g->session, g->session->n_tokens + 1 + (size_t)g->opts.draft_max,
                              err);
}
