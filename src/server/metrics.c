#include "server/metrics.h"

#include <stddef.h>
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

static void write_head(qn_buf *to, const char *name, const char *help, const char *type) {
    qn_buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_histogram(qn_buf *to, qn_histogram *h, const char *name, const char *help) {
    int64_t n = 0;
    write_head(to, name, help, "histogram");
    for (size_t i = 0; i < QN_MAX_BUCKETS; i++) {
        n += read_counter(&h->counts[i]);
        qn_buf_printf(to, "%s_bucket{le=\"%g\"} %lld\n", name, borders[i], (long long)n);
    }
    n += read_counter(&h->counts[QN_MAX_BUCKETS]);
    qn_buf_printf(to, "%s_bucket{le=\"+Inf\"} %lld\n", name, (long long)n);
    qn_buf_printf(to, "%s_sum %.6f\n%s_count %lld\n", name, (double)read_counter(&h->sum_us) / 1e6,
                  name, (long long)n);
}

#define COUNTER(name, help, member)                                                                \
    { name, help, offsetof(qn_metrics, member), false }
#define SECONDS(name, help, member)                                                                \
    { name, help, offsetof(qn_metrics, member), true }
static const struct {
    const char *name, *help;
    size_t offset;
    bool is_us; // microseconds, shown as seconds
} counters[] = {
    COUNTER("quern_requests_total", "Requests for answers.", requests),
    COUNTER("quern_requests_refused_total", "Requests that were refused.", refused),
    COUNTER("quern_requests_failed_total", "Requests whose answers failed.", failed),
    COUNTER("quern_requests_cancelled_total", "Requests given up by the client.", cancelled),
    COUNTER("quern_requests_answered_total", "Requests that were answered.", answered),
    COUNTER("quern_prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    COUNTER("quern_prompt_tokens_cached_total", "Of these, reused from the prefix cache.",
            cached_tokens),
    COUNTER("quern_generated_tokens_total", "Tokens of answers.", generated_tokens),
    COUNTER("quern_drafted_tokens_total", "Tokens drafted by speculative decoding.", drafted),
    COUNTER("quern_accepted_tokens_total", "Of these, accepted.", accepted),
    SECONDS("quern_prompt_seconds_total", "Time from a row's beginning to its first token.",
            prompt_us),
    SECONDS("quern_generated_seconds_total", "Time from first to last tokens.", generated_us),
    // llama-server's
    COUNTER("llamacpp:prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    COUNTER("llamacpp:prompt_tokens_cached_total", "Of these, reused.", cached_tokens),
    SECONDS("llamacpp:prompt_seconds_total", "Time of reading prompts.", prompt_us),
    COUNTER("llamacpp:tokens_predicted_total", "Tokens of answers.", generated_tokens),
    SECONDS("llamacpp:tokens_predicted_seconds_total", "Time of generating.", generated_us),
    COUNTER("llamacpp:spec_decode_num_draft_tokens_total", "Tokens drafted.", drafted),
    COUNTER("llamacpp:spec_decode_num_accepted_tokens_total", "Of these, accepted.", accepted),
    // vLLM's
    COUNTER("vllm:prompt_tokens_total", "Tokens of prompts.", prompt_tokens),
    COUNTER("vllm:prompt_tokens_cached_total", "Of these, reused.", cached_tokens),
    COUNTER("vllm:generation_tokens_total", "Tokens of answers.", generated_tokens),
    COUNTER("vllm:request_success_total", "Requests that were answered.", answered),
};

#define HISTOGRAM(name, help, member)                                                              \
    { name, help, offsetof(qn_metrics, member) }
static const struct {
    const char *name, *help;
    size_t offset;
} histograms[] = {
    HISTOGRAM("quern_time_to_first_token_seconds",
              "From the request to the first token of its answer.", first_token),
    HISTOGRAM("quern_inter_token_seconds", "Between tokens of an answer.", inter_token),
    HISTOGRAM("quern_queue_seconds", "Waiting for room in the batch.", queue),
    HISTOGRAM("quern_request_seconds", "From the request to the end of its answer.", whole),
    HISTOGRAM("vllm:time_to_first_token_seconds", "To the first token.", first_token),
    HISTOGRAM("vllm:inter_token_latency_seconds", "Between tokens.", inter_token),
    HISTOGRAM("vllm:request_queue_time_seconds", "Waiting for room.", queue),
    HISTOGRAM("vllm:e2e_request_latency_seconds", "To the end of the answer.", whole),
};

static bool is_counter(const char *name) {
    static const char end[] = "_total";
    const size_t n = strlen(name);
    return n >= sizeof end && strcmp(name + n - (sizeof end - 1), end) == 0;
}

void qn_metrics_write(qn_buf *to, qn_metrics *metrics, const qn_gauge *gauges, size_t n_gauges) {
    char *base = (char *)metrics;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        const int64_t value = read_counter((atomic_int_least64_t *)(base + counters[i].offset));
        write_head(to, counters[i].name, counters[i].help, "counter");
        if (counters[i].is_us)
            qn_buf_printf(to, "%s %.6f\n", counters[i].name, (double)value / 1e6);
        else
            qn_buf_printf(to, "%s %lld\n", counters[i].name, (long long)value);
    }
    for (size_t i = 0; i < n_gauges; i++) {
        write_head(to, gauges[i].name, gauges[i].help,
                   is_counter(gauges[i].name) ? "counter" : "gauge");
        qn_buf_printf(to, "%s %.17g\n", gauges[i].name, gauges[i].value);
    }
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++)
        write_histogram(to, (qn_histogram *)(base + histograms[i].offset), histograms[i].name,
                        histograms[i].help);
}
