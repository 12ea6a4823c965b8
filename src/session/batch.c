// qn_batch: what any thread may do. See quern.h for the contracts.
#include "session/batch_int.h"

#include "core/mem.h"
#include "core/structs.h"
#include "runtime/memory.h"
#include "session/budget.h"

#include <string.h>
#include <time.h>

enum {
    DEFAULT_ROWS = 64, // decode rows that share each unpacked weight on CPUs; not tuned
    MIN_OUTS = 32,     // as sessions have: for drafts and prompt_logprobs of few rows; not tuned
    NS_PER_MS = 1000000,
    NS_PER_S = 1000000000
};

// --- memory --------------------------------------------------------------------------------------

// Places in the runner for `rows` rows: one more for a prompt that several rows share.
static int64_t places(int64_t rows) { return rows + (rows > 1); }

// Sets places, positions and the bytes of the prefix cache by the budget: fewer rows at a time
// where many would leave no room for one of full length.
static qn_status fit(int64_t *rows, qn_runner_opts *o, const qn_batch_opts *opts, qn_err *err) {
    int64_t budget = opts->bytes, bytes, available;
    o->n_seqs = places(*rows);
    if (budget == 0) {
        QN_TRY(qn_budget_measure(&budget, o, err));
        if (qn_engine_free_memory(o->engine, &available)) budget = qn_min(budget, available / 2);
    }
    o->positions = o->context;
    bool is_cut = false;
    o->kept_bytes = opts->kept < 0 ? 0 : qn_min(opts->kept ? opts->kept : budget / 4, budget);
    for (;;) {
        QN_TRY(qn_budget_measure(&bytes, o, err));
        if (bytes <= budget) return qn_budget_fit(o, budget, err);
        if (o->kept_bytes > 0) { // what is left beside the shortest rows
            o->kept_bytes = 0;
            QN_TRY(qn_budget_measure(&bytes, o, err));
            if (bytes < budget && !is_cut) o->kept_bytes = budget - bytes;
            is_cut = true;
        } else if (*rows > 1) {
            *rows /= 2;
            o->n_seqs = places(*rows);
        } else {
            return QN_FAIL(err, MEMORY,
                           "a row of %lld tokens needs %lld bytes of KV cache and state, the "
                           "budget is %lld",
                           (long long)o->context, (long long)bytes, (long long)budget);
        }
    }
}

static qn_status check_opts(qn_batch_opts *o, const qn_engine *engine, qn_err *err) {
    const int64_t max = engine->model->hparams->context;
    if (engine->opts.reference || !engine->is_loaded)
        return QN_FAIL(err, STATE, "%s",
                       engine->opts.reference ? "a reference engine computes no batches"
                                              : "the model was opened without its weights");
    if (o->context == 0) o->context = max;
    if (o->rows == 0) o->rows = DEFAULT_ROWS;
    o->chunk = qn_engine_chunk(engine, o->chunk);
    if (o->context < 1 || o->context > max)
        return QN_FAIL(err, LIMIT, "context of %lld tokens, the model has %lld",
                       (long long)o->context, (long long)max);
    if (o->rows < 1 || o->rows >= QN_MAX_SESSIONS)
        return QN_FAIL(err, ARGUMENT, "%lld rows at a time, want 1 to %d", (long long)o->rows,
                       QN_MAX_SESSIONS - 1);
    if (o->chunk < 1 || o->prompt_rows < QN_PROMPT_ROWS_AUTO || o->bytes < 0 || o->kept < -1)
        return QN_FAIL(err, ARGUMENT,
                       "steps of %lld tokens, %lld of prompts, %lld bytes, %lld bytes kept",
                       (long long)o->chunk, (long long)o->prompt_rows, (long long)o->bytes,
                       (long long)o->kept);
    return QN_OK;
}

// --- life ----------------------------------------------------------------------------------------

