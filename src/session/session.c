// qn_session: one sequence. See quern.h for the contracts.
#include "session/session_int.h"

#include "core/mem.h"
#include "gen/logits.h"
#include "runtime/memory.h"

#include <string.h>

enum { CHECKPOINT_ROWS = 2048, MOST_SESSIONS = 1 << 16 };

// --- life ----------------------------------------------------------------------------------------

void qn_shared_leave(qn_shared *shared) {
    if (!shared || --shared->users > 0) return;
    qn_runner_destroy(shared->runner);
    qn_free(shared->segments);
    qn_free(shared->rows);
    qn_free(shared);
}

static qn_status init_session(qn_session *s, qn_err *err) {
    const int64_t vocab = s->engine->model->hparams->vocab;
    s->tokens = qn_alloc((size_t)s->context, sizeof *s->tokens);
    s->keys = qn_alloc((size_t)s->context, sizeof *s->keys);
    s->logits = qn_alloc((size_t)vocab, sizeof *s->logits);
    if (!s->tokens || !s->keys || !s->logits) return QN_NOMEM(err, "session");
    QN_TRY(qn_sampler_create(&s->sampler, s->engine->tokenizer, vocab, err));
    return s->shared ? qn_seq_open(&s->seq, qn_runner_state(s->shared->runner), err) : QN_OK;
}

qn_status qn_session_attach(qn_session **out, const qn_session *like, qn_shared *shared,
                            qn_err *err) {
    qn_session *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "session");
    s->engine = like->engine;
    s->context = like->context;
    s->chunk = like->chunk;
    s->keeps = like->keeps;
    s->scores = like->scores;
    s->progress = like->progress;
    s->progress_arg = like->progress_arg;
    s->shared = shared;
    if (shared) shared->users++;
    const qn_status status = init_session(s, err);
    if (status)
        qn_session_destroy(s);
    else
        *out = s;
    return status;
}

static qn_status create_shared(qn_shared **out, const qn_session *like, const qn_session_opts *opts,
                               qn_err *err) {
    const int64_t most = opts->sessions ? opts->sessions : QN_MOST_FAMILY;
    const qn_runner_opts runner = {.engine = like->engine,
                                   .context = like->context,
                                   .rows = like->chunk,
                                   .outs = most > QN_MOST_FAMILY ? most : QN_MOST_FAMILY,
                                   .segs = most,
                                   .n_seqs = most,
                                   .kept_bytes = opts->kept < 0 ? 0 : opts->kept,
                                   .trace = opts->trace,
                                   .trace_arg = opts->trace_arg};
    qn_shared *shared = qn_alloc(1, sizeof *shared);
    if (!shared) return QN_NOMEM(err, "session");
    qn_status status = QN_OK;
    shared->users = 1; // the caller
    shared->most = most;
    shared->segments = qn_alloc((size_t)most, sizeof *shared->segments);
    shared->rows = qn_alloc((size_t)most, sizeof(qn_session *));
    if (!shared->segments || !shared->rows) status = QN_NOMEM(err, "session");
    if (!status) status = qn_runner_create(&shared->runner, &runner, err);
    if (status)
        qn_shared_leave(shared);
    else
        *out = shared;
    return status;
}

