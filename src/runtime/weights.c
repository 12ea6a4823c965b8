#include "runtime/weights.h"

#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "ir/share.h"
#include "runtime/weights_file.h"

#include <string.h>

struct qn_packs {
    qn_device *device; // borrowed
    qn_pack_items items;
    qn_map by_name;
    qn_pack_map map; // the file; none: all items lie in `block`
    void *block;     // of the device
    qn_packs *own;   // weights that no source has, and so no file keeps; NULL: none
    size_t block_bytes;
    int64_t bytes, cached;
};

// --- what is wanted ---

static qn_status size_item(qn_pack_item *item, const qn_device *device, qn_err *err) {
    QN_TRY(device->kind->weight_bytes(&item->bytes, device, item->leaf, err));
    if (!qn_i64_add(&item->room, item->bytes, QN_PACK_PAGE - 1))
        return QN_FAIL(err, LIMIT, "weight %s: %lld bytes", item->leaf->name,
                       (long long)item->bytes);
    item->room -= item->room % QN_PACK_PAGE;
    return QN_OK;
}

// Adds a weight of the plan, once even where the plan names it twice.
static qn_status add_item(qn_packs *packs, const qn_packs_opts *o, const qn_plan_leaf *leaf,
                          qn_err *err) {
    const qn_weights *weights = o->weights;
    uint32_t weight, index = (uint32_t)packs->items.n, old = index;
    if (!qn_map_find(&weights->by_name, leaf->name, strlen(leaf->name), &weight))
        return QN_FAIL(err, ARGUMENT, "the model has no weight %s", leaf->name);
    if (weights->items[weight].is_predict && !o->is_head) return QN_OK;
    if (!qn_map_add(&packs->by_name, leaf->name, strlen(leaf->name), index, &old))
        return QN_NOMEM(err, leaf->name);
    if (old != index) return QN_OK;
    qn_pack_item *item = &packs->items.v[packs->items.n++];
    *item = (qn_pack_item){.weight = &weights->items[weight],
                           .leaf = leaf,
                           .is_paged = qn_residency_has(o->residency, leaf->name)};
    QN_TRY(size_item(item, packs->device, err));
    if (item->is_paged) return QN_OK; // the pools count instead
    if (qn_i64_add(&packs->bytes, packs->bytes, item->bytes)) return QN_OK;
    return QN_FAIL(err, LIMIT, "weight %s: %lld bytes in addition to %lld", leaf->name,
                   (long long)item->bytes, (long long)packs->bytes);
}

static bool is_own(const qn_weights *weights, const qn_plan_leaf *leaf) {
    uint32_t i;
    return qn_map_find(&weights->by_name, leaf->name, strlen(leaf->name), &i) &&
           weights->items[i].n_parts == 0;
}

// The weights of the source, or those that no source has.
static qn_status collect(qn_packs *packs, const qn_packs_opts *o, bool wants_own, qn_err *err) {
    const size_t n = o->plan->n_leaves[QN_PLACE_PARAM];
    packs->items.v = qn_alloc(n, sizeof *packs->items.v);
    if (!packs->items.v) return QN_NOMEM(err, "weights");
    for (size_t i = 0; i < n; i++) {
        const qn_plan_leaf *leaf = &o->plan->leaves[QN_PLACE_PARAM][i];
        if (is_own(o->weights, leaf) != wants_own) continue;
        if (!o->besides || !qn_packs_find(o->besides, leaf->name))
            QN_TRY(add_item(packs, o, leaf, err));
    }
    return QN_OK;
}

// --- loading from the source ---

typedef struct loading {
    const qn_packs_opts *o;
    const qn_pack_item *item;
    int64_t done, total; // bytes, of all weights
} loading;

// Elements first ... first + n - 1 of the leaf as some of the weight's: where the leaf is a share,
// only what follows there. Returns how many.
static int64_t find_elements(int64_t *at, const qn_plan_leaf *leaf, int64_t first, int64_t n) {
    int64_t some = n;
    *at = leaf->share ? qn_share_find(&some, leaf->share, &leaf->shape, first) : first;
    return qn_min(some, n);
}

static qn_status read_typed(void *arg, void *to, int64_t first, int64_t n, qn_err *err) {
    const loading *l = arg;
    const qn_weight *w = l->item->weight;
    const qn_type_info *type = qn_type_get(w->type);
    int64_t some, at;
    for (int64_t i = 0; i < n; i += some) {
        some = find_elements(&at, l->item->leaf, first + i, n - i);
        unsigned char *piece = (unsigned char *)to + i / type->block * type->bytes;
        QN_TRY(qn_weight_read(piece, w, l->o->source, at, some, err));
    }
    return QN_OK;
}

