// Loading a weight: rows are read piece by piece, packed into tiles by all threads, and dropped
// again.
#include "backends/cpu/executor.h"

#include "core/mem.h"

enum { BATCH = 8 << 20 }; // bytes of source rows in memory at once; not tuned

// The last two dimensions are a matrix, those before count matrices.
qn_status qn_cpu_describe(qn_packed *out, const qn_plan_leaf *leaf, qn_err *err) {
    const qn_dim *d = leaf->shape.dims;
    const int n = leaf->shape.n_dims;
    int64_t n_matrices = 1;
    for (int i = 0; i + 2 < n; i++) {
        if (!qn_i64_mul(&n_matrices, n_matrices, d[i].n))
            return QN_FAIL(err, LIMIT, "weight %s: sizes overflow", leaf->name);
    }
    const qn_status status = qn_packed_init(out, leaf->type, n_matrices, n > 1 ? d[n - 2].n : 1,
                                            n > 0 ? d[n - 1].n : 1, err);
    return status ? qn_err_prefix(err, status, "weight %s", leaf->name) : QN_OK;
}

static qn_status count_numbers(int64_t *out, const qn_plan_leaf *leaf, qn_err *err) {
    int64_t n = 1;
    for (int i = 0; i < leaf->shape.n_dims; i++) {
        if (!qn_i64_mul(&n, n, leaf->shape.dims[i].n))
            return QN_FAIL(err, LIMIT, "weight %s: sizes overflow", leaf->name);
    }
    *out = n;
    return QN_OK;
}

qn_status qn_cpu_weight_bytes(int64_t *out, const qn_device *device, const qn_plan_leaf *leaf,
                              qn_err *err) {
    qn_packed packed;
    int64_t n;
    (void)device;
    if (leaf->layout == QN_WORD_tiles) {
        QN_TRY(qn_cpu_describe(&packed, leaf, err));
        *out = qn_packed_bytes(&packed);
        return QN_OK;
    }
    QN_TRY(count_numbers(&n, leaf, err));
    if (qn_i64_mul(out, n, (int64_t)sizeof(float))) return QN_OK;
    return QN_FAIL(err, LIMIT, "weight %s: %lld numbers", leaf->name, (long long)n);
}

// --- tiles ---------------------------------------------------------------------------------------

typedef struct packing {
    const qn_weight_reader *reader;
    qn_packed packed;
    unsigned char *to;              // the packed weight
    unsigned char *rows;            // room for the rows of a batch of tiles
    qn_status *statuses;            // of each tile of the batch
    int64_t first, tile_rows_bytes; // first tile of the batch; bytes of 16 rows
} packing;

static qn_status pack_tile(const packing *p, int64_t i, qn_err *err) {
    const qn_packed *w = &p->packed;
    const int64_t per_matrix = w->matrix_bytes / w->tile_bytes, tile = p->first + i;
    const int64_t row = tile % per_matrix * QN_TILE;
    const int64_t n_rows = w->n_out - row < QN_TILE ? w->n_out - row : QN_TILE;
    const int64_t first = (tile / per_matrix * w->n_out + row) * w->n_in;
    unsigned char *from = p->rows + i * p->tile_rows_bytes;
    QN_TRY(p->reader->read(p->reader->arg, from, first, n_rows * w->n_in, err));
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

static qn_status pack_batch(packing *p, qn_pool *pool, int64_t n, qn_err *err) {
    qn_pool_run(pool, n, pack_piece, p);
    for (int64_t i = 0; i < n; i++) { // what failed is done again, for its message
        if (p->statuses[i]) QN_TRY(pack_tile(p, i, err));
    }
    return QN_OK;
}

static qn_status load_tiles(packing *p, qn_pool *pool, qn_err *err) {
    const qn_packed *w = &p->packed;
    const int64_t n_tiles = qn_packed_tiles(w);
    p->tile_rows_bytes = w->tile_bytes; // packing only moves bits
    int64_t max = BATCH / p->tile_rows_bytes;
    if (max < 1) max = 1;
    if (max > n_tiles) max = n_tiles;
    qn_status status = QN_OK;
    p->rows = qn_alloc((size_t)max, (size_t)p->tile_rows_bytes);
    p->statuses = qn_alloc((size_t)max, sizeof *p->statuses);
    if (!p->rows || !p->statuses) status = QN_NOMEM(err, "rows of a weight");
    for (p->first = 0; p->first < n_tiles && !status; p->first += max) {
        const int64_t n = n_tiles - p->first < max ? n_tiles - p->first : max;
        status = pack_batch(p, pool, n, err);
        if (!status) status = p->reader->progress(p->reader->arg, n * w->tile_bytes, err);
    }
    qn_free(p->rows);
    qn_free(p->statuses);
    return status;
}

qn_status qn_cpu_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                             const qn_weight_reader *reader, qn_err *err) {
    packing p = {.reader = reader, .to = to};
    int64_t n;
    if (leaf->layout == QN_WORD_tiles) {
        QN_TRY(qn_cpu_describe(&p.packed, leaf, err));
        return load_tiles(&p, device->pool, err);
    }
    QN_TRY(count_numbers(&n, leaf, err));
    QN_TRY(reader->read_f32(reader->arg, to, 0, n, err));
    return reader->progress(reader->arg, n * (int64_t)sizeof(float), err);
}
