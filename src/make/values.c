#include "make/values.h"

#include "core/mem.h"

#include <math.h>

static const float half_max = 65504; // of a float of 16 bits, which scales of blocks are too

qn_status qn_values_check_finite(const qn_values *v, qn_err *err) {
    for (int64_t i = 0; i < v->n; i++) {
        if (!isfinite(v->x[i]))
            return QN_FAIL(err, FORMAT, "%s: value %g at row %lld, column %lld", v->tensor,
                           (double)v->x[i], (long long)((v->first + i) / v->width),
                           (long long)((v->first + i) % v->width));
    }
    return QN_OK;
}

static float largest(const float *x, int64_t n) {
    float max = 0;
    for (int64_t i = 0; i < n; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

// Where a type ends depends on its scales and on the row. But a row made smaller by a power of two
// is packed alike if nothing was cut off, so the two must unpack alike.
static qn_status is_held(bool *out, const void *packed, const qn_type_info *type,
                         const qn_values *v, const float *weights, qn_err *err) {
    const size_t n = (size_t)v->n, bytes = n / (size_t)type->block * (size_t)type->bytes;
    const float max = largest(v->x, v->n);
    float *small = qn_alloc(n, sizeof *small), *back = qn_alloc(n, sizeof *back);
    void *again = qn_alloc(bytes, 1);
    qn_status status = QN_OK;
    if (!small || !back || !again) {
        status = QN_NOMEM(err, v->tensor);
        goto done;
    }
    const int shift = ilogbf(max) - 10;
    for (size_t i = 0; i < n; i++) small[i] = ldexpf(v->x[i], -shift);
    type->pack(again, small, v->n, weights);
    type->unpack(small, again, v->n);
    type->unpack(back, packed, v->n);
    *out = true;
    for (size_t i = 0; i < n && *out; i++)
        *out = fabsf(back[i] - ldexpf(small[i], shift)) <= 0.01f * max; // false for NaN

done:
    qn_free(small);
    qn_free(back);
    qn_free(again);
    return status;
}

qn_status qn_values_pack(void *to, const qn_type_info *type, const qn_values *v,
                         const float *weights, qn_err *err) {
    type->pack(to, v->x, v->n, weights);
    const float max = largest(v->x, v->n);
    if (max <= half_max) return QN_OK;
    bool held = false;
    if (type != qn_type_get(QN_TYPE_F16)) QN_TRY(is_held(&held, to, type, v, weights, err));
    if (held) return QN_OK;
    return QN_FAIL(err, LIMIT, "%s: row %lld has values up to %g, which do not fit in %s",
                   v->tensor, (long long)(v->first / v->width), (double)max, type->name);
}