qn_status qn_session_create(qn_session **out, const qn_engine *engine, const qn_session_opts *opts,
                            qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    const qn_session_opts defaults = {0};
    qn_session_opts o = opts ? *opts : defaults;
    const int64_t most = engine->model->hparams->context;
    if (o.context == 0) o.context = most;
    o.chunk = qn_engine_chunk(engine, o.chunk);
    if (o.context < 1 || o.context > most)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld",
                       (long long)o.context, (long long)most);
    if (o.chunk < 1 || o.kept < -1)
        return QN_FAIL(err, ARGUMENT, "chunks of %lld tokens, %lld bytes kept", (long long)o.chunk,
                       (long long)o.kept);
    if (o.sessions < 0 || o.sessions > MOST_SESSIONS)
        return QN_FAIL(err, ARGUMENT, "state for %lld sessions, want 1 to %d",
                       (long long)o.sessions, (int)MOST_SESSIONS);
    if (o.share) {
        if (o.share->engine != engine)
            return QN_FAIL(err, ARGUMENT, "the session to share with is of another engine");
        return qn_session_attach(out, o.share, o.share->shared, err);
    }
    qn_session like = {.engine = engine,
                       .keeps = o.kept >= 0,
                       .scores = o.scores,
                       .progress = o.progress,
                       .progress_arg = o.progress_arg};
    qn_shared *shared = NULL;
    if (!engine->opts.reference && engine->packs) {
        QN_TRY(qn_memory_fit(&o, engine, err));
        like.context = o.context;
        like.chunk = o.chunk < o.context ? o.chunk : o.context;
        QN_TRY(create_shared(&shared, &like, &o, err));
    }
    like.context = o.context;
    const qn_status status = qn_session_attach(out, &like, shared, err);
    qn_shared_leave(shared);
    return status;
}

void qn_session_destroy(qn_session *session) {
    if (!session) return;
    qn_seq_close(session->seq);
    qn_shared_leave(session->shared);
    qn_sampler_destroy(session->sampler);
    qn_free(session->tokens);
    qn_free(session->keys);
    qn_free(session->logits);
    qn_free(session);
}

int64_t qn_session_context(const qn_session *session) { return session->context; }

const int32_t *qn_session_tokens(const qn_session *session, size_t *n) {
    *n = session->n_tokens;
    return session->tokens;
}

size_t qn_session_cached(const qn_session *session) {
    return session->seq ? (size_t)qn_seq_length(session->seq) : 0;
}

const float *qn_session_logits(const qn_session *session) {
    return session->has_logits ? session->logits : NULL;
}

qn_session_counts qn_session_get_counts(const qn_session *session) {
    qn_session_counts counts = {0};
    if (session->shared) counts = qn_runner_counts(session->shared->runner);
    counts.reused = session->reused;
    return counts;
}

// --- the history and its state -------------------------------------------------------------------

void qn_session_set_tokens(qn_session *s, size_t at, const int32_t *ids, size_t n) {
    if (n) memmove(s->tokens + at, ids, n * sizeof *ids); // `ids` may be the session's own
    for (size_t i = 0; i < n; i++) s->keys[at + i] = (uint64_t)(uint32_t)s->tokens[at + i];
    s->n_tokens = at + n;
    if (at == 0)
        s->memory = (qn_session_memory){.n_prompt = n};
    else if (s->memory.n_prompt > at)
        s->memory.n_prompt = at;
    s->has_logits = false;
    s->best.n = 0;
}

void qn_session_cut(qn_session *s, size_t n) {
    if (n < s->n_tokens) s->memory.sampler = (qn_sampler_memory){0};
    if (n < s->memory.n_prompt) s->memory.n_prompt = n;
    s->n_tokens = n;
    s->has_logits = false;
    s->best.n = 0;
}

static void remember(qn_session *s) {
    if (s->keeps && qn_seq_length(s->seq) > 0) qn_state_remember(s->seq, s->keys);
}

static void forget_state(qn_session *s) {
    if (!s->seq) return;
    remember(s);
    (void)qn_seq_truncate(s->seq, 0);
}

qn_status qn_session_set_prompt(qn_session *session, const int32_t *ids, size_t n, qn_err *err) {
    QN_NEED(session, err);
    QN_TRY(qn_engine_check_ids(session->engine, ids, n, session->context, err));
    forget_state(session);
    qn_session_set_tokens(session, 0, ids, n);
    session->mark = 0;
    return QN_OK;
}

