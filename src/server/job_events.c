// What comes of a job's rows, on the step thread: parts of answers, their ends, and the end of all.
#include "server/job.h"

#include "core/mem.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

// --- events --------------------------------------------------------------------------------------

static bool add_call(qn_choice *c, const char *name) {
    void *items = c->calls;
    if (!qn_grow(&items, &c->cap_calls, c->n_calls + 1, sizeof *c->calls)) return false;
    c->calls = items;
    qn_called *call = &c->calls[c->n_calls];
    *call = (qn_called){.name = strdup(name)};
    qn_job_make_id(call->id, sizeof call->id, "call_");
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
    last->to_entry = c->n_entries;
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
    qn_metrics *metrics = &c->job->entry->metrics;
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

// Takes the spelling of the token off the text; false: no memory. A token at the beginning of a
// text may have lost its space.
static bool cut_ending(qn_event *e, const qn_job *job) {
    char *bytes = NULL;
    size_t n = 0;
    if (qn_tokenizer_bytes(&bytes, &n, job->model->tokenizer, e->token, NULL)) return false;
    const size_t space = n > 0 && *bytes == ' ' && !ends_with(e, bytes, n);
    if (ends_with(e, bytes + space, n - space)) e->text_size -= n - space;
    qn_free(bytes);
    return true;
}

// Keeps the log-probabilities of a token; false: no memory. They are bounded, whatever the request
// says: an answer with too many of them is given up.
static bool add_entry(qn_choice *c, const qn_event *e) {
    qn_job *job = c->job;
    const size_t stride = 1 + (size_t)job->ask.n_top, at = (c->n_entries - c->n_dropped) * stride;
    void *items = c->entries;
    if (job->n_kept + stride > QN_MAX_KEPT) {
        (void)QN_REFUSE(&job->refusal, 400, "logprobs",
                        "the answer has %zu log-probabilities or more, at most %d are told at once",
                        job->n_kept + stride, QN_MAX_KEPT);
        qn_stop_flag_set(job->ex->stop);
        return true;
    }
    if (!qn_grow(&items, &c->cap_entries, at + stride, sizeof *c->entries)) return false;
    c->entries = items;
    c->entries[at] = (qn_token_logprob){e->token, e->logprob};
    for (size_t i = 1; i < stride; i++)
        c->entries[at + i] = i <= e->n_top ? e->top[i - 1] : (qn_token_logprob){.token = -1};
    c->n_entries++;
    job->n_kept += stride;
    return true;
}

static bool add_id(qn_choice *c, int32_t token) {
    void *items = c->ids;
    if (!qn_grow(&items, &c->cap_ids, c->n_ids + 1, sizeof *c->ids)) return false;
    c->ids = items;
    c->ids[c->n_ids++] = token;
    return true;
}

static bool take_token(qn_choice *c, const qn_event *e, bool is_end) {
    qn_job *job = c->job;
    note_times(c);
    c->n_tokens += !is_end;
    atomic_fetch_add(&job->ex->n_generated, !is_end);
    if (job->ask.wants_logprobs && !add_entry(c, e)) job->is_lost = true;
    if (job->ask.return_tokens && !is_end && !add_id(c, e->token)) job->is_lost = true;
    return !job->is_lost && !job->refusal.status;
}

// --- ends ----------------------------------------------------------------------------------------

static void note_end(qn_choice *c, const qn_event *e) {
    qn_metrics *metrics = &c->job->entry->metrics;
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
        qn_metric_add(&metrics->prompt_us, c->first && c->begun ? (c->first - c->begun) / 1000 : 0);
    }
    qn_metric_add(&metrics->generated_tokens, c->n_tokens);
    qn_metric_add(&metrics->generated_us, (c->last - c->first) / 1000);
    qn_metric_add(&metrics->drafted, c->n_drafted);
    qn_metric_add(&metrics->accepted, c->n_accepted);
}

// Whether the time was over before there was a token: nothing is an answer to that.
static bool is_too_late(const qn_choice *c) {
    return c->reason == QN_REASON_DEADLINE && c->n_tokens == 0;
}