static qn_status init_lock(qn_batch *b, qn_err *err) {
    pthread_condattr_t monotonic;
    bool ok = pthread_condattr_init(&monotonic) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
             pthread_mutex_init(&b->lock, NULL) == 0;
        if (ok && pthread_cond_init(&b->changed, &monotonic) != 0) {
            pthread_mutex_destroy(&b->lock);
            ok = false;
        } else if (ok && pthread_cond_init(&b->callback_ended, NULL) != 0) {
            pthread_cond_destroy(&b->changed);
            pthread_mutex_destroy(&b->lock);
            ok = false;
        }
        pthread_condattr_destroy(&monotonic);
    }
    return ok ? QN_OK : QN_NOMEM(err, "a lock");
}

qn_status qn_batch_open(qn_batch **out, const qn_session *like, int64_t max_rows, qn_err *err) {
    qn_batch *b = qn_alloc(1, sizeof *b);
    if (!b) return QN_NOMEM(err, "batch");
    b->gens = qn_alloc((size_t)max_rows, sizeof(qn_generation *));
    const qn_status status = b->gens ? init_lock(b, err) : QN_NOMEM(err, "batch");
    if (status) {
        qn_free(b->gens);
        qn_free(b);
        return status;
    }
    b->like = (qn_session){.engine = like->engine,
                           .context = like->context,
                           .chunk = like->chunk,
                           .adapter = like->adapter,
                           .keeps = like->keeps,
                           .wants_logits = like->wants_logits,
                           .progress = like->progress,
                           .progress_arg = like->progress_arg,
                           .stop = like->stop};
    b->shared = like->shared;
    if (b->shared) atomic_fetch_add(&b->shared->users, 1);
    b->max_rows = max_rows;
    b->clock = qn_clock;
    b->incoming_end = &b->incoming;
    *out = b;
    return QN_OK;
}

qn_status qn_batch_create(qn_batch **out, const qn_engine *engine, const qn_batch_opts *opts,
                          qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    qn_batch_opts o;
    QN_TRY(QN_OPTS_READ(qn_batch_opts, &o, opts, err));
    QN_TRY(check_opts(&o, engine, err));
    qn_runner_opts runner = {.engine = engine,
                             .context = o.context,
                             .rows = qn_min(o.chunk, o.rows * o.context),
                             .trace = o.trace,
                             .trace_arg = o.trace_arg};
    int64_t bytes;
    QN_TRY(fit(&o.rows, &runner, &o, err));
    runner.segs = runner.n_seqs;
    runner.outs = o.rows + QN_MAX_DRAFT; // one row may draft while all others have a token each
    if (runner.outs < MIN_OUTS) runner.outs = MIN_OUTS;
    QN_TRY(qn_memory_fit_cards(&runner, err));
    QN_TRY(qn_budget_measure(&bytes, &runner, err));
    qn_session like = {.engine = engine,
                       .adapter = qn_engine_adapter_usual(engine),
                       .keeps = o.kept >= 0,
                       .stop = o.stop};
    qn_shared *shared = NULL;
    QN_TRY(qn_shared_open(&shared, &like, &runner, err));
    like.shared = shared;
    qn_batch *b = NULL;
    const qn_status status = qn_batch_open(&b, &like, o.rows, err);
    qn_shared_leave(shared);
    if (status) return status;
    b->prompt_rows = o.prompt_rows;
    const qn_state_counts counts = qn_state_get_counts(qn_runner_state(shared->runner));
    b->counts.pages_all = counts.pages_all;
    b->counts.slots_all = counts.slots_all;
    b->counts.rows_all = o.rows;
    b->counts.bytes_all = bytes;
    *out = b;
    return QN_OK;
}

void qn_batch_destroy(qn_batch *b) {
    if (!b) return;
    qn_batch_drop_steps(b);
    while (b->all) {
        qn_batch_row *row = b->all;
        b->all = row->after;
        qn_batch_row_destroy(row);
    }
    qn_shared_leave(b->shared);
    pthread_cond_destroy(&b->changed);
    pthread_cond_destroy(&b->callback_ended);
    pthread_mutex_destroy(&b->lock);
    qn_free(b->gens);
    qn_free(b);
}

