#include "server/job.h"

#include "core/mem.h"
#include "server/messages.h"
#include "server/prompts.h"
#include "server/fetch.h"
#include "server/server_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

qn_job *qn_job_next(const qn_job *job) { return job->next; }
void qn_job_set_next(qn_job *job, qn_job *next) { job->next = next; }

// --- life ----------------------------------------------------------------------------------------

static void deinit_choice(qn_choice *c) {
    qn_chat_reply_destroy(c->reply);
    qn_buf_deinit(&c->text);
    qn_buf_deinit(&c->reasoning);
    for (size_t i = 0; i < c->n_calls; i++) {
        qn_free(c->calls[i].name);
        qn_buf_deinit(&c->calls[i].arguments);
    }
    qn_free(c->calls);
    qn_free(c->spans);
    qn_free(c->entries);
    qn_free(c->ids);
    qn_decoder_destroy(c->decoder);
}

// The turn is what holds the images.
static void drop_turn(qn_job *job) {
    qn_chat_turn_destroy(job->turn);
    job->turn = NULL;
    atomic_fetch_sub(&job->ex->server->n_pixels, job->n_pixels);
    job->n_pixels = 0;
}

void qn_job_destroy(qn_job *job) {
    if (!job) return;
    for (size_t i = 0; i < job->n_choices; i++) deinit_choice(&job->choices[i]);
    for (size_t i = 0; job->rows && i < job->n_rows; i++) {
        qn_free(job->rows[i].text);
        qn_free(job->rows[i].logprobs);
    }
    qn_free(job->choices);
    qn_free(job->rows);
    qn_free(job->prompts);
    qn_prompts_deinit(&job->asked);
    drop_turn(job);
    qn_job_opts_deinit(&job->opts);
    qn_ask_deinit(&job->ask);
    if (job->entry) {
        qn_job_leave_queue(job);
        atomic_fetch_sub(&job->ex->server->n_jobs, 1);
        qn_offer_leave(job->entry);
    }
    qn_exchange_leave(job->ex);
    pthread_mutex_destroy(&job->lock);
    qn_free(job);
}

void qn_job_make_id(char *to, size_t size, const char *prefix) {
    uint64_t random[2] = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random) random[0] = (uint64_t)qn_clock_ns();
    snprintf(to, size, "%s%016llx%08llx", prefix, (unsigned long long)random[0],
             (unsigned long long)(random[1] & 0xFFFFFFFF));
}

// Takes the ask, one owner of the exchange and the user of the entry.
static qn_status create(qn_job **out, qn_exchange *ex, qn_offer *entry, qn_ask *ask,
                        const qn_dialect *dialect, const char *prefix, qn_err *err) {
    qn_job *job = qn_alloc(1, sizeof *job);
    if (!job || pthread_mutex_init(&job->lock, NULL) != 0) {
        qn_free(job);
        return QN_NOMEM(err, "an answer");
    }
    atomic_fetch_add(&ex->owners, 1);
    atomic_fetch_add(&ex->server->n_jobs, 1);
    job->ex = ex;
    job->entry = entry;
    job->model = entry->served;
    job->dialect = dialect;
    job->ask = *ask;
    *ask = (qn_ask){0};
    job->id_prefix = prefix;
    qn_job_make_id(job->id, sizeof job->id, prefix);
    job->created = (int64_t)time(NULL);
    job->started = ex->started;
    job->is_stream = job->ask.stream;
    *out = job;
    return QN_OK;
}

// --- writing -------------------------------------------------------------------------------------

bool qn_job_send(qn_job *job, const qn_buf *bytes) {
    if (job->is_lost) return false;
    if (bytes->failed) { // an answer with a hole is worse than none
        qn_exchange_end(job->ex, false);
        qn_exchange_drop(job->ex);
    }
    job->is_lost = bytes->failed || !qn_exchange_write(job->ex, bytes->data, bytes->size);
    return !job->is_lost;
}

