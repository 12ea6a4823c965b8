#include "gen/top_logits.h"

#include <math.h>

qn_status qn_logits_range_check(const qn_logits_range *r, qn_err *err) {
    if (r->broken >= 0) // the sign of a NaN depends on the compiler: do not print it
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: logit %lld of %lld is %s",
                       (long long)r->broken, (long long)r->n,
                       isnan(r->min) ? "nan"
                       : r->min > 0  ? "inf"
                                     : "-inf");
    if (r->n > 1 && r->max - r->min < QN_MIN_SPREAD)
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: all %lld logits are %g",
                       (long long)r->n, (double)r->max);
    return QN_OK;
}
