#include "make/stream.h"

#include "core/mem.h"
#include "make/values.h"

#include <math.h>
#include <string.h>

enum { SLAB = 1 << 22 }; // bytes of a slab as float32, but at least one row

qn_status qn_making_add(qn_making *making, int64_t bytes, qn_err *err) {
    making->done += bytes;
    if (making->progress && !making->progress(making->progress_arg, making->done, making->total))
        return QN_FAIL(err, STOPPED, "stopped at %lld of %lld bytes", (long long)making->done,
                       (long long)making->total);
    return QN_OK;
}

static int64_t last_dim(const qn_weight *w) { return w->shape.dims[w->shape.n_dims - 1].n; }

qn_type qn_stream_type(const qn_weight *w, const qn_type *wanted) {
    if (w->shape.n_dims == 1 || w->keeps_f32) return QN_TYPE_F32;
    if (!wanted) return w->type;
    return last_dim(w) % qn_type_get(*wanted)->block ? QN_TYPE_F16 : *wanted;
}

void qn_stream_declare(qn_gguf_writer *to, const qn_weight *w, qn_type type) {
    qn_gguf_tensor tensor = {.name = w->name, .type = type, .n_dims = w->shape.n_dims};
    for (int i = 0; i < tensor.n_dims; i++) tensor.dims[i] = w->shape.dims[i].n;
    qn_gguf_add_tensor(to, &tensor);
}

typedef struct stream {
    const qn_weight *w;
    const qn_source *source;
    const qn_type_info *from, *to;
    int64_t n_rows, n_cols;       // a vector is a column
    int64_t row_bytes, part_rows; // in the source
    unsigned char *raw, *sorted;  // (slab) rows as in the source; with columns in order
    float *values;                // (slab)
    unsigned char *packed;        // (slab) as in the file
} stream;

// Row `row` of the weight and those that follow it in the same part, at most `n`.
static qn_status read_run(int64_t *n_read, const stream *s, int64_t row, int64_t n,
                          unsigned char *to, qn_err *err) {
    const qn_order *order = s->w->order.is_columns ? &(qn_order){0} : &s->w->order;
    const int64_t first = qn_order_source(order, row);
    const qn_weight_part *part = &s->w->parts[first / s->part_rows];
    const int64_t at = first % s->part_rows;
    int64_t run = 1;
    while (run < n && at + run < s->part_rows && qn_order_source(order, row + run) == first + run)
        run++;
    *n_read = run;
    return qn_source_read(s->source, part->tensor, part->offset + at * s->row_bytes, to,
                          (size_t)(run * s->row_bytes), err);
}

static void sort_columns(const stream *s, int64_t n_rows) {
    const size_t size = (size_t)s->from->bytes;
    for (int64_t row = 0; row < n_rows; row++) {
        const unsigned char *from = s->raw + row * s->row_bytes;
        unsigned char *to = s->sorted + row * s->row_bytes;
        for (int64_t i = 0; i < s->n_cols; i++)
            memcpy(to + (size_t)i * size, from + (size_t)qn_order_source(&s->w->order, i) * size,
                   size);
    }
}

static void fix_values(float *x, int64_t n, unsigned fix) {
    for (int64_t i = 0; i < n && fix; i++)
        x[i] = fix == QN_PLUS_ONE ? 1.0f + x[i] : (float)-exp((double)x[i]);
}

// Fixes, checks and packs `n` rows. A vector is checked as one row.
static qn_status pack_slab(const stream *s, const unsigned char *bytes, int64_t row, int64_t n,
                           qn_err *err) {
    const bool is_vector = s->w->shape.n_dims == 1;
    const int64_t run = is_vector ? n : s->n_cols, n_all = n * s->n_cols;
    s->from->unpack(s->values, bytes, n_all);
    fix_values(s->values, n_all, s->w->fix);
    for (int64_t at = 0; at < n_all; at += run) {
        const qn_values v = {.tensor = s->w->name,
                             .width = is_vector ? s->w->n : s->n_cols,
                             .first = row * s->n_cols + at,
                             .n = run,
                             .x = s->values + at};
        QN_TRY(qn_values_check_finite(&v, err));
        if (s->from == s->to && !s->w->fix) continue;
        QN_TRY(qn_values_pack(s->packed + at / s->to->block * s->to->bytes, s->to, &v, NULL, err));
    }
    return QN_OK;
}

static qn_status write_slab(qn_gguf_writer *to, const stream *s, int64_t row, int64_t n,
                            qn_making *making, qn_err *err) {
    for (int64_t done = 0, run; done < n; done += run)
        QN_TRY(read_run(&run, s, row + done, n - done, s->raw + done * s->row_bytes, err));
    if (s->w->order.is_columns) sort_columns(s, n);
    const unsigned char *bytes = s->w->order.is_columns ? s->sorted : s->raw;
    const int64_t row_bytes = s->n_cols / s->to->block * s->to->bytes;
    QN_TRY(pack_slab(s, bytes, row, n, err));
    if (s->from != s->to || s->w->fix) bytes = s->packed;
    QN_TRY(qn_gguf_write(to, bytes, (size_t)(n * row_bytes), err));
    return qn_making_add(making, n * row_bytes, err);
}

qn_status qn_stream_write(qn_gguf_writer *to, const qn_weight *w, qn_type type,
                          const qn_source *source, qn_making *making, qn_err *err) {
    stream s = {.w = w,
                .source = source,
                .from = qn_type_get(w->parts[0].tensor->type),
                .to = qn_type_get(type),
                .n_cols = w->shape.n_dims == 1 ? 1 : last_dim(w)};
    s.n_rows = w->n / s.n_cols;
    s.row_bytes = s.n_cols * s.from->bytes;
    s.part_rows = w->parts[0].bytes / s.row_bytes;
    const int64_t fitting = SLAB / 4 / s.n_cols;
    const int64_t slab = fitting < 1 ? 1 : fitting < s.n_rows ? fitting : s.n_rows;
    const size_t n = (size_t)(slab * s.n_cols);
    qn_status status = QN_OK;
    s.raw = qn_alloc(n, (size_t)s.from->bytes);
    s.sorted = qn_alloc(w->order.is_columns ? n : 1, (size_t)s.from->bytes);
    s.values = qn_alloc(n, sizeof *s.values);
    s.packed = qn_alloc(n, sizeof *s.values); // no type takes more than float32
    if (!s.raw || !s.sorted || !s.values || !s.packed) {
        status = QN_NOMEM(err, w->name);
        goto done;
    }
    for (int64_t row = 0; row < s.n_rows; row += slab) {
        const int64_t left = s.n_rows - row;
        QN_TRY_TO(done, write_slab(to, &s, row, left < slab ? left : slab, making, err));
    }

done:
    qn_free(s.raw);
    qn_free(s.sorted);
    qn_free(s.values);
    qn_free(s.packed);
    return status;
}