qn_status qn_session_mark(qn_session *session, size_t n, qn_err *err) {
    QN_NEED(session, err);
    if (n > session->n_tokens)
        return QN_FAIL(err, ARGUMENT, "a mark after %zu tokens, the history has %zu", n,
                       session->n_tokens);
    session->mark = n;
    return QN_OK;
}

// What was kept of earlier prompts; the last token is always computed, for its scores.
static void reuse(qn_session *s, size_t n, bool wants_logits) {
    const int64_t most = (int64_t)n - (wants_logits ? 1 : 0);
    if (s->keeps && qn_seq_length(s->seq) == 0 && most > 0)
        s->reused += qn_state_find(s->seq, s->keys, most);
}

qn_status qn_runner_check_row(const qn_runner *runner, int64_t row, int64_t n_vocab, qn_err *err) {
    qn_best best;
    if (!qn_runner_best(&best, runner, row))
        return qn_logits_check(qn_runner_row(runner, "logits", row), n_vocab, err);
    const qn_row_facts facts = {
        .n = n_vocab, .least = best.least, .most = best.scores[0], .broken = best.broken};
    return qn_row_facts_check(&facts, err);
}

qn_status qn_session_take(qn_session *s, int64_t row, int64_t top, qn_err *err) {
    const qn_runner *runner = s->shared->runner;
    const int64_t vocab = s->engine->model->hparams->vocab;
    qn_best best = {0};
    const bool has_best = qn_runner_best(&best, runner, row);
    QN_TRY(qn_runner_check_row(runner, row, vocab, err));
    for (int64_t i = 0; i < best.n; i++)
        s->best.entries[i] = (qn_score){best.scores[i], (int32_t)best.ids[i]};
    s->best.n = best.n;
    s->best.after = (size_t)qn_seq_length(s->seq);
    if (has_best && top != QN_TOP_ALL) return QN_OK;
    memcpy(s->logits, qn_runner_row(runner, "logits", row), (size_t)vocab * sizeof *s->logits);
    s->has_logits = true;
    return QN_OK;
}

// The last step but one of a prompt ends near enough to go back to, if the prompt's end is changed.
static bool is_before_end(int64_t left, int64_t chunk) { return left > 0 && left <= chunk; }

qn_status qn_session_compute(qn_session *s, size_t n, int64_t top, qn_err *err) {
    qn_runner *runner = s->shared->runner;
    const bool wants_scores = top != QN_TOP_NONE;
    reuse(s, n, wants_scores);
    int64_t at = qn_seq_length(s->seq);
    const bool is_prompt = (int64_t)n - at > 1;
    while (at < (int64_t)n) {
        const int64_t left = (int64_t)n - at, to_mark = (int64_t)s->mark - at;
        int64_t rows = left < s->chunk ? left : s->chunk;
        if (to_mark > 0 && to_mark < rows) rows = to_mark; // a step ends there
        const qn_segment segment = {.seq = s->seq,
                                    .ids = s->tokens + at,
                                    .rows = rows,
                                    .outs = wants_scores && rows == left,
                                    .top = wants_scores ? top : 0};
        s->has_logits = false;
        s->best.n = 0;
        QN_TRY(qn_runner_step(runner, &segment, 1, err));
        const bool is_mark = at / CHECKPOINT_ROWS != (at + rows) / CHECKPOINT_ROWS ||
                             to_mark == rows || is_before_end(left - rows, s->chunk);
        at += rows;
        if (is_mark || (is_prompt && at == (int64_t)n)) remember(s);
        if (is_prompt && s->progress && !s->progress(s->progress_arg, at, (int64_t)n) &&
            at < (int64_t)n)
            return QN_FAIL(err, STOPPED, "stopped after %lld of %zu tokens", (long long)at, n);
    }
    return wants_scores ? qn_session_take(s, 0, top, err) : QN_OK;
}

// --- steps ---------------------------------------------------------------------------------------