static bool send_value(qn_job *job, const char *before, const char *name, json_t *value,
                       const char *after) {
    qn_buf bytes = {0};
    if (name) qn_buf_printf(&bytes, "event: %s\n", name);
    qn_buf_text(&bytes, before);
    if (value)
        qn_json_write(&bytes, value, &qn_compact);
    else
        bytes.failed = true;
    qn_buf_text(&bytes, after);
    json_decref(value);
    const bool is_sent = qn_job_send(job, &bytes);
    qn_buf_deinit(&bytes);
    return is_sent;
}

bool qn_job_send_event(qn_job *job, const char *name, json_t *value) {
    return send_value(job, "data: ", name, value, "\n\n");
}

bool qn_job_send_line(qn_job *job, json_t *value) { return send_value(job, "", NULL, value, "\n"); }

// --- starting ------------------------------------------------------------------------------------

// Max tokens of prompt and answer: a request may want fewer than the model has.
static int64_t context_of(const qn_job *job) {
    const int64_t wanted = job->ask.num_ctx, most = job->model->context;
    return wanted > 0 && wanted < most ? wanted : most;
}

// Rows of one job that may be in the batch at a time: half of all, so that other requests begin at
// once, but enough to be computed well together.
static size_t max_rows(const qn_job *job) {
    enum { USUAL = 64, ENOUGH = 8 };
    const int64_t all = job->ex->server->opts.parallel ? job->ex->server->opts.parallel : USUAL;
    const int64_t half = (all + 1) / 2, least = all < ENOUGH ? all : ENOUGH;
    return (size_t)(half > least ? half : least);
}

static qn_status add_choices(qn_job *job, size_t n_prompts, qn_err *err) {
    job->per_prompt = (size_t)job->ask.n;
    job->n_rows = n_prompts;
    job->max_in = max_rows(job);
    job->rows = qn_alloc(n_prompts, sizeof *job->rows);
    job->choices = qn_alloc(n_prompts * job->per_prompt, sizeof *job->choices);
    if (!job->rows || !job->choices) return QN_NOMEM(err, "answers");
    job->n_choices = job->n_left = n_prompts * job->per_prompt;
    for (size_t i = 0; i < job->n_choices; i++) {
        qn_choice *c = &job->choices[i];
        *c = (qn_choice){.job = job, .index = i, .stop = -1, .stop_token = -1};
        QN_TRY(qn_chat_reply_create(&c->reply, job->turn, err));
    }
    for (size_t i = 0; i < n_prompts; i++)
        job->rows[i] = (qn_job_row){.job = job, .first = i * job->per_prompt};
    return QN_OK;
}

void qn_job_leave_queue(qn_job *job) {
    if (job->is_waiting) atomic_fetch_sub(&job->model->n_waiting, 1);
    job->is_waiting = false;
}

// Requests that wait are bounded: a client had better try again, or elsewhere.
static qn_status enter_queue(qn_job *job, qn_problem *p) {
    enum { USUAL = 256 };
    const qn_server *s = job->ex->server;
    const int64_t max = s->opts.queue ? s->opts.queue : USUAL;
    if (atomic_load(&s->n_stops)) {
        (void)QN_REFUSE(p, 503, "", "the server is stopping");
        return QN_LIMIT;
    }
    const int64_t n = atomic_fetch_add(&job->model->n_waiting, 1);
    job->is_waiting = true;
    if (n < max) return QN_OK;
    (void)QN_REFUSE(p, 503, "", "%lld requests wait already, at most %lld may", (long long)n,
                    (long long)max);
    p->retry_after = QN_RETRY_AFTER;
    return QN_LIMIT;
}

