// Counters and histograms for Prometheus. Any thread adds; a scrape reads.
#ifndef QN_SERVER_METRICS_H
#define QN_SERVER_METRICS_H

#include "core/buf.h"

#include <stdatomic.h>

enum { QN_MAX_BUCKETS = 16 };

typedef struct qn_histogram {
    atomic_int_least64_t counts[QN_MAX_BUCKETS + 1]; // by bucket; the last: above all
    atomic_int_least64_t sum_us;
} qn_histogram;

// Of one model; counters and nothing else.
typedef struct qn_metrics {
    qn_histogram first_token, inter_token, queue, whole; // seconds
    atomic_int_least64_t requests, failed, cancelled, answered;
    atomic_int_least64_t prompt_tokens, cached_tokens, generated_tokens, drafted, accepted;
    atomic_int_least64_t prompt_us, generated_us;
} qn_metrics;

void qn_histogram_add(qn_histogram *histogram, int64_t ns);
void qn_metric_add(atomic_int_least64_t *counter, int64_t n);
// Adds every counter of `from`.
void qn_metrics_merge(qn_metrics *to, qn_metrics *from);

// What is told of a model.
typedef struct qn_model_metrics {
    char name[256];
    qn_metrics metrics;
    bool is_open; // there are counts
    qn_batch_counts counts;
} qn_model_metrics;

// A number of the server, as it is now: a counter if its name ends in "_total", else a gauge.
typedef struct qn_gauge {
    const char *name, *help;
    double value;
} qn_gauge;

// Appends all of it in Prometheus' text format: of each of n models, and of `all` of them together.
// What other servers have, and dashboards ask for, is there by their names, too, with the labels
// that they have: none of llama-server's, "model_name" of vLLM's.
void qn_metrics_write(qn_buf *to, qn_model_metrics *models, size_t n, qn_model_metrics *all,
                      const qn_gauge *gauges, size_t n_gauges);

#endif
