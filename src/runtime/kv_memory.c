#include "runtime/kv_memory.h"

#include "core/mem.h"
#include "runtime/state_int.h"

#include <string.h>

struct qn_kv_memory {
    const qn_state_layout *layout; // borrowed
    void *base;                    // all of it
    size_t size;
    unsigned char **pages; // (groups) the first page
    unsigned char *slots;
    qn_cache_view *caches;
    qn_slots_view *slot_views;
};

// --- life ----------------------------------------------------------------------------------------

static qn_status measure(size_t *out, const qn_state_layout *layout, const int64_t *n_pages,
                         int64_t n_slots, qn_err *err) {
    int64_t all, bytes = 0;
    bool fits = qn_i64_mul(&all, n_slots, layout->slot_bytes);
    for (int64_t g = 0; g < layout->n_groups; g++)
        fits = fits && qn_i64_mul(&bytes, n_pages[g], layout->groups[g].page_bytes) &&
               qn_i64_add(&all, all, bytes);
    if (!fits || !qn_i64_add(&all, all, QN_STATE_ALIGN))
        return QN_FAIL(err, LIMIT, "%lld slots of %lld bytes and all pages: too large",
                       (long long)n_slots, (long long)layout->slot_bytes);
    *out = (size_t)all;
    return QN_OK;
}

static void place(qn_kv_memory *m, const int64_t *n_pages) {
    const qn_state_layout *layout = m->layout;
    unsigned char *at = m->base;
    at += (QN_STATE_ALIGN - (uintptr_t)at % QN_STATE_ALIGN) % QN_STATE_ALIGN;
    for (int64_t g = 0; g < layout->n_groups; g++) {
        m->pages[g] = at;
        at += n_pages[g] * layout->groups[g].page_bytes;
    }
    m->slots = at;
    for (size_t i = 0; i < layout->n_caches; i++) {
        m->caches[i] = layout->caches[i];
        m->caches[i].pages = m->pages[layout->caches[i].group];
    }
    for (size_t i = 0; i < layout->n_slots; i++) {
        m->slot_views[i] = layout->slots[i];
        m->slot_views[i].slots = m->slots;
    }
}

qn_status qn_kv_memory_create(qn_kv_memory **out, const qn_state_layout *layout,
                              const int64_t *n_pages, int64_t n_slots, qn_err *err) {
    size_t size;
    QN_TRY(measure(&size, layout, n_pages, n_slots, err));
    qn_kv_memory *m = qn_alloc(1, sizeof *m);
    if (!m) return QN_NOMEM(err, "sequence state");
    *m = (qn_kv_memory){.layout = layout,
                        .base = qn_reserve(size),
                        .size = size,
                        .pages = qn_alloc((size_t)layout->n_groups, sizeof *m->pages),
                        .caches = qn_alloc(layout->n_caches, sizeof *m->caches),
                        .slot_views = qn_alloc(layout->n_slots, sizeof *m->slot_views)};
    if (!m->base || !m->pages || !m->caches || !m->slot_views) {
        const bool is_refused = !m->base;
        qn_kv_memory_destroy(m);
        return is_refused ? QN_FAIL(err, LIMIT, "%zu bytes of pages and slots", size)
                          : QN_NOMEM(err, "pages and slots");
    }
    place(m, n_pages);
    *out = m;
    return QN_OK;
}

void qn_kv_memory_destroy(qn_kv_memory *m) {
    if (!m) return;
    qn_unreserve(m->base, m->size);
    qn_free(m->pages);
    qn_free(m->caches);
    qn_free(m->slot_views);
    qn_free(m);
}

const qn_cache_view *qn_kv_cache(const qn_kv_memory *m, size_t i) { return &m->caches[i]; }
const qn_slots_view *qn_kv_slots(const qn_kv_memory *m, size_t i) { return &m->slot_views[i]; }

// --- copies --------------------------------------------------------------------------------------

static void copy_page(qn_kv_memory *m, const qn_copy *copy) {
    const int64_t bytes = m->layout->groups[copy->group].page_bytes;
    unsigned char *pages = m->pages[copy->group];
    memcpy(pages + copy->to * bytes, pages + copy->from * bytes, (size_t)bytes);
}

static void copy_slot(qn_kv_memory *m, const qn_copy *copy) {
    const qn_state_layout *layout = m->layout;
    unsigned char *to = m->slots + copy->to * layout->slot_bytes;
    const unsigned char *from = m->slots + copy->from * layout->slot_bytes;
    memcpy(to, from, (size_t)layout->states_bytes);
    for (size_t i = 0; i < layout->n_slots; i++) {
        const qn_slots_view *view = &layout->slots[i];
        memcpy(to + view->log_offset, from + view->log_offset,
               (size_t)(copy->log_rows * view->log_size) * sizeof(float));
    }
}

void qn_kv_copy(qn_kv_memory *m, const qn_copy *copies, int64_t n) {
    static void (*const kinds[QN_COPY_KINDS])(qn_kv_memory * m, const qn_copy *copy) = {
        [QN_COPY_PAGE] = copy_page, [QN_COPY_SLOT] = copy_slot};
    for (int64_t i = 0; i < n; i++) {
        if (copies[i].from != copies[i].to) kinds[copies[i].kind](m, &copies[i]);
    }
}
