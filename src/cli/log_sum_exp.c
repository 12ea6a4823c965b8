#include "cli/log_sum_exp.h"

#include <math.h>

double qn_log_sum_exp(const float *x, int64_t n) {
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) max = fmax(max, (double)x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - max);
    return max + log(sum);
}
