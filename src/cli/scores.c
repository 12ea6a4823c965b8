#include "cli/scores.h"

#include <math.h>

double qn_log_sum_exp(const float *x, int64_t n) {
    double most = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) most = fmax(most, (double)x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}