// --- rows ----------------------------------------------------------------------------------------

// False if the row was removed: then it is not called. Otherwise its removal waits for the end.
static bool begin_call(qn_batch_row *row) {
    qn_batch *b = row->batch;
    pthread_mutex_lock(&b->lock);
    const bool is_removed = atomic_load(&row->is_removed);
    if (!is_removed) b->in_callback = row->id;
    pthread_mutex_unlock(&b->lock);
    return !is_removed;
}

// False if the row was removed meanwhile.
static bool end_call(qn_batch_row *row) {
    qn_batch *b = row->batch;
    pthread_mutex_lock(&b->lock);
    b->in_callback = 0;
    pthread_cond_broadcast(&b->callback_ended);
    pthread_mutex_unlock(&b->lock);
    return !atomic_load(&row->is_removed);
}

// The callbacks of a row that may be removed.
static bool call_back(void *arg, const qn_event *event) {
    qn_batch_row *row = arg;
    if (!begin_call(row)) return false;
    const bool goes_on = row->fn(row->arg, event);
    return end_call(row) && goes_on;
}

static bool call_logits(void *arg, const qn_next_logits *next) {
    qn_batch_row *row = arg;
    if (!begin_call(row)) return false;
    const bool goes_on = row->logits_fn(row->logits_arg, next);
    return end_call(row) && goes_on;
}

static int32_t call_draft(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    qn_batch_row *row = arg;
    if (!begin_call(row)) return 0;
    const int32_t drafted = row->draft_fn(row->draft_arg, to, max, tokens, n);
    return end_call(row) ? drafted : 0;
}

static bool call_progress(void *arg, int64_t done, int64_t total) {
    qn_batch_row *row = arg;
    if (!begin_call(row)) return false;
    const bool goes_on = row->progress(row->progress_arg, done, total);
    return end_call(row) && goes_on;
}

static void set_callbacks(qn_batch_row *row, qn_generate_opts *opts) {
    row->logits_fn = opts->logits_fn;
    row->logits_arg = opts->logits_arg;
    row->draft_fn = opts->draft_fn;
    row->draft_arg = opts->draft_arg;
    if (opts->logits_fn) opts->logits_fn = call_logits;
    if (opts->draft_fn) opts->draft_fn = call_draft;
    opts->logits_arg = opts->draft_arg = row;
}

// Tokens to reserve room for at first: those of an answer of usual length.
static size_t first_room(const qn_session *like, size_t n, int64_t max_tokens) {
    enum { USUAL = 1024 };
    const size_t answer = max_tokens > 0 && max_tokens < USUAL ? (size_t)max_tokens : USUAL;
    const size_t room = n + answer + QN_MAX_DRAFT;
    return room < (size_t)like->context ? room : (size_t)like->context;
}

static qn_status init_session(qn_batch_row *row, const qn_row_want *want,
                              const qn_generate_opts *opts, qn_err *err) {
    const qn_batch *b = row->batch;
    if (want->session) {
        row->session = want->session;
        row->is_borrowed = true;
        return QN_OK;
    }
    const size_t room = first_room(&b->like, want->n, opts->max_tokens);
    QN_TRY(qn_session_prepare(&row->session, &b->like, b->shared, room, err));
    int32_t adapter;
    QN_TRY(qn_engine_adapter(&adapter, b->like.engine, want->opts->adapter, b->like.adapter, err));
    qn_session_choose_adapter(row->session, adapter);
    if (want->opts->flags & QN_ROW_UNCACHED) row->session->keeps = false;
    qn_session_set_tokens(row->session, 0, want->ids, want->n);
    if (!qn_media_is_plain(want->media)) {
        QN_TRY(qn_media_reserve(&row->session->media, want->media->n, err));
        qn_media_copy(&row->session->media, want->media);
        qn_session_set_keys(row->session);
    }
    return qn_session_mark(row->session, want->opts->mark, err);
}

