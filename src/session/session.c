// qn_session: one sequence. See quern.h for the contracts.
#include "session/session_int.h"

#include "core/mem.h"
#include "core/structs.h"
#include "core/stop_flag.h"
#include "gen/logits.h"
#include "runtime/memory.h"
#include "session/budget.h"

#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static qn_status init_flights(qn_shared *shared, qn_err *err) {
    const size_t max = (size_t)shared->max_seqs;
    shared->n_flights = qn_runner_lanes(shared->runner);
    for (int i = 0; i < shared->n_flights; i++) {
        qn_flight *f = &shared->flights[i];
        f->segments = qn_alloc(max, sizeof *f->segments);
        f->sessions = qn_alloc(max, sizeof(qn_session *));
        f->gens = qn_alloc(max, sizeof(qn_generation *));
        if (!f->segments || !f->sessions || !f->gens) return QN_NOMEM(err, "session");
    }
    return QN_OK;
}

void qn_shared_leave(qn_shared *shared) {
    if (!shared || atomic_fetch_sub(&shared->users, 1) > 1) return;
    qn_runner_destroy(shared->runner);
    qn_free(shared->heads);
    qn_free(shared->predicts);
    for (int i = 0; i < QN_MAX_LANES; i++) {
        qn_free(shared->flights[i].segments);
        qn_free(shared->flights[i].sessions);
        qn_free(shared->flights[i].gens);
    }
    qn_chooser_destroy(shared->chooser);
    qn_free(shared);
}

qn_status qn_shared_open(qn_shared **out, qn_session *like, const qn_runner_opts *opts,
                         qn_err *err) {
    qn_shared *shared = qn_alloc(1, sizeof *shared);
    if (!shared) return QN_NOMEM(err, "session");
    const size_t max = (size_t)opts->n_seqs;
    qn_status status = QN_OK;
    atomic_init(&shared->users, 1); // the caller
    shared->max_seqs = opts->n_seqs;
    shared->outs = opts->outs;
    shared->heads = qn_alloc(max, sizeof *shared->heads);
    shared->predicts = qn_alloc(max, sizeof *shared->predicts);
    if (!shared->heads || !shared->predicts) status = QN_NOMEM(err, "session");
    if (!status)
        status = qn_chooser_create(&shared->chooser, like->engine->tokenizer,
                                   like->engine->model->hparams->vocab, err);
    if (!status) status = qn_runner_create(&shared->runner, opts, err);
    if (!status) status = init_flights(shared, err);
    if (status) {
        qn_shared_leave(shared);
        return status;
    }
    like->context = opts->context;
    like->chunk = opts->rows;
    *out = shared;
    return QN_OK;
}

qn_status qn_session_reserve(qn_session *s, size_t n, qn_err *err) {
    const size_t context = (size_t)s->context, twice = 2 * s->cap;
    if (n <= s->cap) return QN_OK;
    if (n < twice) n = twice;
    if (n > context) n = context;
    int32_t *tokens = qn_realloc(s->tokens, n, sizeof *tokens);
    if (tokens) s->tokens = tokens;
    uint64_t *keys = qn_realloc(s->keys, n, sizeof *keys);
    if (keys) s->keys = keys;
    if (!tokens || !keys) return QN_NOMEM(err, "session");
    s->cap = n;
    return QN_OK;
}

qn_status qn_session_prepare(qn_session **out, const qn_session *like, qn_shared *shared,
                             size_t cap, qn_err *err) {
    qn_session *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "session");
    s->engine = like->engine;
    s->context = like->context;
    s->chunk = like->chunk;
    s->adapter = like->adapter;
    s->keeps = like->keeps;
    s->wants_logits = like->wants_logits;
    s->keeps_hidden = like->keeps_hidden;
    s->progress = like->progress;
    s->progress_arg = like->progress_arg;
    s->stop = like->stop;
    s->shared = shared;
    if (shared) atomic_fetch_add(&shared->users, 1);
    qn_status status = qn_session_reserve(s, cap, err);
    if (!status && shared && s->engine->opts.mtp) {
        s->last = qn_alloc((size_t)s->engine->model->hparams->width, sizeof *s->last);
        if (!s->last) status = QN_NOMEM(err, "session");
    }
    if (status)
        qn_session_destroy(s);
    else
        *out = s;
    return status;
}

