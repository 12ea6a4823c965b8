// The normaliser of a row of logits.
#ifndef QN_CLI_LOG_SUM_EXP_H
#define QN_CLI_LOG_SUM_EXP_H

#include <stdint.h>

// log(sum of exp(x)): a logit minus this is a log-probability.
double qn_log_sum_exp(const float *x, int64_t n);

#endif