static qn_status init_row(qn_batch_row *row, const qn_row_want *want, qn_err *err) {
    qn_generate_opts opts;
    qn_sample_opts sample;
    QN_TRY(QN_OPTS_READ(qn_generate_opts, &opts, want->opts->generate, err));
    QN_TRY(QN_OPTS_READ(qn_sample_opts, &sample, opts.sample, err));
    QN_TRY(init_session(row, want, &opts, err));
    if (opts.draft && !row->is_borrowed) {
        const qn_session *draft = opts.draft;
        QN_TRY(qn_session_need_plans(draft, err));
        QN_TRY(qn_session_prepare(&row->draft, draft, draft->shared,
                                  first_room(draft, want->n, opts.max_tokens), err));
        opts.draft = row->draft;
    }
    sample.completion += want->completion;
    opts.sample = &sample;
    opts.prompt_logprobs &= want->completion == 0;
    set_callbacks(row, &opts);
    QN_TRY(qn_generation_create(&row->generation, row->session, &opts, err));
    row->generation->to =
        (qn_listener){.fn = want->fn ? call_back : NULL, .arg = row, .row = want->row};
    if (!want->opts->progress || want->completion > 0) return QN_OK;
    row->progress = want->opts->progress;
    row->progress_arg = want->opts->progress_arg;
    row->generation->progress = call_progress;
    row->generation->progress_arg = row;
    return QN_OK;
}

qn_status qn_batch_row_create(qn_batch_row **out, qn_batch *batch, const qn_row_want *want,
                              qn_err *err) {
    qn_batch_row *row = qn_alloc(1, sizeof *row);
    if (!row) return QN_NOMEM(err, "row");
    row->batch = batch;
    row->fn = want->fn;
    row->arg = want->arg;
    const qn_status status = init_row(row, want, err);
    if (status)
        qn_batch_row_destroy(row);
    else
        *out = row;
    return status;
}

// One user of a prompt fewer; the last one releases it.
static void leave_prompt(qn_batch_row *row) {
    qn_batch_prompt *prompt = row->prompt;
    if (!prompt) return;
    row->prompt = NULL;
    prompt->n_waiting -= !row->has_begun;
    if (prompt->prefiller == row) prompt->prefiller = NULL;
    if (prompt->n_waiting == 0) { // nobody needs it any more
        qn_session_destroy(prompt->prefilled);
        prompt->prefilled = NULL;
    }
    if (--prompt->n_rows == 0) qn_free(prompt);
}

void qn_batch_row_destroy(qn_batch_row *row) {
    if (!row) return;
    leave_prompt(row);
    qn_generation_destroy(row->generation);
    qn_session_destroy(row->draft);
    if (!row->is_borrowed) qn_session_destroy(row->session);
    qn_free(row);
}

static void destroy_all(qn_batch_row *rows) {
    while (rows) {
        qn_batch_row *next = rows->next;
        qn_batch_row_destroy(rows);
        rows = next;
    }
}

// On the batch's clock; 0: none, or too late to be represented.
static int64_t deadline_of(const qn_batch *b, int64_t ms) {
    int64_t after;
    if (ms == 0 || !qn_i64_mul(&after, ms, NS_PER_MS)) return 0;
    return qn_i64_add(&after, after, b->clock()) ? after : 0;
}

static qn_status create_rows(qn_batch_row **out, qn_batch *batch, const qn_row_want *want,
                             uint32_t n, qn_err *err) {
    qn_batch_prompt *prompt = NULL;
    if (n > 1 && !(prompt = qn_alloc(1, sizeof *prompt))) return QN_NOMEM(err, "row");
    qn_batch_row *rows = NULL, **end = &rows;
    for (uint32_t i = 0; i < n; i++) {
        qn_row_want one = *want;
        one.completion = i;
        one.row = want->row + i;
        const qn_status status = qn_batch_row_create(end, batch, &one, err);
        if (status) {
            if (!rows) qn_free(prompt);
            destroy_all(rows);
            return status;
        }
        (*end)->prompt = prompt;
        (*end)->deadline = want->deadline;
        if (prompt) prompt->n_rows = prompt->n_waiting = i + 1;
        end = &(*end)->next;
    }
    *out = rows;
    return QN_OK;
}

