#include "runtime/kv_memory.h"

#include "core/mem.h"
#include "runtime/state_int.h"

// What one device holds.
typedef struct kv_part {
    qn_device *device; // borrowed
    void *base;        // all of it
    size_t size;
    unsigned char **pages; // (groups) the first page
    unsigned char *slots;
} kv_part;

struct qn_kv_memory {
    const qn_state_layout *layout; // borrowed
    kv_part *parts;                // (layout->n_parts)
    qn_cache_view *caches;
    qn_slots_view *slot_views;
};

// --- life ----------------------------------------------------------------------------------------

static qn_status measure(size_t *out, const qn_state_layout *layout, const state_part *part,
                         const int64_t *n_pages, int64_t n_slots, qn_err *err) {
    int64_t all, bytes = 0;
    bool fits = qn_i64_mul(&all, n_slots, part->slot_bytes);
    for (int64_t g = 0; g < layout->n_groups; g++)
        fits = fits && qn_i64_mul(&bytes, n_pages[g], part->page_bytes[g]) &&
               qn_i64_add(&all, all, bytes);
    if (!fits)
        return QN_FAIL(err, LIMIT, "%lld slots of %lld bytes and all pages: too large",
                       (long long)n_slots, (long long)part->slot_bytes);
    *out = all > 0 ? (size_t)all : 1; // the last device may hold layers that keep nothing
    return QN_OK;
}

static void place(kv_part *to, const qn_state_layout *layout, const state_part *part,
                  const int64_t *n_pages) {
    unsigned char *at = to->base;
    for (int64_t g = 0; g < layout->n_groups; g++) {
        to->pages[g] = at;
        at += n_pages[g] * part->page_bytes[g];
    }
    to->slots = at;
}

static qn_status init_part(kv_part *to, const qn_state_layout *layout, const state_part *part,
                           const int64_t *n_pages, int64_t n_slots, qn_err *err) {
    QN_TRY(measure(&to->size, layout, part, n_pages, n_slots, err));
    to->device = part->device;
    to->pages = qn_alloc((size_t)layout->n_groups, sizeof *to->pages);
    if (!to->pages) return QN_NOMEM(err, "pages and slots");
    const qn_status status = part->device->kind->alloc(&to->base, part->device, to->size, err);
    if (status) return qn_err_prefix(err, status, "pages and slots");
    place(to, layout, part, n_pages);
    return QN_OK;
}

// Kernels get views with addresses, and know nothing of parts.
static void set_views(qn_kv_memory *m) {
    const qn_state_layout *layout = m->layout;
    for (size_t i = 0; i < layout->n_caches; i++) {
        m->caches[i] = layout->caches[i];
        m->caches[i].pages = m->parts[layout->cache_parts[i]].pages[layout->caches[i].group];
    }
    for (size_t i = 0; i < layout->n_slots; i++) {
        m->slot_views[i] = layout->slots[i];
        m->slot_views[i].slots = m->parts[layout->slot_parts[i]].slots;
    }
}

qn_status qn_kv_memory_create(qn_kv_memory **out, const qn_state_layout *layout,
                              const int64_t *n_pages, int64_t n_slots, qn_err *err) {
    qn_kv_memory *m = qn_alloc(1, sizeof *m);
    if (!m) return QN_NOMEM(err, "sequence state");
    *m = (qn_kv_memory){.layout = layout,
                        .parts = qn_alloc(layout->n_parts, sizeof *m->parts),
                        .caches = qn_alloc(layout->n_caches, sizeof *m->caches),
                        .slot_views = qn_alloc(layout->n_slots, sizeof *m->slot_views)};
    qn_status status = QN_OK;
    if (!m->parts || !m->caches || !m->slot_views) status = QN_NOMEM(err, "pages and slots");
    for (size_t p = 0; p < layout->n_parts && !status; p++)
        status = init_part(&m->parts[p], layout, &layout->parts[p], n_pages, n_slots, err);
    if (status) {
        qn_kv_memory_destroy(m);
        return status;
    }
    set_views(m);
    *out = m;
    return QN_OK;
}

void qn_kv_memory_destroy(qn_kv_memory *m) {
    if (!m) return;
    for (size_t p = 0; m->parts && p < m->layout->n_parts; p++) {
        kv_part *part = &m->parts[p];
        if (part->base) part->device->kind->free(part->device, part->base, part->size);
        qn_free(part->pages);
    }
    qn_free(m->parts);
    qn_free(m->caches);
    qn_free(m->slot_views);
    qn_free(m);
}

