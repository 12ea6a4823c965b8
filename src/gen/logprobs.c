#include "gen/logprobs.h"

#include "gen/logits.h"
#include "gen/weight.h"

#include <math.h>

enum { BLOCK = QN_LOGITS_BLOCK };

double qn_logprobs_base(const float *logits, int64_t n) {
    const float best = logits[qn_logits_best(logits, n)];
    float e[BLOCK];
    double lanes[BLOCK] = {0}; // summed up side by side, so that compilers use vectors
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t size = n - i < BLOCK ? n - i : BLOCK;
        for (int64_t j = 0; j < BLOCK; j++) e[j] = j < size ? logits[i + j] - best : -INFINITY;
        for (int j = 0; j < BLOCK; j++) e[j] = qn_exp_negative(e[j]);
        for (int j = 0; j < BLOCK; j++) lanes[j] += (double)e[j];
    }
    for (int j = 1; j < BLOCK; j++) lanes[0] += lanes[j];
    return (double)best + log(lanes[0]);
}

// `top` holds the best so far with their raw logits, in order.
static int64_t insert(qn_token_logprob *top, int64_t n_got, int64_t n_top, qn_token_logprob new) {
    int64_t at = n_got < n_top ? n_got++ : n_got - 1;
    for (; at > 0 && top[at - 1].logprob < new.logprob; at--) top[at] = top[at - 1];
    top[at] = new;
    return n_got;
}

static int64_t find_top(qn_token_logprob *top, int64_t n_top, const float *logits, int64_t n) {
    int64_t n_got = 0;
    float min = -INFINITY; // what the next one must be above
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t size = n - from < BLOCK ? n - from : BLOCK;
        float max;
        qn_logits_maxima(&max, logits + from, size);
        if (n_got == n_top && max <= min) continue;
        for (int64_t i = from; i < from + size; i++) {
            if (n_got == n_top && logits[i] <= min) continue;
            n_got = insert(top, n_got, n_top, (qn_token_logprob){(int32_t)i, logits[i]});
            min = top[n_got - 1].logprob;
        }
    }
    return n_got;
}

float qn_logprobs_get(int64_t *n_got, qn_token_logprob *top, int64_t n_top, const float *logits,
                      int64_t n, int32_t token) {
    const double base = qn_logprobs_base(logits, n);
    *n_got = n_top > 0 ? find_top(top, n_top, logits, n) : 0;
    for (int64_t i = 0; i < *n_got; i++) top[i].logprob = (float)((double)top[i].logprob - base);
    return (float)((double)logits[token] - base);
}