qn_status qn_session_enter(qn_session *s, qn_err *err) {
    if (!s->shared || s->seq) return QN_OK;
    QN_TRY(qn_seq_open(&s->seq, qn_runner_state(s->shared->runner), err));
    qn_seq_set_adapter(s->seq, s->adapter);
    return QN_OK;
}

void qn_session_leave(qn_session *s) {
    qn_seq_close(s->seq);
    s->seq = NULL;
    s->prefill_end = 0;
    s->last_after = 0;
    qn_session_drop_logits(s);
}

qn_status qn_session_attach(qn_session **out, const qn_session *like, qn_shared *shared,
                            qn_err *err) {
    qn_session *s = NULL;
    QN_TRY(qn_session_prepare(&s, like, shared, (size_t)like->context, err));
    const qn_status status = qn_session_enter(s, err);
    if (status)
        qn_session_destroy(s);
    else
        *out = s;
    return status;
}

static qn_status check_opts(const qn_session_opts *o, const qn_engine *engine, qn_err *err) {
    const int64_t max = engine->model->hparams->context;
    if (o->context < 1 || o->context > max)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld",
                       (long long)o->context, (long long)max);
    if (o->chunk < 1 || o->kept < -1)
        return QN_FAIL(err, ARGUMENT, "chunks of %lld tokens, %lld bytes kept", (long long)o->chunk,
                       (long long)o->kept);
    if (o->sessions < 0 || o->sessions > QN_MAX_SESSIONS)
        return QN_FAIL(err, ARGUMENT, "state for %lld sessions, want 1 to %d",
                       (long long)o->sessions, (int)QN_MAX_SESSIONS);
    if (o->hidden && engine->opts.mtp)
        return QN_FAIL(err, UNSUPPORTED,
                       "hidden rows of sessions: the engine was opened with a prediction head");
    if (o->share && o->share->engine != engine)
        return QN_FAIL(err, ARGUMENT, "the session to share with is of another engine");
    if (o->share && o->hidden && !o->share->keeps_hidden)
        return QN_FAIL(err, ARGUMENT, "hidden rows: the session to share with keeps none");
    return QN_OK;
}

// A session in the state of another, with a set of adapters of its own.
static qn_status share(qn_session **out, const qn_session *with, int32_t adapter, qn_err *err) {
    qn_session *s = NULL;
    QN_TRY(qn_session_attach(&s, with, with->shared, err));
    qn_session_choose_adapter(s, adapter);
    *out = s;
    return QN_OK;
}

static qn_status open_shared(qn_shared **out, qn_session *like, qn_session_opts *o, qn_err *err) {
    const int64_t max = o->sessions ? o->sessions : QN_DEFAULT_SESSIONS;
    const int64_t outs = qn_max(max, QN_DEFAULT_SESSIONS);
    o->sessions = max;
    QN_TRY(qn_memory_fit(o, outs, like->engine, err));
    qn_runner_opts opts = {.engine = like->engine,
                           .hidden = like->keeps_hidden,
                           .context = o->context,
                           .rows = o->chunk < o->context ? o->chunk : o->context,
                           .outs = outs,
                           .segs = max,
                           .n_seqs = max,
                           .kept_bytes = o->kept < 0 ? 0 : o->kept,
                           .trace = o->trace,
                           .trace_arg = o->trace_arg};
    // All sessions together get half of the free memory, at least one context.
    int64_t available;
    if (max > 1 && qn_engine_free_memory(like->engine, &available))
        QN_TRY(qn_budget_fit(&opts, available / 2, err));
    QN_TRY(qn_memory_fit_cards(&opts, err));
    return qn_shared_open(out, like, &opts, err);
}

