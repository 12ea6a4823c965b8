#include "runtime/weights.h"

#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "runtime/weights_file.h"

#include <string.h>

enum { BATCH = 8 << 20 }; // bytes of source rows in memory at once

struct qn_packs {
    qn_pack_items items;
    qn_map tiles, rows; // by name
    qn_pack_map map;    // the file; none: all items lie in `block`
    unsigned char *block;
    size_t block_bytes;
    int64_t bytes, cached;
};

// --- what is wanted ---

// What an op takes as a weight is read in tiles, all else as plain rows.
static bool reads_tiles(qn_op op, int input) { return qn_op_get(op)->kinds[input] == 'w'; }

// Marks the params that some call reads in tiles, and those that one reads as rows.
static void mark_uses(bool *tiles, bool *rows, const qn_plan *plan) {
    for (size_t c = 0; c < plan->n_calls; c++) {
        const qn_plan_call *call = &plan->calls[c];
        const int n_kinds = (int)strlen(qn_op_get(call->op)->kinds);
        for (int i = 0; i < call->n_in; i++) {
            if (call->in[i].place != QN_PLACE_PARAM) continue;
            const bool is_tiled = i < n_kinds && reads_tiles(call->op, i);
            (is_tiled ? tiles : rows)[call->in[i].index] = true;
        }
    }
}

// Sizes of a weight in tiles: the last two dimensions are a matrix, those before count matrices.
static qn_status size_tiles(qn_pack_item *item, qn_err *err) {
    const qn_weight *w = item->weight;
    const int n = w->shape.n_dims;
    const int64_t n_in = n > 0 ? w->shape.dims[n - 1].n : 1;
    const int64_t n_out = n > 1 ? w->shape.dims[n - 2].n : 1;
    QN_TRY(qn_packed_init(&item->packed, w->type, w->n / (n_in * n_out), n_out, n_in, err));
    item->bytes = qn_packed_bytes(&item->packed);
    return QN_OK;
}

static qn_status size_item(qn_pack_item *item, qn_err *err) {
    const qn_weight *w = item->weight;
    if (item->is_tiled)
        QN_TRY(size_tiles(item, err));
    else if (!qn_i64_mul(&item->bytes, w->n, (int64_t)sizeof(float)))
        return QN_FAIL(err, LIMIT, "%lld numbers", (long long)w->n);
    if (!qn_i64_add(&item->room, item->bytes, QN_PACK_PAGE - 1))
        return QN_FAIL(err, LIMIT, "%lld bytes", (long long)item->bytes);
    item->room -= item->room % QN_PACK_PAGE;
    return QN_OK;
}

// One form of a weight; twice the same is one.
static qn_status add_item(qn_packs *packs, const qn_weight *w, bool is_tiled, qn_err *err) {
    qn_map *map = is_tiled ? &packs->tiles : &packs->rows;
    const uint32_t index = (uint32_t)packs->items.n;
    uint32_t old = index;
    if (!qn_map_add(map, w->name, strlen(w->name), index, &old)) return QN_NOMEM(err, w->name);
    if (old != index) return QN_OK;
    qn_pack_item *item = &packs->items.v[packs->items.n++];
    *item = (qn_pack_item){.weight = w, .is_tiled = is_tiled};
    const qn_status status = size_item(item, err);
    if (status) return qn_err_prefix(err, status, "weight %s", w->name);
    if (qn_i64_add(&packs->bytes, packs->bytes, item->bytes)) return QN_OK;
    return QN_FAIL(err, LIMIT, "weight %s: %lld bytes in addition to %lld", w->name,
                   (long long)item->bytes, (long long)packs->bytes);
}

static qn_status add_param(qn_packs *packs, const qn_weights *weights, const char *name,
                           bool in_tiles, bool in_rows, qn_err *err) {
    uint32_t index;
    if (!qn_map_find(&weights->by_name, name, strlen(name), &index))
        return QN_FAIL(err, ARGUMENT, "the model has no weight %s", name);
    const qn_weight *w = &weights->items[index];
    if (in_tiles) QN_TRY(add_item(packs, w, true, err));
    return in_rows ? add_item(packs, w, false, err) : QN_OK;
}