static qn_status check_room(const qn_session *s, size_t n, qn_err *err) {
    if (n <= (size_t)s->context - s->n_tokens) return QN_OK;
    return QN_FAIL(err, LIMIT, "the context of %lld tokens is full: %zu are there, %zu more",
                   (long long)s->context, s->n_tokens, n);
}

qn_status qn_session_need_room(const qn_session *s, size_t n, qn_err *err) {
    if (s->n_tokens == 0)
        return QN_FAIL(err, STATE, "no history: call qn_session_set_prompt first");
    return check_room(s, n, err);
}

qn_status qn_session_need_plans(const qn_session *s, qn_err *err) {
    if (s->shared) return QN_OK;
    return QN_FAIL(err, STATE, "%s: call qn_session_step_naive",
                   s->engine->opts.reference ? "a reference engine has no cached steps"
                                             : "the model was opened without its weights");
}

qn_status qn_session_set_sampling(int64_t *top, qn_session *s, const qn_sample_opts *opts,
                                  qn_err *err) {
    const qn_sample_opts greedy = {0};
    QN_TRY(qn_sampler_set(s->sampler, opts ? opts : &greedy, err));
    *top = s->scores ? QN_TOP_ALL : qn_sampler_top(s->sampler);
    return QN_OK;
}

// Whether the best entries that are kept are as many as a choice needs, and of the right token.
static bool is_best_enough(const qn_session *s, int64_t top) {
    const int64_t most = s->engine->n_tokens;
    return top != QN_TOP_ALL && s->best.n > 0 && s->best.n >= (top < most ? top : most) &&
           s->best.after == s->n_tokens;
}

qn_sampler_in qn_session_sampler_in(qn_session *s) {
    return (qn_sampler_in){.tokens = s->tokens,
                           .n_tokens = s->n_tokens,
                           .n_prompt = s->memory.n_prompt,
                           .position = (uint64_t)s->memory.shifted + s->n_tokens,
                           .memory = &s->memory.sampler};
}

qn_status qn_session_choose(int32_t *token, qn_session *s, const float *logits, qn_err *err) {
    qn_sampler_in in = qn_session_sampler_in(s);
    in.logits = logits ? logits : s->has_logits ? s->logits : NULL;
    if (!logits && s->best.after == s->n_tokens) {
        in.best = s->best.entries;
        in.n_best = s->best.n;
    }
    int32_t chosen;
    QN_TRY(qn_sampler_choose(&chosen, s->sampler, &in, err));
    const bool had_logits = s->has_logits;
    qn_session_set_tokens(s, s->n_tokens, &chosen, 1);
    s->has_logits = had_logits; // those that the token was chosen by
    *token = chosen;
    return QN_OK;
}

qn_status qn_session_settle_for(qn_session *s, int64_t top, qn_err *err) {
    const size_t cached = qn_session_cached(s);
    if (cached > s->n_tokens)
        return QN_FAIL(err, STATE, "%zu tokens are cached, the history has %zu", cached,
                       s->n_tokens);
    if (cached > 0 && cached == s->n_tokens && !s->has_logits && !is_best_enough(s, top))
        (void)qn_seq_truncate(s->seq, (int64_t)cached - 1);
    return QN_OK;
}

qn_status qn_session_settle(qn_session *s, qn_err *err) {
    return qn_session_settle_for(s, QN_TOP_ALL, err);
}

qn_status qn_session_step(int32_t *token, qn_session *s, const qn_sample_opts *opts, qn_err *err) {
    QN_NEED(token, err);
    QN_NEED(s, err);
    int64_t top;
    QN_TRY(qn_session_need_room(s, 1, err));
    QN_TRY(qn_session_need_plans(s, err));
    QN_TRY(qn_session_set_sampling(&top, s, opts, err));
    QN_TRY(qn_session_settle_for(s, top, err)); // maybe the last token once more, for its scores
    if (qn_session_cached(s) < s->n_tokens) QN_TRY(qn_session_compute(s, s->n_tokens, top, err));
    return qn_session_choose(token, s, NULL, err);
}