qn_status qn_session_create(qn_session **out, const qn_engine *engine, const qn_session_opts *opts,
                            qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    qn_session_opts o;
    QN_TRY(QN_OPTS_READ(qn_session_opts, &o, opts, err));
    if (o.context == 0) o.context = engine->model->hparams->context;
    o.chunk = qn_engine_chunk(engine, o.chunk);
    QN_TRY(check_opts(&o, engine, err));
    int32_t adapter;
    QN_TRY(qn_engine_adapter(&adapter, engine, o.adapter, qn_engine_adapter_usual(engine), err));
    if (o.share) return share(out, o.share, adapter, err);
    qn_session like = {.engine = engine,
                       .context = o.context,
                       .adapter = adapter,
                       .keeps = o.kept >= 0,
                       .wants_logits = o.logits,
                       .keeps_hidden = o.hidden != 0,
                       .progress = o.progress,
                       .progress_arg = o.progress_arg,
                       .stop = o.stop};
    qn_shared *shared = NULL;
    if (!engine->opts.reference && engine->is_loaded) QN_TRY(open_shared(&shared, &like, &o, err));
    const qn_status status = qn_session_attach(out, &like, shared, err);
    qn_shared_leave(shared);
    return status;
}

void qn_session_destroy(qn_session *session) {
    if (!session) return;
    qn_seq_close(session->seq);
    qn_shared_leave(session->shared);
    qn_chooser_destroy(session->chooser);
    qn_free(session->last);
    qn_media_deinit(&session->media);
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

qn_status qn_session_get_counts(qn_session_counts *out, const qn_session *session, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    QN_TRY(QN_RESULT_CHECK(qn_session_counts, out, err));
    qn_session_counts counts = {0};
    if (session->shared) counts = qn_runner_counts(session->shared->runner);
    counts.reused = session->reused;
    QN_RESULT_WRITE(qn_session_counts, out, &counts);
    return QN_OK;
}

// --- the history and its state -------------------------------------------------------------------

// Tokens under another set of adapters are others.
static uint64_t key_root(const qn_session *s) { return (uint64_t)(s->adapter + 1) << 32; }

static void set_token_keys(qn_session *s, size_t at, size_t n) {
    const uint64_t root = key_root(s);
    for (size_t i = at; i < at + n; i++) s->keys[i] = root | (uint32_t)s->tokens[i];
}

void qn_session_set_keys(qn_session *s) {
    set_token_keys(s, 0, s->n_tokens);
    qn_media_set_keys(s->keys, s->n_tokens, key_root(s), &s->media);
}

void qn_session_choose_adapter(qn_session *s, int32_t adapter) {
    s->adapter = adapter;
    if (s->seq) qn_seq_set_adapter(s->seq, adapter);
    qn_session_set_keys(s);
}

// Rows of the last step are those of tokens below n.
static void drop_rows(qn_session *s, size_t n) {
    const int64_t left = (int64_t)n - s->step_first;
    if (s->step_rows > left) s->step_rows = left > 0 ? left : 0;
}

void qn_session_set_tokens(qn_session *s, size_t at, const int32_t *ids, size_t n) {
    if (n) memmove(s->tokens + at, ids, n * sizeof *ids); // `ids` may be the session's own
    set_token_keys(s, at, n);
    s->n_tokens = at + n;
    qn_media_cut(&s->media, at);
    if (s->last_after > at) s->last_after = 0;
    drop_rows(s, at);
    if (at == 0)
        s->memory = (qn_session_memory){.n_prompt = n};
    else if (s->memory.n_prompt > at)
        s->memory.n_prompt = at;
    s->prefill_end = 0;
    qn_session_drop_logits(s);
}

void qn_session_set_media(qn_session *s, qn_media *media) {
    qn_media_deinit(&s->media);
    s->media = *media;
    *media = (qn_media){0};
    qn_session_set_keys(s);
}

qn_run_input qn_session_input(const qn_session *s) {
    return (qn_run_input){.ids = s->tokens, .n = (int64_t)s->n_tokens, .media = &s->media};
}

void qn_session_cut(qn_session *s, size_t n) {
    if (n < s->n_tokens) s->memory.chooser = (qn_chooser_memory){0};
    if (n < s->memory.n_prompt) s->memory.n_prompt = n;
    s->n_tokens = n;
    qn_media_cut(&s->media, n);
    if (s->last_after > n) s->last_after = 0;
    drop_rows(s, n);
    s->prefill_end = 0;
    qn_session_drop_logits(s);
}

static void forget_state(qn_session *s) {
    if (!s->seq) return;
    qn_session_remember(s);
    (void)qn_seq_truncate(s->seq, 0);
}

int64_t qn_session_adapter(const qn_session *s) {
    return s->adapter < 0 ? QN_NO_ADAPTER : s->adapter + 1;
}

qn_status qn_session_set_adapter(qn_session *session, int64_t adapter, qn_err *err) {
    QN_NEED(session, err);
    int32_t index;
    QN_TRY(qn_engine_adapter(&index, session->engine, adapter,
                             qn_engine_adapter_usual(session->engine), err));
    if (index == session->adapter) return QN_OK;
    forget_state(session);
    qn_session_choose_adapter(session, index);
    session->prefill_end = 0;
    session->last_after = 0;
    qn_session_drop_logits(session);
    return QN_OK;
}

// Another history, with what is computed besides its tokens, which is the session's afterwards.
static void begin_history(qn_session *s, const int32_t *ids, size_t n, qn_media *media) {
    forget_state(s);
    qn_session_set_tokens(s, 0, ids, n);
    qn_session_set_media(s, media);
    s->mark = 0;
}

qn_status qn_session_set_images(qn_session *session, const int32_t *ids, size_t n,
                                const qn_image *const *images, size_t n_images,
                                const qn_stop_flag *also, qn_err *err) {
    QN_TRY(qn_engine_check_ids(session->engine, ids, n, session->context, err));
    qn_media media;
    qn_until until = {.stop = session->stop, .also = also};
    QN_TRY(qn_media_init(&media, session->engine, ids, n, images, n_images, &until, err));
    begin_history(session, ids, n, &media);
    return QN_OK;
}

qn_status qn_session_set_prompt_images(qn_session *session, const int32_t *ids, size_t n,
                                       const qn_image *const *images, size_t n_images,
                                       qn_err *err) {
    QN_NEED(session, err);
    if (n_images) QN_NEED(images, err);
    return qn_session_set_images(session, ids, n, images, n_images, NULL, err);
}

qn_status qn_session_set_prompt_given(qn_session *session, const int32_t *ids, size_t n,
                                      const qn_given *given, qn_err *err) {
    QN_NEED(session, err);
    QN_TRY(qn_engine_check_ids(session->engine, ids, n, session->context, err));
    qn_media media;
    QN_TRY(qn_media_init_given(&media, session->engine, ids, n, given, err));
    begin_history(session, ids, n, &media);
    return QN_OK;
}

qn_status qn_session_set_prompt(qn_session *session, const int32_t *ids, size_t n, qn_err *err) {
    QN_NEED(session, err);
    return qn_session_set_prompt_images(session, ids, n, NULL, 0, err);
}

qn_status qn_session_mark(qn_session *session, size_t n, qn_err *err) {
    QN_NEED(session, err);
    if (n > session->n_tokens)
        return QN_FAIL(err, ARGUMENT, "a mark after %zu tokens, the history has %zu", n,
                       session->n_tokens);
    session->mark = n;
    return QN_OK;
}

// --- steps ---------------------------------------------------------------------------------------

static qn_status check_room(const qn_session *s, size_t n, qn_err *err) {
    if (n <= (size_t)s->context - s->n_tokens) return QN_OK;
    return QN_FAIL(err, LIMIT, "the context of %lld tokens is full: %zu are there, %zu more",
                   (long long)s->context, s->n_tokens, n);
}

static qn_status need_room(const qn_session *s, size_t n, qn_err *err) {
    if (s->n_tokens == 0)
        return QN_FAIL(err, STATE, "no history: a prompt comes first (qn_session_set_prompt)");
    return check_room(s, n, err);
}

qn_status qn_session_need_plans(const qn_session *s, qn_err *err) {
    if (s->shared) return QN_OK;
    return QN_FAIL(err, STATE, "%s: call qn_session_step_naive",
                   s->engine->opts.reference ? "a reference engine has no cached steps"
                                             : "the model was opened without its weights");
}

qn_status qn_session_create_chooser(qn_chooser **out, const qn_session *s, qn_err *err) {
    if (s->shared) return qn_chooser_create_like(out, s->shared->chooser, err);
    return qn_chooser_create(out, s->engine->tokenizer, s->engine->model->hparams->vocab, err);
}

// Sets how tokens are chosen (NULL: greedy); *top: the logits that a choice needs.
static qn_status set_sampling(int64_t *top, qn_session *s, const qn_sample_opts *opts,
                              qn_err *err) {
    qn_sample_opts o;
    QN_TRY(QN_OPTS_READ(qn_sample_opts, &o, opts, err));
    if (!s->chooser) QN_TRY(qn_session_create_chooser(&s->chooser, s, err));
    QN_TRY(qn_chooser_set(s->chooser, &o, err));
    *top = s->wants_logits ? QN_TOP_ALL : qn_chooser_top(s->chooser);
    return QN_OK;
}

// Whether the top logits that are kept are enough for a choice, and those after the last token.
static bool is_top_enough(const qn_session *s, int64_t top) {
    const int64_t max = s->engine->n_tokens;
    return top != QN_TOP_ALL && s->top_logits.n > 0 && s->top_logits.n >= (top < max ? top : max) &&
           s->top_logits.after == s->n_tokens;
}

qn_chooser_in qn_session_chooser_in(qn_session *s) {
    return (qn_chooser_in){.tokens = s->tokens,
                           .n_tokens = s->n_tokens,
                           .n_prompt = s->memory.n_prompt,
                           .position = (uint64_t)s->memory.shifted + s->n_tokens,
                           .memory = &s->memory.chooser};
}

// Chooses a token by these logits (NULL: by the session's own) and appends it.
static qn_status choose(int32_t *token, qn_session *s, const float *logits, qn_err *err) {
    qn_chooser_in in = qn_session_chooser_in(s);
    in.logits = logits ? logits : s->has_logits ? s->logits : NULL;
    if (!logits && s->top_logits.after == s->n_tokens) {
        in.top = s->top_logits.entries;
        in.n_top = s->top_logits.n;
    }
    int32_t chosen;
    QN_TRY(qn_chooser_choose(&chosen, s->chooser, &in, err));
    const bool had_logits = s->has_logits;
    qn_session_set_tokens(s, s->n_tokens, &chosen, 1);
    s->has_logits = had_logits; // they stay: the token was chosen by them
    *token = chosen;
    return QN_OK;
}

qn_status qn_session_settle(qn_session *s, int64_t top, qn_err *err) {
    const size_t cached = qn_session_cached(s);
    if (cached > s->n_tokens)
        return QN_FAIL(err, STATE, "%zu tokens are cached, the history has %zu", cached,
                       s->n_tokens);
    if (cached > 0 && cached == s->n_tokens && !s->has_logits && !is_top_enough(s, top))
        (void)qn_seq_truncate(s->seq, (int64_t)cached - 1);
    return QN_OK;
}

qn_status qn_session_step(int32_t *token, qn_session *s, const qn_sample_opts *opts, qn_err *err) {
    QN_NEED(token, err);
    QN_NEED(s, err);
    int64_t top;
    QN_TRY(need_room(s, 1, err));
    QN_TRY(qn_session_need_plans(s, err));
    QN_TRY(set_sampling(&top, s, opts, err));
    QN_TRY(qn_session_settle(s, top, err)); // the last token may be computed again for its logits
    if (qn_session_cached(s) < s->n_tokens) QN_TRY(qn_session_compute(s, s->n_tokens, top, err));
    return choose(token, s, NULL, err);
}

qn_status qn_session_step_naive(int32_t *token, qn_session *s, const qn_sample_opts *opts,
                                qn_err *err) {
    QN_NEED(token, err);
    QN_NEED(s, err);
    int64_t top;
    QN_TRY(need_room(s, 1, err));
    QN_TRY(set_sampling(&top, s, opts, err));
    if (qn_stop_is_wanted(s->stop))
        return QN_FAIL(err, STOPPED, "stopped before a step of %zu tokens", s->n_tokens);
    qn_logits logits;
    const qn_run_input input = qn_session_input(s);
    QN_TRY(qn_engine_run(&logits, s->engine, &input,
                         &QN_INIT(qn_logits_opts, .naive = true, .adapter = qn_session_adapter(s)),
                         err));
    const qn_status status = choose(token, s, logits.logits, err);
    qn_logits_deinit(&logits);
    if (!status) s->has_logits = false;
    return status;
}

qn_status qn_session_prefill(const float **logits, qn_session *s, const int32_t *ids, size_t n,
                             qn_err *err) {
    QN_NEED(logits, err);
    QN_NEED(s, err);
    QN_TRY(qn_session_need_plans(s, err));
    if (ids || n || s->n_tokens == 0) QN_TRY(qn_session_set_prompt(s, ids, n, err));
    QN_TRY(qn_session_compute(s, s->n_tokens, QN_TOP_ALL, err));
    *logits = s->logits;
    return QN_OK;
}

// Rolls back what a failed call appended: history and state.
static void roll_back(qn_session *s, size_t n) {
    if (qn_session_cached(s) > n) (void)qn_seq_truncate(s->seq, (int64_t)n);
    const qn_chooser_memory memory = s->memory.chooser; // nothing was chosen
    qn_session_cut(s, n);
    s->memory.chooser = memory;
}

qn_status qn_session_feed(const float **logits, qn_session *s, int32_t token, qn_err *err) {
    QN_NEED(logits, err);
    QN_NEED(s, err);
    QN_TRY(qn_session_need_plans(s, err));
    if (s->n_tokens == 0 || qn_session_cached(s) != s->n_tokens)
        return QN_FAIL(err, STATE, "%zu of %zu tokens are cached: call qn_session_prefill first",
                       qn_session_cached(s), s->n_tokens);
    QN_TRY(qn_engine_check_ids(s->engine, &token, 1, s->context, err));
    QN_TRY(need_room(s, 1, err));
    const size_t before = s->n_tokens;
    qn_session_set_tokens(s, before, &token, 1);
    const qn_status status = qn_session_compute(s, s->n_tokens, QN_TOP_ALL, err);
    if (status) {
        roll_back(s, before);
        return status;
    }
    *logits = s->logits;
    return QN_OK;
}

// One step of the next tokens of the history, whose logits go to the rows of `out` from `at` on.
// They may be taken back, as far as the log of recurrent layers reaches.
static qn_status feed_rows(qn_logits *out, qn_session *s, int64_t at, int64_t rows, qn_err *err) {
    const qn_segment segment = {.seq = s->seq,
                                .ids = s->tokens + qn_session_cached(s),
                                .rows = rows,
                                .uncertain = rows,
                                .outs = rows,
                                .media = &s->media};
    if (qn_stop_is_wanted(s->stop))
        return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)at,
                       (long long)out->n_rows);
    QN_TRY(qn_session_run(s->shared, &s, &segment, 1, err));
    for (int64_t i = 0; i < rows; i++) {
        const float *row = qn_runner_row(s->shared->runner, "logits", i);
        QN_TRY(qn_logits_check(row, out->n_vocab, err));
        memcpy(out->logits + (at + i) * out->n_vocab, row, (size_t)out->n_vocab * sizeof *row);
    }
    return at + rows == out->n_rows ? qn_session_take(s, rows - 1, QN_TOP_ALL, err) : QN_OK;
}

