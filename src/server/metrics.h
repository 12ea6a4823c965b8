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

typedef struct qn_metrics {
    qn_histogram first_token, inter_token, queue, whole; // seconds
    atomic_int_least64_t requests, refused, failed, cancelled, answered;
    atomic_int_least64_t prompt_tokens, cached_tokens, generated_tokens, drafted, accepted;
    atomic_int_least64_t prompt_us, generated_us;
} qn_metrics;

void qn_histogram_add(qn_histogram *histogram, int64_t ns);
void qn_metric_add(atomic_int_least64_t *counter, int64_t n);

// A number that is counted elsewhere, as it is now: a counter if its name ends in "_total", else a
// gauge.
typedef struct qn_gauge {
    const char *name, *help;
    double value;
} qn_gauge;
// Appends all of it in Prometheus' text format. What other servers have, and dashboards ask for, is
// there by their names, too.
void qn_metrics_write(qn_buf *to, qn_metrics *metrics, const qn_gauge *gauges, size_t n_gauges);

#endif
