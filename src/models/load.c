// Reading weights into memory, with the fixes that a checkpoint's numbers need.
#include "models/model_weights.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

static void apply_fix(float *x, int64_t n, unsigned fix) {
    for (int64_t i = 0; i < n; i++)
        x[i] = fix == QN_PLUS_ONE ? 1.0f + x[i] : (float)-exp((double)x[i]);
}

// Bytes first ... first + n - 1 of the parts end to end, in the type of the source.
static qn_status read_parts(unsigned char *to, const qn_weight *w, const qn_source *source,
                            int64_t first, int64_t n, qn_err *err) {
    for (size_t i = 0; i < w->n_parts && n > 0; i++) {
        const qn_weight_part *part = &w->parts[i];
        if (first >= part->bytes) {
            first -= part->bytes;
            continue;
        }
        const int64_t here = n < part->bytes - first ? n : part->bytes - first;
        QN_TRY(qn_source_read(source, part->tensor, part->offset + first, to, (size_t)here, err));
        to += here;
        n -= here;
        first = 0;
    }
    return n == 0 ? QN_OK
                  : QN_FAIL(err, ARGUMENT, "weight %s: %lld bytes too many are wanted", w->name,
                            (long long)n);
}

// Where elements lie in the parts, in bytes.
static qn_status find_range(int64_t *begin, int64_t *bytes, const qn_weight *w, qn_type stored,
                            int64_t first, int64_t n, qn_err *err) {
    if (first >= 0 && n >= 0 && first <= w->n && n <= w->n - first &&
        qn_type_bytes(begin, stored, first) && qn_type_bytes(bytes, stored, n))
        return QN_OK;
    return QN_FAIL(err, ARGUMENT, "weight %s: elements %lld to %lld of %lld are wanted", w->name,
                   (long long)first, (long long)first + n, (long long)w->n);
}

// Elements of a weight that no source has.
static qn_status read_own(void *to, const qn_weight *w, int64_t first, int64_t n, qn_err *err) {
    int64_t at, bytes;
    QN_TRY(find_range(&at, &bytes, w, QN_TYPE_F32, first, n, err));
    if (!w->data) return QN_FAIL(err, STATE, "weight %s is not in memory any more", w->name);
    memcpy(to, (const char *)w->data + at, (size_t)bytes);
    return QN_OK;
}

qn_status qn_weight_read_f32(float *to, const qn_weight *w, const qn_source *source, int64_t first,
                             int64_t n, qn_err *err) {
    if (w->n_parts == 0) return read_own(to, w, first, n, err);
    const qn_type stored = w->parts[0].tensor->type;
    const qn_type_info *info = qn_type_get(stored);
    unsigned char piece[16384]; // of whole blocks
    const int64_t max = (int64_t)sizeof piece / info->bytes * info->block;
    int64_t at, bytes;
    QN_TRY(find_range(&at, &bytes, w, stored, first, n, err));
    for (int64_t done = 0; done < n; done += max) {
        const int64_t here = n - done < max ? n - done : max;
        const int64_t here_bytes = here / info->block * info->bytes;
        QN_TRY(read_parts(piece, w, source, at, here_bytes, err));
        info->unpack(to + done, piece, here);
        at += here_bytes;
    }
    if (w->fix) apply_fix(to, n, w->fix);
    return QN_OK;
}

qn_status qn_weight_read(void *to, const qn_weight *w, const qn_source *source, int64_t first,
                         int64_t n, qn_err *err) {
    if (w->n_parts == 0) return read_own(to, w, first, n, err);
    const qn_type stored = w->parts[0].tensor->type;
    int64_t at, bytes;
    // A vector becomes float32, and only floats are ever fixed.
    if (stored != w->type || w->fix) return qn_weight_read_f32(to, w, source, first, n, err);
    QN_TRY(find_range(&at, &bytes, w, stored, first, n, err));
    return read_parts(to, w, source, at, bytes, err);
}

static qn_status load_weight(qn_weight *w, const qn_source *source, qn_err *err) {
    void *data = qn_alloc((size_t)w->bytes, 1);
    if (!data) return QN_NOMEM(err, w->name);
    const qn_status status = qn_weight_read(data, w, source, 0, w->n, err);
    if (status)
        qn_free(data);
    else
        w->data = data;
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

qn_status qn_weights_params(const void ***out, const qn_weights *weights, const qn_graph *graph,
                            qn_err *err) {
    const void **params = qn_alloc(graph->n_values, sizeof *params);
    if (!params) return QN_NOMEM(err, "parameters");
    for (size_t i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i].op != QN_OP_PARAM) continue;
        const int32_t id = graph->nodes[i].out[0];
        const char *name = graph->values[id].name;
        uint32_t index;
        if (qn_map_find(&weights->by_name, name, strlen(name), &index))
            params[id] = weights->items[index].data;
        if (!params[id]) {
            qn_free(params);
            return QN_FAIL(err, STATE, "weight %s is not loaded", name);
        }
    }
    *out = params;
    return QN_OK;
}
