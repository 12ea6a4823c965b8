#include "session/generate_draft.h"

#include "core/mem.h"
#include "gen/lookup.h"

#include <string.h>

// Neither was tuned.
enum {
    MAX_CATCH_UP = 32, // rows of the draft model in one step, of which a step of the model adds up
                       // to QN_MAX_DRAFT + 1; more are prefilled, and are not the cost of a draft
    MAX_TOP_K = 40,    // entries that a drafted token is chosen from
};

// --- the draft model -----------------------------------------------------------------------------

static qn_status check_pieces(const qn_tokenizer *a, const qn_tokenizer *b, qn_err *err) {
    const int32_t n = qn_tokenizer_own_info(a)->n_tokens,
                  n_draft = qn_tokenizer_own_info(b)->n_tokens;
    if (n != n_draft)
        return QN_FAIL(err, ARGUMENT, "the draft model has %d tokens, the model %d", n_draft, n);
    for (int32_t id = 0; id < n; id++) {
        size_t size, size_draft;
        const char *piece = qn_tokenizer_piece(a, id, &size);
        const char *draft = qn_tokenizer_piece(b, id, &size_draft);
        if (!piece || !draft) continue;
        if (size != size_draft || memcmp(piece, draft, size) != 0)
            return QN_FAIL(err, ARGUMENT,
                           "token %d is '%.*s' in the draft model, '%.*s' in the model", id,
                           (int)size_draft, draft, (int)size, piece);
    }
    return QN_OK;
}

static qn_status check_vocabularies(const qn_engine *engine, const qn_engine *draft, qn_err *err) {
    const qn_tokenizer *a = engine->tokenizer, *b = draft->tokenizer;
    const int64_t n = engine->model->hparams->vocab, n_draft = draft->model->hparams->vocab;
    if (engine == draft) return QN_OK;
    if (a && b) return check_pieces(a, b, err);
    if (!a != !b)
        return QN_FAIL(err, ARGUMENT, "%s has a tokenizer, %s has none",
                       a ? "the model" : "the draft model", a ? "the draft model" : "the model");
    if (n != n_draft)
        return QN_FAIL(err, ARGUMENT, "the draft model has %lld logits, the model %lld",
                       (long long)n_draft, (long long)n);
    return QN_OK;
}

static qn_status init_model(qn_draft_model *d, const qn_session *session, qn_session *draft,
                            qn_err *err) {
    if (draft == session)
        return QN_FAIL(err, ARGUMENT, "the draft session is the session of the answer");
    QN_TRY(qn_session_need_plans(draft, err));
    QN_TRY(check_vocabularies(session->engine, draft->engine, err));
    const qn_engine *engine = draft->engine;
    // Windows free the pages that they have passed, recurrent layers keep one state.
    d->is_delicate = qn_engine_is_recurrent(engine) ||
                     qn_state_groups(qn_runner_state(draft->shared->runner)) > 1;
    d->session = draft;
    return QN_OK;
}

static void drop_kept(qn_draft_model *d) {
    qn_checkpoint_destroy(d->kept);
    d->kept = NULL;
}

// Rolls the draft's state back to tokens that both have, fewer than the history has.
static qn_status roll_back(qn_draft_model *d, const qn_session *of, qn_err *err) {
    qn_session *s = d->session;
    const size_t n = of->n_tokens < s->n_tokens ? of->n_tokens : s->n_tokens;
    size_t common = d->agreed < n ? d->agreed : n;
    while (common < n && of->tokens[common] == s->tokens[common]) common++;
    if (common == of->n_tokens) common--; // the last one is computed for its logits
    if (d->kept && qn_session_cached(s) > common && (size_t)qn_checkpoint_length(d->kept) <= common)
        QN_TRY(qn_seq_restore(s->seq, d->kept, err));
    drop_kept(d);
    if (qn_session_cached(s) > common) (void)qn_seq_truncate(s->seq, (int64_t)common);
    d->agreed = common;
    return QN_OK;
}

// One step of the draft's tokens that are not cached, for the logits after the last
// (qn_segment.top).
static qn_status compute(qn_session *s, int64_t top, qn_err *err) {
    const size_t cached = qn_session_cached(s);
    const qn_segment segment = {.seq = s->seq,
                                .ids = s->tokens + cached,
                                .rows = (int64_t)(s->n_tokens - cached),
                                .outs = 1,
                                .top = top};
    return qn_session_run(s->shared, &s, &segment, 1, err);
}

