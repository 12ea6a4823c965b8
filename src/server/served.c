#include "server/served.h"

#include "core/mem.h"
#include "core/thread.h"
#include "server/model_facts.h"
#include "server/job.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    RETRY_MS = 100,    // after a step that failed
    MAX_FAILURES = 20, // steps that fail one after the other, before every answer is given up
};

// --- the step thread -----------------------------------------------------------------------------

static void release_jobs(qn_job *jobs) {
    while (jobs) {
        qn_job *next = qn_job_next(jobs);
        qn_job_destroy(jobs);
        jobs = next;
    }
}

// Rows are out of the batch at the latest after the step that follows the one in which they ended;
// an empty batch has none.
static void release_ended(qn_served *m, bool is_empty) {
    pthread_mutex_lock(&m->lock);
    qn_job *older = m->older, *ended = is_empty ? m->ended : NULL;
    m->older = is_empty ? NULL : m->ended;
    m->ended = NULL;
    pthread_mutex_unlock(&m->lock);
    release_jobs(older);
    release_jobs(ended);
}

static bool is_ending(qn_served *m) {
    pthread_mutex_lock(&m->lock);
    const bool is_ending = m->is_ending;
    pthread_mutex_unlock(&m->lock);
    return is_ending;
}

// A row that nobody waits for: whether steps succeed again.
static void add_probe(qn_served *m) {
    static const int32_t id = 0;
    const qn_generate_opts one = QN_INIT(qn_generate_opts, .max_tokens = 1);
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &one, .flags = QN_ROW_UNCACHED);
    qn_err err;
    if (qn_batch_add(NULL, m->batch, &id, 1, &row, NULL, NULL, &err))
        qn_logger_say(&m->server->logger, "error", "a step cannot be tried: %s", err.message);
}

// Whether the model computes nothing any more. One that other processes share ends the server:
// they have to be started together.
static bool check_engine(qn_served *m) {
    qn_err why;
    if (!qn_engine_check(m->engine, &why)) return false;
    if (m->info.n_ranks > 1) qn_server_end(m->server, &why);
    return true;
}

// A step has failed: it is tried again, and after a while all answers of this model are given up,
// which the next step does, whatever comes of it.
static void note_failure(qn_served *m, int *n_failures, const qn_err *err) {
    static const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
    const bool is_final = check_engine(m);
    if (!atomic_load(&m->server->has_end)) // which is told once, at the end
        qn_logger_say(&m->server->logger, "error", "a step failed: %s", err->message);
    if (++*n_failures >= MAX_FAILURES || is_final) {
        atomic_store(&m->is_failing, true);
        qn_stop_flag_set(m->give_up);
    } else {
        nanosleep(&pause, NULL);
    }
}

// A step has succeeded. One that gave up answers shows nothing: a further failure ends those that
// have come since at once.
static void note_success(qn_served *m, int *n_failures) {
    if (qn_stop_flag_is_set(m->give_up)) {
        qn_stop_flag_clear(m->give_up);
        *n_failures = MAX_FAILURES - 1;
    } else {
        *n_failures = 0;
        atomic_store(&m->is_failing, false);
    }
}

static void count_step(qn_served *m) {
    pthread_mutex_lock(&m->lock);
    m->n_steps++;
    pthread_cond_broadcast(&m->stepped);
    pthread_mutex_unlock(&m->lock);
}

static void *step(void *arg) {
    qn_served *m = arg;
    int n_failures = 0;
    while (!is_ending(m)) {
        size_t n = 0;
        qn_err err;
        if (!qn_batch_wait(m->batch, 1000)) {
            release_ended(m, true);
            (void)check_engine(m);
            if (atomic_load(&m->is_failing)) add_probe(m);
            continue;
        }
        const qn_status status = qn_batch_step(&n, m->batch, &err);
        count_step(m);
        if (status) {
            note_failure(m, &n_failures, &err);
        } else {
            note_success(m, &n_failures);
            release_ended(m, n == 0);
        }
    }
    release_ended(m, true);
    release_ended(m, true);
    return NULL;
}

void qn_served_bury(qn_served *m, qn_job *job) {
    pthread_mutex_lock(&m->lock);
    qn_job_set_next(job, m->ended);
    m->ended = job;
    pthread_mutex_unlock(&m->lock);
    qn_batch_wake(m->batch);
}

// --- opening -------------------------------------------------------------------------------------