const qn_cache_view *qn_kv_cache(const qn_kv_memory *m, size_t i) { return &m->caches[i]; }
const qn_slots_view *qn_kv_slots(const qn_kv_memory *m, size_t i) { return &m->slot_views[i]; }

// --- reading and writing -------------------------------------------------------------------------

qn_status qn_kv_get_rows(unsigned char *rows, const qn_kv_memory *m, size_t i, int32_t page,
                         int64_t first, int64_t n, qn_err *err) {
    qn_device *device = m->parts[m->layout->cache_parts[i]].device;
    device->kind->get_kv(rows, device, &m->caches[i], page, first, n);
    return qn_device_failure(device, err);
}

qn_status qn_kv_set_rows(const unsigned char *rows, qn_kv_memory *m, size_t i, int32_t page,
                         int64_t first, int64_t n, qn_err *err) {
    qn_device *device = m->parts[m->layout->cache_parts[i]].device;
    device->kind->set_kv(rows, device, &m->caches[i], page, first, n);
    return qn_device_failure(device, err);
}

qn_status qn_kv_get_state(float *state, const qn_kv_memory *m, size_t i, int32_t slot,
                          int64_t n_log, float *room, qn_err *err) {
    qn_device *device = m->parts[m->layout->slot_parts[i]].device;
    const qn_slots_view *v = &m->slot_views[i];
    const unsigned char *at = v->slots + slot * v->slot_bytes;
    device->kind->read(device, state, at + v->offset, (size_t)v->state_size * sizeof *state);
    if (n_log == 0) return qn_device_failure(device, err);
    device->kind->read(device, room, at + v->log_offset,
                       (size_t)(n_log * v->log_size) * sizeof *room);
    QN_TRY(qn_device_failure(device, err));
    qn_log_apply(state, &m->layout->rules[i], room, n_log);
    return QN_OK;
}

qn_status qn_kv_set_state(const float *state, qn_kv_memory *m, size_t i, int32_t slot,
                          qn_err *err) {
    qn_device *device = m->parts[m->layout->slot_parts[i]].device;
    const qn_slots_view *v = &m->slot_views[i];
    device->kind->write(device, v->slots + slot * v->slot_bytes + v->offset, state,
                        (size_t)v->state_size * sizeof *state);
    return qn_device_failure(device, err);
}

// --- copies --------------------------------------------------------------------------------------

static void move(const kv_part *part, unsigned char *base, int64_t to, int64_t from,
                 int64_t bytes) {
    part->device->kind->copy(part->device, base + to, base + from, (size_t)bytes);
}

static void copy_page(qn_kv_memory *m, const qn_copy *copy) {
    for (size_t p = 0; p < m->layout->n_parts; p++) {
        const int64_t bytes = m->layout->parts[p].page_bytes[copy->group];
        move(&m->parts[p], m->parts[p].pages[copy->group], copy->to * bytes, copy->from * bytes,
             bytes);
    }
}

static void copy_slot(qn_kv_memory *m, const qn_copy *copy) {
    const qn_state_layout *layout = m->layout;
    for (size_t p = 0; p < layout->n_parts; p++) {
        const int64_t bytes = layout->parts[p].slot_bytes;
        move(&m->parts[p], m->parts[p].slots, copy->to * bytes, copy->from * bytes,
             layout->parts[p].states_bytes);
    }
    for (size_t i = 0; i < layout->n_slots; i++) {
        const qn_slots_view *view = &m->slot_views[i];
        move(&m->parts[layout->slot_parts[i]], view->slots,
             copy->to * view->slot_bytes + view->log_offset,
             copy->from * view->slot_bytes + view->log_offset,
             copy->log_rows * view->log_size * (int64_t)sizeof(float));
    }
}

typedef void copy_fn(qn_kv_memory *m, const qn_copy *copy);

void qn_kv_copy(qn_kv_memory *m, const qn_copy *copies, int64_t n) {
    static copy_fn *const kinds[] = {[QN_COPY_PAGE] = copy_page, [QN_COPY_SLOT] = copy_slot};
    for (int64_t i = 0; i < n; i++) {
        if (copies[i].from != copies[i].to) kinds[copies[i].kind](m, &copies[i]);
    }
}
