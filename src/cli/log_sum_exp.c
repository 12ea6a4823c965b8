#include "cli/log_sum_exp.h"

#include <math.h>

double qn_log_sum_exp(const float *x, int64_t n) {
    float max = x[0];
    double sum = 0;
    // (A reduction with fmax makes gcc 12 for 64-bit ARM fail.) A NaN shows in the sum.
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
    return (double)max + log(sum);
}