_Static_assert((int)QN_MAX_FED <= (int)QN_LOG_ROWS && (int)QN_MAX_FED <= (int)QN_DEFAULT_SESSIONS,
               "a step has that many rows with logits, and all of them can be taken back");

qn_status qn_session_feed_all(qn_logits *out, qn_session *s, const int32_t *ids, size_t n,
                              qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(s, err);
    QN_TRY(QN_RESULT_CHECK(qn_logits, out, err));
    QN_TRY(qn_session_need_plans(s, err));
    if (s->n_tokens == 0 || qn_session_cached(s) != s->n_tokens)
        return QN_FAIL(err, STATE, "%zu of %zu tokens are cached: call qn_session_prefill first",
                       qn_session_cached(s), s->n_tokens);
    QN_TRY(qn_engine_check_ids(s->engine, ids, n, s->context, err));
    QN_TRY(need_room(s, n, err));
    const size_t before = s->n_tokens;
    const int64_t max = qn_min(QN_MAX_FED, s->chunk), rest = (int64_t)n % max;
    qn_logits result =
        QN_INIT(qn_logits, .n_rows = (int64_t)n, .n_vocab = s->engine->model->hparams->vocab);
    qn_status status = qn_logits_init(&result, err);
    if (!status) qn_session_set_tokens(s, before, ids, n);
    // The last step has as many rows as can be: those can be taken back.
    for (int64_t at = 0, rows = rest ? rest : max; !status && at < result.n_rows; rows = max) {
        status = feed_rows(&result, s, at, rows, err);
        at += rows;
    }
    if (status) {
        roll_back(s, before);
        qn_logits_deinit(&result);
        return status;
    }
    QN_RESULT_WRITE(qn_logits, out, &result);
    return QN_OK;
}