// The draft's history becomes that of the session, and is computed; *ns is when drafting began.
static qn_status follow(qn_draft_model *d, const qn_session *of, int64_t top, int64_t *ns,
                        qn_err *err) {
    qn_session *s = d->session;
    *ns = qn_clock();
    QN_TRY(roll_back(d, of, err));
    qn_session_set_tokens(s, d->agreed, of->tokens + d->agreed, of->n_tokens - d->agreed);
    d->agreed = s->n_tokens;
    const size_t left = s->n_tokens - qn_session_cached(s);
    if (left > MAX_CATCH_UP || left > (size_t)s->chunk) {
        QN_TRY(qn_session_compute(s, s->n_tokens - 1, QN_TOP_NONE, err));
        *ns = qn_clock(); // a prefill is not part of what a draft costs
    }
    QN_TRY(compute(s, top, err));
    if (!d->is_delicate) return QN_OK;
    const qn_status status = qn_checkpoint_create(&d->kept, s->seq, err);
    return status == QN_LIMIT ? QN_OK : status; // without one, everything is prefilled again
}

static bool can_follow(const qn_draft_model *d, const qn_session *of, int32_t max) {
    const int64_t vocab = d->session->engine->model->hparams->vocab;
    if (of->n_tokens + (size_t)max > (size_t)d->session->context) return false;
    for (size_t i = d->agreed < of->n_tokens ? d->agreed : 0; i < of->n_tokens; i++) {
        if (of->tokens[i] >= vocab) return false;
    }
    return true;
}

// One token, drawn with the same random number as the model's own choice will be: where both find
// the same tokens likely, they mostly choose the same one.
static qn_status choose(int32_t *token, const qn_drafter *g, qn_session_memory *of,
                        const uint32_t *allowed, int64_t top, qn_err *err) {
    const qn_session *s = g->model.session;
    qn_row_logits logits;
    QN_TRY(qn_row_logits_find(&logits, s, 0, top, err));
    const qn_chooser_in in = {.logits = logits.all,
                              .top = logits.n_top ? logits.top : NULL,
                              .n_top = logits.n_top,
                              .tokens = s->tokens,
                              .n_tokens = s->n_tokens,
                              .n_prompt = of->n_prompt,
                              .position = (uint64_t)of->shifted + s->n_tokens,
                              .allowed = allowed,
                              .memory = &of->chooser};
    return qn_chooser_choose(token, g->model_sampler, &in, err);
}

static qn_status draft_by_model(qn_drafter *g, const qn_draft_want *want, int32_t max,
                                qn_err *err) {
    qn_draft_model *d = &g->model;
    qn_session *s = d->session;
    const int64_t vocab = want->session->engine->model->hparams->vocab;
    // Models of one tokenizer may have more logits than it has tokens, each a different number; the
    // mask has the model's.
    const bool fits = s->engine->model->hparams->vocab <= vocab;
    const uint32_t *allowed = fits ? want->allowed : NULL;
    const int64_t top = allowed ? QN_TOP_ALL : qn_chooser_top(g->model_sampler);
    qn_session_memory memory = want->session->memory; // as it will be at the model's choices
    int64_t began;
    if (!can_follow(d, want->session, max)) return QN_OK;
    QN_TRY(qn_session_reserve(s, want->session->n_tokens + (size_t)max, err));
    QN_TRY(follow(d, want->session, top, &began, err));
    while (g->n < max) {
        int32_t token;
        QN_TRY(choose(&token, g, &memory, allowed, top, err));
        if (token >= vocab) break;
        g->tokens[g->n++] = token;
        if (g->n == max) break;
        qn_session_set_tokens(s, s->n_tokens, &token, 1);
        QN_TRY(compute(s, top, err));
    }
    g->ns = qn_clock() - began;
    return QN_OK;
}

// --- other sources -------------------------------------------------------------------------------

static qn_status draft_by_lookup(qn_drafter *g, const qn_draft_want *want, int32_t max,
                                 qn_err *err) {
    (void)err;
    const int64_t began = qn_clock();
    g->n = qn_lookup(g->tokens, max, want->session->tokens, want->session->n_tokens);
    g->ns = qn_clock() - began;
    return QN_OK;
}

static qn_status draft_by_fn(qn_drafter *g, const qn_draft_want *want, int32_t max, qn_err *err) {
    (void)err;
    const int64_t vocab = want->session->engine->model->hparams->vocab;
    const int64_t began = qn_clock();
    const int32_t n =
        g->fn(g->fn_arg, g->tokens, max, want->session->tokens, want->session->n_tokens);
    g->ns = qn_clock() - began;
    g->n = n < 0 ? 0 : n < max ? n : max;
    for (int32_t i = 0; i < g->n; i++) {
        if (g->tokens[i] < 0 || g->tokens[i] >= vocab) g->n = i;
    }
    return QN_OK;
}

