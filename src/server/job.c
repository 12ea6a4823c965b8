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
    json_decref(c->logprobs);
    json_decref(c->tokens);
    qn_decoder_destroy(c->decoder);
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
    qn_chat_turn_destroy(job->turn);
    qn_job_opts_deinit(&job->opts);
    qn_ask_deinit(&job->ask);
    if (job->entry) {
        atomic_fetch_sub(&job->ex->server->n_jobs, 1);
        qn_offer_leave(job->entry);
    }
    qn_exchange_leave(job->ex);
    pthread_mutex_destroy(&job->lock);
    qn_free(job);
}

static void make_id(char *to, size_t size, const char *prefix) {
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
    make_id(job->id, sizeof job->id, prefix);
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

// --- log-probabilities ---------------------------------------------------------------------------

static json_t *token_entry(const qn_job *job, int32_t token, float logprob) {
    char *bytes = NULL;
    size_t n = 0;
    json_t *entry = json_object(), *list = json_array();
    if (qn_tokenizer_bytes(&bytes, &n, job->model->tokenizer, token, NULL)) {
        json_decref(entry);
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) qn_json_push(&list, json_integer((unsigned char)bytes[i]));
    qn_json_put(&entry, "id", json_integer(token));
    qn_json_put(&entry, "token", qn_json_string(bytes, n));
    qn_json_put(&entry, "bytes", list);
    qn_json_put(&entry, "logprob", qn_logprob_json(logprob));
    qn_free(bytes);
    return entry;
}

static json_t *event_entry(const qn_job *job, const qn_event *e) {
    json_t *entry = token_entry(job, e->token, e->logprob), *top = json_array();
    for (size_t i = 0; i < e->n_top; i++)
        qn_json_push(&top, token_entry(job, e->top[i].token, e->top[i].logprob));
    qn_json_put(&entry, "top_logprobs", top);
    return entry;
}

// --- events --------------------------------------------------------------------------------------

static bool add_call(qn_choice *c, const char *name) {
    void *items = c->calls;
    if (!qn_grow(&items, &c->cap_calls, c->n_calls + 1, sizeof *c->calls)) return false;
    c->calls = items;
    qn_called *call = &c->calls[c->n_calls];
    *call = (qn_called){.name = strdup(name)};
    make_id(call->id, sizeof call->id, "call_");
    c->n_calls += call->name != NULL;
    return call->name != NULL;
}

// Notes where in the answer a part belongs, before it is added.
static bool add_span(qn_choice *c, const qn_chat_event *e) {
    const bool is_call = e->kind >= QN_CHAT_CALL;
    const qn_chat_event_kind kind = is_call ? QN_CHAT_CALL : e->kind;
    qn_span *last = c->n_spans ? &c->spans[c->n_spans - 1] : NULL;
    if (e->kind != QN_CHAT_CALL && e->text_size == 0) return true;
    if (!last || last->kind != kind || e->kind == QN_CHAT_CALL) {
        const size_t from_entry = last ? last->to_entry : 0;
        void *items = c->spans;
        if (!qn_grow(&items, &c->cap_spans, c->n_spans + 1, sizeof *c->spans)) return false;
        c->spans = items;
        last = &c->spans[c->n_spans++];
        *last = (qn_span){.kind = kind,
                          .from = kind == QN_CHAT_TEXT ? c->text.size : c->reasoning.size,
                          .call = c->n_calls ? c->n_calls - 1 : 0,
                          .from_entry = from_entry};
    }
    if (!is_call) last->size += e->text_size;
    last->to_entry = json_array_size(c->logprobs);
    return true;
}

// A qn_chat_fn: a part of the answer.
static bool take_part(void *arg, const qn_chat_event *e) {
    qn_choice *c = arg;
    qn_job *job = c->job;
    qn_job_piece piece = {.kind = e->kind, .text = e->text, .size = e->text_size};
    if (e->kind == QN_CHAT_BEGIN) return true;
    if (e->kind == QN_CHAT_CALL && !add_call(c, e->name)) job->is_lost = true;
    if (e->kind >= QN_CHAT_CALL && c->n_calls == 0) return false;
    if (!add_span(c, e)) job->is_lost = true;
    piece.call = c->n_calls ? c->n_calls - 1 : 0;
    qn_buf *to = e->kind == QN_CHAT_REASONING ? &c->reasoning
                 : e->kind == QN_CHAT_TEXT    ? &c->text
                                              : &c->calls[piece.call].arguments;
    if (e->kind != QN_CHAT_CALL) qn_buf_add(to, e->text, e->text_size);
    job->is_lost |= to->failed;
    if (!job->is_stream || job->is_lost) return !job->is_lost;
    if (e->kind != QN_CHAT_CALL && e->text_size == 0) return true;
    return job->dialect->piece(job, c, &piece);
}

// A token of the prompt, with its log-probability.
static void take_prompt(const qn_job_row *row, const qn_event *e) {
    const size_t stride = 1 + (size_t)row->job->ask.n_top, at = (size_t)e->position;
    if (!row->logprobs || at >= row->n_ids) return;
    qn_token_logprob *to = row->logprobs + at * stride;
    *to = (qn_token_logprob){e->token, e->logprob};
    for (size_t i = 0; i + 1 < stride && i < e->n_top; i++) to[1 + i] = e->top[i];
}

static void note_times(qn_choice *c) {
    qn_metrics *metrics = &c->job->ex->server->metrics;
    const int64_t now = qn_clock_ns();
    if (!c->first)
        qn_histogram_add(&metrics->first_token, now - c->job->started);
    else
        qn_histogram_add(&metrics->inter_token, now - c->last);
    if (!c->first) c->first = now;
    c->last = now;
}

// Whether an event is of the token that ends the answer, and comes for its log-probability alone.
static bool is_ending(const qn_job *job, const qn_event *e) {
    const qn_generate_opts *g = &job->opts.generate;
    if (!(g->flags & QN_GENERATE_SHOW_END) || e->is_prompt || e->token < 0) return false;
    for (size_t i = 0; i < g->n_stop_tokens; i++) {
        if (g->stop_tokens[i] == e->token) return true;
    }
    return qn_tokenizer_is_end(job->model->tokenizer, e->token);
}

static bool ends_with(const qn_event *e, const char *text, size_t n) {
    return n <= e->text_size && memcmp(e->text + e->text_size - n, text, n) == 0;
}

// Takes the spelling of the token off the text; false: no memory. A token at the beginning of a text
// may have lost its space.
static bool cut_ending(qn_event *e, const qn_job *job) {
    char *bytes = NULL;
    size_t n = 0;
    if (qn_tokenizer_bytes(&bytes, &n, job->model->tokenizer, e->token, NULL)) return false;
    const size_t space = n > 0 && *bytes == ' ' && !ends_with(e, bytes, n);
    if (ends_with(e, bytes + space, n - space)) e->text_size -= n - space;
    qn_free(bytes);
    return true;
}

static bool take_token(qn_choice *c, const qn_event *e, bool is_end) {
    qn_job *job = c->job;
    note_times(c);
    c->n_tokens += !is_end;
    if (job->ask.wants_logprobs) {
        qn_json_push(&c->logprobs, event_entry(job, e));
        job->is_lost |= !c->logprobs;
    }
    if (job->ask.return_tokens && !is_end) {
        qn_json_push(&c->tokens, json_integer(e->token));
        job->is_lost |= !c->tokens;
    }
    return !job->is_lost;
}

// --- ends ----------------------------------------------------------------------------------------

static void note_end(qn_choice *c, const qn_event *e) {
    qn_metrics *metrics = &c->job->ex->server->metrics;
    c->reason = e->reason;
    if (e->err) {
        c->status = e->err->status;
        snprintf(c->message, sizeof c->message, "%.255s", e->err->message);
    }
    if (!e->result) return;
    c->n_prompt = e->result->n_prompt;
    c->n_reused = e->result->n_reused;
    c->n_drafted = e->result->n_drafted;
    c->n_accepted = e->result->n_accepted;
    c->n_preemptions = e->result->n_preemptions;
    c->stop = e->result->stop;
    c->stop_token = e->result->stop_token;
    if (c->index % c->job->per_prompt == 0) {
        qn_metric_add(&metrics->prompt_tokens, c->n_prompt);
        qn_metric_add(&metrics->cached_tokens, c->n_reused);
        qn_metric_add(&metrics->prompt_us, c->first ? (c->first - c->begun) / 1000 : 0);
    }
    qn_metric_add(&metrics->generated_tokens, c->n_tokens);
    qn_metric_add(&metrics->generated_us, (c->last - c->first) / 1000);
    qn_metric_add(&metrics->drafted, c->n_drafted);
    qn_metric_add(&metrics->accepted, c->n_accepted);
}

// What the choices that failed or were stopped have to say; false: nothing.
static bool find_problem(qn_problem *p, const qn_job *job) {
    if (job->refusal.status) {
        *p = job->refusal;
        return true;
    }
    for (size_t i = 0; i < job->n_choices; i++) {
        const qn_choice *c = &job->choices[i];
        if (c->reason == QN_REASON_FAILED) {
            qn_err_set(&p->err, c->status, __FILE__, __LINE__, "%s", c->message);
            (void)qn_problem_take(p, c->status == QN_MEMORY ? QN_MEMORY : QN_NUMERIC, NULL);
            return true;
        }
        if (c->reason == QN_REASON_STOPPED || c->reason == QN_REASON_CALLER) {
            (void)QN_REFUSE(p, 503, "",
                            "the answer was given up: the server stops, or is out of "
                            "memory");
            return true;
        }
    }
    return false;
}

static void end_stream(qn_job *job, const qn_problem *p) {
    const bool is_sent = p ? job->dialect->fail(job, p) : job->dialect->end(job);
    qn_exchange_end(job->ex, is_sent);
}

// The last row has ended.
static void finish(qn_job *job) {
    qn_metrics *metrics = &job->ex->server->metrics;
    qn_problem problem = {0};
    const bool has_problem = find_problem(&problem, job);
    const bool is_gone = qn_stop_flag_is_set(job->ex->stop);
    qn_metric_add(is_gone       ? &metrics->cancelled
                  : has_problem ? &metrics->failed
                                : &metrics->answered,
                  1);
    qn_histogram_add(&metrics->whole, qn_clock_ns() - job->started);
    qn_offer_touch(job->entry); // before the client knows
    if (job->is_stream)
        end_stream(job, has_problem ? &problem : NULL);
    else if (has_problem)
        qn_problem_reply(job->ex, &problem);
    else
        qn_reply_json(job->ex, 200, job->dialect->whole(job));
    qn_served_bury(job->model, job);
}

static bool take_row_event(const qn_job_row *row, const qn_event *e) {
    qn_job *job = row->job;
    qn_choice *c = &job->choices[row->first + e->row];
    bool goes_on = true;
    qn_err err;
    qn_event shown = *e;
    const bool is_end = is_ending(job, e);
    if (is_end && !cut_ending(&shown, job)) job->is_lost = true;
    if (e->is_prompt)
        take_prompt(row, e);
    else if (e->token >= 0)
        goes_on = take_token(c, e, is_end);
    if (qn_chat_reply_feed(&goes_on, c->reply, &shown, take_part, c, &err)) job->is_lost = true;
    if (e->token < 0) note_end(c, e);
    const bool is_over = e->token < 0 || job->is_lost || !goes_on;
    if (!is_over) return true;
    if (c->reason == QN_REASON_NONE) c->reason = QN_REASON_CALLER; // the row gets no last event
    c->n_reasoning = (int64_t)qn_chat_reply_n_reasoning(c->reply);
    if (job->is_stream && !job->is_lost && c->reason != QN_REASON_FAILED &&
        c->reason != QN_REASON_STOPPED)
        job->dialect->finish(job, c);
    job->n_left--;
    return false;
}

// A qn_event_fn, on the step thread.
static bool take_event(void *arg, const qn_event *e) {
    const qn_job_row *row = arg;
    qn_job *job = row->job;
    pthread_mutex_lock(&job->lock);
    const bool goes_on = take_row_event(row, e);
    const bool is_last = job->n_left == 0;
    pthread_mutex_unlock(&job->lock);
    if (is_last) finish(job);
    return goes_on;
}

// A qn_progress_fn, on the step thread. A client that is gone is noticed by the next event.
static bool take_progress(void *arg, int64_t done, int64_t total) {
    qn_job_row *row = arg;
    qn_job *job = row->job;
    pthread_mutex_lock(&job->lock);
    qn_choice *c = &job->choices[row->first];
    if (!row->has_progress) c->n_reused = done; // it begins with what was cached
    row->has_progress = true;
    if (!job->is_lost) (void)job->dialect->progress(job, c, done, total);
    pthread_mutex_unlock(&job->lock);
    return true;
}

// --- starting ------------------------------------------------------------------------------------

// Max tokens of prompt and answer: a request may want fewer than the model has.
static int64_t context_of(const qn_job *job) {
    const int64_t wanted = job->ask.num_ctx, most = job->model->context;
    return wanted > 0 && wanted < most ? wanted : most;
}

static qn_status add_choices(qn_job *job, size_t n_prompts, qn_err *err) {
    job->per_prompt = (size_t)job->ask.n;
    job->n_rows = n_prompts;
    job->rows = qn_alloc(n_prompts, sizeof *job->rows);
    job->choices = qn_alloc(n_prompts * job->per_prompt, sizeof *job->choices);
    if (!job->rows || !job->choices) return QN_NOMEM(err, "answers");
    job->n_choices = job->n_left = n_prompts * job->per_prompt;
    for (size_t i = 0; i < job->n_choices; i++) {
        qn_choice *c = &job->choices[i];
        *c = (qn_choice){
            .job = job, .index = i, .stop = -1, .stop_token = -1, .begun = qn_clock_ns()};
        if (job->ask.wants_logprobs && !(c->logprobs = json_array()))
            return QN_NOMEM(err, "answers");
        if (job->ask.return_tokens && !(c->tokens = json_array())) return QN_NOMEM(err, "answers");
        QN_TRY(qn_chat_reply_create(&c->reply, job->turn, err));
    }
    for (size_t i = 0; i < n_prompts; i++)
        job->rows[i] = (qn_job_row){.job = job, .first = i * job->per_prompt};
    return QN_OK;
}

// Requests that wait are bounded: a client had better try again, or elsewhere.
static qn_status check_queue(const qn_job *job, qn_problem *p) {
    enum { USUAL = 256 };
    const qn_server *s = job->ex->server;
    const int64_t max = s->opts.queue ? s->opts.queue : USUAL;
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    if (qn_batch_get_counts(&counts, job->model->batch, NULL)) return QN_OK;
    if (atomic_load(&s->n_stops)) {
        (void)QN_REFUSE(p, 503, "", "the server is stopping");
        return QN_LIMIT;
    }
    if (counts.queued < max) return QN_OK;
    (void)QN_REFUSE(p, 503, "", "%lld requests wait already, at most %lld may",
                    (long long)counts.queued, (long long)max);
    p->retry_after = 5;
    return QN_LIMIT;
}

// All prompts leave room for a token, if one is wanted.
static qn_status check_lengths(const qn_job *job, const qn_prompt *prompts, size_t n,
                               qn_problem *p) {
    const int64_t context = context_of(job), room = job->opts.generate.max_tokens >= 0;
    for (size_t i = 0; i < n; i++) {
        if ((int64_t)prompts[i].n + room > context)
            return qn_refuse_overflow(p, job->turn ? "messages" : "prompt", job->is_list, i,
                                      prompts[i].n, context);
    }
    return QN_OK;
}

static qn_status add_row(qn_job *job, size_t i, const qn_prompt *prompt, qn_problem *p) {
    for (size_t k = 0; k < job->per_prompt; k++)
        job->choices[job->rows[i].first + k].n_prompt = (int64_t)prompt->n;
    const int64_t left = context_of(job) - (int64_t)prompt->n;
    const int64_t usual = job->ex->server->opts.timeout_ms;
    qn_row_opts row = *prompt->opts;
    qn_generate_opts generate = *row.generate;
    const bool is_free = generate.max_tokens == 0 || generate.max_tokens > left;
    if (job->ask.num_ctx > 0 && is_free) generate.max_tokens = left;
    row.generate = &generate;
    row.completions = (uint32_t)job->ask.n;
    row.deadline_ms = job->ask.timeout_ms;
    if (usual && (!row.deadline_ms || row.deadline_ms > usual)) row.deadline_ms = usual;
    if (!job->ask.cache_prompt) row.flags |= QN_ROW_UNCACHED;
    if (job->is_stream && job->ask.return_progress && job->dialect->progress) {
        row.progress = take_progress;
        row.progress_arg = &job->rows[i];
    }
    const qn_status status = qn_batch_add(NULL, job->model->batch, prompt->ids, prompt->n, &row,
                                          take_event, &job->rows[i], &p->err);
    return status ? qn_problem_take(p, status, NULL) : QN_OK;
}

// A stream begins at once, so that clients see that their request was taken.
static void begin_answer(qn_job *job) {
    qn_metrics *metrics = &job->ex->server->metrics;
    qn_metric_add(&metrics->requests, 1);
    qn_histogram_add(&metrics->queue, qn_clock_ns() - job->started);
    if (!job->is_stream) return;
    qn_exchange_begin(job->ex, 200, job->dialect->stream_type, job->dialect->ping);
    job->has_begun = true;
    (void)job->dialect->begin(job);
}

// Adds all rows; events wait for the lock meanwhile. After the first row is in, a failure ends the
// others and is told by the last of them.
static qn_status add_rows(qn_job *job, const qn_prompt *prompts, qn_problem *p) {
    qn_status status = QN_OK;
    pthread_mutex_lock(&job->lock);
    while (!status && job->n_added < job->n_rows) {
        status = add_row(job, job->n_added, &prompts[job->n_added], p);
        job->n_added += !status;
    }
    const bool is_in = job->n_added > 0;
    if (is_in) begin_answer(job);
    if (is_in) qn_chat_turn_destroy(job->turn), job->turn = NULL; // its pictures are large
    if (is_in && status) {
        job->refusal = *p;
        job->n_left -= (job->n_rows - job->n_added) * job->per_prompt;
        qn_stop_flag_set(job->ex->stop);
    }
    pthread_mutex_unlock(&job->lock);
    return is_in ? QN_OK : status;
}

// Room for the log-probabilities of a prompt. *n counts those of the request, which are bounded: so is
// the answer that tells them.
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

static qn_status fill_rows(qn_job *job, qn_prompts *asked, qn_problem *p) {
    size_t n = 0;
    for (size_t i = 0; i < job->n_rows; i++) {
        qn_job_row *row = &job->rows[i];
        qn_asked_prompt *from = &asked->items[i];
        row->n_ids = from->n;
        row->text = from->text;
        row->text_size = from->text_size;
        from->text = NULL;
        if (job->opts.generate.prompt_logprobs) QN_TRY(add_logprobs(row, &n, from, p));
    }
    return QN_OK;
}

// `asked` (may be NULL) are the same prompts; their texts move to the rows.
static qn_status start(qn_job *job, const qn_prompt *prompts, size_t n, qn_prompts *asked,
                       qn_problem *p) {
    QN_TRY(check_lengths(job, prompts, n, p));
    QN_TRY(check_queue(job, p));
    const qn_status status = add_choices(job, n, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    if (asked) QN_TRY(fill_rows(job, asked, p));
    return add_rows(job, prompts, p);
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

static qn_status set_chat(qn_chat *chat, qn_exchange *ex, const qn_ask *ask, qn_problem *p) {
    QN_TRY(qn_fetch_images(ex, ask->messages, p));
    QN_TRY(set_member(chat, ask->messages, "messages", qn_chat_set_messages, p));
    if (json_array_size(ask->tools) == 0 || ask->choice == QN_TOOLS_NONE) return QN_OK;
    return set_member(chat, ask->tools, "tools", qn_chat_set_tools, p);
}

static qn_status make_turn(qn_job *job, const qn_chat *chat, const char *kwargs, qn_problem *p) {
    const qn_ask *ask = &job->ask;
    const bool has_tools = json_array_size(ask->tools) > 0 && ask->choice != QN_TOOLS_NONE;
    const qn_grammar *like = NULL;
    if (has_tools) {
        const qn_status status = qn_served_like(&like, job->model, &p->err);
        if (status) return qn_problem_take(p, status, "tools");
    }
    const qn_chat_prompt_opts prompt =
        QN_INIT(qn_chat_prompt_opts, .reasoning = ask->thinks, .kwargs = kwargs,
                .no_generation_prompt = !ask->add_generation_prompt);
    const qn_chat_opts opts = QN_INIT(
        qn_chat_opts, .prompt = &prompt, .generate = &job->opts.generate,
        .leave_out = ask->leave_out, .keeps_nothing = !ask->cache_prompt, .stop = job->ex->stop,
        .tool_choice = has_tools ? ask->choice : QN_TOOLS_FREE, .tool_name = ask->tool_name,
        .one_call = !ask->parallel_calls, .like = like, .lenient_schemas = true);
    // Without leave_out a prompt of any length is made, so that its length can be told.
    const int64_t context = ask->leave_out ? context_of(job) : INT64_MAX;
    const qn_status status = qn_chat_turn_create(&job->turn, chat, job->model->template,
                                                 job->model->engine, context, &opts, &p->err);
    return status ? qn_problem_take(p, status, "messages") : QN_OK;
}

// The turn; a template that rejects the messages gets them once more in a form that all take.
static qn_status make_some_turn(qn_job *job, qn_chat *chat, const char *kwargs, qn_problem *p) {
    json_t *plain = NULL;
    const qn_status first = make_turn(job, chat, kwargs, p);
    if (!first || first == QN_MEMORY || first == QN_STOPPED) return first;
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
        return QN_REFUSE(p, 400, "model", "the model has no chat template: %s",
                         job->model->no_template);
    QN_TRY(check_images(job, p));
    QN_TRY(qn_job_opts_init(&job->opts, &job->ask, job->model, p));
    qn_status status = qn_chat_create(&chat, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    status = set_chat(chat, job->ex, &job->ask, p);
    if (!status && job->ask.kwargs) {
        qn_json_write(&kwargs, job->ask.kwargs, &qn_compact);
        if (kwargs.failed)
            status = qn_problem_take(p, QN_NOMEM(&p->err, "kwargs"), "chat_template_kwargs");
    }
    if (!status) status = make_some_turn(job, chat, kwargs.data, p);
    qn_buf_deinit(&kwargs);
    qn_chat_destroy(chat);
    if (status) return status;
    status = qn_chat_turn_get_info(info, job->turn, &p->err);
    return status ? qn_problem_take(p, status, NULL) : QN_OK;
}

static qn_status start_chat(qn_job *job, qn_problem *p) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    QN_TRY(prepare_chat(&info, job, p));
    const qn_prompt prompt = {info.ids, info.n, info.row};
    return start(job, &prompt, 1, NULL, p);
}

static qn_status count_chat(qn_job *job, qn_problem *p) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    QN_TRY(prepare_chat(&info, job, p));
    const qn_status status = add_choices(job, 1, &p->err);
    if (status) return qn_problem_take(p, status, NULL);
    job->choices[0].n_prompt = (int64_t)info.n;
    qn_reply_json(job->ex, 200, job->dialect->whole(job));
    qn_job_destroy(job);
    return QN_OK;
}

// --- prompts -------------------------------------------------------------------------------------

static qn_status start_asked(qn_job *job, qn_prompts *asked, qn_problem *p) {
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &job->opts.generate);
    qn_prompt *prompts = qn_alloc(asked->n, sizeof *prompts);
    if (!prompts) return qn_problem_take(p, QN_NOMEM(&p->err, "prompts"), NULL);
    for (size_t i = 0; i < asked->n; i++)
        prompts[i] = (qn_prompt){asked->items[i].ids, asked->items[i].n, &row};
    const qn_status status = start(job, prompts, asked->n, asked, p);
    qn_free(prompts);
    return status;
}

static qn_status start_prompts(qn_job *job, qn_problem *p) {
    enum { MAX_PROMPTS = 1024, MAX_ANSWERS = 4096 };
    const qn_prompts_opts opts = {
        .field = "prompt", .max = MAX_PROMPTS, .special = true, .wants_text = true};
    qn_generate_opts *g = &job->opts.generate;
    qn_prompts asked = {0};
    QN_TRY(qn_job_opts_init(&job->opts, &job->ask, job->model, p));
    g->stop = job->ex->stop;
    g->prompt_logprobs = job->ask.echo && job->ask.wants_logprobs;
    if (job->dialect->shows_end && job->ask.wants_logprobs) g->flags |= QN_GENERATE_SHOW_END;
    qn_status status = qn_prompts_read(&asked, job->ask.prompt, job->model, &opts, p);
    job->is_list = asked.is_list;
    if (!status && asked.n * (size_t)job->ask.n > MAX_ANSWERS)
        status = QN_REFUSE(p, 400, "n", "%zu prompts with %lld answers each, at most %d answers",
                           asked.n, (long long)job->ask.n, MAX_ANSWERS);
    if (!status) status = start_asked(job, &asked, p);
    qn_prompts_deinit(&asked);
    return status;
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
    } else { // the file is the server's, whatever is wrong with it
        const bool is_full = status == QN_MEMORY || status == QN_LIMIT;
        (void)qn_problem_take(p, is_full ? QN_MEMORY : QN_IO, "model");
        p->retry_after = status == QN_LIMIT ? 5 : 0;
    }
    return status;
}

qn_status qn_offer_take(qn_offer **out, qn_exchange *ex, const char *name, qn_problem *p) {
    const qn_status status = qn_registry_take(out, &ex->server->registry, name, &p->err);
    return status ? qn_offer_refuse(p, status) : QN_OK;
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
        qn_metric_add(&ex->server->metrics.refused, 1);
        qn_problem_reply(ex, &problem);
    }
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}
