// The devices of this machine, by name.
#include "backends/device.h"

#include "core/buf.h"
#include "core/err.h"
#include "core/mem.h"

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

qn_status qn_device_open(qn_device **out, const char *name, const char *variant, qn_pool *pool,
                         qn_err *err) {
    if (!name || !*name) return kinds[0]->open(out, variant, pool, err);
    const size_t size = strcspn(name, ":");
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i]->name) != size || memcmp(kinds[i]->name, name, size) != 0) continue;
        const bool has_variants = kinds[i]->variant && kinds[i]->variant(0);
        if (name[size]) variant = name + size + 1;
        return kinds[i]->open(out, name[size] || has_variants ? variant : NULL, pool, err);
    }
    return fail_unknown(name, size, err);
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

size_t qn_plan_inputs(const qn_plan *plan) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_calls; i++) {
        for (int k = 0; k < plan->calls[i].n_in; k++)
            n += plan->calls[i].in[k].place == QN_PLACE_INPUT;
    }
    return n;
}
