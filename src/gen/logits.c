#include "gen/logits.h"

#include "gen/top_logits.h"

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

// 0, or NaN if a logit is not finite.
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
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    return max;
}

void qn_logits_maxima(float *maxima, const float *logits, int64_t n) {
    for (int64_t i = 0; i < n; i += BLOCK) maxima[i / BLOCK] = fold_block(logits + i, n - i);
}

// As qn_logits_maxima; false if a logit is not finite.
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
    const qn_logits_range range = {.n = n, .min = logits[i], .broken = i};
    return qn_logits_range_check(&range, err);
}

// `max` is the largest logit; `min` is one of them, maybe the smallest.
static qn_status check_spread(const float *logits, int64_t n, float max, float min, qn_err *err) {
    for (int64_t i = 0; i < n && max - min < QN_MIN_SPREAD; i++) min = fminf(min, logits[i]);
    const qn_logits_range range = {.n = n, .min = min, .max = max, .broken = -1};
    return qn_logits_range_check(&range, err);
}

qn_status qn_logits_check(const float *logits, int64_t n, qn_err *err) {
    enum { BLOCKS = 64, PART = BLOCKS * BLOCK };
    float maxima[BLOCKS], max = -INFINITY, min = INFINITY;
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t size = n - at < PART ? n - at : PART;
        if (!scan(maxima, logits + at, size)) return refuse_fault(logits, n, err);
        for (int64_t b = 0; b * BLOCK < size; b++) {
            max = fmaxf(max, maxima[b]);
            min = fminf(min, maxima[b]);
        }
    }
    return check_spread(logits, n, max, min, err);
}

qn_status qn_logits_check_maxima(float *maxima, const float *logits, int64_t n, qn_err *err) {
    float max = -INFINITY, min = INFINITY;
    if (!scan(maxima, logits, n)) return refuse_fault(logits, n, err);
    for (int64_t b = 0; b * BLOCK < n; b++) {
        max = fmaxf(max, maxima[b]);
        min = fminf(min, maxima[b]);
    }
    return check_spread(logits, n, max, min, err);
}

int32_t qn_logits_best(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        if (fold_block(logits + i, n - i) <= logits[best]) continue;
        for (int64_t j = i; j < n && j < i + BLOCK; j++) best = logits[j] > logits[best] ? j : best;
    }
    return (int32_t)best;
}
