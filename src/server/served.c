#include "server/served.h"

#include "core/mem.h"
#include "core/thread.h"
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

static void *step(void *arg) {
    qn_served *m = arg;
    int n_failures = 0;
    while (!is_ending(m)) {
        size_t n = 0;
        qn_err err;
        if (!qn_batch_wait(m->batch, 1000)) {
            release_ended(m, true);
            continue;
        }
        const qn_status status = qn_batch_step(&n, m->batch, &err);
        if (!status) {
            n_failures = 0;
            release_ended(m, n == 0);
            continue;
        }
        qn_logger_say(&m->server->logger, "error", "a step failed: %s", err.message);
        if (++n_failures == MAX_FAILURES) qn_links_drop(&m->server->links);
        const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
        nanosleep(&pause, NULL);
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

static qn_status open_template(qn_served *m, qn_err *err) {
    const char *other = m->server->opts.template;
    if (other) return qn_template_open(&m->template, other, NULL, err);
    qn_err why;
    const qn_status status = qn_engine_template(&m->template, m->engine, NULL, &why);
    if (status == QN_MEMORY) return QN_NOMEM(err, "a chat template");
    if (!status) return QN_OK;
    snprintf(m->no_template, sizeof m->no_template, "%.255s", why.message);
    const char *name = qn_template_find_builtin(m->tokenizer);
    return name ? qn_template_create_builtin(&m->template, name, err) : QN_OK;
}

// Whether what the template knows shows in a small conversation.
static qn_status look_at_template(qn_served *m, qn_err *err) {
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"look_here\", "
                                "\"description\": \"\", \"parameters\": {\"type\": \"object\", "
                                "\"properties\": {}}}}]";
    qn_chat *chat = NULL;
    char *text = NULL;
    qn_reasoning_switch found = QN_SWITCH_NONE;
    if (!m->template) return QN_OK;
    QN_TRY(qn_chat_create(&chat, err));
    const qn_message hello =
        QN_INIT(qn_message, .role = "user", .text = "Hello", .text_size = strlen("Hello"));
    qn_status status = qn_chat_add(chat, &hello, err);
    if (!status) status = qn_chat_find_switch(&found, chat, m->template, m->tokenizer, NULL, err);
    if (!status) m->has_thinking = found == QN_SWITCH_FOUND;
    if (!status) status = qn_chat_set_tools(chat, tools, sizeof tools - 1, NULL, err);
    if (!status && !qn_chat_render(&text, NULL, chat, m->template, m->tokenizer, NULL, NULL))
        m->has_tools = strstr(text, "look_here") != NULL;
    qn_free(text);
    qn_chat_destroy(chat);
    return status == QN_MEMORY ? status : QN_OK; // a template that refuses this knows neither
}

static qn_status open_draft(qn_served *m, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    if (!o->draft) return QN_OK;
    QN_TRY(o->open(o->open_arg, &m->draft_engine, NULL, o->draft, err));
    const qn_session_opts session = QN_INIT(qn_session_opts, .shrink = true);
    return qn_session_create(&m->draft, m->draft_engine, &session, err);
}

static qn_status open_batch(qn_served *m, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    m->context = m->info.context;
    if (o->context && o->context < m->context) m->context = o->context;
    const qn_batch_opts batch = QN_INIT(qn_batch_opts, .context = m->context, .rows = o->parallel,
                                        .chunk = o->chunk, .bytes = o->memory);
    return qn_batch_create(&m->batch, m->engine, &batch, err);
}

static qn_status fill(qn_served *m, const char *path, qn_err *err) {
    const qn_server_opts *o = &m->server->opts;
    m->info = QN_INIT(qn_engine_info);
    m->sample = QN_INIT(qn_sample_opts);
    QN_TRY(o->open(o->open_arg, &m->engine, &m->sample, path, err));
    m->tokenizer = qn_engine_tokenizer(m->engine);
    if (!m->tokenizer) return QN_FAIL(err, UNSUPPORTED, "%s: the model has no tokenizer", path);
    QN_TRY(qn_engine_get_info(&m->info, m->engine, err));
    QN_TRY(open_template(m, err));
    QN_TRY(look_at_template(m, err));
    QN_TRY(open_draft(m, err));
    QN_TRY(open_batch(m, err));
    qn_memory memory = QN_INIT(qn_memory);
    QN_TRY(qn_engine_memory(&memory, m->engine, m->context, o->chunk, err));
    m->bytes = memory.total;
    m->is_running = qn_thread_start(&m->thread, step, m);
    return m->is_running ? QN_OK : QN_NOMEM(err, "a thread");
}

qn_status qn_served_open(qn_served **out, qn_server *server, const char *path, qn_err *err) {
    qn_served *m = qn_alloc(1, sizeof *m);
    if (!m || pthread_mutex_init(&m->lock, NULL) != 0) {
        qn_free(m);
        return QN_NOMEM(err, "a model");
    }
    m->server = server;
    const qn_status status = fill(m, path, err);
    if (status)
        qn_served_close(m);
    else
        *out = m;
    return status;
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
    qn_batch_destroy(m->batch);
    qn_session_destroy(m->draft);
    qn_grammar_destroy(m->like);
    qn_template_destroy(m->template);
    qn_engine_close(m->draft_engine);
    qn_engine_close(m->engine);
    pthread_mutex_destroy(&m->lock);
    qn_free(m);
}

// --- grammars ------------------------------------------------------------------------------------

qn_status qn_served_like(const qn_grammar **out, qn_served *m, qn_err *err) {
    pthread_mutex_lock(&m->lock);
    const qn_status status =
        m->like ? QN_OK
                : qn_grammar_create(&m->like, m->tokenizer, QN_GRAMMAR_JSON, "", 0, NULL, err);
    if (!status) *out = m->like;
    pthread_mutex_unlock(&m->lock);
    return status;
}

qn_status qn_served_grammar(qn_grammar **out, qn_served *m, qn_grammar_kind kind, const char *text,
                            size_t size, const qn_grammar_opts *opts, qn_err *err) {
    enum { LIGHT_STEPS = 1 << 20, MAX_HEAVY = 2 };
    const qn_grammar *like;
    qn_grammar_opts o = opts ? *opts : QN_INIT(qn_grammar_opts);
    QN_TRY(qn_served_like(&like, m, err));
    const int64_t allowed = o.max_steps;
    if (!allowed || allowed > LIGHT_STEPS) o.max_steps = LIGHT_STEPS;
    qn_status status = qn_grammar_create_like(out, like, kind, text, size, &o, err);
    if (status != QN_LIMIT || o.max_steps == allowed) return status;
    // Hostile ones take seconds: they must not have all workers.
    o.max_steps = allowed;
    if (atomic_fetch_add(&m->server->n_heavy, 1) < MAX_HEAVY)
        status = qn_grammar_create_like(out, like, kind, text, size, &o, err);
    else
        status =
            QN_FAIL(err, STOPPED, "%d large grammars are being made already; try again", MAX_HEAVY);
    atomic_fetch_sub(&m->server->n_heavy, 1);
    return status;
}
