#include "gen/logits.h"

#include <math.h>

enum { LANES = 16 }; // what is summed up side by side, so that compilers use vectors

qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err) {
    float least[LANES], most[LANES], zeros[LANES] = {0};
    for (int j = 0; j < LANES; j++) {
        least[j] = INFINITY;
        most[j] = -INFINITY;
    }
    const int64_t n_blocks = n / LANES;
    for (int64_t i = 0; i < n_blocks; i++) {
        const float *row = logits + i * LANES;
        for (int j = 0; j < LANES; j++) {
            least[j] = row[j] < least[j] ? row[j] : least[j];
            most[j] = row[j] > most[j] ? row[j] : most[j];
            zeros[j] += row[j] * 0; // NaN once a score is not finite, and from then on
        }
    }
    for (int64_t i = n_blocks * LANES; i < n; i++) {
        least[0] = fminf(least[0], logits[i]);
        most[0] = fmaxf(most[0], logits[i]);
        zeros[0] += logits[i] * 0;
    }
    for (int j = 1; j < LANES; j++) {
        least[0] = fminf(least[0], least[j]);
        most[0] = fmaxf(most[0], most[j]);
        zeros[0] += zeros[j];
    }
    for (int64_t i = 0; i < n && isnan(zeros[0]); i++) {
        if (!isfinite(logits[i])) // the sign of a NaN depends on the compiler: do not print it
            return QN_FAIL(err, NUMERIC, "the forward pass is broken: score %lld of %lld is %s",
                           (long long)i, (long long)n,
                           isnan(logits[i]) ? "nan"
                           : logits[i] > 0  ? "inf"
                                            : "-inf");
    }
    if (n > 1 && most[0] - least[0] < 1e-6f)
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: all %lld scores are %g",
                       (long long)n, (double)most[0]);
    return QN_OK;
}

int32_t qn_logits_best(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}
