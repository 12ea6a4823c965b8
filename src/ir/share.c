#include "ir/share.h"

#include "core/mem.h"

#include <string.h>

qn_status qn_gather_check(const qn_attrs *attrs, qn_err *err) {
    int64_t piece;
    if (attrs->length > 0 && attrs->length <= QN_GATHER_MAX && attrs->unit > 0 &&
        attrs->parts > 0 && qn_i64_mul(&piece, attrs->unit, attrs->parts) &&
        attrs->length % piece == 0)
        return QN_OK;
    return QN_FAIL(err, FORMAT, "%lld values in %lld parts of units of %lld",
                   (long long)attrs->length, (long long)attrs->parts, (long long)attrs->unit);
}

static int64_t units_of(const qn_attrs *attrs) {
    return attrs->length / attrs->parts / attrs->unit;
}

int64_t qn_gather_first(const qn_attrs *attrs, int rank, int n_ranks) {
    return qn_share_first(units_of(attrs), rank, n_ranks) * attrs->unit;
}

// The last rank whose first unit is not after this one.
int qn_gather_owner(const qn_attrs *attrs, int64_t id, int n_ranks) {
    const int64_t inside = qn_max(0, qn_min(id, attrs->length - 1));
    return (int)(((inside / attrs->unit + 1) * n_ranks - 1) / units_of(attrs));
}

static qn_status check_ranges(const qn_share *share, int64_t wanted, qn_err *err) {
    int64_t end = 0, sum = 0;
    for (int i = 0; i < share->n_ranges; i++) {
        const qn_share_range *r = &share->ranges[i];
        const bool is_apart = i == 0 ? r->first >= 0 : r->first > end;
        if (!is_apart || r->n < 1 || r->n > share->whole || r->first > share->whole - r->n)
            return QN_FAIL(err, FORMAT, "range %d of a share: %lld from %lld on, of %lld", i,
                           (long long)r->n, (long long)r->first, (long long)share->whole);
        end = r->first + r->n;
        sum += r->n;
    }
    return sum == wanted ? QN_OK
                         : QN_FAIL(err, FORMAT, "a share of %lld indices, the shape has %lld",
                                   (long long)sum, (long long)wanted);
}

qn_status qn_share_check(const qn_share *share, const qn_shape *shape, qn_err *err) {
    char text[96];
    if (!share) return QN_OK;
    if (share->axis < 0 || share->axis >= shape->n_dims ||
        shape->dims[share->axis].sym != QN_SYM_ONE)
        return QN_FAIL(err, FORMAT, "a share of axis %d of %s", share->axis,
                       qn_shape_text(text, sizeof text, shape));
    return check_ranges(share, shape->dims[share->axis].n, err);
}

qn_status qn_share_check_weight(const qn_share *share, const qn_shape *shape, qn_err *err) {
    char text[96];
    QN_TRY(qn_share_check(share, shape, err));
    if (!share || shape->n_dims < 2 || share->axis + 1 < shape->n_dims) return QN_OK;
    return QN_FAIL(err, FORMAT, "a share of the rows of %s",
                   qn_shape_text(text, sizeof text, shape));
}

bool qn_share_dup(const qn_share **out, qn_arena *arena, const qn_share *share) {
    *out = NULL;
    if (!share) return true;
    const size_t n = (size_t)share->n_ranges;
    qn_share *copy = qn_arena_alloc(arena, 1, sizeof *copy);
    qn_share_range *ranges = qn_arena_alloc(arena, n, sizeof *ranges);
    if (!copy || !ranges) return false;
    memcpy(ranges, share->ranges, n * sizeof *ranges);
    *copy = *share;
    copy->ranges = ranges;
    *out = copy;
    return true;
}

int64_t qn_share_find(int64_t *n, const qn_share *share, const qn_shape *shape, int64_t i) {
    int64_t inner = 1; // elements of one index
    for (int d = share->axis + 1; d < shape->n_dims; d++) inner *= shape->dims[d].n;
    const int64_t own = shape->dims[share->axis].n, outer = i / (own * inner);
    int64_t index = i / inner % own;
    const qn_share_range *r = share->ranges;
    while (index >= r->n) index -= r++->n;
    *n = (r->n - index) * inner - i % inner;
    return (outer * share->whole + r->first + index) * inner + i % inner;
}
