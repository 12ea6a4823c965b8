// Arithmetic on a row of scores.
#ifndef QN_CLI_SCORES_H
#define QN_CLI_SCORES_H

#include <stdint.h>

// log(sum of exp(x)): what a score loses to become a log-probability.
double qn_log_sum_exp(const float *x, int64_t n);

#endif
