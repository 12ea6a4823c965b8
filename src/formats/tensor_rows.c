// Rows of a tensor as floats.
#include "formats/source.h"

#include "core/mem.h"

enum { PIECE = 1 << 18 }; // bytes that are read at a time, at least one row

// Rows and their width.
static void shape_of(int64_t *rows, int64_t *width, const qn_tensor *t) {
    *rows = 1;
    for (int d = 0; d + 1 < t->n_dims; d++) *rows *= t->dims[d]; // the source checked the product
    *width = t->n_dims ? t->dims[t->n_dims - 1] : 1;
}

static qn_status check(const qn_tensor *t, int64_t rows, int64_t first, int64_t n, qn_err *err) {
    if (!qn_type_get(t->type)->unpack)
        return QN_FAIL(err, UNSUPPORTED, "tensor %s: numbers of type %s cannot be read",
                       t->name.data, qn_type_get(t->type)->name);
    if (first < 0 || n < 0 || first > rows || n > rows - first)
        return QN_FAIL(err, ARGUMENT, "tensor %s: %lld rows from %lld on, it has %lld",
                       t->name.data, (long long)n, (long long)first, (long long)rows);
    return QN_OK;
}

qn_status qn_source_read_rows(float *to, const qn_source *source, size_t i, int64_t first,
                              int64_t n, qn_err *err) {
    QN_NEED(source, err);
    const qn_tensor *t = qn_source_tensor(source, i);
    if (!t)
        return QN_FAIL(err, ARGUMENT, "tensor %zu, the source has %zu", i,
                       qn_source_n_tensors(source));
    int64_t rows, width, bytes;
    shape_of(&rows, &width, t);
    QN_TRY(check(t, rows, first, n, err));
    if (n == 0 || width == 0) return QN_OK;
    QN_NEED(to, err);
    if (!qn_type_bytes(&bytes, t->type, width) || bytes * rows != t->bytes)
        return QN_FAIL(err, FORMAT, "tensor %s: %lld bytes, not %lld rows of %lld %s", t->name.data,
                       (long long)t->bytes, (long long)rows, (long long)width,
                       qn_type_get(t->type)->name);
    const int64_t some = qn_max(1, qn_min(n, PIECE / bytes));
    unsigned char *piece = qn_alloc((size_t)some, (size_t)bytes);
    if (!piece) return QN_NOMEM(err, t->name.data);
    qn_status status = QN_OK;
    for (int64_t at = 0; at < n && !status; at += some) {
        const int64_t now = qn_min(some, n - at);
        status = qn_source_read(source, t, (first + at) * bytes, piece, (size_t)(now * bytes), err);
        if (!status) qn_type_get(t->type)->unpack(to + at * width, piece, now * width);
    }
    qn_free(piece);
    return status;
}