// The head needs the model's row of the last cached token.
static qn_status count_for_head(qn_drafter *g, const qn_draft_want *want, int32_t max,
                                qn_err *err) {
    (void)err;
    if (want->session->last_after == qn_session_cached(want->session)) g->by_head = max;
    return QN_OK;
}

// In the order in which they are tried.
static qn_status (*const sources[QN_DRAFT_SOURCES])(qn_drafter *g, const qn_draft_want *want,
                                                    int32_t max, qn_err *err) = {
    [QN_DRAFT_FN] = draft_by_fn,
    [QN_DRAFT_LOOKUP] = draft_by_lookup,
    [QN_DRAFT_HEAD] = count_for_head,
    [QN_DRAFT_MODEL] = draft_by_model,
};

static bool has_source(const qn_drafter *g, int i) {
    const bool has_model =
        g->model.session && g->model.session->seq; // without a place in its runner: none
    const bool has[QN_DRAFT_SOURCES] = {[QN_DRAFT_FN] = g->fn != NULL,
                                        [QN_DRAFT_LOOKUP] = g->has_lookup,
                                        [QN_DRAFT_HEAD] = g->has_head,
                                        [QN_DRAFT_MODEL] = has_model};
    return has[i];
}

static qn_status init_head(qn_drafter *g, const qn_session *session, bool is_fast, qn_err *err) {
    if (!session->engine->opts.mtp)
        return QN_FAIL(err, STATE, "mtp: the model was opened without its prediction head");
    g->has_head = true;
    g->is_fast = is_fast;
    g->row = qn_alloc((size_t)session->engine->model->hparams->width, sizeof *g->row);
    return g->row ? QN_OK : QN_NOMEM(err, "drafts");
}

// Of the vocabulary of `session`, which of a draft model may be padded differently.
static qn_status create_sampler(qn_chooser **out, const qn_session *session,
                                const qn_generate_opts *opts, qn_err *err) {
    qn_sample_opts sample = *opts->sample;
    // Unlikely tokens are rarely accepted; sorting fewer entries takes a fraction of the time.
    if (sample.top_k == 0 || sample.top_k > MAX_TOP_K) sample.top_k = MAX_TOP_K;
    QN_TRY(qn_session_create_chooser(out, session, err));
    return qn_chooser_set(*out, &sample, err);
}

qn_status qn_drafter_init(qn_drafter *g, const qn_session *session, const qn_generate_opts *opts,
                          qn_err *err) {
    g->has_lookup = opts->lookup;
    g->fn = opts->draft_fn;
    g->fn_arg = opts->draft_arg;
    if (opts->mtp_fast && !opts->mtp) return QN_FAIL(err, ARGUMENT, "mtp_fast needs mtp");
    if (opts->mtp) QN_TRY(init_head(g, session, opts->mtp_fast, err));
    if (opts->draft) QN_TRY(init_model(&g->model, session, opts->draft, err));
    if (opts->mtp) QN_TRY(create_sampler(&g->head_sampler, session, opts, err));
    return opts->draft ? create_sampler(&g->model_sampler, opts->draft, opts, err) : QN_OK;
}

void qn_drafter_deinit(qn_drafter *g) {
    drop_kept(&g->model);
    qn_chooser_destroy(g->head_sampler);
    qn_chooser_destroy(g->model_sampler);
    qn_free(g->row);
}

qn_status qn_drafter_propose(qn_drafter *g, const qn_draft_want *want, qn_err *err) {
    const qn_step_costs *costs = &want->session->shared->costs;
    g->n = g->by_head = 0;
    for (int i = 0; i < QN_DRAFT_SOURCES && g->n == 0 && g->by_head == 0; i++) {
        if (!has_source(g, i)) continue;
        int32_t n = qn_draft_choose(&g->records[i], costs, want->rows, want->max);
        if (n < want->min) n = want->min;
        if (n == 0) continue;
        g->source = i;
        const qn_status status = sources[i](g, want, n, err);
        if (status == QN_LIMIT) { // the draft model's memory is full: continue without a draft
            g->n = 0;
            qn_drafter_reset(g);
            if (g->model.session) (void)qn_seq_truncate(g->model.session->seq, 0);
            continue;
        }
        if (status) return qn_err_prefix(err, status, "drafting");
    }
    return QN_OK;
}

void qn_drafter_judge(qn_drafter *g, const qn_session *session, int32_t accepted) {
    if (g->n == 0) return;
    qn_draft_record_add(&g->records[g->source], g->n, accepted, g->ns);
    session->shared->records[g->source] = g->records[g->source];
    g->n = 0;
}

void qn_drafter_reset(qn_drafter *g) {
    g->model.agreed = 0;
    drop_kept(&g->model);
}
