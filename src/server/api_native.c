// llama-server's own /completion.
#include "server/api.h"

#include "server/routes.h"
#include "server/server_int.h"

#include <stddef.h>
#include <string.h>

static qn_status prepare(qn_ask *ask, qn_problem *p) {
    if (!ask->prompt) return QN_REFUSE(p, 400, "prompt", "the request has no 'prompt'");
    if (ask->json_schema && json_object_size(ask->json_schema) == 0) ask->json_schema = NULL;
    ask->wants_logprobs = ask->n_probs > 0;
    ask->n_top = (int32_t)ask->n_probs;
    ask->return_tokens |= ask->stream; // chunks always have them
    return QN_OK;
}

// --- facts ---------------------------------------------------------------------------------------

// Steps that are off are told as requests say it.
static json_t *real_setting(const char *name, float x) {
    static const char *const off_is_1[] = {"top_p", "typical_p", "repeat_penalty"};
    for (size_t i = 0; i < sizeof off_is_1 / sizeof *off_is_1; i++) {
        if (strcmp(off_is_1[i], name) == 0 && x == 0) return qn_json_real(1);
    }
    return qn_json_real((double)x);
}

static json_t *setting_value(const qn_field *f, const qn_sample_opts *sample) {
    const void *at = (const char *)sample + (f->offset - offsetof(qn_ask, sample));
    int32_t n;
    switch (f->kind) {
    case QN_FIELD_REAL:
        return real_setting(f->name, *(const float *)at);
    case QN_FIELD_INT32:
        return json_integer(*(const int32_t *)at);
    case QN_FIELD_LAST_N:
        n = *(const int32_t *)at;
        return n == 0 ? json_null()
                      : json_integer(n == QN_LAST_N_NONE ? 0 : n); // null: the default
    case QN_FIELD_SEED:
        return json_integer((json_int_t) * (const uint64_t *)at);
    default:
        return json_null();
    }
}

// The settings that were used, by the names of their fields.
static json_t *settings_of(const qn_job *job) {
    const size_t from = offsetof(qn_ask, sample), to = from + sizeof(qn_sample_opts);
    const qn_generate_opts *g = &job->opts.generate;
    json_t *o = json_object(), *stops = json_array();
    const qn_field *f;
    for (size_t i = 0; (f = qn_field_at(i)); i++) {
        if (f->kind < QN_FIELD_IGNORED && f->offset >= from && f->offset < to)
            qn_json_put(&o, f->name, setting_value(f, &job->opts.sample));
    }
    for (size_t i = 0; i < g->n_stops; i++) qn_json_push(&stops, json_string(g->stops[i]));
    qn_json_put(&o, "n_predict", json_integer(g->max_tokens ? g->max_tokens : -1));
    qn_json_put(&o, "min_tokens", json_integer(g->min_tokens));
    qn_json_put(&o, "ignore_eos", json_boolean(g->ignore_end));
    qn_json_put(&o, "stop", stops);
    qn_json_put(&o, "n_probs", json_integer(job->ask.n_top));
    qn_json_put(&o, "grammar", json_string(job->ask.grammar ? job->ask.grammar : ""));
    qn_json_put(&o, "stream", json_boolean(job->is_stream));
    return o;
}

static const char *stop_type(const qn_choice *c) {
    static const char *const names[] = {[QN_REASON_NONE] = "none",
                                        [QN_REASON_END] = "eos",
                                        [QN_REASON_STOP] = "word",
                                        [QN_REASON_LENGTH] = "limit",
                                        [QN_REASON_DEADLINE] = "limit"};
    return (size_t)c->reason < sizeof names / sizeof *names && names[c->reason] ? names[c->reason]
                                                                                : "none";
}

// The stop string, or the spelling of the stop token.
static json_t *stopping_word(const qn_choice *c) {
    const qn_job *job = c->job;
    char *bytes = NULL;
    size_t n = 0;
    if (c->stop >= 0) return json_string(job->opts.generate.stops[c->stop]);
    if (c->reason != QN_REASON_STOP || c->stop_token < 0) return json_string("");
    if (qn_tokenizer_bytes(&bytes, &n, job->model->tokenizer, c->stop_token, NULL)) return NULL;
    json_t *word = qn_json_string(bytes, n);
    qn_free(bytes);
    return word;
}