static qn_status read_floats(void *arg, float *to, int64_t first, int64_t n, qn_err *err) {
    const loading *l = arg;
    int64_t some, at;
    for (int64_t i = 0; i < n; i += some) {
        some = find_elements(&at, l->item->leaf, first + i, n - i);
        QN_TRY(qn_weight_read_f32(to + i, l->item->weight, l->o->source, at, some, err));
    }
    return QN_OK;
}

static qn_status tell(void *arg, int64_t bytes, qn_err *err) {
    loading *l = arg;
    l->done += bytes;
    if (!l->o->progress || l->o->progress(l->o->progress_arg, l->done, l->total)) return QN_OK;
    return QN_FAIL(err, STOPPED, "loading stopped at %lld of %lld bytes", (long long)l->done,
                   (long long)l->total);
}

// One block for all that is not loaded yet, in large pages where the system has them.
static qn_status take_block(qn_packs *packs, qn_err *err) {
    size_t bytes = 0;
    for (size_t i = 0; i < packs->items.n; i++) {
        const qn_pack_item *item = &packs->items.v[i];
        if (!item->data && !item->is_paged && !qn_size_add(&bytes, bytes, (size_t)item->room))
            return QN_FAIL(err, LIMIT, "packed weights: sizes overflow");
    }
    if (bytes == 0) return QN_OK;
    qn_err why;
    const qn_status status = packs->device->kind->alloc(&packs->block, packs->device, bytes, &why);
    if (status && status != QN_LIMIT) return QN_FAIL(err, IO, "packed weights: %s", why.message);
    if (status) return QN_FAIL(err, MEMORY, "out of memory: packed weights: %s", why.message);
    packs->block_bytes = bytes;
    if (packs->device->kind->has_host_memory) qn_want_large_pages(packs->block, bytes);
    return QN_OK;
}

static void drop_block(qn_packs *packs) {
    if (packs->block) packs->device->kind->free(packs->device, packs->block, packs->block_bytes);
    packs->block = NULL;
}

// Experts that the device does not have all of wait in this process's memory.
static qn_status load_experts(const qn_packs *packs, const qn_packs_opts *o,
                              const qn_pack_item *item, const qn_weight_reader *reader,
                              qn_err *err) {
    unsigned char *room = qn_residency_room(o->residency, item->leaf->name);
    QN_TRY(packs->device->kind->pack_weight(room, packs->device, item->leaf, reader, err));
    qn_residency_fill(o->residency, item->leaf->name);
    return QN_OK;
}

// Loads what is missing; *n_loaded counts.
static qn_status load_missing(qn_packs *packs, const qn_packs_opts *o, size_t *n_loaded,
                              qn_err *err) {
    loading l = {.o = o, .total = packs->bytes};
    const qn_weight_reader reader = {
        .arg = &l, .read = read_typed, .read_f32 = read_floats, .progress = tell};
    *n_loaded = 0;
    QN_TRY(take_block(packs, err));
    unsigned char *to = packs->block;
    for (size_t i = 0; i < packs->items.n; i++)
        if (packs->items.v[i].is_paged) l.total += packs->items.v[i].bytes;
    QN_TRY(tell(&l, packs->cached, err));
    for (size_t i = 0; i < packs->items.n; i++) {
        qn_pack_item *item = &packs->items.v[i];
        if (item->data) continue;
        l.item = item;
        if (item->is_paged) {
            QN_TRY(load_experts(packs, o, item, &reader, err));
            continue;
        }
        QN_TRY(packs->device->kind->load_weight(to, packs->device, item->leaf, &reader, err));
        item->data = to;
        to += item->room; // whole pages, as in the file
        ++*n_loaded;
    }
    return QN_OK;
}

// --- the cache folder ---

static void adopt(qn_packs *packs, const unsigned char *const *data) {
    for (size_t i = 0; i < packs->items.n; i++) {
        if (data[i]) packs->items.v[i].data = data[i];
    }
}

static void load_file(qn_packs *packs, const qn_pack_file *file, const qn_disk *disk,
                      const unsigned char **data) {
    qn_err err = {0};
    size_t n_bad = 0;
    const char *remedy =
        disk->may_write ? "; it is written again" : "; weights are packed in memory";
    if (disk->is_foreign || !qn_disk_has(disk, file->name)) return;
    if (qn_pack_file_map(&packs->map, data, file, &packs->items, &err) != QN_OK) {
        qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "%s is not used: %s%s", file->path,
               err.message, remedy);
        return;
    }
    adopt(packs, data);
    for (size_t i = 0; i < packs->items.n; i++) {
        const qn_pack_item *item = &packs->items.v[i];
        if (data[i])
            packs->cached += item->bytes;
        else if (++n_bad == 1)
            qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "%s is damaged (weight %s)%s",
                   file->path, item->weight->name, remedy);
    }
}