// All prompts leave room for a token, if one is wanted.
static qn_status check_lengths(const qn_job *job, size_t n, qn_problem *p) {
    const qn_prompt *prompts = job->prompts;
    const int64_t context = context_of(job), room = job->opts.generate.max_tokens >= 0;
    for (size_t i = 0; i < n; i++) {
        if ((int64_t)prompts[i].n + room > context)
            return qn_refuse_overflow(p, &(qn_overflow){job->turn ? "messages" : "prompt",
                                                        job->asked.is_list, i, prompts[i].n, false,
                                                        context, job->model});
    }
    return QN_OK;
}

// Log-probabilities that are told at once are bounded. What no max_tokens bounds is looked at while
// it comes.
static qn_status check_entries(const qn_job *job, size_t n, qn_problem *p) {
    const int64_t context = context_of(job), wanted = job->opts.generate.max_tokens;
    const uint64_t n_tokens = (uint64_t)(wanted < context ? wanted : context);
    const uint64_t n_top = (uint64_t)job->ask.n_top, n_answers = n * (uint64_t)job->ask.n;
    const bool is_dropped = job->is_stream && !job->dialect->keeps_entries;
    if (!job->ask.wants_logprobs || is_dropped || wanted <= 0) return QN_OK;
    if (n_answers * n_tokens * (1 + n_top) <= QN_MAX_KEPT) return QN_OK;
    return QN_REFUSE(p, 400, "logprobs",
                     "%llu answers of %llu tokens with %llu log-probabilities each are %llu, at "
                     "most %d are told at once",
                     (unsigned long long)n_answers, (unsigned long long)n_tokens,
                     (unsigned long long)(1 + n_top),
                     (unsigned long long)(n_answers * n_tokens * (1 + n_top)), QN_MAX_KEPT);
}

// What is left of the time that the request has, which begins with its first row; 0: no limit.
static int64_t time_left(const qn_job *job) {
    const int64_t usual = job->ex->server->opts.timeout_ms;
    int64_t ms = job->ask.timeout_ms;
    if (usual && (!ms || ms > usual)) ms = usual;
    if (!ms || !job->added) return ms;
    const int64_t left = ms - (qn_clock_ns() - job->added) / 1000000;
    return left > 1 ? left : 1;
}

static qn_status add_row(qn_job *job, size_t i, qn_problem *p) {
    const qn_prompt *prompt = &job->prompts[i];
    const int64_t left = context_of(job) - (int64_t)prompt->n;
    qn_row_opts row = *prompt->opts;
    qn_generate_opts generate = *row.generate;
    const bool is_free = generate.max_tokens == 0 || generate.max_tokens > left;
    if (job->ask.num_ctx > 0 && is_free) generate.max_tokens = left;
    row.generate = &generate;
    row.completions = (uint32_t)job->ask.n;
    row.deadline_ms = time_left(job);
    if (!job->ask.cache_prompt) row.flags |= QN_ROW_UNCACHED;
    row.progress = qn_job_take_progress;
    row.progress_arg = &job->rows[i];
    const qn_status status = qn_batch_add(NULL, job->model->batch, prompt->ids, prompt->n, &row,
                                          qn_job_take_event, &job->rows[i], &p->err);
    return status ? qn_problem_take(p, status, NULL) : QN_OK;
}

// The number of the next row in *i, if it may be added now; it is taken by that. Rows that nobody
// wants any more are not added.
static bool take_next(size_t *i, qn_job *job) {
    pthread_mutex_lock(&job->lock);
    const size_t n_after = (job->n_rows - job->n_added) * job->per_prompt;
    const bool is_over = job->is_lost || job->refusal.status || qn_stop_flag_is_set(job->ex->stop);
    const bool has_room = job->n_in == 0 || job->n_in + job->per_prompt <= job->max_in;
    const bool is_next = n_after > 0 && !is_over && has_room;
    *i = job->n_added;
    if (is_next) {
        job->n_added++;
        job->n_in += job->per_prompt;
    } else if (is_over) { // the caller has a part of n_left: it stays above 0
        for (size_t k = 0; k < n_after; k++)
            job->choices[job->n_choices - 1 - k].reason = QN_REASON_STOPPED;
        job->n_left -= n_after;
        job->n_added = job->n_rows;
    }
    pthread_mutex_unlock(&job->lock);
    return is_next;
}