// Whether the model has eyes: a black picture of 32 x 32 pixels is measured. That loads the vision
// tower, so that its memory is taken before the first request, not with the first image.
static qn_status look_at_vision(qn_served *m, qn_err *err) {
    static const char picture[] =
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQAAAABbAUdZAAAADElEQVR42mNg"
        "GNwAAACgAAGO+7G0AAAAAElFTkSuQmCC";
    qn_image *image = NULL;
    int64_t rows, columns;
    QN_TRY(qn_image_create_url(&image, picture, sizeof picture - 1, NULL, err));
    const qn_status status = qn_engine_measure_image(&rows, &columns, m->engine, image, err);
    m->has_vision = status == QN_OK;
    qn_image_destroy(image);
    const bool has_none = status == QN_STATE || status == QN_UNSUPPORTED;
    return has_none ? QN_OK : status;
}

static qn_status open_draft(qn_served *m, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    if (!o->draft) return QN_OK;
    QN_TRY(o->open(o->open_arg, &m->draft_engine, NULL, o->draft, err));
    const qn_session_opts session = QN_INIT(qn_session_opts, .shrink = true);
    return qn_session_create(&m->draft, m->draft_engine, &session, err);
}

static qn_status open_batch(qn_served *m, const char *path, int64_t state_bytes, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    m->context = m->info.context;
    if (o->context > m->context)
        qn_logger_say(&m->server->logger, "warning",
                      "-c %lld is more than the context of the model, which is %lld: %s",
                      (long long)o->context, (long long)m->context, path);
    if (o->context && o->context < m->context) m->context = o->context;
    const qn_batch_opts batch =
        QN_INIT(qn_batch_opts, .context = m->context, .rows = o->parallel, .chunk = o->chunk,
                .prompt_rows = QN_PROMPT_ROWS_AUTO, .bytes = state_bytes,
                .kept = o->no_prefix_cache ? -1 : 0, .stop = m->give_up);
    return qn_batch_create(&m->batch, m->engine, &batch, err);
}

// Whether drafts can be for this model, by a row that drafts, before there are others.
static qn_status check_draft(qn_served *m, qn_err *err) {
    static const int32_t id = 0;
    const qn_generate_opts drafts = QN_INIT(qn_generate_opts, .max_tokens = 1, .draft = m->draft);
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &drafts, .flags = QN_ROW_UNCACHED);
    uint64_t added;
    qn_err why;
    if (!m->draft) return QN_OK;
    const qn_status status = qn_batch_add(&added, m->batch, &id, 1, &row, NULL, NULL, &why);
    if (!status) (void)qn_batch_remove(m->batch, added);
    if (status == QN_ARGUMENT)
        return QN_FAIL(err, STATE, "--draft: %.160s " QN_DRAFT_MISFIT "%.240s",
                       m->server->opts.draft, why.message);
    if (status && err) *err = why;
    return status;
}

static qn_status fill(qn_served *m, const char *path, int64_t state_bytes, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    char why[256] = "";
    m->info = QN_INIT(qn_engine_info);
    m->sample = QN_INIT(qn_sample_opts);
    QN_TRY(qn_stop_flag_create(&m->give_up, err));
    QN_TRY(o->open(o->open_arg, &m->engine, &m->sample, path, err));
    m->tokenizer = qn_engine_tokenizer(m->engine);
    if (!m->tokenizer) return QN_FAIL(err, UNSUPPORTED, "%s: the model has no tokenizer", path);
    QN_TRY(qn_engine_get_info(&m->info, m->engine, err));
    QN_TRY(qn_template_choose(&m->template, why, sizeof why, m->server, m->engine, err));
    if (!m->template)
        qn_logger_say(&m->server->logger, "warning", "no chat template, so no chats: %s", why);
    QN_TRY(qn_template_look(&m->has_thinking, &m->has_tools, m->template, m->tokenizer, err));
    QN_TRY(look_at_vision(m, err));
    QN_TRY(open_draft(m, err));
    QN_TRY(open_batch(m, path, state_bytes, err));
    QN_TRY(check_draft(m, err));
    m->is_running = qn_thread_start(&m->thread, step, m);
    return m->is_running ? QN_OK : QN_NOMEM(err, "a thread");
}

qn_status qn_served_open(qn_served **out, qn_server *server, const char *path, int64_t state_bytes,
                         qn_err *err) {
    qn_served *m = qn_alloc(1, sizeof *m);
    if (!m || pthread_mutex_init(&m->lock, NULL) != 0) {
        qn_free(m);
        return QN_NOMEM(err, "a model");
    }
    if (pthread_mutex_init(&m->like_lock, NULL) != 0 || pthread_cond_init(&m->stepped, NULL) != 0) {
        pthread_mutex_destroy(&m->lock);
        qn_free(m);
        return QN_NOMEM(err, "a model");
    }
    m->server = server;
    const qn_status status = fill(m, path, state_bytes, err);
    if (status)
        qn_served_close(m);
    else
        *out = m;
    return status;
}