qn_status qn_session_step_naive(int32_t *token, qn_session *s, const qn_sample_opts *opts,
                                qn_err *err) {
    QN_NEED(token, err);
    QN_NEED(s, err);
    int64_t top;
    QN_TRY(qn_session_need_room(s, 1, err));
    QN_TRY(qn_session_set_sampling(&top, s, opts, err));
    qn_logits logits;
    QN_TRY(qn_engine_run(&logits, s->engine, s->tokens, (int64_t)s->n_tokens,
                         &(qn_logits_opts){.naive = true}, err));
    const qn_status status = qn_session_choose(token, s, logits.logits, err);
    qn_logits_deinit(&logits);
    if (!status) s->has_logits = false;
    return status;
}

qn_status qn_session_generate(size_t *n_new, qn_session *session, size_t n,
                              const qn_sample_opts *opts, qn_token_fn *fn, void *arg, qn_err *err) {
    QN_NEED(n_new, err);
    QN_NEED(session, err);
    const size_t before = session->n_tokens;
    qn_status status = QN_OK;
    bool goes_on = true;
    for (size_t i = 0; i < n && goes_on && !status; i++) {
        int32_t token;
        status = qn_session_step(&token, session, opts, err);
        if (!status && fn) goes_on = fn(arg, token);
    }
    *n_new = session->n_tokens - before;
    return status;
}

qn_status qn_session_prefill(const float **logits, qn_session *s, const int32_t *ids, size_t n,
                             qn_err *err) {
    QN_NEED(logits, err);
    QN_NEED(s, err);
    QN_TRY(qn_session_need_plans(s, err));
    QN_TRY(qn_session_set_prompt(s, ids, n, err));
    QN_TRY(qn_session_advance(s, n, true, err));
    *logits = s->logits;
    return QN_OK;
}

// Undoes what a call that failed appended: history and state.
static void go_back(qn_session *s, size_t n) {
    if (qn_session_cached(s) > n) (void)qn_seq_truncate(s->seq, (int64_t)n);
    const qn_sampler_memory memory = s->memory.sampler; // nothing was chosen
    qn_session_cut(s, n);
    s->memory.sampler = memory;
}

qn_status qn_session_feed(const float **logits, qn_session *s, int32_t token, qn_err *err) {
    QN_NEED(logits, err);
    QN_NEED(s, err);
    QN_TRY(qn_session_need_plans(s, err));
    if (s->n_tokens == 0 || qn_session_cached(s) != s->n_tokens)
        return QN_FAIL(err, STATE, "%zu of %zu tokens are cached: call qn_session_prefill first",
                       qn_session_cached(s), s->n_tokens);
    QN_TRY(qn_engine_check_ids(s->engine, &token, 1, s->context, err));
    QN_TRY(qn_session_need_room(s, 1, err));
    const size_t before = s->n_tokens;
    qn_session_set_tokens(s, before, &token, 1);
    const qn_status status = qn_session_advance(s, s->n_tokens, true, err);
    if (status) {
        go_back(s, before);
        return status;
    }
    *logits = s->logits;
    return QN_OK;
}

qn_status qn_session_commit(qn_session *s, const int32_t *ids, size_t n, qn_err *err) {
    QN_NEED(s, err);
    if (n) QN_NEED(ids, err);
    QN_TRY(qn_session_need_plans(s, err));
    if (n == 0) return QN_OK;
    QN_TRY(qn_engine_check_ids(s->engine, ids, n, s->context, err));
    QN_TRY(check_room(s, n, err));
    const size_t before = s->n_tokens;
    qn_session_set_tokens(s, before, ids, n);
    const qn_status status = qn_session_advance(s, s->n_tokens, false, err);
    if (status) go_back(s, before);
    return status;
}