qn_status qn_batch_rows_create(qn_batch_row **out, qn_batch *batch, const qn_row_want *want,
                               qn_err *err) {
    const uint32_t n = want->opts->completions ? want->opts->completions : 1;
    if (n > QN_MAX_COMPLETIONS)
        return QN_FAIL(err, ARGUMENT, "%u completions of a prompt, at most %d", n,
                       QN_MAX_COMPLETIONS);
    if (want->opts->deadline_ms < 0)
        return QN_FAIL(err, ARGUMENT, "a deadline of %lld ms", (long long)want->opts->deadline_ms);
    if (want->opts->flags & ~(uint64_t)QN_ROW_UNCACHED)
        return QN_FAIL(err, ARGUMENT, "flags %#llx of a row, want %#x at most",
                       (unsigned long long)want->opts->flags, (unsigned)QN_ROW_UNCACHED);
    const qn_engine *engine = batch->like.engine;
    qn_generate_opts opts;
    QN_TRY(QN_OPTS_READ(qn_generate_opts, &opts, want->opts->generate, err));
    qn_media media = {0};
    qn_row_want all = *want;
    all.media = &media;
    all.deadline = deadline_of(batch, want->opts->deadline_ms);
    qn_until until = {.stop = opts.stop,
                      .also = batch->like.stop,
                      .deadline = all.deadline,
                      .clock = batch->clock};
    QN_TRY(qn_engine_check_ids(engine, want->ids, want->n, batch->like.context, err));
    QN_TRY(qn_media_init_row(&media, engine, want->ids, want->n, want->opts, &until, err));
    const qn_status status = create_rows(out, batch, &all, n, err);
    qn_media_deinit(&media);
    return status;
}

uint64_t qn_batch_push(qn_batch *b, qn_batch_row *rows) {
    pthread_mutex_lock(&b->lock);
    const uint64_t first = b->last_id + 1;
    for (qn_batch_row *row = rows; row; row = row->next) {
        row->id = ++b->last_id;
        if (!row->result)
            row->generation->to.id = row->id; // else the caller knows it by its result
        row->before = NULL;
        row->after = b->all;
        if (b->all) b->all->before = row;
        b->all = row;
        b->n_rows++;
        *b->incoming_end = row;
        b->incoming_end = &row->next;
    }
    b->counts.added = (int64_t)b->last_id;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return first;
}

qn_status qn_batch_add(uint64_t *id, qn_batch *batch, const int32_t *ids, size_t n,
                       const qn_row_opts *opts, qn_event_fn *fn, void *arg, qn_err *err) {
    QN_NEED(batch, err);
    if (n) QN_NEED(ids, err);
    qn_row_opts o;
    QN_TRY(QN_OPTS_READ(qn_row_opts, &o, opts, err));
    const qn_row_want want = {.ids = ids, .n = n, .opts = &o, .fn = fn, .arg = arg};
    qn_batch_row *rows;
    QN_TRY(qn_batch_rows_create(&rows, batch, &want, err));
    const uint64_t first = qn_batch_push(batch, rows);
    if (id) *id = first;
    return QN_OK;
}

bool qn_batch_remove(qn_batch *b, uint64_t id) {
    if (id == 0) return false; // no row has it; in_callback is 0 between callbacks
    pthread_mutex_lock(&b->lock);
    qn_batch_row *row = b->all;
    while (row && row->id != id) row = row->after;
    const bool is_there = row && !atomic_exchange(&row->is_removed, true);
    const bool is_ours = b->is_stepping && pthread_equal(b->stepper, pthread_self());
    while (!is_ours && b->in_callback == id) pthread_cond_wait(&b->callback_ended, &b->lock);
    pthread_mutex_unlock(&b->lock);
    return is_there;
}