void qn_job_add_rows(qn_job *job) {
    for (size_t i; take_next(&i, job);) {
        qn_problem problem = {0};
        if (!add_row(job, i, &problem)) continue;
        pthread_mutex_lock(&job->lock);
        job->refusal = problem;
        job->n_in -= job->per_prompt;
        job->n_left -= job->per_prompt;
        qn_stop_flag_set(job->ex->stop);
        pthread_mutex_unlock(&job->lock);
    }
}

// A stream begins at once, so that clients see that their request was taken.
static void begin_answer(qn_job *job) {
    qn_metric_add(&job->entry->metrics.requests, 1);
    if (!job->is_stream) return;
    qn_exchange_begin(job->ex, 200, job->dialect->stream_type, job->dialect->ping);
    job->has_begun = true;
    (void)job->dialect->begin(job);
}

// Adds the first row, whose events wait for the lock until the answer has begun, and others, which
// do not. After the first is in, a failure ends the others and is told by the last of them.
static qn_status begin_rows(qn_job *job, qn_problem *p) {
    pthread_mutex_lock(&job->lock);
    const qn_status status = add_row(job, 0, p);
    if (!status) {
        job->n_added = 1;
        job->n_in = job->per_prompt;
        job->n_left++;
        job->added = qn_clock_ns();
        begin_answer(job);
        drop_turn(job); // its pictures are large, and rows have what they need
    }
    pthread_mutex_unlock(&job->lock);
    if (status) return status;
    qn_job_add_rows(job);
    qn_job_release(job, 1);
    return QN_OK;
}

// Room for the log-probabilities of a prompt. *n counts those of the request, which are bounded: so
// is the answer that tells them.
static qn_status add_logprobs(qn_job_row *row, size_t *n, const qn_asked_prompt *asked,
                              qn_problem *p) {
    enum { MAX_WHOLE = 1 << 20, MAX_STREAM = 1 << 14 };
    const qn_job *job = row->job;
    const size_t stride = 1 + (size_t)job->ask.n_top, max = job->is_stream ? MAX_STREAM : MAX_WHOLE;
    *n += asked->n * stride;
    if (*n > max)
        return QN_REFUSE(
            p, 400, "logprobs",
            "'logprobs' with 'echo' is about %zu log-probabilities of prompts or more, "
            "at most %zu are told at once",
            *n, max);
    row->logprobs = qn_alloc(asked->n * stride, sizeof *row->logprobs);
    if (!row->logprobs) return qn_problem_take(p, QN_NOMEM(&p->err, "log-probabilities"), NULL);
    for (size_t i = 0; i < asked->n * stride; i++) row->logprobs[i].token = -1;
    row->logprobs[0].token = asked->ids[0];
    return QN_OK;
}

// What the rows of prompts without a conversation know of them.
static qn_status fill_rows(qn_job *job, qn_problem *p) {
    for (size_t i = 0; i < job->asked.n; i++) {
        qn_job_row *row = &job->rows[i];
        qn_asked_prompt *from = &job->asked.items[i];
        row->n_ids = from->n;
        row->text = from->text;
        row->text_size = from->text_size;
        from->text = NULL;
        if (job->opts.generate.prompt_logprobs)
            QN_TRY(add_logprobs(row, &job->n_kept_prompts, from, p));
    }
    return QN_OK;
}

