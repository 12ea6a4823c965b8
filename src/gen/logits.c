#include "gen/logits.h"

#include <math.h>

enum { BLOCK = QN_LOGITS_BLOCK };

// Blocks are folded in halves, because that is a form which compilers turn into vectors.

static float fold_maximum(const float x[BLOCK]) {
    float m[BLOCK / 2];
    for (int j = 0; j < 32; j++) m[j] = x[j] > x[j + 32] ? x[j] : x[j + 32];
    for (int j = 0; j < 16; j++) m[j] = m[j] > m[j + 16] ? m[j] : m[j + 16];
    for (int j = 0; j < 8; j++) m[j] = m[j] > m[j + 8] ? m[j] : m[j + 8];
    for (int j = 0; j < 4; j++) m[j] = m[j] > m[j + 4] ? m[j] : m[j + 4];
    const float a = m[0] > m[1] ? m[0] : m[1], b = m[2] > m[3] ? m[2] : m[3];
    return a > b ? a : b;
}

// 0, or NaN if a score is not finite.
static float fold_faults(const float x[BLOCK]) {
    float m[BLOCK / 2];
    for (int j = 0; j < 32; j++) m[j] = (x[j] - x[j]) + (x[j + 32] - x[j + 32]);
    for (int j = 0; j < 16; j++) m[j] += m[j + 16];
    for (int j = 0; j < 8; j++) m[j] += m[j + 8];
    for (int j = 0; j < 4; j++) m[j] += m[j + 4];
    return m[0] + m[1] + m[2] + m[3];
}

static float fold_block(const float *logits, int64_t n) {
    if (n >= BLOCK) return fold_maximum(logits);
    float most = -INFINITY;
    for (int64_t i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
    return most;
}

void qn_logits_maxima(float *maxima, const float *logits, int64_t n) {
    for (int64_t i = 0; i < n; i += BLOCK) maxima[i / BLOCK] = fold_block(logits + i, n - i);
}

// As qn_logits_maxima; false if a score is not finite.
static bool scan(float *maxima, const float *logits, int64_t n) {
    float faults = 0;
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        maxima[i / BLOCK] = fold_maximum(logits + i);
        faults += fold_faults(logits + i);
    }
    if (i < n) maxima[i / BLOCK] = fold_block(logits + i, n - i);
    for (; i < n; i++) faults += logits[i] - logits[i];
    return !isnan(faults);
}

static qn_status refuse_fault(const float *logits, int64_t n, qn_err *err) {
    int64_t i = 0;
    while (isfinite(logits[i])) i++;
    // The sign of a NaN depends on the compiler: do not print it.
    return QN_FAIL(err, NUMERIC, "the forward pass is broken: score %lld of %lld is %s",
                   (long long)i, (long long)n,
                   isnan(logits[i]) ? "nan"
                   : logits[i] > 0  ? "inf"
                                    : "-inf");
}

// `most` is the largest score; `least` is one of them, maybe the smallest.
static qn_status check_spread(const float *logits, int64_t n, float most, float least,
                              qn_err *err) {
    const float apart = 1e-6f;
    for (int64_t i = 0; i < n && most - least < apart; i++) least = fminf(least, logits[i]);
    if (n > 1 && most - least < apart)
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: all %lld scores are %g",
                       (long long)n, (double)most);
    return QN_OK;
}

qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err) {
    enum { BLOCKS = 64, PART = BLOCKS * BLOCK };
    float maxima[BLOCKS], most = -INFINITY, least = INFINITY;
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t size = n - at < PART ? n - at : PART;
        if (!scan(maxima, logits + at, size)) return refuse_fault(logits, n, err);
        for (int64_t b = 0; b * BLOCK < size; b++) {
            most = fmaxf(most, maxima[b]);
            least = fminf(least, maxima[b]);
        }
    }
    return check_spread(logits, n, most, least, err);
}

qn_status qn_logits_check_maxima(float *maxima, const float *logits, int64_t n, qn_err *err) {
    float most = -INFINITY, least = INFINITY;
    if (!scan(maxima, logits, n)) return refuse_fault(logits, n, err);
    for (int64_t b = 0; b * BLOCK < n; b++) {
        most = fmaxf(most, maxima[b]);
        least = fminf(least, maxima[b]);
    }
    return check_spread(logits, n, most, least, err);
}

int32_t qn_logits_best(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        if (fold_block(logits + i, n - i) <= logits[best]) continue;
        for (int64_t j = i; j < n && j < i + BLOCK; j++) best = logits[j] > logits[best] ? j : best;
    }
    return (int32_t)best;
}