// Writes the file. Failing to changes nothing, and is an error only where it must be there.
static qn_status write_file(bool *is_written, const qn_packs *packs, const qn_pack_file *file,
                            const qn_disk *disk, qn_err *err) {
    qn_err why = {0};
    const qn_status status = qn_pack_file_write(file, &packs->items, &why);
    *is_written = !status;
    if (status && disk->must_write && err) *err = why;
    if (status && disk->must_write) return status;
    if (status)
        qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "packed weights are not kept: %s",
               why.message);
    return QN_OK;
}

// Writes the file, and uses it in place of memory, unless that fails.
static qn_status store_file(qn_packs *packs, const qn_pack_file *file, const qn_disk *disk,
                            const unsigned char **data, qn_err *err) {
    bool is_written = false;
    qn_pack_map map = {0};
    if (disk->may_write) QN_TRY(write_file(&is_written, packs, file, disk, err));
    if (!is_written) return QN_OK;
    qn_log(disk->log, disk->log_arg, QN_LOG_INFO, "packed weights are kept in %s (%lld MiB)",
           file->path, (long long)(file->size >> 20));
    if (qn_pack_file_map(&map, data, file, &packs->items, NULL) != QN_OK) return QN_OK;
    bool is_whole = true;
    for (size_t i = 0; i < packs->items.n; i++) is_whole = is_whole && data[i];
    if (is_whole) {
        adopt(packs, data);
        drop_block(packs);
        qn_pack_unmap(&packs->map);
        packs->map = map;
    } else {
        qn_pack_unmap(&map);
    }
    return QN_OK;
}

static qn_status pack_with_cache(qn_packs *packs, const qn_packs_opts *o, qn_err *err) {
    qn_pack_file file = {0};
    size_t n_loaded = 0;
    qn_status status = QN_OK;
    const unsigned char **data = qn_alloc(packs->items.n, sizeof *data);
    if (!data) return QN_NOMEM(err, "packed weights");
    QN_TRY_TO(done, qn_pack_file_init(&file, o->disk, o->source, o->device, &packs->items, err));
    load_file(packs, &file, o->disk, data);
    QN_TRY_TO(done, load_missing(packs, o, &n_loaded, err));
    if (n_loaded) QN_TRY_TO(done, store_file(packs, &file, o->disk, data, err));
    status = qn_disk_claim(o->disk, file.name, err);

done:
    qn_pack_file_deinit(&file);
    qn_free(data);
    return status;
}

// --- experts that are not all in memory ---

typedef struct reading {
    const qn_packs_opts *o;
    const qn_packs *packs;
    loading l; // for progress
} reading;

static void take_bytes(void *arg, size_t i, int64_t offset, const unsigned char *bytes, int64_t n) {
    reading *r = arg;
    const qn_pack_item *item = &r->packs->items.v[i];
    const qn_device *device = r->packs->device;
    if (item->is_paged)
        qn_residency_take(r->o->residency, item->leaf->name, bytes, n);
    else
        device->kind->write(r->packs->device, (unsigned char *)(uintptr_t)item->data + offset,
                            bytes, (size_t)n);
}

static qn_status load_one(void *arg, size_t i, void *to, qn_err *err) {
    reading *r = arg;
    const qn_pack_item *item = &r->packs->items.v[i];
    const qn_weight_reader reader = {
        .arg = &r->l, .read = read_typed, .read_f32 = read_floats, .progress = tell};
    r->l.item = item;
    return r->packs->device->kind->load_weight(to, r->packs->device, item->leaf, &reader, err);
}

// The memory of all weights but experts, which the file fills.
static qn_status place_items(qn_packs *packs, qn_residency *residency, int64_t begin, qn_err *err) {
    QN_TRY(take_block(packs, err));
    unsigned char *to = packs->block;
    for (size_t i = 0; i < packs->items.n; i++) {
        qn_pack_item *item = &packs->items.v[i];
        if (item->is_paged) {
            qn_residency_place(residency, item->leaf->name, begin + item->offset);
            continue;
        }
        item->data = to;
        to += item->room;
    }
    return QN_OK;
}

// Writes the file, weight by weight: all of them may be more than fits in memory.
static qn_status write_paged(reading *r, const qn_pack_file *file, qn_err *err) {
    const qn_disk *disk = r->o->disk;
    if (!disk->may_write)
        return QN_FAIL(err, MEMORY,
                       "keeping some of the experts in memory needs packed weights, and %s has "
                       "none that can be used: make them with 'quern compile'",
                       disk->dir);
    for (size_t i = 0; i < r->packs->items.n; i++) r->l.total += r->packs->items.v[i].bytes;
    QN_TRY(qn_pack_file_write_each(file, &r->packs->items, load_one, r, err));
    qn_log(disk->log, disk->log_arg, QN_LOG_INFO, "packed weights are kept in %s (%lld MiB)",
           file->path, (long long)(file->size >> 20));
    return QN_OK;
}