// --- steps ---------------------------------------------------------------------------------------

static bool begin_step(qn_batch *b) {
    pthread_mutex_lock(&b->lock);
    const bool is_free = !b->is_stepping;
    if (is_free) {
        b->is_stepping = true;
        b->stepper = pthread_self();
        qn_batch_row **end = &b->queue;
        while (*end) end = &(*end)->next;
        *end = b->incoming; // they have the highest ids
        b->incoming = NULL;
        b->incoming_end = &b->incoming;
    }
    pthread_mutex_unlock(&b->lock);
    return is_free;
}

static void end_step(size_t *n_rows, qn_batch *b) {
    qn_batch_counts c = {.rows = b->n_active,
                         .reused = b->n_reused,
                         .ended = b->n_ended,
                         .failed = b->n_failed,
                         .preemptions = b->n_preemptions};
    if (b->shared) {
        const qn_state_counts state = qn_state_get_counts(qn_runner_state(b->shared->runner));
        const qn_session_counts steps = qn_runner_counts(b->shared->runner);
        c.pages = state.pages_used - state.pages_kept;
        c.pages_all = state.pages_all;
        c.slots = state.slots_used - state.slots_kept;
        c.slots_all = state.slots_all;
        c.kept_bytes = state.kept_bytes;
        c.hits = state.hits;
        c.evictions = state.evictions;
        c.steps = steps.steps;
        c.tokens = steps.rows;
    }
    pthread_mutex_lock(&b->lock);
    c.added = b->counts.added;
    c.rows_all = b->counts.rows_all;
    c.bytes_all = b->counts.bytes_all;
    b->counts = c;
    b->is_stepping = false;
    if (n_rows) *n_rows = b->n_rows;
    pthread_mutex_unlock(&b->lock);
}

qn_status qn_batch_step(size_t *n_rows, qn_batch *batch, qn_err *err) {
    QN_NEED(batch, err);
    if (!begin_step(batch)) return QN_FAIL(err, STATE, "a step inside a step of the same batch");
    size_t n;
    const qn_status status = qn_batch_run(batch, err);
    end_step(&n, batch);
    if (!status && n_rows) *n_rows = n;
    return status;
}

bool qn_batch_wait(qn_batch *b, int64_t timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms > 0) {
        until.tv_sec += (time_t)(timeout_ms / 1000);
        until.tv_nsec += (long)(timeout_ms % 1000) * NS_PER_MS;
        until.tv_sec += until.tv_nsec / NS_PER_S;
        until.tv_nsec %= NS_PER_S;
    }
    bool goes_on = true;
    pthread_mutex_lock(&b->lock);
    while (goes_on && b->n_rows == 0 && !b->is_woken)
        goes_on = (timeout_ms < 0 ? pthread_cond_wait(&b->changed, &b->lock)
                                  : pthread_cond_timedwait(&b->changed, &b->lock, &until)) == 0;
    b->is_woken = false;
    const bool has_rows = b->n_rows > 0;
    pthread_mutex_unlock(&b->lock);
    return has_rows;
}

void qn_batch_wake(qn_batch *b) {
    pthread_mutex_lock(&b->lock);
    b->is_woken = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

qn_status qn_batch_get_counts(qn_batch_counts *out, qn_batch *batch, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(batch, err);
    QN_TRY(QN_RESULT_CHECK(qn_batch_counts, out, err));
    pthread_mutex_lock(&batch->lock);
    qn_batch_counts counts = batch->counts;
    const int64_t others = (int64_t)batch->n_rows - counts.rows; // rows may end meanwhile
    counts.queued = others > 0 ? others : 0;
    pthread_mutex_unlock(&batch->lock);
    QN_RESULT_WRITE(qn_batch_counts, out, &counts);
    return QN_OK;
}
