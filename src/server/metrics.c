#include "server/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Upper borders in seconds. Answers on CPUs take from milliseconds to minutes.
static const double borders[QN_MAX_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                               0.5,   1,      2.5,   5,    10,    30,   60,  300};

void qn_metric_add(atomic_int_least64_t *counter, int64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static int64_t read_counter(atomic_int_least64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void qn_histogram_add(qn_histogram *h, int64_t ns) {
    const double seconds = (double)ns / 1e9;
    size_t i = 0;
    while (i < QN_MAX_BUCKETS && seconds > borders[i]) i++;
    qn_metric_add(&h->counts[i], 1);
    qn_metric_add(&h->sum_us, ns / 1000);
}

_Static_assert(sizeof(qn_metrics) % sizeof(atomic_int_least64_t) == 0, "counters alone");

void qn_metrics_merge(qn_metrics *to, qn_metrics *from) {
    atomic_int_least64_t *a = (atomic_int_least64_t *)to, *b = (atomic_int_least64_t *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++) qn_metric_add(&a[i], read_counter(&b[i]));
}

// --- the table -----------------------------------------------------------------------------------

typedef enum kind { COUNTER, SECONDS, HISTOGRAM, GAUGE, SHARE } kind;
typedef enum scope { QUERN, LLAMA, VLLM } scope; // whose name it is: which labels it has
static const char *const labels[] = {[QUERN] = "model", [LLAMA] = NULL, [VLLM] = "model_name"};

// Counted by the server (C, microseconds S, histograms H), or by the batch of a model that is open
// (B); "kv_cache_usage_perc" is a share of these.
#define C(scope, name, help, member)                                                               \
    { name, help, scope, COUNTER, offsetof(qn_model_metrics, metrics.member) }
#define S(scope, name, help, member)                                                               \
    { name, help, scope, SECONDS, offsetof(qn_model_metrics, metrics.member) }
#define H(scope, name, help, member)                                                               \
    { name, help, scope, HISTOGRAM, offsetof(qn_model_metrics, metrics.member) }
#define B(scope, name, help, member)                                                               \
    { name, help, scope, GAUGE, offsetof(qn_model_metrics, counts.member) }
static const struct row {
    const char *name, *help;
    scope scope;
    kind kind;
    size_t offset;
} rows[] = {
    C(QUERN, "quern_requests_total", "Requests for answers.", requests),
    C(QUERN, "quern_requests_failed_total", "Requests whose answers failed.", failed),
    C(QUERN, "quern_requests_cancelled_total", "Requests given up by the client.", cancelled),
    C(QUERN, "quern_requests_answered_total", "Requests that were answered.", answered),
    C(QUERN, "quern_prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    C(QUERN, "quern_prompt_tokens_cached_total", "Of these, reused from the prefix cache.",
      cached_tokens),
    C(QUERN, "quern_generated_tokens_total", "Tokens of answers.", generated_tokens),
    C(QUERN, "quern_drafted_tokens_total", "Tokens drafted by speculative decoding.", drafted),
    C(QUERN, "quern_accepted_tokens_total", "Of these, accepted.", accepted),
    S(QUERN, "quern_prompt_seconds_total", "Time from a row's beginning to its first token.",
      prompt_us),
    S(QUERN, "quern_generated_seconds_total", "Time from first to last tokens.", generated_us),
    B(QUERN, "quern_rows", "Answers that are being computed.", rows),
    B(QUERN, "quern_queued", "Answers that wait for room.", queued),
    B(QUERN, "quern_pages", "Pages of the KV cache held by answers.", pages),
    B(QUERN, "quern_pages_max", "Pages of the KV cache.", pages_all),
    B(QUERN, "quern_kept_bytes", "Bytes held by earlier prompts.", kept_bytes),
    B(QUERN, "quern_steps_total", "Steps since the model was opened.", steps),
    B(QUERN, "quern_step_tokens_total", "Tokens computed in these.", tokens),
    B(QUERN, "quern_prefix_hits_total", "Prompts that had a prefix in the cache.", hits),
    B(QUERN, "quern_preemptions_total", "Answers that gave way to others.", preemptions),
    H(QUERN, "quern_time_to_first_token_seconds",
      "From the request to the first token of its answer.", first_token),
    H(QUERN, "quern_inter_token_seconds", "Between tokens of an answer.", inter_token),
    H(QUERN, "quern_queue_seconds", "Waiting for room in the batch.", queue),
    H(QUERN, "quern_request_seconds", "From the request to the end of its answer.", whole),

    C(LLAMA, "llamacpp:prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    C(LLAMA, "llamacpp:prompt_tokens_cached_total", "Of these, reused.", cached_tokens),
    S(LLAMA, "llamacpp:prompt_seconds_total", "Time of reading prompts.", prompt_us),
    C(LLAMA, "llamacpp:tokens_predicted_total", "Tokens of answers.", generated_tokens),
    S(LLAMA, "llamacpp:tokens_predicted_seconds_total", "Time of generating.", generated_us),
    C(LLAMA, "llamacpp:spec_decode_num_draft_tokens_total", "Tokens drafted.", drafted),
    C(LLAMA, "llamacpp:spec_decode_num_accepted_tokens_total", "Of these, accepted.", accepted),
    B(LLAMA, "llamacpp:requests_processing", "Answers that are being computed.", rows),
    B(LLAMA, "llamacpp:requests_deferred", "Answers that wait for room.", queued),
    B(LLAMA, "llamacpp:n_decode_total", "Steps.", steps),

    C(VLLM, "vllm:prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    C(VLLM, "vllm:prompt_tokens_cached_total", "Of these, reused.", cached_tokens),
    C(VLLM, "vllm:generation_tokens_total", "Tokens of answers.", generated_tokens),
    C(VLLM, "vllm:request_success_total", "Requests that were answered.", answered),
    B(VLLM, "vllm:num_requests_running", "Answers that are being computed.", rows),
    B(VLLM, "vllm:num_requests_waiting", "Answers that wait for room.", queued),
    {"vllm:kv_cache_usage_perc", "Share of the KV cache that is held; 1 is all.", VLLM, SHARE, 0},
    B(VLLM, "vllm:num_preemptions_total", "Answers that gave way.", preemptions),
    H(VLLM, "vllm:time_to_first_token_seconds", "To the first token.", first_token),
    H(VLLM, "vllm:inter_token_latency_seconds", "Between tokens.", inter_token),
    H(VLLM, "vllm:request_queue_time_seconds", "Waiting for room.", queue),
    H(VLLM, "vllm:e2e_request_latency_seconds", "To the end of the answer.", whole),
};

// --- text ----------------------------------------------------------------------------------------

static bool is_counter(const char *name) {
    static const char end[] = "_total";
    const size_t n = strlen(name);
    return n >= sizeof end && strcmp(name + n - (sizeof end - 1), end) == 0;
}

static void write_head(qn_buf *to, const char *name, const char *help, bool is_histogram) {
    qn_buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                  is_histogram       ? "histogram"
                  : is_counter(name) ? "counter"
                                     : "gauge");
}

// {model="name",le="0.5"}: either may be missing. Names of files may have any character.
static void write_labels(qn_buf *to, const char *label, const char *value, const char *le) {
    if (!label && !le) return;
    qn_buf_text(to, "{");
    if (label) qn_buf_printf(to, "%s=\"", label);
    for (const char *c = label ? value : ""; *c; c++) {
        if (*c == '"' || *c == '\\') qn_buf_text(to, "\\");
        if (*c == '\n')
            qn_buf_text(to, "\\n");
        else
            qn_buf_add(to, c, 1);
    }
    if (label) qn_buf_text(to, "\"");
    if (le) qn_buf_printf(to, "%sle=\"%s\"", label ? "," : "", le);
    qn_buf_text(to, "}");
}

static void write_histogram(qn_buf *to, const struct row *row, qn_model_metrics *of) {
    qn_histogram *h = (qn_histogram *)((char *)of + row->offset);
    const char *label = labels[row->scope];
    int64_t n = 0;
    for (size_t i = 0; i <= QN_MAX_BUCKETS; i++) {
        char le[32] = "+Inf";
        if (i < QN_MAX_BUCKETS) snprintf(le, sizeof le, "%g", borders[i]);
        n += read_counter(&h->counts[i]);
        qn_buf_printf(to, "%s_bucket", row->name);
        write_labels(to, label, of->name, le);
        qn_buf_printf(to, " %lld\n", (long long)n);
    }
    qn_buf_printf(to, "%s_sum", row->name);
    write_labels(to, label, of->name, NULL);
    qn_buf_printf(to, " %.6f\n%s_count", (double)read_counter(&h->sum_us) / 1e6, row->name);
    write_labels(to, label, of->name, NULL);
    qn_buf_printf(to, " %lld\n", (long long)n);
}

static void write_number(qn_buf *to, const struct row *row, qn_model_metrics *of) {
    char *at = (char *)of + row->offset;
    const qn_batch_counts *c = &of->counts;
    qn_buf_text(to, row->name);
    write_labels(to, labels[row->scope], of->name, NULL);
    if (row->kind == SHARE)
        qn_buf_printf(to, " %.6g\n", c->pages_all ? (double)c->pages / (double)c->pages_all : 0);
    else if (row->kind == GAUGE)
        qn_buf_printf(to, " %lld\n", (long long)*(const int64_t *)at);
    else if (row->kind == SECONDS)
        qn_buf_printf(to, " %.6f\n", (double)read_counter((atomic_int_least64_t *)at) / 1e6);
    else
        qn_buf_printf(to, " %lld\n", (long long)read_counter((atomic_int_least64_t *)at));
}

static void write_row(qn_buf *to, const struct row *row, qn_model_metrics *models, size_t n) {
    bool has_head = false;
    for (size_t i = 0; i < n; i++) {
        const bool is_counted = row->kind == GAUGE || row->kind == SHARE;
        if (is_counted && !models[i].is_open) continue;
        if (!has_head) write_head(to, row->name, row->help, row->kind == HISTOGRAM);
        has_head = true;
        (row->kind == HISTOGRAM ? write_histogram : write_number)(to, row, &models[i]);
    }
}

void qn_metrics_write(qn_buf *to, qn_model_metrics *models, size_t n, qn_model_metrics *all,
                      const qn_gauge *gauges, size_t n_gauges) {
    for (size_t i = 0; i < n_gauges; i++) {
        write_head(to, gauges[i].name, gauges[i].help, false);
        qn_buf_printf(to, "%s %.17g\n", gauges[i].name, gauges[i].value);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (labels[rows[i].scope])
            write_row(to, &rows[i], models, n);
        else
            write_row(to, &rows[i], all, 1);
    }
}