static bool is_held(const qn_job *job) {
    return job->opts.grammar || json_array_size(job->ask.tools) > 0;
}

// Why a choice is no answer; false: it is one.
static bool find_choice_problem(qn_problem *p, const qn_choice *c) {
    if (c->reason == QN_REASON_FAILED) {
        const bool is_file = c->status == QN_IO || c->status == QN_FORMAT; // not for clients
        if (is_file)
            qn_logger_say(&c->job->ex->server->logger, "error", "an answer failed: %s", c->message);
        qn_err_set(&p->err, c->status, __FILE__, __LINE__, "%s",
                   is_file ? qn_fault_words(c->status) : c->message);
        // A limit that the request's own grammar met.
        const bool is_asked = c->status == QN_LIMIT && is_held(c->job);
        const bool is_known = c->status == QN_MEMORY || is_asked;
        (void)qn_problem_take(p, is_known ? c->status : QN_NUMERIC, NULL);
        return true;
    }
    if (c->reason == QN_REASON_STOPPED || c->reason == QN_REASON_CALLER) {
        const qn_server *server = c->job->ex->server;
        (void)QN_REFUSE(p, 503, "", "the answer was given up: %s",
                        atomic_load(&server->has_end) ? server->end.message
                                                      : "the server stops, or is out of memory");
        return true;
    }
    if (!is_too_late(c)) return false;
    (void)QN_REFUSE(p, 503, "", "the time for the answer was over before its first token");
    p->retry_after = QN_RETRY_AFTER;
    return true;
}

// What the choices that failed or were stopped have to say; false: nothing.
static bool find_problem(qn_problem *p, const qn_job *job) {
    if (job->refusal.status) {
        *p = job->refusal;
        return true;
    }
    for (size_t i = 0; i < job->n_choices; i++) {
        if (find_choice_problem(p, &job->choices[i])) return true;
    }
    if (job->is_lost) (void)qn_problem_take(p, QN_NOMEM(&p->err, "the answer"), NULL);
    return job->is_lost;
}

static void end_stream(qn_job *job, const qn_problem *p) {
    if (p) qn_exchange_tell_reason(job->ex, p->err.message);
    const bool is_sent = p ? job->dialect->fail(job, p) : job->dialect->end(job);
    qn_exchange_end(job->ex, is_sent);
}

// Whether the time limit, the server's or the request's own, has ended an answer.
static bool is_out_of_time(const qn_job *job) {
    for (size_t i = 0; i < job->n_choices; i++) {
        if (job->choices[i].reason == QN_REASON_DEADLINE) return true;
    }
    return false;
}

static void write_end(qn_job *job) {
    qn_metrics *metrics = &job->entry->metrics;
    qn_problem problem = {0};
    const bool has_problem = find_problem(&problem, job);
    const bool is_gone = qn_stop_flag_is_set(job->ex->stop) && !job->refusal.status;
    qn_metric_add(is_gone       ? &metrics->cancelled
                  : has_problem ? &metrics->failed
                                : &metrics->answered,
                  1);
    qn_histogram_add(&metrics->whole, qn_clock_ns() - job->started);
    if (!has_problem && is_out_of_time(job))
        qn_exchange_tell_note(job->ex, "cut by its time limit");
    qn_offer_touch(job->entry); // before the client knows
    if (job->is_stream)
        end_stream(job, has_problem ? &problem : NULL);
    else if (has_problem)
        qn_problem_reply(job->ex, &problem);
    else
        qn_reply_json(job->ex, 200, job->dialect->whole(job));
    qn_served_bury(job->model, job);
}

void qn_job_write(qn_exchange *ex) {
    qn_job *job = ex->task;
    ex->task = NULL;
    write_end(job);
}

