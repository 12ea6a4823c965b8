#include "gen/best.h"

#include <math.h>

qn_status qn_row_facts_check(const qn_row_facts *f, qn_err *err) {
    if (f->broken >= 0) // the sign of a NaN depends on the compiler: do not print it
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: score %lld of %lld is %s",
                       (long long)f->broken, (long long)f->n,
                       isnan(f->least) ? "nan"
                       : f->least > 0  ? "inf"
                                       : "-inf");
    if (f->n > 1 && f->most - f->least < QN_MIN_SPREAD)
        return QN_FAIL(err, NUMERIC, "the forward pass is broken: all %lld scores are %g",
                       (long long)f->n, (double)f->most);
    return QN_OK;
}
