// What dialects ask of a job: reasons, counts, times, log-probabilities.
#include "server/job.h"

const char *qn_choice_finish(const qn_choice *c) {
    if (c->reason == QN_REASON_LENGTH || c->reason == QN_REASON_DEADLINE) return "length";
    return c->n_calls ? "tool_calls" : "stop";
}

const qn_job_row *qn_choice_row(const qn_choice *c) {
    return &c->job->rows[c->index / c->job->per_prompt];
}

static void add_usage(qn_usage *u, const qn_choice *c, bool with_prompt) {
    if (with_prompt) {
        u->prompt += c->n_prompt;
        u->cached += c->n_reused;
        u->prompt_ms += c->first ? (double)(c->first - c->begun) / 1e6 : 0;
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

json_t *qn_choice_untold(qn_choice *c) {
    const size_t n = json_array_size(c->logprobs);
    if (n == c->n_told) return NULL;
    json_t *list = json_array();
    for (size_t i = c->n_told; i < n; i++)
        qn_json_push(&list, json_incref(json_array_get(c->logprobs, i)));
    c->n_told = n;
    return list;
}

json_t *qn_span_text(const qn_choice *c, const qn_span *span) {
    const qn_buf *from = span->kind == QN_CHAT_TEXT ? &c->text : &c->reasoning;
    return qn_json_string(span->size ? from->data + span->from : "", span->size);
}

json_t *qn_span_entries(const qn_choice *c, const qn_span *span) {
    json_t *list = json_array();
    for (size_t i = span->from_entry; i < span->to_entry; i++)
        qn_json_push(&list, json_incref(json_array_get(c->logprobs, i)));
    return list;
}

json_t *qn_logprob_json(float x) {
    return qn_json_real(x < -3.4e38f ? -3.4028234663852886e38 : (double)x);
}
