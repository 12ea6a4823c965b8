#include "gen/sample.h"

#include "core/mem.h"
#include "gen/philox.h"

#include <math.h>
#include <stdlib.h>

typedef struct entry {
    float p;
    int32_t id;
} entry;

qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err) {
    float least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) // the sign of a NaN depends on the compiler: do not print it
            return QN_FAIL(err, NUMERIC, "the forward pass is broken: score %lld of %lld is %s",
                           (long long)i, (long long)n,
                           isnan(logits[i]) ? "nan"
                           : logits[i] > 0  ? "inf"
                                            : "-inf");
        least = fminf(least, logits[i]);
        most = fmaxf(most, logits[i]);
    }
    if (n > 1 && most - least < 1e-6f)
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: all %lld scores are %g",
                       (long long)n, (double)most);
    return QN_OK;
}

int32_t qn_sample_greedy(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

// By descending probability, then id.
static int compare(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->p != y->p) return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

qn_status qn_sample(int32_t *token, const float *logits, int64_t n, const qn_sample_opts *opts,
                    uint64_t position, qn_err *err) {
    if (!(opts->temperature >= 0) || isinf(opts->temperature))
        return QN_FAIL(err, ARGUMENT, "temperature %g, want 0 or more", (double)opts->temperature);
    QN_TRY(qn_logits_check(logits, n, err));
    const int32_t best = qn_sample_greedy(logits, n);
    if (opts->temperature == 0) {
        *token = best;
        return QN_OK;
    }
    entry *entries = qn_alloc((size_t)n, sizeof *entries);
    if (!entries) return QN_NOMEM(err, "sampling");
    for (int64_t i = 0; i < n; i++)
        entries[i] = (entry){expf((logits[i] - logits[best]) / opts->temperature), (int32_t)i};
    qsort(entries, (size_t)n, sizeof *entries, compare);
    // Both sums in double and in one order: in float, a long tail would no longer move the running
    // sum, and all its weight would fall on the last entry.
    double sum = 0, running = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)entries[i].p;
    const double u = (double)qn_philox_uniform(opts->seed, position, 0, 0) * sum;
    int64_t i = 0;
    while (i + 1 < n && entries[i + 1].p > 0 && (running += (double)entries[i].p) <= u) i++;
    *token = entries[i].id;
    qn_free(entries);
    return QN_OK;
}
