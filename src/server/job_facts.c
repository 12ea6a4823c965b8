// What dialects ask of a job: reasons, counts, times, log-probabilities.
#include "server/job.h"

#include "core/mem.h"

const char *qn_choice_finish(const qn_choice *c) {
    if (c->reason == QN_REASON_LENGTH || c->reason == QN_REASON_DEADLINE) return "length";
    return c->n_calls && !c->is_cut ? "tool_calls" : "stop";
}

const qn_job_row *qn_choice_row(const qn_choice *c) {
    return &c->job->rows[c->index / c->job->per_prompt];
}

static void add_usage(qn_usage *u, const qn_choice *c, bool with_prompt) {
    if (with_prompt) {
        u->prompt += c->n_prompt;
        u->cached += c->n_reused;
        u->prompt_ms += c->first && c->begun ? (double)(c->first - c->begun) / 1e6 : 0;
    }
    u->generated += c->n_tokens;
    u->reasoning += c->n_reasoning;
    u->drafted += c->n_drafted;
    u->accepted += c->n_accepted;
    u->generated_ms += c->first ? (double)(c->last - c->first) / 1e6 : 0;
}

qn_usage qn_job_usage(const qn_job *job) {
    qn_usage u = {0};
    for (size_t i = 0; i < job->n_choices; i++)
        add_usage(&u, &job->choices[i], i % job->per_prompt == 0);
    return u;
}

static json_t *timings_of(const qn_job *job, qn_usage u, size_t n_choices) {
    const int64_t computed = u.prompt - u.cached;
    const double n_after = (double)(u.generated - (int64_t)n_choices); // after the first ones
    json_t *t = json_object();
    qn_json_put(&t, "cache_n", json_integer(u.cached));
    qn_json_put(&t, "prompt_n", json_integer(computed));
    qn_json_put(&t, "prompt_ms", qn_json_real(u.prompt_ms));
    qn_json_put(&t, "prompt_per_token_ms",
                qn_json_real(computed ? u.prompt_ms / (double)computed : 0));
    qn_json_put(&t, "prompt_per_second",
                qn_json_real(u.prompt_ms > 0 ? 1e3 * (double)computed / u.prompt_ms : 0));
    qn_json_put(&t, "predicted_n", json_integer(u.generated));
    qn_json_put(&t, "predicted_ms", qn_json_real(u.generated_ms));
    qn_json_put(&t, "predicted_per_token_ms",
                qn_json_real(n_after > 0 ? u.generated_ms / n_after : 0));
    qn_json_put(&t, "predicted_per_second",
                qn_json_real(u.generated_ms > 0 ? 1e3 * n_after / u.generated_ms : 0));
    if (u.drafted) {
        qn_json_put(&t, "draft_n", json_integer(u.drafted));
        qn_json_put(&t, "draft_n_accepted", json_integer(u.accepted));
    }
    qn_json_put(&t, "seed", json_integer((json_int_t)job->ask.seed));
    return t;
}

json_t *qn_job_timings(const qn_job *job) {
    return timings_of(job, qn_job_usage(job), job->n_choices);
}

json_t *qn_choice_timings(const qn_choice *c) {
    qn_usage u = {0};
    add_usage(&u, c, true);
    return timings_of(c->job, u, 1);
}

json_t *qn_choice_progress(const qn_choice *c, int64_t done, int64_t total) {
    json_t *o = json_object();
    qn_json_put(&o, "total", json_integer(total));
    qn_json_put(&o, "cache", json_integer(c->n_reused));
    qn_json_put(&o, "processed", json_integer(done));
    qn_json_put(&o, "time_ms", json_integer((qn_clock_ns() - c->begun) / 1000000));
    return o;
}

json_t *qn_span_text(const qn_choice *c, const qn_span *span) {
    const qn_buf *from = span->kind == QN_CHAT_TEXT ? &c->text : &c->reasoning;
    return qn_json_string(span->size ? from->data + span->from : "", span->size);
}

// --- log-probabilities ---------------------------------------------------------------------------

json_t *qn_logprob_json(float x) {
    return qn_json_real(x < -3.4e38f ? -3.4028234663852886e38 : (double)x);
}

static json_t *token_json(const qn_job *job, qn_token_logprob of) {
    char *bytes = NULL;
    size_t n = 0;
    json_t *o = json_object(), *list = json_array();
    if (qn_tokenizer_bytes(&bytes, &n, job->model->tokenizer, of.token, NULL)) {
        json_decref(o);
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) qn_json_push(&list, json_integer((unsigned char)bytes[i]));
    qn_json_put(&o, "id", json_integer(of.token));
    qn_json_put(&o, "token", qn_json_string(bytes, n));
    qn_json_put(&o, "bytes", list);
    qn_json_put(&o, "logprob", qn_logprob_json(of.logprob));
    qn_free(bytes);
    return o;
}

const qn_token_logprob *qn_choice_entry(const qn_choice *c, size_t i) {
    return c->entries + (i - c->n_dropped) * (1 + (size_t)c->job->ask.n_top);
}

static json_t *entry_json(const qn_choice *c, size_t i) {
    const qn_token_logprob *entry = qn_choice_entry(c, i);
    const size_t n_top = (size_t)c->job->ask.n_top;
    json_t *o = token_json(c->job, *entry), *top = json_array();
    for (size_t k = 1; k <= n_top && entry[k].token >= 0; k++)
        qn_json_push(&top, token_json(c->job, entry[k]));
    qn_json_put(&o, "top_logprobs", top);
    return o;
}

static json_t *entries_json(const qn_choice *c, size_t from, size_t to) {
    json_t *list = json_array();
    for (size_t i = from; list && i < to; i++) qn_json_push(&list, entry_json(c, i));
    return list;
}

json_t *qn_choice_entries(const qn_choice *c) { return entries_json(c, 0, c->n_entries); }

json_t *qn_span_entries(const qn_choice *c, const qn_span *span) {
    return entries_json(c, span->from_entry, span->to_entry);
}

bool qn_choice_has_untold(const qn_choice *c) { return c->n_told < c->n_entries; }

json_t *qn_choice_untold(qn_choice *c) {
    json_t *list = entries_json(c, c->n_told, c->n_entries);
    qn_choice_tell(c);
    return list;
}

void qn_choice_tell(qn_choice *c) {
    qn_job *job = c->job;
    c->n_told = c->n_entries;
    if (!job->is_stream || job->dialect->keeps_entries) return;
    job->n_kept -= (c->n_entries - c->n_dropped) * (1 + (size_t)job->ask.n_top);
    c->n_dropped = c->n_entries;
}

json_t *qn_choice_take_ids(qn_choice *c) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < c->n_ids; i++) qn_json_push(&list, json_integer(c->ids[i]));
    c->n_ids = 0;
    return list;
}
