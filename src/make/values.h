// Weights on their way into a file: what cannot be stored as it is, is refused and named.
#ifndef QN_MAKE_VALUES_H
#define QN_MAKE_VALUES_H

#include "core/err.h"
#include "quant/type.h"

// A run of values of one tensor, within one row.
typedef struct qn_values {
    const char *tensor; // its name
    int64_t width;      // of its rows
    int64_t first, n;   // position in the tensor of x[0], and how many
    const float *x;     // (n)
} qn_values;

// NaN and infinities are an error that says where.
QN_MUST_CHECK qn_status qn_values_check_finite(const qn_values *values, qn_err *err);
// Packs finite values, a whole number of blocks. What is beyond the type's range is an error, never
// cut off. `weights` as qn_type_info.pack takes them.
QN_MUST_CHECK qn_status qn_values_pack(void *to, const qn_type_info *type, const qn_values *values,
                                       const float *weights, qn_err *err);

#endif