// --- answers -------------------------------------------------------------------------------------

// What chunks and ends begin with.
static json_t *head_of(qn_choice *c, const char *text, size_t size, bool is_stop) {
    json_t *o = json_object();
    qn_json_put(&o, "index", json_integer((json_int_t)c->index));
    qn_json_put(&o, "content", qn_json_string(text ? text : "", size));
    qn_json_put(&o, "tokens", qn_choice_take_ids(c));
    qn_json_put(&o, "id_slot", json_integer(-1)); // there are none
    qn_json_put(&o, "stop", json_boolean(is_stop));
    qn_json_put(&o, "tokens_predicted", json_integer(c->n_tokens));
    qn_json_put(&o, "tokens_evaluated", json_integer(c->n_prompt));
    if (qn_choice_has_untold(c)) qn_json_put(&o, "completion_probabilities", qn_choice_untold(c));
    return o;
}

// The end of a choice: of a stream without its text.
static json_t *end_of(const qn_job *job, qn_choice *c) {
    const qn_job_row *row = qn_choice_row(c);
    const bool has_line = c->text.size > 0 && memchr(c->text.data, '\n', c->text.size);
    json_t *o =
        job->is_stream ? head_of(c, "", 0, true) : head_of(c, c->text.data, c->text.size, true);
    qn_json_put(&o, "model", json_string(job->entry->name));
    qn_json_put(&o, "generation_settings", settings_of(job));
    qn_json_put(&o, "prompt", qn_json_string(row->text ? row->text : "", row->text_size));
    qn_json_put(&o, "has_new_line", json_boolean(has_line));
    qn_json_put(&o, "truncated", json_false());
    qn_json_put(&o, "stop_type", json_string(stop_type(c)));
    qn_json_put(&o, "stopping_word", stopping_word(c));
    qn_json_put(&o, "tokens_cached", json_integer(c->n_prompt + c->n_tokens));
    qn_json_put(&o, "timings", qn_choice_timings(c));
    return o;
}

static bool begin(qn_job *job) {
    (void)job;
    return true;
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    json_t *o = head_of(c, piece->text, piece->size, false);
    if (job->ask.timings_per_token) qn_json_put(&o, "timings", qn_choice_timings(c));
    return qn_job_send_event(job, NULL, o);
}

static bool progress(qn_job *job, qn_choice *c, int64_t done, int64_t total) {
    json_t *o = head_of(c, "", 0, false);
    qn_json_put(&o, "prompt_progress", qn_choice_progress(c, done, total));
    return qn_job_send_event(job, NULL, o);
}

static bool finish(qn_job *job, qn_choice *c) {
    return qn_job_send_event(job, NULL, end_of(job, c));
}

static bool end(qn_job *job) { return !job->is_lost; } // there is no "[DONE]"

static bool fail(qn_job *job, const qn_problem *problem) {
    return qn_job_send_event(job, NULL, qn_problem_json(problem, QN_FORM_OPENAI));
}

// One object for one prompt, a list for several.
static json_t *whole(qn_job *job) {
    if (job->n_choices == 1) return end_of(job, &job->choices[0]);
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_choices; i++) qn_json_push(&list, end_of(job, &job->choices[i]));
    return list;
}

static const qn_dialect dialect = {.stream_type = "text/event-stream",
                                   .ping = ": still here\n\n",
                                   .begin = begin,
                                   .piece = piece,
                                   .progress = progress,
                                   .finish = finish,
                                   .end = end,
                                   .fail = fail,
                                   .whole = whole};

void qn_api_native(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_NATIVE, &dialect, "cmpl-", prepare, qn_job_prompts};
    qn_job_handle(ex, &plan);
}

// --- what it has and this server does not --------------------------------------------------------

void qn_api_refused(qn_exchange *ex) {
    qn_problem problem = {0};
    (void)QN_REFUSE(&problem, 501, "", "%s", qn_route_summary(ex->route));
    qn_problem_reply(ex, &problem);
    qn_exchange_leave(ex);
}