qn_status qn_session_predict(const float **logits, qn_session *s, int32_t token, qn_err *err) {
    QN_NEED(logits, err);
    QN_NEED(s, err);
    QN_TRY(qn_session_need_plans(s, err));
    const size_t cached = qn_session_cached(s);
    if (!s->last) return QN_FAIL(err, STATE, "the model was opened without its prediction head");
    if (cached == 0 || cached != s->n_tokens || s->last_after != cached)
        return QN_FAIL(err, STATE, "%zu of %zu tokens are cached: call qn_session_prefill first",
                       s->last_after == cached ? cached : 0, s->n_tokens);
    QN_TRY(qn_engine_check_ids(s->engine, &token, 1, s->context, err));
    const qn_predict predict = {.seq = s->seq,
                                .position = (int64_t)cached,
                                .ids = &token,
                                .before = s->last,
                                .rows = 1,
                                .outs = 1,
                                .media = &s->media};
    QN_TRY(qn_seq_prepare(s->seq, 1, 0, err));
    const qn_status status = qn_runner_predict(s->shared->runner, &predict, 1, 0, err);
    qn_seq_cancel(s->seq);
    if (!status) *logits = qn_runner_head_row(s->shared->runner, "logits", 0);
    return status;
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
    const qn_status status = qn_session_compute(s, s->n_tokens, QN_TOP_NONE, err);
    if (status) roll_back(s, before);
    return status;
}