// job->prompts are there.
static qn_status start(qn_job *job, size_t n, qn_problem *p) {
    QN_TRY(check_lengths(job, n, p));
    QN_TRY(check_entries(job, n, p));
    QN_TRY(enter_queue(job, p));
    const qn_status status = add_choices(job, n, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    for (size_t i = 0; i < job->n_choices; i++)
        job->choices[i].n_prompt = (int64_t)job->prompts[i / job->per_prompt].n;
    for (size_t i = 0; i < n; i++) atomic_fetch_add(&job->ex->n_prompt, (int64_t)job->prompts[i].n);
    QN_TRY(fill_rows(job, p));
    return begin_rows(job, p);
}

// --- conversations -------------------------------------------------------------------------------

static bool is_image(const json_t *part) {
    static const char *const types[] = {"image_url", "input_image", "image"};
    const char *type = json_string_value(json_object_get(part, "type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++) {
        if (strcmp(type, types[i]) == 0) return true;
    }
    return false;
}

// Templates of models without eyes say odd things about images.
static qn_status check_images(const qn_job *job, qn_problem *p) {
    const json_t *messages = job->ask.messages;
    for (size_t i = 0; !job->model->has_vision && i < json_array_size(messages); i++) {
        const json_t *parts = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; k < json_array_size(parts); k++) {
            if (is_image(json_array_get(parts, k)))
                return QN_REFUSE(p, 400, "messages",
                                 "message %zu, part %zu is an image; the model '%.80s' has no "
                                 "vision tower",
                                 i, k, job->entry->name);
        }
    }
    return QN_OK;
}

// A member of the conversation, by the function that reads it.
static qn_status set_member(qn_chat *chat, const json_t *value, const char *name,
                            qn_status (*set)(qn_chat *, const char *, size_t, const char *,
                                             qn_err *),
                            qn_problem *p) {
    qn_buf text = {0};
    qn_json_write(&text, value, &qn_compact);
    const qn_status status =
        text.failed ? QN_NOMEM(&p->err, name) : set(chat, text.data, text.size, name, &p->err);
    qn_buf_deinit(&text);
    return status ? qn_problem_take(p, status, name) : QN_OK;
}

static bool has_tools(const qn_ask *ask) {
    return json_array_size(ask->tools) > 0 && ask->choice != QN_TOOLS_NONE;
}

// Templates without a place for tools leave them out: the model would never know.
static qn_status check_tools(const qn_job *job, qn_problem *p) {
    if (!has_tools(&job->ask) || job->model->has_tools) return QN_OK;
    return QN_REFUSE(p, 400, "tools",
                     "the request has %zu tools, and the chat template of the model '%.80s' has no "
                     "place for tools; leave them out, use 'tool_choice' \"none\", or serve with "
                     "another template (--template)",
                     json_array_size(job->ask.tools), job->entry->name);
}

// For qn_image_opts.admit: images of all requests together are bounded.
static bool admit_image(void *arg, int64_t pixels) {
    enum { CHANNELS = 3 };
    qn_job *job = arg;
    qn_server *s = job->ex->server;
    const size_t n = (size_t)pixels * CHANNELS;
    job->is_refused = atomic_fetch_add(&s->n_pixels, n) + n > s->limits.pixels;
    if (job->is_refused)
        atomic_fetch_sub(&s->n_pixels, n);
    else
        job->n_pixels += n;
    return !job->is_refused;
}

static qn_status set_chat(qn_chat *chat, qn_job *job, qn_problem *p) {
    const qn_ask *ask = &job->ask;
    const qn_image_opts images = QN_INIT(qn_image_opts, .admit = admit_image, .admit_arg = job);
    const qn_status status = qn_chat_set_image_opts(chat, &images, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    QN_TRY(qn_fetch_images(job->ex, ask->messages, p));
    QN_TRY(set_member(chat, ask->messages, "messages", qn_chat_set_messages, p));
    if (!has_tools(ask)) return QN_OK;
    return set_member(chat, ask->tools, "tools", qn_chat_set_tools, p);
}

// A form of the text says nothing of calls that must come.
static void drop_form(qn_job *job) {
    if (has_tools(&job->ask) && job->ask.choice == QN_TOOLS_REQUIRED)
        job->opts.generate.grammar = NULL;
}

// What a turn is made of.
typedef struct turn_source {
    qn_job *job;
    const qn_chat *chat;
    qn_chat_opts opts;
    qn_status status; // of the turn
} turn_source;

// A qn_served_make_fn: of the grammar of the tools.
static qn_status create_turn(void *arg, int64_t max_steps, qn_err *err) {
    turn_source *s = arg;
    const qn_served *model = s->job->model;
    // Without leave_out one that is too long is made, so that its length can be told.
    const int64_t context = s->job->ask.leave_out ? context_of(s->job) : INT64_MAX;
    s->opts.max_grammar_steps = max_steps;
    s->status = qn_chat_turn_create(&s->job->turn, s->chat, model->template, model->engine, context,
                                    &s->opts, err);
    const bool wants_more = s->status == QN_LIMIT && *s->opts.culprit == QN_CULPRIT_TOOLS;
    return wants_more ? s->status : QN_OK;
}

// The length of the prompt, as far as it was read.
static qn_status refuse_length(const qn_job *job, qn_problem *p) {
    const int64_t context = context_of(job);
    const size_t n = job->ask.leave_out ? (size_t)context : qn_prompt_bound(context);
    return qn_refuse_overflow(
        p, &(qn_overflow){"messages", false, 0, n + 1, true, context, job->model});
}

static qn_status make_turn(qn_job *job, const qn_chat *chat, const char *kwargs, qn_problem *p) {
    const char *const fields[] = {[QN_CULPRIT_OTHER] = "messages",
                                  [QN_CULPRIT_TOOLS] = "tools",
                                  [QN_CULPRIT_TOOL_CHOICE] = "tool_choice",
                                  [QN_CULPRIT_GRAMMAR] = job->opts.form};
    const qn_ask *ask = &job->ask;
    const bool has_calls = has_tools(ask);
    const qn_grammar *like = NULL;
    qn_chat_culprit culprit = QN_CULPRIT_OTHER;
    drop_form(job);
    qn_status status = has_calls ? qn_served_like(&like, job->model, &p->err) : QN_OK;
    if (status) return qn_problem_take(p, status, "tools");
    const qn_chat_prompt_opts prompt =
        QN_INIT(qn_chat_prompt_opts, .reasoning = ask->thinks, .kwargs = kwargs,
                .no_generation_prompt = !ask->add_generation_prompt,
                .max_tokens = job->is_counted ? 0 : qn_prompt_bound(context_of(job)));
    turn_source s = {.job = job, .chat = chat};
    s.opts = QN_INIT(qn_chat_opts, .prompt = &prompt, .generate = &job->opts.generate,
                     .leave_out = ask->leave_out, .keeps_nothing = !ask->cache_prompt,
                     .stop = job->ex->stop, .tool_choice = has_calls ? ask->choice : QN_TOOLS_FREE,
                     .tool_name = ask->tool_name, .one_call = !ask->parallel_calls, .like = like,
                     .lenient_schemas = true, .max_token_steps = QN_SERVED_TOKEN_STEPS,
                     .culprit = &culprit);
    status = qn_served_make(job->model, create_turn, &s, &p->err);
    if (!status) status = s.status;
    if (status == QN_LIMIT && culprit == QN_CULPRIT_LENGTH) return refuse_length(job, p);
    if (status) (void)qn_problem_take(p, status, fields[culprit]);
    if (status == QN_STOPPED) p->retry_after = 1;
    return status;
}

// The turn; a template that rejects the messages gets them once more in a form that all take.
static qn_status make_some_turn(qn_job *job, qn_chat *chat, const char *kwargs, qn_problem *p) {
    json_t *plain = NULL;
    const qn_status first = make_turn(job, chat, kwargs, p);
    if (!first || first == QN_MEMORY || first == QN_STOPPED) return first;
    if (strcmp(p->param, "messages") != 0 || p->n_context) return first; // nothing else mends that
    qn_problem other = {0};
    qn_status status = qn_messages_relax(&plain, job->ask.messages, &other.err);
    if (status) (void)qn_problem_take(&other, status, "messages");
    if (!status && !plain) return first;
    if (!status) status = set_member(chat, plain, "messages", qn_chat_set_messages, &other);
    json_decref(plain);
    if (!status) status = make_turn(job, chat, kwargs, &other);
    if (status == QN_MEMORY) *p = other;
    return status == QN_MEMORY || !status ? status : first; // first: about what the client sent
}

// Makes job->turn of the conversation; *info is of it.
static qn_status prepare_chat(qn_chat_turn_info *info, qn_job *job, qn_problem *p) {
    qn_chat *chat = NULL;
    qn_buf kwargs = {0};
    if (!job->model->template)
        return QN_REFUSE(p, 400, "model", "the model '%.80s' has no chat template that can be used",
                         job->entry->name);
    QN_TRY(check_images(job, p));
    QN_TRY(check_tools(job, p));
    QN_TRY(qn_job_opts_init(&job->opts, &job->ask, job->model, p));
    qn_status status = qn_chat_create(&chat, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    status = set_chat(chat, job, p);
    if (!status && job->ask.kwargs) {
        qn_json_write(&kwargs, job->ask.kwargs, &qn_compact);
        if (kwargs.failed)
            status = qn_problem_take(p, QN_NOMEM(&p->err, "kwargs"), "chat_template_kwargs");
    }
    if (!status) status = make_some_turn(job, chat, kwargs.data, p);
    if (status && job->is_refused) p->retry_after = QN_RETRY_AFTER;
    qn_buf_deinit(&kwargs);
    qn_chat_destroy(chat);
    if (status) return status;
    status = qn_chat_turn_get_info(info, job->turn, &p->err);
    return status ? qn_problem_take(p, status, NULL) : QN_OK;
}

static qn_status start_chat(qn_job *job, qn_problem *p) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    QN_TRY(prepare_chat(&info, job, p));
    job->prompts = qn_alloc(1, sizeof *job->prompts);
    if (!job->prompts) return qn_problem_take(p, QN_NOMEM(&p->err, "a prompt"), NULL);
    *job->prompts = (qn_prompt){info.ids, info.n, info.row};
    return start(job, 1, p);
}

static qn_status count_chat(qn_job *job, qn_problem *p) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    job->is_counted = true;
    QN_TRY(prepare_chat(&info, job, p));
    const qn_status status = add_choices(job, 1, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    job->choices[0].n_prompt = (int64_t)info.n;
    qn_reply_json(job->ex, 200, job->dialect->whole(job));
    qn_job_destroy(job);
    return QN_OK;
}

// --- prompts -------------------------------------------------------------------------------------

static qn_status start_asked(qn_job *job, qn_problem *p) {
    const qn_prompts *asked = &job->asked;
    job->row = QN_INIT(qn_row_opts, .generate = &job->opts.generate);
    job->prompts = qn_alloc(asked->n, sizeof *job->prompts);
    if (!job->prompts) return qn_problem_take(p, QN_NOMEM(&p->err, "prompts"), NULL);
    for (size_t i = 0; i < asked->n; i++)
        job->prompts[i] = (qn_prompt){asked->items[i].ids, asked->items[i].n, &job->row};
    return start(job, asked->n, p);
}

static qn_status start_prompts(qn_job *job, qn_problem *p) {
    enum { MAX_PROMPTS = 1024, MAX_ANSWERS = 4096 };
    const qn_prompts_opts opts = {.field = "prompt",
                                  .max = MAX_PROMPTS,
                                  .special = true,
                                  .wants_text = true,
                                  .context = context_of(job),
                                  .stop = job->ex->stop};
    qn_generate_opts *g = &job->opts.generate;
    const qn_prompts *asked = &job->asked;
    QN_TRY(qn_job_opts_init(&job->opts, &job->ask, job->model, p));
    g->stop = job->ex->stop;
    g->prompt_logprobs = job->ask.echo && job->ask.wants_logprobs;
    if (job->dialect->shows_end && job->ask.wants_logprobs) g->flags |= QN_GENERATE_SHOW_END;
    QN_TRY(qn_prompts_read(&job->asked, job->ask.prompt, job->model, &opts, p));
    if (asked->n * (size_t)job->ask.n > MAX_ANSWERS)
        return QN_REFUSE(p, 400, "n", "%zu prompts with %lld answers each, at most %d answers",
                         asked->n, (long long)job->ask.n, MAX_ANSWERS);
    return start_asked(job, p);
}

// --- handlers ------------------------------------------------------------------------------------

static qn_status run(qn_status (*fn)(qn_job *job, qn_problem *p), qn_exchange *ex, qn_offer *entry,
                     qn_ask *ask, const qn_dialect *dialect, const char *prefix, qn_problem *p) {
    qn_job *job = NULL;
    const qn_status created = create(&job, ex, entry, ask, dialect, prefix, &p->err);
    if (created) {
        qn_offer_leave(entry);
        return qn_problem_take(p, created, NULL);
    }
    const qn_status status = fn(job, p);
    if (status) qn_job_destroy(job);
    return status;
}

qn_status qn_job_chat(qn_exchange *ex, qn_offer *entry, qn_ask *ask, const qn_dialect *dialect,
                      const char *prefix, qn_problem *problem) {
    return run(start_chat, ex, entry, ask, dialect, prefix, problem);
}

qn_status qn_job_prompts(qn_exchange *ex, qn_offer *entry, qn_ask *ask, const qn_dialect *dialect,
                         const char *prefix, qn_problem *problem) {
    return run(start_prompts, ex, entry, ask, dialect, prefix, problem);
}

qn_status qn_job_count(qn_exchange *ex, qn_offer *entry, qn_ask *ask, const qn_dialect *dialect,
                       const char *prefix, qn_problem *problem) {
    return run(count_chat, ex, entry, ask, dialect, prefix, problem);
}

qn_status qn_offer_refuse(qn_problem *p, qn_status status) {
    if (status == QN_ARGUMENT) {
        const qn_err err = p->err;
        qn_problem_set(p, 404, "model");
        p->code = "model_not_found";
        p->err = err;
    } else if (status == QN_STATE) { // of all models this one cannot be asked for with --draft
        (void)qn_problem_take(p, QN_ARGUMENT, "model");
    } else { // the file is the server's, whatever is wrong with it
        const bool is_full = status == QN_MEMORY || status == QN_LIMIT;
        (void)qn_problem_take(p, is_full ? QN_MEMORY : QN_IO, "model");
        p->retry_after = status == QN_LIMIT ? 5 : 0;
    }
    return status;
}

qn_status qn_offer_take(qn_offer **out, qn_exchange *ex, const char *name, qn_problem *p) {
    const qn_status status = qn_registry_take(out, &ex->server->registry, name, &p->err);
    if (status) return qn_offer_refuse(p, status);
    qn_exchange_tell_model(ex, (*out)->name);
    return QN_OK;
}

void qn_job_handle(qn_exchange *ex, const qn_job_plan *plan) {
    qn_problem problem = {0};
    qn_ask ask;
    qn_offer *entry = NULL;
    qn_status status = qn_ask_read(&ask, ex, plan->set, &problem);
    if (!status && plan->prepare) status = plan->prepare(&ask, &problem);
    if (!status) status = qn_offer_take(&entry, ex, ask.model, &problem);
    if (!status) status = plan->start(ex, entry, &ask, plan->dialect, plan->prefix, &problem);
    if (status) {
        qn_metric_add(&ex->server->n_refused, 1);
        qn_problem_reply(ex, &problem);
    }
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}