static qn_status collect(qn_packs *packs, const qn_packs_opts *o, qn_err *err) {
    const size_t n = o->plan->n_leaves[QN_PLACE_PARAM];
    qn_status status = QN_OK;
    bool *uses = qn_alloc(n, 2 * sizeof *uses);
    packs->items.v = qn_alloc(n, 2 * sizeof *packs->items.v);
    if (!uses || !packs->items.v) {
        status = QN_NOMEM(err, "weights");
        goto done;
    }
    mark_uses(uses, uses + n, o->plan);
    for (size_t i = 0; i < n; i++)
        QN_TRY_TO(done,
                  add_param(packs, &o->model->weights, o->plan->leaves[QN_PLACE_PARAM][i].name,
                            uses[i], uses[n + i], err));

done:
    qn_free(uses);
    return status;
}

// --- packing from the source ---

typedef struct packing {
    const qn_packs_opts *o;
    qn_pack_item *item;
    unsigned char *to;              // the packed weight
    unsigned char *rows;            // room for the rows of a batch of tiles
    qn_status *statuses;            // of each tile of the batch
    int64_t first, tile_rows_bytes; // first tile of the batch; bytes of 16 rows
    int64_t done;                   // bytes, of all weights
} packing;

static qn_status pack_tile(const packing *p, int64_t i, qn_err *err) {
    const qn_packed *w = &p->item->packed;
    const int64_t per_matrix = w->matrix_bytes / w->tile_bytes, tile = p->first + i;
    const int64_t row = tile % per_matrix * QN_TILE;
    const int64_t n_rows = w->n_out - row < QN_TILE ? w->n_out - row : QN_TILE;
    const int64_t first = (tile / per_matrix * w->n_out + row) * w->n_in;
    unsigned char *from = p->rows + i * p->tile_rows_bytes;
    QN_TRY(qn_weight_read(from, p->item->weight, p->o->source, first, n_rows * w->n_in, err));
    qn_packed alone = *w; // the tile as a weight of its own
    alone.n_matrices = 1;
    alone.n_out = n_rows;
    alone.matrix_bytes = w->tile_bytes;
    qn_pack_tile(p->to + tile * w->tile_bytes, &alone, from, 0);
    return QN_OK;
}

static void pack_piece(void *arg, int64_t i) {
    const packing *p = arg;
    p->statuses[i] = pack_tile(p, i, NULL);
}

static qn_status tell(packing *p, int64_t bytes, int64_t total, qn_err *err) {
    p->done += bytes;
    if (!p->o->progress || p->o->progress(p->o->progress_arg, p->done, total)) return QN_OK;
    return QN_FAIL(err, STOPPED, "loading stopped at %lld of %lld bytes", (long long)p->done,
                   (long long)total);
}

static qn_status pack_batch(packing *p, int64_t n, qn_err *err) {
    qn_pool_run(p->o->pool, n, pack_piece, p);
    for (int64_t i = 0; i < n; i++) { // what failed is done again, for its message
        if (p->statuses[i]) QN_TRY(pack_tile(p, i, err));
    }
    return QN_OK;
}

static qn_status pack_tiles(packing *p, int64_t total, qn_err *err) {
    const qn_packed *w = &p->item->packed;
    const int64_t n_tiles = qn_packed_tiles(w);
    p->tile_rows_bytes = w->tile_bytes; // packing only moves bits
    int64_t most = BATCH / p->tile_rows_bytes;
    if (most < 1) most = 1;
    if (most > n_tiles) most = n_tiles;
    qn_status status = QN_OK;
    p->rows = qn_alloc((size_t)most, (size_t)p->tile_rows_bytes);
    p->statuses = qn_alloc((size_t)most, sizeof *p->statuses);
    if (!p->rows || !p->statuses) status = QN_NOMEM(err, "rows of a weight");
    for (p->first = 0; p->first < n_tiles && !status; p->first += most) {
        const int64_t n = n_tiles - p->first < most ? n_tiles - p->first : most;
        status = pack_batch(p, n, err);
        if (!status) status = tell(p, n * w->tile_bytes, total, err);
    }
    qn_free(p->rows);
    qn_free(p->statuses);
    return status;
}

static qn_status pack_item(packing *p, int64_t total, qn_err *err) {
    qn_pack_item *item = p->item;
    if (item->is_tiled) {
        QN_TRY(pack_tiles(p, total, err));
    } else {
        QN_TRY(qn_weight_read_f32((float *)(void *)p->to, item->weight, p->o->source, 0,
                                  item->weight->n, err));
        QN_TRY(tell(p, item->bytes, total, err));
    }
    item->data = p->to;
    return QN_OK;
}

