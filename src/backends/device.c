// The devices of this machine, by name.
#include "backends/device.h"

#include "core/buf.h"
#include "core/err.h"
#include "core/mem.h"
#include "ir/share.h"

#include <string.h>

static const qn_device_kind *const kinds[] = {&qn_cpu_device_kind, &qn_ref_device_kind,
                                              &qn_cuda_device_kind};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

const qn_device_kind *qn_device_kind_get(size_t i) { return i < N_KINDS ? kinds[i] : NULL; }

bool qn_device_list(const char **name, const qn_device_kind **kind, size_t i) {
    for (size_t k = 0; k < N_KINDS; k++) {
        if (kinds[k]->is_there && !kinds[k]->is_there()) continue;
        *kind = kinds[k];
        *name = kinds[k]->name;
        if (i-- == 0) return true;
        for (size_t v = 0; kinds[k]->variant && kinds[k]->variant(v); v++) {
            *name = kinds[k]->variant(v);
            if (i-- == 0) return true;
        }
    }
    return false;
}

static qn_status fail_unknown(const char *name, size_t size, qn_err *err) {
    qn_buf list = {0};
    for (size_t i = 0; i < N_KINDS; i++)
        qn_buf_printf(&list, "%s%s", i ? ", " : "", kinds[i]->name);
    const qn_status status = QN_FAIL(err, ARGUMENT, "no device '%.*s'; there are %s",
                                     size > 32 ? 32 : (int)size, name, list.data ? list.data : "");
    qn_buf_deinit(&list);
    return status;
}

// The kind of a name, and its variant; NULL: the name says none. NULL: there is no such kind.
static const qn_device_kind *find_kind(const char **variant, const char *name) {
    const size_t size = strcspn(name, ":");
    *variant = name[size] ? name + size + 1 : NULL;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i]->name) == size && memcmp(kinds[i]->name, name, size) == 0)
            return kinds[i];
    }
    return NULL;
}

qn_status qn_device_open(qn_device **out, const char *name, const char *variant, qn_pool *pool,
                         qn_err *err) {
    if (!name || !*name) return kinds[0]->open(out, variant, pool, err);
    const char *own;
    const qn_device_kind *kind = find_kind(&own, name);
    if (!kind) return fail_unknown(name, strcspn(name, ":"), err);
    const bool has_variants = kind->variant && kind->variant(0);
    if (own) return kind->open(out, own, pool, err);
    return kind->open(out, has_variants ? variant : NULL, pool, err);
}

qn_status qn_device_measure(qn_limits *out, const char *name, int n_threads, qn_err *err) {
    const char *variant;
    const qn_device_kind *kind = find_kind(&variant, name);
    if (!kind) return fail_unknown(name, strcspn(name, ":"), err);
    if (!kind->limits)
        return QN_FAIL(err, UNSUPPORTED, "the limits of device %s are not measured", kind->name);
    return kind->limits(out, variant, n_threads, err);
}

bool qn_device_shares_memory(const qn_device *a, const qn_device *b) {
    if (a->kind->has_host_memory || b->kind->has_host_memory)
        return a->kind->has_host_memory && b->kind->has_host_memory;
    return a->backend == b->backend;
}

qn_status qn_device_failure(const qn_device *device, qn_err *err) {
    return device->kind->failure ? device->kind->failure(device, err) : QN_OK;
}

void qn_device_close(qn_device *device) {
    if (device) device->kind->close(device);
}

qn_status qn_leaf_values(int64_t *n, int64_t *width, const qn_plan_leaf *leaf, qn_err *err) {
    const qn_shape *shape = &leaf->shape;
    char text[128];
    int64_t product = 1;
    for (int i = 0; i < shape->n_dims; i++) {
        if (shape->dims[i].sym != QN_SYM_ONE || !qn_i64_mul(&product, product, shape->dims[i].n))
            return QN_FAIL(err, LIMIT, "weight %s: %s is not a size that can be loaded", leaf->name,
                           qn_shape_text(text, sizeof text, shape));
    }
    *n = product;
    *width = shape->n_dims ? shape->dims[shape->n_dims - 1].n : 1;
    return QN_OK;
}

// Between ranks rows are dense: floats, or blocks part by part.
static int64_t row_bytes(const qn_plan_arg *arg, const qn_backend *backend) {
    if (arg->form == QN_WORD_f32) return arg->parts * arg->width * (int64_t)sizeof(float);
    return arg->parts * backend->row_bytes(arg->form, arg->width);
}

qn_gather_cost qn_plan_gather_cost(const qn_plan *plan, const qn_backend *backend,
                                   const int64_t rows[QN_SYM_COUNT]) {
    qn_gather_cost cost = {0};
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        const int64_t n = call->rows.n * rows[call->rows.sym];
        if (!qn_call_gathers(call) || n == 0) continue;
        cost.calls++;
        cost.bytes += n * row_bytes(&call->out[0], backend);
    }
    return cost;
}

// A rank has as much of what is gathered as its number says. What ids choose has whole rows.
static qn_status check_gather(const qn_plan_call *call, const qn_gather *gather, qn_err *err) {
    const qn_attrs *a = &call->attrs;
    if (!gather)
        return QN_FAIL(err, ARGUMENT, "it gathers from several ranks, and none can be reached");
    if (gather->rank < 0 || gather->rank >= gather->n_ranks || gather->n_ranks > QN_RANKS_MAX)
        return QN_FAIL(err, ARGUMENT, "rank %d of %d", gather->rank, gather->n_ranks);
    QN_TRY(qn_gather_check(a, err));
    const int64_t first = qn_gather_first(a, gather->rank, gather->n_ranks);
    const int64_t end = qn_gather_first(a, gather->rank + 1, gather->n_ranks);
    const int64_t own =
        call->in[1].place != QN_PLACE_NONE ? call->out[0].width : (end - first) * a->parts;
    if (call->in[0].width == own) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "it gathers %lld of %lld values, rank %d of %d has %lld",
                   (long long)call->in[0].width, (long long)a->length, gather->rank,
                   gather->n_ranks, (long long)own);
}

qn_status qn_program_check_gather(const qn_program_opts *opts, qn_err *err) {
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        const qn_plan *plan = opts->plans[i].plan;
        for (size_t c = 0; plan && !opts->is_measured && c < plan->n_calls; c++) {
            if (!qn_call_gathers(&plan->calls[c])) continue;
            const qn_status status = check_gather(&plan->calls[c], opts->gather, err);
            if (status) return qn_err_prefix(err, status, "plan %s, call %zu", plan->name, c);
        }
    }
    return QN_OK;
}

size_t qn_plan_inputs(const qn_plan *plan) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_calls; i++) {
        for (int k = 0; k < plan->calls[i].n_in; k++)
            n += plan->calls[i].in[k].place == QN_PLACE_INPUT;
    }
    return n;
}
