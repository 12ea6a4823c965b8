// Weights of a GPU: rows in their own type, or as floats; they are read on the host in pieces.
#include "backends/cuda/cuda_device.h"

#include "core/mem.h"

// The values of a leaf, and of one row.
static qn_status count_values(int64_t *n, int64_t *width, const qn_plan_leaf *leaf, qn_err *err) {
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

// The type in which the numbers lie on the card.
static qn_type type_of(const qn_plan_leaf *leaf) {
    return leaf->layout == QN_WORD_typed ? leaf->type : QN_TYPE_F32;
}

qn_status qn_cuda_weight_bytes(int64_t *out, const qn_device *device, const qn_plan_leaf *leaf,
                               qn_err *err) {
    (void)device;
    const qn_type_info *info = qn_type_get(leaf->type);
    int64_t n, width;
    QN_TRY(count_values(&n, &width, leaf, err));
    if (leaf->layout != QN_WORD_typed && leaf->layout != QN_WORD_rows)
        return QN_FAIL(err, UNSUPPORTED, "weight %s: device cuda has no layout %s", leaf->name,
                       qn_word_get(leaf->layout)->name);
    if (leaf->layout == QN_WORD_typed && width % info->block)
        return QN_FAIL(err, FORMAT, "weight %s: rows of %lld values, blocks of %s have %d",
                       leaf->name, (long long)width, info->name, info->block);
    if (!qn_type_bytes(out, type_of(leaf), n))
        return QN_FAIL(err, LIMIT, "weight %s: the bytes of %lld values overflow", leaf->name,
                       (long long)n);
    return QN_OK;
}

qn_status qn_cuda_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                              const qn_weight_reader *reader, qn_err *err) {
    enum { PIECE = 1 << 22 }; // values at a time: whole blocks of every type
    const qn_type_info *info = qn_type_get(type_of(leaf));
    int64_t n, width, bytes, room = 0;
    QN_TRY(count_values(&n, &width, leaf, err));
    QN_TRY(qn_cuda_weight_bytes(&bytes, device, leaf, err));
    if (!qn_type_bytes(&room, type_of(leaf), qn_min(n, PIECE)))
        return QN_FAIL(err, LIMIT, "weight %s: a piece overflows", leaf->name);
    unsigned char *piece = qn_alloc((size_t)room, 1);
    if (!piece) return QN_NOMEM(err, leaf->name);
    qn_status status = QN_OK;
    for (int64_t first = 0; first < n && !status; first += PIECE) {
        const int64_t some = qn_min(n - first, PIECE);
        const int64_t size = some / info->block * info->bytes;
        status = leaf->layout == QN_WORD_typed
                     ? reader->read(reader->arg, piece, first, some, err)
                     : reader->read_f32(reader->arg, (float *)(void *)piece, first, some, err);
        if (!status)
            qn_cuda_write(device, (unsigned char *)to + first / info->block * info->bytes, piece,
                          (size_t)size);
        if (!status && reader->progress) status = reader->progress(reader->arg, size, err);
    }
    qn_free(piece);
    return status ? status : qn_cuda_failure(device, err);
}
