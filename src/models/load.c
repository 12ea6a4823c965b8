// Reading weights into memory, with the fixes that a checkpoint's numbers need.
#include "models/bind.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

static void apply_fix(float *x, int64_t n, unsigned fix) {
    for (int64_t i = 0; i < n; i++)
        x[i] = fix == QN_PLUS_ONE ? 1.0f + x[i] : (float)-exp((double)x[i]);
}

// Parts end to end, in the type of the source.
static qn_status read_parts(unsigned char *to, const qn_weight *w, const qn_source *source,
                            qn_err *err) {
    for (size_t i = 0; i < w->n_parts; i++) {
        const qn_weight_part *part = &w->parts[i];
        QN_TRY(qn_source_read(source, part->tensor, part->offset, to, (size_t)part->bytes, err));
        to += part->bytes;
    }
    return QN_OK;
}

static qn_status load_weight(qn_weight *w, const qn_source *source, qn_err *err) {
    const qn_type stored = w->parts[0].tensor->type;
    void *data = qn_alloc((size_t)w->bytes, 1);
    if (!data) return QN_NOMEM(err, w->name);
    qn_status status = QN_OK;
    unsigned char *packed = NULL;
    if (stored == w->type) {
        QN_TRY_TO(done, read_parts(data, w, source, err));
    } else { // a vector that becomes float32
        packed = qn_alloc((size_t)w->parts[0].bytes, 1);
        if (!packed) {
            status = QN_NOMEM(err, w->name);
            goto done;
        }
        QN_TRY_TO(done, read_parts(packed, w, source, err));
        qn_type_get(stored)->unpack(data, packed, w->n);
    }
    if (w->fix) apply_fix(data, w->n, w->fix);
    w->data = data;
    data = NULL;

done:
    qn_free(packed);
    qn_free(data);
    return status;
}

static bool is_wanted(const qn_weight *w, const qn_load_opts *opts) {
    return !w->data && (opts->with_predict || !w->is_predict);
}

qn_status qn_weights_load(qn_weights *weights, const qn_source *source, const qn_load_opts *opts,
                          qn_err *err) {
    int64_t done = 0, total = 0;
    for (size_t i = 0; i < weights->n; i++) {
        if (is_wanted(&weights->items[i], opts)) total += weights->items[i].bytes;
    }
    for (size_t i = 0; i < weights->n; i++) {
        if (!is_wanted(&weights->items[i], opts)) continue;
        QN_TRY(load_weight(&weights->items[i], source, err));
        done += weights->items[i].bytes;
        if (opts->progress && !opts->progress(opts->progress_arg, done, total))
            return QN_FAIL(err, STOPPED, "loading stopped at %lld of %lld bytes", (long long)done,
                           (long long)total);
    }
    return QN_OK;
}