// One block for all that is not there yet, in large pages where the system has them.
static qn_status take_block(qn_packs *packs, qn_err *err) {
    size_t bytes = 0;
    for (size_t i = 0; i < packs->items.n; i++) {
        if (!packs->items.v[i].data && !qn_size_add(&bytes, bytes, (size_t)packs->items.v[i].room))
            return QN_FAIL(err, LIMIT, "packed weights: sizes overflow");
    }
    if (bytes == 0) return QN_OK;
    packs->block = qn_reserve(bytes);
    if (!packs->block) return QN_NOMEM(err, "packed weights");
    packs->block_bytes = bytes;
    qn_want_large_pages(packs->block, bytes);
    return QN_OK;
}

static void drop_block(qn_packs *packs) {
    qn_unreserve(packs->block, packs->block_bytes);
    packs->block = NULL;
}

// Packs what is not there yet; *n_packed counts.
static qn_status pack_missing(qn_packs *packs, const qn_packs_opts *o, size_t *n_packed,
                              qn_err *err) {
    packing p = {.o = o};
    *n_packed = 0;
    QN_TRY(take_block(packs, err));
    unsigned char *to = packs->block;
    QN_TRY(tell(&p, packs->cached, packs->bytes, err));
    for (size_t i = 0; i < packs->items.n; i++) {
        p.item = &packs->items.v[i];
        if (p.item->data) continue;
        p.to = to;
        to += p.item->room; // whole pages, as in the file
        QN_TRY(pack_item(&p, packs->bytes, err));
        ++*n_packed;
    }
    return QN_OK;
}

// --- the cache folder ---

// Takes what the file has ready.
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
    size_t n_packed = 0;
    qn_status status = QN_OK;
    const unsigned char **data = qn_alloc(packs->items.n, sizeof *data);
    if (!data) return QN_NOMEM(err, "packed weights");
    QN_TRY_TO(done, qn_pack_file_init(&file, o->disk, o->source, &packs->items, o->pool, err));
    load_file(packs, &file, o->disk, data);
    QN_TRY_TO(done, pack_missing(packs, o, &n_packed, err));
    if (n_packed) QN_TRY_TO(done, store_file(packs, &file, o->disk, data, err));
    status = qn_disk_claim(o->disk, file.name, err);

done:
    qn_pack_file_deinit(&file);
    qn_free(data);
    return status;
}

qn_status qn_packs_create(qn_packs **out, const qn_packs_opts *opts, qn_err *err) {
    qn_packs *packs = qn_alloc(1, sizeof *packs);
    if (!packs) return QN_NOMEM(err, "packed weights");
    size_t n_packed;
    qn_status status = collect(packs, opts, err);
    if (!status)
        status = opts->disk && opts->disk->dir ? pack_with_cache(packs, opts, err)
                                               : pack_missing(packs, opts, &n_packed, err);
    if (status) {
        qn_packs_destroy(packs);
        return status;
    }
    for (size_t i = 0; i < packs->items.n; i++)
        packs->items.v[i].packed.data = packs->items.v[i].data;
    *out = packs;
    return QN_OK;
}

void qn_packs_destroy(qn_packs *packs) {
    if (!packs) return;
    drop_block(packs);
    qn_pack_unmap(&packs->map);
    qn_free(packs->items.v);
    qn_map_deinit(&packs->tiles);
    qn_map_deinit(&packs->rows);
    qn_free(packs);
}

static const qn_pack_item *find(const qn_packs *packs, const qn_map *map, const char *name) {
    uint32_t i;
    return qn_map_find(map, name, strlen(name), &i) ? &packs->items.v[i] : NULL;
}

const qn_packed *qn_packs_packed(const qn_packs *packs, const char *name) {
    const qn_pack_item *item = find(packs, &packs->tiles, name);
    return item ? &item->packed : NULL;
}

const float *qn_packs_rows(const qn_packs *packs, const char *name) {
    const qn_pack_item *item = find(packs, &packs->rows, name);
    return item ? (const float *)(const void *)item->data : NULL;
}

int64_t qn_packs_bytes(const qn_packs *packs) { return packs->bytes; }
int64_t qn_packs_cached_bytes(const qn_packs *packs) { return packs->cached; }

qn_status qn_packs_describe(qn_packed *out, bool *is_tiled, const qn_plan_leaf *leaf, qn_err *err) {
    const qn_dim *d = leaf->shape.dims;
    const int n = leaf->shape.n_dims;
    *is_tiled = n >= 2 && qn_pack_supports(leaf->type);
    if (!*is_tiled) return QN_OK;
    return qn_packed_init(out, leaf->type, n > 2 ? d[0].n : 1, d[n - 2].n, d[n - 1].n, err);
}