// Whether writing the answer in one piece would hold up the others of the batch.
static bool is_large(const qn_job *job) {
    enum { MANY_CHOICES = 16, MANY_ENTRIES = 256, MUCH_TEXT = 64 << 10 };
    size_t n_bytes = 0;
    for (size_t i = 0; i < job->n_choices && i < MANY_CHOICES; i++) {
        const qn_choice *c = &job->choices[i];
        n_bytes += c->text.size + c->reasoning.size + c->n_ids * sizeof *c->ids;
        for (size_t k = 0; k < c->n_calls; k++) n_bytes += c->calls[k].arguments.size;
    }
    return job->n_choices > MANY_CHOICES || n_bytes > MUCH_TEXT ||
           job->n_kept + job->n_kept_prompts > MANY_ENTRIES;
}

// The last row has ended. A large answer is written by a worker, if there is one to be had.
static void finish(qn_job *job) {
    qn_exchange *ex = job->ex;
    qn_job_leave_queue(job);
    ex->task = job;
    if (job->is_stream || !is_large(job) || !qn_workers_add(&ex->server->workers, qn_job_write, ex))
        qn_job_write(ex);
}

// A call that the answer ended in the middle of: the reply does not count it. Streams have told it;
// answers in one piece leave it out.
static void cut_call(qn_choice *c) {
    qn_message message = QN_INIT(qn_message);
    if (qn_chat_reply_get_message(&message, c->reply, NULL)) return; // which it never does
    c->is_cut = message.n_calls < c->n_calls;
    if (!c->is_cut || c->job->is_stream) return;
    qn_called *last = &c->calls[--c->n_calls];
    qn_free(last->name);
    qn_buf_deinit(&last->arguments);
    if (c->n_spans && c->spans[c->n_spans - 1].kind == QN_CHAT_CALL) c->n_spans--;
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
    const bool is_over = e->token < 0 || job->is_lost || job->refusal.status || !goes_on;
    if (!is_over) return true;
    if (c->reason == QN_REASON_NONE) c->reason = QN_REASON_CALLER; // the row gets no last event
    c->n_reasoning = (int64_t)qn_chat_reply_n_reasoning(c->reply);
    cut_call(c);
    if (job->is_stream && !job->is_lost && !job->refusal.status && !is_too_late(c) &&
        c->reason != QN_REASON_FAILED && c->reason != QN_REASON_STOPPED)
        job->dialect->finish(job, c);
    return false;
}

void qn_job_release(qn_job *job, size_t n) {
    pthread_mutex_lock(&job->lock);
    job->n_left -= n;
    const bool is_last = job->n_left == 0;
    pthread_mutex_unlock(&job->lock);
    if (is_last) finish(job);
}

bool qn_job_take_event(void *arg, const qn_event *e) {
    const qn_job_row *row = arg;
    qn_job *job = row->job;
    pthread_mutex_lock(&job->lock);
    const bool goes_on = take_row_event(row, e);
    job->n_in -= !goes_on;
    pthread_mutex_unlock(&job->lock);
    if (goes_on) return true;
    qn_job_add_rows(job);
    qn_job_release(job, 1);
    return false;
}

// The row's prompt begins to be read.
static void note_begin(qn_job_row *row) {
    qn_job *job = row->job;
    const int64_t now = qn_clock_ns();
    if (job->is_waiting) qn_histogram_add(&job->entry->metrics.queue, now - job->added);
    qn_job_leave_queue(job);
    for (size_t i = 0; i < job->per_prompt; i++) job->choices[row->first + i].begun = now;
}

// A client that is gone is noticed by the next event.
bool qn_job_take_progress(void *arg, int64_t done, int64_t total) {
    qn_job_row *row = arg;
    qn_job *job = row->job;
    const bool is_told = job->is_stream && job->ask.return_progress && job->dialect->progress;
    pthread_mutex_lock(&job->lock);
    qn_choice *c = &job->choices[row->first];
    if (!c->begun) {
        note_begin(row);
        c->n_reused = done; // it begins with what was cached
    }
    if (is_told && !job->is_lost) (void)job->dialect->progress(job, c, done, total);
    pthread_mutex_unlock(&job->lock);
    return true;
}