// Reads the file; where it cannot be used, writes it first.
static qn_status read_paged(qn_file *f, reading *r, const qn_pack_file *file, qn_err *err) {
    const qn_disk *disk = r->o->disk;
    const qn_pack_items *items = &r->packs->items;
    if (!disk->is_foreign && qn_disk_has(disk, file->name)) {
        qn_err why;
        const qn_status status = qn_pack_file_read(f, file, items, take_bytes, r, &why);
        if (!status || status == QN_MEMORY) {
            if (status && err) *err = why;
            return status;
        }
        qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "%s is not used: %s", file->path,
               why.message);
    }
    QN_TRY(write_paged(r, file, err));
    for (size_t i = 0; i < items->n; i++) { // from the beginning
        if (items->v[i].is_paged)
            qn_residency_place(r->o->residency, items->v[i].leaf->name,
                               file->begin + items->v[i].offset);
    }
    return qn_pack_file_read(f, file, items, take_bytes, r, err);
}

static qn_status pack_paged(qn_packs *packs, const qn_packs_opts *o, qn_err *err) {
    qn_pack_file file = {0};
    qn_file f = {.fd = -1};
    reading r = {.o = o, .packs = packs, .l = {.o = o}};
    QN_TRY(qn_pack_file_init(&file, o->disk, o->source, o->device, &packs->items, err));
    qn_status status = place_items(packs, o->residency, file.begin, err);
    if (!status) status = read_paged(&f, &r, &file, err);
    if (!status) status = qn_disk_claim(o->disk, file.name, err);
    if (!status) {
        packs->cached = packs->bytes;
        packs->bytes += qn_residency_bytes(o->residency);
        status = qn_residency_start(o->residency, &f, err);
    }
    if (f.fd >= 0) qn_file_close(&f);
    qn_pack_file_deinit(&file);
    return status;
}

static qn_status create_packs(qn_packs **out, const qn_packs_opts *opts, bool wants_own,
                              qn_err *err) {
    qn_packs *packs = qn_alloc(1, sizeof *packs);
    if (!packs) return QN_NOMEM(err, "packed weights");
    size_t n_loaded;
    packs->device = opts->device;
    const bool is_cached =
        !wants_own && opts->disk && opts->disk->dir && opts->device->kind->has_host_memory;
    qn_status status = collect(packs, opts, wants_own, err);
    if (!status && is_cached && opts->residency)
        status = pack_paged(packs, opts, err);
    else if (!status)
        status = is_cached ? pack_with_cache(packs, opts, err)
                           : load_missing(packs, opts, &n_loaded, err);
    if (!status && opts->residency && !is_cached && !wants_own) {
        packs->bytes += qn_residency_bytes(opts->residency);
        status = qn_residency_start(opts->residency, NULL, err);
    }
    if (opts->device->kind->load_end) opts->device->kind->load_end(opts->device);
    if (status) {
        qn_packs_destroy(packs);
        return status;
    }
    *out = packs;
    return QN_OK;
}

// Files of the cache folder hold whole weights.
static bool has_shares(const qn_plan *plan) {
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_PARAM]; i++) {
        if (plan->leaves[QN_PLACE_PARAM][i].share) return true;
    }
    return false;
}

static bool has_own(const qn_packs_opts *o) {
    for (size_t i = 0; i < o->plan->n_leaves[QN_PLACE_PARAM]; i++) {
        if (is_own(o->weights, &o->plan->leaves[QN_PLACE_PARAM][i])) return true;
    }
    return false;
}

qn_status qn_packs_create(qn_packs **out, const qn_packs_opts *opts, qn_err *err) {
    qn_packs *packs = NULL;
    qn_packs_opts own = *opts;
    if (has_shares(opts->plan)) own.disk = NULL;
    QN_TRY(create_packs(&packs, &own, false, err));
    const qn_status status = has_own(opts) ? create_packs(&packs->own, &own, true, err) : QN_OK;
    if (status)
        qn_packs_destroy(packs);
    else
        *out = packs;
    return status;
}

void qn_packs_destroy(qn_packs *packs) {
    if (!packs) return;
    qn_packs_destroy(packs->own);
    drop_block(packs);
    qn_pack_unmap(&packs->map);
    qn_free(packs->items.v);
    qn_map_deinit(&packs->by_name);
    qn_free(packs);
}

const void *qn_packs_find(const qn_packs *packs, const char *name) {
    uint32_t i;
    if (qn_map_find(&packs->by_name, name, strlen(name), &i)) return packs->items.v[i].data;
    return packs->own ? qn_packs_find(packs->own, name) : NULL;
}

int64_t qn_packs_bytes(const qn_packs *packs) {
    return packs->bytes + (packs->own ? packs->own->bytes : 0);
}
int64_t qn_packs_cached_bytes(const qn_packs *packs) { return packs->cached; }