static void close_engine(const qn_served *m, qn_engine *engine) {
    const qn_server_opts *o = &m->server->opts;
    if (engine && o->close)
        o->close(o->open_arg, engine);
    else
        qn_engine_close(engine);
}

void qn_served_close(qn_served *m) {
    if (!m) return;
    if (m->is_running) {
        pthread_mutex_lock(&m->lock);
        m->is_ending = true;
        pthread_mutex_unlock(&m->lock);
        qn_batch_wake(m->batch);
        pthread_join(m->thread, NULL);
    }
    if (m->has_embedder) qn_workers_deinit(&m->embedder);
    qn_batch_destroy(m->batch);
    qn_session_destroy(m->draft);
    qn_grammar_destroy(m->like);
    qn_template_destroy(m->template);
    close_engine(m, m->draft_engine);
    close_engine(m, m->engine);
    qn_stop_flag_destroy(m->give_up);
    pthread_cond_destroy(&m->stepped);
    pthread_mutex_destroy(&m->like_lock);
    pthread_mutex_destroy(&m->lock);
    qn_free(m);
}

int64_t qn_served_rows(qn_served *m) {
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    return qn_batch_get_counts(&counts, m->batch, NULL) ? 0 : counts.rows_all;
}

// --- embeddings ----------------------------------------------------------------------------------

bool qn_served_embed(qn_served *m, void (*fn)(qn_exchange *ex), qn_exchange *ex) {
    enum { MAX_WAITING = 256 };
    pthread_mutex_lock(&m->lock);
    if (!m->has_embedder) m->has_embedder = !qn_workers_init(&m->embedder, 1, MAX_WAITING, NULL);
    const bool is_there = m->has_embedder;
    pthread_mutex_unlock(&m->lock);
    return is_there && qn_workers_add(&m->embedder, fn, ex);
}

void qn_served_let_step(qn_served *m) {
    enum { STEPS = 2 }; // the first one may have begun before
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    pthread_mutex_lock(&m->lock);
    const int64_t from = m->n_steps;
    while (m->n_steps - from < STEPS) {
        if (qn_batch_get_counts(&counts, m->batch, NULL) || counts.rows == 0) break;
        pthread_cond_wait(&m->stepped, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
}

// --- grammars ------------------------------------------------------------------------------------

qn_status qn_served_like(const qn_grammar **out, qn_served *m, qn_err *err) {
    pthread_mutex_lock(&m->like_lock);
    const qn_status status =
        m->like ? QN_OK
                : qn_grammar_create(&m->like, m->tokenizer, QN_GRAMMAR_JSON, "", 0, NULL, err);
    if (!status) *out = m->like;
    pthread_mutex_unlock(&m->like_lock);
    return status;
}

qn_status qn_served_make(qn_served *m, qn_served_make_fn *make, void *arg, qn_err *err) {
    enum { LIGHT_STEPS = 1 << 20, MAX_HEAVY = 2 };
    qn_status status = make(arg, LIGHT_STEPS, err);
    if (status != QN_LIMIT) return status;
    // Hostile ones take seconds: they must not have all workers.
    if (atomic_fetch_add(&m->server->n_heavy, 1) < MAX_HEAVY)
        status = make(arg, 0, err);
    else
        status =
            QN_FAIL(err, STOPPED, "%d large grammars are being made already; try again", MAX_HEAVY);
    atomic_fetch_sub(&m->server->n_heavy, 1);
    return status;
}

// What a grammar is made of.
typedef struct source {
    qn_grammar *out;
    const qn_grammar *like;
    qn_grammar_kind kind;
    const char *text;
    size_t size;
    qn_grammar_opts opts;
} source;

// A qn_served_make_fn.
static qn_status make_grammar(void *arg, int64_t max_steps, qn_err *err) {
    source *s = arg;
    s->opts.max_steps = max_steps;
    return qn_grammar_create_like(&s->out, s->like, s->kind, s->text, s->size, &s->opts, err);
}

qn_status qn_served_grammar(qn_grammar **out, qn_served *m, qn_grammar_kind kind, const char *text,
                            size_t size, const qn_grammar_opts *opts, qn_err *err) {
    source s = {.kind = kind, .text = text, .size = size, .opts = *opts};
    s.opts.max_token_steps = QN_SERVED_TOKEN_STEPS;
    QN_TRY(qn_served_like(&s.like, m, err));
    QN_TRY(qn_served_make(m, make_grammar, &s, err));
    *out = s.out;
    return QN_OK;
}
